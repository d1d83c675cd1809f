//! Folders of dumps: which files belong, what their tensors are called, and in which order they were computed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::order::natural;
use super::read::{Part, ReadOptions, TensorSet, content};
use super::source::Mapped;
use crate::TraceError;
use crate::store::fail::{io, malformed};

/// Folders inside one another at most.
const DEPTH_LIMIT: usize = 32;
/// Files at most: each is mapped, and a process may hold some 65,000 maps.
const FILE_LIMIT: usize = 50_000;
/// Bytes of a `dump.json` at most.
const LIST_LIMIT: usize = 1 << 30;

/// A file and its path below the root, `/` between the parts.
type Member = (String, PathBuf);

/// Reads a folder.
pub(super) fn read(root: &Path, options: &ReadOptions) -> Result<TensorSet, TraceError> {
    if let Some(index) = index(root)? {
        let part = content(&index, &Mapped::open(&index)?, "", None)?;
        return Ok(set(root, "safetensors shards", "names", part, Vec::new()));
    }
    let (mut files, mut remarks) = (Vec::new(), Vec::new());
    list(root, "", 0, &mut files, &mut remarks)?;
    if let Some(ranks) = msprobe(&files)? {
        return dumped(root, &files, options, &ranks, remarks);
    }
    let tagged = files.iter().filter(|(name, _)| tags(name).is_some()).count();
    let sglang = tagged > 0;
    files.sort_by(|(a, _), (b, _)| natural(a, b));
    if sglang {
        // Several runs of one file system would be one below another; the experiment's own folder carries the time of day.
        files.sort_by_key(|(name, _)| {
            let parts = tags(name).unwrap_or_default();
            number(&parts, "dump_index").unwrap_or(u64::MAX)
        });
    }
    let mut whole = Part::default();
    let mut undeclared = Vec::new();
    let mut others = Vec::new();
    for (name, path) in &files {
        if !wanted(name, options) {
            others.push(name.as_str());
            continue;
        }
        let part = content(path, &Mapped::open(path)?, name, Some(options))?;
        if part.undeclared {
            undeclared.push(name.clone());
        }
        whole.add(&tensor_name(name), part);
    }
    remarks.extend(left_out(&others));
    whole.remarks.splice(0..0, remarks);
    let iterations =
        files.iter().any(|(name, _)| name.split('/').any(|part| part.starts_with("iteration_")));
    let (format, order) = match (sglang, iterations) {
        (true, _) => ("SGLang dump", "dump_index"),
        (_, true) => ("TensorRT-LLM debug tensors", "names"),
        _ => ("folder of tensor files", "names"),
    };
    Ok(set(root, format, order, whole, undeclared))
}

fn set(
    root: &Path,
    format: &'static str,
    order: &'static str,
    part: Part,
    undeclared: Vec<String>,
) -> TensorSet {
    TensorSet {
        path: root.to_path_buf(),
        format,
        order,
        tensors: part.tensors,
        misfits: part.misfits,
        undeclared,
        remarks: part.remarks,
    }
}

fn left_out(others: &[&str]) -> Option<String> {
    let first = others.first()?;
    Some(format!("{} files of other kinds were not read, the first is {first}", others.len()))
}

/// Is there a file in this folder, not below it, that holds tensors, or a dump.json?
pub(super) fn recognised(root: &Path) -> bool {
    let (mut files, mut remarks) = (Vec::new(), Vec::new());
    let listed = list(root, "", 0, &mut files, &mut remarks).is_ok();
    listed && files.iter().any(|(name, _)| wanted(name, &ReadOptions::default()))
}

/// The one index of shards in a folder.
fn index(root: &Path) -> Result<Option<PathBuf>, TraceError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root).map_err(io(root))? {
        let path = entry.map_err(io(root))?.path();
        if path.to_string_lossy().ends_with(".safetensors.index.json") {
            found.push(path);
        }
    }
    match found.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        _ => Err(malformed(
            root,
            format!("{} indices of shards; name the one that is meant", found.len()),
        )),
    }
}

fn list(
    dir: &Path,
    prefix: &str,
    depth: usize,
    files: &mut Vec<Member>,
    remarks: &mut Vec<String>,
) -> Result<(), TraceError> {
    if depth > DEPTH_LIMIT {
        return Err(malformed(dir, format!("folders nest more than {DEPTH_LIMIT} deep")));
    }
    for entry in std::fs::read_dir(dir).map_err(io(dir))? {
        let entry = entry.map_err(io(dir))?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(io(dir))?);
        let own = entry.file_name().to_string_lossy().into_owned();
        let name = if prefix.is_empty() { own } else { format!("{prefix}/{own}") };
        if kind.is_dir() {
            list(&path, &name, depth + 1, files, remarks)?;
        } else if kind.is_file() || path.is_file() {
            files.push((name, path));
        } else {
            // A link to a folder could lead back to where it came from.
            remarks.push(format!("{name} is neither file nor folder and was not followed"));
        }
        if files.len() > FILE_LIMIT {
            return Err(malformed(
                dir,
                format!(
                    "more than {FILE_LIMIT} files; compare a part of them, one folder at a time"
                ),
            ));
        }
    }
    Ok(())
}

