//! `diff tensors`: two sets of tensors out of plain files; and what `inspect` shows of one.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use lockstep_diff::tensor_sets::{Detail, MapError, NameMap, SetOptions, compare};
use lockstep_traces::tensor_files::{RawSpec, ReadOptions, TensorSet, read};
use serde_json::json;

use crate::cli::{DetailArg, DiffTensorsArgs, Format};
use crate::console::{self, Progress};
use crate::exit::{Status, usage};

pub(crate) fn execute(args: &DiffTensorsArgs, format: Format) -> anyhow::Result<Status> {
    let map = args.map.as_deref().map(name_map).transpose()?.unwrap_or_default();
    let mut raw: Vec<RawSpec> = args.raw.clone();
    raw.extend(map.raw().map_err(usage)?);
    let options = ReadOptions { raw };
    let (left, right) = (read(&args.baseline, &options)?, read(&args.target, &options)?);
    let control = args.control.as_deref().map(|path| read(path, &options)).transpose()?;
    let bar = RefCell::new(Progress::new("pairs"));
    let progress = |done, total| bar.borrow_mut().update(done, total);
    let options = SetOptions {
        map,
        control: control.as_ref(),
        preset: args.tolerance,
        allow_skip: args.allow_skip.clone(),
        only: args.only.clone(),
        layers: args.layers.clone(),
        detail: match args.detail {
            DetailArg::None => Detail::None,
            DetailArg::Failed => Detail::Failed,
            DetailArg::All => Detail::All,
        },
        nan_equal: args.nan_equal,
        progress: Some(&progress),
    };
    let report = compare(&left, &right, &options).map_err(|error| match error {
        MapError::Trace(error) => anyhow::Error::from(error),
        // The map's file was checked when it was read: what is left are the flags.
        other => usage(other.to_string()),
    })?;
    drop(bar);
    let text = lockstep_reports::tensors::text(&report, args.show, console::text_options());
    console::answer(format, &text, &report)?;
    if let Some(unfit) = report.unfit.first() {
        console::note(&format!("lockstep: {}", unfit.why));
        return Ok(Status::Unreadable);
    }
    Ok(Status::of(&report.verdict))
}

/// Reads and checks a map.
pub(crate) fn name_map(path: &Path) -> anyhow::Result<NameMap> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Ok(NameMap::parse(&text, &path.display().to_string())?)
}

/// `inspect` of a plain tensor file or of a folder of them.
pub(crate) fn inspect(path: &Path, format: Format) -> anyhow::Result<Status> {
    let set: TensorSet = read(path, &ReadOptions::default())?;
    let mut text = format!(
        "{}: {}, {} tensors, in the order of: {}\n",
        path.display(),
        set.format,
        set.tensors.len(),
        set.order
    );
    let mut list = Vec::new();
    for tensor in &set.tensors {
        let packed = tensor.is_packed();
        let order = if packed { String::new() } else { format!(", strides {:?}", tensor.strides) };
        let big = if tensor.big_endian { ", big-endian" } else { "" };
        let _ = writeln!(
            text,
            "  {}: {} {:?}{order}{big}",
            tensor.name,
            tensor.element.name(),
            tensor.shape
        );
        list.push(json!({
            "name": tensor.name, "dtype": tensor.element.name(), "shape": tensor.shape, "strides": tensor.strides,
            "big_endian": tensor.big_endian, "file": tensor.path.display().to_string(),
        }));
    }
    for name in &set.undeclared {
        let _ = writeln!(text, "  {name}: bytes without a header");
    }
    for remark in &set.remarks {
        let _ = writeln!(text, "  note: {remark}");
    }
    let answer = json!({
        "path": path.display().to_string(), "kind": set.format, "order": set.order, "tensors": list, "undeclared": set.undeclared,
        "remarks": set.remarks,
    });
    console::answer(format, &text, &answer)?;
    Ok(Status::Parity)
}
