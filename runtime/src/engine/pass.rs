//! Forward passes of the run, on whichever backend.

use std::collections::BTreeMap;

use lockstep_traces::{Phase, Probe};
use rayon::prelude::*;

use super::backend::{Cache, Device};
use super::record::{Mark, Place, wanted};
use super::run::Runner;
use super::sequence::Sequence;
use super::summarize;
use crate::RuntimeError;
use crate::cpu::{CpuModel, Segment, Taps, WantedRow};
use crate::cuda::model::{DecodeRow, PrefillChunk, RowOut};

/// Results of one forward pass, by row.
#[derive(Debug)]
pub(super) struct Pass {
    vocab: usize,
    /// `[rows, vocab]` where a backend has them at hand.
    logits: Vec<f32>,
    pub(super) rows: Vec<RowOut>,
}

impl Pass {
    /// Logits of a row where they are here.
    pub(super) fn logits(&self, row: usize) -> Option<&[f32]> {
        let own = self.rows.get(row).and_then(|row| row.logits.as_deref());
        own.or_else(|| self.logits.get(row * self.vocab..(row + 1) * self.vocab))
    }
}

/// Prompt rows about to be fed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk<'t> {
    pub(super) tokens: &'t [u32],
    pub(super) position: u32,
    pub(super) rope_index: u32,
    /// A token is chosen from the last row.
    pub(super) draw: bool,
}

impl<'a> Runner<'a> {
    /// Prompt rows of one pass.
    pub(super) const fn most_prompt_rows(&self) -> usize {
        match &self.device {
            // Changes no number of any row, only the memory of the logits.
            Device::Cpu(_) => 64,
            Device::Cuda(_) => self.options.device.prefill_rows,
        }
    }

    /// Feeds a chunk of a prompt.
    pub(super) fn prompt_pass(
        &mut self,
        sequence: &mut Sequence<'a>,
        chunk: Chunk<'_>,
        places: &[Place<'_>],
    ) -> Result<Pass, RuntimeError> {
        let Chunk { tokens, position, rope_index, draw } = chunk;
        let wanted = wanted(self.sink, places, self.engine.hyper().layers);
        let want_logits = self.want_logits(places);
        let slot = sequence.slot;
        match (&mut self.device, &mut sequence.cache) {
            (Device::Cpu(model), Cache::Cpu(cache)) => {
                let (model, segment) = (*model, Segment { tokens, position, rope_index, cache });
                Ok(self.cpu(model, vec![segment], wanted, Phase::Prompt))
            }
            (Device::Cuda(run), Cache::Cuda(cache)) => {
                let mut chunk = PrefillChunk { slot, cache, tokens, position, rope_index, draw };
                let rows = run.session.prefill(&mut chunk, &wanted, &want_logits)?;
                Ok(Pass { vocab: self.engine.hyper().vocab_size, logits: Vec::new(), rows })
            }
            _ => unreachable!("caches are made by the run's own backend"),
        }
    }

    /// Feeds one token of each sequence.
    pub(super) fn decode_pass(
        &mut self,
        fed: &mut [(&mut Sequence<'a>, Mark)],
        places: &[Place<'_>],
    ) -> Result<Pass, RuntimeError> {
        let wanted = wanted(self.sink, places, self.engine.hyper().layers);
        if let Device::Cpu(model) = self.device {
            let segments = fed.iter_mut().filter_map(|(sequence, mark)| {
                let position = sequence.position();
                let Cache::Cpu(cache) = &mut sequence.cache else { return None };
                let tokens = std::slice::from_ref(&mark.token);
                Some(Segment { tokens, position, rope_index: mark.rope_index, cache })
            });
            return Ok(self.cpu(model, segments.collect(), wanted, Phase::Decode));
        }
        let want_logits = self.want_logits(places);
        let Device::Cuda(run) = &mut self.device else {
            unreachable!("there are two backends");
        };
        let mut rows: Vec<DecodeRow<'_>> = fed
            .iter_mut()
            .filter_map(|(sequence, mark)| {
                let (slot, position) = (sequence.slot, sequence.position());
                let Cache::Cuda(cache) = &mut sequence.cache else { return None };
                let (token, rope_index) = (mark.token, mark.rope_index);
                Some(DecodeRow { slot, cache, token, position, rope_index })
            })
            .collect();
        let rows = run.session.decode(&mut rows, &wanted, &want_logits)?;
        Ok(Pass { vocab: self.engine.hyper().vocab_size, logits: Vec::new(), rows })
    }

    fn want_logits(&self, places: &[Place<'_>]) -> Vec<bool> {
        let ask = |place: &Place<'_>| {
            let Place { sample_id, position } = *place;
            self.sink.wants(Probe::Logits { sample_id, position })
        };
        places.iter().map(ask).collect()
    }

    fn cpu(
        &mut self,
        model: &CpuModel,
        mut segments: Vec<Segment<'_>>,
        wanted: BTreeMap<usize, WantedRow>,
        phase: Phase,
    ) -> Pass {
        let rows = segments.iter().map(|segment| segment.tokens.len()).sum();
        let counted = self.queries.as_deref_mut().map(|queries| {
            let counts = phase == Phase::Decode || !queries.decode_only;
            queries.sums.counted = vec![counts; rows];
            &mut queries.sums
        });
        let mut taps = Taps { wanted, queries: counted, ..Taps::default() };
        let logits = model.forward(&self.arithmetic, &mut segments, &mut taps);
        let vocab = self.engine.hyper().vocab_size;
        let top_k = self.sink.top_k();
        let summaries: Vec<_> = if rows * vocab > 1 << 16 {
            logits.par_chunks(vocab).map(|row| summarize(row, top_k)).collect()
        } else {
            logits.chunks(vocab).map(|row| summarize(row, top_k)).collect()
        };
        let mut hidden = taps.taken;
        let rows = summaries
            .into_iter()
            .enumerate()
            .map(|(row, summary)| RowOut {
                summary,
                logits: None,
                hidden: hidden.remove(&row),
                drawn: None,
                rows_bucketed: None,
            })
            .collect();
        Pass { vocab, logits, rows }
    }
}
