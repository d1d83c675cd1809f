//! Which layout a file or folder has: by its content, never by its name.

use std::path::Path;

use clap::ValueEnum as _;
use lockstep_traces::artifacts::{self, ArtifactKind};
use lockstep_traces::llamacpp;
use lockstep_traces::logprobs::LogprobKind;
use lockstep_traces::recorded;
use lockstep_traces::{lm_eval, trtmc};

use crate::cli::ImportKind;

/// Does a file or folder have this layout?
type Recogniser = fn(&Path) -> bool;

/// Recognisers, the narrowest first: a layout that another one contains comes before it.
const KNOWN: &[(ImportKind, Recogniser)] = &[
    (ImportKind::ParquetTrace, lockstep_traces::parquet_trace::is_parquet),
    (ImportKind::LlamaKld, llamacpp::is_kld),
    (ImportKind::LlamaResults, llamacpp::is_results),
    (ImportKind::LockstepTrace, recorded::is_recorded),
    (ImportKind::TrtmcDump, |path| is_artifact(path, ArtifactKind::KeepDump)),
    (ImportKind::TrtmcTrace, |path| is_artifact(path, ArtifactKind::Trace)),
    (ImportKind::SglangDump, |path| super::tensors::is(path, ImportKind::SglangDump)),
    (ImportKind::Polygraphy, |path| super::tensors::is(path, ImportKind::Polygraphy)),
    (ImportKind::TrtllmDebug, |path| super::tensors::is(path, ImportKind::TrtllmDebug)),
    (ImportKind::Msprobe, |path| super::tensors::is(path, ImportKind::Msprobe)),
    (ImportKind::MilesLogprobs, |path| is_logprobs(path, LogprobKind::Miles)),
    (ImportKind::LlamaServer, |path| is_logprobs(path, LogprobKind::LlamaServer)),
    (ImportKind::SglangLogprobs, |path| is_logprobs(path, LogprobKind::Sglang)),
    (ImportKind::Vllm, |path| is_logprobs(path, LogprobKind::Vllm)),
    (ImportKind::OpenaiCompletions, |path| is_logprobs(path, LogprobKind::OpenaiCompletions)),
    (ImportKind::OpenaiChat, |path| is_logprobs(path, LogprobKind::OpenaiChat)),
    (ImportKind::TrtmcRows, |path| is_artifact(path, ArtifactKind::Bench)),
    (ImportKind::TrtmcSummary, |path| is_artifact(path, ArtifactKind::Summary)),
    (ImportKind::TrtmcBundle, |path| is_artifact(path, ArtifactKind::Bundle)),
    (ImportKind::TrtmcConfig, |path| is_artifact(path, ArtifactKind::EffectiveConfig)),
    (ImportKind::LmEval, lm_eval::recognised),
    (ImportKind::TrtmcLadder, trtmc::is_ladder),
    (ImportKind::TrtmcStats, trtmc::is_stats),
    (ImportKind::Tensors, |path| super::tensors::is(path, ImportKind::Tensors)),
];

fn is_artifact(path: &Path, kind: ArtifactKind) -> bool {
    matches!(artifacts::guess(path), Ok(Some(found)) if found == kind)
}

fn is_logprobs(path: &Path, kind: LogprobKind) -> bool {
    LogprobKind::of(path) == Some(kind)
}

/// The layout of `path`, where one is recognised.
pub(super) fn guess(path: &Path) -> Option<ImportKind> {
    KNOWN.iter().find(|(_, recognises)| recognises(path)).map(|(kind, _)| *kind)
}

/// Its name on the command line.
pub(super) fn name(kind: ImportKind) -> String {
    kind.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
