//! The dumps of a run as tensor files: one safetensors file, or a folder of `.npy`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;

use super::own::{ORIGIN, SIDE, Side, folder, tokens};
use crate::foreign::UNKNOWN_TOKEN;
use crate::store::fail::{io, malformed};
use crate::store::streamed::{Streamed, write_streamed};
use crate::store::{RunReader, StepQuery, replace_file};
use crate::tensor_files::Element;
use crate::{DType, DumpFile, DumpId, TraceError};

/// The dumps of one sample or of all, opened.
fn dumps(run: &RunReader, sample: Option<&str>) -> Result<Vec<(DumpId, DumpFile)>, TraceError> {
    let mut found = Vec::new();
    for id in run.dumps()? {
        let (DumpId::Compaction { sample_id, .. } | DumpId::Step { sample_id, .. }) = &id;
        if sample.is_some_and(|only| only != sample_id) {
            continue;
        }
        let file = run.dump(&id)?;
        let file =
            file.ok_or_else(|| malformed(run.dir(), format!("{} is gone", id.relative_path())))?;
        found.push((id, file));
    }
    if found.is_empty() {
        let of = sample.map_or_else(String::new, |sample| format!(" of sample `{sample}`"));
        let what = format!(
            "no dump{of} to write; record with --record-logits, --record-hidden or --record-cache"
        );
        return Err(malformed(run.dir(), what));
    }
    Ok(found)
}

/// Fed ids by sample: those that follow one another from the first on.
fn fed(run: &RunReader, sample: Option<&str>) -> Result<Vec<(String, Vec<u32>)>, TraceError> {
    let mut out = Vec::new();
    for sample_id in run.sample_ids()? {
        if sample.is_some_and(|only| only != sample_id) {
            continue;
        }
        let query = StepQuery { sample_id: Some(sample_id.clone()), ..StepQuery::default() };
        let steps = run.steps(&query)?;
        let Some(first) = steps.position.first() else { continue };
        let ids: Vec<u32> = steps
            .position
            .iter()
            .zip(&steps.token_id)
            .zip(*first..)
            .take_while(|((position, id), expected)| *position == expected && **id != UNKNOWN_TOKEN)
            .map(|((_, id), _)| *id)
            .collect();
        if !ids.is_empty() {
            out.push((tokens(&sample_id, *first), ids));
        }
    }
    Ok(out)
}

const fn element(dtype: DType) -> Element {
    match dtype {
        DType::F32 => Element::F32,
        DType::F16 => Element::F16,
        DType::Bf16 => Element::Bf16,
        DType::F64 => Element::F64,
        DType::I32 => Element::I32,
        DType::I16 => Element::I16,
        DType::I64 => Element::I64,
        DType::U8 => Element::U8,
    }
}

/// Writes every dump of a sample, or of the run, into one safetensors file: tensors `<sample>/<dump>/<tensor>`, the fed ids as
/// `<sample>/token_id_from_<position>` (u32), metadata of the dumps as `<sample>/<dump>/<key>`, and `origin`, `run`.
///
/// # Errors
/// [`TraceError::Malformed`] where there is no dump; what reading and writing report.
pub fn export_safetensors(
    run: &RunReader,
    sample: Option<&str>,
    out: &Path,
) -> Result<(), TraceError> {
    let (dumps, fed) = (dumps(run, sample)?, fed(run, sample)?);
    let mut metadata = BTreeMap::from([
        ("origin".to_owned(), ORIGIN.to_owned()),
        ("run".to_owned(), run.dir().display().to_string()),
    ]);
    let mut tensors = Vec::new();
    for (id, file) in &dumps {
        let folder = folder(id);
        let values = file.metadata().iter().filter(|(key, _)| *key != "parts");
        metadata.extend(values.map(|(key, value)| (format!("{folder}/{key}"), value.clone())));
        for name in file.names() {
            let view = file.get(name)?;
            let bytes = view.bytes;
            tensors.push(Streamed {
                name: format!("{folder}/{name}"),
                element: element(view.dtype),
                shape: view.shape,
                write: Box::new(move |to| to.write_all(bytes)),
            });
        }
    }
    for (name, ids) in &fed {
        let write =
            move |to: &mut dyn Write| ids.iter().try_for_each(|id| to.write_all(&id.to_le_bytes()));
        tensors.push(Streamed {
            name: name.clone(),
            element: Element::U32,
            shape: vec![ids.len()],
            write: Box::new(write),
        });
    }
    write_streamed(out, &metadata, tensors)
}

