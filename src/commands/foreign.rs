//! `import` and `export`: foreign layouts.

use std::fmt::Write as _;

use lockstep_traces::store::RunReader;
use lockstep_traces::trtmc::{self, DumpExport, DumpImport, TraceExport};
use serde_json::json;

use crate::cli::{ExportArgs, ForeignKind, Format, ImportArgs};
use crate::console;
use crate::exit::{Status, usage};

pub(crate) fn import(args: &ImportArgs, format: Format) -> anyhow::Result<Status> {
    let remarks = match args.kind {
        ForeignKind::TrtmcTrace => trtmc::import_trace(&args.path, args.prompt_len, &args.out)?,
        ForeignKind::TrtmcDump => {
            let options = DumpImport { divide_length: args.divide_length, sample_id: None };
            trtmc::import_dump(&args.path, &options, &args.out)?
        }
    };
    let mut text = format!("{}\n", args.out.display());
    for remark in &remarks {
        let _ = writeln!(text, "  note: {remark}");
    }
    console::answer(
        format,
        &text,
        &json!({"run": args.out.display().to_string(), "remarks": remarks}),
    )?;
    Ok(Status::Parity)
}

pub(crate) fn export(args: &ExportArgs, format: Format) -> anyhow::Result<Status> {
    let run = RunReader::open(&args.run)?;
    match args.kind {
        ForeignKind::TrtmcTrace => {
            let digits = if args.digits6 { 6 } else { 9 };
            trtmc::export_trace(
                &run,
                &args.out,
                TraceExport { digits, bucket_rows: args.bucket_rows },
            )?;
        }
        ForeignKind::TrtmcDump => {
            let samples = run.sample_ids()?;
            let sample = match (&args.sample, samples.as_slice()) {
                (Some(id), _) => id,
                (None, [only]) => only,
                (None, _) => {
                    return Err(usage(format!(
                        "--sample is needed; there are {}",
                        samples.join(", ")
                    )));
                }
            };
            trtmc::export_dump(&run, sample, args.ordinal, &args.out, DumpExport::default())?;
        }
    }
    let path = args.out.display().to_string();
    console::answer(format, &path, &json!({"file": path}))?;
    Ok(Status::Parity)
}
