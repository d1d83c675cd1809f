//! Which layout a file or folder has: by its content, never by its name.

use std::cell::OnceCell;
use std::path::Path;

use clap::ValueEnum as _;
use lockstep_traces::artifacts::{self, ArtifactKind};
use lockstep_traces::llamacpp;
use lockstep_traces::logprobs::LogprobKind;
use lockstep_traces::recorded;
use lockstep_traces::{lm_eval, parquet_trace, trtmc};

use super::tensors;
use crate::cli::ImportKind;

/// A path, and what several recognisers ask of it: each is found out once.
struct Seen<'p> {
    path: &'p Path,
    artifact: OnceCell<Option<ArtifactKind>>,
    logprobs: OnceCell<Option<LogprobKind>>,
    tensors: OnceCell<Option<ImportKind>>,
}

impl Seen<'_> {
    fn artifact(&self, kind: ArtifactKind) -> bool {
        *self.artifact.get_or_init(|| artifacts::guess(self.path).ok().flatten()) == Some(kind)
    }

    fn logprobs(&self, kind: LogprobKind) -> bool {
        *self.logprobs.get_or_init(|| LogprobKind::of(self.path)) == Some(kind)
    }

    fn tensors(&self, kind: ImportKind) -> bool {
        *self.tensors.get_or_init(|| tensors::kind(self.path)) == Some(kind)
    }
}

/// Does a file or folder have this layout?
type Recogniser = fn(&Seen<'_>) -> bool;

/// Recognisers, the narrowest first: a layout that another one contains comes before it.
const KNOWN: &[(ImportKind, Recogniser)] = &[
    (ImportKind::ParquetTrace, |seen| parquet_trace::is_parquet(seen.path)),
    (ImportKind::LlamaKld, |seen| llamacpp::is_kld(seen.path)),
    (ImportKind::LlamaResults, |seen| llamacpp::is_results(seen.path)),
    (ImportKind::LockstepTrace, |seen| recorded::is_recorded(seen.path)),
    (ImportKind::TrtmcDump, |seen| seen.artifact(ArtifactKind::KeepDump)),
    (ImportKind::TrtmcTrace, |seen| seen.artifact(ArtifactKind::Trace)),
    (ImportKind::SglangDump, |seen| seen.tensors(ImportKind::SglangDump)),
    (ImportKind::Polygraphy, |seen| seen.tensors(ImportKind::Polygraphy)),
    (ImportKind::TrtllmDebug, |seen| seen.tensors(ImportKind::TrtllmDebug)),
    (ImportKind::Msprobe, |seen| seen.tensors(ImportKind::Msprobe)),
    (ImportKind::MilesLogprobs, |seen| seen.logprobs(LogprobKind::Miles)),
    (ImportKind::LlamaServer, |seen| seen.logprobs(LogprobKind::LlamaServer)),
    (ImportKind::SglangLogprobs, |seen| seen.logprobs(LogprobKind::Sglang)),
    (ImportKind::Vllm, |seen| seen.logprobs(LogprobKind::Vllm)),
    (ImportKind::OpenaiCompletions, |seen| seen.logprobs(LogprobKind::OpenaiCompletions)),
    (ImportKind::OpenaiChat, |seen| seen.logprobs(LogprobKind::OpenaiChat)),
    (ImportKind::TrtmcRows, |seen| seen.artifact(ArtifactKind::Bench)),
    (ImportKind::TrtmcSummary, |seen| seen.artifact(ArtifactKind::Summary)),
    (ImportKind::TrtmcBundle, |seen| seen.artifact(ArtifactKind::Bundle)),
    (ImportKind::TrtmcConfig, |seen| seen.artifact(ArtifactKind::EffectiveConfig)),
    (ImportKind::LmEval, |seen| lm_eval::recognised(seen.path)),
    (ImportKind::TrtmcLadder, |seen| trtmc::is_ladder(seen.path)),
    (ImportKind::TrtmcStats, |seen| trtmc::is_stats(seen.path)),
    (ImportKind::Tensors, |seen| seen.tensors(ImportKind::Tensors)),
];

/// The layout of `path`, where one is recognised.
pub(super) fn guess(path: &Path) -> Option<ImportKind> {
    let (artifact, logprobs, tensors) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
    let seen = Seen { path, artifact, logprobs, tensors };
    KNOWN.iter().find(|(_, recognises)| recognises(&seen)).map(|(kind, _)| *kind)
}

/// Its name on the command line.
pub(super) fn name(kind: ImportKind) -> String {
    kind.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
