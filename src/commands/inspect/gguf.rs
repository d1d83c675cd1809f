//! `inspect FILE.gguf`: keys, tensors and element types.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use lockstep_runtime::weights::open_gguf;
use lockstep_traces::gguf::{GgufHeader, GgufValue};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::Format;
use crate::console;
use crate::exit::Status;

/// Elements of an array that are shown.
const SHOWN: usize = 4;
/// Characters of a text that are shown in the text form.
const WIDE: usize = 100;

/// `inspect --format json` of a GGUF file.
#[derive(Debug, Serialize)]
struct Contents<'a> {
    path: String,
    kind: &'static str,
    version: u32,
    alignment: usize,
    /// Arrays as `{"len", "first"}`, everything else whole.
    metadata: BTreeMap<&'a str, Value>,
    /// By element type.
    types: BTreeMap<&'static str, Sums>,
    /// In the order of their data.
    tensors: Vec<Row<'a>>,
}

#[derive(Debug, Default, Serialize)]
struct Sums {
    tensors: usize,
    elements: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    element: &'static str,
    /// Slowest dimension first.
    shape: Vec<usize>,
    /// First byte in the file.
    offset: usize,
    bytes: usize,
}

pub(super) fn execute(path: &Path, format: Format) -> anyhow::Result<Status> {
    let (_, header) = open_gguf(path)?;
    let contents = contents(path, &header);
    console::answer(format, &text(&contents), &contents)?;
    Ok(Status::Parity)
}

fn contents<'a>(path: &Path, header: &'a GgufHeader) -> Contents<'a> {
    let mut types: BTreeMap<&'static str, Sums> = BTreeMap::new();
    let mut tensors = Vec::new();
    for (name, tensor) in &header.tensors {
        let sums = types.entry(tensor.element.name()).or_default();
        sums.tensors += 1;
        sums.elements += tensor.elements() as u64;
        sums.bytes += tensor.range.len() as u64;
        tensors.push(Row {
            name,
            element: tensor.element.name(),
            shape: tensor.shape(),
            offset: tensor.range.start,
            bytes: tensor.range.len(),
        });
    }
    tensors.sort_by_key(|row| row.offset);
    Contents {
        path: path.display().to_string(),
        kind: "gguf",
        version: header.version,
        alignment: header.alignment,
        metadata: header.values.iter().map(|(key, value)| (key.as_str(), shown(value))).collect(),
        types,
        tensors,
    }
}

fn shown(value: &GgufValue) -> Value {
    match value.as_array() {
        Some(values) => {
            let first: Vec<Value> = values.iter().take(SHOWN).map(shown).collect();
            json!({"len": values.len(), "first": first})
        }
        None => json!(value),
    }
}

fn text(contents: &Contents<'_>) -> String {
    let mut out = format!(
        "{}: GGUF version {}, {} keys, {} tensors, alignment {}\n",
        contents.path,
        contents.version,
        contents.metadata.len(),
        contents.tensors.len(),
        contents.alignment
    );
    for (element, sums) in &contents.types {
        let Sums { tensors, elements, bytes } = sums;
        let _ = writeln!(out, "  {element}: {tensors} tensors, {elements} elements, {bytes} bytes");
    }
    for (key, value) in &contents.metadata {
        let value = value.to_string();
        let short: String = value.chars().take(WIDE).collect();
        let more = if short.len() < value.len() { "..." } else { "" };
        let _ = writeln!(out, "  {key} = {short}{more}");
    }
    for row in &contents.tensors {
        let _ = writeln!(out, "  {}: {} {:?} at {}", row.name, row.element, row.shape, row.offset);
    }
    out
}
