//! Causal softmax.

use candle_core::{CpuStorage, InplaceOp1, Layout, Tensor};

use super::super::Rounding;
use super::super::parallel::for_blocks;
use super::Result;
use super::real::{Real, block_of, lanes};

/// Which keys the queries of a block see.
#[derive(Debug, Clone, Copy)]
pub(in crate::forward) struct Span {
    /// Queries of each group.
    pub(in crate::forward) queries: usize,
    /// Keys in front of and at the first query; each further query has one more.
    pub(in crate::forward) visible: usize,
    /// Of those, the last ones that are seen; all where `None`.
    pub(in crate::forward) window: Option<usize>,
}

struct CausalSoftmax {
    span: Span,
    scale: f64,
    rounding: Rounding,
}

impl CausalSoftmax {
    fn rows<T: Real>(&self, scores: &mut [T], keys: usize) {
        let scale = T::of(self.scale);
        let r = self.rounding;
        for_blocks(scores, block_of(keys), |start, block| {
            for (offset, row) in block.chunks_exact_mut(keys).enumerate() {
                let Span { queries, visible, window } = self.span;
                let query = (start / keys + offset) % queries;
                let (past, future) = row.split_at_mut((visible + query).min(keys));
                future.fill(T::default());
                let forgotten = window.map_or(0, |window| past.len().saturating_sub(window));
                let (gone, live) = past.split_at_mut(forgotten);
                gone.fill(T::default());
                let mut highest = T::LOWEST;
                for value in live.iter_mut() {
                    *value = (value.rounded(r) * scale).rounded(r);
                    highest = if *value > highest { *value } else { highest };
                }
                for value in live.iter_mut() {
                    *value = (*value - highest).exp();
                }
                let total = lanes(live.iter().copied());
                for value in live.iter_mut() {
                    *value = (*value / total).rounded(r);
                }
            }
        });
    }
}

impl InplaceOp1 for CausalSoftmax {
    fn name(&self) -> &'static str {
        "reference-causal-softmax"
    }
    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let keys = layout.dims().last().copied().unwrap_or(0);
        let Some((start, end)) = layout.contiguous_offsets() else {
            return Err(candle_core::Error::RequiresContiguous { op: self.name() }.bt());
        };
        match storage {
            CpuStorage::F32(values) => self.rows(&mut values[start..end], keys),
            CpuStorage::F64(values) => self.rows(&mut values[start..end], keys),
            _ => candle_core::bail!("{} needs f32 or f64", self.name()),
        }
        Ok(())
    }
}

/// Turns raw scores `[groups * queries, keys]` into probabilities, in place. Query `q` of each group sees the first
/// `visible + q` keys, or the last `window` of them; the rest become 0. Rounded: the score, the scaled score, the probability.
pub(in crate::forward) fn causal_softmax(
    scores: &Tensor,
    span: Span,
    scale: f64,
    rounding: Rounding,
) -> Result<()> {
    scores.inplace_op1(&CausalSoftmax { span, scale, rounding })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{near, tensor};
    use super::*;

    #[test]
    fn softmax_sees_the_past_and_nothing_else() {
        let scores = tensor(&[0.0, 9.0, 9.0, 0.0, 2f64.ln(), 9.0], (2, 3));
        let span = Span { queries: 2, visible: 1, window: None };
        causal_softmax(&scores, span, 1.0, Rounding::None).unwrap();
        near(&scores, &[1.0, 0.0, 0.0, 1.0 / 3.0, 2.0 / 3.0, 0.0]);
    }

    #[test]
    fn a_window_forgets_what_is_older() {
        let scores = tensor(&[5.0, 0.0, 2f64.ln(), 9.0, 5.0, 5.0, 0.0, 0.0], (2, 4));
        let span = Span { queries: 2, visible: 3, window: Some(2) };
        causal_softmax(&scores, span, 1.0, Rounding::None).unwrap();
        near(&scores, &[0.0, 1.0 / 3.0, 2.0 / 3.0, 0.0, 0.0, 0.0, 0.5, 0.5]);
    }
}
