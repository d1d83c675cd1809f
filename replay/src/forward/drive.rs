//! The replay itself: feeds recorded tokens and writes what the reference says about them.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use lockstep_reference::forward::{Cache, Chunk, Fed, Model, Stage, Watch};
use lockstep_traces::hash::{DEFAULT_SEEDS, ids_sha256};
use lockstep_traces::store::RunReader;
use lockstep_traces::{EventRow, FinishReason, Probe, SampleRow, StepRow, TraceSink};
use rayon::prelude::*;

use super::compactor::{Compaction, Compactor};
use super::dumps::{cache_tensors, compaction_dump, keep_tensor, row_dump, wants_row};
use super::feed::{Token, chunk_end, tokens};
use super::options::ForwardOptions;
use super::recording::{Event, Recording};
use super::rows::{Figures, figures};
use crate::ReplayError;

/// How far a replay has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// Sample at work.
    pub sample_id: &'a str,
    /// Its number, 0-based.
    pub sample: usize,
    /// Samples to replay.
    pub samples: usize,
    /// Tokens of this sample fed so far.
    pub fed: usize,
    /// Tokens of this sample to feed.
    pub tokens: usize,
}

/// What a replay did.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ForwardSummary {
    /// Samples finished.
    pub samples: usize,
    /// Tokens fed.
    pub fed: u64,
    /// Step rows emitted.
    pub rows: u64,
    /// Compactions made.
    pub events: u64,
    /// Chunks fed.
    pub chunks: u64,
    /// Floating-point operations of the matmuls (twice the multiply-adds; causal attention counted by visible rows).
    pub flops: u64,
    /// Seconds inside the reference.
    pub forward_seconds: f64,
    /// Stopped by the caller before the end.
    pub interrupted: bool,
}

/// Re-executes a run. Rows, events and dumps go to `sink` as a run of their own.
///
/// Prompt rows are fed once, whether or not the trace holds them; then the recorded tokens, whatever the reference would
/// have chosen. `progress` is called after each chunk and may stop the replay.
///
/// # Errors
/// A recording that lacks what the replay needs, a model that cannot be loaded, a sink that fails.
pub fn forward(
    run: &RunReader,
    model_dir: &Path,
    options: &ForwardOptions,
    sink: &mut dyn TraceSink,
    progress: &mut dyn FnMut(&Progress<'_>) -> ControlFlow<()>,
) -> Result<ForwardSummary, ReplayError> {
    if let Some(plant) = options.plant.filter(|plant| !plant.is_harness()) {
        return Err(ReplayError::Options {
            what: format!("`{}` is a mistake of an engine; plant it in `run`", plant.slug()),
        });
    }
    let model = Model::load(model_dir, options.computed())?;
    let samples = chosen(run, options)?;
    let greedy = run
        .manifest()
        .get("sampling.temperature")
        .and_then(serde_json::Value::as_f64)
        .is_some_and(|temperature| temperature < 1e-6);
    let mut summary = ForwardSummary::default();
    for (index, sample_id) in samples.iter().enumerate() {
        let recording = Recording::read(run, sample_id)?;
        let compactor = Compactor::new(&options.policy, run, model.hyper())?;
        let mut pass = Pass { model: &model, recording: &recording, options, greedy, compactor };
        let mut report = |fed: usize, tokens: usize| {
            let samples = samples.len();
            progress(&Progress { sample_id, sample: index, samples, fed, tokens })
        };
        if pass.run(sink, &mut summary, &mut report)?.is_break() {
            summary.interrupted = true;
            break;
        }
        sink.sample(sample_row(&recording))?;
        summary.samples += 1;
    }
    Ok(summary)
}

fn chosen(run: &RunReader, options: &ForwardOptions) -> Result<Vec<String>, ReplayError> {
    let all = run.sample_ids()?;
    let Some(wanted) = &options.samples else { return Ok(all) };
    match wanted.iter().find(|id| !all.contains(id)) {
        Some(id) => Err(ReplayError::Options {
            what: format!(
                "no sample `{id}` in {}; it holds {}",
                run.dir().display(),
                all.join(", ")
            ),
        }),
        None => Ok(wanted.clone()),
    }
}

fn sample_row(recording: &Recording) -> SampleRow {
    let prompt = recording.rows.iter().take(recording.prompt_len);
    let prompt_ids: Vec<u32> = prompt.map(|row| row.token_id).collect();
    let known = recording.sample.clone();
    let fed = recording.rows.iter().skip(recording.prompt_len).map(|row| row.token_id);
    SampleRow {
        finish: FinishReason::Forced,
        prefill_seconds: 0.0,
        decode_seconds: 0.0,
        ..known.unwrap_or_else(|| SampleRow {
            sample_id: recording.sample_id.clone(),
            prompt_ids_sha256: ids_sha256(&prompt_ids),
            prompt_len: u32::try_from(recording.prompt_len).ok(),
            prompt_ids,
            prompt_text_sha256: None,
            base_seed: None,
            seed_index: None,
            effective_seed: None,
            generated_ids: fed.collect(),
            text: None,
            gold: None,
            answer: None,
            answer_rule: None,
            finish: FinishReason::Forced,
            prefill_seconds: 0.0,
            decode_seconds: 0.0,
        })
    }
}

/// One sample on its way through the reference.
struct Pass<'a> {
    model: &'a Model,
    recording: &'a Recording,
    options: &'a ForwardOptions,
    greedy: bool,
    compactor: Compactor<'a>,
}

