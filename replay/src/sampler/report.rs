//! An identification as a check report.

use lockstep_traces::{
    Cause, CheckKind, CheckReport, Evidence as Figure, Finding, Location, SampleRow, Verdict,
};
use serde_json::{Value, json};

use super::evidence::Evidence;
use super::file::FileEvidence;
use super::hypothesis::Hypothesis;
use super::identify::{Answer, Drawn, Identification, Misfit, Scored, identify};
use super::words::{given_numbers, same_seeds};

/// Hypotheses in the detail of a report.
const MOST_LISTED: usize = 16;

/// Draws listed in the detail, the nearest to a decision edge first.
const MOST_DRAWS: usize = 8;

/// What an identification comes to: findings, limits, and in `detail` the names and figures.
///
/// `detail` has the keys `answer` (`claimed`, `identified`, `not_decidable`, `none_fits`), `why`, `cause` (slug of a known mistake), `sampler` (what
/// the answer names), `claimed`,
/// `reproduced`, `draws`, `first_misfit`, `hypotheses`, `also_fit`, `same_seeds`, `sensitivity`, `recorded_counters`, `rules_differ`,
/// `given_numbers`, `tried`.
#[must_use]
pub fn check_report(evidence: &Evidence, found: &Identification) -> CheckReport {
    let draws = evidence.len();
    let decisive = found.decisive();
    let judged = found.claimed.as_ref().or(decisive);
    let skipped = judged.map_or(draws, |one| one.uncovered);
    let different = match &found.answer {
        Answer::Claimed => 0,
        _ => judged.map_or(0, |one| one.missed),
    };
    CheckReport {
        kind: CheckKind::Sampler,
        verdict: verdict(found, skipped),
        compared: (draws - skipped) as u64,
        different: different as u64,
        skipped: skipped as u64,
        unit: "draws".to_owned(),
        findings: findings(evidence, found),
        limits: limits(evidence, found),
        detail: detail(evidence, found, decisive),
    }
}

fn verdict(found: &Identification, uncovered: usize) -> Verdict {
    // What was not looked at is never equal.
    let agrees = || match uncovered {
        0 => Verdict::Identical,
        draws => {
            let why = format!("{draws} draws are not covered by the logits at hand");
            Verdict::Incomparable { why }
        }
    };
    match &found.answer {
        Answer::Claimed => agrees(),
        Answer::Identified(..) if found.claimed.is_none() => agrees(),
        Answer::Identified(..) | Answer::NoneFits => Verdict::Diverged,
        Answer::NotDecidable(_) if refuted(found) => Verdict::Diverged,
        Answer::NotDecidable(why) => Verdict::Incomparable { why: format!("not decidable: {why}") },
    }
}

/// A claim that misses outright is wrong, whatever else can be said.
fn refuted(found: &Identification) -> bool {
    found.claimed.as_ref().is_some_and(|claim| claim.missed > 0)
}

fn figure(name: &str, value: impl Into<Value>) -> Figure {
    Figure { name: name.to_owned(), value: value.into() }
}

fn findings(evidence: &Evidence, found: &Identification) -> Vec<Finding> {
    let misfit = found.claimed.as_ref().and_then(|claim| claim.first_misfit.as_ref());
    let location = misfit.map_or_else(Location::default, |misfit| Location {
        sample_id: Some(misfit.sample_id.clone()),
        position: Some(misfit.position),
        stage: Some("sampler".to_owned()),
        ..Location::default()
    });
    let (cause, title, named): (Option<Cause>, String, Option<&Scored>) = match &found.answer {
        Answer::Claimed => return Vec::new(),
        Answer::Identified(..) if found.claimed.is_none() => return Vec::new(),
        Answer::Identified(found_one, cause) => {
            let words = found_one.describe(evidence).line();
            let known = cause.map_or(String::new(), |cause| format!("{}: ", cause.title()));
            (*cause, format!("{known}the tokens are those of {words}"), found.decisive())
        }
        Answer::NoneFits => {
            let title = format!(
                "no known sampler reproduces the tokens ({} hypotheses tried)",
                found.tried
            );
            (None, title, found.scored.first())
        }
        Answer::NotDecidable(why) => {
            if !refuted(found) {
                return Vec::new();
            }
            let title = format!(
                "the claimed sampler does not give the tokens; which one did is not decidable: {why}"
            );
            (None, title, found.fits.first())
        }
    };
    let mut figures = Vec::new();
    if let Some(claim) = &found.claimed {
        figures.push(figure(
            "claimed reproduces",
            format!("{} of {}", claim.reproduced, evidence.len()),
        ));
    }
    if let Some(misfit) = misfit {
        figures.push(figure("first misfit at draw", misfit.step));
        figures.push(figure("token", misfit.token));
        figures.extend(misfit.predicted.map(|token| figure("claimed sampler gives", token)));
    }
    if let Some(named) = named {
        figures
            .push(figure("best reproduces", format!("{} of {}", named.reproduced, evidence.len())));
        figures.push(figure("best", named.hypothesis.describe(evidence).line()));
    }
    vec![Finding { cause, title, location, evidence: figures }]
}

