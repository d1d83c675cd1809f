//! Replaying a run on the reference and judging what came out; used by `replay forward` and by `demo`.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;

use lockstep_diff::Side;
use lockstep_diff::drift::DriftOptions;
use lockstep_diff::report::{DriftReport, NoiseReport};
use lockstep_reference::forward::Precision;
use lockstep_replay::forward::{
    self, Claim, ForwardOptions, ForwardSummary, LocalizeOptions, Progress as Step, Replayed,
};
use lockstep_traces::limits::TokenIds;
use lockstep_traces::store::{RunReader, RunWriter, StepColumns};
use lockstep_traces::{
    CheckReport, Choice, DType, DumpId, Finding, Manifest, MemorySink, RecordPlan, SampleRow,
    Verdict,
};
use serde::Serialize;

use super::recording;
use crate::console::Progress;
use crate::exit::inconclusive;

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

/// What the run dumped of its rows is dumped again, so that the two can be held against each other.
fn plan_like(run: &RunReader) -> anyhow::Result<RecordPlan> {
    let (mut hidden, mut logits) = (BTreeSet::new(), BTreeSet::new());
    for id in run.dumps()? {
        let DumpId::Step { position, .. } = &id else { continue };
        let Some(dump) = run.dump(&id)? else { continue };
        if dump.names().any(|name| name.starts_with("hidden.")) {
            hidden.insert(*position);
        }
        if dump.has("logits") {
            logits.insert(*position);
        }
    }
    let rows = |positions: BTreeSet<u32>| match positions.len() {
        0 => Choice::None,
        _ => Choice::These(positions.into_iter().collect()),
    };
    let layers = run.manifest().get("trace.record_hidden_layers").cloned();
    Ok(RecordPlan {
        cache: Choice::None,
        scores: Choice::None,
        hidden: rows(hidden),
        hidden_layers: layers
            .and_then(|value| serde_json::from_value(value).ok())
            .unwrap_or(Choice::All),
        logits: rows(logits),
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
    // Before anything is computed or written: a replay with other weights is of no use.
    check_weights(run, model)?;
    refuse_unknown(run, options)?;
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

/// The same replay in another precision, in memory.
struct Again {
    label: &'static str,
    manifest: Manifest,
    steps: StepColumns,
    samples: Vec<SampleRow>,
    events: Vec<lockstep_traces::EventRow>,
}

impl Again {
    fn replay(
        run: &RunReader,
        model: &Path,
        options: &ForwardOptions,
        (precision, label): (Precision, &'static str),
    ) -> anyhow::Result<Self> {
        let options = ForwardOptions { precision, plant: None, ..options.clone() };
        let plan = RecordPlan { top_k: top_k(run), ..RecordPlan::default() };
        let mut sink = MemorySink { plan, ..MemorySink::default() };
        forward::forward(run, model, &options, &mut sink, &mut watch(None))?;
        Ok(Self {
            label,
            manifest: forward::describe(run, model, &options)?,
            steps: StepColumns::from_rows(&sink.steps),
            samples: sink.samples,
            events: sink.events,
        })
    }

    fn side(&self) -> Side<'_> {
        Side {
            label: self.label,
            manifest: &self.manifest,
            samples: &self.samples,
            steps: &self.steps,
            events: &self.events,
        }
    }
}

/// A run whose tokens are not the model's ids cannot be fed again, and one whose rows are not counted says nothing of what
/// a policy kept.
fn refuse_unknown(run: &RunReader, options: &ForwardOptions) -> anyhow::Result<()> {
    let limits = &run.manifest().limits;
    let dir = run.dir().display();
    let what = match limits.token_ids {
        TokenIds::Invented => "its token ids only number texts",
        TokenIds::Nothing => "its source gives no token ids",
        TokenIds::Given | TokenIds::Tokenizer => {
            if limits.rows || matches!(options.policy, forward::Policy::Dense) {
                return Ok(());
            }
            return Err(inconclusive(format!(
                "{dir}: its source does not count cache rows: only --policy dense can be replayed"
            )));
        }
    };
    Err(inconclusive(format!("{dir}: {what}; they cannot be fed to a model")))
}

/// A model folder whose weight files are not those that the run names cannot judge the run.
fn check_weights(run: &RunReader, model: &Path) -> anyhow::Result<()> {
    for (name, recorded) in &run.manifest().model.weights_sha256 {
        let path = if model.is_file() { model.to_path_buf() } else { model.join(name) };
        let found = lockstep_traces::hash::sha256_file(&path)?;
        anyhow::ensure!(
            found == *recorded,
            "{}: its sha256 is not the one that {} names; replay with the weights of the run",
            path.display(),
            run.dir().display()
        );
    }
    Ok(())
}

/// What an incomplete run shows is not the whole; it may differ, but it does not pass.
pub(crate) fn finished(run: &RunReader, verdict: Verdict) -> Verdict {
    if run.is_complete() || verdict.exit_code() != 0 {
        return verdict;
    }
    Verdict::Incomparable {
        why: format!("{} is incomplete; what it holds agrees", run.dir().display()),
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
    let noise = noise(run, &replayed, model, options)?;
    let drift = lockstep_diff::drift::compare(&replayed, run, DriftOptions::default())?;
    let localized = forward::localize(run, model, &LocalizeOptions::default())?;
    findings.extend(localized.findings.iter().cloned());
    let mut verdict = self_check.verdict.clone().worst(noise.verdict.clone());
    if localized.compared > 0 {
        verdict = verdict.worst(localized.verdict.clone());
    }
    let verdict = finished(run, verdict);
    Ok(Judged {
        self_check,
        noise: Some(noise),
        drift,
        localized: Some(localized),
        findings,
        verdict,
    })
}

/// The run against f64, beside a reference in the run's own dtype: the replay itself where it has that dtype, else one more.
fn noise(
    run: &RunReader,
    replayed: &RunReader,
    model: &Path,
    options: &ForwardOptions,
) -> anyhow::Result<NoiseReport> {
    let truth = Again::replay(run, model, options, (Precision::F64, "reference f64"))?;
    let target = super::inputs::Trace::read(run.dir())?;
    let (dtype, cache) = (run.manifest().dtype.unwrap_or(DType::F32), run.manifest().cache_dtype);
    let mut report = if options.precision.dtype() == dtype {
        let control = super::inputs::Trace::read(replayed.dir())?;
        lockstep_diff::noise::judge(&target.side(), &control.side(), &truth.side())
    } else {
        let control = Again::replay(
            run,
            model,
            options,
            (precision(dtype)?, "reference in the run's dtype"),
        )?;
        lockstep_diff::noise::judge(&target.side(), &control.side(), &truth.side())
    };
    let narrower = cache.is_some_and(|cache| cache.size() < dtype.size());
    if narrower && report.verdict == Verdict::Diverged {
        let cache = cache.map_or("", DType::name);
        let why = format!(
            "the run keeps K and V in {cache}, the control in {}: no control is like the run",
            dtype.name()
        );
        report.summary = why.clone();
        report.verdict = Verdict::Incomparable { why };
    }
    Ok(report)
}
