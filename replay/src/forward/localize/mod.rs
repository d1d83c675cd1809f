//! Where does a recorded run first depart from the reference, and what does the departure look like?
//!
//! Recorded hidden stages are compared with the reference's in order of computation. The first one whose error exceeds
//! what a control in the run's own dtype shows is then re-executed from its recorded inputs under known mistakes; the one
//! that reproduces the recorded values names the cause.

mod attention;
mod caches;
mod compare;
mod epsilon;
mod keys;
mod norm;
mod observed;
mod order;
mod passes;
mod rotary;
mod steps;
#[cfg(test)]
mod tests;

use std::path::Path;

use lockstep_reference::forward::{Model, Precision};
use lockstep_traces::store::RunReader;
use lockstep_traces::{Cause, CheckKind, CheckReport, Evidence, Finding, Location, Verdict};
use serde_json::{Value, json};

use self::caches::Caches;
use self::compare::{Comparison, Departure};
use self::observed::Observed;
use self::order::Slot;
use self::steps::Steps;
use super::recording::{Event, Recording};
use super::self_check::figure;
use crate::ReplayError;

/// What to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalizeOptions {
    /// Sample; `None`: the first one with recorded hidden states.
    pub sample: Option<String>,
    /// Positions among those recorded; `None`: all of them.
    pub positions: Option<Vec<u32>>,
    /// Rows fed at once.
    pub chunk: usize,
}

impl Default for LocalizeOptions {
    fn default() -> Self {
        Self { sample: None, positions: None, chunk: 512 }
    }
}

/// Everything a hypothesis may look at.
struct Scene<'a> {
    run: &'a RunReader,
    recording: &'a Recording,
    observed: &'a [Observed],
    /// The truth: the reference in f64.
    model: &'a Model,
    departure: &'a Departure,
    chunk: usize,
}

impl Scene<'_> {
    fn row(&self) -> Option<&Observed> {
        self.observed.iter().find(|row| row.position == self.departure.position)
    }

    /// The compaction whose cache departs.
    fn ordinal(&self) -> Option<u32> {
        let cache = matches!(self.departure.slot.name, "pre.k" | "pre.v");
        let mut events = self.recording.events.iter().filter(|_| cache);
        let n = self.departure.position + 1;
        events.find(|event| event.absolute_position == n).map(|event| event.ordinal)
    }

    /// Would values this far from the recorded ones pass for the same computation?
    fn explains(&self, error: f64) -> bool {
        error <= self.departure.tolerance
    }
}

/// What a hypothesis found.
struct Named {
    cause: Option<lockstep_traces::Cause>,
    title: String,
    evidence: Vec<Evidence>,
    /// Narrower than the stage, where known.
    head: Option<u32>,
    row: Option<u32>,
}

