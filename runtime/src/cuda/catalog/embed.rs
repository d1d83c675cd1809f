//! Entries of `embed.cu` that start a forward pass: `embed_rows`, `rope_table`, `embed_slots`; the fills are in `fill.rs`.

use std::ops::Range;

use bytemuck::Pod;
use lockstep_traces::DType;

use super::{Case, Cell, Contract, Entry, Guarded, Output, Tolerance, fill};
use crate::cuda::Slot;
use crate::cuda::gpu::{Buffer, Gpu, GpuError, KernelFile};
use crate::cuda::ops::embed::{Embed, Frequencies, Table, Turns};
use crate::cuda::testing::{Values, decode, encode, half_ulp};

const SOURCES: &[(&str, &str)] = &[
    ("src/cuda/ops/embed.rs", include_str!("../ops/embed.rs")),
    ("src/cuda/catalog/embed.rs", include_str!("embed.rs")),
];

const fn cell(elem: DType, sizes: &'static [usize]) -> Cell {
    Cell { elem, cache: elem, sizes }
}

/// One row and many, widths beside and above a block, the head widths of the known models.
const CELLS: &[Cell] = &[
    cell(DType::F32, &[1, 8, 1]),
    cell(DType::F32, &[5, 100, 32]),
    cell(DType::F16, &[3, 257, 64]),
    cell(DType::F16, &[8, 64, 24]),
    cell(DType::Bf16, &[1, 256, 64]),
    cell(DType::Bf16, &[7, 1031, 16]),
    cell(DType::Bf16, &[4096, 4096, 64]),
    cell(DType::F32, &[4096, 2048, 128]),
];

/// Rows of the table.
const VOCAB: usize = 61;
/// Rotary indices lie below: a long context.
const POSITIONS: u64 = 1 << 17;
/// As YaRN has it.
const SCALING: f32 = 1.138_629_4;

macro_rules! entry {
    ($name:literal, $kind:expr, $shapes:literal, $silent:expr, $rounding:literal, $reference:literal) => {
        Entry {
            name: $name,
            file: KernelFile::EMBED,
            sources: SOURCES,
            sizes: &["rows", "hidden", "freqs"],
            contract: Contract {
                shapes: $shapes,
                raises: &["a view shorter than its shape", "elements of another width", "no rows"],
                silent: $silent,
                rounding: $rounding,
            },
            reference: $reference,
            tolerance: |_| tolerance($kind),
            cells: CELLS,
            open: |gpu, cell| Ok(Box::new(Start::new(gpu, cell, $kind)?)),
        }
    };
}

pub(super) const ENTRIES: &[Entry] = &[
    entry!(
        "embed_rows",
        Kind::Rows,
        "table [vocab, hidden], ids [rows] u32, out [rows, hidden]",
        &["an id outside the table", "out overlapping the table"],
        "none: bits are copied",
        "out[row] = table[ids[row]], bit by bit"
    ),
    entry!(
        "rope_table",
        Kind::Turns,
        "inv_freq [freqs] f32, index [rows] u32, cos and sin [rows, freqs] f32 that hold values of the element type",
        &["an index above 2^24 is rounded to f32 before the product"],
        "the angle to f32; cosine and sine to f32, times the scaling to f32, then to the element type",
        "cos(a) * scaling and sin(a) * scaling in f64, a = index * inv_freq rounded to f32"
    ),
    entry!(
        "embed_slots",
        Kind::Slots,
        "slots [rows], table [vocab, hidden], inv_freq [freqs] f32, out [rows, hidden], cos and sin [rows, freqs] f32",
        &[
            "a token outside the table",
            "an empty slot's row of out becomes zero, its cosines and sines stay",
        ],
        "rows none; cosines and sines as rope_table",
        "embed_rows and rope_table of each slot's token and rotary index"
    ),
    fill::RANDOM,
    fill::CONSTANT,
];

