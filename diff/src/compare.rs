//! Comparison of two traces.

use lockstep_traces::{Cause, DType, Evidence, Finding, Location, Verdict};
use rayon::prelude::*;

use crate::answers::{self, Normalise};
use crate::available::{Available, Masked, source_limits, tokens_comparable};
use crate::context::{Context, Options, all_on_grid};
use crate::lists;
use crate::precision::Scale;
use crate::report::{Counts, DiffReport, SampleDiff, SplitAt, Splits4};
use crate::sample::{self, Compared};
use crate::side::{Side, Track};
use crate::splits::Offsets;
use crate::stats::{Bootstrap, Case, Names, PairedScores};
use crate::{inputs, noise, ties, verdict};

/// Values below which a grid says nothing about a dtype.
const GRID_VALUES: usize = 64;

/// Compares `left` (baseline) with `right` (target). Never fails: what cannot be compared is said in the verdict.
#[must_use]
pub fn compare(left: &Side<'_>, right: &Side<'_>, options: Options<'_>) -> DiffReport {
    let mut list_faults = lists::faults(left, "left");
    list_faults.extend(lists::faults(right, "right"));
    let masked = (!tokens_comparable(left, right, options.joint_ids))
        .then(|| (Masked::of(left), Masked::of(right)));
    let (left, right) = match &masked {
        Some((l, r)) => (&l.side(left), &r.side(right)),
        None => (left, right),
    };
    let (lefts, rights) = (left.tracks(), right.tracks());
    let by_order = left.invented_ids() || right.invented_ids();
    let pairs = pair_samples(&lefts, &rights, by_order);
    let ids: Vec<(&str, &str)> = pairs.iter().map(|(l, r)| (l.id, r.id)).collect();
    let inputs = inputs::check(left, right, &ids);
    let policies = inputs::policies(left, right, &inputs);
    let noise = options.control.map(|(truth, control)| noise::judge(right, control, truth));
    let scale = Scale::of(left.manifest, right.manifest, inputs.sampling_equal != Some(false));
    let available = Available::of(left, right, scale, options.joint_ids);
    let mut ctx = Context::new(*left, *right, options, scale, &available);
    ctx.policies = policies.as_deref();
    ctx.noise = noise.as_ref();
    let mut compared: Vec<Compared> =
        pairs.par_iter().map(|(l, r)| sample::compare(l, r, &ctx)).collect();
    for ((l, r), one) in pairs.iter().zip(&mut compared) {
        if l.id != r.id {
            let text =
                format!("sample `{}` is held against `{}`, by order in the files", l.id, r.id);
            one.diff.remarks.push(text);
        }
    }
    let mut findings = findings(&compared, &ctx);
    findings.extend(list_faults.iter().map(lists::finding));
    let samples: Vec<SampleDiff> = compared.into_iter().map(|one| one.diff).collect();
    let lone = |tracks: &[Track<'_>], taken: &dyn Fn(&str) -> bool| -> Vec<String> {
        tracks.iter().filter(|track| !taken(track.id)).map(|track| track.id.to_owned()).collect()
    };
    let missing_right = lone(&lefts, &|id| ids.iter().any(|(l, _)| *l == id));
    let missing_left = lone(&rights, &|id| ids.iter().any(|(_, r)| *r == id));
    let missing = missing_left.len() + missing_right.len();
    let verdict = verdict::overall(samples.iter().map(|sample| &sample.verdict), missing);
    let summary = summary(&samples, &verdict);
    let (verdict, summary) = lists::with_faults(verdict, summary, &list_faults);
    let ties = ties::total(samples.iter().map(|sample| &sample.ties));
    DiffReport {
        left: inputs::describe(left),
        right: inputs::describe(right),
        proves: ctx.proves(),
        ulp_dtype: ctx.step.dtype.name().to_owned(),
        ulp_source: ctx.step.source.to_owned(),
        missing_left,
        missing_right,
        counts: counts(&samples),
        splits: firsts(&samples),
        near_tie_density: ties.density,
        ties,
        pairing: pairing(left, right, &ids),
        limits: limits(&ctx, &inputs.prompts_equal),
        available: available.clone(),
        audits: None,
        findings,
        summary,
        list_faults,
        samples,
        inputs,
        noise,
        verdict,
    }
}

