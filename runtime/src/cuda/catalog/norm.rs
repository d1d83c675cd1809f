//! Entries of `norm.cu`: `rms_norm`, `add_rows`, `swiglu`.

use std::ops::Range;

use bytemuck::Pod;
use lockstep_traces::DType;

use super::embed::smallest;
use super::{Case, Cell, Contract, Entry, Guarded, Output, Tolerance};
use crate::cuda::gpu::{Buffer, Gpu, GpuError, KernelFile};
use crate::cuda::ops::norm::{Norm, Rms};
use crate::cuda::testing::{Values, decode, encode, half_ulp, rounded};

const SOURCES: &[(&str, &str)] = &[
    ("src/cuda/ops/norm.rs", include_str!("../ops/norm.rs")),
    ("src/cuda/catalog/norm.rs", include_str!("norm.rs")),
];

const fn cell(elem: DType, sizes: &'static [usize]) -> Cell {
    Cell { elem, cache: elem, sizes }
}

/// One element, widths beside a block and a span, odd widths, and those of the known models.
const CELLS: &[Cell] = &[
    cell(DType::F32, &[1, 1]),
    cell(DType::F32, &[3, 257]),
    cell(DType::F32, &[2, 4096]),
    cell(DType::F16, &[5, 100]),
    cell(DType::F16, &[2, 1025]),
    cell(DType::Bf16, &[1, 128]),
    cell(DType::Bf16, &[4, 2560]),
    cell(DType::Bf16, &[17, 255]),
    cell(DType::Bf16, &[2048, 4096]),
    cell(DType::F16, &[1024, 12_288]),
];

macro_rules! entry {
    ($name:literal, $kind:expr, $shapes:literal, $silent:expr, $rounding:literal, $reference:literal, $tolerance:expr) => {
        Entry {
            name: $name,
            file: KernelFile::NORM,
            sources: SOURCES,
            sizes: &["rows", "width"],
            contract: Contract {
                shapes: $shapes,
                raises: &[
                    "a view shorter than its shape",
                    "elements of another width",
                    "no rows, no width",
                ],
                silent: $silent,
                rounding: $rounding,
            },
            reference: $reference,
            tolerance: |_| $tolerance,
            cells: CELLS,
            open: |gpu, cell| Ok(Box::new(Rowwise::new(gpu, cell, $kind)?)),
        }
    };
}

pub(super) const ENTRIES: &[Entry] = &[
    entry!(
        "rms_norm",
        Kind::Rms,
        "x [rows, width], weight [width] f32, out [rows, width]",
        &[
            "a NaN spoils its row",
            "a mean of squares beyond f32 gives zeros",
            "out overlapping x of another row",
        ],
        "statistics f32; x / rms to the element type; times the weight to the element type",
        "weight * x / sqrt(mean(x^2) + eps) in f64",
        Tolerance {
            bound: 1.0,
            why: "error over the sum of: two roundings to the element type (half a unit each, and their product), width / 256 + 16 f32 \
                  operations in a row (2^-24 each), relative; and half the smallest step near zero, once through the weight",
        }
    ),
    entry!(
        "add_rows",
        Kind::Add,
        "x [rows, width] in place, y [rows, width]",
        &["x overlapping y other than wholly"],
        "the sum to f32, then to the element type",
        "x + y in f64, rounded to f32 and to the element type",
        Tolerance { bound: 0.0, why: "one IEEE sum; counted are bytes that differ" }
    ),
    entry!(
        "swiglu",
        Kind::Swiglu,
        "both [rows, 2 width] gate first, out [rows, width]",
        &[
            "a gate below -88 gives -0 where f64 would give less than 1e-36",
            "out overlapping both of another row",
        ],
        "silu to the element type, times up to the element type",
        "gate / (1 + exp(-gate)) * up in f64",
        Tolerance {
            bound: 1.0,
            why: "error over the sum of: two roundings to the element type (half a unit each, and their product), 8 units of 2^-24 (expf 4, \
                  sum, quotient, product), relative; and half the smallest step near zero, once through up",
        }
    ),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rms,
    Add,
    Swiglu,
}

const EPS: f32 = 1e-6;

struct Rowwise {
    kind: Kind,
    dtype: DType,
    rows: usize,
    width: usize,
    norm: Norm,
    /// Input that is only read: x, y, or gate and up.
    input: Buffer<u8>,
    weight: Buffer<f32>,
    out: Guarded<u8>,
    host: Host,
}

#[derive(Default)]
struct Host {
    input: Vec<f32>,
    weight: Vec<f32>,
    /// x of the sum.
    before: Vec<f32>,
}

