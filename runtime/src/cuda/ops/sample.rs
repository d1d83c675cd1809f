//! The draw of `crate::sample` on the device: same filters, same streams, one token a row.
//!
//! Sums run in the same order as there, bit for bit. exp and ln are taken in f64 and rounded to f32, where the CPU calls its C library:
//! a draw can differ only where a decision lies within the last place of one of them.

use bytemuck::{Pod, Zeroable};
use lockstep_traces::DType;

use super::logits::{LogitsRows, check_sizes, grid_size};
use crate::cuda::Slot;
use crate::cuda::gpu::{
    Arg, Buffer, Build, Gpu, GpuError, Kernel, KernelFile, Program, Shape, View, grid,
};
use crate::sample::{DrawKind, SampleError, Sampler, TOP_P_OFF};

/// Survivors up to which ranking stays in shared memory; beyond, the whole row is sorted.
const FEW: usize = 1024;
/// Bins of the scan.
const BINS: usize = 4096;
/// Ids of a block: of the argmax, and of a draw that filters.
const BLOCK_IDS: [usize; 2] = [2048, 8192];

/// `Stream` of `sample.cu`: the random stream of a slot.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Stream {
    /// Seed in use.
    pub seed: u64,
    /// Draws made.
    pub draws: u64,
    /// Offset of the Philox stream, in 32-bit numbers.
    pub offset: u64,
    /// State of xorshift.
    pub word: u64,
}

/// `DrawRecord` of `sample.cu`: what one draw came to.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct DrawRecord {
    /// Draws of the stream before this one.
    pub draw: u64,
    /// Counter of the random stream before the draw.
    pub rng_offset: u64,
    /// 0: drawn, 1: NaN or +inf, 2: nothing but -inf.
    pub status: u32,
    /// Token drawn.
    pub token: u32,
    /// 1: a random number decided.
    pub has_uniform: u32,
    /// That number.
    pub uniform: f32,
    /// First id with NaN or +inf.
    pub bad_id: u32,
    /// Its logit.
    pub bad_logit: f32,
}

/// `Seen` of `sample.cu`; all ones and no block arrived between launches.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Seen {
    best: u64,
    bad: u32,
    arrived: u32,
}

/// A token and how it came about, as `crate::sample::Draw` has them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceDraw {
    /// The token.
    pub token: u32,
    /// The random number that decided; `None` for argmax.
    pub uniform: Option<f32>,
    /// Counter of the random stream before the draw; `None` for argmax.
    pub rng_offset: Option<u64>,
}

impl From<crate::sample::Draw> for DeviceDraw {
    fn from(draw: crate::sample::Draw) -> Self {
        Self { token: draw.token, uniform: draw.uniform, rng_offset: draw.rng_offset }
    }
}

/// Draws from rows of logits in device memory; the streams lie there too, one a slot, and move on with every draw.
#[derive(Debug)]
pub struct DeviceSampler {
    kernel: Kernel,
    sampler: Sampler,
    dtype: DType,
    streams: Buffer<Stream>,
    seen: Buffer<Seen>,
    bins: Buffer<u32>,
    keys: Buffer<u64>,
    masses: Buffer<f32>,
    /// Keys of a slot in one of its two lists.
    room: usize,
}

impl DeviceSampler {
    /// A sampler of `max_rows` slots with the settings of `sampler`, over logits of `dtype`. Where top-k leaves more than 1024 ids, a row
    /// is sorted as a whole and its sums run over all survivors in order, in one thread: far slower.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] for an element type or sizes that no kernel takes; device errors.
    pub fn new(
        gpu: &Gpu,
        sampler: &Sampler,
        dtype: DType,
        max_rows: usize,
    ) -> Result<Self, GpuError> {
        let vocab = sampler.vocab();
        check_sizes(dtype, vocab, max_rows)?;
        let filtered = !sampler.is_greedy();
        let program = Program { file: KernelFile::SAMPLE, build: Build::of(dtype) };
        let name = if filtered { "draw_filtered" } else { "draw_argmax" };
        let room = match sampler.settings().filters.top_k {
            _ if !filtered => 0,
            k if k <= FEW => FEW,
            _ => vocab,
        };
        let seen = vec![Seen { best: u64::MAX, bad: u32::MAX, arrived: 0 }; max_rows];
        let state = sampler.start(None);
        Ok(Self {
            kernel: gpu.kernel(program, name)?,
            sampler: sampler.clone(),
            dtype,
            streams: gpu.upload(&vec![stream_of(&state); max_rows])?,
            seen: gpu.upload(&seen)?,
            bins: gpu.zeros(if filtered { max_rows * BINS } else { 0 })?,
            keys: gpu.alloc(2 * room * max_rows)?,
            masses: gpu.alloc(room * max_rows)?,
            room,
        })
    }

