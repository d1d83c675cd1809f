//! A compaction of a cache on a device. Scores, keep-set and rows stay there; the host reads the keep-set afterwards, for its books.
//!
//! Two switches take the host in: the choice made by the CPU's selector from downloaded keys, the rows moved by the CPU. Agreement of runs
//! with and without them clears the kernels, not what both share: the rules, the statistics, the lifecycle.

use std::time::Instant;

use half::{bf16, f16};
use lockstep_traces::{DType, Tensor};

use super::backend::CudaRun;
use super::compact::{Failure, Gather, Moved, Wanted, force};
use super::staging::Side;
use crate::cache::{CacheShape, KvCache};
use crate::cuda::gpu::{Buffer, Gpu, GpuError};
use crate::cuda::model::DeviceCache;
use crate::cuda::ops::gather::{CacheSide, GatherOps, KeepLists, KeepShape, Positions};
use crate::cuda::ops::select::{DeviceNoise, DeviceSelect, SelectFailure};
use crate::policy::{Compaction, Policy, PolicyState};
use crate::select::{CacheView, KeepSet, Keys, Selection};

impl From<SelectFailure> for Failure {
    fn from(failure: SelectFailure) -> Self {
        match failure {
            SelectFailure::Gpu(error) => error.into(),
            SelectFailure::Select(error) => error.into(),
        }
    }
}

pub(super) fn compact(
    policy: &Policy,
    run: &mut CudaRun<'_>,
    how: Gather<'_>,
    (cache, state): (&mut DeviceCache, &mut PolicyState),
    due: &Compaction,
    wanted: Wanted,
) -> Result<Moved, Failure> {
    let gpu = run.session.gpu().clone();
    let mut tensors = Vec::new();
    if wanted.cache {
        run.staging.take(&gpu, cache, Side::Before)?;
    }
    if wanted.cache || wanted.scores {
        tensors.push(positions(&gpu, cache, "positions.pre")?);
    }
    let chosen = choose(policy, run, (cache, state), due, wanted)?;
    let Chosen { mut selection, lists } = chosen;
    let own = how.forced.map(|forced| force(&mut selection, forced, due)).transpose()?;
    let lists = if own.is_some() { None } else { lists };
    let keep = &selection.keep;
    let mut uploaded = None;
    let lists = match lists {
        Some(lists) => lists,
        None => upload(&gpu, keep, &mut uploaded)?,
    };
    let by_layer = cache.by_layer() || lists.shape.layers_differ();
    let started = Instant::now();
    if run.options.gather {
        let ops = run.gather(cache)?;
        gather(&gpu, ops, cache, &lists, how)?;
        gpu.synchronize()?;
        cache.swap(keep.len(), by_layer);
    } else {
        gather_on_host(&gpu, cache, keep, how)?;
    }
    let gather_seconds = started.elapsed().as_secs_f64();
    if wanted.cache {
        run.staging.take(&gpu, cache, Side::After)?;
    }
    if wanted.cache || wanted.scores {
        tensors.push(positions(&gpu, cache, "positions.post")?);
    }
    Ok(Moved { selection, own, gather_seconds, tensors })
}

/// A choice, with its lists where they lie on the device.
struct Chosen {
    selection: Selection,
    lists: Option<KeepLists>,
}

fn choose(
    policy: &Policy,
    run: &mut CudaRun<'_>,
    (cache, state): (&mut DeviceCache, &mut PolicyState),
    due: &Compaction,
    wanted: Wanted,
) -> Result<Chosen, Failure> {
    let gpu = run.session.gpu().clone();
    if policy.selector().is_none() || !run.options.select {
        let host = HostRows::read(&gpu, cache, policy.selector().is_some())?;
        let selection = policy.choose(state, due, &host.view(cache), wanted.scores)?;
        return Ok(Chosen { selection, lists: None });
    }
    let noise = noise(policy, &gpu, cache, state)?;
    let timed = run.options.timed;
    let ops = run.select(policy, cache)?;
    let store = cache.store();
    let input = DeviceSelect {
        k_base: store.k.view().address(),
        capacity: store.capacity,
        rows: cache.rows(),
        positions: store.positions.view(),
        positions_by_layer: cache.by_layer(),
        round_start: due.round_start,
        prompt_len: state.prompt_len(),
        keep: due.keep,
        timed,
    };
    let queued = ops.select(&gpu, &input, noise.as_ref())?;
    let answer = ops.selection(&gpu, &queued, wanted.scores)?;
    let lists = answer.is_some().then_some(queued.keep).flatten();
    cache.noise = noise;
    let selection = answer.unwrap_or_else(|| Selection::whole(cache.rows()));
    let prompt_rows = if policy.counts_prompt_rows() {
        let positions = cache.positions(&gpu)?;
        let first = positions.first().map(Vec::as_slice).unwrap_or_default();
        let in_prompt = |row: &&u32| {
            first.get(**row as usize).is_some_and(|&at| (at as usize) < state.prompt_len())
        };
        selection.keep.rows(0, 0).iter().filter(in_prompt).count()
    } else {
        0
    };
    policy.settle(state, due, (selection.keep.len(), prompt_rows));
    Ok(Chosen { selection, lists })
}

/// The sequence's generator, on the device from its first compaction on.
fn noise(
    policy: &Policy,
    gpu: &Gpu,
    cache: &mut DeviceCache,
    state: &PolicyState,
) -> Result<Option<DeviceNoise>, GpuError> {
    match (cache.noise.take(), policy.selector().and_then(crate::select::Selector::noise)) {
        (Some(noise), _) => Ok(Some(noise)),
        (None, Some(fresh)) => {
            let generator = state.noise().cloned().unwrap_or(fresh);
            DeviceNoise::new(gpu, &generator).map(Some)
        }
        (None, None) => Ok(None),
    }
}