fn limits(evidence: &Evidence, found: &Identification) -> Vec<String> {
    let mut limits = evidence.limits.clone();
    let decisive = found.decisive();
    if let Some(one) = decisive {
        if one.uncovered > 0 {
            limits.push(format!(
                "{} of {} steps do not show all survivors of their filters and were not compared",
                one.uncovered,
                evidence.len()
            ));
        }
        let below = one.drawn.iter().filter(|drawn| drawn.margin < drawn.precision).count();
        if below > 0 {
            limits.push(format!(
                "{below} draws lie nearer to a decision edge than the evidence can tell"
            ));
        }
        if one.at_edge > 0 {
            limits.push(format!(
                "{} tokens differ within the precision of their decision edge",
                one.at_edge
            ));
        }
        let same = same_seeds(one.hypothesis.seed, evidence);
        if !same.is_empty() && !one.hypothesis.draw.is_deterministic() {
            limits.push(format!("seed rules that mean the same here: {}", same.join("; ")));
        }
        let others = found.fits.iter().filter(|other| other.hypothesis != one.hypothesis).count();
        if others > 0 {
            limits.push(format!(
                "{others} other hypotheses reproduce the tokens too; `also_fit` names them"
            ));
        }
    }
    if evidence.filters.top_k.is_some() && found.rules_differ > 0 {
        limits
            .push(format!("filters hf and native keep other ids in {} steps", found.rules_differ));
    }
    limits
}

fn detail(evidence: &Evidence, found: &Identification, decisive: Option<&Scored>) -> Value {
    let (answer, why) = match &found.answer {
        Answer::Claimed => ("claimed", None),
        Answer::Identified(..) => ("identified", None),
        Answer::NotDecidable(why) => ("not_decidable", Some(why)),
        Answer::NoneFits => ("none_fits", None),
    };
    let named = matches!(found.answer, Answer::Claimed | Answer::Identified(..));
    let described = |one: &Scored| one.hypothesis.describe(evidence);
    let cause = match &found.answer {
        Answer::Identified(_, cause) => cause.map(Cause::slug),
        _ => None,
    };
    let others = found.fits.iter().filter(|one| {
        !named || decisive.is_none_or(|decisive| decisive.hypothesis != one.hypothesis)
    });
    json!({
        "answer": answer,
        "why": why,
        "cause": cause,
        "sampler": decisive.filter(|_| named).map(described),
        "claimed": found.claimed.as_ref().map(|one| scored(evidence, one)),
        "reproduced": decisive.map(|one| one.reproduced),
        "draws": evidence.len(),
        "first_misfit": found.claimed.as_ref().and_then(|one| one.first_misfit.as_ref()).map(misfit),
        "hypotheses": found.scored.iter().take(MOST_LISTED).map(|one| scored(evidence, one)).collect::<Vec<_>>(),
        "also_fit": others.map(|one| scored(evidence, one)).collect::<Vec<_>>(),
        "same_seeds": decisive.map(|one| same_seeds(one.hypothesis.seed, evidence)),
        "sensitivity": decisive.map(|one| sensitivity(evidence, one, found.bits_needed)),
        "recorded_counters": decisive.map(|one| json!({"agree": one.counters.0, "compared": one.counters.1})),
        "rules_differ": found.rules_differ,
        "given_numbers": given_numbers(evidence),
        "tried": found.tried,
    })
}

fn scored(evidence: &Evidence, one: &Scored) -> Value {
    json!({
        "hypothesis": one.hypothesis.describe(evidence),
        "reproduced": one.reproduced,
        "at_edge": one.at_edge,
        "missed": one.missed,
        "uncovered": one.uncovered,
        "fits": one.fits(),
        "first_misfit": one.first_misfit.as_ref().map(misfit),
    })
}

fn misfit(misfit: &Misfit) -> Value {
    json!({"sample_id": misfit.sample_id, "draw": misfit.step, "position": misfit.position, "token": misfit.token, "predicted": misfit.predicted})
}