/// Writes every dump of a sample, or of the run, as a folder of `.npy` files `<sample>/<dump>/<tensor>.npy`, and `export.json` beside
/// them: which files hold bf16 as 16-bit codes, and the metadata of the dumps.
///
/// # Errors
/// As [`export_safetensors`]; [`TraceError::Malformed`] where `out` holds files.
pub fn export_npy(run: &RunReader, sample: Option<&str>, out: &Path) -> Result<(), TraceError> {
    let (dumps, fed) = (dumps(run, sample)?, fed(run, sample)?);
    std::fs::create_dir_all(out).map_err(io(out))?;
    if std::fs::read_dir(out).map_err(io(out))?.next().is_some() {
        return Err(malformed(out, "already holds files; choose another folder"));
    }
    let mut side =
        Side { origin: ORIGIN.to_owned(), run: run.dir().display().to_string(), ..Side::default() };
    for (id, file) in &dumps {
        let folder = folder(id);
        let mut metadata = file.metadata().clone();
        metadata.remove("parts");
        side.metadata.insert(folder.clone(), metadata);
        for name in file.names() {
            let view = file.get(name)?;
            let path = format!("{folder}/{}.npy", escaped(name));
            let element = element(view.dtype);
            if element.numpy().is_none() {
                side.elements.insert(path.clone(), element.name().to_owned());
            }
            array(&out.join(path), element, &view.shape, view.bytes)?;
        }
    }
    for (name, ids) in &fed {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        array(&out.join(format!("{name}.npy")), Element::U32, &[ids.len()], &bytes)?;
    }
    let path = out.join(SIDE);
    let text = serde_json::to_vec_pretty(&side).map_err(|source| TraceError::Json {
        path: path.clone(),
        line: source.line(),
        source,
    })?;
    replace_file(&path, |file| file.write_all(&text).map_err(io(&path)))
}

/// One array, format version 1.
fn array(path: &Path, element: Element, shape: &[usize], bytes: &[u8]) -> Result<(), TraceError> {
    let code = element.numpy().unwrap_or(if element.size() == 2 { "<u2" } else { "|u1" });
    let sizes: Vec<String> = shape.iter().map(ToString::to_string).collect();
    // A tuple of one has a comma.
    let comma = if shape.len() == 1 { "," } else { "" };
    let mut header = format!(
        "{{'descr': '{code}', 'fortran_order': False, 'shape': ({}{comma}), }}",
        sizes.join(", ")
    );
    // Magic, version and length are 10 bytes; the whole is a multiple of 64 and ends in a line feed.
    let padded = (10 + header.len() + 1).next_multiple_of(64) - 10 - 1;
    header.extend(std::iter::repeat_n(' ', padded - header.len()));
    header.push('\n');
    let length = u16::try_from(header.len())
        .map_err(|_| malformed(path, "more axes than an .npy header holds"))?;
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(io(parent))?;
    }
    replace_file(path, |file| {
        let head = [b"\x93NUMPY\x01\x00".as_slice(), &length.to_le_bytes(), header.as_bytes()];
        file.write_all(&head.concat()).map_err(io(path))?;
        file.write_all(bytes).map_err(io(path))
    })
}

/// A tensor's name as a file name: bytes outside `[A-Za-z0-9._-]`, and a leading dot, are percent-encoded.
fn escaped(name: &str) -> String {
    let mut out = String::new();
    for byte in name.bytes() {
        let plain = byte.is_ascii_alphanumeric()
            || matches!(byte, b'_' | b'-')
            || (byte == b'.' && !out.is_empty());
        if plain {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// The name of an escaped file name.
pub(super) fn unescaped(name: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = name.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?].map(char::from);
            let value =
                digits.iter().try_fold(0, |sum, digit| Some(sum * 16 + digit.to_digit(16)?))?;
            bytes.push(u8::try_from(value).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}