fn tolerance(kind: Kind) -> Tolerance {
    if kind == Kind::Rows {
        return Tolerance { bound: 0.0, why: "a copy; counted are bytes that differ" };
    }
    Tolerance {
        bound: 1.0,
        why: "error over the sum of: half a unit of the element type and three of f32 (cosine, product, their product), relative, and half \
              the smallest step near zero; a row that is no copy counts as infinite",
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rows,
    Turns,
    Slots,
}

struct Start {
    kind: Kind,
    dtype: DType,
    rows: usize,
    hidden: usize,
    embed: Embed,
    /// One row more than `VOCAB`, for the wrong call.
    table: Buffer<u8>,
    ids: Buffer<u32>,
    index: Buffer<u32>,
    slots: Buffer<Slot>,
    inv_freq: Buffer<f32>,
    out: Guarded<u8>,
    cos: Guarded<u8>,
    sin: Guarded<u8>,
    host: Host,
}

#[derive(Default)]
struct Host {
    table: Vec<u8>,
    ids: Vec<u32>,
    index: Vec<u32>,
    inv_freq: Vec<f32>,
}

/// A call, as it should be or not.
#[derive(Clone, Copy)]
struct Call {
    rows: usize,
    vocab: usize,
    /// Rows by which the table is shifted.
    shift: usize,
    scaling: f32,
    /// Elements that the outputs are short of.
    short: usize,
}

impl Start {
    fn new(gpu: &Gpu, cell: &Cell, kind: Kind) -> Result<Self, GpuError> {
        let &[rows, hidden, freqs] = cell.sizes else {
            return Err(GpuError::unsupported("a cell has rows, hidden and freqs"));
        };
        let width = cell.elem.size();
        Ok(Self {
            kind,
            dtype: cell.elem,
            rows,
            hidden,
            embed: Embed::new(gpu, cell.elem)?,
            table: gpu.alloc((VOCAB + 1) * hidden * width)?,
            ids: gpu.alloc(rows)?,
            index: gpu.alloc(rows)?,
            slots: gpu.alloc(rows)?,
            inv_freq: gpu.alloc(freqs)?,
            out: Guarded::new(gpu, rows * hidden * width)?,
            cos: Guarded::new(gpu, rows * freqs * size_of::<f32>())?,
            sin: Guarded::new(gpu, rows * freqs * size_of::<f32>())?,
            host: Host::default(),
        })
    }

    const fn call(&self) -> Call {
        Call { rows: self.rows, vocab: VOCAB, shift: 0, scaling: SCALING, short: 0 }
    }

    fn queue(&self, gpu: &Gpu, call: Call) -> Result<(), GpuError> {
        match self.dtype {
            DType::F32 => self.queue_as::<f32>(gpu, call),
            _ => self.queue_as::<u16>(gpu, call),
        }
    }

    fn queue_as<E: Pod>(&self, gpu: &Gpu, call: Call) -> Result<(), GpuError> {
        let whole = self.table.view().cast::<E>()?;
        let matrix = whole.part((call.shift * self.hidden).min(whole.len())..whole.len())?;
        let table = Table { matrix, vocab: call.vocab, hidden: self.hidden };
        let (out, cos, sin) = (self.out.cast::<E>()?, self.cos.cast()?, self.sin.cast()?);
        let out = out.part(0..out.len().saturating_sub(call.short))?;
        let sin = sin.part(0..sin.len().saturating_sub(call.short))?;
        let turns = Turns { cos, sin };
        let frequencies = Frequencies { inv_freq: self.inv_freq.view(), scaling: call.scaling };
        let slots = (self.slots.view(), call.rows);
        match self.kind {
            Kind::Rows => self.embed.rows(gpu, &table, (self.ids.view(), call.rows), out),
            Kind::Turns => {
                self.embed.rope_table(gpu, &frequencies, (self.index.view(), call.rows), turns)
            }
            Kind::Slots => self.embed.slots(gpu, slots, &table, &frequencies, (out, turns)),
        }
    }

    fn upload(&self, gpu: &Gpu) -> Result<(), GpuError> {
        let host = &self.host;
        gpu.write(self.table.view(), &host.table)?;
        gpu.write(self.ids.view(), &host.ids)?;
        gpu.write(self.index.view(), &host.index)?;
        gpu.write(self.inv_freq.view(), &host.inv_freq)?;
        let slot = |(&token, &rope_index): (&u32, &u32)| Slot {
            token,
            rope_index,
            active: 1,
            ..Slot::default()
        };
        let slots: Vec<Slot> = host.ids.iter().zip(&host.index).map(slot).collect();
        gpu.write(self.slots.view(), &slots)
    }

    /// Bytes of `out` that are no copy.
    fn wrong_bytes(&self, gpu: &Gpu) -> Result<usize, GpuError> {
        let width = self.hidden * self.dtype.size();
        let found = gpu.read(self.out.view())?;
        let rows = found.chunks_exact(width).zip(&self.host.ids);
        let wrong = |(found, &id): (&[u8], &u32)| {
            let wanted = &self.host.table[id as usize * width..][..width];
            found.iter().zip(wanted).filter(|(found, wanted)| found != wanted).count()
        };
        Ok(rows.map(wrong).sum())
    }

    /// Largest error of the table over its allowance.
    fn turn_error(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        let unit = half_ulp(self.dtype) + 3.0 * half_ulp(DType::F32);
        let floor = smallest(self.dtype);
        let mut worst = 0.0_f64;
        for (buffer, function) in [(&self.cos, f64::cos as fn(f64) -> f64), (&self.sin, f64::sin)] {
            let found = decode(DType::F32, &gpu.read(buffer.view())?);
            let rows = found.chunks_exact(self.host.inv_freq.len());
            for (row, &index) in rows.zip(&self.host.index) {
                for (&found, &freq) in row.iter().zip(&self.host.inv_freq) {
                    let angle = index as f32 * freq;
                    let wanted = function(f64::from(angle)) * f64::from(SCALING);
                    let error = (f64::from(found) - wanted).abs() / (wanted.abs() * unit + floor);
                    if error.is_nan() {
                        return Ok(error);
                    }
                    worst = worst.max(error);
                }
            }
        }
        Ok(worst)
    }
}

/// Half the step of a type near zero.
pub(super) fn smallest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1.0 / 33_554_432.0,
        _ => f64::from(f32::MIN_POSITIVE),
    }
}

