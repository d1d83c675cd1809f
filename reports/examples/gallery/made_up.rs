//! A report of made-up figures that has every part, hostile text included.

use std::collections::BTreeMap;

use lockstep_reports::Report;
use lockstep_reports::model::{
    Candidate, CompactionPoint, Curve, DriftMap, Firsts, KeepCounts, KeepHead, KeepMap, Paragraph,
    ParagraphKind, PolicyRow, RunSummary, SplitSide, SplitView, Timeline, TimelineRun, Token,
    TokenCell, TokenStrip,
};
use lockstep_reports::num::Num;
use lockstep_traces::manifest::Setting;
use lockstep_traces::{
    Cause, CheckKind, CheckReport, Evidence, Finding, Location, Status, Verdict,
};
use serde_json::json;

const PROMPT: u32 = 66;
const END: u32 = 437;
const FIRST_COMPACTION: u32 = 161;
const SPLIT: u32 = 233;

/// Small linear congruential generator: the same figures every time.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn run(label: &str, policy: &str, compactions: u64) -> RunSummary {
    let setting = |value: serde_json::Value, source: &str| Setting { value, source: source.into() };
    RunSummary {
        label: label.into(),
        producer: "lockstep-runtime 0.1.0".into(),
        policy: policy.into(),
        dtype: Some("f32".into()),
        cache_dtype: Some("f32".into()),
        device: "cpu".into(),
        samples: 16,
        rows: 5_321,
        compactions,
        status: if label == "random" { Status::Incomplete } else { Status::Complete },
        plant: None,
        remarks: Vec::new(),
        config: BTreeMap::from([
            ("model.rope_theta".into(), setting(json!(10_000.0), "config.json")),
            ("policy.divide_length".into(), setting(json!(32), "flag")),
            ("policy.kind".into(), setting(json!("triattention"), "flag")),
            ("policy.recent_window".into(), setting(json!(128), "rule set")),
        ]),
    }
}

fn rows_of(budget: u32, divide: u32) -> (Vec<(u32, u32)>, Vec<CompactionPoint>) {
    let mut points = vec![(0, 1)];
    let mut compactions = Vec::new();
    let mut rows = 1;
    for position in 1..=END {
        rows += 1;
        if rows >= budget + divide && position > PROMPT {
            points.push((position, rows));
            compactions.push(CompactionPoint {
                ordinal: compactions.len() as u32 + 1,
                position,
                rows_before: rows,
                rows_after: budget,
            });
            rows = budget;
            points.push((position, rows));
        }
    }
    points.push((END, rows));
    (points, compactions)
}

fn timeline() -> Timeline {
    let (compressed, compactions) = rows_of(130, 32);
    let run = |label: &str| TimelineRun {
        label: label.into(),
        points: compressed.clone(),
        compactions: compactions.clone(),
    };
    Timeline {
        sample_id: "ledger_05".into(),
        prompt_len: Some(PROMPT),
        runs: vec![
            TimelineRun {
                label: "dense".into(),
                points: vec![(0, 1), (END, END + 1)],
                compactions: Vec::new(),
            },
            run("triattention (trt)"),
            run("recent"),
            run("random"),
        ],
        firsts_of: "dense against triattention (trt)".into(),
        firsts: Firsts {
            structural: Some(FIRST_COMPACTION),
            logit: Some(FIRST_COMPACTION + 1),
            argmax: Some(SPLIT),
            token: Some(SPLIT),
        },
        dependent_from: Some(SPLIT + 1),
    }
}

fn curve() -> Curve {
    let mut draw = Draw(7);
    let position: Vec<u32> = (0..=END).collect();
    let mut margin = |_: &u32| {
        let value = draw.next();
        if value < 0.02 { Some(Num(value * 0.1)) } else { Some(Num(14.0 * value * value)) }
    };
    let margin_left: Vec<Option<Num>> = position.iter().map(&mut margin).collect();
    let mut noise = Draw(11);
    let margin_right = margin_left
        .iter()
        .zip(&position)
        .map(|(value, at)| {
            let off = if *at > FIRST_COMPACTION { noise.next() - 0.5 } else { 0.0 };
            value.map(|Num(value)| Num((value + off).abs()))
        })
        .collect();
    let mut size = Draw(3);
    let logit_diff = position
        .iter()
        .map(|at| match *at {
            at if at <= FIRST_COMPACTION => Some(Num(0.0)),
            at if at == FIRST_COMPACTION + 20 => Some(Num(f64::NAN)),
            at if at > SPLIT => None,
            at => {
                Some(Num(1e-4 * 10_f64.powf(size.next() * 2.0) * f64::from(at - FIRST_COMPACTION)))
            }
        })
        .collect();
    Curve {
        sample_id: "ledger_05".into(),
        left_label: "dense".into(),
        right_label: "triattention (trt)".into(),
        position,
        margin_left,
        margin_right,
        logit_diff,
        dependent_from: Some(SPLIT + 1),
        prompt_len: Some(PROMPT),
        rows: u64::from(END) + 1,
        firsts: timeline().firsts,
    }
}

