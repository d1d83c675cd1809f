//! Raw scores: the kernels of `select_score.cu`.

use lockstep_traces::DType;

use crate::cuda::gpu::{
    Arg, Buffer, Build, Gpu, GpuError, Kernel, KernelFile, Program, View, blocks, grid,
};

/// Widest head that the kernels hold in registers.
const WIDEST: usize = 512;
/// Rows that one block of `score_direct` scores, and of `score_unrotate`.
const DIRECT_TILE: usize = 256;
const UNROTATE_TILE: usize = 8;

/// Rotated keys, `[layers][kv_heads][capacity][head_dim]` of the cache dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheKeys {
    /// Address, a multiple of 16.
    pub base: u64,
    /// Rows from one head to the next.
    pub capacity: usize,
    /// First row scored.
    pub first_row: usize,
    /// Rows scored: columns of the matrix.
    pub columns: usize,
}

impl CacheKeys {
    fn check(&self) -> Result<(), GpuError> {
        if self.columns == 0 {
            return Err(GpuError::unsupported("no row to score; give at least one"));
        }
        if self.first_row + self.columns > self.capacity {
            return Err(GpuError::unsupported(format!(
                "rows {}..{} of a cache of {}",
                self.first_row,
                self.first_row + self.columns,
                self.capacity
            )));
        }
        if self.base == 0 || !self.base.is_multiple_of(16) {
            return Err(GpuError::unsupported("keys that do not begin at 16 whole bytes"));
        }
        Ok(())
    }
}

/// How the direct form floors and rounds |z|.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Floors {
    /// sqrt(max(., 1e-8)).
    Native,
    /// sqrt(. + 1e-8).
    Triton,
    /// Rounded step by step to the cache dtype, no floor.
    Torch,
}

/// Time at which phases are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Phase {
    /// R, or the row of the phase table below it.
    pub base: u32,
    /// What is turned on from there.
    pub residual: u32,
}

/// Query heads by the KV head of a layer that they read.
#[derive(Debug)]
pub struct Units {
    kv: Buffer<u32>,
    start: Buffer<u32>,
    heads: Buffer<u32>,
    count: usize,
    largest: usize,
    rows: usize,
}

impl Units {
    /// From `layer * kv_heads + kv_head` and rows of the score matrix, every unit with one at least.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] for an empty list; driver errors.
    pub fn new(gpu: &Gpu, units: &[(usize, Vec<usize>)]) -> Result<Self, GpuError> {
        let empty = units.is_empty() || units.iter().any(|(_, rows)| rows.is_empty());
        if empty {
            return Err(GpuError::unsupported("a unit without heads; leave it out"));
        }
        let kv: Vec<u32> = narrow(units.iter().map(|(kv, _)| *kv))?;
        let lists: Vec<&Vec<usize>> = units.iter().map(|(_, rows)| rows).collect();
        let (start, heads) = sparse(&lists)?;
        Ok(Self {
            kv: gpu.upload(&kv)?,
            start: gpu.upload(&start)?,
            heads: gpu.upload(&heads)?,
            count: units.len(),
            largest: lists.iter().map(|rows| rows.len()).max().unwrap_or(0),
            rows: lists.iter().flat_map(|rows| rows.iter()).max().map_or(0, |row| row + 1),
        })
    }
}

/// Whole numbers as the device holds them.
pub(super) fn narrow(values: impl Iterator<Item = usize>) -> Result<Vec<u32>, GpuError> {
    values
        .map(|value| {
            u32::try_from(value).map_err(|_| {
                GpuError::unsupported(format!("an index of {value} does not fit 32 bits"))
            })
        })
        .collect()
}

/// Compressed rows: where each list begins, and all of them one after the other.
pub(super) fn sparse(lists: &[&Vec<usize>]) -> Result<(Vec<u32>, Vec<u32>), GpuError> {
    let mut start = vec![0];
    let mut end = 0;
    for list in lists {
        end += list.len();
        start.push(end);
    }
    Ok((narrow(start.into_iter())?, narrow(lists.iter().flat_map(|list| list.iter().copied()))?))
}

