//! One configuration over the rows: what its response cache has is taken from there, the rest is computed.
//!
//! The run folder is written anew each time, first from the cache and then by the engine; so the cache alone decides what
//! an interrupted bench still has, and a run never holds half of one attempt and half of another.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use lockstep_runtime::engine::{
    Engine, Progress as Step, Request, RunOptions, RunSummary, StopRules,
};
use lockstep_traces::dataset::Dataset;
use lockstep_traces::responses::{Configuration, Response, ResponseCache, RowIdentity};
use lockstep_traces::stats::QueryStats;
use lockstep_traces::store::RunWriter;
use lockstep_traces::{
    Dump, EventRow, Manifest, PolicyKind, Probe, RecordPlan, SampleRow, StepRow, TraceError,
    TraceSink,
};

use super::arms::{Arm, Arms};
use super::plan::PlannedArm;
use super::prompts::Prompts;
use super::summary::{Recorded, Work};
use crate::cli::BenchRunArgs;
use crate::commands::recording::{self, Job};
use crate::commands::{device, run};
use crate::console::{self, Progress};

/// What all configurations of a bench share.
pub(super) struct Session<'a> {
    args: &'a BenchRunArgs,
    engine: &'a Engine,
    prompts: &'a Prompts,
    stats: Option<(&'a Path, QueryStats)>,
    plan: RecordPlan,
    arms: &'a Arms,
    /// Manifest without what a configuration sets; hashing the weights is paid for once.
    base: Manifest,
    dataset: &'a Dataset,
}

impl<'a> Session<'a> {
    pub(super) fn open(
        args: &'a BenchRunArgs,
        (engine, stats): (&'a Engine, Option<&'a Path>),
        prompts: &'a Prompts,
        dataset: &'a Dataset,
        arms: &'a Arms,
    ) -> anyhow::Result<Self> {
        recording::watch_interrupts();
        let needs = arms.runs.iter().any(|arm| arm.kind() == PolicyKind::Triattention);
        let stats = match stats.filter(|_| needs) {
            Some(path) => Some((path, lockstep_traces::stats::read(path)?)),
            None => None,
        };
        let plan = RecordPlan { top_k: args.trace_top_k, ..RecordPlan::default() };
        let options = RunOptions { batch: args.batch, ..RunOptions::default() };
        let job = Job {
            requests: &prompts.requests,
            options: &options,
            plan: &plan,
            stats: None,
            label: None,
        };
        let base = recording::manifest(engine, &job)?;
        Ok(Self { args, engine, prompts, stats, plan, arms, base, dataset })
    }

    /// Every configuration by name.
    pub(super) fn configurations(&self) -> anyhow::Result<Vec<PlannedArm>> {
        let planned = |arm: &Arm| {
            let manifest = self.manifest(arm, &self.options(arm))?;
            Ok(PlannedArm { name: arm.name.clone(), configuration: Configuration::of(&manifest) })
        };
        self.arms.runs.iter().map(planned).collect()
    }

    fn options(&self, arm: &Arm) -> RunOptions {
        let (args, stop) = (self.args, &self.args.stop);
        let selects = arm.kind() == PolicyKind::Triattention;
        RunOptions {
            policy: arm.policy.clone(),
            sampling: run::sampling_spec(&args.sampling),
            stats: self.stats.as_ref().filter(|_| selects).map(|(_, stats)| stats.clone()),
            max_new_tokens: stop.max_new_tokens,
            stop_ids: stop.stop_ids.clone(),
            stop: StopRules {
                strings: stop.strings.clone(),
                on_answer: stop.stop_on_answer,
                check_interval: stop.stop_check_interval,
            },
            batch: args.batch,
            device: device::options(&args.on_device),
            ..RunOptions::default()
        }
    }

    fn manifest(&self, arm: &Arm, options: &RunOptions) -> anyhow::Result<Manifest> {
        let mut manifest = self.base.clone();
        // What is recorded is the same for all; what is computed is the configuration's own.
        manifest.config.retain(|key, _| key.starts_with("trace.") || key.starts_with("run."));
        manifest.config.extend(self.engine.settings(options)?);
        if let Some((path, _)) = self.stats.as_ref().filter(|_| options.stats.is_some()) {
            manifest.model.stats_sha256 = Some(lockstep_traces::hash::sha256_file(path)?);
            manifest.set("policy.stats", path.display().to_string(), "flag");
        }
        self.prompts.describe(self.dataset, &self.args.prompts, &mut manifest)?;
        manifest.set("bench.configuration", arm.name.clone(), "flag");
        manifest.set("bench.shard", self.args.shard.map(|shard| shard.to_string()), "flag");
        Ok(manifest)
    }

