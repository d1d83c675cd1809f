//! `export`: a run in a foreign layout.

use std::fmt::Write as _;

use lockstep_traces::store::RunReader;
use lockstep_traces::trtmc::{self, DumpExport, TraceExport};
use lockstep_traces::{lm_eval, perfetto};
use serde_json::json;

use crate::cli::{ExportArgs, ExportKind, Format};
use crate::console;
use crate::exit::{Status, usage};

mod junit;

pub(crate) fn execute(args: &ExportArgs, format: Format) -> anyhow::Result<Status> {
    let open = || RunReader::open(&args.run);
    let mut remarks = Vec::new();
    match args.kind {
        ExportKind::TrtmcTrace => {
            let digits = if args.digits6 { 6 } else { 9 };
            let options = TraceExport { digits, bucket_rows: args.bucket_rows };
            trtmc::export_trace(&open()?, &args.out, options)?;
        }
        ExportKind::TrtmcDump => {
            let run = open()?;
            let sample = the_sample(&run, args)?;
            trtmc::export_dump(&run, &sample, args.ordinal, &args.out, DumpExport::default())?;
        }
        ExportKind::LmEval => remarks = lm_eval::export_samples(&open()?, &args.out)?,
        ExportKind::Perfetto => remarks = perfetto::export_timeline(&open()?, &args.out)?,
        ExportKind::Junit => junit::write(&args.run, &args.out)?,
    }
    answer(args, &remarks, format)
}

/// The file, and what it lacks.
fn answer(args: &ExportArgs, remarks: &[String], format: Format) -> anyhow::Result<Status> {
    let path = args.out.display().to_string();
    let mut text = path.clone();
    for remark in remarks {
        let _ = write!(text, "\n  note: {remark}");
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
