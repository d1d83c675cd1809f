//! The KV cache of one sequence: rows by layer and KV head, and their absolute positions.

use half::{bf16, f16};
use lockstep_traces::DType;
use rayon::prelude::*;

use crate::RuntimeError;
use crate::weights::Elements;

/// Rows of one layer and KV head, `[rows, head_dim]`, in the cache dtype.
#[derive(Debug, Clone)]
enum Rows {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Rows {
    fn new(dtype: DType) -> Self {
        match dtype {
            DType::F16 => Self::F16(Vec::new()),
            DType::Bf16 => Self::Bf16(Vec::new()),
            _ => Self::F32(Vec::new()),
        }
    }

    /// Appends values, rounded to nearest even; `ceiling` is the number of elements that are never exceeded.
    fn append(&mut self, values: &[f32], ceiling: usize) {
        fn room<T>(rows: &mut Vec<T>, more: usize, ceiling: usize) {
            if rows.capacity() - rows.len() < more {
                let wanted =
                    (2 * rows.len()).clamp(rows.len() + more, ceiling.max(rows.len() + more));
                rows.reserve_exact(wanted - rows.len());
            }
        }
        match self {
            Self::F32(rows) => {
                room(rows, values.len(), ceiling);
                rows.extend_from_slice(values);
            }
            Self::F16(rows) => {
                room(rows, values.len(), ceiling);
                rows.extend(values.iter().map(|value| f16::from_f32(*value)));
            }
            Self::Bf16(rows) => {
                room(rows, values.len(), ceiling);
                rows.extend(values.iter().map(|value| bf16::from_f32(*value)));
            }
        }
    }

    fn elements(&self) -> Elements<'_> {
        match self {
            Self::F32(rows) => Elements::F32(rows),
            Self::F16(rows) => Elements::F16(rows),
            Self::Bf16(rows) => Elements::Bf16(rows),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::F32(rows) => bytemuck::cast_slice(rows),
            Self::F16(rows) => bytemuck::cast_slice(rows),
            Self::Bf16(rows) => bytemuck::cast_slice(rows),
        }
    }

    /// Row `i` becomes the former row `keep[i]`.
    fn gather(&mut self, keep: &[u32], dim: usize) {
        fn pick<T: Copy>(rows: &mut Vec<T>, keep: &[u32], dim: usize) {
            let mut kept = Vec::with_capacity(rows.capacity());
            for row in keep {
                let start = *row as usize * dim;
                kept.extend_from_slice(&rows[start..start + dim]);
            }
            *rows = kept;
        }
        match self {
            Self::F32(rows) => pick(rows, keep, dim),
            Self::F16(rows) => pick(rows, keep, dim),
            Self::Bf16(rows) => pick(rows, keep, dim),
        }
    }
}

/// Sizes of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheShape {
    /// Layers.
    pub layers: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Head width.
    pub head_dim: usize,
    /// Element type.
    pub dtype: DType,
    /// Physical rows that may be held.
    pub capacity: usize,
}

impl CacheShape {
    /// Bytes of one row over all layers and heads, K and V.
    #[must_use]
    pub const fn row_bytes(&self) -> usize {
        2 * self.layers * self.kv_heads * self.head_dim * self.dtype.size()
    }
}

/// The cache of one sequence. K is stored rotated. Memory grows with the rows held, up to the capacity.
#[derive(Debug, Clone)]
pub struct KvCache {
    shape: CacheShape,
    rows: usize,
    /// By `layer * kv_heads + head`.
    k: Vec<Rows>,
    v: Vec<Rows>,
    /// Absolute positions by KV head, or by `layer * kv_heads + head` once a keep-set differed between layers.
    positions: Vec<Vec<u32>>,
}

/// What one gather does. The default is right; the two switches are planted faults (see `faults`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GatherMode {
    /// V keeps its first rows instead of the chosen ones.
    pub value_kept_in_place: bool,
    /// Row 0 of the last layer's last head that moved keeps what was in its slot.
    pub stale_row: bool,
}

impl KvCache {
    /// An empty cache.
    #[must_use]
    pub fn new(shape: CacheShape) -> Self {
        let heads = shape.layers * shape.kv_heads;
        Self {
            shape,
            rows: 0,
            k: vec![Rows::new(shape.dtype); heads],
            v: vec![Rows::new(shape.dtype); heads],
            positions: vec![Vec::new(); shape.kv_heads],
        }
    }

