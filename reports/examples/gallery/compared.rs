//! Answers of the comparison over two short made-up traces, and hand-made ones beside them.

use lockstep_diff::report::{
    Control, DiffReport, DriftReport, KeepSetReport, NoiseMetric, NoiseReport,
};
use lockstep_diff::stats::{Bootstrap, Case, Names, PairedScores};
use lockstep_diff::{Options, Side, compare};
use lockstep_traces::manifest::Producer;
use lockstep_traces::store::StepColumns;
use lockstep_traces::{DType, EventRow, Manifest, Phase, Status, StepRow, Verdict};

const BUDGET: u32 = 12;
const DIVIDE: u32 = 6;
const SPLIT: u32 = 24;

/// Rows of one side: `compacts` drops to the budget whenever budget + divide rows are held.
pub(crate) fn rows(sample: &str, compacts: bool) -> Vec<StepRow> {
    let mut held = 0;
    let mut ordinal = 0;
    (0..40)
        .map(|position: u32| {
            let before = held;
            held += 1;
            let compaction = (compacts && held >= BUDGET + DIVIDE).then(|| {
                ordinal += 1;
                held = BUDGET;
                ordinal
            });
            let token = |position: u32, compacts: bool| {
                if compacts && position > SPLIT { 900 + position % 8 } else { position % 8 }
            };
            let off = if compacts && position >= BUDGET + DIVIDE { 0.01 } else { 0.0 };
            let (first, other) = (token(position + 1, compacts), token(position + 1, !compacts));
            let second = if other == first { 99 } else { other };
            StepRow {
                sample_id: sample.to_owned(),
                position,
                phase: if position < 6 { Phase::Prompt } else { Phase::Decode },
                token_id: token(position, compacts),
                next_token: (position >= 5).then_some(first),
                rows_before: before,
                rows_after: held,
                rows_bucketed: None,
                compaction,
                rope_index: None,
                argmax: first,
                top_ids: vec![first, second, 77],
                top_logits: vec![9.5 + off, 9.0, 1.25 - off],
                logsumexp: None,
                top2_margin: Some(0.5 + off),
                finite: true,
                logits_hash: None,
                rng_offset: None,
                uniform: None,
            }
        })
        .collect()
}

/// Compactions that those rows show.
pub(crate) fn events(rows: &[StepRow]) -> Vec<EventRow> {
    rows.iter()
        .filter_map(|row| {
            Some(EventRow {
                sample_id: row.sample_id.clone(),
                ordinal: row.compaction?,
                absolute_position: row.position + 1,
                round_start: None,
                rows_before: row.rows_before + 1,
                rows_after: row.rows_after,
                protected: 6,
                candidates: 12,
                score_seconds: 0.0,
                reduce_seconds: 0.0,
                select_seconds: 0.0,
                gather_seconds: 0.0,
                dump: None,
            })
        })
        .collect()
}

fn manifest(policy: &str) -> Manifest {
    let name = "lockstep-runtime".to_owned();
    let mut manifest = Manifest::new(Producer { name, ..Producer::default() }, "cpu");
    manifest.dtype = Some(DType::F32);
    manifest.status = Status::Complete;
    manifest.set("policy.kind", policy, "flag");
    manifest.set("sampling.temperature", 0.0, "flag");
    manifest
}

/// Scores of two sides by their cells: both, left only, right only, neither.
pub(crate) fn paired(what: &str, (left, right): (&str, &str), cells: [usize; 4]) -> PairedScores {
    let kinds = [(true, true), (true, false), (false, true), (false, false)];
    let outcomes: Vec<(bool, bool)> = kinds
        .into_iter()
        .zip(cells)
        .flat_map(|(kind, count)| std::iter::repeat_n(kind, count))
        .collect();
    let ids: Vec<String> = (0..outcomes.len()).map(|at| format!("sample_{at}")).collect();
    let cases: Vec<Case<'_>> = ids
        .iter()
        .zip(&outcomes)
        .map(|(prompt, (left, right))| Case { prompt, left: *left, right: *right })
        .collect();
    PairedScores::of(Names { what, left, right }, &cases, Bootstrap::default())
}

/// Dense against compressed, two samples, one of which is equal.
pub(crate) fn diff() -> DiffReport {
    let mut left = rows("ledger_05", false);
    left.extend(rows("same <b>", false));
    let mut right = rows("ledger_05", true);
    right.extend(rows("same <b>", false));
    let happened = events(&right);
    let (left, right) = (StepColumns::from_rows(&left), StepColumns::from_rows(&right));
    let manifests = (manifest("dense"), manifest("triattention"));
    let side =
        |label, manifest, steps, events| Side { label, manifest, samples: &[], steps, events };
    let mut diff = compare(
        &side("runs/dense", &manifests.0, &left, &[]),
        &side("runs/trt", &manifests.1, &right, &happened),
        Options::default(),
    );
    diff.pairing = Some(paired("answers", ("runs/dense", "runs/trt"), [9, 6, 0, 1]));
    diff
}

/// A judgement of noise.
pub(crate) fn noise() -> NoiseReport {
    let metric = |name: &str, target, control| NoiseMetric {
        name: name.into(),
        target,
        control,
        ratio: Some(target / control),
        allowed: 2.0,
        reason: "two runs of one dtype differ by up to this".into(),
        within: target <= 2.0 * control,
    };
    NoiseReport {
        against: Control { truth: "f64 replay".into(), control: "f32 replay".into() },
        rows: 161,
        values: 1_288,
        metrics: vec![metric("rmse", 3.1e-7, 2.9e-7), metric("max_abs", 4.4e-6, 1.9e-6)],
        first_beyond: None,
        rows_beyond: 0,
        control_flips: 0.0,
        target_flips: 0.0,
        verdict: Verdict::WithinNoise,
        summary: "the target is as far from the truth as the control.".into(),
    }
}

/// The answer behind the drift map.
pub(crate) fn drift() -> DriftReport {
    DriftReport {
        sample_id: "ledger_05".into(),
        positions: vec![150],
        rows: Vec::new(),
        first_beyond: Some(("layer00.attn_heads".into(), 162)),
        compared: 1_619,
        skipped: 1,
        verdict: Verdict::Diverged,
        summary: "beyond the control from layer00.attn_heads at 162.".into(),
    }
}

/// The answer behind the keep-set maps.
pub(crate) fn keep() -> KeepSetReport {
    KeepSetReport {
        events: Vec::new(),
        heads: 18,
        equal: 16,
        order: 0,
        tie_equivalent: 1,
        near_cut: 0,
        different: 1,
        dependent: 0,
        skipped: 0,
        mean_jaccard: Some(0.998_132),
        remarks: vec!["compaction 2 was dumped on one side only".into()],
        verdict: Verdict::Diverged,
        summary: "1 of 18 heads keeps other rows.".into(),
    }
}
