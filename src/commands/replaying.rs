//! Replaying a run on the reference and judging what came out; used by `replay forward` and by `demo`.

use std::ops::ControlFlow;
use std::path::Path;

use lockstep_diff::Side;
use lockstep_diff::drift::DriftOptions;
use lockstep_diff::report::{DriftReport, NoiseReport};
use lockstep_reference::forward::Precision;
use lockstep_replay::forward::{
    self, Claim, ForwardOptions, ForwardSummary, LocalizeOptions, Progress as Step, Replayed,
};
use lockstep_traces::store::{RunReader, RunWriter, StepColumns};
use lockstep_traces::{
    CheckReport, Choice, DType, DumpId, Finding, Manifest, MemorySink, RecordPlan, SampleRow,
    Verdict,
};
use serde::Serialize;

use super::recording;
use crate::console::Progress;

/// A replay, judged.
#[derive(Debug, Serialize)]
pub(crate) struct Judged {
    /// Offsets, alignment, arithmetic of the harness itself.
    pub(crate) self_check: CheckReport,
    /// The run against the reference, by ratio to a control; absent where the harness is wrong.
    pub(crate) noise: Option<NoiseReport>,
    /// Hidden-state drift by sample, where states were recorded.
    pub(crate) drift: Vec<DriftReport>,
    /// First differing stage and what explains it.
    pub(crate) localized: Option<CheckReport>,
    /// All findings, harness first.
    pub(crate) findings: Vec<Finding>,
    /// Outcome.
    pub(crate) verdict: Verdict,
}

/// Reference precision of a dtype.
pub(crate) fn precision(dtype: DType) -> anyhow::Result<Precision> {
    Ok(match dtype {
        DType::F32 => Precision::F32,
        DType::F64 => Precision::F64,
        DType::Bf16 => Precision::Bf16,
        DType::F16 => Precision::F16,
        other => {
            return Err(crate::exit::usage(format!(
                "no replay in {}; use f32, f64, bf16 or f16",
                other.name()
            )));
        }
    })
}

/// Rows that the run dumped are dumped again, so that they can be held against each other.
fn plan_like(run: &RunReader) -> anyhow::Result<RecordPlan> {
    let mut positions: Vec<u32> = run
        .dumps()?
        .iter()
        .filter_map(|id| match id {
            DumpId::Step { position, .. } => Some(*position),
            DumpId::Compaction { .. } => None,
        })
        .collect();
    positions.sort_unstable();
    positions.dedup();
    let rows = if positions.is_empty() { Choice::None } else { Choice::These(positions) };
    Ok(RecordPlan {
        cache: Choice::None,
        scores: Choice::None,
        hidden: rows.clone(),
        hidden_layers: Choice::All,
        logits: rows,
        top_k: top_k(run),
    })
}

fn top_k(run: &RunReader) -> usize {
    let recorded = run.manifest().get("trace.top_k").and_then(serde_json::Value::as_u64);
    recorded.and_then(|k| usize::try_from(k).ok()).unwrap_or(8)
}

fn watch(label: Option<&str>) -> impl FnMut(&Step<'_>) -> ControlFlow<()> {
    let mut progress = label.map(Progress::new);
    move |step: &Step<'_>| {
        if let Some(progress) = &mut progress {
            progress.update(step.fed as u64, step.tokens as u64);
        }
        if recording::interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Replays `run` into the folder `out`. `None`: interrupted; what was replayed stays as an incomplete run.
pub(crate) fn replay(
    run: &RunReader,
    model: &Path,
    options: &ForwardOptions,
    out: &Path,
    label: Option<&str>,
) -> anyhow::Result<Option<ForwardSummary>> {
    recording::watch_interrupts();
    let mut manifest = forward::describe(run, model, options)?;
    manifest.created_at = recording::now();
    manifest.producer = recording::producer("lockstep-reference");
    let mut writer = RunWriter::create(out, manifest, plan_like(run)?)?;
    let summary = forward::forward(run, model, options, &mut writer, &mut watch(label))?;
    if summary.interrupted {
        writer.flush()?;
        return Ok(None);
    }
    writer.finish()?;
    Ok(Some(summary))
}

/// The same replay in f64, in memory.
struct Truth {
    manifest: Manifest,
    steps: StepColumns,
    samples: Vec<SampleRow>,
    events: Vec<lockstep_traces::EventRow>,
}

impl Truth {
    fn replay(run: &RunReader, model: &Path, options: &ForwardOptions) -> anyhow::Result<Self> {
        let options = ForwardOptions { precision: Precision::F64, plant: None, ..options.clone() };
        let plan = RecordPlan { top_k: top_k(run), ..RecordPlan::default() };
        let mut sink = MemorySink { plan, ..MemorySink::default() };
        forward::forward(run, model, &options, &mut sink, &mut watch(None))?;
        Ok(Self {
            manifest: forward::describe(run, model, &options)?,
            steps: StepColumns::from_rows(&sink.steps),
            samples: sink.samples,
            events: sink.events,
        })
    }

    fn side(&self) -> Side<'_> {
        Side {
            label: "reference f64",
            manifest: &self.manifest,
            samples: &self.samples,
            steps: &self.steps,
            events: &self.events,
        }
    }
}

/// Judges a replay of `run` that lies in `out`.
pub(crate) fn judge(
    run: &RunReader,
    out: &Path,
    model: &Path,
    options: &ForwardOptions,
) -> anyhow::Result<Judged> {
    let replayed = RunReader::open(out)?;
    let self_check = forward::self_check(
        run,
        &Replayed::from_run(&replayed)?,
        model,
        &Claim::of(options.precision),
    )?;
    let mut findings = self_check.findings.clone();
    if self_check.verdict == Verdict::Diverged {
        // A harness that stands on the wrong row says nothing about the engine.
        let verdict = self_check.verdict.clone();
        return Ok(Judged {
            self_check,
            noise: None,
            drift: Vec::new(),
            localized: None,
            findings,
            verdict,
        });
    }
    let truth = Truth::replay(run, model, options)?;
    let noise = noise(run, &replayed, &truth)?;
    let drift = lockstep_diff::drift::compare(&replayed, run, DriftOptions::default())?;
    let localized = forward::localize(run, model, &LocalizeOptions::default())?;
    findings.extend(localized.findings.iter().cloned());
    let mut verdict = self_check.verdict.clone().worst(noise.verdict.clone());
    if localized.compared > 0 {
        verdict = verdict.worst(localized.verdict.clone());
    }
    Ok(Judged {
        self_check,
        noise: Some(noise),
        drift,
        localized: Some(localized),
        findings,
        verdict,
    })
}

fn noise(run: &RunReader, replayed: &RunReader, truth: &Truth) -> anyhow::Result<NoiseReport> {
    let (target, control) =
        (super::inputs::Trace::read(run.dir())?, super::inputs::Trace::read(replayed.dir())?);
    Ok(lockstep_diff::noise::judge(&target.side(), &control.side(), &truth.side()))
}
