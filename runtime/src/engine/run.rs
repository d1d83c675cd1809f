//! The run loop: prompts are fed in chunks, samples decode together, a sample that ends makes room for the next.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;

use lockstep_traces::{PolicyKind, TraceSink};

use super::backend::{CudaRun, Device, Loaded};
use super::sequence::Sequence;
use super::{Engine, Progress, Request, RunOptions, RunSummary};
use crate::RuntimeError;
use crate::cache::CacheShape;
use crate::calibrate::QuerySums;
use crate::cpu::Arithmetic;
use crate::cuda::model::SessionSetup;
use crate::faults::{EngineFaults, plant};
use crate::policy::{Policy, Setup};
use crate::sample::Sampler;

/// Called after every forward pass; `Break` stops the run.
pub type OnProgress<'a> = dyn FnMut(&Progress<'_>) -> ControlFlow<()> + 'a;

impl Engine {
    /// Runs every request and records it. Rows of a sample come in order; samples of a batch interleave.
    ///
    /// # Errors
    /// Options that contradict each other or the model, a request that cannot be run, a row that cannot be drawn from (its step row is
    /// written first), or a sink that fails. What was recorded before stays recorded.
    pub fn run(
        &self,
        requests: &[Request],
        options: &RunOptions,
        sink: &mut dyn TraceSink,
        progress: &mut OnProgress<'_>,
    ) -> Result<RunSummary, RuntimeError> {
        self.run_with(requests, options, sink, progress, None)
    }

    pub(crate) fn run_with(
        &self,
        requests: &[Request],
        options: &RunOptions,
        sink: &mut dyn TraceSink,
        progress: &mut OnProgress<'_>,
        queries: Option<&mut QueryCount>,
    ) -> Result<RunSummary, RuntimeError> {
        self.check_requests(requests)?;
        if options.batch == 0 {
            let what = "must be at least 1".to_owned();
            return Err(RuntimeError::Option { name: "batch", what });
        }
        options.stop.check(self.tokenizer())?;
        let policy = self.policy(options)?;
        let sampler =
            Sampler::resolve(&options.sampling, self.hyper().vocab_size)?.planted(options.plant)?;
        let mut arithmetic = Arithmetic::of(self.hyper(), self.dtype);
        let faults = plant(options.plant, self.hyper(), policy.kind(), &mut arithmetic)?;
        let device = self.device(options, &arithmetic, &sampler, sink.top_k())?;
        if matches!(device, Device::Cuda(_)) && queries.is_some() {
            let what = "sums over queries are taken on the CPU; use --device cpu".to_owned();
            return Err(RuntimeError::Option { name: "device", what });
        }
        let feed_at_most = requests.iter().map(|request| most_fed(request, options)).sum();
        let mut runner = Runner {
            engine: self,
            options,
            stop_ids: options.stop_ids.as_ref().unwrap_or(&self.hyper().eos_ids),
            policy,
            sampler,
            arithmetic,
            faults,
            device,
            free_slots: (0..options.batch).rev().collect(),
            sink,
            progress,
            queries,
            samples: requests.len(),
            feed_at_most,
            summary: RunSummary {
                weight_bytes: self.model.bytes_per_pass() as u64,
                ..RunSummary::default()
            },
        };
        let ran = runner.run(requests);
        // A dump whose rows are on their way is not lost with the run.
        runner.device.deliver(runner.sink)?;
        ran?;
        Ok(runner.summary)
    }

    fn device(
        &self,
        options: &RunOptions,
        arithmetic: &Arithmetic,
        sampler: &Sampler,
        top_k: usize,
    ) -> Result<Device<'_>, RuntimeError> {
        Ok(match &self.model {
            Loaded::Cpu(model) => Device::Cpu(model),
            Loaded::Cuda(model) => {
                if let Some(what) = sampler.host_only() {
                    return Err(RuntimeError::Option { name: "sampler", what });
                }
                let session = model.model.session(&SessionSetup {
                    arithmetic,
                    cache_dtype: self.cache_dtype,
                    sampler,
                    top_k,
                    batch: options.batch,
                    options: &options.device,
                })?;
                let run = CudaRun::new(session, options.device.clone(), self.dims(), &model.shelf);
                Device::Cuda(Box::new(run))
            }
        })
    }

    /// The policy of these options, bound to this model.
    pub(super) fn policy(&self, options: &RunOptions) -> Result<Policy, RuntimeError> {
        if let (Some((layer, window)), true) = (
            self.hyper().window(),
            options.policy.kind.is_some_and(|kind| kind != PolicyKind::Dense),
        ) {
            // After a compaction the last rows are not the last positions, and no rule says which are meant.
            let what =
                format!("layer {layer} sees the last {window} rows only; such a model runs dense");
            return Err(RuntimeError::Option { name: "policy", what });
        }
        let rotary = self.hyper().rotary();
        let setup = Setup {
            dims: self.dims(),
            rotary: &rotary,
            stats: options.stats.as_ref(),
            cache_dtype: self.cache_dtype,
            plant: options.plant,
        };
        Ok(Policy::resolve(&options.policy, &setup)?)
    }

    fn check_requests(&self, requests: &[Request]) -> Result<(), RuntimeError> {
        let vocab = self.hyper().vocab_size;
        let mut seen = BTreeSet::new();
        for request in requests {
            let fault = |what: String| {
                Err(RuntimeError::Request { sample_id: request.sample_id.clone(), what })
            };
            if !seen.insert(&request.sample_id) {
                return fault("the name comes twice; names must be unique in a run".to_owned());
            }
            if request.prompt_ids.is_empty() {
                return fault("the prompt is empty; give at least one token".to_owned());
            }
            if let Some(id) = request.prompt_ids.iter().find(|id| **id as usize >= vocab) {
                return fault(format!("prompt id {id} is outside the vocabulary of {vocab}"));
            }
        }
        Ok(())
    }
}

