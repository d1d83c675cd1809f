//! What a queued selection says, read from the device.

use super::selector::{Decision, Queued, SelectOps};
use crate::cuda::gpu::{Gpu, GpuError, View};
use crate::cuda::ops::gather::KeepShape;
use crate::select::parts::{Grid, Matrix, Rankings, Reduced, check_exact, not_a_number};
use crate::select::{KeepSet, SelectError, Selection, Stages};

/// A selection on the device that fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SelectFailure {
    /// The device.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The selection.
    #[error(transparent)]
    Select(#[from] SelectError),
}

impl SelectOps {
    /// Turns result words, as read after the selection, into the error that they stand for; the raw scores are read where there is one. The
    /// number of guarded rows otherwise.
    ///
    /// # Errors
    /// [`SelectError::NotANumber`], [`SelectError::Input`]; device errors.
    pub fn verdict(
        &self,
        gpu: &Gpu,
        queued: &Queued,
        words: &[u32],
    ) -> Result<usize, SelectFailure> {
        let Decision::Ranked { first_row, .. } = queued.decision else { return Ok(0) };
        let &[flags, guarded, largest, ..] = words else {
            return Err(GpuError::unsupported("fewer result words than a selection has").into());
        };
        check_exact(largest, queued.rows)?;
        if flags & 1 == 0 {
            return Ok(guarded as usize);
        }
        let parts = self.selector.parts();
        let raw = matrix(gpu, self.matrices().0, parts.heads.len(), queued.raw_columns)?;
        Err(not_a_number(parts.heads, &raw, queued.columns(), first_row).into())
    }

    /// The keep-set; `None` where the rule set declines. The host waits.
    ///
    /// # Errors
    /// Device errors.
    pub fn keep_set(&self, gpu: &Gpu, queued: &Queued) -> Result<Option<KeepSet>, GpuError> {
        if let Decision::Settled { keep, .. } = &queued.decision {
            return Ok(Some(keep.clone()));
        }
        let Some(keep) = &queued.keep else { return Ok(None) };
        let dims = self.selector.parts().dims;
        let lists = keep.shape.lists(dims);
        let rows = gpu.read(keep.rows.part(0..lists * keep.count)?)?;
        let lists = rows.chunks(keep.count.max(1)).map(<[u32]>::to_vec).collect();
        Ok(Some(keep.shape.keep_set(dims, lists)))
    }

    /// Scores by stage, as the selector itself gives them; `None` where nothing was scored. The host waits.
    ///
    /// # Errors
    /// Device errors.
    pub fn stages(&self, gpu: &Gpu, queued: &Queued) -> Result<Option<Stages>, GpuError> {
        let Decision::Ranked { first_row, .. } = queued.decision else { return Ok(None) };
        let (parts, columns) = (self.selector.parts(), queued.columns());
        let (raw, scores, ranked) = self.matrices();
        let mut raw = matrix(gpu, raw, parts.heads.len(), queued.raw_columns)?;
        let outside = queued.raw_columns - columns;
        raw.iter_mut().for_each(|row| drop(row.drain(..outside)));
        let mut first = matrix(gpu, scores, self.plan.rows, columns)?;
        let split = if self.plan.group_first { self.plan.group.len() } else { parts.heads.len() };
        let second = first.split_off(split);
        let (z, mut group) = if self.plan.group_first { (second, first) } else { (first, second) };
        // A group without sampled heads has no scores.
        for (row, (_, members)) in group.iter_mut().zip(&self.plan.group) {
            if members.is_empty() {
                row.clear();
            }
        }
        let lists = matrix(gpu, ranked, self.plan.rankings.len(), columns)?;
        let reduced = Reduced { z, group, rankings: self.rankings(lists) };
        let (rules, dims) = (self.selector.rules(), parts.dims);
        let grid = Grid { rules, dims, heads: parts.heads, layout: parts.layout };
        Ok(Some(grid.stages(&raw, &reduced, first_row)))
    }

    fn rankings(&self, lists: Matrix) -> Rankings {
        match self.shape {
            KeepShape::Shared => Rankings::Shared(lists.into_iter().next().unwrap_or_default()),
            KeepShape::PerHead => Rankings::PerHead(lists),
            KeepShape::PerLayer => Rankings::PerLayer(lists),
            KeepShape::PerLayerPerHead => {
                let kv_heads = self.selector.parts().dims.kv_heads.max(1);
                let layers = lists.chunks(kv_heads).map(<[Vec<f32>]>::to_vec);
                Rankings::PerLayerPerHead(layers.collect())
            }
        }
    }

    /// The whole answer, as [`crate::select::Selector::select`] gives it; the host waits.
    ///
    /// # Errors
    /// Those of [`SelectOps::verdict`].
    pub fn selection(
        &self,
        gpu: &Gpu,
        queued: &Queued,
        want_stages: bool,
    ) -> Result<Option<Selection>, SelectFailure> {
        let Some(keep) = self.keep_set(gpu, queued)? else { return Ok(None) };
        let narrow = |rows: usize| u32::try_from(rows).unwrap_or(u32::MAX);
        let (protected, round_start) = match queued.decision {
            Decision::Ranked { first_row, .. } => {
                let words = gpu.read(queued.words)?;
                let guarded = self.verdict(gpu, queued, &words)?;
                (first_row + guarded, Some(queued.round_start))
            }
            Decision::Settled { protected, .. } => (protected, None),
            Decision::Refused => return Ok(None),
        };
        Ok(Some(Selection {
            keep,
            protected: narrow(protected),
            candidates: narrow(queued.rows - protected),
            round_start,
            stages: if want_stages { self.stages(gpu, queued)? } else { None },
            seconds: queued.seconds,
        }))
    }
}

fn matrix(gpu: &Gpu, view: View<f32>, rows: usize, columns: usize) -> Result<Matrix, GpuError> {
    let values = gpu.read(view.part(0..rows * columns)?)?;
    Ok(values.chunks(columns.max(1)).map(<[f32]>::to_vec).collect())
}
