//! Audits of which sampler chose the tokens.

use lockstep_traces::{CheckKind, CheckReport, Verdict};

use super::facts::{Evidence, Kind, Trace};
use super::{Audit, Control, Note, Outcome, Pair, Subject};

/// Which sampler made the stream?
pub(super) static WHICH: Audit = Audit {
    number: 19,
    slug: "which-sampler",
    title: "the recorded sampler is not the one that made the tokens",
    compares: "chosen tokens with the largest logits of a greedy run; of a sampled run the answer of a sampler replay with the recorded sampler",
    needs: "rows of a greedy run, or the answer of `lockstep replay sampler` about a sampled one",
    gate: false,
    each: Some(which),
    pair: None,
    whole: None,
    controls: which_controls,
};

fn which(subject: &Subject<'_>) -> Vec<Note> {
    let answers = subject.checks.iter().filter(|check| check.kind == CheckKind::Sampler);
    let notes: Vec<Note> = answers.map(|check| replayed(subject, check)).collect();
    if !notes.is_empty() {
        return notes;
    }
    if !matches!(subject.kind, Kind::Run | Kind::Trace | Kind::Benchmark) {
        return Vec::new();
    }
    match subject.greedy() {
        Some(true) => greedy_choices(subject),
        Some(false) => {
            let why = "`sampler verdict` is not given: the stream was not drawn again";
            vec![Note::no_evidence(why).remedy(format!(
                "lockstep replay sampler {} --format json > sampler.json, and audit {}+sampler.json",
                subject.label, subject.label
            ))]
        }
        None => vec![Note::missing("sampling.sampler", &subject.label)],
    }
}

fn replayed(subject: &Subject<'_>, check: &CheckReport) -> Note {
    let named = named(check);
    // A replay that found the recorded settings right has compared the names already.
    let claimed = check.detail.get("answer").and_then(serde_json::Value::as_str) == Some("claimed");
    let recorded = subject.text("sampling.sampler").filter(|_| !claimed);
    let told = format!("{} {} drawn again", check.compared, check.unit);
    match &check.verdict {
        Verdict::Incomparable { why } => Note::no_evidence(format!("`sampler verdict`: {why}")),
        _ if check.compared == 0 => Note::no_evidence("`sampler verdict` compared nothing"),
        Verdict::Diverged => {
            let first = check
                .findings
                .first()
                .map_or("no known sampler makes the stream", |finding| finding.title.as_str());
            Note::flag(format!("{told}, {} differ: {first}", check.different))
                .remedy("find the sampler before tokens are compared")
        }
        _ => match (named, recorded) {
            (Some(named), Some(recorded)) if named != recorded => {
                Note::flag(format!("{told} by `{named}`; recorded is `{recorded}`"))
                    .remedy("record the sampler that was in force")
            }
            (named, _) => {
                Note::pass(format!("{told} by `{}`", named.unwrap_or("the recorded sampler")))
            }
        },
    }
}

/// The sampler that the answer names: `sampler`, or the `sampler` of the settings there.
fn named(check: &CheckReport) -> Option<&str> {
    let sampler = check.detail.get("sampler")?;
    sampler.get("sampler").unwrap_or(sampler).as_str()
}

/// Every chosen token of a greedy run has the largest logit.
fn greedy_choices(subject: &Subject<'_>) -> Vec<Note> {
    let Some(trace) = &subject.trace else { return vec![Note::missing("rows", &subject.label)] };
    let steps = &trace.steps;
    let mut rows = 0_u64;
    for row in 0..steps.len {
        let (Some(Some(chosen)), Some(argmax)) = (steps.next_token.get(row), steps.argmax.get(row))
        else {
            continue;
        };
        if chosen != argmax {
            let position = steps.position.get(row).copied().unwrap_or_default();
            let id = steps.sample_id(row).unwrap_or_default();
            return vec![
                Note::flag(format!("token {chosen} was chosen, the largest logit is of {argmax}; recorded is argmax"))
                    .at(format!("{id}, position {position}"))
                    .remedy("find the sampler that was in force"),
            ];
        }
        rows += 1;
    }
    if rows == 0 {
        return vec![Note::no_evidence("`next_token` is recorded in no row")];
    }
    vec![Note::pass(format!("argmax makes all {rows} tokens"))]
}

fn greedy(label: &str) -> Subject<'static> {
    let mut run = Subject::new(label, Kind::Run).with("sampling.sampler", "argmax", "flag");
    run.trace = Some(Trace::made(12, &[]));
    run
}

fn drawn(label: &str, sampler: &str) -> Subject<'static> {
    Subject::new(label, Kind::Run).with("sampling.sampler", sampler, "flag").with(
        "sampling.temperature",
        0.6,
        "flag",
    )
}