/// Statistics of the heads on the host, each list `[heads][freqs]`.
#[derive(Debug, Clone, Default)]
pub struct HeadValues {
    /// Re of the mean query.
    pub re: Vec<f32>,
    /// Im of the mean query.
    pub im: Vec<f32>,
    /// |mu|.
    pub modulus: Vec<f32>,
    /// s.
    pub scale: Vec<f32>,
    /// c * s.
    pub energy: Vec<f32>,
}

/// Statistics, offsets and frequencies on the device.
#[derive(Debug)]
pub struct HeadTables {
    re: Buffer<f32>,
    im: Buffer<f32>,
    modulus: Buffer<f32>,
    scale: Buffer<f32>,
    energy: Buffer<f32>,
    offsets: Buffer<f32>,
    w: Buffer<f32>,
    heads: usize,
    freqs: usize,
}

impl HeadTables {
    /// Uploads `heads` heads; the offsets ascend.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] where lengths do not fit; driver errors.
    pub fn new(
        gpu: &Gpu,
        heads: usize,
        values: &HeadValues,
        offsets: &[f32],
        w: &[f32],
    ) -> Result<Self, GpuError> {
        let size = heads * w.len();
        let lists = [&values.re, &values.im, &values.modulus, &values.scale, &values.energy];
        if size == 0 || offsets.is_empty() || lists.iter().any(|list| list.len() != size) {
            return Err(GpuError::unsupported(format!(
                "statistics of {heads} heads, {} frequencies, {} offsets that do not fit together",
                w.len(),
                offsets.len()
            )));
        }
        if offsets.windows(2).any(|pair| pair[0] > pair[1]) {
            return Err(GpuError::unsupported("offsets that do not ascend"));
        }
        Ok(Self {
            re: gpu.upload(&values.re)?,
            im: gpu.upload(&values.im)?,
            modulus: gpu.upload(&values.modulus)?,
            scale: gpu.upload(&values.scale)?,
            energy: gpu.upload(&values.energy)?,
            offsets: gpu.upload(offsets)?,
            w: gpu.upload(w)?,
            heads,
            freqs: w.len(),
        })
    }

    /// Rows of the score matrix.
    #[must_use]
    pub const fn heads(&self) -> usize {
        self.heads
    }

    /// Offsets.
    #[must_use]
    pub const fn offsets(&self) -> usize {
        self.offsets.len()
    }

    /// Other statistics of as many heads, in the same memory.
    ///
    /// # Errors
    /// [`GpuError::Range`] for more values than there is room; driver errors.
    pub fn write(&self, gpu: &Gpu, values: &HeadValues) -> Result<(), GpuError> {
        let buffers = [&self.re, &self.im, &self.modulus, &self.scale, &self.energy];
        let lists = [&values.re, &values.im, &values.modulus, &values.scale, &values.energy];
        buffers.iter().zip(lists).try_for_each(|(to, from)| gpu.write(to.view(), from))
    }
}

/// Mean queries turned on: `turns` of them a head, `[heads][turns][2][freqs]`.
#[derive(Debug, Clone, Copy)]
pub struct Turned {
    /// The memory.
    pub values: View<f32>,
    /// One by offset (their scores' maximum is taken), 1 for the mean over offsets, 0: no trigonometric term.
    pub turns: usize,
}

/// The kernels of `select_score.cu` for a cache dtype and head width.
#[derive(Debug)]
pub struct ScoreOps {
    phases: Kernel,
    turn: Kernel,
    direct: Kernel,
    unrotate: Kernel,
    head_dim: usize,
}

