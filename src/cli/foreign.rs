//! Arguments of `import` and `export`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use lockstep_traces::tensor_files::RawSpec;

use crate::exit::usage;

/// Layouts that become a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImportKind {
    /// Step trace of TensorRT-Model-Connect (JSON lines), and the traces that look like it.
    TrtmcTrace,
    /// Keep dump of TensorRT-Model-Connect (JSON) with its `.bin` files.
    TrtmcDump,
    /// Parquet file of step rows: `steps.parquet` of a run, or a table with such columns.
    ParquetTrace,
    /// KLD base file of llama-perplexity (`--save-all-logits`).
    LlamaKld,
    /// GGUF file of llama-results: tokens and their logits.
    LlamaResults,
    /// One row of f32 logits without a header, of llama-debug or a model-conversion script.
    LlamaDebug,
    /// Chat responses of the OpenAI API with log-probabilities.
    OpenaiChat,
    /// Completions responses of the OpenAI API with log-probabilities.
    OpenaiCompletions,
    /// Responses of vLLM, with the prompt's log-probabilities.
    Vllm,
    /// SGLang's own responses with log-probabilities.
    SglangLogprobs,
    /// llama-server's own responses with log-probabilities.
    LlamaServer,
    /// A folder of miles' `rank_*.json`, or one of them.
    MilesLogprobs,
    /// Recording of a live engine by the Python package `lockstep_trace` (folder).
    LockstepTrace,
    /// Output rows of TensorRT-Model-Connect's benchmark, of any date, and rows that look like them.
    TrtmcRows,
    /// Comparison summary of its Hugging Face driver; one method becomes a run (`--method`).
    TrtmcSummary,
    /// Engine bundle: header, section hashes, ladder, declared policy.
    TrtmcBundle,
    /// Ladder of profiles: a `config.json` with the bundle builder's keys.
    TrtmcLadder,
    /// Calibration statistics, `.pt` or safetensors.
    TrtmcStats,
    /// Effective configuration.
    TrtmcConfig,
    /// Samples of lm-eval (`samples_<task>_<time>.jsonl`).
    LmEval,
    /// Tensor dump of SGLang: a folder of `k=v___k=v.pt`, or one such file.
    SglangDump,
    /// Polygraphy run results (JSON).
    Polygraphy,
    /// Debug tensors of TensorRT-LLM: a tree of `iteration_N` folders of `.npy`.
    TrtllmDebug,
    /// Dump of msProbe: `dump.json` with its tensors.
    Msprobe,
    /// Any tensor file or folder of them (npy, npz, pt, safetensors, JSON, raw with `--raw`).
    Tensors,
}

/// What log-probabilities went through before they were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ValuesArg {
    /// Nothing: log-softmax of the model's logits.
    Raw,
    /// Temperature or filters.
    Processed,
}

/// Whose labels the tokens of a `rank_*.json` are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LabelsArg {
    /// The row's own token.
    Fed,
    /// The token after the row.
    Next,
}

/// Layouts in which a run is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportKind {
    /// Step trace of TensorRT-Model-Connect (JSON lines).
    TrtmcTrace,
    /// Keep dump of TensorRT-Model-Connect (JSON) with its `.bin` files.
    TrtmcDump,
    /// KLD base file of llama-perplexity, from a run with the logits of every row.
    LlamaKld,
    /// Chat responses of the OpenAI API, one a line; completions only.
    OpenaiChat,
    /// Completions responses of the OpenAI API, one a line; the prompt is echoed where the run has its rows.
    OpenaiCompletions,
    /// Responses of vLLM with ids for texts and the prompt's log-probabilities, one a line.
    Vllm,
    /// Neutral trace (JSON lines).
    NeutralJsonl,
    /// CSV, one line a row, the list in columns top1_id, top1_value, ...
    Csv,
    /// Samples of lm-eval (JSON lines).
    LmEval,
    /// JUnit XML: of a run's answers, or of the answer of check, audit, diff or bench score (`--format json`).
    Junit,
    /// Timeline as Chrome trace events, for ui.perfetto.dev.
    Perfetto,
    /// The dumps of a sample or of the run as a folder of `.npy` files, and `export.json`.
    Npy,
    /// The dumps of a sample or of the run in one safetensors file.
    Safetensors,
}