/// Sums over queries, and which rows count.
pub(crate) struct QueryCount {
    pub(crate) sums: QuerySums,
    pub(crate) decode_only: bool,
}

fn most_fed(request: &Request, options: &RunOptions) -> u64 {
    let teacher = options.teacher.get(&request.sample_id).map(Vec::len);
    let generated = teacher.unwrap_or(options.max_new_tokens);
    (request.prompt_ids.len() + generated.saturating_sub(1)) as u64
}

pub(super) struct Runner<'a> {
    pub(super) engine: &'a Engine,
    pub(super) options: &'a RunOptions,
    pub(super) stop_ids: &'a [u32],
    pub(super) policy: Policy,
    pub(super) sampler: Sampler,
    pub(super) arithmetic: Arithmetic,
    pub(super) faults: EngineFaults,
    pub(super) device: Device<'a>,
    /// Places of the batch that no sequence has.
    pub(super) free_slots: Vec<usize>,
    pub(super) sink: &'a mut dyn TraceSink,
    pub(super) progress: &'a mut OnProgress<'a>,
    pub(super) queries: Option<&'a mut QueryCount>,
    pub(super) samples: usize,
    pub(super) feed_at_most: u64,
    pub(super) summary: RunSummary,
}

impl<'a> Runner<'a> {
    fn run(&mut self, requests: &'a [Request]) -> Result<(), RuntimeError> {
        let mut queue = requests.iter();
        let mut active: Vec<Sequence<'a>> = Vec::new();
        loop {
            while active.len() < self.options.batch
                && let Some(request) = queue.next()
            {
                let mut sequence = self.start(request)?;
                if self.prefill(&mut sequence)?.is_break() {
                    self.summary.interrupted = true;
                    return Ok(());
                }
                active.push(sequence);
                self.retire(&mut active)?;
            }
            if active.is_empty() {
                return Ok(());
            }
            let flow = self.decode(&mut active)?;
            self.retire(&mut active)?;
            if flow.is_break() {
                self.summary.interrupted = true;
                return Ok(());
            }
        }
    }

    fn start(&mut self, request: &'a Request) -> Result<Sequence<'a>, RuntimeError> {
        let teacher = self.options.teacher.get(&request.sample_id).map(Vec::as_slice);
        let vocab = self.engine.hyper().vocab_size;
        if let Some(id) = teacher.into_iter().flatten().find(|id| **id as usize >= vocab) {
            let what = format!("teacher's id {id} is outside the vocabulary of {vocab}");
            return Err(RuntimeError::Request { sample_id: request.sample_id.clone(), what });
        }
        let most = usize::try_from(most_fed(request, self.options)).unwrap_or(usize::MAX);
        let hyper = self.engine.hyper();
        let shape = CacheShape {
            layers: hyper.layers,
            kv_heads: hyper.kv_heads,
            head_dim: hyper.head_dim,
            dtype: self.engine.cache_dtype,
            capacity: self.policy.max_rows().unwrap_or(most).min(most),
        };
        let index = request.seed_index.unwrap_or(0);
        let (effective_seed, stream_seed) =
            (self.sampler.effective_seed(index), self.sampler.stream_seed(index));
        let slot = self.free_slots.pop().unwrap_or_default();
        if let Device::Cuda(run) = &mut self.device {
            run.session.start(slot, stream_seed)?;
        }
        let expected = self.policy.expected_rows(request.prompt_ids.len());
        Ok(Sequence {
            request,
            slot,
            state: self.policy.start(request.prompt_ids.len(), &request.sample_id),
            cache: self.device.cache(shape, expected)?,
            sampler: self.sampler.start(stream_seed),
            base_seed: self.sampler.settings().base_seed,
            effective_seed,
            teacher,
            generated: Vec::new(),
            finish: None,
            prefill: Duration::ZERO,
            decode: Duration::ZERO,
        })
    }

    /// Writes the sample rows of sequences that have ended and drops them.
    fn retire(&mut self, active: &mut Vec<Sequence<'a>>) -> Result<(), RuntimeError> {
        if active.iter().any(|sequence| sequence.finish.is_some()) {
            self.device.deliver(self.sink)?;
        }
        for sequence in active.iter().filter(|sequence| sequence.finish.is_some()) {
            self.sink.sample(sequence.sample_row(self.engine)?)?;
            self.free_slots.push(sequence.slot);
            self.summary.finished += 1;
            let fed = sequence.state.absolute_position() as u64;
            let most = most_fed(sequence.request, self.options);
            self.feed_at_most -= most.saturating_sub(fed);
        }
        active.retain(|sequence| sequence.finish.is_none());
        Ok(())
    }

    pub(super) fn report(&mut self, sample_id: &str) -> ControlFlow<()> {
        (self.progress)(&Progress {
            samples: self.samples,
            finished: self.summary.finished,
            fed: self.summary.prompt_tokens + self.summary.decode_tokens,
            feed_at_most: self.feed_at_most,
            sample_id,
        })
    }
}