impl ScoreOps {
    /// Compiles them.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] for an odd or too wide head or another dtype than f32, f16, bf16; compile errors.
    pub fn new(gpu: &Gpu, cache: DType, head_dim: usize) -> Result<Self, GpuError> {
        if head_dim == 0 || !head_dim.is_multiple_of(2) || head_dim > WIDEST {
            return Err(GpuError::unsupported(format!(
                "a head width of {head_dim}; even ones up to {WIDEST} are scored"
            )));
        }
        if !matches!(cache, DType::F32 | DType::F16 | DType::Bf16) {
            return Err(GpuError::unsupported(format!(
                "a cache of {cache:?}; f32, f16 and bf16 are scored"
            )));
        }
        let build = Build { elem: cache, cache, head_dim, group: 0 };
        let program = Program { file: KernelFile::SELECT_SCORE, build };
        Ok(Self {
            phases: gpu.kernel(program, "phases")?,
            turn: gpu.kernel(program, "turn_queries")?,
            direct: gpu.kernel(program, "score_direct")?,
            unrotate: gpu.kernel(program, "score_unrotate")?,
            head_dim,
        })
    }

    /// Cosines and sines of the phases, each `[offsets][freqs]`.
    ///
    /// # Errors
    /// [`GpuError::Range`] for short views; driver errors.
    pub fn phases(
        &self,
        gpu: &Gpu,
        tables: &HeadTables,
        at: Phase,
        (cos, sin): (View<f32>, View<f32>),
    ) -> Result<(), GpuError> {
        let size = tables.offsets() * tables.freqs;
        let arguments = [
            tables.offsets.view().arg(tables.offsets())?,
            tables.w.view().arg(tables.freqs)?,
            cos.arg(size)?,
            sin.arg(size)?,
            Arg::count(tables.freqs)?,
            Arg::from(at.base),
            Arg::from(at.residual),
        ];
        gpu.launch(&self.phases, grid([blocks(tables.offsets(), 1)?, 1, 1], 64), &arguments)
    }

    /// Mean queries turned on by the phases: one by offset, or with `turned.turns` = 1 their mean.
    ///
    /// # Errors
    /// [`GpuError::Range`] for short views, [`GpuError::Unsupported`] for another number of turns; driver errors.
    pub fn turn(
        &self,
        gpu: &Gpu,
        tables: &HeadTables,
        (cos, sin): (View<f32>, View<f32>),
        turned: Turned,
    ) -> Result<(), GpuError> {
        let (offsets, size) = (tables.offsets(), tables.heads * tables.freqs);
        if turned.turns != 1 && turned.turns != offsets {
            return Err(GpuError::unsupported(format!(
                "{} turns of {offsets} offsets; one by offset or 1 for their mean",
                turned.turns
            )));
        }
        let arguments = [
            tables.re.view().arg(size)?,
            tables.im.view().arg(size)?,
            tables.scale.view().arg(size)?,
            cos.arg(offsets * tables.freqs)?,
            sin.arg(offsets * tables.freqs)?,
            turned.values.arg(size * 2 * turned.turns)?,
            Arg::count(tables.freqs)?,
            Arg::count(offsets)?,
            Arg::from(u32::from(turned.turns == 1)),
        ];
        let shape = grid([blocks(tables.heads, 1)?, blocks(turned.turns, 1)?, 1], 64);
        gpu.launch(&self.turn, shape, &arguments)
    }

    /// Direct form: `out[heads][columns]`.
    ///
    /// # Errors
    /// [`GpuError::Range`] and [`GpuError::Unsupported`] where sizes do not fit, [`GpuError::Launch`] where the turned queries of a
    /// KV head exceed shared memory; driver errors.
    pub fn direct(
        &self,
        gpu: &Gpu,
        (tables, units): (&HeadTables, &Units),
        keys: &CacheKeys,
        (turned, floors): (Turned, Floors),
        out: View<f32>,
    ) -> Result<(), GpuError> {
        self.check(tables, units, keys)?;
        let values = tables.heads * 2 * turned.turns * tables.freqs;
        let queries = if turned.turns == 0 { Arg::none() } else { turned.values.arg(values)? };
        let floors = match floors {
            Floors::Native => 0,
            Floors::Triton => 1,
            Floors::Torch => 2_u32,
        };
        let arguments = [
            Arg::long(keys.base),
            queries,
            tables.energy.view().arg(tables.heads * tables.freqs)?,
            units.kv.view().arg(units.count)?,
            units.start.view().arg(units.count + 1)?,
            units.heads.view().arg(units.heads.len())?,
            out.arg(tables.heads * keys.columns)?,
            Arg::count(keys.capacity)?,
            Arg::count(keys.first_row)?,
            Arg::count(keys.columns)?,
            Arg::count(turned.turns)?,
            Arg::from(floors),
        ];
        // Frequencies are staged in whole spans of 8 a lane, a power of two of lanes.
        let staged = tables.freqs.div_ceil(8).next_power_of_two() * 8;
        let bytes = units.largest * (1 + 2 * turned.turns) * staged * size_of::<f32>();
        let shared = u32::try_from(bytes).unwrap_or(u32::MAX);
        let shape = grid([blocks(keys.columns, DIRECT_TILE)?, blocks(units.count, 1)?, 1], 256);
        gpu.launch(&self.direct, shape.shared(shared), &arguments)
    }

