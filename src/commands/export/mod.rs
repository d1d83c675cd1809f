//! `export`: a run in a foreign layout.

use std::fmt::Write as _;

use lockstep_traces::export::{self, Selection};
use lockstep_traces::limits::TokenIds;
use lockstep_traces::llamacpp::{self, KldExport};
use lockstep_traces::store::RunReader;
use lockstep_traces::tensor_runs;
use lockstep_traces::token_texts::TokenTexts;
use lockstep_traces::trtmc::{self, DumpExport, TraceExport};
use lockstep_traces::{lm_eval, perfetto};
use serde_json::json;

use super::inputs::wide;
use super::vocabulary::TokenBytes;
use crate::cli::{ExportArgs, ExportKind, Format};
use crate::console;
use crate::exit::{Status, usage};

mod junit;

pub(crate) fn execute(args: &ExportArgs, format: Format) -> anyhow::Result<Status> {
    let remarks = if args.kind == ExportKind::Junit {
        // The answer of a verb will do as well as a run.
        junit::write(&args.run, &args.out)?;
        Vec::new()
    } else {
        let run = RunReader::open(&args.run)?;
        let mut remarks = write(&run, args)?;
        if !run.is_complete() {
            remarks.push("the run is incomplete: what it holds was written".to_owned());
        }
        remarks
    };
    let path = args.out.display().to_string();
    let mut text = format!("{path}\n");
    for remark in &remarks {
        let _ = writeln!(text, "  note: {remark}");
    }
    console::answer(format, &text, &json!({"file": path, "remarks": remarks}))?;
    Ok(Status::Parity)
}

/// Writes the file; what the layout cannot hold comes back, one line each.
fn write(run: &RunReader, args: &ExportArgs) -> anyhow::Result<Vec<String>> {
    let selection = Selection { run, sample: args.sample.as_deref() };
    let out = &args.out;
    Ok(match args.kind {
        ExportKind::TrtmcTrace => {
            let digits = if args.digits6 { 6 } else { 9 };
            let options = TraceExport { digits, bucket_rows: args.bucket_rows };
            trtmc::export_trace(run, out, options)?;
            Vec::new()
        }
        ExportKind::TrtmcDump => {
            let sample = the_sample(run, args)?;
            trtmc::export_dump(run, &sample, args.ordinal, out, DumpExport::default())?;
            Vec::new()
        }
        ExportKind::LlamaKld => {
            let options = KldExport { chunk_tokens: args.chunk_tokens.map(wide) };
            let written = llamacpp::export_kld(&args.run, options, out)?;
            let mut remarks = vec![format!(
                "{} chunks of {} tokens, {} of each scored, vocabulary {}",
                written.shape.n_chunk,
                written.shape.n_ctx,
                written.shape.scored(),
                written.shape.n_vocab
            )];
            remarks.extend(written.remarks);
            remarks
        }
        ExportKind::OpenaiChat => {
            with_texts(run, args, |texts| Ok(export::openai_chat(selection, out, texts)?))?
        }
        ExportKind::OpenaiCompletions => {
            with_texts(run, args, |texts| Ok(export::openai_completions(selection, out, texts)?))?
        }
        ExportKind::Vllm => export::vllm(selection, out)?,
        ExportKind::NeutralJsonl => export::neutral(selection, out)?,
        ExportKind::Csv => export::csv(selection, out)?,
        ExportKind::LmEval => lm_eval::export_samples(run, out)?,
        ExportKind::Perfetto => perfetto::export_timeline(run, out)?,
        ExportKind::Junit => {
            junit::write(&args.run, out)?;
            Vec::new()
        }
        ExportKind::Npy => {
            tensor_runs::export_npy(run, args.sample.as_deref(), out)?;
            Vec::new()
        }
        ExportKind::Safetensors => {
            tensor_runs::export_safetensors(run, args.sample.as_deref(), out)?;
            Vec::new()
        }
    })
}

/// Hands on the texts of a run's tokens: those of a tokenizer, or those that the run came with.
fn with_texts<T>(
    run: &RunReader,
    args: &ExportArgs,
    write: impl FnOnce(export::Texts<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    if run.manifest().limits.token_ids == TokenIds::Invented {
        let texts = TokenTexts::read(run.dir())?;
        return write(&|id| {
            let text = texts.as_ref()?.get(id)?;
            Some(text.bytes.clone().unwrap_or_else(|| text.text.clone().into_bytes()))
        });
    }
    let Some(model) = &args.model else {
        return Err(usage(
            "this layout names tokens by text: give --model with the run's tokenizer",
        ));
    };
    let vocabulary = TokenBytes::read(model)?;
    write(&|id| vocabulary.bytes(id))
}

/// The sample that is asked for, or the only one.
fn the_sample(run: &RunReader, args: &ExportArgs) -> anyhow::Result<String> {
    let samples = run.sample_ids()?;
    match (&args.sample, samples.as_slice()) {
        (Some(id), _) => Ok(id.clone()),
        (None, [only]) => Ok(only.clone()),
        (None, _) => Err(usage(format!("--sample is needed; there are {}", samples.join(", ")))),
    }
}
