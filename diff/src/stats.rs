//! Statistics of comparisons: distributions, divergences, perplexity and paired tests.

mod divergence;
mod paired;
mod quantile;

pub use divergence::{KlRow, TopLogits, exact_kl, softmax_logsumexp, topk_kl, topk_kl_both};
pub use paired::{
    Bootstrap, Pair, Perplexities, bootstrap_interval, mcnemar_exact, perplexity, smallest_effect,
};
pub(crate) use quantile::count;
pub use quantile::quantiles;
