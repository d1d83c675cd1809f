//! safetensors files, single and in shards.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ::safetensors::tensor::{Dtype, SafeTensors};
use serde::Deserialize;

use super::element::Element;
use super::order::natural;
use super::source::Mapped;
use super::tensor::{PlainTensor, fault, range};
use crate::TraceError;
use crate::store::DumpFile;
use crate::store::fail::malformed;

/// Bytes of an index at most.
const INDEX_LIMIT: usize = 1 << 28;

const fn element(dtype: Dtype) -> Option<Element> {
    Some(match dtype {
        Dtype::F64 => Element::F64,
        Dtype::F32 => Element::F32,
        Dtype::F16 => Element::F16,
        Dtype::BF16 => Element::Bf16,
        Dtype::F8_E4M3 => Element::F8E4M3,
        Dtype::F8_E5M2 => Element::F8E5M2,
        Dtype::F8_E4M3FNUZ => Element::F8E4M3Fnuz,
        Dtype::F8_E5M2FNUZ => Element::F8E5M2Fnuz,
        Dtype::I64 => Element::I64,
        Dtype::I32 => Element::I32,
        Dtype::I16 => Element::I16,
        Dtype::I8 => Element::I8,
        Dtype::U64 => Element::U64,
        Dtype::U32 => Element::U32,
        Dtype::U16 => Element::U16,
        Dtype::U8 => Element::U8,
        Dtype::BOOL => Element::Bool,
        _ => return None,
    })
}

/// The tensors of one file in natural order of their names: where they lie follows dtype and alphabet in most writers, not execution.
pub(super) fn tensors(path: &Path, file: &Arc<Mapped>) -> Result<Vec<PlainTensor>, TraceError> {
    let (header, parsed) = match SafeTensors::read_metadata(file.bytes()) {
        Ok(read) => read,
        // The reader of dumps says what a refused header means.
        Err(error) => {
            return Err(match DumpFile::open(path) {
                Err(said) => said,
                Ok(_) => malformed(path, error.to_string()),
            });
        }
    };
    let mut out = Vec::new();
    for (name, info) in parsed.tensors() {
        let element = element(info.dtype).ok_or_else(|| {
            fault(path, &name, format!("has dtype {:?}, which is not read here", info.dtype))
        })?;
        let start = header + 8;
        let storage = range(path, file, start + info.data_offsets.0..start + info.data_offsets.1)?;
        out.push(PlainTensor::packed(&name, path, element, info.shape.clone(), storage)?);
    }
    out.sort_by(|a, b| natural(&a.name, &b.name));
    Ok(out)
}

/// `model.safetensors.index.json`.
#[derive(Debug, Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Is this the index of shards?
pub(super) fn is_index(bytes: &[u8]) -> bool {
    bytes.len() <= INDEX_LIMIT && serde_json::from_slice::<Index>(bytes).is_ok()
}

/// The tensors of all shards that an index names. What the index and the shards say must agree.
pub(super) fn sharded(path: &Path, file: &Mapped) -> Result<Vec<PlainTensor>, TraceError> {
    let index: Index = serde_json::from_slice(file.bytes()).map_err(|source| TraceError::Json {
        path: path.to_path_buf(),
        line: source.line(),
        source,
    })?;
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    let mut shards: BTreeMap<&str, BTreeMap<String, PlainTensor>> = BTreeMap::new();
    for shard in index.weight_map.values() {
        if shard.contains(['/', '\\']) || shard == ".." {
            return Err(malformed(
                path,
                format!("shard `{}` lies outside the folder", shard.escape_debug()),
            ));
        }
        if !shards.contains_key(shard.as_str()) {
            let place = folder.join(shard);
            let tensors = tensors(&place, &Mapped::open(&place)?)?;
            shards.insert(
                shard,
                tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect(),
            );
        }
    }
    let mut out = Vec::new();
    for (name, shard) in &index.weight_map {
        let tensor = shards.get_mut(shard.as_str()).and_then(|tensors| tensors.remove(name));
        let missing =
            || fault(path, name, format!("is not in {shard}, where the index says it is"));
        out.push(tensor.ok_or_else(missing)?);
    }
    if let Some((shard, name)) =
        shards.iter().find_map(|(shard, left)| Some((shard, left.keys().next()?)))
    {
        return Err(fault(
            path,
            name,
            format!("is in {shard} and not where the index says; write the index again"),
        ));
    }
    out.sort_by(|a, b| natural(&a.name, &b.name));
    Ok(out)
}
