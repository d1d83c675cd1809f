//! `check compaction` and `check logits`: loose tensor files that belong to no run.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use lockstep_diff::loose::{
    CompactionSpec, LogitsSpec, RopeSpec, RopeStyle, compaction, context_logits,
};
use lockstep_traces::tensor_files::{ReadOptions, read};
use serde::Deserialize;

use super::inputs::prompt_ids;
use crate::cli::{CheckCompactionArgs, CheckLogitsArgs, Format, StyleArg};
use crate::console;
use crate::exit::{Status, usage};

/// `check compaction`.
pub(crate) fn check_compaction(
    args: &CheckCompactionArgs,
    format: Format,
) -> anyhow::Result<Status> {
    let options = ReadOptions::default();
    let (before, after) = (read(&args.before, &options)?, read(&args.after, &options)?);
    let style = match args.rope_style {
        StyleArg::HalfSplit => RopeStyle::HalfSplit,
        StyleArg::Interleaved => RopeStyle::Interleaved,
    };
    if args.rope_base.is_some_and(|base| !base.is_finite() || base <= 0.0) {
        return Err(usage("--rope-base must be above 0"));
    }
    let spec = CompactionSpec {
        keep: args.keep.clone(),
        names: (args.key.clone(), args.value.clone()),
        first_position: args.first_position,
        rope: args.rope_base.map(|base| RopeSpec { base, style }),
        next_position: args.next_position,
    };
    let report = compaction(&before, &after, &spec)?;
    let mut text = format!("{} rows before, {} after\n", report.rows.0, report.rows.1);
    let exact = if report.values_exact { "exact gather" } else { "NOT the kept rows" };
    let _ = writeln!(text, "V: {exact}");
    if report.key_rows_differing.is_empty() {
        text.push_str("K: exact gather\n");
    } else {
        let (max, rows) = (report.key_max_abs, &report.key_rows_differing);
        let _ = writeln!(text, "K: not a gather (max |delta| {max:.6}, rows {rows:?})");
        if let Some(turned) = report.turned_max_abs {
            let _ = writeln!(
                text,
                "K: against the kept keys turned to their rows: max |delta| {turned:.1e}"
            );
        }
    }
    let _ = writeln!(text, "{}: {}", report.verdict.word(), report.summary);
    console::answer(format, &text, &report)?;
    Ok(Status::of(&report.verdict))
}

#[derive(Debug, Deserialize)]
struct RequestFile {
    prompt_ids: Vec<u32>,
    #[serde(default)]
    continuation_len: Option<usize>,
    #[serde(default)]
    block_size: Option<usize>,
}

fn request(path: &Path) -> anyhow::Result<RequestFile> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(&text).map_err(|error| {
            anyhow::anyhow!(
                "{}:{}: no request with prompt_ids: {error}",
                path.display(),
                error.line()
            )
        });
    }
    Ok(RequestFile { prompt_ids: prompt_ids(path)?, continuation_len: None, block_size: None })
}

/// `check logits`.
pub(crate) fn check_logits(args: &CheckLogitsArgs, format: Format) -> anyhow::Result<Status> {
    let request = request(&args.request)?;
    let last = args.last.or(request.continuation_len);
    let spec = LogitsSpec {
        name: args.tensor.clone(),
        last: last.ok_or_else(|| usage("give --last, or continuation_len in the request"))?,
        block: args.block.or(request.block_size),
        first_position: args.first_position,
        prompt_ids: request.prompt_ids,
    };
    let set = read(&args.file, &ReadOptions::default())?;
    let report = context_logits(&set, &spec)?;
    let mut text = format!("{} rows for {} prompt tokens\n", report.rows, report.prompt_len);
    for token in &report.tokens {
        let _ = writeln!(
            text,
            "  position {} token {}: row {}, logprob {:.6}",
            token.position, token.token_id, token.row, token.logprob
        );
    }
    if let Some(front) = report.from_the_front {
        let _ = writeln!(
            text,
            "rows counted from the front of the file would give {front:.6}: wrong, and without a sign of it"
        );
    }
    let _ = writeln!(text, "{}", report.summary);
    console::answer(format, &text, &report)?;
    Ok(Status::of(&report.verdict))
}