fn drift() -> DriftMap {
    let stages = lockstep_traces::dump::LAYER_STAGES;
    let mut rows = vec!["embed".to_owned()];
    for layer in 0..4 {
        rows.extend(stages.iter().map(|stage| format!("layer{layer:02}.{stage}")));
    }
    rows.push("final_norm".into());
    let columns: Vec<u32> = (150..240).step_by(3).collect();
    let mut draw = Draw(5);
    let values = (0..rows.len())
        .map(|row| {
            columns
                .iter()
                .map(|column| match (row, *column) {
                    (0, _) => Some(Num(0.0)),
                    (_, column) if column <= FIRST_COMPACTION => Some(Num(0.0)),
                    (7, 201) => None,
                    (30, 210) => Some(Num(f64::INFINITY)),
                    (_, column) => Some(Num(1e-6
                        * 10_f64.powf(draw.next() * 1.5 + row as f64 / 14.0)
                        * f64::from(column - FIRST_COMPACTION))),
                })
                .collect()
        })
        .collect();
    DriftMap {
        sample_id: "ledger_05".into(),
        left_label: "dense".into(),
        right_label: "triattention (trt)".into(),
        rows,
        columns,
        merged: 1,
        values,
        control: Some(Num(2e-6)),
        first_beyond: Some(("layer00.attn_heads".into(), 162)),
    }
}

fn keep_map(ordinal: u32, rows: u32, heads: u32) -> KeepMap {
    let mut draw = Draw(u64::from(ordinal) * 31);
    let heads: Vec<KeepHead> = (0..heads)
        .map(|head| {
            let rows: String = (0..rows)
                .map(|row| {
                    let value = draw.next();
                    if row < PROMPT || row + 16 >= rows {
                        'P'
                    } else if head == 1 && value < 0.02 {
                        'L'
                    } else if head == 1 && value < 0.04 {
                        'R'
                    } else if value < 0.7 {
                        'K'
                    } else {
                        '.'
                    }
                })
                .collect();
            let counts = KeepCounts::of(&rows);
            KeepHead { layer: None, head: Some(head), rows, counts }
        })
        .collect();
    let counts = heads.iter().fold(KeepCounts::default(), |sum, head| sum.plus(head.counts));
    KeepMap {
        sample_id: "ledger_05".into(),
        ordinal,
        left_label: "runtime".into(),
        right_label: Some("reference".into()),
        rows,
        prompt_len: Some(PROMPT),
        heads,
        counts,
    }
}

/// Tokens that try to break a page.
pub(crate) fn hostile() -> Vec<Vec<u8>> {
    vec![
        b"<script>alert('x')</script>".to_vec(),
        b" \"quoted\" & 'single'".to_vec(),
        b"\xe2\x82".to_vec(),
        b"\xac".to_vec(),
        "a\u{202e}b".as_bytes().to_vec(),
        b"nul\0byte".to_vec(),
        b"\n".to_vec(),
        b"</svg><img src=x onerror=y>".to_vec(),
    ]
}

fn token(id: u32) -> Token {
    let words = ["17", " +", " 4", " =", " 21", ";", " balance", " owes"];
    let hostile = hostile();
    if id >= 900 {
        let bytes = &hostile[(id - 900) as usize % hostile.len()];
        Token::new(id, bytes)
    } else {
        Token::new(id, words[id as usize % words.len()].as_bytes())
    }
}

fn side(label: &str, chosen: u32, shift: f32) -> SplitSide {
    let logits = [17.312_f32 + shift, 17.25 - shift, 12.5, 11.75, 9.1, 8.8, 8.25, 7.0];
    let mut candidates: Vec<Candidate> = [4, 3, 6, 900, 902, 905, 7, 1]
        .into_iter()
        .zip(logits)
        .map(|(id, logit)| Candidate { token: token(id), logit: Some(Num::from(logit)) })
        .collect();
    candidates.sort_by(|a, b| b.logit.partial_cmp(&a.logit).unwrap_or(std::cmp::Ordering::Equal));
    let gap = |index: usize| candidates[index].logit.map_or(0.0, |logit| logit.0);
    SplitSide {
        label: label.into(),
        chosen: Some(chosen),
        margin: Some(Num(gap(0) - gap(1))),
        gap: Some(Num(gap(0) - gap(1))),
        gap_ulps: Some(Num(32_505.0)),
        uniform: None,
        rows_before: Some(if label == "dense" { SPLIT } else { 139 }),
        candidates,
    }
}

fn split() -> SplitView {
    SplitView {
        sample_id: "ledger_05".into(),
        kind: "token".into(),
        class: "clear".into(),
        row: SPLIT,
        fed_at: SPLIT + 1,
        ulp_dtype: "f32".into(),
        left: Some(side("dense", 4, 0.0)),
        right: Some(side("triattention (trt)", 3, -0.2)),
        note: "the compressed run prefers \" =\" by 0.338".into(),
    }
}