    /// Runs a configuration into its folder. Not `complete`: interrupted.
    pub(super) fn record(&self, arm: &Arm) -> anyhow::Result<Recorded> {
        let started = Instant::now();
        let options = self.options(arm);
        let manifest = self.manifest(arm, &options)?;
        let configuration = Configuration::of(&manifest);
        let keys = self.keys(&configuration);
        let mut cache = ResponseCache::open(
            &self.cache_path(&arm.name),
            &configuration,
            manifest.producer.binary_sha256.as_deref(),
        )?;
        let remarks = cache.remarks().to_vec();
        remarks.iter().for_each(|remark| console::note(&format!("note: {remark}")));
        let dir = self.args.out.join(&arm.name);
        if dir.exists() {
            // Of an earlier attempt on this bench; all that it had finished is in the cache.
            std::fs::remove_dir_all(&dir)?;
        }
        let mut writer = RunWriter::create(&dir, manifest, self.plan.clone())?;
        let (served, left) = self.serve(&keys, &mut cache, &mut writer)?;
        let mut recorder =
            Recorder { writer, cache: &mut cache, keys: &keys, open: BTreeMap::new() };
        let summary = self.compute(arm, &options, &left, &mut recorder);
        let mut writer = recorder.writer;
        let summary = match summary {
            Ok(summary) => summary,
            Err(error) => {
                // What was received so far stays; the error told is the first one.
                let _ = writer.flush();
                return Err(error);
            }
        };
        if summary.interrupted {
            writer.flush()?;
        } else {
            writer.finish()?;
        }
        Ok(Recorded {
            name: arm.name.clone(),
            complete: !summary.interrupted,
            work: Some(Work::of(&summary, started.elapsed().as_secs_f64())),
            served,
            remarks,
        })
    }

    fn cache_path(&self, arm: &str) -> PathBuf {
        let folder = self.args.cache.clone().unwrap_or_else(|| self.args.out.join("responses"));
        folder.join(format!("{arm}.jsonl"))
    }

    /// Key of each row's response, by sample.
    fn keys(&self, configuration: &Configuration) -> BTreeMap<String, String> {
        let base = configuration.get("sampling.seed").and_then(|text| text.parse::<u64>().ok());
        let key = |request: &Request| {
            configuration.key(RowIdentity {
                sample_id: &request.sample_id,
                prompt_ids: &request.prompt_ids,
                effective_seed: base.map(|base| base.wrapping_add(request.seed_index.unwrap_or(0))),
            })
        };
        self.prompts
            .requests
            .iter()
            .map(|request| (request.sample_id.clone(), key(request)))
            .collect()
    }

    /// Writes what the cache has into the run: the samples served, and the requests that are left.
    fn serve(
        &self,
        keys: &BTreeMap<String, String>,
        cache: &mut ResponseCache,
        writer: &mut RunWriter,
    ) -> anyhow::Result<(Vec<String>, Vec<Request>)> {
        let (mut served, mut left) = (Vec::new(), Vec::new());
        for request in &self.prompts.requests {
            let key = keys.get(&request.sample_id).map_or("", String::as_str);
            let Some(response) = cache.get(key)? else {
                left.push(request.clone());
                continue;
            };
            for row in response.steps {
                writer.step(row)?;
            }
            for row in response.events {
                writer.event(row)?;
            }
            // The gold answer is the dataset's, not what it was when the response was computed.
            writer.sample(SampleRow { gold: request.gold.clone(), ..response.sample })?;
            served.push(request.sample_id.clone());
        }
        Ok((served, left))
    }

    fn compute(
        &self,
        arm: &Arm,
        options: &RunOptions,
        left: &[Request],
        recorder: &mut Recorder<'_>,
    ) -> anyhow::Result<RunSummary> {
        if recording::interrupted() {
            return Ok(RunSummary { interrupted: true, ..RunSummary::default() });
        }
        let place = self.arms.runs.iter().position(|other| other.name == arm.name).unwrap_or(0) + 1;
        let label =
            format!("{} ({place} of {}), {} rows", arm.name, self.arms.runs.len(), left.len());
        let mut progress = Progress::new(label);
        let mut watch = |step: &Step<'_>| {
            progress.update(step.fed, step.feed_at_most);
            if recording::interrupted() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        Ok(self.engine.run(left, options, recorder, &mut watch)?)
    }
}

/// Rows of a sample that has not ended.
#[derive(Default)]
struct Open {
    steps: Vec<StepRow>,
    events: Vec<EventRow>,
}

/// Writes a run, and each sample that ends to the cache first.
struct Recorder<'a> {
    writer: RunWriter,
    cache: &'a mut ResponseCache,
    keys: &'a BTreeMap<String, String>,
    open: BTreeMap<String, Open>,
}

impl TraceSink for Recorder<'_> {
    fn wants(&self, probe: Probe<'_>) -> bool {
        self.writer.wants(probe)
    }

    fn top_k(&self) -> usize {
        self.writer.top_k()
    }

    fn step(&mut self, row: StepRow) -> Result<(), TraceError> {
        self.open.entry(row.sample_id.clone()).or_default().steps.push(row.clone());
        self.writer.step(row)
    }

    fn event(&mut self, row: EventRow) -> Result<(), TraceError> {
        self.open.entry(row.sample_id.clone()).or_default().events.push(row.clone());
        self.writer.event(row)
    }

    fn dump(&mut self, dump: Dump) -> Result<(), TraceError> {
        self.writer.dump(dump)
    }

    fn sample(&mut self, row: SampleRow) -> Result<(), TraceError> {
        let open = self.open.remove(&row.sample_id).unwrap_or_default();
        if let Some(key) = self.keys.get(&row.sample_id) {
            self.cache.append(&Response {
                key: key.clone(),
                sample: row.clone(),
                steps: open.steps,
                events: open.events,
            })?;
        }
        self.writer.sample(row)
    }
}