/// How near the draws were to another outcome.
fn sensitivity(evidence: &Evidence, one: &Scored, bits_needed: f64) -> Value {
    let choice: Vec<&Drawn> = one.drawn.iter().filter(|drawn| drawn.survivors > 1).collect();
    let mut margins: Vec<f64> =
        choice.iter().map(|drawn| drawn.margin).filter(|m| m.is_finite()).collect();
    margins.sort_by(f64::total_cmp);
    let mut nearest = choice.clone();
    nearest.sort_by(|a, b| a.margin.total_cmp(&b.margin));
    let listed: Vec<Value> = nearest
        .iter()
        .take(MOST_DRAWS)
        .map(|drawn| {
            let sample = evidence.streams.get(drawn.stream).map(|stream| stream.sample_id.clone());
            json!({"sample_id": sample, "draw": drawn.step, "position": drawn.position, "survivors": drawn.survivors,
                "probability": drawn.probability, "margin": drawn.margin, "precision": drawn.precision,
                "below_precision": drawn.margin < drawn.precision})
        })
        .collect();
    let unit = match one.hypothesis.draw {
        super::Draw::Argmax => "logits",
        super::Draw::Sum(..) => "probability mass",
        _ => "ln of quotients",
    };
    json!({
        "unit": unit,
        "with_choice": choice.len(),
        "deterministic": one.drawn.len() - choice.len(),
        "smallest_margin": margins.first(),
        "median_margin": margins.get(margins.len() / 2),
        "below_precision": choice.iter().filter(|drawn| drawn.margin < drawn.precision).count(),
        "bits": one.bits(),
        "bits_needed": bits_needed,
        "nearest": listed,
        "edges": edges(evidence, one),
    })
}

/// Every draw that the hypothesis gives, by sample: position, distance to the nearest decision edge (`null`: no other outcome), precision.
fn edges(evidence: &Evidence, one: &Scored) -> Vec<Value> {
    let of = |(place, stream): (usize, &super::Stream)| {
        let drawn = || one.drawn.iter().filter(move |drawn| drawn.stream == place);
        let margins: Vec<Option<f64>> =
            drawn().map(|drawn| Some(drawn.margin).filter(|margin| margin.is_finite())).collect();
        json!({
            "sample_id": stream.sample_id,
            "positions": drawn().map(|drawn| drawn.position).collect::<Vec<_>>(),
            "margins": margins,
            "precisions": drawn().map(|drawn| drawn.precision).collect::<Vec<_>>(),
        })
    };
    evidence.streams.iter().enumerate().map(of).collect()
}

/// Adds what the sample rows say about their own seeds: the effective one must be base + index, and no two samples may share it.
pub(super) fn add_seed_rows(report: &mut CheckReport, samples: &[SampleRow]) {
    for row in samples {
        let (Some(base), Some(effective)) = (row.base_seed, row.effective_seed) else { continue };
        let index = row.seed_index.unwrap_or(0);
        if effective == base.wrapping_add(index) {
            continue;
        }
        let twice = base.wrapping_add(index.wrapping_mul(2)) == effective;
        let cause = match (twice, effective == base) {
            (true, _) => Some(Cause::SeedIndexTwice),
            (_, true) => Some(Cause::OneSeedForAll),
            _ => None,
        };
        report.findings.push(Finding {
            cause,
            title: format!(
                "recorded effective seed {effective} is not base {base} + index {index}"
            ),
            location: Location { sample_id: Some(row.sample_id.clone()), ..Location::default() },
            evidence: vec![
                figure("base_seed", base),
                figure("seed_index", index),
                figure("effective_seed", effective),
            ],
        });
        report.verdict = report.verdict.clone().worst(Verdict::Diverged);
    }
}

/// Identifies every token list of a file. The first is held against what the file claims; the others against what made the first.
#[must_use]
pub fn file_report(file: &FileEvidence) -> Vec<(String, CheckReport)> {
    let mut reports = Vec::new();
    let first = file.lists.first().map(|list| &list.evidence);
    let mut baseline: Option<Hypothesis> = None;
    for (number, list) in file.lists.iter().enumerate() {
        let claimed = baseline.or_else(|| Hypothesis::claimed(&list.evidence));
        let found = identify(&list.evidence, claimed);
        let mut report = check_report(&list.evidence, &found);
        if let Value::Object(detail) = &mut report.detail {
            detail.insert("list".to_owned(), Value::from(list.name.clone()));
            let split = first.filter(|_| number > 0).map(|other| split(other, &list.evidence));
            detail.insert("against_baseline".to_owned(), split.unwrap_or(Value::Null));
        }
        if baseline.is_none()
            && let Some(one) = found
                .decisive()
                .filter(|_| matches!(found.answer, Answer::Claimed | Answer::Identified(..)))
        {
            baseline = Some(one.hypothesis);
        }
        reports.push((list.name.clone(), report));
    }
    reports
}

/// First token that differs between two lists over the same rows, and how many agree.
fn split(baseline: &Evidence, target: &Evidence) -> Value {
    let tokens = |evidence: &Evidence| -> Vec<u32> {
        evidence.streams.iter().flat_map(|stream| &stream.steps).map(|step| step.token).collect()
    };
    let (left, right) = (tokens(baseline), tokens(target));
    let first = left.iter().zip(&right).position(|(a, b)| a != b);
    let agree = left.iter().zip(&right).filter(|(a, b)| a == b).count();
    json!({
        "first_sampled_split": first,
        "agree": agree,
        "of": left.len().min(right.len()),
        "rows_equal": true,
        "kind": if first.is_some() { "sampled token: the rows are the same, so no logit or argmax split exists" } else { "none" },
    })
}
