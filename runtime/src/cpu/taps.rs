//! What a forward pass hands out besides its logits.

use std::collections::BTreeMap;

use crate::calibrate::QuerySums;

/// What is wanted of one row of a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WantedRow {
    /// `hidden.embed` and `hidden.final_norm`.
    pub ends: bool,
    /// Layers whose stages are wanted.
    pub layers: Vec<u32>,
}

/// Hidden states of one row: tensor name (see `lockstep_traces::dump`) and values.
pub type NamedRows = Vec<(String, Vec<f32>)>;

/// Taps of one forward pass.
#[derive(Debug, Default)]
pub struct Taps<'a> {
    /// Wanted hidden states by row of the batch.
    pub wanted: BTreeMap<usize, WantedRow>,
    /// Those taken, by row, in the order computed.
    pub taken: BTreeMap<usize, NamedRows>,
    /// Sums over queries after QK norm and before RoPE.
    pub queries: Option<&'a mut QuerySums>,
}

impl Taps<'_> {
    /// A stage of one layer for all `rows`, `[rows, width]`.
    pub(super) fn layer(&mut self, layer: usize, stage: &str, values: &[f32], rows: usize) {
        let chosen = |wanted: &WantedRow| wanted.layers.contains(&(layer as u32));
        self.take(chosen, || format!("hidden.layer{layer:02}.{stage}"), values, rows);
    }

    /// A stage outside the layers.
    pub(super) fn end(&mut self, stage: &str, values: &[f32], rows: usize) {
        self.take(|wanted| wanted.ends, || format!("hidden.{stage}"), values, rows);
    }

    fn take(
        &mut self,
        chosen: impl Fn(&WantedRow) -> bool,
        name: impl Fn() -> String,
        values: &[f32],
        rows: usize,
    ) {
        for row in self.wanted.iter().filter(|(_, wanted)| chosen(wanted)).map(|(row, _)| row) {
            let width = values.len() / rows;
            let values = values[row * width..(row + 1) * width].to_vec();
            self.taken.entry(*row).or_default().push((name(), values));
        }
    }
}
