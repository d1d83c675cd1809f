//! The answer of `diff kld`.

use lockstep_traces::Verdict;
use serde::{Deserialize, Serialize};

use super::figures::KldFigures;

/// A mean with errors that take chunks, not tokens, as independent: tokens of one chunk share their context.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ChunkMean {
    /// The mean over all tokens.
    pub value: f64,
    /// Standard error of the mean of the chunks' means: sqrt(var / (chunks - 1)).
    pub chunk_error: f64,
    /// 95 % interval of the mean, chunks drawn with replacement.
    pub chunk_interval: (f64, f64),
}

/// Figures by chunk; `None` for fewer than two chunks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ByChunk {
    /// Chunks.
    pub chunks: u64,
    /// KL(base || target), nats.
    pub kld: Option<ChunkMean>,
    /// ln(PPL(Q)/PPL(base)).
    pub ln_ratio: Option<ChunkMean>,
    /// Δp, a share of 1.
    pub delta_p: Option<ChunkMean>,
    /// Share of rows with one highest id.
    pub same_top: Option<ChunkMean>,
}

/// What the codes can hide.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Coding {
    /// Largest error of a stored log-probability of the base, nats.
    pub value_error: f64,
    /// Same of the target, where it is a KLD file too.
    pub target_value_error: Option<f64>,
    /// Widest row of the base, nats; llama.cpp cuts at 16, ik_llama.cpp at 24.
    pub range: f64,
    /// Bound on the error of the mean KL by the rounding to codes.
    pub kld_rounding: f64,
    /// Bound on its error by base entries that were cut below the range or skipped at -16.
    pub kld_tail: f64,
    /// Mean base mass on target entries that were cut: KL is a lower bound there.
    pub target_cut_mass: f64,
}

/// A row, and its entry that differs most.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct KldPlace {
    /// Chunk, from 1 as llama-perplexity counts.
    pub chunk: u64,
    /// Position in the chunk, from 0: the row after this token was fed.
    pub position: u64,
    /// KL of the row, nats.
    pub kld: f64,
    /// Token id with the largest difference.
    pub token_id: u64,
    /// Its log-probability, base.
    pub base: f64,
    /// Its log-probability, target.
    pub target: f64,
    /// Nats by which the difference goes beyond what codes can hide.
    pub beyond: f64,
    /// Entries of the row that do.
    pub entries: u64,
}

/// A token that is not the same on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherToken {
    /// Chunk, from 1.
    pub chunk: u64,
    /// Position in the chunk, from 0.
    pub position: u64,
    /// Base.
    pub base: u32,
    /// Target.
    pub target: u32,
}

/// The figures of one chunk by itself.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ChunkRow {
    /// Chunk, from 1.
    pub chunk: u64,
    /// Mean KL, nats.
    pub kld: f64,
    /// ln(PPL(Q)/PPL(base)); `null` without tokens.
    pub ln_ratio: Option<f64>,
    /// Mean Δp; `null` without tokens.
    pub delta_p: Option<f64>,
    /// Share of rows with one highest id.
    pub same_top: f64,
}

/// Comparison of a target against a base.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KldReport {
    /// Base as given.
    pub base: String,
    /// Target as given.
    pub target: String,
    /// `KL(base || target)`.
    pub direction: String,
    /// Tokens of a chunk; 0 where rows are not in chunks.
    pub n_ctx: u64,
    /// Vocabulary.
    pub n_vocab: u64,
    /// Chunks compared.
    pub chunks: u64,
    /// llama-perplexity's figures; `null` where tokens differ and nothing was compared.
    pub figures: Option<KldFigures>,
    /// Errors by chunk.
    pub by_chunk: Option<ByChunk>,
    /// What the codes can hide.
    pub coding: Coding,
    /// Rows that differ beyond what the codes can hide.
    pub different_rows: u64,
    /// Rows of the target with NaN or +inf.
    pub non_finite_rows: u64,
    /// The first of these rows.
    pub first: Option<KldPlace>,
    /// The one with the largest difference of an entry.
    pub worst: Option<KldPlace>,
    /// First token that differs.
    pub other_token: Option<OtherToken>,
    /// Each chunk by itself.
    pub by_chunks: Vec<ChunkRow>,
    /// Outcome.
    pub verdict: Verdict,
    /// One line.
    pub summary: String,
    /// What the evidence does not show, one line each.
    pub limits: Vec<String>,
}
