//! Errors of sampling.

/// Settings that cannot be honoured, or logits that cannot be sampled from.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// A setting is out of its range or unknown.
    #[error("sampling option `{name}`: {what}")]
    Option {
        /// Option.
        name: &'static str,
        /// What is wrong and what is possible.
        what: String,
    },
    /// A logit is NaN or +inf.
    #[error(
        "logits row of draw {draw} is not finite: id {id} has {value}; look at the first row whose `finite` is false"
    )]
    NotFinite {
        /// Draw of the request, 0-based: draw 0 is made from the last prompt row.
        draw: u64,
        /// First such id.
        id: usize,
        /// Its logit.
        value: f32,
    },
    /// Every logit is -inf.
    #[error("logits row of draw {draw} has no finite logit: nothing can be drawn")]
    NothingLeft {
        /// Draw of the request, 0-based.
        draw: u64,
    },
    /// The row has another length than the vocabulary.
    #[error("logits row of draw {draw} has {found} values, the vocabulary {vocab}")]
    Length {
        /// Draw of the request, 0-based.
        draw: u64,
        /// Values in the row.
        found: usize,
        /// Vocabulary size.
        vocab: usize,
    },
}