/// Compares the recorded hidden states of one sample with the reference and names the first departure.
///
/// Units are stages (one vector each). Where nothing was recorded the verdict is `incomparable`.
///
/// # Errors
/// Unreadable recordings or model, missing keep-sets, a stage of another length than the model's.
pub fn localize(
    run: &RunReader,
    model_dir: &Path,
    options: &LocalizeOptions,
) -> Result<CheckReport, ReplayError> {
    let steps = steps::check(run, options.sample.as_deref())?;
    let Some(sample) = observed::sample(run, options)? else {
        return Ok(only(steps, "no hidden states or caches are recorded; record some"));
    };
    let recording = Recording::read(run, &sample)?;
    let truth = Model::load(model_dir, Precision::F64)?;
    let observed = observed::read(run, &sample, options, truth.hyper())?;
    let events: Vec<Event> = caches::dumped(run, &recording)?
        .into_iter()
        .filter(|event| {
            options
                .positions
                .as_ref()
                .is_none_or(|asked| asked.contains(&(event.absolute_position - 1)))
        })
        .collect();
    if observed.is_empty() && events.is_empty() {
        let why = "none of the positions asked for has recorded hidden states or caches";
        return Ok(only(steps, why));
    }
    let mut limits = Vec::new();
    let dtype = coarsest(run, &mut limits);
    let control = Model::load(model_dir, dtype)?;
    let comparison =
        compare::compare(run, &recording, &observed, &events, [&truth, &control], options.chunk)?;
    let mut caches = caches::check(run, &recording, &truth)?;
    caches.limits.splice(0..0, limits);
    let mut findings = Vec::new();
    if let Some(departure) = &comparison.first {
        let scene = Scene {
            run,
            recording: &recording,
            observed: &observed,
            model: &truth,
            departure,
            chunk: options.chunk,
        };
        findings.push(finding(&scene)?);
    }
    // A gather that is wrong comes before the first row that reads it.
    let gather_first = caches.findings.first().is_some_and(|found| {
        let at = found.location.position.unwrap_or(0);
        comparison.first.as_ref().is_none_or(|departure| at < departure.position)
    });
    let gathers = std::mem::take(&mut caches.findings);
    if gather_first {
        findings.splice(0..0, gathers);
    } else {
        findings.extend(gathers);
    }
    let own = run.manifest().dtype.and_then(Precision::of).unwrap_or(dtype);
    let bits = epsilon::check(&sample, &observed, &truth, own)?;
    caches.limits.extend(bits.limit);
    if !findings.iter().any(|found| found.cause == Some(Cause::NormEpsilon)) {
        // Every stage after a norm inherits its error: a departure that nothing names comes second.
        let place = usize::from(findings.first().is_some_and(|found| found.cause.is_some()));
        findings.splice(place..place, bits.finding);
    }
    findings.splice(0..0, unsaid(steps, &findings));
    Ok(report(&recording, &observed, dtype, &comparison, caches, findings))
}

/// The dtype that the control computes in: the run's, or its cache's where that is narrower. The control then rounds more
/// than the run did, so that it can only excuse too much and never accuse.
fn coarsest(run: &RunReader, limits: &mut Vec<String>) -> Precision {
    let manifest = run.manifest();
    let dtype = manifest.dtype.and_then(Precision::of).unwrap_or_else(|| {
        limits.push("the run does not state its dtype; the control is f32".to_owned());
        Precision::F32
    });
    let cache = manifest.cache_dtype.and_then(Precision::of).unwrap_or(dtype);
    if cache.unit_roundoff() <= dtype.unit_roundoff() {
        return dtype;
    }
    limits.push(format!(
        "the cache is {} and the arithmetic {}; the control rounds everything to {}",
        cache.dtype().name(),
        dtype.dtype().name(),
        cache.dtype().name()
    ));
    cache
}

/// The last stage before the departure in its row that was not recorded, if any.
fn unseen(first: &Departure, observed: &[Observed], layers: usize) -> Option<String> {
    let row = observed.iter().find(|row| row.position == first.position)?;
    let rank = first.slot.rank(layers);
    let earlier = Slot::all(layers).filter(|slot| slot.rank(layers) < rank);
    let missing = earlier.filter(|slot| row.get(slot.layer, slot.name).is_none());
    missing.last().map(Slot::tensor)
}

