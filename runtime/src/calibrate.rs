//! Calibration statistics of a dense run (`TRIATTENTION.md` section 2): means over queries after QK norm, before RoPE.
//!
//! Sums are f64 over f32 activations in the order in which rows are computed (so that with one sample at a time the result is exactly
//! repeatable), the means are rounded to f32. Every layer and attention head is written.

use std::collections::BTreeMap;

use lockstep_traces::stats::QueryStats;
use lockstep_traces::{PolicyKind, TraceSink};

use crate::engine::{OnProgress, QueryCount};
use crate::{Engine, Request, RunOptions, RunSummary, RuntimeError};

/// Sums over the queries of the rows that count, in f64.
#[derive(Debug, Clone, PartialEq)]
pub struct QuerySums {
    layers: usize,
    heads: usize,
    head_dim: usize,
    /// By layer, head and frequency: sum of the first half, of the second half, of the modulus.
    real: Vec<f64>,
    imag: Vec<f64>,
    modulus: Vec<f64>,
    tokens: u64,
    /// Which rows of the next batch count.
    pub(crate) counted: Vec<bool>,
}

impl QuerySums {
    /// Zero sums.
    #[must_use]
    pub fn new(layers: usize, heads: usize, head_dim: usize) -> Self {
        let zero = vec![0.0; layers * heads * head_dim / 2];
        Self {
            layers,
            heads,
            head_dim,
            real: zero.clone(),
            imag: zero.clone(),
            modulus: zero,
            tokens: 0,
            counted: Vec::new(),
        }
    }

    /// Adds the queries of one layer, `[rows, heads, head_dim]`.
    pub(crate) fn add(&mut self, layer: usize, queries: &[f32], rows: usize) {
        let freqs = self.head_dim / 2;
        let width = self.heads * self.head_dim;
        for (row, counted) in (0..rows).zip(&self.counted) {
            if !counted {
                continue;
            }
            let queries = &queries[row * width..(row + 1) * width];
            for (head, query) in queries.chunks_exact(self.head_dim).enumerate() {
                let base = (layer * self.heads + head) * freqs;
                let (low, high) = query.split_at(freqs);
                for (freq, (x, y)) in low.iter().zip(high).enumerate() {
                    let (x, y) = (f64::from(*x), f64::from(*y));
                    self.real[base + freq] += x;
                    self.imag[base + freq] += y;
                    self.modulus[base + freq] += (x * x + y * y).sqrt();
                }
            }
            self.tokens += u64::from(layer == 0);
        }
    }

    /// Rows added.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Means of the sums; `None` where no row was added.
    fn means(&self) -> Option<[Vec<f32>; 3]> {
        if self.tokens == 0 {
            return None;
        }
        let count = self.tokens as f64;
        let mean = |sums: &[f64]| sums.iter().map(|sum| (sum / count) as f32).collect();
        Some([mean(&self.real), mean(&self.imag), mean(&self.modulus)])
    }
}

/// Which fed tokens count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CalibrationRows {
    /// Prompt and completion.
    All,
    /// Completion only.
    DecodeOnly,
}

impl Engine {
    /// Runs the requests densely, as `options` say otherwise, and takes the statistics of their queries. A completion that is known can be
    /// fed as [`RunOptions::teacher`].
    ///
    /// # Errors
    /// As [`Engine::run`]; a policy other than `dense`; no row that counts.
    pub fn calibrate(
        &self,
        requests: &[Request],
        options: &RunOptions,
        rows: CalibrationRows,
        sink: &mut dyn TraceSink,
        progress: &mut OnProgress<'_>,
    ) -> Result<(QueryStats, RunSummary), RuntimeError> {
        if options.policy.kind.is_some_and(|kind| kind != PolicyKind::Dense) {
            let what = "calibration wants every row in the cache; use `dense`".to_owned();
            return Err(RuntimeError::Option { name: "policy", what });
        }
        let hyper = self.hyper();
        let mut count = QueryCount {
            sums: QuerySums::new(hyper.layers, hyper.heads, hyper.head_dim),
            decode_only: rows == CalibrationRows::DecodeOnly,
        };
        let summary = self.run_with(requests, options, sink, progress, Some(&mut count))?;
        let stats = self.stats(&count.sums, rows).ok_or_else(|| RuntimeError::Option {
            name: "rows",
            what: "no token counted; give prompts, or completions longer than one token".to_owned(),
        })?;
        Ok((stats, summary))
    }

