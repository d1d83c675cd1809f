//! Tensor files and statistics.

use std::path::Path;

use lockstep_traces::gguf::{GgufHeader, GgufValue, is_gguf};
use lockstep_traces::stats::{self, QueryStats};
use lockstep_traces::tensor_files::{
    PlainTensor, RawSpec, ReadOptions, TensorSet, read, recognised,
};

use super::{place, same, seal};

/// Elements of a tensor that are looked at.
const LOOKED_AT: u64 = 4096;

/// A header of a GGUF file.
pub(super) fn gguf(data: &[u8]) {
    place::file("model.gguf", data, |path| {
        let _ = is_gguf(path);
    });
    let Ok(header) = GgufHeader::parse(data) else { return };
    for (key, value) in &header.values {
        assert!(header.get(key).is_some());
        known(value, 0);
    }
    for tensor in header.tensors.values() {
        assert!(tensor.range.end <= data.len() && tensor.range.start <= tensor.range.end);
        assert!(tensor.range.start >= header.data);
        assert_eq!(tensor.shape().iter().product::<usize>(), tensor.elements());
    }
}

fn known(value: &GgufValue, depth: usize) {
    assert!(depth < 100, "nesting is bounded");
    let _ = (value.as_u64(), value.as_f64(), value.as_bool(), value.as_text(), value.kind());
    for inner in value.as_array().unwrap_or_default() {
        known(inner, depth + 1);
    }
}

/// A NumPy array.
pub(super) fn npy(data: &[u8]) {
    place::file("a.npy", data, any);
}

/// An archive as it stands: directory, entries, checksums.
pub(super) fn zip(data: &[u8]) {
    place::file("a.npz", data, any);
    place::file("a.pt", data, |path| {
        any(path);
        let _ = stats::read(path);
    });
}

/// An archive around the files of a tree: arrays of `numpy.savez`, pickle and storages of `torch.save`.
pub(super) fn zip_entries(data: &[u8]) {
    place::file("a.pt", &seal::zip(&place::unpack(data)), any);
}

/// A bare pickle with storages behind it.
pub(super) fn pickle(data: &[u8]) {
    place::file("a.pt", data, any);
}

/// A safetensors file.
pub(super) fn safetensors(data: &[u8]) {
    place::file("a.safetensors", data, any);
}

/// JSON: Polygraphy, an index of shards, or lists of numbers.
pub(super) fn json(data: &[u8]) {
    place::file("a.json", data, any);
}

/// Bytes without a header; the first line declares them.
pub(super) fn raw(data: &[u8]) {
    let at = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (declared, bytes) = data.split_at(at);
    let spec = std::str::from_utf8(declared).ok().and_then(|text| text.parse::<RawSpec>().ok());
    let Some(spec) = spec else { return };
    let options = ReadOptions { raw: vec![spec] };
    place::file("k.bin", bytes.get(1..).unwrap_or_default(), |path| {
        if let Ok(set) = read(path, &options) {
            whole(&set);
        }
    });
}

/// A folder: SGLang, msProbe or TensorRT-LLM dumps, shards, anything.
pub(super) fn folder(data: &[u8]) {
    place::tree(data, any);
}

fn any(path: &Path) {
    let _ = recognised(path);
    if let Ok(set) = read(path, &ReadOptions::default()) {
        whole(&set);
    }
}

fn whole(set: &TensorSet) {
    for tensor in set.tensors.iter().take(64) {
        let _ = tensor.verify();
        inside(tensor);
        let _ = tensor.is_packed();
    }
    for misfit in &set.misfits {
        for element in &misfit.fits {
            assert!(misfit.read_as(*element).is_ok(), "{} was said to fit", element.name());
        }
    }
}

/// Every index that shape and strides allow lies within the bytes.
fn inside(tensor: &PlainTensor) {
    let (size, bytes) = (tensor.element.size(), tensor.bytes());
    assert_eq!(tensor.shape.len(), tensor.strides.len());
    let elements = tensor.elements();
    if elements == 0 {
        return;
    }
    let axes = || tensor.shape.iter().zip(&tensor.strides);
    let last = axes().fold(tensor.offset, |at, (count, stride)| at + (count - 1) * stride);
    assert!((last + 1) * size <= bytes.len(), "`{}` leaves its {} bytes", tensor.name, bytes.len());
    for number in 0..elements.min(LOOKED_AT) {
        let (mut rest, mut at) = (number, tensor.offset);
        for (count, stride) in axes().rev() {
            at += (rest % *count as u64) as usize * stride;
            rest /= *count as u64;
        }
        assert!(bytes.get(at * size..(at + 1) * size).is_some());
    }
}

/// Statistics as dense safetensors.
pub(super) fn stats_dense(data: &[u8]) {
    place::file("stats.safetensors", data, statistics);
}

/// Statistics that `torch.save` wrote: an archive around the files of a tree.
pub(super) fn stats_torch(data: &[u8]) {
    place::file("stats.pt", &seal::zip(&place::unpack(data)), statistics);
}

/// Reads statistics; both ways of writing them give them back.
fn statistics(path: &Path) {
    let Ok(stats) = stats::read(path) else { return };
    for &layer in &stats.layers {
        for &head in &stats.heads {
            let Some(found) = stats.head(layer, head) else { continue };
            assert_eq!(found.mean_real.len(), stats.freqs);
            assert_eq!(found.mean_imag.len(), stats.freqs);
            assert_eq!(found.abs_mean.len(), stats.freqs);
        }
    }
    let dense = path.with_file_name("again.safetensors");
    if stats::write_safetensors(&stats, &dense).is_ok() {
        let back = stats::read(&dense).expect("statistics that were written are read");
        assert!(same(&numbers(&back), &numbers(&stats)), "safetensors: {back:?} is not {stats:?}");
    }
    let torch = path.with_file_name("again.pt");
    if stats::write_pt(&stats, &torch).is_ok() {
        let back = stats::read(&torch).expect("statistics that were written are read");
        assert!(same(&sampled(&back), &sampled(&stats)), "pt: {back:?} is not {stats:?}");
    }
}

/// What the dense layout keeps.
fn numbers(stats: &QueryStats) -> impl PartialEq + std::fmt::Debug {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    (
        stats.layers.clone(),
        stats.heads.clone(),
        stats.freqs,
        bits(&stats.q_mean_real),
        bits(&stats.q_mean_imag),
        bits(&stats.q_abs_mean),
    )
}

/// What the layout by head keeps: the heads that were sampled.
fn sampled(stats: &QueryStats) -> impl PartialEq + std::fmt::Debug {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let one = |&(layer, head): &(u32, u32)| {
        let found = stats.head(layer, head);
        (layer, head, found.map(|h| (bits(h.mean_real), bits(h.mean_imag))))
    };
    stats.sampled.iter().map(one).collect::<Vec<_>>()
}