fn which_controls() -> Vec<Control> {
    let answer = |sampler: &str, verdict: Verdict| CheckReport {
        kind: CheckKind::Sampler,
        different: u64::from(verdict == Verdict::Diverged),
        verdict,
        compared: 8,
        skipped: 0,
        unit: "tokens".to_owned(),
        findings: Vec::new(),
        limits: Vec::new(),
        detail: serde_json::json!({ "answer": "identified", "sampler": { "sampler": sampler } }),
    };
    let with = |sampler: &str, verdict: Verdict| {
        let mut run = drawn("run", "torch-cuda");
        run.checks.push(answer(sampler, verdict));
        Evidence::one(run)
    };
    let odd = || {
        let mut run = greedy("run");
        if let Some(trace) = &mut run.trace
            && let Some(next) = trace.steps.to_mut().next_token.get_mut(5)
        {
            *next = Some(7);
        }
        Evidence::one(run)
    };
    vec![
        Control::planted("a greedy run chose the second logit", odd(), Outcome::Flag, "position 5"),
        Control::planted(
            "the compressed draw where the full one is recorded",
            with("torch-cuda-slice", Verdict::Identical),
            Outcome::Flag,
            "by `torch-cuda-slice`; recorded is `torch-cuda`",
        ),
        Control::planted(
            "no sampler makes it",
            with("none", Verdict::Diverged),
            Outcome::Flag,
            "no known sampler",
        ),
        Control::clean("argmax", Evidence::one(greedy("run")), "argmax makes all 12 tokens"),
        Control::clean(
            "the recorded one",
            with("torch-cuda", Verdict::Identical),
            "8 tokens drawn again by `torch-cuda`",
        ),
    ]
}

/// Two samplers.
pub(super) static DIFFERENT: Audit = Audit {
    number: 20,
    slug: "sampler-kind",
    title: "the two sides drew their tokens by different samplers",
    compares: "the sampler in force on both sides",
    needs: "`sampling.sampler` of both sides",
    gate: true,
    each: None,
    pair: Some(different),
    whole: None,
    controls: different_controls,
};

fn different(pair: &Pair<'_, '_>) -> Vec<Note> {
    if !(pair.left.kind.is_run() && pair.right.kind.is_run()) {
        return Vec::new();
    }
    match pair.both("sampling.sampler", |side| side.text("sampling.sampler")) {
        Err(note) => vec![note],
        Ok((left, right)) if left == right => vec![Note::pass(format!("`{left}` on both sides"))],
        Ok((left, right)) => vec![
            Note::void(format!("`{left}` against `{right}`: their tokens part without any fault"))
                .remedy("draw both sides by one sampler, or compare logits of equal fed tokens"),
        ],
    }
}

fn different_controls() -> Vec<Control> {
    vec![
        Control::planted(
            "a build flag decided",
            Evidence::pair(drawn("l", "torch-cuda"), drawn("r", "xorshift")),
            Outcome::Void,
            "`torch-cuda` against `xorshift`",
        ),
        Control::clean(
            "one sampler",
            Evidence::pair(drawn("l", "torch-cuda"), drawn("r", "torch-cuda")),
            "on both sides",
        ),
    ]
}

/// Which random number a token gets depends on the GPU.
pub(super) static MAPPING: Audit = Audit {
    number: 21,
    slug: "rng-mapping",
    title: "the draw of a token depends on the number of multiprocessors, and the two sides have different ones",
    compares: "threads of the full-vocabulary draw on both sides with one another and with the vocabulary",
    needs: "`sampling.sm_count` and `model.vocab_size` of both sides where PyTorch's CUDA draw is used",
    gate: false,
    each: None,
    pair: Some(mapping),
    whole: None,
    controls: mapping_controls,
};

/// Threads that one SM holds (CUDA's table of compute capabilities).
fn threads_of_sm(arch: Option<&str>) -> u64 {
    match arch {
        Some("sm_75") => 1024,
        Some("sm_86" | "sm_87" | "sm_89" | "sm_120" | "sm_121") => 1536,
        _ => 2048,
    }
}

/// Threads of PyTorch's grid for `vocab` elements: 256 in a block, as many blocks as fit or are needed.
fn threads(sm_count: u64, arch: Option<&str>, vocab: u64) -> u64 {
    256 * (sm_count * (threads_of_sm(arch) / 256)).min(vocab.div_ceil(256))
}

fn mapping(pair: &Pair<'_, '_>) -> Vec<Note> {
    let cuda = |side: &Subject<'_>| {
        side.text("sampling.sampler").is_some_and(|sampler| sampler.starts_with("torch-cuda"))
    };
    if !(cuda(pair.left) && cuda(pair.right)) {
        return Vec::new();
    }
    let count = |side: &Subject<'_>| {
        side.engine.sm_count.map(u64::from).or_else(|| side.count("sampling.sm_count"))
    };
    let vocab = |side: &Subject<'_>| side.engine.vocab.or_else(|| side.count("model.vocab_size"));
    let ((l, r), vocab) = match (pair.both("sm_count", count), pair.both("vocab", vocab)) {
        (Ok(counts), Ok((vocab, _))) => (counts, vocab),
        (Err(note), _) | (_, Err(note)) => return vec![note],
    };
    let of = |side: &Subject<'_>, count| threads(count, side.engine.sm_arch.as_deref(), vocab);
    let (left, right) = (of(pair.left, l), of(pair.right, r));
    let told =
        format!("{l} and {r} multiprocessors make {left} and {right} threads for {vocab} ids");
    if left != right && left.min(right) < vocab {
        let from = left.min(right);
        let note = Note::flag(format!("{told}: ids from {from} on get other random numbers"));
        return vec![note.remedy("set --sm-count to that of the other side")];
    }
    vec![Note::pass(told)]
}