/// A call, as it should be or not.
#[derive(Clone, Copy)]
struct Call {
    rows: usize,
    width: usize,
    eps: f32,
    /// Elements by which the input is shifted, and loses at its end.
    shift: usize,
}

impl Rowwise {
    fn new(gpu: &Gpu, cell: &Cell, kind: Kind) -> Result<Self, GpuError> {
        let &[rows, width] = cell.sizes else {
            return Err(GpuError::unsupported("a cell has rows and width"));
        };
        let bytes = rows * width * cell.elem.size();
        // One element more, for the wrong call.
        let inputs = if kind == Kind::Swiglu { 2 * bytes } else { bytes } + cell.elem.size();
        Ok(Self {
            kind,
            dtype: cell.elem,
            rows,
            width,
            norm: Norm::new(gpu, cell.elem)?,
            input: gpu.alloc(inputs)?,
            weight: gpu.alloc(width)?,
            out: Guarded::new(gpu, bytes)?,
            host: Host::default(),
        })
    }

    const fn call(&self) -> Call {
        Call { rows: self.rows, width: self.width, eps: EPS, shift: 0 }
    }

    fn queue(&self, gpu: &Gpu, call: Call) -> Result<(), GpuError> {
        match self.dtype {
            DType::F32 => self.queue_as::<f32>(gpu, call),
            _ => self.queue_as::<u16>(gpu, call),
        }
    }

    fn queue_as<E: Pod>(&self, gpu: &Gpu, call: Call) -> Result<(), GpuError> {
        let input = self.input.view().cast::<E>()?;
        let end = input.len() - 1 + call.shift.min(1);
        let input = input.part(call.shift.min(end)..end)?;
        let out = self.out.cast::<E>()?;
        match self.kind {
            Kind::Rms => {
                let weight = self.weight.part(0..call.width)?;
                self.norm.rms_norm(gpu, (input, call.rows), Rms { weight, eps: call.eps }, out)
            }
            Kind::Add => {
                let count = call.rows.saturating_mul(call.width);
                self.norm.add_rows(gpu, out.part(0..count)?, input)
            }
            Kind::Swiglu => self.norm.swiglu(gpu, input, (call.rows, call.width), out),
        }
    }

    fn upload(&self, gpu: &Gpu) -> Result<(), GpuError> {
        gpu.write(self.input.view(), &encode(self.dtype, &self.host.input))?;
        gpu.write(self.weight.view(), &self.host.weight)?;
        if self.kind == Kind::Add {
            gpu.write(self.out.view(), &encode(self.dtype, &self.host.before))?;
        }
        Ok(())
    }

    /// Values and allowances of a row.
    fn wanted(&self, row: usize) -> Vec<(f64, f64)> {
        let (half, step, unit) = (half_ulp(self.dtype), smallest(self.dtype), half_ulp(DType::F32));
        let twice = half * (2.0 + half);
        let wide = |value: &f32| f64::from(*value);
        let width = self.width;
        match self.kind {
            Kind::Rms => {
                let x = &self.host.input[row * width..][..width];
                let squares: f64 = x.iter().map(|x| wide(x) * wide(x)).sum();
                let scale = 1.0 / (squares / width as f64 + f64::from(EPS)).sqrt();
                let relative = twice + (width as f64 / 256.0 + 16.0) * unit;
                let weighed = |(x, w): (&f32, &f32)| {
                    let value = wide(w) * wide(x) * scale;
                    (value, value.abs() * relative + step * (1.0 + wide(w).abs()))
                };
                x.iter().zip(&self.host.weight).map(weighed).collect()
            }
            Kind::Swiglu => {
                let (gate, up) = self.host.input[2 * row * width..][..2 * width].split_at(width);
                let product = |(gate, up): (&f32, &f32)| {
                    let value = wide(gate) / (1.0 + (-wide(gate)).exp()) * wide(up);
                    (value, value.abs() * (twice + 8.0 * unit) + step * (1.0 + wide(up).abs()))
                };
                gate.iter().zip(up).map(product).collect()
            }
            Kind::Add => Vec::new(),
        }
    }

    /// Bytes of the sum that differ.
    fn sum_error(&self, found: &[u8]) -> f64 {
        let sum =
            |(x, y): (&f32, &f32)| rounded(self.dtype, (f64::from(*x) + f64::from(*y)) as f32);
        let wanted: Vec<f32> = self.host.before.iter().zip(&self.host.input).map(sum).collect();
        let wanted = encode(self.dtype, &wanted);
        found.iter().zip(&wanted).filter(|(found, wanted)| found != wanted).count() as f64
    }
}