    /// Begins a request in `slot`, as [`Sampler::start`] does. The host waits.
    ///
    /// # Errors
    /// [`GpuError::Range`] for a slot that is not there; device errors.
    pub fn start(
        &self,
        gpu: &Gpu,
        slot: usize,
        effective_seed: Option<u64>,
    ) -> Result<(), GpuError> {
        let state = self.sampler.start(effective_seed);
        gpu.write(self.streams.part(slot..slot + 1)?, &[stream_of(&state)])
    }

    /// Random streams by slot.
    #[must_use]
    pub const fn streams(&self) -> View<Stream> {
        self.streams.view()
    }

    /// Queues one draw from each row of `input` for the slots `first`, `first + 1`, ..., with one record of each in `records`. With `slots`,
    /// the device's view of these, those that are not active keep their record and their stream.
    ///
    /// # Errors
    /// [`GpuError::Range`] for slots that are not there or a view that is too short, [`GpuError::Unsupported`] for a stride below the
    /// vocabulary.
    pub fn queue(
        &self,
        gpu: &Gpu,
        input: LogitsRows,
        first: usize,
        slots: Option<View<Slot>>,
        records: View<DrawRecord>,
    ) -> Result<(), GpuError> {
        let vocab = self.sampler.vocab();
        let end = first.saturating_add(input.rows);
        let rows = input.rows;
        let mut arguments = vec![
            input.arg(self.dtype, vocab)?,
            slots.map_or(Ok(Arg::none()), |slots| slots.arg(rows))?,
            self.streams.part(first..end)?.arg(rows)?,
            records.arg(rows)?,
            self.seen.part(first..end)?.arg(rows)?,
        ];
        let blocks = |ids: usize| grid_size(vocab.div_ceil(ids));
        let shape: Shape = if self.sampler.is_greedy() {
            arguments.extend([Arg::long(input.stride as u64), Arg::count(vocab)?]);
            grid([blocks(BLOCK_IDS[0])?, grid_size(rows)?, 1], 256)
        } else {
            self.filter_arguments(&mut arguments, first..end, input.stride)?;
            grid([blocks(BLOCK_IDS[1])?, grid_size(rows)?, 1], 1024)
        };
        gpu.launch(&self.kernel, shape.overlapping(), &arguments)
    }

    fn filter_arguments(
        &self,
        arguments: &mut Vec<Arg>,
        slots: std::ops::Range<usize>,
        stride: usize,
    ) -> Result<(), GpuError> {
        let (rows, room) = (slots.len(), self.room);
        let part = |each: usize| slots.start * each..slots.end * each;
        let settings = self.sampler.settings();
        let (filters, race) = (settings.filters, self.sampler.race());
        let threads = u32::try_from(race.threads()).map_err(|_| {
            GpuError::unsupported("a race of more than 2^32 - 1 threads; use a smaller sm_count")
        })?;
        arguments.extend([
            self.bins.part(part(BINS))?.arg(rows * BINS)?,
            self.keys.part(part(2 * room))?.arg(rows * 2 * room)?,
            self.masses.part(part(room))?.arg(rows * room)?,
            Arg::long(stride as u64),
            Arg::long(race.increment()),
            Arg::count(self.sampler.vocab())?,
            Arg::count(room)?,
            Arg::from(if settings.kind == DrawKind::Xorshift { 1 } else { 2 }),
            Arg::count(filters.top_k.clamp(1, self.sampler.vocab()))?,
            Arg::from(filters.temperature),
            // The kernel's own mark of "off" is 1.
            Arg::from(if filters.top_p >= TOP_P_OFF { 1.0 } else { filters.top_p }),
            Arg::from(filters.min_p),
            Arg::from(threads),
        ]);
        Ok(())
    }
}

impl DrawRecord {
    /// The draw, or why there is none.
    ///
    /// # Errors
    /// [`SampleError::NotFinite`] and [`SampleError::NothingLeft`], as [`Sampler::draw`].
    pub fn outcome(&self) -> Result<DeviceDraw, SampleError> {
        match self.status {
            0 => {
                let random = self.has_uniform == 1;
                Ok(DeviceDraw {
                    token: self.token,
                    uniform: random.then_some(self.uniform),
                    rng_offset: random.then_some(self.rng_offset),
                })
            }
            1 => Err(SampleError::NotFinite {
                draw: self.draw,
                id: self.bad_id as usize,
                value: self.bad_logit,
            }),
            _ => Err(SampleError::NothingLeft { draw: self.draw }),
        }
    }
}

const fn stream_of(state: &crate::sample::SamplerState) -> Stream {
    Stream { seed: state.seed(), draws: state.draws(), offset: state.offset(), word: state.word() }
}

#[cfg(test)]
mod tests;