    fn stats(&self, sums: &QuerySums, rows: CalibrationRows) -> Option<QueryStats> {
        let hyper = self.hyper();
        let rotary = hyper.rotary();
        let [q_mean_real, q_mean_imag, q_abs_mean] = sums.means()?;
        let layers: Vec<u32> = (0..sums.layers as u32).collect();
        let heads: Vec<u32> = (0..sums.heads as u32).collect();
        let sampled =
            layers.iter().flat_map(|layer| heads.iter().map(move |head| (*layer, *head))).collect();
        let scope = if rows == CalibrationRows::All { "all" } else { "decode_only" };
        let metadata = BTreeMap::from([
            ("rope_style".to_owned(), "half".into()),
            ("rope_type".to_owned(), hyper.rope.name().into()),
            ("rope_theta".to_owned(), hyper.rope_theta.into()),
            ("head_dim".to_owned(), hyper.head_dim.into()),
            ("num_attention_heads".to_owned(), hyper.heads.into()),
            ("num_kv_heads".to_owned(), hyper.kv_heads.into()),
            ("num_layers".to_owned(), hyper.layers.into()),
            ("dtype".to_owned(), self.dtype().name().into()),
            ("query".to_owned(), "after QK norm, before RoPE".into()),
            ("tokens".to_owned(), sums.tokens.into()),
            ("token_scope".to_owned(), scope.into()),
        ]);
        let scaling = rotary.attention_scaling;
        Some(QueryStats {
            layers,
            heads,
            freqs: hyper.head_dim / 2,
            q_mean_real,
            q_mean_imag,
            q_abs_mean,
            freq_scale_sq: Some(vec![scaling * scaling; rotary.inv_freq.len()]),
            inv_freq: Some(rotary.inv_freq),
            sampled,
            metadata,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use lockstep_testkit as kit;
    use lockstep_traces::store::DumpFile;
    use lockstep_traces::{DType, MemorySink, PolicySpec};

    use super::*;
    use crate::LoadOptions;

    #[test]
    fn means_are_taken_over_the_rows_that_count() {
        // One layer, one head, width 4: frequencies pair elements 0, 2 and 1, 3.
        let mut sums = QuerySums::new(1, 1, 4);
        sums.counted = vec![true, false, true];
        sums.add(0, &[3.0, 1.0, 4.0, 0.0, 9.0, 9.0, 9.0, 9.0, -3.0, 5.0, 4.0, 12.0], 3);
        assert_eq!(sums.tokens(), 2);
        let [real, imag, modulus] = sums.means().unwrap();
        assert_eq!(real, [0.0, 3.0]);
        assert_eq!(imag, [4.0, 6.0]);
        assert_eq!(modulus, [5.0, 7.0]);
        assert_eq!(QuerySums::new(1, 1, 4).means(), None);
    }

    fn calibrate(
        samples: &[&str],
        rows: CalibrationRows,
        options: RunOptions,
    ) -> Result<QueryStats, RuntimeError> {
        let load = LoadOptions { dtype: Some(DType::F32), ..LoadOptions::default() };
        let engine = Engine::load(&kit::ledger(), &load).unwrap();
        let requests: Vec<Request> = samples
            .iter()
            .map(|name| Request {
                sample_id: (*name).to_owned(),
                prompt_ids: kit::task(name).prompt_ids,
                ..Request::default()
            })
            .collect();
        let teacher =
            samples.iter().map(|name| ((*name).to_owned(), kit::task(name).completion_ids));
        let options = RunOptions { teacher: teacher.collect(), ..options };
        let mut sink = MemorySink::default();
        let mut go = |_: &crate::Progress<'_>| ControlFlow::Continue(());
        engine.calibrate(&requests, &options, rows, &mut sink, &mut go).map(|(stats, _)| stats)
    }

    #[test]
    fn ledger_statistics_are_those_of_hooks_in_transformers() {
        for (samples, tag) in
            [(&["ledger_05"][..], "ledger_05"), (&["ledger_05", "ledger_09"], "ledger_05_09")]
        {
            for (rows, scope) in
                [(CalibrationRows::All, "all"), (CalibrationRows::DecodeOnly, "decode")]
            {
                let options = RunOptions { batch: 2, ..RunOptions::default() };
                let stats = calibrate(samples, rows, options).unwrap();
                let path = kit::data().join(format!("calibration/calib_{tag}_{scope}.safetensors"));
                let golden = DumpFile::open(&path).unwrap();
                assert_eq!(stats.metadata["tokens"].to_string(), golden.metadata()["tokens"]);
                assert_eq!(stats.sampled.len(), 32);
                for (name, found) in [
                    ("q_mean_real", &stats.q_mean_real),
                    ("q_mean_imag", &stats.q_mean_imag),
                    ("q_abs_mean", &stats.q_abs_mean),
                ] {
                    let wanted = golden.get(name).unwrap().to_f32().unwrap();
                    assert_eq!(found.len(), wanted.len());
                    let furthest = found
                        .iter()
                        .zip(&wanted)
                        .map(|(found, wanted)| (found - wanted).abs())
                        .fold(0.0, f32::max);
                    assert!(furthest < 1e-5, "{tag} {scope} {name}: {furthest}");
                }
            }
        }
    }

    #[test]
    fn a_compressing_policy_is_refused() {
        let policy = PolicySpec { kind: Some(PolicyKind::Recent), ..PolicySpec::default() };
        let options = RunOptions { policy, ..RunOptions::default() };
        let error = calibrate(&["ledger_05"], CalibrationRows::All, options).unwrap_err();
        assert!(matches!(error, RuntimeError::Option { name: "policy", .. }), "{error}");
    }
}
