//! Inputs of a selection on both sides.

use half::{bf16, f16};
use lockstep_traces::stats::QueryStats;
use lockstep_traces::{Cause, DType, PolicySpec};

use super::*;
use crate::RotaryTable;
use crate::cuda::gpu::{Buffer, Gpu};
use crate::select::{CacheView, Dims, Keys, Rules, SelectError, SelectInput, Selection, Selector};

/// The emulator, or a word of why not.
pub(super) fn emulator() -> Option<Gpu> {
    match Gpu::emulated() {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

pub(super) struct Random(u64);

impl Random {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In (-1, 1).
    fn value(&mut self) -> f32 {
        ((self.word() >> 40) as f32 + 0.5) / (1 << 23) as f32 - 1.0
    }

    fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.value()).collect()
    }
}

/// Keys of a dtype, `[layers][kv_heads][capacity][head_dim]`, on both sides. Rows beyond the live ones are NaN.
pub(super) struct KeyBlock {
    rows: usize,
    capacity: usize,
    width: usize,
    f32s: Vec<f32>,
    f16s: Vec<f16>,
    bf16s: Vec<bf16>,
    dtype: DType,
    device: Device,
}

enum Device {
    Wide(Buffer<f32>),
    Narrow(Buffer<u16>),
}

impl KeyBlock {
    /// `wide` holds the live rows, `[layers * kv_heads][rows][width]`.
    pub(super) fn new(
        gpu: &Gpu,
        dtype: DType,
        wide: &[f32],
        (rows, capacity, width): (usize, usize, usize),
    ) -> Self {
        let mut f32s = Vec::new();
        for head in wide.chunks(rows * width) {
            f32s.extend_from_slice(head);
            f32s.resize(f32s.len() + (capacity - rows) * width, f32::NAN);
        }
        let (mut f16s, mut bf16s) = (Vec::new(), Vec::new());
        let device = match dtype {
            DType::F16 => {
                f16s = f32s.iter().map(|&value| f16::from_f32(value)).collect();
                let bits: Vec<u16> = f16s.iter().map(|value| value.to_bits()).collect();
                Device::Narrow(gpu.upload(&bits).unwrap())
            }
            DType::Bf16 => {
                bf16s = f32s.iter().map(|&value| bf16::from_f32(value)).collect();
                let bits: Vec<u16> = bf16s.iter().map(|value| value.to_bits()).collect();
                Device::Narrow(gpu.upload(&bits).unwrap())
            }
            _ => Device::Wide(gpu.upload(&f32s).unwrap()),
        };
        Self { rows, capacity, width, f32s, f16s, bf16s, dtype, device }
    }

    pub(super) fn address(&self) -> u64 {
        match &self.device {
            Device::Wide(buffer) => buffer.view().address(),
            Device::Narrow(buffer) => buffer.view().address(),
        }
    }

    pub(super) fn keys(&self) -> Vec<Keys<'_>> {
        let (size, live) = (self.capacity * self.width, self.rows * self.width);
        match self.dtype {
            DType::F16 => self.f16s.chunks(size).map(|head| Keys::F16(&head[..live])).collect(),
            DType::Bf16 => self.bf16s.chunks(size).map(|head| Keys::Bf16(&head[..live])).collect(),
            _ => self.f32s.chunks(size).map(|head| Keys::F32(&head[..live])).collect(),
        }
    }
}

/// Positions by list, padded to the capacity.
pub(super) fn padded(positions: &[Vec<u32>], capacity: usize) -> Vec<u32> {
    let mut all = Vec::new();
    for list in positions {
        all.extend_from_slice(list);
        // What lies beyond the live rows may be anything.
        all.resize(all.len() + capacity - list.len(), u32::MAX);
    }
    all
}

/// One selection's input.
pub(super) struct Setup {
    pub(super) dims: Dims,
    pub(super) rows: usize,
    pub(super) dtype: DType,
    pub(super) wide: Vec<f32>,
    pub(super) positions: Vec<Vec<u32>>,
    pub(super) stats: QueryStats,
    pub(super) rotary: RotaryTable,
    pub(super) round_start: u32,
    pub(super) prompt_len: usize,
    pub(super) keep: usize,
}

