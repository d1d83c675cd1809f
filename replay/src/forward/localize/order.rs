//! Stages in order of computation.

use lockstep_traces::dump::LAYER_STAGES;

/// A stage of the model. Ordered as computed: embedding, layers stage by stage, final norm, logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) layer: Option<usize>,
    pub(super) name: &'static str,
}

impl Slot {
    /// Every stage of a model.
    pub(super) fn all(layers: usize) -> impl Iterator<Item = Self> {
        let inner = (0..layers).flat_map(|layer| {
            LAYER_STAGES.iter().map(move |name| Self { layer: Some(layer), name })
        });
        let outer = |name| Self { layer: None, name };
        std::iter::once(outer("embed")).chain(inner).chain([outer("final_norm"), outer("logits")])
    }

    /// Its tensor in a step dump.
    pub(super) fn tensor(self) -> String {
        match self.layer {
            Some(layer) => format!("hidden.layer{layer:02}.{}", self.name),
            None if self.name == "logits" => self.name.to_owned(),
            None => format!("hidden.{}", self.name),
        }
    }

    /// Its place in the order.
    pub(super) fn rank(self, layers: usize) -> usize {
        let stages = LAYER_STAGES.len();
        match (self.layer, self.name) {
            (Some(layer), "pre.k") => 3 + layers * stages + 2 * layer,
            (Some(layer), "pre.v") => 4 + layers * stages + 2 * layer,
            (Some(layer), name) => {
                let stage = LAYER_STAGES.iter().position(|stage| *stage == name);
                1 + layer * stages + stage.unwrap_or(0)
            }
            (None, "embed") => 0,
            (None, "final_norm") => 1 + layers * stages,
            (None, _) => 2 + layers * stages,
        }
    }

    /// Rows of the cache before a compaction: after every stage of the row before it.
    pub(super) fn cache(layer: usize, name: &'static str) -> Self {
        Self { layer: Some(layer), name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_count_the_stages_in_order() {
        for (place, slot) in Slot::all(3).enumerate() {
            assert_eq!(slot.rank(3), place, "{slot:?}");
        }
        let last = Slot { layer: None, name: "logits" }.rank(3);
        assert_eq!(Slot::cache(0, "pre.k").rank(3), last + 1);
        assert_eq!(Slot::cache(1, "pre.v").rank(3), last + 4);
        assert_eq!(Slot { layer: Some(2), name: "q_rope" }.tensor(), "hidden.layer02.q_rope");
        assert_eq!(Slot { layer: None, name: "logits" }.tensor(), "logits");
    }
}
