//! Which rows stay in the cache.

use crate::ReferenceError;

/// Keep-sets of one compaction: per layer and KV head the rows that stay, in the order in which they stand afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeepSets {
    layers: usize,
    heads: usize,
    rows: usize,
    indices: Vec<u32>,
}

impl KeepSets {
    /// `indices` is `[layers, heads, rows]`, row-major; `layers` and `heads` are 1 where one set serves all of them.
    ///
    /// # Errors
    /// No rows at all, or a length that contradicts the sizes.
    pub fn new(
        layers: usize,
        heads: usize,
        rows: usize,
        indices: Vec<u32>,
    ) -> Result<Self, ReferenceError> {
        let expected = layers.checked_mul(heads).and_then(|sets| sets.checked_mul(rows));
        if indices.is_empty() || expected != Some(indices.len()) {
            return Err(ReferenceError::input(format!(
                "keep-sets of {layers} layers x {heads} heads x {rows} rows need as many indices, not {}",
                indices.len()
            )));
        }
        Ok(Self { layers, heads, rows, indices })
    }

    /// Rows of every set.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Layers that have a set of their own; 1 where all share.
    #[must_use]
    pub const fn layers(&self) -> usize {
        self.layers
    }

    /// Heads that have a set of their own; 1 where all share.
    #[must_use]
    pub const fn heads(&self) -> usize {
        self.heads
    }

    /// The set of one layer and KV head.
    #[must_use]
    pub fn of(&self, layer: usize, head: usize) -> &[u32] {
        let layer = if self.layers == 1 { 0 } else { layer };
        let head = if self.heads == 1 { 0 } else { head };
        let start = (layer * self.heads + head) * self.rows;
        self.indices.get(start..start + self.rows).unwrap_or(&[])
    }

    /// Checks that the sets fit a cache: its layers and heads, every index below `rows_before`, none twice.
    ///
    /// # Errors
    /// Names the first set and index that do not fit.
    pub fn check(
        &self,
        layers: usize,
        heads: usize,
        rows_before: usize,
    ) -> Result<(), ReferenceError> {
        if (self.layers != 1 && self.layers != layers) || (self.heads != 1 && self.heads != heads) {
            return Err(ReferenceError::input(format!(
                "keep-sets for {} layers and {} KV heads; the model has {layers} and {heads}",
                self.layers, self.heads
            )));
        }
        let mut seen = vec![0usize; rows_before];
        for (set, rows) in self.indices.chunks_exact(self.rows).enumerate() {
            let (layer, head) = (set / self.heads, set % self.heads);
            for row in rows {
                let Some(mark) = seen.get_mut(*row as usize) else {
                    return Err(ReferenceError::input(format!(
                        "keep-set of layer {layer}, KV head {head} names row {row} of {rows_before}"
                    )));
                };
                if *mark == set + 1 {
                    return Err(ReferenceError::input(format!(
                        "keep-set of layer {layer}, KV head {head} names row {row} twice"
                    )));
                }
                *mark = set + 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_set_serves_every_layer_and_head() {
        let shared = KeepSets::new(1, 1, 2, vec![0, 3]).unwrap();
        assert_eq!(shared.of(7, 1), [0, 3]);
        let per_head = KeepSets::new(1, 2, 2, vec![0, 3, 1, 2]).unwrap();
        assert_eq!((per_head.of(5, 0), per_head.of(5, 1)), (&[0, 3][..], &[1, 2][..]));
        let full = KeepSets::new(2, 2, 1, vec![4, 5, 6, 7]).unwrap();
        assert_eq!(full.of(1, 0), [6]);
    }

    #[test]
    fn sets_that_do_not_fit_are_refused() {
        assert!(KeepSets::new(1, 2, 2, vec![0, 1, 2]).is_err());
        assert!(KeepSets::new(1, 1, 0, vec![]).is_err());
        let keep = KeepSets::new(1, 2, 2, vec![0, 3, 1, 1]).unwrap();
        assert!(keep.check(4, 2, 4).unwrap_err().to_string().contains("row 1 twice"));
        assert!(keep.check(4, 2, 3).unwrap_err().to_string().contains("row 3 of 3"));
        assert!(keep.check(4, 8, 4).unwrap_err().to_string().contains("has 4 and 8"));
        let good = KeepSets::new(1, 2, 2, vec![0, 3, 1, 2]).unwrap();
        assert!(good.check(4, 2, 4).is_ok());
    }
}