fn mapping_controls() -> Vec<Control> {
    let side = |label: &str, count: u32| {
        let mut side = drawn(label, "torch-cuda");
        (side.engine.sm_count, side.engine.vocab) = (Some(count), Some(151_936));
        side
    };
    vec![
        Control::planted(
            "a large GPU against a small one",
            Evidence::pair(side("l", 132), side("r", 60)),
            Outcome::Flag,
            "ids from 122880 on",
        ),
        Control::clean(
            "two large GPUs",
            Evidence::pair(side("l", 132), side("r", 108)),
            "152064 and 152064 threads",
        ),
    ]
}

/// Greedy evidence for a sampled claim.
pub(super) static MODE: Audit = Audit {
    number: 24,
    slug: "greedy-for-sampled",
    title: "evidence from a greedy run is used for a sampled one, or the reverse",
    compares: "greedy or sampled on both sides, and of each claim with the runs that it rests on",
    needs: "`sampling.temperature` or `sampling.sampler` of both sides, or of a claim's evidence",
    gate: true,
    each: None,
    pair: Some(modes),
    whole: Some(claims),
    controls: mode_controls,
};

const fn mode(greedy: bool) -> &'static str {
    if greedy { "greedy" } else { "sampled" }
}

fn modes(pair: &Pair<'_, '_>) -> Vec<Note> {
    if !(pair.left.kind.is_run() && pair.right.kind.is_run()) {
        return Vec::new();
    }
    match pair.both("sampling.temperature", Subject::greedy) {
        Err(note) => vec![note],
        Ok((left, right)) if left == right => vec![Note::pass(format!("both are {}", mode(left)))],
        Ok((left, right)) => vec![
            Note::void(format!("{} against {}", mode(left), mode(right)))
                .remedy("run both sides the same way"),
        ],
    }
}

fn claims(evidence: &Evidence<'_>) -> Vec<Note> {
    let mut notes = Vec::new();
    for subject in &evidence.subjects {
        for claim in subject.claims.iter().filter(|claim| !claim.retracted) {
            let Some(wanted) = &claim.scope.mode else { continue };
            for run in evidence.subjects.iter().filter(|run| claim.evidence.contains(&run.label)) {
                let note = match run.greedy() {
                    None => Note::missing("sampling.temperature", &run.label),
                    Some(greedy) if mode(greedy) == wanted => {
                        Note::pass(format!("a {wanted} claim rests on a {wanted} run"))
                    }
                    Some(greedy) => {
                        Note::void(format!("a {wanted} claim rests on a {} run", mode(greedy)))
                            .remedy("show it on a run of the same kind")
                    }
                };
                notes.push(
                    note.at(format!("claim {}", claim.id))
                        .of([subject.label.as_str(), run.label.as_str()]),
                );
            }
        }
    }
    notes
}

fn mode_controls() -> Vec<Control> {
    let claim = |wanted: &str| {
        let mut ledger = Subject::new("claims.json", Kind::Claims);
        ledger.claims.push(super::facts::Claim {
            id: "c1".to_owned(),
            evidence: vec!["control".to_owned()],
            scope: super::facts::ClaimScope { mode: Some(wanted.to_owned()), ..Default::default() },
            ..Default::default()
        });
        Evidence::all(vec![ledger, greedy("control")])
    };
    vec![
        Control::planted(
            "the control is greedy, the failure sampled",
            Evidence::pair(greedy("control"), drawn("failure", "torch-cuda")),
            Outcome::Void,
            "greedy against sampled",
        ),
        Control::planted(
            "a claim",
            claim("sampled"),
            Outcome::Void,
            "a sampled claim rests on a greedy run",
        ),
        Control::clean("both greedy", Evidence::pair(greedy("l"), greedy("r")), "both are greedy"),
        Control::clean("a claim of the same kind", claim("greedy"), "rests on a greedy run"),
    ]
}

#[cfg(test)]
mod tests {
    use super::threads;

    #[test]
    fn threads_of_known_gpus() {
        // 151936 ids need 594 blocks of 256; an H200 with 132 SMs holds 1056, 75 SMs hold 600, 74 hold 592.
        assert_eq!(threads(132, Some("sm_90"), 151_936), 152_064);
        assert_eq!(threads(75, None, 151_936), 152_064);
        assert_eq!(threads(74, None, 151_936), 151_552);
        // Six blocks on an SM of 1536 threads.
        assert_eq!(threads(20, Some("sm_89"), 151_936), 30_720);
    }
}