    /// A cache of rows that are there already: bytes by layer and head, positions by head (or by layer and head).
    ///
    /// # Errors
    /// [`RuntimeError::KeepSet`] where lists are missing or differ in length.
    pub(crate) fn from_rows(
        shape: CacheShape,
        k: &[Vec<u8>],
        v: &[Vec<u8>],
        positions: Vec<Vec<u32>>,
    ) -> Result<Self, RuntimeError> {
        let rows = positions.first().map_or(0, Vec::len);
        let bytes = rows * shape.head_dim * shape.dtype.size();
        let heads = shape.layers * shape.kv_heads;
        let whole = k.len() == heads
            && v.len() == heads
            && k.iter().chain(v).all(|list| list.len() == bytes)
            && positions.iter().all(|list| list.len() == rows);
        if !whole {
            let what = "the lists of rows differ in length".to_owned();
            return Err(RuntimeError::KeepSet { layer: 0, head: 0, what });
        }
        let read = |list: &Vec<u8>| match shape.dtype {
            DType::F16 => Rows::F16(bytemuck::allocation::pod_collect_to_vec(list)),
            DType::Bf16 => Rows::Bf16(bytemuck::allocation::pod_collect_to_vec(list)),
            _ => Rows::F32(bytemuck::allocation::pod_collect_to_vec(list)),
        };
        let (k, v) = (k.iter().map(read).collect(), v.iter().map(read).collect());
        Ok(Self { shape, rows, k, v, positions })
    }

    /// Sizes.
    #[must_use]
    pub const fn shape(&self) -> CacheShape {
        self.shape
    }

    /// Live rows, the same in every layer and head.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Rows that can still be appended.
    #[must_use]
    pub const fn free(&self) -> usize {
        self.shape.capacity.saturating_sub(self.rows)
    }

    /// Bytes of the live rows.
    #[must_use]
    pub const fn live_bytes(&self) -> usize {
        self.rows * self.shape.row_bytes()
    }

    /// Absolute positions of the rows of one layer and head.
    #[must_use]
    pub fn positions(&self, layer: usize, head: usize) -> &[u32] {
        let index = if self.by_layer() { layer * self.shape.kv_heads + head } else { head };
        &self.positions[index]
    }

    /// Do positions differ between layers (or may they)?
    #[must_use]
    pub fn by_layer(&self) -> bool {
        self.positions.len() > self.shape.kv_heads
    }