    /// Un-rotate form: `out[heads][columns]`. `positions` are `[lists][capacity]`, a list a KV head or one a layer and KV head.
    ///
    /// # Errors
    /// As [`ScoreOps::direct`].
    pub fn unrotate(
        &self,
        gpu: &Gpu,
        (tables, units): (&HeadTables, &Units),
        keys: &CacheKeys,
        how: &Unrotate,
        out: View<f32>,
    ) -> Result<(), GpuError> {
        self.check(tables, units, keys)?;
        let size = tables.heads * tables.freqs;
        let lists = how.positions.len() / keys.capacity.max(1);
        if how.lists == 0 || how.lists > lists {
            return Err(GpuError::unsupported(format!(
                "{} lists of positions of which {lists} are there",
                how.lists
            )));
        }
        let offsets = if how.trig { tables.offsets() } else { 0 };
        let arguments = [
            Arg::long(keys.base),
            how.positions.arg(how.lists * keys.capacity)?,
            tables.offsets.view().arg(tables.offsets())?,
            tables.w.view().arg(tables.freqs)?,
            tables.re.view().arg(size)?,
            tables.im.view().arg(size)?,
            tables.modulus.view().arg(size)?,
            tables.scale.view().arg(size)?,
            tables.energy.view().arg(size)?,
            units.kv.view().arg(units.count)?,
            units.start.view().arg(units.count + 1)?,
            units.heads.view().arg(units.heads.len())?,
            out.arg(tables.heads * keys.columns)?,
            Arg::count(keys.capacity)?,
            Arg::count(how.lists)?,
            Arg::count(keys.first_row)?,
            Arg::count(keys.columns)?,
            Arg::from(how.round_start),
            Arg::count(offsets)?,
            Arg::from(u32::from(how.largest)),
            Arg::from(how.scaling),
        ];
        let shape = grid([blocks(keys.columns, UNROTATE_TILE)?, blocks(units.count, 1)?, 1], 256);
        gpu.launch(&self.unrotate, shape, &arguments)
    }

    fn check(&self, tables: &HeadTables, units: &Units, keys: &CacheKeys) -> Result<(), GpuError> {
        keys.check()?;
        if tables.freqs * 2 != self.head_dim {
            return Err(GpuError::unsupported(format!(
                "{} frequencies for heads of width {}",
                tables.freqs, self.head_dim
            )));
        }
        if units.rows > tables.heads {
            return Err(GpuError::unsupported(format!(
                "units of {} heads, statistics of {}",
                units.rows, tables.heads
            )));
        }
        Ok(())
    }
}

/// What the un-rotate form needs besides.
#[derive(Debug, Clone, Copy)]
pub struct Unrotate {
    /// Absolute positions of the rows.
    pub positions: View<u32>,
    /// Their lists: KV heads, or layers times KV heads.
    pub lists: usize,
    /// R.
    pub round_start: u32,
    /// Is there a trigonometric term?
    pub trig: bool,
    /// Maximum over offsets and not mean?
    pub largest: bool,
    /// The model's attention scaling.
    pub scaling: f32,
}