fn upload(
    gpu: &Gpu,
    keep: &KeepSet,
    buffer: &mut Option<Buffer<u32>>,
) -> Result<KeepLists, GpuError> {
    let rows: Vec<u32> = keep.lists().flatten().copied().collect();
    let rows = buffer.insert(gpu.upload(&rows)?).view();
    Ok(KeepLists { rows, shape: KeepShape::of(keep), count: keep.len() })
}

fn gather(
    gpu: &Gpu,
    ops: &GatherOps,
    cache: &mut DeviceCache,
    lists: &KeepLists,
    how: Gather<'_>,
) -> Result<(), GpuError> {
    let (from_layers, to_layers) =
        (cache.by_layer(), cache.by_layer() || lists.shape.layers_differ());
    let side = |store: &crate::cuda::model::Store| CacheSide {
        k: store.k.view().address(),
        v: store.v.view().address(),
        capacity: store.capacity,
    };
    let held = |store: &crate::cuda::model::Store, by_layer: bool| Positions {
        list: store.positions.view(),
        by_layer,
        capacity: store.capacity,
    };
    let (from, from_positions) = (side(cache.store()), held(cache.store(), from_layers));
    // Copies of the rows before the last compaction may still be under way from there.
    gpu.join_beside()?;
    let spare = cache.spare(gpu)?;
    ops.rows(gpu, from, side(spare), lists, how.mode)?;
    ops.positions(gpu, &from_positions, &held(spare, to_layers), lists)
}

/// K (and V) of every layer and head in host memory, with positions.
struct HostRows {
    k: Vec<Vec<u8>>,
    v: Vec<Vec<u8>>,
    positions: Vec<Vec<u32>>,
}

impl HostRows {
    fn read(gpu: &Gpu, cache: &DeviceCache, keys: bool) -> Result<Self, GpuError> {
        let shape = *cache.shape();
        let all = |value: bool| -> Result<Vec<Vec<u8>>, GpuError> {
            (0..shape.layers * shape.kv_heads)
                .map(|i| gpu.read(cache.head(value, i / shape.kv_heads, i % shape.kv_heads)?))
                .collect()
        };
        Ok(Self {
            k: if keys { all(false)? } else { Vec::new() },
            v: Vec::new(),
            positions: cache.positions(gpu)?,
        })
    }

    fn view<'a>(&'a self, cache: &DeviceCache) -> CacheView<'a> {
        let dtype = cache.shape().dtype;
        let keys = self.k.iter().map(|bytes| match dtype {
            DType::F16 => Keys::F16(cast::<f16>(bytes)),
            DType::Bf16 => Keys::Bf16(cast::<bf16>(bytes)),
            _ => Keys::F32(cast::<f32>(bytes)),
        });
        let positions = self.positions.iter().map(Vec::as_slice).collect();
        CacheView { rows: cache.rows(), keys: keys.collect(), positions }
    }
}

/// Allocations of bytes are aligned for every element by the system's allocator; where one is not, nothing is seen and the length is refused.
fn cast<T: bytemuck::Pod>(bytes: &[u8]) -> &[T] {
    bytemuck::try_cast_slice(bytes).unwrap_or_default()
}

/// Downloads every row, moves them as the CPU backend does, and uploads what stays.
fn gather_on_host(
    gpu: &Gpu,
    cache: &mut DeviceCache,
    keep: &KeepSet,
    how: Gather<'_>,
) -> Result<(), Failure> {
    let shape = *cache.shape();
    let mut host = HostRows::read(gpu, cache, true)?;
    for index in 0..shape.layers * shape.kv_heads {
        let part = cache.head(true, index / shape.kv_heads, index % shape.kv_heads)?;
        host.v.push(gpu.read(part)?);
    }
    let capacity = cache.rows();
    let sizes = CacheShape {
        layers: shape.layers,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        dtype: shape.dtype,
        capacity,
    };
    let mut moved = KvCache::from_rows(sizes, &host.k, &host.v, host.positions)?;
    moved.gather(|layer, head| keep.rows(layer, head), how.mode)?;
    let heads = |layer: usize| (0..shape.kv_heads).map(move |head| (layer, head));
    cache.swap_from_host(gpu, moved.rows(), moved.by_layer())?;
    for (layer, head) in (0..shape.layers).flat_map(heads) {
        gpu.write(cache.head(false, layer, head)?, moved.k(layer, head).bytes())?;
        gpu.write(cache.head(true, layer, head)?, moved.v(layer, head).bytes())?;
        if layer == 0 || moved.by_layer() {
            gpu.write(cache.position_list(layer, head)?, moved.positions(layer, head))?;
        }
    }
    Ok(())
}

fn positions(gpu: &Gpu, cache: &DeviceCache, name: &str) -> Result<Tensor, GpuError> {
    let shape = cache.shape();
    let mut sizes = vec![shape.kv_heads, cache.rows()];
    if cache.by_layer() {
        sizes.insert(0, shape.layers);
    }
    let lists = cache.positions(gpu)?;
    let data = lists.iter().flatten().flat_map(|position| position.to_le_bytes()).collect();
    Ok(Tensor { name: name.to_owned(), dtype: DType::I32, shape: sizes, data })
}
