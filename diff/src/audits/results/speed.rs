//! Audits of speed: what is divided by what, and on which engine.

use super::super::facts::{Evidence, Kind, Rate};
use super::super::{Audit, Control, Note, Outcome, Pair, Sample, Subject, registry};

/// Rates of different kinds.
pub(super) static MIXED: Audit = Audit {
    number: 60,
    slug: "speed-mixing",
    title: "rates are compared that are not of one kind",
    compares: "metric, GPU, tracing and lengths of both sides; stated totals with sum(tokens) / sum(time)",
    needs: "`generated_tokens` with `decode_seconds` or `wall_seconds`, or stated rates",
    gate: false,
    each: Some(totals),
    pair: Some(mixed),
    whole: None,
    controls: mixed_controls,
};

/// How far a stated total may be off: half a per cent, ten times what four printed digits round.
const TOTAL_TOLERANCE: f64 = 0.005;

/// sum(tokens) / sum(seconds) by one metric; `None` where a sample lacks one of them.
fn rate(subject: &Subject<'_>, metric: &str) -> Option<f64> {
    let samples = subject.samples.as_ref().filter(|samples| !samples.is_empty())?;
    let (mut tokens, mut seconds) = (0_u64, 0.0);
    for sample in samples {
        tokens = tokens.checked_add(sample.generated_tokens?)?;
        seconds += if metric == "wall" { sample.wall_seconds? } else { sample.decode_seconds? };
    }
    #[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^53")]
    let tokens = tokens as f64;
    (seconds > 0.0).then(|| tokens / seconds)
}

fn totals(subject: &Subject<'_>) -> Vec<Note> {
    let stated = subject.rates.iter().flatten().filter(|stated| stated.total);
    stated
        .filter_map(|stated| {
            let own = rate(subject, &stated.metric)?;
            let said = format!(
                "{} rate: stated {:.2} tok/s, sum(tokens) / sum(time) is {own:.2}",
                stated.metric, stated.tokens_per_sec
            );
            let off = (stated.tokens_per_sec - own).abs() / own;
            Some(if off > TOTAL_TOLERANCE {
                Note::flag(format!("{said}: it is a mean of rates, or of other rows"))
                    .remedy("divide sums")
            } else {
                Note::pass(said)
            })
        })
        .collect()
}

fn mixed(pair: &Pair<'_, '_>) -> Vec<Note> {
    let metrics = |subject: &Subject<'_>| -> Vec<&'static str> {
        ["decode", "wall"].into_iter().filter(|metric| rate(subject, metric).is_some()).collect()
    };
    let (left, right) = (metrics(pair.left), metrics(pair.right));
    if left.is_empty() || right.is_empty() {
        return Vec::new();
    }
    let rows = |subject: &Subject<'_>| {
        let stated = subject.rates.iter().flatten().find(|stated| !stated.total);
        stated.map(|stated| stated.metric.clone())
    };
    let Some(common) = left.iter().find(|metric| right.contains(metric)) else {
        return vec![
            Note::flag(format!("{} rates against {} rates", left.join(", "), right.join(", ")))
                .remedy("measure the same time on both sides"),
        ];
    };
    let ratio =
        rate(pair.right, common).zip(rate(pair.left, common)).map_or(f64::NAN, |(r, l)| r / l);
    let said = format!("by {common} time, sum(tokens) / sum(time): right over left {ratio:.3}");
    let mut faults = Vec::new();
    if let (Some(l), Some(r)) = (rows(pair.left), rows(pair.right))
        && l != r
    {
        faults.push(format!("rows state {l} rates against {r} rates"));
    }
    faults.extend(conditions(pair));
    if faults.is_empty() {
        return vec![Note::pass(said)];
    }
    vec![
        Note::flag(format!("{}; {said}", faults.join("; ")))
            .remedy("compare one metric under equal conditions"),
    ]
}

/// GPU, tracing, profiling and lengths.
fn conditions(pair: &Pair<'_, '_>) -> Vec<String> {
    let mut faults = Vec::new();
    let gpu = |subject: &Subject<'_>| {
        subject
            .artifact
            .as_ref()
            .and_then(|artifact| artifact.gpu.clone())
            .or_else(|| subject.engine.device.clone())
    };
    if let (Some(l), Some(r)) = (gpu(pair.left), gpu(pair.right))
        && l != r
    {
        faults.push(format!("{l} against {r}"));
    }
    for key in ["trace.top_k", "trace.path", "dump.path", "dump.profile"] {
        if let (Some(l), Some(r)) = (pair.left.text(key), pair.right.text(key))
            && l != r
        {
            faults.push(format!("{key} {l} against {r}"));
        }
    }
    let tokens = |subject: &Subject<'_>| {
        subject.samples.iter().flatten().filter_map(|sample| sample.generated_tokens).sum::<u64>()
    };
    let (l, r) = (tokens(pair.left), tokens(pair.right));
    let stops = ["stop.rule", "stop.max_new_tokens"]
        .iter()
        .all(|key| pair.left.text(key).is_some() && pair.left.text(key) == pair.right.text(key));
    if l != r && !stops {
        faults.push(format!("{l} against {r} generated tokens without one recorded stop rule"));
    }
    faults
}

