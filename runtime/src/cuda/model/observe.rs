//! Hidden states of a pass: read back between the launches of the rows that are wanted.

use std::collections::BTreeMap;
use std::ops::Range;

use bytemuck::Pod;
use half::{bf16, f16};
use lockstep_traces::DType;

use super::session::{DecodeRow, Scratch};
use crate::Hyper;
use crate::cpu::{NamedRows, WantedRow};
use crate::cuda::gpu::{Buffer, Gpu, GpuError, View};
use crate::cuda::ops::attention::{Heads, ObserveHeads};
use crate::cuda::ops::linear::MOST_COLUMNS;

/// Elements of the arithmetic's type, widened (exact).
pub(super) fn values<E: Pod>(gpu: &Gpu, view: View<E>, dtype: DType) -> Result<Vec<f32>, GpuError> {
    let bytes = gpu.read(view.cast::<u8>()?)?;
    Ok(match dtype {
        DType::F32 => bytemuck::allocation::pod_collect_to_vec(&bytes),
        other => bytemuck::allocation::pod_collect_to_vec::<u8, u16>(&bytes)
            .into_iter()
            .map(|bits| match other {
                DType::F16 => f16::from_bits(bits).to_f32(),
                _ => bf16::from_bits(bits).to_f32(),
            })
            .collect(),
    })
}

/// What the fused kernels of a decode pass leave behind when observed, `[batch, width]` each.
#[derive(Debug)]
pub(super) struct Observed<E> {
    pub(super) branch: Buffer<E>,
    q_norm: Buffer<E>,
    q_rope: Buffer<E>,
    k_norm: Buffer<E>,
    k_rope: Buffer<E>,
}

impl<E: Pod> Observed<E> {
    pub(super) fn new(gpu: &Gpu, hyper: &Hyper) -> Result<Self, GpuError> {
        let wide = MOST_COLUMNS * hyper.heads * hyper.head_dim;
        let narrow = MOST_COLUMNS * hyper.kv_heads * hyper.head_dim;
        Ok(Self {
            branch: gpu.zeros(MOST_COLUMNS * hyper.hidden_size)?,
            q_norm: gpu.zeros(wide)?,
            q_rope: gpu.zeros(wide)?,
            k_norm: gpu.zeros(narrow)?,
            k_rope: gpu.zeros(narrow)?,
        })
    }

    pub(super) fn heads(&self) -> ObserveHeads<E> {
        ObserveHeads {
            q_norm: self.q_norm.view(),
            q_rope: self.q_rope.view(),
            k_norm: self.k_norm.view(),
            k_rope: self.k_rope.view(),
        }
    }
}

/// The stages of an attention block up to its mix of values, `[rows, width]` each.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadStages<E> {
    pub(super) heads: Heads,
    pub(super) dtype: DType,
    pub(super) hidden: usize,
    pub(super) input_norm: View<E>,
    pub(super) qkv: View<E>,
    pub(super) observed: ObserveHeads<E>,
    pub(super) mixed: View<E>,
}

impl<E: Pod> HeadStages<E> {
    pub(super) fn new(
        heads: Heads,
        scratch: &Scratch<E>,
        seen: &Observed<E>,
        dtype: DType,
    ) -> Self {
        Self {
            heads,
            dtype,
            hidden: scratch.normed.len() / MOST_COLUMNS,
            input_norm: scratch.normed.view(),
            qkv: scratch.qkv.view(),
            observed: seen.heads(),
            mixed: scratch.heads.view(),
        }
    }
}

/// Takes wanted rows out of a pass.
#[derive(Debug, Default)]
pub(super) struct Observer {
    /// Index of the caller, row of the buffers, what is wanted of it.
    rows: Vec<(usize, usize, WantedRow)>,
    taken: BTreeMap<usize, NamedRows>,
}

impl Observer {
    /// One that wants nothing.
    pub(super) fn idle() -> Self {
        Self::default()
    }