    /// K of one layer and head, `[rows, head_dim]`; during a forward pass the rows being appended are there too.
    #[must_use]
    pub fn k(&self, layer: usize, head: usize) -> Elements<'_> {
        self.k[layer * self.shape.kv_heads + head].elements()
    }

    /// V of one layer and head, as [`KvCache::k`].
    #[must_use]
    pub fn v(&self, layer: usize, head: usize) -> Elements<'_> {
        self.v[layer * self.shape.kv_heads + head].elements()
    }

    /// K of one layer as stored, `[kv_heads, rows, head_dim]`, little-endian.
    #[must_use]
    pub fn k_bytes(&self, layer: usize) -> Vec<u8> {
        self.layer(layer).flat_map(|index| self.k[index].bytes()).copied().collect()
    }

    /// V of one layer as stored, as [`KvCache::k_bytes`].
    #[must_use]
    pub fn v_bytes(&self, layer: usize) -> Vec<u8> {
        self.layer(layer).flat_map(|index| self.v[index].bytes()).copied().collect()
    }

    fn layer(&self, layer: usize) -> std::ops::Range<usize> {
        layer * self.shape.kv_heads..(layer + 1) * self.shape.kv_heads
    }

    /// Appends the K and V of one layer for some rows, each `[n, kv_heads, head_dim]`; the rows count once
    /// [`KvCache::commit`] is called.
    pub(crate) fn append(&mut self, layer: usize, k: &[f32], v: &[f32]) {
        let CacheShape { kv_heads, head_dim, capacity, .. } = self.shape;
        let width = kv_heads * head_dim;
        let ceiling = capacity.saturating_mul(head_dim);
        for (k, v) in k.chunks_exact(width).zip(v.chunks_exact(width)) {
            for head in 0..kv_heads {
                let part = head * head_dim..(head + 1) * head_dim;
                self.k[layer * kv_heads + head].append(&k[part.clone()], ceiling);
                self.v[layer * kv_heads + head].append(&v[part], ceiling);
            }
        }
    }

    /// Counts `positions.len()` rows that every layer has appended.
    pub(crate) fn commit(&mut self, positions: std::ops::Range<u32>) {
        self.rows += positions.len();
        for head in &mut self.positions {
            head.extend(positions.clone());
        }
    }

    /// Keeps the rows `keep(layer, head)`, in that order, in every layer and head.
    ///
    /// # Errors
    /// [`RuntimeError::KeepSet`] where an index is outside the rows, comes twice, or the heads differ in length.
    pub fn gather<'a>(
        &mut self,
        keep: impl Fn(usize, usize) -> &'a [u32] + Sync,
        mode: GatherMode,
    ) -> Result<(), RuntimeError> {
        let CacheShape { layers, kv_heads, head_dim, .. } = self.shape;
        let heads = (0..layers).flat_map(|layer| (0..kv_heads).map(move |head| (layer, head)));
        let kept = keep(0, 0).len();
        let mut shared = true;
        for (layer, head) in heads {
            check(keep(layer, head), self.rows, kept).map_err(|what| RuntimeError::KeepSet {
                layer,
                head,
                what,
            })?;
            shared &= keep(layer, head) == keep(0, head);
        }
        if !shared && !self.by_layer() {
            self.positions = (0..layers).flat_map(|_| self.positions.clone()).collect();
        }
        for (index, positions) in self.positions.iter_mut().enumerate() {
            let rows = keep(index / kv_heads, index % kv_heads);
            *positions = rows.iter().map(|row| positions[*row as usize]).collect();
        }
        let first: Vec<u32> = (0..kept as u32).collect();
        let move_rows = |index: usize, k: &mut Rows, v: &mut Rows| {
            let rows = keep(index / kv_heads, index % kv_heads);
            let stale = mode.stale_row && index + 1 == layers * kv_heads;
            let spoiled = if stale { stale_rows(rows) } else { rows.to_vec() };
            k.gather(&spoiled, head_dim);
            v.gather(if mode.value_kept_in_place { &first } else { &spoiled }, head_dim);
        };
        self.k
            .par_iter_mut()
            .zip(&mut self.v)
            .enumerate()
            .for_each(|(index, (k, v))| move_rows(index, k, v));
        self.rows = kept;
        Ok(())
    }
}

/// Indices in range and unique, and as many as in the other heads.
fn check(keep: &[u32], rows: usize, kept: usize) -> Result<(), String> {
    if keep.len() != kept {
        return Err(format!("{} rows kept, {kept} in the first head", keep.len()));
    }
    let mut seen = vec![false; rows];
    for row in keep {
        match seen.get_mut(*row as usize) {
            None => return Err(format!("row {row} is outside the {rows} rows")),
            Some(true) => return Err(format!("row {row} comes twice")),
            Some(slot) => *slot = true,
        }
    }
    Ok(())
}