impl Setup {
    pub(super) fn new(dims: Dims, rows: usize, dtype: DType, seed: u64) -> Self {
        let mut random = Random(seed);
        let (heads, freqs) = (dims.layers * dims.q_heads, dims.freqs());
        let size = heads * freqs;
        let stats = QueryStats {
            layers: (0..dims.layers as u32).collect(),
            heads: (0..dims.q_heads as u32).collect(),
            freqs,
            q_mean_real: random.values(size),
            q_mean_imag: random.values(size),
            q_abs_mean: random.values(size).iter().map(|value| 1.6 + 0.2 * value).collect(),
            sampled: (0..dims.layers as u32)
                .flat_map(|layer| (0..dims.q_heads as u32).map(move |head| (layer, head)))
                .collect(),
            ..QueryStats::default()
        };
        let inv_freq =
            (0..freqs).map(|f| 1e4_f64.powf(-(f as f64) / freqs as f64) as f32).collect();
        // Rows with holes, ascending, their newest just below R; R is no row count.
        let round_start = 3 * rows as u32 + 1000;
        let lists =
            if seed.is_multiple_of(2) { dims.kv_heads } else { dims.layers * dims.kv_heads };
        let positions = (0..lists)
            .map(|list| {
                let late = 12 + list % 3;
                (0..rows)
                    .map(|row| {
                        if row < late { row as u32 } else { round_start - 2 * (rows - row) as u32 }
                    })
                    .collect()
            })
            .collect();
        Self {
            dims,
            rows,
            dtype,
            wide: random.values(dims.layers * dims.kv_heads * rows * dims.head_dim),
            positions,
            stats,
            rotary: RotaryTable { inv_freq, attention_scaling: 1.0 },
            round_start,
            prompt_len: 13,
            keep: rows * 3 / 5,
        }
    }

    pub(super) fn selector(
        &self,
        spec: &PolicySpec,
        plant: Option<Cause>,
    ) -> Result<Selector, SelectError> {
        Selector::new(Rules::resolve(spec)?, &self.stats, &self.rotary, self.dims, plant)
    }

    pub(super) fn on_cpu(
        &self,
        selector: &Selector,
        block: &KeyBlock,
        rounds: usize,
    ) -> Result<Option<Selection>, SelectError> {
        let positions = self.positions.iter().map(Vec::as_slice).collect();
        let cache = CacheView { rows: self.rows, keys: block.keys(), positions };
        let input = SelectInput {
            cache: &cache,
            round_start: self.round_start,
            prompt_len: self.prompt_len,
            keep: self.keep,
        };
        let mut noise = selector.noise();
        for _ in 1..rounds {
            selector.select(&input, noise.as_mut(), false)?;
        }
        selector.select(&input, noise.as_mut(), true)
    }

    pub(super) fn on_device(
        &self,
        gpu: &Gpu,
        selector: &Selector,
        block: &KeyBlock,
        rounds: usize,
    ) -> Result<Option<Selection>, SelectFailure> {
        let ops = SelectOps::new(gpu, selector, self.dtype, self.rows + 3)?;
        let positions = gpu.upload(&padded(&self.positions, block.capacity))?;
        let input = DeviceSelect {
            k_base: block.address(),
            capacity: block.capacity,
            rows: self.rows,
            positions: positions.view(),
            positions_by_layer: self.positions.len() > self.dims.kv_heads,
            round_start: self.round_start,
            prompt_len: self.prompt_len,
            keep: self.keep,
            timed: false,
        };
        let noise = selector.noise().map(|noise| DeviceNoise::new(gpu, &noise)).transpose()?;
        for _ in 1..rounds {
            ops.select(gpu, &input, noise.as_ref())?;
        }
        let queued = ops.select(gpu, &input, noise.as_ref())?;
        ops.selection(gpu, &queued, true)
    }

    pub(super) fn block(&self, gpu: &Gpu) -> KeyBlock {
        let shape = (self.rows, self.rows + 5, self.dims.head_dim);
        KeyBlock::new(gpu, self.dtype, &self.wide, shape)
    }
}

pub(super) fn device_input(
    gpu: &Gpu,
    setup: &Setup,
    block: &KeyBlock,
) -> (DeviceSelect, Buffer<u32>) {
    let positions = gpu.upload(&padded(&setup.positions, block.capacity)).unwrap();
    let input = DeviceSelect {
        k_base: block.address(),
        capacity: block.capacity,
        rows: setup.rows,
        positions: positions.view(),
        positions_by_layer: setup.positions.len() > setup.dims.kv_heads,
        round_start: setup.round_start,
        prompt_len: setup.prompt_len,
        keep: setup.keep,
        timed: true,
    };
    (input, positions)
}