/// Samples of equal id; the n-th with the n-th where each side has one only or ids were made up by an importer.
fn pair_samples<'a>(
    lefts: &[Track<'a>],
    rights: &[Track<'a>],
    by_order: bool,
) -> Vec<(Track<'a>, Track<'a>)> {
    if by_order || (lefts.len() == 1 && rights.len() == 1) {
        return lefts.iter().copied().zip(rights.iter().copied()).collect();
    }
    let find = |id: &str| rights.iter().find(|track| track.id == id);
    lefts.iter().filter_map(|left| Some((*left, *find(left.id)?))).collect()
}

fn counts(samples: &[SampleDiff]) -> Counts {
    let mut counts = Counts { samples: samples.len() as u64, ..Counts::default() };
    for sample in samples {
        counts.rows_compared += sample.rows_compared;
        counts.rows_dependent += sample.rows_dependent;
        counts.rows_left_only += sample.rows_left_only;
        counts.rows_right_only += sample.rows_right_only;
        let found = &sample.non_finite;
        counts.rows_non_finite += found.left + found.right - found.both;
        *match sample.verdict {
            Verdict::Identical => &mut counts.identical,
            Verdict::WithinNoise => &mut counts.within_noise,
            Verdict::Tie => &mut counts.tie,
            Verdict::Diverged => &mut counts.diverged,
            Verdict::Incomparable { .. } => &mut counts.incomparable,
        } += 1;
    }
    counts
}

fn firsts(samples: &[SampleDiff]) -> Splits4 {
    let mut out = Splits4::default();
    for sample in samples {
        let splits = &sample.splits;
        for (slot, split) in [
            (&mut out.structural, &splits.structural),
            (&mut out.logit, &splits.logit),
            (&mut out.argmax, &splits.argmax),
            (&mut out.token, &splits.token),
        ] {
            if let (None, Some(split)) = (&slot, split) {
                *slot = Some(SplitAt {
                    sample_id: sample.sample_id.clone(),
                    position: split.position,
                    fed_at: split.fed_at,
                });
            }
        }
    }
    out
}

fn summary(samples: &[SampleDiff], verdict: &Verdict) -> String {
    let decisive = samples.iter().find(|sample| sample.verdict == *verdict);
    match (decisive, verdict) {
        (Some(sample), _) if samples.len() == 1 => sample.summary.clone(),
        (Some(sample), _) => {
            let same = samples.iter().filter(|other| other.verdict == *verdict).count();
            format!(
                "{same} of {} samples {}; first `{}`: {}",
                samples.len(),
                verdict.word(),
                sample.sample_id,
                sample.summary
            )
        }
        (None, Verdict::Incomparable { why }) => why.clone(),
        (None, other) => other.word().to_owned(),
    }
}

fn limits(ctx: &Context<'_>, prompts: &Option<bool>) -> Vec<String> {
    let mut out = Vec::new();
    out.extend(ctx.available.limits());
    out.extend(source_limits(&ctx.left, "left"));
    out.extend(source_limits(&ctx.right, "right"));
    if !(ctx.logit.hashes || matches!(ctx.logit.scale, Scale::Ranks | Scale::Nothing)) {
        let k = ctx.left.steps.top_k.min(ctx.right.steps.top_k);
        out.push(format!(
            "no common hash of the full logits: only the top {k} of each row are compared"
        ));
    }
    if ctx.rows.known && !ctx.rows.exact() {
        out.push(format!(
            "rows are rounded up to {} on a side and compared as such",
            ctx.rows.bucket
        ));
    }
    if prompts.is_none() {
        out.push("prompt ids are not recorded on both sides: equality of prompts rests on the fed tokens".to_owned());
    }
    for (side, word) in [(&ctx.left, "left"), (&ctx.right, "right")] {
        if Context::incomplete(side) {
            out.push(format!("the {word} run is incomplete"));
        }
    }
    out
}

fn evidence(name: &str, value: impl Into<serde_json::Value>) -> Evidence {
    Evidence { name: name.to_owned(), value: value.into() }
}

fn findings(compared: &[Compared], ctx: &Context<'_>) -> Vec<Finding> {
    let mut out: Vec<Finding> = compared.iter().flat_map(sample_findings).collect();
    for (side, word) in [(&ctx.left, "left"), (&ctx.right, "right")] {
        let finite = side.steps.top_logits.iter().filter(|logit| logit.is_finite()).count();
        let coarse = [DType::Bf16, DType::F16].into_iter().find(|dtype| all_on_grid(side, *dtype));
        if let (Some(DType::F32 | DType::F64), Some(grid)) = (side.manifest.dtype, coarse)
            && finite >= GRID_VALUES
            && !side.logprobs()
        {
            out.push(Finding {
                cause: Some(Cause::ReferenceDtype),
                title: format!(
                    "the {word} side claims {} but all {finite} stored logits lie on the {} grid",
                    side.manifest.dtype.map_or("", DType::name),
                    grid.name()
                ),
                location: Location { stage: Some("logits".to_owned()), ..Location::default() },
                evidence: vec![evidence("side", word), evidence("grid", grid.name())],
            });
        }
    }
    out
}

fn sample_findings(one: &Compared) -> Vec<Finding> {
    let diff = &one.diff;
    let at = |position: Option<u32>| Location {
        sample_id: Some(diff.sample_id.clone()),
        position,
        ..Location::default()
    };
    let mut out = Vec::new();
    if let Some(lag) = one.token_lag {
        let way = if lag > 0 { "late" } else { "early" };
        out.push(Finding {
            cause: Some(Cause::TraceShifted),
            title: format!("the right side is fed every token one row {way}"),
            location: at(diff.dependent_from),
            evidence: vec![evidence("lag", lag)],
        });
    }
    let prompt = diff.prompt_len.map(i64::from);
    match one.offsets {
        Some(Offsets::Constant(c)) if c != 0 && diff.alignment.offset == 0 => {
            let twice = prompt == Some(c.abs());
            let (more, word) = (c.abs(), if c > 0 { "right" } else { "left" });
            out.push(Finding {
                cause: twice.then_some(Cause::PromptFedTwice),
                title: if twice {
                    format!("the {word} side holds {more} rows more at every row, which is the prompt's length: prompt fed twice")
                } else {
                    format!("the {word} side holds {more} rows more at every row: offset {c}")
                },
                location: at(diff.splits.structural.as_ref().map(|split| split.position)),
                evidence: vec![evidence("offset", c), evidence("prompt_len", prompt)],
            });
        }
        Some(Offsets::From(position, 1)) if prompt == Some(i64::from(position)) => out.push(Finding {
            cause: Some(Cause::LastPromptRowFedAgain),
            title: format!("the right side holds one row more from position {position} on, where the prompt ends"),
            location: at(Some(position)),
            evidence: vec![evidence("offset", 1), evidence("prompt_len", prompt)],
        }),
        Some(Offsets::From(position, c)) => out.push(Finding {
            cause: None,
            title: format!("the right side holds {c} rows more from position {position} on"),
            location: at(Some(position)),
            evidence: vec![evidence("offset", c)],
        }),
        _ => {}
    }
    out.extend(factor_finding(one, &at));
    if one.contradictions > 0 {
        out.push(Finding {
            cause: None,
            title: format!(
                "{} rows have equal hashes and unequal stored logits or log-sum-exps: a trace contradicts itself",
                one.contradictions
            ),
            location: at(diff.splits.logit.as_ref().map(|split| split.position)),
            evidence: vec![evidence("rows", one.contradictions)],
        });
    }
    for (side, position, rows) in &one.unfed {
        out.push(Finding {
            cause: None,
            title: format!(
                "{rows} rows of the {side} side chose another token than was fed next: a trace contradicts itself"
            ),
            location: at(Some(*position)),
            evidence: vec![evidence("side", *side), evidence("rows", *rows)],
        });
    }
    out
}

/// A temperature that shows as one factor between all margins.
fn factor_finding(one: &Compared, at: &dyn Fn(Option<u32>) -> Location) -> Option<Finding> {
    one.factor.map(|found| Finding {
            cause: None,
            title: format!(
                "every margin on the right is {:.5} times that on the left, in all {} rows: a temperature of {:.5} on the right, or \
                 of {:.5} on the left",
                found.factor,
                found.rows,
                1.0 / found.factor,
                found.factor
            ),
            location: at(one.diff.splits.logit.as_ref().map(|split| split.position)),
            evidence: vec![
                evidence("factor", found.factor),
                evidence("rows", found.rows),
                evidence("margins", found.margins),
            ],
        })
}

/// Answers of both sides against gold, sample by sample. Answers are compared as numbers where they are numbers: `062` is 62.
fn pairing(left: &Side<'_>, right: &Side<'_>, ids: &[(&str, &str)]) -> Option<PairedScores> {
    let correct = |side: &Side<'_>, id: &str| {
        let row = side.samples.iter().find(|row| row.sample_id == id)?;
        let gold = row.gold.as_ref()?;
        let right =
            |answer: &String| answers::compare(gold, answer, Normalise::Number).equal == Some(true);
        Some(row.answer.as_ref().is_some_and(right))
    };
    let cases: Vec<Case<'_>> = ids
        .iter()
        .filter_map(|(l, r)| {
            let (on_left, on_right) = correct(left, l).zip(correct(right, r))?;
            Some(Case { prompt: l, left: on_left, right: on_right })
        })
        .collect();
    let names = Names { what: "answers", left: left.label, right: right.label };
    (!cases.is_empty()).then(|| PairedScores::of(names, &cases, Bootstrap::default()))
}