fn report(
    recording: &Recording,
    observed: &[Observed],
    dtype: Precision,
    comparison: &Comparison,
    caches: Caches,
    findings: Vec<Finding>,
) -> CheckReport {
    let (cache_rows, mut limits) = (caches.compared, caches.limits);
    let layers = observed.first().map_or(0, Observed::layers);
    if comparison.compared == 0 {
        return nothing("no recorded stage has a counterpart in the reference");
    }
    let positions: Vec<u32> = comparison.positions.clone();
    if let Some(first) = &comparison.first
        && let Some(missing) = unseen(first, observed, layers)
    {
        limits.push(format!(
            "{missing} at position {} is not recorded; the departure may begin there",
            first.position
        ));
    }
    limits.extend(comparison.missing.iter().map(|missing| format!("{missing} is not recorded")));
    limits.push(format!(
        "{} of {} rows were looked at; what happens in others shows only through the cache",
        positions.len(),
        recording.rows.len()
    ));
    CheckReport {
        kind: CheckKind::Forward,
        verdict: if findings.is_empty() { Verdict::WithinNoise } else { Verdict::Diverged },
        compared: comparison.compared,
        different: comparison.different,
        skipped: comparison.skipped,
        unit: "stage".to_owned(),
        findings,
        limits,
        detail: json!({
            "check": "localize",
            "sample_id": recording.sample_id,
            "positions": positions,
            "control_dtype": dtype.dtype().name(),
            "ratio_limit": compare::RATIO,
            "worst_by_stage": comparison.worst(),
            "gathered_rows_compared": cache_rows,
        }),
    }
}

fn nothing(why: &str) -> CheckReport {
    CheckReport {
        kind: CheckKind::Forward,
        verdict: Verdict::Incomparable { why: why.to_owned() },
        compared: 0,
        different: 0,
        skipped: 0,
        unit: "stage".to_owned(),
        findings: Vec::new(),
        limits: Vec::new(),
        detail: Value::Null,
    }
}

/// What the rows alone say, where no stage can be compared.
fn only(steps: Steps, why: &str) -> CheckReport {
    if steps.findings.is_empty() {
        return nothing(why);
    }
    CheckReport {
        verdict: Verdict::Diverged,
        compared: steps.rows,
        different: steps.findings.len() as u64,
        unit: "row".to_owned(),
        findings: steps.findings,
        limits: vec![why.to_owned()],
        ..nothing(why)
    }
}

/// Findings of the rows that no stage says more closely.
fn unsaid(steps: Steps, stages: &[Finding]) -> Vec<Finding> {
    let said = |found: &Finding| {
        found.cause.is_some()
            && stages.iter().any(|stage| {
                stage.cause == found.cause && stage.location.sample_id == found.location.sample_id
            })
    };
    steps.findings.into_iter().filter(|found| !said(found)).collect()
}

/// Names the first departure.
fn finding(scene: &Scene<'_>) -> Result<Finding, ReplayError> {
    let departure = scene.departure;
    let slot = departure.slot;
    let named = match slot.name {
        "input_norm" | "post_norm" | "final_norm" | "q_norm" | "k_norm" => norm::name(scene)?,
        "q_rope" | "k_rope" => rotary::name(scene)?,
        "attn_heads" => attention::name(scene)?,
        "pre.k" | "pre.v" => keys::name(scene)?,
        _ => None,
    };
    let mut evidence = vec![
        figure("error", departure.error),
        figure("control_error", departure.control),
        figure("ratio", departure.error / departure.control),
        figure("tolerance", departure.tolerance),
    ];
    let location = Location {
        sample_id: Some(scene.recording.sample_id.clone()),
        position: Some(departure.position),
        layer: slot.layer.and_then(|layer| u32::try_from(layer).ok()),
        head: named.as_ref().and_then(|named| named.head),
        row: named.as_ref().and_then(|named| named.row),
        ordinal: scene.ordinal(),
        stage: Some(slot.name.to_owned()),
    };
    let (cause, title) = match named {
        Some(named) => {
            evidence.extend(named.evidence);
            (named.cause, named.title)
        }
        None => (None, unnamed(slot)),
    };
    Ok(Finding { cause, title, location, evidence })
}

fn unnamed(slot: Slot) -> String {
    const PROJECTED: [&str; 6] = ["q_proj", "k_proj", "v_proj", "attn_out", "mlp_out", "logits"];
    let place = slot.layer.map_or_else(String::new, |layer| format!("layer {layer} "));
    let mut title = format!(
        "{place}{} departs from the reference and no known mistake reproduces it",
        slot.name
    );
    if PROJECTED.contains(&slot.name) {
        title.push_str("; the weights of that stage may not be the recorded ones");
    }
    title
}