fn strip() -> TokenStrip {
    let cells = (SPLIT - 11..SPLIT + 10)
        .map(|position| {
            let same = position <= SPLIT;
            let id = if position % 3 == 0 { 900 + position % 8 } else { position % 8 };
            TokenCell {
                position,
                left: Some(token(id)),
                right: (position < SPLIT + 8).then(|| token(if same { id } else { (id + 1) % 8 })),
                same,
                prompt: false,
                compaction: (position == SPLIT - 8).then_some(3),
            }
        })
        .collect();
    TokenStrip {
        sample_id: "ledger_05".into(),
        left_label: "dense".into(),
        right_label: "triattention (trt)".into(),
        row: Some(SPLIT),
        fed_at: Some(SPLIT + 1),
        cells,
    }
}

fn policies() -> Vec<PolicyRow> {
    let row = |policy: &str, exact, p: Option<f64>, paired| PolicyRow {
        policy: policy.into(),
        n: 16,
        exact,
        right: Some(exact + 3),
        first_wrong: Some(12 - exact),
        prefix_share: Some(Num(0.31 + 0.07 * exact as f64)),
        against: p.map(|_| "triattention (trt)".into()),
        mcnemar_p: p.map(Num),
        paired,
        note: None,
    };
    let against = |other, cells| {
        Some(crate::compared::paired("exact completions", ("triattention (trt)", other), cells))
    };
    vec![
        row("triattention (trt)", 6, None, None),
        row("recent", 1, Some(0.0625), against("recent", [1, 5, 0, 10])),
        row("random", 0, Some(0.031_25), against("random", [0, 6, 0, 10])),
    ]
}

fn checks() -> Vec<CheckReport> {
    let check = |kind, verdict, compared, different, unit: &str| CheckReport {
        kind,
        verdict,
        compared,
        different,
        skipped: 0,
        unit: unit.into(),
        findings: Vec::new(),
        limits: Vec::new(),
        detail: json!({"rule_set": "trt", "events": 9, "mean_jaccard": 0.998_132}),
    };
    vec![
        check(CheckKind::Gather, Verdict::Identical, 1_152, 0, "rows by layer and head"),
        check(CheckKind::Selector, Verdict::Diverged, 18, 1, "heads"),
        CheckReport {
            skipped: 3,
            ..check(
                CheckKind::Sampler,
                Verdict::Incomparable { why: "no <random> numbers stored".into() },
                0,
                0,
                "draws",
            )
        },
    ]
}

/// The report.
pub(crate) fn report() -> Report {
    let mut report = Report::new(
        "Dense against compressed: ledger, 16 problems",
        "lockstep demo --out \"a <dir>\" --plant tie-order",
        Verdict::Diverged,
    );
    let say = |kind, text: &str| Paragraph::new(kind, text);
    report.story = vec![
        say(
            ParagraphKind::Headline,
            "The compressed run parts from dense at row 233 of ledger_05: an honest loss, not a bug.",
        ),
        say(
            ParagraphKind::Text,
            "Both runs are bit-identical up to the first compaction (row 161). The first logit that differs is at row 162, the first token at row 233.",
        ),
        say(
            ParagraphKind::Passed,
            "Every row that was gathered is bit for bit the row that the keep-set names, K and V.",
        ),
        say(
            ParagraphKind::Problem,
            "One head keeps another row than the rule set says: ties are broken by another order.",
        ),
        say(
            ParagraphKind::Item,
            "6 of 16 compressed runs stay exact; recency keeps 1, random keeping 0.",
        ),
    ];
    report.runs = vec![
        run("dense", "dense", 0),
        run("trt", "triattention (trt) 130 / 32", 9),
        run("random", "random 130 / 32", 9),
    ];
    report.diffs = vec![super::compared::diff()];
    report.noise = vec![super::compared::noise()];
    report.drift_reports = vec![super::compared::drift()];
    report.keep_reports = vec![super::compared::keep()];
    report.checks = checks();
    report.findings = vec![Finding {
        cause: Some(Cause::TieOrder),
        title: "ties are broken by another order <of rows>".into(),
        location: Location {
            sample_id: Some("ledger_05".into()),
            ordinal: Some(2),
            head: Some(1),
            stage: Some("keep".into()),
            ..Location::default()
        },
        evidence: vec![
            Evidence { name: "tied rows".into(), value: json!(7) },
            Evidence { name: "score gap at the cut".into(), value: json!(0.0) },
            Evidence { name: "expected".into(), value: json!("lower row first") },
        ],
    }];
    report.policy_table = policies();
    report.timelines = vec![timeline()];
    report.curves = vec![curve()];
    report.drift = vec![drift()];
    report.keep_maps = vec![keep_map(2, 162, 2), keep_map(3, 3_200, 8)];
    report.splits_view = vec![split()];
    report.strips = vec![strip()];
    report.limits = vec![
        "Logits outside the stored top 8 were compared by hash only.".into(),
        "n = 16: a difference of fewer than 6 samples cannot be shown at p < 0.05.".into(),
    ];
    report
}
