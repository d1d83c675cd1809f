//! Recording a run: manifest, writer, progress, interruption. Used by every verb that runs the engine.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_runtime::engine::{Engine, Progress as Step, Request, RunOptions, RunSummary};
use lockstep_traces::hash::sha256_file;
use lockstep_traces::manifest::{Manifest, Producer};
use lockstep_traces::store::{RunReader, RunWriter};
use lockstep_traces::{RecordPlan, StepQuery};

use crate::console::Progress;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static HANDLER: OnceLock<bool> = OnceLock::new();

/// From now on Ctrl-C asks for a stop instead of killing the process; a second one kills it.
pub(crate) fn watch_interrupts() {
    HANDLER.get_or_init(|| {
        ctrlc::set_handler(|| {
            if INTERRUPTED.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
        })
        .is_ok()
    });
}

/// Has a stop been asked for?
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// This process as the producer of a run.
pub(crate) fn producer(name: &str) -> Producer {
    Producer {
        name: name.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        binary_sha256: std::env::current_exe().ok().and_then(|path| sha256_file(path).ok()),
        args: std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect(),
    }
}

/// Now, as RFC 3339 in UTC.
#[expect(
    clippy::disallowed_methods,
    reason = "the manifest is the one place that records wall time"
)]
pub(crate) fn now() -> String {
    let seconds = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_secs());
    rfc3339(seconds)
}

/// Seconds since the epoch as RFC 3339 in UTC.
pub(crate) fn rfc3339(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// Year, month and day of a day counted from 1970-01-01 in the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    let (mut year, mut left) = (1970, days);
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while left >= lengths[month] {
        left -= lengths[month];
        month += 1;
    }
    (year, month as u64 + 1, left + 1)
}

/// What is to be recorded.
pub(crate) struct Job<'a> {
    pub(crate) requests: &'a [Request],
    pub(crate) options: &'a RunOptions,
    pub(crate) plan: &'a RecordPlan,
    /// Statistics file in force, for its hash.
    pub(crate) stats: Option<&'a Path>,
    /// Words for the progress line; nothing is shown without them.
    pub(crate) label: Option<&'a str>,
}

/// The manifest of a job.
pub(crate) fn manifest(engine: &Engine, job: &Job<'_>) -> anyhow::Result<Manifest> {
    let mut manifest = Manifest::new(producer("lockstep-runtime"), "cpu");
    manifest.created_at = now();
    engine.describe(job.options, &mut manifest)?;
    manifest.model.stats_sha256 = job.stats.map(sha256_file).transpose()?;
    for (key, choice) in [
        ("trace.record_cache", &job.plan.cache),
        ("trace.record_scores", &job.plan.scores),
        ("trace.record_hidden", &job.plan.hidden),
        ("trace.record_hidden_layers", &job.plan.hidden_layers),
        ("trace.record_logits", &job.plan.logits),
    ] {
        manifest.set(key, serde_json::to_value(choice)?, "flag");
    }
    if let Some(stats) = job.stats {
        manifest.set("policy.stats", stats.display().to_string(), "flag");
    }
    describe_build(&mut manifest);
    let ids: Vec<&str> = job.requests.iter().map(|request| request.sample_id.as_str()).collect();
    manifest.set("run.samples", ids, "flag");
    manifest.set("trace.top_k", job.plan.top_k, "flag");
    manifest.set("run.batch", job.options.batch, "flag");
    Ok(manifest)
}

/// The commit that this executable was built from, and the sha256 of what was changed over it, where the build was told
/// (`LOCKSTEP_COMMIT`, `LOCKSTEP_DIFF_SHA256`; the latter empty where nothing was changed).
fn describe_build(manifest: &mut Manifest) {
    if let Some(commit) = option_env!("LOCKSTEP_COMMIT") {
        manifest.set("producer.commit", commit, "build");
    }
    if let Some(diff) = option_env!("LOCKSTEP_DIFF_SHA256") {
        manifest.set("producer.dirty", !diff.is_empty(), "build");
        if !diff.is_empty() {
            manifest.set("producer.diff_sha256", diff, "build");
        }
    }
}

/// Runs the job into `out`; with `resume` goes on with the run that lies there. `None`: interrupted, the run is incomplete.
pub(crate) fn record(
    engine: &Engine,
    job: &Job<'_>,
    out: &Path,
    resume: bool,
) -> anyhow::Result<Option<RunSummary>> {
    watch_interrupts();
    let manifest = manifest(engine, job)?;
    let (mut writer, finished) = if resume {
        RunWriter::resume(out, &manifest, job.plan.clone())?
    } else {
        (RunWriter::create(out, manifest, job.plan.clone())?, Vec::new())
    };
    let left: Vec<Request> = job
        .requests
        .iter()
        .filter(|request| !finished.iter().any(|row| row.sample_id == request.sample_id))
        .cloned()
        .collect();
    let mut progress = job.label.map(Progress::new);
    let mut watch = |step: &Step<'_>| {
        if let Some(progress) = &mut progress {
            progress.update(step.fed, step.feed_at_most);
        }
        if interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let summary = match engine.run(&left, job.options, &mut writer, &mut watch) {
        Ok(summary) => summary,
        Err(error) => {
            // What was received so far stays; the error told is the first one.
            let _ = writer.flush();
            drop(writer);
            if !resume {
                forget_if_empty(out);
            }
            return Err(error.into());
        }
    };
    if summary.interrupted {
        writer.flush()?;
        return Ok(None);
    }
    writer.finish()?;
    Ok(Some(summary))
}

/// Removes a run that was refused before its first row (a plant that cannot show, a prompt that does not fit): nothing was recorded, and
/// the folder would stand in the way of the next try.
fn forget_if_empty(out: &Path) {
    let nothing = RunReader::open(out).and_then(|run| {
        Ok(run.steps(&StepQuery::default())?.len == 0
            && run.samples()?.is_empty()
            && run.dumps()?.is_empty())
    });
    if nothing.is_ok_and(|nothing| nothing) {
        let _ = std::fs::remove_dir_all(out);
    }
}

#[cfg(test)]
mod tests {
    use super::civil;

    #[test]
    fn days_become_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(59), (1970, 3, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_786), (2026, 11, 29));
    }
}