/// Rows of one chunk that are emitted, and where they stand.
struct Slice<'a> {
    tokens: &'a [Token],
    /// Live rows before the first of them.
    base: usize,
    /// Indices of the emitted ones.
    emitted: Vec<usize>,
    /// Compaction before the forward of the first row: it belongs to that row's step.
    carried: Option<Event>,
}

impl Pass<'_> {
    fn run(
        &mut self,
        sink: &mut dyn TraceSink,
        summary: &mut ForwardSummary,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, ReplayError> {
        let mut tokens = tokens(self.recording, self.options.plant);
        if let Some(range) = &self.options.positions {
            let last = |token: &Token| token.row.is_some_and(|row| row <= *range.end() as usize);
            let end = tokens.iter().rposition(last).map_or(0, |index| index + 1);
            tokens.truncate(end);
        }
        let mut cache = self.model.new_cache()?;
        let (mut start, mut carried) = (0, None);
        while start < tokens.len() {
            let stop = self.compactor.next(self.recording, &tokens, start, &cache);
            let end = chunk_end(start, self.options.chunk, tokens.len(), stop);
            let chunk = &tokens[start..end];
            let slice =
                Slice { tokens: chunk, base: cache.rows(), emitted: self.emitted(chunk), carried };
            let fed = self.feed(sink, &mut cache, &slice, summary)?;
            let made = match stop {
                Some(stop) if stop == end => self.compact(sink, end, &mut cache)?,
                _ => None,
            };
            let made = made.map(|made| made.event);
            self.emit(sink, &slice, &fed, made.as_ref(), summary)?;
            carried = made.filter(|event| event.before_forward);
            summary.events += u64::from(made.is_some());
            start = end;
            if progress(start, tokens.len()).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn emitted(&self, tokens: &[Token]) -> Vec<usize> {
        let wanted = |row: usize| match &self.options.positions {
            Some(range) => u32::try_from(row).is_ok_and(|row| range.contains(&row)),
            None => true,
        };
        (0..tokens.len()).filter(|index| tokens[*index].row.is_some_and(wanted)).collect()
    }

    fn feed(
        &self,
        sink: &dyn TraceSink,
        cache: &mut Cache,
        slice: &Slice<'_>,
        summary: &mut ForwardSummary,
    ) -> Result<Fed, ReplayError> {
        let ids: Vec<u32> = slice.tokens.iter().map(|token| token.id).collect();
        let positions: Vec<u32> = slice.tokens.iter().map(|token| token.index).collect();
        let layers = self.model.hyper().layers;
        let watched: Vec<usize> = slice
            .emitted
            .iter()
            .copied()
            .filter(|index| {
                let position = position(&slice.tokens[*index]);
                wants_row(sink, &self.recording.sample_id, position, layers)
            })
            .collect();
        let started = Instant::now();
        let chunk = Chunk { ids: &ids, positions: &positions, logits: &slice.emitted };
        let fed = self.model.feed(cache, &chunk, Watch { rows: &watched })?;
        summary.forward_seconds += started.elapsed().as_secs_f64();
        summary.chunks += 1;
        summary.fed += ids.len() as u64;
        let rows = slice.base as u64 + 1..slice.base as u64 + 1 + ids.len() as u64;
        summary.flops += rows.map(|visible| self.model.flops(visible)).sum::<u64>();
        Ok(fed)
    }

    fn compact(
        &mut self,
        sink: &mut dyn TraceSink,
        fed: usize,
        cache: &mut Cache,
    ) -> Result<Option<Compaction>, ReplayError> {
        let (hyper, precision) = (self.model.hyper(), self.model.precision());
        let Some(made) = self.compactor.select(self.recording, hyper, precision, fed, cache)?
        else {
            return Ok(None);
        };
        let (sample_id, ordinal) = (self.recording.sample_id.as_str(), made.event.ordinal);
        let rows = sink.wants(Probe::Cache { sample_id, ordinal });
        let dumped = rows || sink.wants(Probe::Scores { sample_id, ordinal });
        let mut tensors = Vec::new();
        if dumped {
            tensors.extend(cache_tensors(cache, "pre", rows)?);
        }
        let before = cache.rows();
        cache.gather(&made.keep)?;
        let mut dump = None;
        if dumped {
            tensors.extend(cache_tensors(cache, "post", rows)?);
            tensors.push(keep_tensor(&made.keep));
            let prompt = self.recording.prompt_len;
            let file = compaction_dump(sample_id, prompt, &made.event, &made.keep, tensors);
            dump = Some(file.id.relative_path());
            sink.dump(file)?;
        }
        let count = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        sink.event(EventRow {
            sample_id: sample_id.to_owned(),
            ordinal,
            absolute_position: made.event.absolute_position,
            round_start: made.event.round_start,
            rows_before: count(before),
            rows_after: count(cache.rows()),
            protected: count(made.protected),
            candidates: count(made.candidates),
            score_seconds: 0.0,
            reduce_seconds: 0.0,
            select_seconds: 0.0,
            gather_seconds: 0.0,
            dump,
        })?;
        Ok(Some(made))
    }

    fn emit(
        &self,
        sink: &mut dyn TraceSink,
        slice: &Slice<'_>,
        fed: &Fed,
        after: Option<&Event>,
        summary: &mut ForwardSummary,
    ) -> Result<(), ReplayError> {
        let top = sink.top_k().max(1);
        let logits: Vec<&[f32]> = fed.logits.rows().collect();
        let figures: Vec<Figures> =
            logits.par_iter().map(|row| figures(row, top, DEFAULT_SEEDS)).collect();
        for (index, figures) in slice.emitted.iter().zip(figures) {
            let last = *index + 1 == slice.tokens.len();
            // A compaction before the next row's forward belongs to that row's step.
            let here = after.filter(|event| last && !event.before_forward);
            let carried = slice.carried.as_ref().filter(|_| *index == 0);
            let token = &slice.tokens[*index];
            sink.step(self.step(token, slice.base + index, here.or(carried), figures))?;
            let stages: Vec<&Stage> = fed.stages.iter().filter(|s| s.row == *index).collect();
            if !stages.is_empty() {
                let sample = &self.recording.sample_id;
                let dump = row_dump(sink, sample, position(token), &stages);
                sink.dump(dump)?;
            }
            summary.rows += 1;
        }
        Ok(())
    }

    fn step(
        &self,
        token: &Token,
        rows_before: usize,
        event: Option<&Event>,
        figures: Figures,
    ) -> StepRow {
        let row = token.row.unwrap_or_default();
        let count = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        // A step begins with the rows before its own compaction, whichever side of the forward that is on.
        let before = event.filter(|event| event.before_forward);
        let after = event.filter(|event| !event.before_forward);
        let chosen = self.greedy && row + 1 >= self.recording.prompt_len;
        StepRow {
            sample_id: self.recording.sample_id.clone(),
            position: position(token),
            phase: self.recording.rows[row].phase,
            token_id: token.id,
            next_token: chosen.then_some(figures.argmax),
            rows_before: before.map_or(count(rows_before), |event| event.rows_before),
            rows_after: after.map_or(count(rows_before + 1), |event| event.rows_after),
            rows_bucketed: None,
            compaction: event.map(|event| event.ordinal),
            rope_index: Some(token.index),
            argmax: figures.argmax,
            top_ids: figures.top_ids,
            top_logits: figures.top_logits,
            logsumexp: Some(figures.logsumexp),
            top2_margin: figures.margin,
            finite: figures.finite,
            logits_hash: Some(figures.hash),
            rng_offset: None,
            uniform: None,
        }
    }
}

fn position(token: &Token) -> u32 {
    token.row.and_then(|row| u32::try_from(row).ok()).unwrap_or(u32::MAX)
}