impl Case for Start {
    fn fill(&mut self, gpu: &Gpu, seed: u64) -> Result<(), GpuError> {
        let mut values = Values::new(seed);
        let freqs = self.inv_freq.len();
        let power = |f: usize| 10_000_f64.powf(-(f as f64) / freqs as f64) as f32;
        self.host = Host {
            table: encode(self.dtype, &values.many((VOCAB + 1) * self.hidden, 4.0)),
            ids: (0..self.rows).map(|_| values.below(VOCAB as u64) as u32).collect(),
            index: (0..self.rows).map(|_| values.below(POSITIONS) as u32).collect(),
            inv_freq: (0..freqs).map(power).collect(),
        };
        // An angle of zero, and the last row of the table.
        self.host.index[0] *= u32::from(seed != 1);
        self.host.ids[self.rows / 2] = VOCAB as u32 - 1;
        self.upload(gpu)
    }

    fn run(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.queue(gpu, self.call())
    }

    fn run_wrong(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.queue(gpu, Call { shift: 1, scaling: SCALING * 1.25, ..self.call() })
    }

    fn outputs(&self) -> Vec<Output<'_>> {
        let row = Output { name: "out", bytes: &self.out };
        let turns =
            [Output { name: "cos", bytes: &self.cos }, Output { name: "sin", bytes: &self.sin }];
        match self.kind {
            Kind::Rows => vec![row],
            Kind::Turns => turns.into(),
            Kind::Slots => [row].into_iter().chain(turns).collect(),
        }
    }

    fn error(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        if self.kind == Kind::Turns {
            return self.turn_error(gpu);
        }
        let wrong = self.wrong_bytes(gpu)?;
        match self.kind {
            Kind::Slots if wrong == 0 => self.turn_error(gpu),
            Kind::Slots => Ok(f64::INFINITY),
            _ => Ok(wrong as f64),
        }
    }

    fn disturb(&mut self, gpu: &Gpu) -> Result<Option<Vec<Vec<Range<usize>>>>, GpuError> {
        if self.rows == 1 {
            return Ok(None);
        }
        let last = self.rows - 1;
        self.host.ids[last] = (self.host.ids[last] + 1) % VOCAB as u32;
        self.host.index[last] += 1;
        self.upload(gpu)?;
        let kept = |output: &Output<'_>| {
            let bytes = output.bytes.view().len();
            vec![Range { start: 0, end: bytes / self.rows * last }]
        };
        Ok(Some(self.outputs().iter().map(kept).collect()))
    }

    fn misuse(&self, gpu: &Gpu) -> Vec<(&'static str, Result<(), GpuError>)> {
        let right = self.call();
        let mut calls = vec![
            ("no rows", self.queue(gpu, Call { rows: 0, ..right })),
            ("one more row than there is", self.queue(gpu, Call { rows: self.rows + 1, ..right })),
            ("outputs one element short", self.queue(gpu, Call { short: 1, ..right })),
            ("more rows than a count holds", self.queue(gpu, Call { rows: 1 << 40, ..right })),
        ];
        if self.kind != Kind::Turns {
            let vocab = VOCAB + 2;
            calls.push(("a table shorter than stated", self.queue(gpu, Call { vocab, ..right })));
            calls.push(("elements of one byte", self.queue_as::<u8>(gpu, right)));
        }
        calls
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::catalog::faults::hold;

    #[test]
    fn the_start_of_a_pass_holds_its_promise_on_the_emulator() {
        hold(ENTRIES);
    }

    #[test]
    fn an_empty_slot_gives_zeros_and_leaves_its_turns_alone() {
        let Ok(gpu) = Gpu::emulated() else { return };
        let mut case = Start::new(&gpu, &cell(DType::Bf16, &[2, 9, 4]), Kind::Slots).unwrap();
        case.fill(&gpu, 5).unwrap();
        let mut slots = gpu.read(case.slots.view()).unwrap();
        slots[1] = Slot { active: 0, token: u32::MAX, ..slots[1] };
        gpu.write(case.slots.view(), &slots).unwrap();
        for output in case.outputs() {
            output.bytes.poison(&gpu).unwrap();
        }
        case.run(&gpu).unwrap();
        let out = gpu.read(case.out.view()).unwrap();
        let width = 9 * 2;
        assert_eq!(out[..width], case.host.table[case.host.ids[0] as usize * width..][..width]);
        assert_eq!(out[width..], [0; 18]);
        let cos = gpu.read(case.cos.view()).unwrap();
        assert!(cos[..16].chunks_exact(4).all(|value| value != [0xff; 4]));
        assert_eq!(cos[16..], [0xff; 16]);
    }
}