fn timed(label: &str, decode: Option<f64>, wall: Option<f64>, tokens: &[u64]) -> Subject<'static> {
    let mut subject = Subject::new(label, Kind::Benchmark);
    for (at, count) in tokens.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "small counts")]
        let seconds = |rate: Option<f64>| rate.map(|rate| *count as f64 / rate);
        subject = subject.with_sample(Sample {
            generated_tokens: Some(*count),
            decode_seconds: seconds(decode),
            wall_seconds: seconds(wall),
            ..Sample::new(format!("toy_{at}"))
        });
    }
    subject
}

fn stating(
    mut subject: Subject<'static>,
    metric: &str,
    tokens_per_sec: f64,
    total: bool,
) -> Subject<'static> {
    let rate = Rate { metric: metric.to_owned(), tokens_per_sec, total };
    subject.rates.get_or_insert_default().push(rate);
    subject
}

fn mixed_controls() -> Vec<Control> {
    let rows = |label: &str, metric: &str| {
        stating(timed(label, Some(80.0), Some(70.0), &[400, 100]), metric, 80.0, false)
    };
    let mut other = rows("right", "decode");
    other.engine.device = Some("cuda: other".to_owned());
    let mut own = rows("left", "decode");
    own.engine.device = Some("cuda: one".to_owned());
    // Two samples of 100 tokens in 1 s and 300 in 12 s: the mean of rates is 62.5, the total is 400 / 13.
    let mut uneven = timed("summary", None, Some(100.0), &[100, 300]);
    if let Some(sample) = uneven.samples.iter_mut().flatten().last() {
        sample.wall_seconds = Some(12.0);
    }
    vec![
        Control::planted(
            "wall rates against decode rates",
            Evidence::pair(rows("left", "wall"), rows("right", "decode")),
            Outcome::Flag,
            "rows state wall rates against decode rates",
        ),
        Control::planted(
            "another GPU",
            Evidence::pair(own, other),
            Outcome::Flag,
            "cuda: one against cuda: other",
        ),
        Control::planted(
            "no common time",
            Evidence::pair(
                timed("left", None, Some(70.0), &[5]),
                timed("right", Some(80.0), None, &[5]),
            ),
            Outcome::Flag,
            "wall rates against decode rates",
        ),
        Control::planted(
            "other lengths",
            Evidence::pair(
                timed("left", Some(80.0), None, &[5]),
                timed("right", Some(80.0), None, &[9]),
            ),
            Outcome::Flag,
            "5 against 9 generated tokens",
        ),
        Control::planted(
            "the mean of the rates",
            Evidence::one(stating(uneven.clone(), "wall", 62.5, true)),
            Outcome::Flag,
            "stated 62.50 tok/s, sum(tokens) / sum(time) is 30.77",
        ),
        Control::clean("sums", Evidence::one(stating(uneven, "wall", 30.77, true)), "is 30.77"),
        Control::clean(
            "one kind",
            Evidence::pair(
                timed("left", Some(80.0), None, &[5]),
                timed("right", Some(100.0), None, &[5]),
            ),
            "right over left 1.250",
        ),
    ]
}

/// A speed-up over another engine.
pub(super) static BASELINE: Audit = Audit {
    number: 61,
    slug: "speed-baseline",
    title: "a speed-up is stated over a baseline that ran on another engine",
    compares: "the ratio of the rates with audits 2 and 3 of the pair",
    needs: "times of both sides and what audits 2 and 3 need",
    gate: false,
    each: None,
    pair: Some(baseline),
    whole: None,
    controls: baseline_controls,
};

fn baseline(pair: &Pair<'_, '_>) -> Vec<Note> {
    let ratio = ["decode", "wall"]
        .into_iter()
        .find_map(|metric| Some((metric, rate(pair.right, metric)? / rate(pair.left, metric)?)));
    let Some((metric, ratio)) = ratio else { return Vec::new() };
    let said = format!("{ratio:.3}x by {metric} time");
    let audits = ["2", "3"].into_iter().filter_map(registry::find);
    let verdicts: Vec<(u8, Note)> = audits
        .flat_map(|audit| {
            let notes = audit.pair.map(|check| check(pair)).unwrap_or_default();
            notes.into_iter().map(|note| (audit.number, note))
        })
        .collect();
    if let Some((number, note)) = verdicts.iter().find(|(_, note)| note.outcome == Outcome::Void) {
        return vec![
            Note::flag(format!("{said}, but audit {number} voids the pair: {}", note.compared))
                .remedy("measure both sides on one engine; print no speed-up from this pair"),
        ];
    }
    if verdicts.iter().any(|(_, note)| note.outcome == Outcome::Pass) {
        return vec![Note::pass(format!("{said}, audits 2 and 3 do not void the pair"))];
    }
    vec![Note::no_evidence(format!(
        "{said}; whether both sides ran on one engine is not recorded (`sections.engine_plan`, `binary_sha256`)"
    ))]
}

fn baseline_controls() -> Vec<Control> {
    let side = |policy: &str, speed: f64, binary: &str| {
        let mut subject =
            timed(policy, Some(speed), None, &[100]).with("policy.kind", policy, "flag");
        subject.kind = Kind::Run;
        subject.made.binary_sha256 = Some(binary.repeat(32));
        subject
    };
    let pair = |binary: &str| {
        Evidence::pair(side("dense", 60.0, "0a"), side("triattention", 94.5, binary))
    };
    vec![
        Control::planted(
            "1.575x over another engine",
            pair("0b"),
            Outcome::Flag,
            "1.575x by decode time, but audit 2",
        ),
        Control::clean("one engine", pair("0a"), "1.575x by decode time, audits 2 and 3 do not"),
    ]
}
