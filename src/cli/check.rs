//! Arguments of the verbs that compare and check.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use lockstep_traces::{DType, RuleSet};

/// `replay`.
#[derive(Debug, Subcommand)]
pub(crate) enum ReplayCommand {
    /// Teacher-forced forward pass on the reference: offsets, drift against the control, first differing stage.
    Forward(Box<ForwardArgs>),
    /// Scores and keep-sets recomputed from the dumped caches, with the matrix of hypotheses.
    Selector(SelectorArgs),
    /// Tokens drawn again from the recorded logits under every known sampler: which one made them.
    Sampler(super::SamplerArgs),
}

/// What the replayed cache does at a recorded compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReplayPolicy {
    /// Nothing: keeps every row.
    Dense,
    /// Applies the recorded keep-sets: isolates the forward pass.
    Recorded,
    /// Selects by the reference's own rules: tests everything.
    Own,
}

/// `replay forward`.
#[derive(Debug, Args)]
pub(crate) struct ForwardArgs {
    /// Recorded run.
    pub(crate) run: PathBuf,
    /// Model folder or GGUF file.
    #[arg(long)]
    pub(crate) model: PathBuf,
    /// What the cache does at a recorded compaction.
    #[arg(long, value_enum)]
    pub(crate) policy: ReplayPolicy,
    /// Precision: f32, f64, or bf16 and f16 with weights and activations rounded; the run's own without it.
    #[arg(long)]
    pub(crate) dtype: Option<DType>,
    /// Statistics for `own`.
    #[arg(long)]
    pub(crate) stats: Option<PathBuf>,
    /// Only these samples.
    #[arg(long, value_delimiter = ',')]
    pub(crate) sample: Vec<String>,
    /// Most rows of one chunk; a chunk never straddles a compaction.
    #[arg(long, default_value_t = 512)]
    pub(crate) chunk: usize,
    /// Run folder to write the replay to.
    #[arg(long)]
    pub(crate) out: PathBuf,
    /// Plant this mistake in the replay itself.
    #[arg(long, value_name = "FAULT")]
    pub(crate) plant: Option<String>,
}

/// `replay selector` and `check selector`.
#[derive(Debug, Args)]
pub(crate) struct SelectorArgs {
    /// Run with dumped compactions.
    pub(crate) run: PathBuf,
    /// Rule set to check against; the recorded one without it.
    #[arg(long, value_parser = rule_set)]
    pub(crate) rule_set: Option<RuleSet>,
    /// Query statistics that the run used.
    #[arg(long)]
    pub(crate) stats: Option<PathBuf>,
    /// Model folder or GGUF file, for the rotary frequencies.
    #[arg(long)]
    pub(crate) model: Option<PathBuf>,
    /// Only these samples.
    #[arg(long, value_delimiter = ',')]
    pub(crate) sample: Vec<String>,
    /// Only these compactions (1-based).
    #[arg(long, default_value = "all", value_name = "SET")]
    pub(crate) ordinals: lockstep_traces::Choice,
}