/// A keep-set whose last moved slot is left out of the copy, so that the slot's old row stays in it.
fn stale_rows(keep: &[u32]) -> Vec<u32> {
    let mut rows = keep.to_vec();
    if let Some(slot) = (0..keep.len()).rev().find(|slot| keep[*slot] as usize != *slot) {
        rows[slot] = slot as u32;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two layers, two heads, width 2; the value of a K element is `100 layer + 10 head + row`, of V its negative.
    fn filled(dtype: DType, rows: u32) -> KvCache {
        let shape = CacheShape { layers: 2, kv_heads: 2, head_dim: 2, dtype, capacity: 8 };
        let mut cache = KvCache::new(shape);
        for layer in 0..2 {
            let k: Vec<f32> = (0..rows)
                .flat_map(|row| (0..2).map(move |head| (row, head)))
                .flat_map(|(row, head)| [(100 * layer + 10 * head + row) as f32; 2])
                .collect();
            let v: Vec<f32> = k.iter().map(|value| -value).collect();
            cache.append(layer as usize, &k, &v);
        }
        cache.commit(0..rows);
        cache
    }

    fn row(elements: Elements<'_>, row: usize) -> Option<f32> {
        elements.get(2 * row)
    }

    #[test]
    fn heads_follow_their_own_keep_sets_in_any_order() {
        let mut cache = filled(DType::F16, 5);
        assert_eq!(cache.free(), 3);
        let sets: [&[u32]; 2] = [&[4, 0, 2], &[1, 2, 3]];
        cache.gather(|_, head| sets[head], GatherMode::default()).unwrap();
        assert_eq!(cache.rows(), 3);
        assert_eq!(cache.free(), 5);
        assert_eq!(row(cache.k(1, 0), 0), Some(104.0));
        assert_eq!(row(cache.v(1, 0), 1), Some(-100.0));
        assert_eq!(row(cache.v(0, 1), 2), Some(-13.0));
        assert_eq!(cache.positions(1, 0), [4, 0, 2]);
        assert!(!cache.by_layer());
        assert_eq!(cache.live_bytes(), 3 * 2 * 2 * 2 * 2 * 2);
    }

    #[test]
    fn layers_may_keep_different_rows_and_positions_follow() {
        let mut cache = filled(DType::F32, 4);
        let sets: [&[u32]; 2] = [&[0, 1], &[2, 3]];
        cache.gather(|layer, _| sets[layer], GatherMode::default()).unwrap();
        assert!(cache.by_layer());
        assert_eq!(cache.positions(0, 1), [0, 1]);
        assert_eq!(cache.positions(1, 1), [2, 3]);
        cache.gather(|_, _| &[1], GatherMode::default()).unwrap();
        assert_eq!(cache.positions(1, 0), [3]);
        assert_eq!(row(cache.k(1, 1), 0), Some(113.0));
    }

    #[test]
    fn a_keep_set_that_cannot_be_followed_is_refused_and_nothing_moves() {
        for (sets, wanted) in
            [([[0, 5], [0, 1]], (0, 0)), ([[0, 1], [2, 2]], (0, 1))] as [([[u32; 2]; 2], _); 2]
        {
            let mut cache = filled(DType::F32, 5);
            let error = cache.gather(|_, head| &sets[head], GatherMode::default()).unwrap_err();
            let RuntimeError::KeepSet { layer, head, .. } = error else { panic!("{error}") };
            assert_eq!((layer, head), wanted);
            assert_eq!(cache.rows(), 5);
        }
        let uneven: [&[u32]; 2] = [&[0, 1], &[0]];
        let mut cache = filled(DType::F32, 5);
        assert!(cache.gather(|_, head| uneven[head], GatherMode::default()).is_err());
    }

    #[test]
    fn values_are_rounded_to_the_cache_dtype() {
        let shape =
            CacheShape { layers: 1, kv_heads: 1, head_dim: 2, dtype: DType::Bf16, capacity: 1 };
        let mut cache = KvCache::new(shape);
        let step = 2_f32.powi(-8);
        // Halfway between two bf16 numbers: the even one is below, then above.
        cache.append(0, &[1.0 + step, 1.0 + 3.0 * step], &[0.0, 0.0]);
        cache.commit(7..8);
        assert_eq!(cache.k(0, 0).get(0), Some(1.0));
        assert_eq!(cache.k(0, 0).get(1), Some(1.015_625));
        assert_eq!(cache.k_bytes(0), [0x80, 0x3F, 0x82, 0x3F]);
        assert_eq!(cache.positions(0, 0), [7]);
    }

    #[test]
    fn planted_gathers_spoil_what_they_say() {
        let mut cache = filled(DType::F32, 4);
        let mode = GatherMode { value_kept_in_place: true, stale_row: false };
        cache.gather(|_, _| &[1, 3], mode).unwrap();
        assert_eq!(row(cache.k(1, 0), 1), Some(103.0));
        assert_eq!(row(cache.v(1, 0), 1), Some(-101.0));

        let mut cache = filled(DType::F32, 4);
        let mode = GatherMode { value_kept_in_place: false, stale_row: true };
        cache.gather(|_, _| &[1, 3], mode).unwrap();
        assert_eq!(row(cache.k(1, 0), 1), Some(103.0));
        assert_eq!([row(cache.k(1, 1), 0), row(cache.k(1, 1), 1)], [Some(111.0); 2]);
        assert_eq!(cache.positions(1, 1), [1, 3]);
    }
}
