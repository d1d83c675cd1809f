//! Values taken out of a forward pass while it runs.

use candle_core::Tensor;

use crate::ReferenceError;

/// Rows of a chunk whose stages are wanted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Watch<'a> {
    /// Indices into the chunk.
    pub rows: &'a [usize],
}

/// One stage of one row.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    /// Row of the chunk.
    pub row: usize,
    /// Layer; `None` for `embed`, `final_norm` and `logits`.
    pub layer: Option<usize>,
    /// Name as in `lockstep_traces::dump`.
    pub name: &'static str,
    /// Values, flattened; exact, also where they were computed in f32.
    pub values: Vec<f64>,
}

/// Collects stages of the watched rows.
#[derive(Debug)]
pub(super) struct Collector<'a> {
    rows: &'a [usize],
    pub(super) stages: Vec<Stage>,
}

impl<'a> Collector<'a> {
    pub(super) const fn new(watch: Watch<'a>) -> Self {
        Self { rows: watch.rows, stages: Vec::new() }
    }

    /// Takes the watched rows of `tensor`, whose axis `axis` counts the rows of the chunk.
    pub(super) fn take(
        &mut self,
        layer: Option<usize>,
        name: &'static str,
        tensor: &Tensor,
        axis: usize,
    ) -> Result<(), ReferenceError> {
        for row in self.rows {
            let values = tensor
                .narrow(axis, *row, 1)?
                .contiguous()?
                .flatten_all()?
                .to_dtype(candle_core::DType::F64)?
                .to_vec1()?;
            self.stages.push(Stage { row: *row, layer, name, values });
        }
        Ok(())
    }
}
