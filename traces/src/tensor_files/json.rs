//! Numbers in a JSON document: each rectangular list of numbers is a tensor of f64, named by the keys that lead to it.

use std::path::Path;

use serde_json::Value;

use super::element::Element;
use super::source::Mapped;
use super::tensor::{PlainTensor, range};
use crate::TraceError;
use crate::store::fail::{io, malformed};

/// Bytes of a document at most: lists of numbers are small.
const LIMIT: usize = 1 << 26;

/// The lists of a document in the order of their names.
pub(super) fn tensors(path: &Path, file: &Mapped) -> Result<Vec<PlainTensor>, TraceError> {
    if file.bytes().len() > LIMIT {
        let what = format!(
            "{} bytes of JSON; up to {LIMIT} are read, save arrays as .npy",
            file.bytes().len()
        );
        return Err(malformed(path, what));
    }
    let text = file.bytes().strip_prefix(b"\xef\xbb\xbf").unwrap_or(file.bytes());
    let document: Value = serde_json::from_slice(text).map_err(|source| TraceError::Json {
        path: path.to_path_buf(),
        line: source.line(),
        source,
    })?;
    let mut lists = Vec::new();
    collect(&document, String::new(), &mut lists);
    let mut out = Vec::new();
    for (name, shape, numbers) in lists {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let length = bytes.len();
        let spool = Mapped::spool(path, bytes.as_slice(), u64::MAX).map_err(|error| {
            error.map_or_else(|| malformed(path, "too long"), |error| io(path)(error))
        })?;
        let storage = range(path, &spool, 0..length)?;
        out.push(PlainTensor::packed(&name, path, Element::F64, shape, storage)?);
    }
    Ok(out)
}

type List = (String, Vec<usize>, Vec<f64>);

/// `serde_json` bounds the depth of a document, so this may recurse.
fn collect(value: &Value, name: String, lists: &mut Vec<List>) {
    match value {
        Value::Array(items) => {
            let (mut shape, mut numbers) = (Vec::new(), Vec::new());
            if !items.is_empty() && rectangular(value, 0, &mut shape, &mut numbers) {
                lists.push((name, shape, numbers));
                return;
            }
            for (at, item) in
                items.iter().enumerate().filter(|(_, item)| item.is_object() || item.is_array())
            {
                collect(item, join(&name, &at.to_string()), lists);
            }
        }
        Value::Object(fields) => {
            for (key, value) in fields {
                collect(value, join(&name, key), lists);
            }
        }
        _ => {}
    }
}

fn join(name: &str, part: &str) -> String {
    if name.is_empty() { part.to_owned() } else { format!("{name}.{part}") }
}

fn rectangular(
    value: &Value,
    depth: usize,
    shape: &mut Vec<usize>,
    numbers: &mut Vec<f64>,
) -> bool {
    match value {
        Value::Array(items) => {
            if shape.len() == depth {
                if !numbers.is_empty() {
                    return false;
                }
                shape.push(items.len());
            }
            shape.get(depth) == Some(&items.len())
                && items.iter().all(|item| rectangular(item, depth + 1, shape, numbers))
        }
        Value::Number(number) => {
            let whole = shape.len() == depth;
            numbers.extend(number.as_f64().filter(|_| whole));
            whole && number.as_f64().is_some()
        }
        _ => false,
    }
}