/// `check`.
#[derive(Debug, Subcommand)]
pub(crate) enum CheckCommand {
    /// Every row after a compaction equals the kept row before it, bit for bit, K and V.
    Gather(CheckArgs),
    /// Scores, z-scores, reductions and keep-sets against the selector's mathematics.
    Selector(SelectorArgs),
    /// Positions, RoPE indices, protected rows, trigger.
    Positions(PositionsArgs),
    /// Token ids against the tokenizer and the logits, and start tokens that stand twice.
    Tokens(super::CheckTokensArgs),
    /// Tokens against the claimed sampler, seed and filters; names what made them instead.
    Sampler(super::SamplerArgs),
    /// Two loose files with K and V: is one a legal compaction of the other, and does the next position fit?
    Compaction(super::CheckCompactionArgs),
    /// Context logits against the prompt that they belong to; rows may be missing at the front.
    Logits(super::CheckLogitsArgs),
    /// Rows of a cache after each step against a window, or against sinks and recent rows.
    ///
    /// {"window": W, "steps": [{"after_tokens": n, NAME: [position | null, ..], ..}, ..]} or {"sink": S, "recent": R, "start": [position,
    /// ..], "steps": [{"new": position | [position, ..], NAME: [..], ..}, ..]}: NAME is an implementation, its list the position in each
    /// slot, null for a slot that was never written. A mistake is named where it gives every state.
    States(super::FormArgs),
    /// Keys that each query sees: engines against a sliding window and against each other.
    ///
    /// {"sliding_window": W, "first_query": 0, ENGINE: [[key, ..], ..], ..}: list i belongs to query first_query + i; a row of true and false
    /// is a mask. The window counts the current key unless "window_counts_current" is false.
    Visible(super::FormArgs),
    /// Positions of cached cells after shifts and removals, and whether their keys were turned with them.
    ///
    /// {"cells": [position, ..], "theta": radians a position, "ops": [{"op": "add", "from_pos": p, "to_pos": q, "delta": d}, {"op": "rm", ..},
    /// {"op": "div", .., "factor": n}], "observed_pos..": [..], "observed_angle..": [..]}: ranges are [from_pos, to_pos), to the end
    /// without to_pos; lists go by cell, null for one that is gone. "angles_wrapped": true where angles are known up to whole turns.
    Shifts(super::FormArgs),
    /// Keep-sets under a trigonometric score of positions, and the time t that an engine took for it.
    ///
    /// SPEC: {"amp": [..], "omega": [..], "phase": [..], "budget": B}: a row at position p scores sum_f amp_f * cos(omega_f * (t - p) + phase_f),
    /// the B largest stay, ties go to the smaller p. KEEPS: [{"compaction": 1, "absolute_position": N, "rows": [position, ..], "kept":
    /// [position, ..]}, ..]. Each compaction is recomputed from the rows that the engine had.
    Keepsets(super::KeepsetsArgs),
    /// An engine's rotary tables against what configurations ask for: base, scaling, phase errors.
    Rope(super::RopeArgs),
}

/// `check positions`.
#[derive(Debug, Args)]
pub(crate) struct PositionsArgs {
    /// Run folder.
    pub(crate) run: PathBuf,
}

/// `check gather`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Run folder.
    pub(crate) run: PathBuf,
    /// Only these samples.
    #[arg(long, value_delimiter = ',')]
    pub(crate) sample: Vec<String>,
}

/// `diff`.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// Baseline: run folder or foreign trace.
    pub(crate) baseline: PathBuf,
    /// Target: run folder or foreign trace.
    pub(crate) target: PathBuf,
    /// Same-dtype control of the baseline, for a judgement of noise by ratio.
    #[arg(long, requires = "truth")]
    pub(crate) control: Option<PathBuf>,
    /// High-precision truth, for a judgement of noise by ratio.
    #[arg(long, requires = "control")]
    pub(crate) truth: Option<PathBuf>,
    /// Model folder, tokenizer.json or GGUF file, for token texts.
    #[arg(long)]
    pub(crate) model: Option<PathBuf>,
    /// Only these samples.
    #[arg(long, value_delimiter = ',')]
    pub(crate) sample: Vec<String>,
    /// Compare samples that bear different ids, in their order.
    #[arg(long)]
    pub(crate) pair_by_order: bool,
    /// Also write the report here.
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    /// Compare the effective configurations and nothing else.
    #[arg(long, conflicts_with_all = ["control", "truth", "model", "out", "ignore_audit"])]
    pub(crate) manifest: bool,
    // Not the group that `audit` and `report` take: clap calls an optional group that holds another absent, whatever was typed.
    /// Set an audit aside; the reason goes into the answer.
    #[arg(long, value_name = "AUDIT=REASON")]
    pub(crate) ignore_audit: Vec<String>,
}

/// Which side runs the vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Side {
    /// Both, reported apart.
    Both,
    /// The runtime under test.
    Runtime,
    /// The independent reference.
    Reference,
}

/// `conformance`.
#[derive(Debug, Args)]
pub(crate) struct ConformanceArgs {
    /// Folder with `cases.json` (or one above it).
    pub(crate) dir: PathBuf,
    /// Which side.
    #[arg(long, value_enum, default_value_t = Side::Both)]
    pub(crate) side: Side,
    /// Plant this mistake in the runtime's selector.
    #[arg(long, value_name = "FAULT")]
    pub(crate) plant: Option<String>,
}

fn rule_set(text: &str) -> Result<RuleSet, String> {
    serde_json::from_value(serde_json::Value::String(text.to_owned()))
        .map_err(|_| format!("`{text}` is none of trt, hf, vllm, sglang"))
}
