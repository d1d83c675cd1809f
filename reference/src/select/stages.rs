//! What a selection yields: every stage and the keep-sets.

/// A rectangular array in f64, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    /// Shape; the last axis is the score column.
    pub shape: Vec<usize>,
    /// Values. NaN where a head is not sampled.
    pub values: Vec<f64>,
}

impl Grid {
    pub(crate) fn new(leading: &[usize], rows: Vec<Vec<f64>>) -> Self {
        let cols = rows.first().map_or(0, Vec::len);
        let mut shape = leading.to_vec();
        shape.push(cols);
        Self { shape, values: rows.concat() }
    }

    /// Columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(0)
    }

    /// Rows along the last axis.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[f64]> {
        self.values.chunks_exact(self.cols().max(1))
    }

    /// One row; empty where there is none.
    #[must_use]
    pub fn row(&self, index: usize) -> &[f64] {
        let cols = self.cols();
        index
            .checked_mul(cols)
            .and_then(|start| self.values.get(start..start + cols))
            .unwrap_or_default()
    }
}

/// Scores by stage. Column `j` is cache row `score_row_offset + j`.
#[derive(Debug, Clone, PartialEq)]
pub struct Stages {
    /// Layers that are scored.
    pub score_layers: Vec<u32>,
    /// Heads that are scored: attention heads, or KV heads where statistics are averaged over the group.
    pub score_heads: Vec<u32>,
    /// First scored cache row.
    pub score_row_offset: usize,
    /// Before normalisation, `[score_layers, score_heads, cols]`.
    pub raw: Grid,
    /// After normalisation (and noise), shape of `raw`; `[score_layers, kv_heads, cols]` where the group is reduced first.
    pub z: Grid,
    /// After the reduction over the GQA group, `[score_layers, kv_heads, cols]`.
    pub group: Grid,
    /// Input of the ranking, guards as +inf: `[kv_heads, cols]`, `[layers, kv_heads, cols]`, `[layers, cols]` or `[cols]`.
    pub final_scores: Grid,
}

/// Kept rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeepSet {
    /// Leading axes: `[kv_heads]`, `[layers, kv_heads]`, `[layers]` or `[]`.
    pub leading: Vec<usize>,
    /// One list of cache rows for each combination, in the order of the rows after the compaction.
    pub sets: Vec<Vec<usize>>,
}

impl KeepSet {
    /// One list for everything.
    #[must_use]
    pub fn shared(rows: Vec<usize>) -> Self {
        Self { leading: Vec::new(), sets: vec![rows] }
    }

    /// The set that one head of one layer uses.
    #[must_use]
    pub fn of(&self, layer: usize, kv_head: usize, kv_heads: usize, per_layer: bool) -> &[usize] {
        let index = match (self.leading.len(), per_layer) {
            (0, _) => 0,
            (1, true) => layer,
            (1, false) => kv_head,
            _ => layer * kv_heads + kv_head,
        };
        self.sets.get(index).map_or(&[], Vec::as_slice)
    }
}

/// How the rule set dealt with the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All rows stay.
    Identity,
    /// Rows were fixed without ranking.
    Fixed {
        /// Why.
        why: &'static str,
    },
    /// No compaction.
    Refused {
        /// Why.
        why: &'static str,
    },
    /// Rows were ranked.
    Ranked,
}

/// A selection with all that led to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// What was done.
    pub outcome: Outcome,
    /// Kept rows; `None` where the rule set refused.
    pub keep: Option<KeepSet>,
    /// Rows kept outright (KV head 0), ascending.
    pub protected: Vec<usize>,
    /// Rows ranked (KV head 0), ascending.
    pub candidates: Vec<usize>,
    /// Scores by stage, where rows were ranked.
    pub stages: Option<Stages>,
}
