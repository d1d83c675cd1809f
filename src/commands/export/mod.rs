//! `export`: a run in a foreign layout.

use std::fmt::Write as _;

use lockstep_traces::llamacpp::{self, KldExport};
use lockstep_traces::store::RunReader;
use lockstep_traces::trtmc::{self, DumpExport, TraceExport};
use serde_json::json;

use super::inputs::wide;
use crate::cli::{ExportArgs, ExportKind, Format};
use crate::console;
use crate::exit::{Status, usage};

pub(crate) fn execute(args: &ExportArgs, format: Format) -> anyhow::Result<Status> {
    let run = RunReader::open(&args.run)?;
    let mut remarks = Vec::new();
    match args.kind {
        ExportKind::TrtmcTrace => {
            let digits = if args.digits6 { 6 } else { 9 };
            let options = TraceExport { digits, bucket_rows: args.bucket_rows };
            trtmc::export_trace(&run, &args.out, options)?;
        }
        ExportKind::TrtmcDump => {
            let sample = the_sample(&run, args)?;
            trtmc::export_dump(&run, &sample, args.ordinal, &args.out, DumpExport::default())?;
        }
        ExportKind::LlamaKld => {
            let options = KldExport { chunk_tokens: args.chunk_tokens.map(wide) };
            let written = llamacpp::export_kld(&args.run, options, &args.out)?;
            remarks.push(format!(
                "{} chunks of {} tokens, {} of each scored, vocabulary {}",
                written.shape.n_chunk,
                written.shape.n_ctx,
                written.shape.scored(),
                written.shape.n_vocab
            ));
            remarks.extend(written.remarks);
        }
    }
    let path = args.out.display().to_string();
    let mut text = format!("{path}\n");
    for remark in &remarks {
        let _ = writeln!(text, "  note: {remark}");
    }
    console::answer(format, &text, &json!({"file": path, "remarks": remarks}))?;
    Ok(Status::Parity)
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
