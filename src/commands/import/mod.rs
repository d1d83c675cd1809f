//! `import`: a foreign file or folder becomes a run.

mod guess;
mod logprobs;
mod tensors;

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use lockstep_traces::llamacpp;
use lockstep_traces::lm_eval;
use lockstep_traces::logprobs::LogprobKind;
use lockstep_traces::recorded;
use lockstep_traces::store::is_run;
use lockstep_traces::trtmc::{self, DumpImport};
use serde_json::json;

use super::inputs::{self, wide};
use crate::cli::{Format, ImportArgs, ImportKind};
use crate::console;
use crate::exit::{Status, usage};

pub(crate) fn execute(args: &ImportArgs, format: Format) -> anyhow::Result<Status> {
    let (given, path) = args.what()?;
    std::fs::metadata(path).with_context(|| path.display().to_string())?;
    let kind = match given {
        Some(kind) => kind,
        None => guess::guess(path).ok_or_else(|| {
            usage(format!(
                "{}: no layout that is known here; name it before the path",
                path.display()
            ))
        })?,
    };
    let remarks = read(kind, path, args)?;
    let name = guess::name(kind);
    let mut text = format!("{}\n", args.out.display());
    if given.is_none() {
        let _ = writeln!(text, "  read as {name}");
    }
    for remark in &remarks {
        let _ = writeln!(text, "  note: {remark}");
    }
    console::answer(
        format,
        &text,
        &json!({"run": args.out.display().to_string(), "kind": name, "remarks": remarks}),
    )?;
    Ok(Status::Parity)
}

/// Kinds that are loaded as they are.
const TRACES: [ImportKind; 3] =
    [ImportKind::TrtmcTrace, ImportKind::ParquetTrace, ImportKind::LockstepTrace];

/// Where a file that is no trace is read; `None` where nothing knows it.
pub(super) fn elsewhere(path: &Path) -> Option<anyhow::Error> {
    if is_run(path) {
        return None;
    }
    let kind = guess::guess(path).filter(|kind| !TRACES.contains(kind))?;
    Some(usage(format!(
        "{path}: no trace but {kind}: `lockstep import {kind} {path} --out RUN` makes a run of it, which is read here",
        path = path.display(),
        kind = guess::name(kind),
    )))
}

/// Reads `path` as `kind` into the run folder; what was read around comes back, one line each.
fn read(kind: ImportKind, path: &Path, args: &ImportArgs) -> anyhow::Result<Vec<String>> {
    Ok(match kind {
        ImportKind::TrtmcTrace | ImportKind::ParquetTrace => {
            trtmc::import_trace(path, args.prompt_len, &args.out)?
        }
        ImportKind::TrtmcDump => {
            let options = DumpImport { divide_length: args.divide_length, sample_id: None };
            trtmc::import_dump(path, &options, &args.out)?
        }
        ImportKind::LlamaKld => llamacpp::import_kld(path, wide(args.top_k), &args.out)?,
        ImportKind::LlamaResults => llamacpp::import_results(path, wide(args.top_k), &args.out)?,
        ImportKind::LlamaDebug => {
            let vocabulary = match &args.model {
                Some(model) => Some(inputs::vocabulary(model)?),
                None => args.vocab.map(wide),
            };
            llamacpp::import_debug(path, vocabulary, wide(args.top_k), &args.out)?
        }
        ImportKind::OpenaiChat => logprobs::read(LogprobKind::OpenaiChat, path, args)?,
        ImportKind::OpenaiCompletions => {
            logprobs::read(LogprobKind::OpenaiCompletions, path, args)?
        }
        ImportKind::Vllm => logprobs::read(LogprobKind::Vllm, path, args)?,
        ImportKind::SglangLogprobs => logprobs::read(LogprobKind::Sglang, path, args)?,
        ImportKind::LlamaServer => logprobs::read(LogprobKind::LlamaServer, path, args)?,
        ImportKind::MilesLogprobs => logprobs::read(LogprobKind::Miles, path, args)?,
        ImportKind::LockstepTrace => recorded::import_recorded(path, &args.out)?,
        ImportKind::TrtmcRows => trtmc::import_rows(path, &args.out)?,
        ImportKind::TrtmcSummary => trtmc::import_summary(path, args.method.as_deref(), &args.out)?,
        ImportKind::TrtmcBundle => trtmc::import_bundle(path, &args.out)?,
        ImportKind::TrtmcLadder => trtmc::import_ladder(path, &args.out)?,
        ImportKind::TrtmcStats => trtmc::import_stats(path, &args.out)?,
        ImportKind::TrtmcConfig => trtmc::import_config(path, &args.out)?,
        ImportKind::LmEval => {
            let how = lm_eval::Import { filter: args.filter.clone() };
            lm_eval::import_samples(path, &how, &args.out)?
        }
        ImportKind::SglangDump
        | ImportKind::Polygraphy
        | ImportKind::TrtllmDebug
        | ImportKind::Msprobe
        | ImportKind::Tensors => tensors::import(kind, path, args)?,
    })
}
