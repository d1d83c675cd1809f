//! `export`: a run in a foreign layout.

use lockstep_traces::store::RunReader;
use lockstep_traces::tensor_runs;
use lockstep_traces::trtmc::{self, DumpExport, TraceExport};
use serde_json::json;

use crate::cli::{ExportArgs, ExportKind, Format};
use crate::console;
use crate::exit::{Status, usage};

pub(crate) fn execute(args: &ExportArgs, format: Format) -> anyhow::Result<Status> {
    let run = RunReader::open(&args.run)?;
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
        ExportKind::Npy => tensor_runs::export_npy(&run, args.sample.as_deref(), &args.out)?,
        ExportKind::Safetensors => {
            tensor_runs::export_safetensors(&run, args.sample.as_deref(), &args.out)?;
        }
    }
    let path = args.out.display().to_string();
    console::answer(format, &path, &json!({"file": path}))?;
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
