//! What can be wrong with a policy's settings, statistics or input.

/// A selection that cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SelectError {
    /// A setting that contradicts the rule set, another setting or arithmetic.
    #[error("policy setting `{field}`: {why}")]
    Setting {
        /// Field of the policy specification.
        field: &'static str,
        /// What is wrong and what to do.
        why: String,
    },
    /// Statistics that do not fit the model or the rule set.
    #[error("selector statistics: {0}")]
    Stats(String),
    /// A cache view whose parts disagree.
    #[error("selector input: {0}")]
    Input(String),
    /// A score is no number, so that no ranking is defined.
    #[error(
        "score of cache row {row} is not a number (layer {layer}, head {head}); the cached keys or the statistics hold NaN or infinity"
    )]
    NotANumber {
        /// Model layer.
        layer: u32,
        /// Attention head, or KV head where statistics are averaged over the group.
        head: u32,
        /// Cache row.
        row: usize,
    },
    /// A planted fault that these settings cannot show.
    #[error("planted fault `{slug}` cannot show here: {why}")]
    Plant {
        /// Slug of the cause.
        slug: &'static str,
        /// Why not, and which settings show it.
        why: String,
    },
}

impl SelectError {
    pub(crate) fn setting(field: &'static str, why: impl Into<String>) -> Self {
        Self::Setting { field, why: why.into() }
    }
}
