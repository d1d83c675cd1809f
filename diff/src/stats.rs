//! Statistics of comparisons: distributions, divergences, perplexity and paired tests.

mod divergence;
mod gate;
mod normal;
mod paired;
mod quantile;
mod scores;

pub use divergence::{KlRow, TopLogits, exact_kl, softmax_logsumexp, topk_kl, topk_kl_both};
pub use gate::{Gate, GateRule};
pub use normal::{Share, Z95, normal_cdf, normal_quantile, wilson};
pub use paired::{
    Bootstrap, Cluster, Pair, Perplexities, bootstrap_clusters, bootstrap_interval, mcnemar_exact,
    perplexity, smallest_effect,
};
pub(crate) use quantile::count;
pub use quantile::quantiles;
pub use scores::{Case, Names, PairedScores, SHOWN, Shown};