/// Files that are opened: the known forms, raw ones, and whatever was declared.
fn wanted(name: &str, options: &ReadOptions) -> bool {
    let extension = name.rsplit_once('.').map(|(_, extension)| extension).unwrap_or_default();
    matches!(extension, "safetensors" | "npy" | "npz" | "pt" | "pth" | "bin" | "raw" | "dat")
        || options.raw.iter().any(|spec| spec.files != "*" && spec.covers(name))
}

/// The path below the root without its extension; in SGLang's names without the running number, which another run shifts, and
/// without the folder of the run.
fn tensor_name(name: &str) -> String {
    let stem = match name.rsplit_once('.') {
        Some((stem, extension)) if !extension.contains('/') => stem,
        _ => name,
    };
    match tags(name) {
        Some(tags) => {
            let kept = tags.iter().filter(|(key, _)| *key != "dump_index");
            kept.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join("___")
        }
        None => stem.to_owned(),
    }
}

/// `step=0___rank=0___name=x.pt` as pairs.
fn tags(name: &str) -> Option<Vec<(&str, &str)>> {
    let stem = name.rsplit('/').next()?.strip_suffix(".pt")?;
    if !stem.contains("___") {
        return None;
    }
    stem.split("___").map(|part| part.split_once('=')).collect()
}

fn number(tags: &[(&str, &str)], key: &str) -> Option<u64> {
    tags.iter().find(|(name, _)| *name == key)?.1.parse().ok()
}

/// `dump.json` of msProbe; its `data` in the order of execution.
#[derive(Debug, Deserialize)]
struct DumpJson {
    data: Names,
}

/// Every `data_name` below `data`, in the order of the file.
#[derive(Debug)]
struct Names(Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Order;
        impl<'de> Visitor<'de> for Order {
            type Value = Vec<String>;
            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a map from calls to their tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut names = Vec::new();
                while map.next_key::<IgnoredAny>()?.is_some() {
                    collect(&map.next_value::<serde_json::Value>()?, &mut names);
                }
                Ok(names)
            }
        }
        deserializer.deserialize_map(Order).map(Names)
    }
}

/// Inputs stand before parameters and outputs, whatever the alphabet says.
fn collect(value: &serde_json::Value, names: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            names.extend(fields.get("data_name").and_then(|name| Some(name.as_str()?.to_owned())));
            let rank = |key: &str| match key {
                "input_args" | "input" => 0,
                "input_kwargs" => 1,
                "parameters" => 2,
                _ => 3,
            };
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(key, _)| rank(key));
            fields.into_iter().for_each(|(_, value)| collect(value, names));
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| collect(item, names)),
        _ => {}
    }
}

/// Rank of each file that a `dump.json` names, by its path below the root; `None` where there is no `dump.json`.
fn msprobe(files: &[Member]) -> Result<Option<BTreeMap<String, usize>>, TraceError> {
    let mut lists: Vec<&Member> =
        files.iter().filter(|(name, _)| name.rsplit('/').next() == Some("dump.json")).collect();
    if lists.is_empty() {
        return Ok(None);
    }
    lists.sort_by(|(a, _), (b, _)| natural(a, b));
    let mut ranks = BTreeMap::new();
    for (name, path) in lists {
        let file = Mapped::open(path)?;
        if file.bytes().len() > LIST_LIMIT {
            return Err(malformed(path, "a dump.json of more than 1 GiB; refused"));
        }
        let list: DumpJson = serde_json::from_slice(file.bytes()).map_err(|source| {
            TraceError::Json { path: path.clone(), line: source.line(), source }
        })?;
        let folder = name.strip_suffix("dump.json").unwrap_or_default();
        for data in list.data.0 {
            let rank = ranks.len();
            ranks.entry(format!("{folder}dump_tensor_data/{data}")).or_insert(rank);
        }
    }
    Ok(Some(ranks))
}

/// The tensors that the `dump.json` files name, in their order; a file that they do not name comes last.
fn dumped(
    root: &Path,
    files: &[Member],
    options: &ReadOptions,
    ranks: &BTreeMap<String, usize>,
    mut remarks: Vec<String>,
) -> Result<TensorSet, TraceError> {
    let mut present: Vec<(usize, &Member)> = Vec::new();
    let mut unnamed = 0;
    for member in files.iter().filter(|(name, _)| wanted(name, options)) {
        unnamed += usize::from(!ranks.contains_key(&member.0));
        present.push((ranks.get(&member.0).copied().unwrap_or(usize::MAX), member));
    }
    present.sort_by(|(a, (left, _)), (b, (right, _))| a.cmp(b).then_with(|| natural(left, right)));
    let missing =
        ranks.keys().filter(|name| !present.iter().any(|(_, (present, _))| present == *name));
    if let Some(first) = missing.clone().next() {
        remarks.push(format!(
            "dump.json names {} files that are not there, the first is {first}",
            missing.count()
        ));
    }
    if unnamed > 0 {
        remarks.push(format!("{unnamed} files are not named by dump.json; they come last"));
    }
    if ranks.is_empty() {
        remarks.push("dump.json holds statistics only; dump with the task `tensor`".to_owned());
    }
    let (mut whole, mut undeclared) = (Part::default(), Vec::new());
    for (_, (name, path)) in present {
        let part = content(path, &Mapped::open(path)?, name, Some(options))?;
        if part.undeclared {
            undeclared.push(name.clone());
        }
        whole.add(&tensor_name(&name.replace("dump_tensor_data/", "")), part);
    }
    whole.remarks.splice(0..0, remarks);
    Ok(set(root, "msProbe dump", "dump.json", whole, undeclared))
}
