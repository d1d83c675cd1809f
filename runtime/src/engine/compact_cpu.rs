//! A compaction of a cache in host memory.

use std::time::Instant;

use lockstep_traces::{DType, Tensor};

use super::compact::{Failure, Gather, Moved, Wanted, force};
use crate::cache::KvCache;
use crate::policy::{Compaction, Policy, PolicyState};
use crate::select::{CacheView, Keys};
use crate::weights::Elements;

pub(super) fn compact(
    policy: &Policy,
    how: Gather<'_>,
    (cache, state): (&mut KvCache, &mut PolicyState),
    due: &Compaction,
    wanted: Wanted,
) -> Result<Moved, Failure> {
    let mut tensors = Vec::new();
    if wanted.cache {
        tensors.extend(rows(cache, "pre"));
    }
    if wanted.cache || wanted.scores {
        tensors.push(positions(cache, "positions.pre"));
    }
    let mut selection = policy.choose(state, due, &view(cache), wanted.scores)?;
    let own = how.forced.map(|forced| force(&mut selection, forced, due)).transpose()?;
    let started = Instant::now();
    cache.gather(|layer, head| selection.keep.rows(layer, head), how.mode)?;
    let gather_seconds = started.elapsed().as_secs_f64();
    if wanted.cache {
        tensors.extend(rows(cache, "post"));
    }
    if wanted.cache || wanted.scores {
        tensors.push(positions(cache, "positions.post"));
    }
    Ok(Moved { selection, own, gather_seconds, tensors })
}

fn heads(cache: &KvCache) -> impl Iterator<Item = (usize, usize)> {
    let shape = cache.shape();
    (0..shape.layers).flat_map(move |layer| (0..shape.kv_heads).map(move |head| (layer, head)))
}

fn view(cache: &KvCache) -> CacheView<'_> {
    let keys = heads(cache)
        .map(|(layer, head)| match cache.k(layer, head) {
            Elements::F32(rows) => Keys::F32(rows),
            Elements::F16(rows) => Keys::F16(rows),
            Elements::Bf16(rows) => Keys::Bf16(rows),
        })
        .collect();
    let positions = heads(cache)
        .filter(|(layer, _)| *layer == 0 || cache.by_layer())
        .map(|(layer, head)| cache.positions(layer, head))
        .collect();
    CacheView { rows: cache.rows(), keys, positions }
}

/// K and V of every layer, `[kv_heads, rows, head_dim]`, as stored.
fn rows(cache: &KvCache, when: &str) -> Vec<Tensor> {
    let shape = cache.shape();
    let tensor = |name: &str, layer: usize, data: Vec<u8>| Tensor {
        name: format!("{when}.{name}.layer{layer:02}"),
        dtype: shape.dtype,
        shape: vec![shape.kv_heads, cache.rows(), shape.head_dim],
        data,
    };
    (0..shape.layers)
        .flat_map(|layer| {
            [tensor("k", layer, cache.k_bytes(layer)), tensor("v", layer, cache.v_bytes(layer))]
        })
        .collect()
}

fn positions(cache: &KvCache, name: &str) -> Tensor {
    let shape = cache.shape();
    let mut sizes = vec![shape.kv_heads, cache.rows()];
    if cache.by_layer() {
        sizes.insert(0, shape.layers);
    }
    let data = heads(cache)
        .filter(|(layer, _)| *layer == 0 || cache.by_layer())
        .flat_map(|(layer, head)| cache.positions(layer, head))
        .flat_map(|position| position.to_le_bytes())
        .collect();
    Tensor { name: name.to_owned(), dtype: DType::I32, shape: sizes, data }
}