impl Case for Rowwise {
    fn fill(&mut self, gpu: &Gpu, seed: u64) -> Result<(), GpuError> {
        let mut values = Values::new(seed);
        let dtype = self.dtype;
        let inputs = if self.kind == Kind::Swiglu { 2 } else { 1 } * self.rows * self.width;
        let mut draw = |dtype: DType, count: usize, scale: f32| -> Vec<f32> {
            values.many(count, scale).iter().map(|&value| rounded(dtype, value)).collect()
        };
        self.host = Host {
            input: draw(dtype, inputs + 1, 6.0),
            weight: draw(DType::F32, self.width, 2.0),
            before: draw(dtype, self.rows * self.width, 3.0),
        };
        if self.kind == Kind::Swiglu && self.width > 2 {
            // Where exp overflows, and where silu is the gate itself.
            self.host.input[0] = -100.0;
            self.host.input[1] = 100.0;
        }
        self.upload(gpu)
    }

    fn run(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.queue(gpu, self.call())
    }

    fn run_wrong(&self, gpu: &Gpu) -> Result<(), GpuError> {
        let shift = usize::from(self.kind != Kind::Rms);
        self.queue(gpu, Call { eps: 1.0, shift, ..self.call() })
    }

    fn outputs(&self) -> Vec<Output<'_>> {
        vec![Output { name: if self.kind == Kind::Add { "x" } else { "out" }, bytes: &self.out }]
    }

    fn updates_in_place(&self) -> bool {
        self.kind == Kind::Add
    }

    fn error(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        let found = gpu.read(self.out.view())?;
        if self.kind == Kind::Add {
            return Ok(self.sum_error(&found));
        }
        let found = decode(self.dtype, &found);
        let mut worst = 0.0_f64;
        for (row, found) in found.chunks_exact(self.width).enumerate() {
            for (&found, (wanted, slack)) in found.iter().zip(self.wanted(row)) {
                let error = (f64::from(found) - wanted).abs() / slack;
                if error.is_nan() {
                    return Ok(error);
                }
                worst = worst.max(error);
            }
        }
        Ok(worst)
    }

    fn disturb(&mut self, gpu: &Gpu) -> Result<Option<Vec<Vec<Range<usize>>>>, GpuError> {
        if self.rows == 1 {
            return Ok(None);
        }
        let last = self.rows - 1;
        let per_row = self.host.input.len() / self.rows;
        for value in &mut self.host.input[last * per_row..] {
            *value = rounded(self.dtype, 1.0 - *value);
        }
        self.upload(gpu)?;
        Ok(Some(vec![vec![0..last * self.width * self.dtype.size()]]))
    }

    fn misuse(&self, gpu: &Gpu) -> Vec<(&'static str, Result<(), GpuError>)> {
        let right = self.call();
        vec![
            ("no rows", self.queue(gpu, Call { rows: 0, ..right })),
            ("no width", self.queue(gpu, Call { width: 0, ..right })),
            ("one more row than there is", self.queue(gpu, Call { rows: self.rows + 1, ..right })),
            ("one element more a row", self.queue(gpu, Call { width: self.width + 1, ..right })),
            ("an input of other length", self.queue(gpu, Call { shift: 2, ..right })),
            ("elements of one byte", self.queue_as::<u8>(gpu, right)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::catalog::faults::hold;

    #[test]
    fn row_steps_hold_their_promise_on_the_emulator() {
        hold(ENTRIES);
    }

    #[test]
    fn a_row_keeps_its_bits_among_others() {
        let Ok(gpu) = Gpu::emulated() else { return };
        let mut many = Rowwise::new(&gpu, &cell(DType::Bf16, &[3, 200]), Kind::Rms).unwrap();
        let mut one = Rowwise::new(&gpu, &cell(DType::Bf16, &[1, 200]), Kind::Rms).unwrap();
        many.fill(&gpu, 7).unwrap();
        many.run(&gpu).unwrap();
        let all = gpu.read(many.out.view()).unwrap();
        for (row, wanted) in all.chunks_exact(400).enumerate() {
            one.host = Host {
                input: many.host.input[row * 200..=(row + 1) * 200].to_vec(),
                weight: many.host.weight.clone(),
                before: Vec::new(),
            };
            one.upload(&gpu).unwrap();
            one.run(&gpu).unwrap();
            assert_eq!(gpu.read(one.out.view()).unwrap(), wanted);
        }
    }
}