/// `import`.
#[derive(Debug, Args)]
#[command(override_usage = "lockstep import [OPTIONS] --out <OUT> [KIND] <PATH>")]
pub(crate) struct ImportArgs {
    /// Layout of PATH; guessed from its content when not given.
    #[arg(value_name = "KIND", help = kinds_help())]
    first: PathBuf,
    /// File or folder to read.
    #[arg(value_name = "PATH")]
    second: Option<PathBuf>,
    /// Run folder to write.
    #[arg(long)]
    pub(crate) out: PathBuf,
    /// Prompt length, where the source does not say.
    #[arg(long)]
    pub(crate) prompt_len: Option<u32>,
    /// Divide length of the run, which a keep dump does not hold.
    #[arg(long)]
    pub(crate) divide_length: Option<u32>,
    /// Values kept of each row, where the source has the whole vocabulary.
    #[arg(long, value_name = "K", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub(crate) top_k: u32,
    /// Entries of a row, where the file has no header.
    #[arg(long, value_name = "N", conflicts_with = "model")]
    pub(crate) vocab: Option<u32>,
    /// Model folder or GGUF file: its tokenizer finds the ids of tokens that a source names by text, its configuration tells the entries
    /// of a row.
    #[arg(long)]
    pub(crate) model: Option<PathBuf>,
    /// Token ids of the prompt (JSON list or numbers), where the source holds one prompt and not its ids.
    #[arg(long)]
    pub(crate) prompt_ids: Option<PathBuf>,
    /// What log-probabilities went through, where the source does not say.
    #[arg(long, value_enum)]
    pub(crate) values: Option<ValuesArg>,
    /// Whose labels the tokens of miles-logprobs are.
    #[arg(long, value_enum)]
    pub(crate) labels: Option<LabelsArg>,
    /// Filter of lm-eval whose answers the samples get; without it the first one of the file.
    #[arg(long, value_name = "NAME")]
    pub(crate) filter: Option<String>,
    /// Method of a comparison summary: dense, tri or hf.
    #[arg(long, value_name = "NAME")]
    pub(crate) method: Option<String>,
    /// Tensors: names and places in the run (YAML: rules `names`, `to`, `position` or `compaction`, ...).
    #[arg(long)]
    pub(crate) map: Option<PathBuf>,
    /// Tensors: type and shape of files without a header, `[FILES=]TYPE:SHAPE[:big][:+BYTES]`; may be given several times.
    #[arg(long, value_name = "SPEC")]
    pub(crate) raw: Vec<RawSpec>,
}

impl ImportArgs {
    /// The layout as given, and the path.
    pub(crate) fn what(&self) -> anyhow::Result<(Option<ImportKind>, &PathBuf)> {
        let Some(path) = &self.second else { return Ok((None, &self.first)) };
        let name = self.first.to_string_lossy();
        let kind = ImportKind::from_str(&name, false).map_err(|_| {
            usage(format!("no layout `{name}`; there are {}", names::<ImportKind>().join(", ")))
        })?;
        Ok((Some(kind), path))
    }
}

fn names<K: ValueEnum>() -> Vec<String> {
    K::value_variants()
        .iter()
        .filter_map(ValueEnum::to_possible_value)
        .map(|value| value.get_name().to_owned())
        .collect()
}

fn kinds_help() -> String {
    format!(
        "Layout of PATH; guessed from its content when not given. One of {}",
        names::<ImportKind>().join(", ")
    )
}

/// `export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Layout to write.
    #[arg(value_enum)]
    pub(crate) kind: ExportKind,
    /// Run to read; for junit also the answer of a verb.
    pub(crate) run: PathBuf,
    /// File to write (for a dump also the prefix of its `.bin` files).
    #[arg(long)]
    pub(crate) out: PathBuf,
    /// Sample, where the run holds several.
    #[arg(long)]
    pub(crate) sample: Option<String>,
    /// Compaction to write (1-based).
    #[arg(long, default_value_t = 1)]
    pub(crate) ordinal: u32,
    /// Print six significant digits, as that runtime does.
    #[arg(long)]
    pub(crate) digits6: bool,
    /// Round row counts up to a multiple of this.
    #[arg(long)]
    pub(crate) bucket_rows: Option<u32>,
    /// Tokens of a chunk of a KLD base file: samples are cut into windows of this length.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(3..=1 << 24))]
    pub(crate) chunk_tokens: Option<u32>,
    /// Model folder or GGUF file whose tokenizer gives texts, for layouts that name tokens by text.
    #[arg(long)]
    pub(crate) model: Option<PathBuf>,
}
