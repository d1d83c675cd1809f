//! `bench run`: a model over a dataset, under one or several cache policies; `bench merge`: shards of such a bench.
//!
//! A bench is a folder: `bench.json` says what was asked, every configuration is a run of its own, `responses` holds the
//! caches from which an interrupted bench goes on, `summary.json` and `summary.txt` say what came out.

mod arms;
mod merge;
mod plan;
mod prompts;
mod record;
mod reference;
mod scores;
mod speed;
mod summary;
mod text;

use std::path::{Path, PathBuf};

use lockstep_runtime::engine::{Engine, LoadOptions};
use lockstep_traces::DType;
use lockstep_traces::dataset::{Dataset, Selection};

use super::super::demo::embedded;
use super::super::device;
use crate::cli::{BenchRunArgs, Format};
use crate::console;
use crate::exit::{Status, usage};
use arms::Arms;
pub(crate) use merge::execute as merge;
use plan::Plan;
use prompts::Prompts;
use record::Session;
use summary::{Recorded, Summary};

/// Stands for the embedded model and its problems.
const LEDGER: &str = "ledger";
/// Most rows decoded together.
const MOST_BATCH: usize = 8;

pub(crate) fn execute(args: &BenchRunArgs, format: Format) -> anyhow::Result<Status> {
    if !(1..=MOST_BATCH).contains(&args.batch) {
        return Err(usage(format!(
            "--batch {}: rows are decoded 1 to {MOST_BATCH} together",
            args.batch
        )));
    }
    let arms = Arms::of(args)?;
    plan::prepare(&args.out, args.resume)?;
    let files = Files::of(args)?;
    let dataset = Dataset::read(&files.dataset)?;
    let selection = Selection { select: args.select.clone(), limit: args.limit, shard: args.shard };
    let taken = dataset.take(&selection).map_err(|error| usage(error.to_string()))?;
    let device = device::choose(args.device)?;
    let load = LoadOptions { dtype: files.dtype, cache_dtype: args.cache_dtype, device };
    let engine = Engine::load(&files.model, &load)?;
    for remark in dataset.remarks.iter().chain(engine.remarks()) {
        console::note(&format!("note: {remark}"));
    }
    let prompts = Prompts::of(&dataset, &taken, (&engine, &files.model), &args.prompts)?;
    for note in prompts.notes() {
        console::note(&format!("note: {note}"));
    }
    let session =
        Session::open(args, (&engine, files.stats.as_deref()), &prompts, &dataset, &arms)?;
    let plan = Plan::of(args, (&dataset, &taken), &prompts, session.configurations()?);
    plan.write(&args.out)?;
    let mut recorded = Vec::new();
    for arm in &arms.runs {
        recorded.push(session.record(arm)?);
        if recorded.last().is_some_and(|one: &Recorded| !one.complete) {
            return interrupted(args, &plan, &recorded, format);
        }
    }
    let mut summary = Summary::of(&args.out, &plan, &recorded, &args.scoring)?;
    if arms.reference {
        match reference::replay(&args.out, &files.model)? {
            Some(agreement) => summary.reference = Some(agreement),
            None => return interrupted(args, &plan, &recorded, format),
        }
    }
    summary.write(&args.out)?;
    console::answer(format, &text::table(&summary), &summary)?;
    Ok(Status::Parity)
}

/// What is there so far, and how to go on.
fn interrupted(
    args: &BenchRunArgs,
    plan: &Plan,
    recorded: &[Recorded],
    format: Format,
) -> anyhow::Result<Status> {
    let summary = Summary::of(&args.out, plan, recorded, &args.scoring)?;
    summary.write(&args.out)?;
    console::answer(format, &text::table(&summary), &summary)?;
    console::note(&format!(
        "lockstep: interrupted; {} is incomplete, --resume goes on from its response caches",
        args.out.display()
    ));
    Ok(Status::Inconclusive)
}

/// Where dataset, model and statistics lie.
struct Files {
    dataset: PathBuf,
    model: PathBuf,
    stats: Option<PathBuf>,
    dtype: Option<DType>,
}

impl Files {
    /// The embedded ones are written below the bench, so that every later verb can read them.
    fn of(args: &BenchRunArgs) -> anyhow::Result<Self> {
        let own = |path: &Path| path == Path::new(LEDGER);
        let mut files = Self {
            dataset: args.dataset.clone(),
            model: args.model.clone(),
            stats: args.policy.stats.clone(),
            dtype: args.dtype,
        };
        if own(&args.dataset) || own(&args.model) {
            let folder = args.out.join(LEDGER);
            let written = embedded::write(&folder)?;
            if own(&args.dataset) {
                files.dataset = folder.join("tasks.jsonl");
                std::fs::write(&files.dataset, embedded::TASKS)?;
            }
            if own(&args.model) {
                files.model = written.model;
                files.stats = files.stats.or(Some(written.stats));
                files.dtype = files.dtype.or(Some(DType::F32));
            }
        }
        Ok(files)
    }
}