    /// For a decode batch: row `i` lies in its slot.
    pub(super) fn new(batch: &[DecodeRow<'_>], wanted: &BTreeMap<usize, WantedRow>) -> Self {
        let row = |(index, wanted): (&usize, &WantedRow)| {
            Some((*index, batch.get(*index)?.slot, wanted.clone()))
        };
        Self { rows: wanted.iter().filter_map(row).collect(), taken: BTreeMap::new() }
    }

    /// For a prompt chunk: row `i` lies in row `i`.
    pub(super) fn of_chunk(wanted: &BTreeMap<usize, WantedRow>) -> Self {
        let rows = wanted.iter().map(|(index, wanted)| (*index, *index, wanted.clone())).collect();
        Self { rows, taken: BTreeMap::new() }
    }

    pub(super) const fn is_idle(&self) -> bool {
        self.rows.is_empty()
    }

    /// What was taken of the caller's row.
    pub(super) fn take(&mut self, index: usize) -> Option<NamedRows> {
        self.taken.remove(&index)
    }

    /// A stage outside the layers.
    pub(super) fn end<E: Pod>(
        &mut self,
        gpu: &Gpu,
        stage: &str,
        (view, width): (View<E>, usize),
        dtype: DType,
    ) -> Result<(), GpuError> {
        let name = format!("hidden.{stage}");
        self.read(gpu, |wanted| wanted.ends, &name, (view, width, 0..width), dtype)
    }

    /// A stage of one layer.
    pub(super) fn layer<E: Pod>(
        &mut self,
        gpu: &Gpu,
        (layer, stage): (usize, &str),
        (view, width): (View<E>, usize),
        dtype: DType,
    ) -> Result<(), GpuError> {
        self.columns(gpu, (layer, stage), (view, width, 0..width), dtype)
    }

    fn columns<E: Pod>(
        &mut self,
        gpu: &Gpu,
        (layer, stage): (usize, &str),
        part: (View<E>, usize, Range<usize>),
        dtype: DType,
    ) -> Result<(), GpuError> {
        let name = format!("hidden.layer{layer:02}.{stage}");
        let chosen = |wanted: &WantedRow| wanted.layers.iter().any(|&l| l as usize == layer);
        self.read(gpu, chosen, &name, part, dtype)
    }

    /// The stages before and in the attention, in the order in which they are computed.
    pub(super) fn attention<E: Pod>(
        &mut self,
        gpu: &Gpu,
        layer: usize,
        s: &HeadStages<E>,
        normed: bool,
    ) -> Result<(), GpuError> {
        let (wide, narrow) =
            (s.heads.heads * s.heads.head_dim, s.heads.kv_heads * s.heads.head_dim);
        let whole = s.heads.qkv();
        let at = |stage| (layer, stage);
        self.layer(gpu, at("input_norm"), (s.input_norm, s.hidden), s.dtype)?;
        self.columns(gpu, at("q_proj"), (s.qkv, whole, 0..wide), s.dtype)?;
        self.columns(gpu, at("k_proj"), (s.qkv, whole, wide..wide + narrow), s.dtype)?;
        self.columns(gpu, at("v_proj"), (s.qkv, whole, wide + narrow..whole), s.dtype)?;
        if normed {
            self.layer(gpu, at("q_norm"), (s.observed.q_norm, wide), s.dtype)?;
            self.layer(gpu, at("k_norm"), (s.observed.k_norm, narrow), s.dtype)?;
        }
        self.layer(gpu, at("q_rope"), (s.observed.q_rope, wide), s.dtype)?;
        self.layer(gpu, at("k_rope"), (s.observed.k_rope, narrow), s.dtype)?;
        self.layer(gpu, at("attn_heads"), (s.mixed, wide), s.dtype)
    }

    fn read<E: Pod>(
        &mut self,
        gpu: &Gpu,
        chosen: impl Fn(&WantedRow) -> bool,
        name: &str,
        (view, width, columns): (View<E>, usize, Range<usize>),
        dtype: DType,
    ) -> Result<(), GpuError> {
        for (index, row, _) in self.rows.iter().filter(|(.., wanted)| chosen(wanted)) {
            let part = view.part(row * width + columns.start..row * width + columns.end)?;
            let values = values(gpu, part, dtype)?;
            self.taken.entry(*index).or_default().push((name.to_owned(), values));
        }
        Ok(())
    }
}
