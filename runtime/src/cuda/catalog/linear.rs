//! Entries of `linear.cu`: `linear_plain`, `linear_residual`, `linear_swiglu`.

use bytemuck::Pod;
use lockstep_traces::DType;

use super::{Case, Cell, Contract, Entry, Guarded, Output, Tolerance};
use crate::cuda::gpu::{Buffer, Gpu, GpuError, KernelFile, View};
use crate::cuda::ops::linear::{Linear, Weight};
use crate::cuda::testing::{Values, decode, encode, half_ulp, rounded};

const SOURCES: &[(&str, &str)] = &[
    ("src/cuda/ops/linear.rs", include_str!("../ops/linear.rs")),
    ("src/cuda/catalog/linear.rs", include_str!("linear.rs")),
];
const SIZES: &[&str] = &["rows", "k", "batch"];

const fn cell(elem: DType, sizes: &'static [usize]) -> Cell {
    Cell { elem, cache: elem, sizes }
}

/// Tails of rows, of 64-element chunks and of 8-element vectors, every batch, and shapes of real layers.
const CELLS: &[Cell] = &[
    cell(DType::F32, &[48, 256, 1]),
    cell(DType::F32, &[17, 100, 3]),
    cell(DType::F32, &[33, 257, 8]),
    cell(DType::F16, &[48, 256, 1]),
    cell(DType::F16, &[17, 104, 5]),
    cell(DType::F16, &[40, 67, 2]),
    cell(DType::Bf16, &[48, 256, 1]),
    cell(DType::Bf16, &[31, 136, 2]),
    cell(DType::Bf16, &[64, 1024, 8]),
    cell(DType::Bf16, &[5, 8, 4]),
    cell(DType::Bf16, &[4096, 4096, 1]),
    cell(DType::Bf16, &[4096, 12288, 8]),
    cell(DType::F16, &[1024, 4096, 4]),
    cell(DType::F32, &[4096, 4096, 2]),
];

const CONTRACT: Contract = Contract {
    shapes: "x [batch, k], w [rows, k] (swiglu [2 rows, k], gate first), bias [rows] f32 or none, out [batch, rows]",
    raises: &[
        "more than 8 columns or none",
        "a view shorter than its shape",
        "elements of another width than the kernels'",
    ],
    silent: &[
        "a NaN in a weight row spoils that row of every column",
        "columns beyond `batch` are not written",
        "overlapping x and out",
    ],
    rounding: "f32 sums, rounded once after the bias; swiglu three times; residual twice",
};

fn tolerance(_: &Cell) -> Tolerance {
    Tolerance {
        bound: 1.0,
        why: "error over the sum of: one rounding of the result and two of what it is made from (each half a unit, relative), and \
              k / 8 + 16 f32 additions in a row (2^-24 each, of the sum of magnitudes)",
    }
}

macro_rules! entry {
    ($name:literal, $kind:expr, $reference:literal) => {
        Entry {
            name: $name,
            file: KernelFile::LINEAR,
            sources: SOURCES,
            sizes: SIZES,
            contract: CONTRACT,
            reference: $reference,
            tolerance,
            cells: CELLS,
            open: |gpu, cell| open(gpu, cell, $kind),
        }
    };
}

pub(super) const ENTRIES: &[Entry] = &[
    entry!("linear_plain", Kind::Plain, "sum_k x_k w_rk + bias_r in f64"),
    entry!("linear_residual", Kind::Residual, "residual + round(sum_k x_k w_rk + bias_r) in f64"),
    entry!("linear_swiglu", Kind::Swiglu, "round(silu(gate)) * up of two such sums in f64"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Residual,
    Swiglu,
}

fn open(gpu: &Gpu, cell: &Cell, kind: Kind) -> Result<Box<dyn Case>, GpuError> {
    Ok(match cell.elem {
        DType::F32 => Box::new(Projection::<f32>::new(gpu, cell, kind)?),
        _ => Box::new(Projection::<u16>::new(gpu, cell, kind)?),
    })
}

struct Projection<E> {
    kind: Kind,
    dtype: DType,
    rows: usize,
    k: usize,
    batch: usize,
    linear: Linear,
    x: Buffer<E>,
    w: Buffer<E>,
    bias: Buffer<f32>,
    out: Guarded<u8>,
    /// Values as the device holds them.
    host: Host,
}

#[derive(Default)]
struct Host {
    x: Vec<f32>,
    w: Vec<f32>,
    bias: Vec<f32>,
    before: Vec<f32>,
}

impl<E: Pod> Projection<E> {
    fn new(gpu: &Gpu, cell: &Cell, kind: Kind) -> Result<Self, GpuError> {
        let &[rows, k, batch] = cell.sizes else {
            return Err(GpuError::unsupported("a cell has rows, k and batch"));
        };
        let tiles = if kind == Kind::Swiglu { 2 } else { 1 };
        Ok(Self {
            kind,
            dtype: cell.elem,
            rows,
            k,
            batch,
            linear: Linear::new(gpu, cell.elem)?,
            x: gpu.alloc(batch * k)?,
            w: gpu.alloc(tiles * rows * k)?,
            bias: gpu.alloc(tiles * rows)?,
            out: Guarded::new(gpu, batch * rows * size_of::<E>())?,
            host: Host::default(),
        })
    }

    fn weight(&self, bias: bool) -> Weight<E> {
        let bias = bias.then(|| self.bias.view());
        Weight { matrix: self.w.view(), bias, rows: self.rows, k: self.k }
    }

    fn call(&self, gpu: &Gpu, weight: &Weight<E>) -> Result<(), GpuError> {
        let x = (self.x.view(), self.batch);
        let out: View<E> = self.out.cast()?;
        match self.kind {
            Kind::Plain => self.linear.plain(gpu, x, weight, out),
            Kind::Swiglu => self.linear.swiglu(gpu, x, weight, out),
            Kind::Residual => self.linear.residual(gpu, x, weight, out, None),
        }
    }

    fn upload(&self, gpu: &Gpu) -> Result<(), GpuError> {
        gpu.write(self.x.view().cast()?, &encode(self.dtype, &self.host.x))?;
        gpu.write(self.w.view().cast()?, &encode(self.dtype, &self.host.w))?;
        gpu.write(self.bias.view(), &self.host.bias)
    }

    /// The sum of a weight row with a column, and the sum of magnitudes.
    fn sum(&self, b: usize, row: usize) -> (f64, f64) {
        let x = &self.host.x[b * self.k..(b + 1) * self.k];
        let w = &self.host.w[row * self.k..(row + 1) * self.k];
        let bias = f64::from(self.host.bias[row]);
        let terms = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
        terms.fold((bias, bias.abs()), |(sum, size), term| (sum + term, size + term.abs()))
    }

    /// Result and allowance of one output.
    fn wanted(&self, b: usize, row: usize) -> (f64, f64) {
        let half = half_ulp(self.dtype);
        let adds = (self.k as f64 / 8.0 + 16.0) / 16_777_216.0;
        let slack = |(sum, size): (f64, f64)| half * sum.abs() + size * adds;
        let first = self.sum(b, row);
        match self.kind {
            Kind::Plain => (first.0, slack(first)),
            Kind::Residual => {
                let before = f64::from(self.host.before[b * self.rows + row]);
                let value = before + first.0;
                (value, slack(first) + half * value.abs() + half * first.0.abs())
            }
            Kind::Swiglu => {
                let up = self.sum(b, self.rows + row);
                let silu = first.0 / (1.0 + (-first.0).exp());
                // The slope of silu stays below 1.1.
                let gate_slack = 1.1 * slack(first) + half * silu.abs();
                let value = silu * up.0;
                let total =
                    gate_slack * up.0.abs() + slack(up) * silu.abs() + gate_slack * slack(up);
                (value, total + 2.0 * half * value.abs())
            }
        }
    }
}

impl<E: Pod> Case for Projection<E> {
    fn fill(&mut self, gpu: &Gpu, seed: u64) -> Result<(), GpuError> {
        let mut values = Values::new(seed);
        let tiles = if self.kind == Kind::Swiglu { 2 } else { 1 };
        let dtype = self.dtype;
        let mut draw = |count: usize, scale: f32| -> Vec<f32> {
            values.many(count, scale).iter().map(|&v| rounded(dtype, v)).collect()
        };
        self.host = Host {
            x: draw(self.batch * self.k, 2.0),
            w: draw(tiles * self.rows * self.k, 0.2),
            before: draw(self.batch * self.rows, 3.0),
            bias: draw(tiles * self.rows, 2.0),
        };
        self.upload(gpu)?;
        if self.kind == Kind::Residual {
            gpu.write(self.out.view(), &encode(self.dtype, &self.host.before))?;
        }
        Ok(())
    }

    fn run(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.call(gpu, &self.weight(true))
    }

    fn run_wrong(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.call(gpu, &self.weight(false))
    }

    fn outputs(&self) -> Vec<Output<'_>> {
        vec![Output { name: "out", bytes: &self.out }]
    }

    fn updates_in_place(&self) -> bool {
        self.kind == Kind::Residual
    }

    fn error(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        let found = decode(self.dtype, &gpu.read(self.out.view())?);
        let mut worst = 0.0_f64;
        for b in 0..self.batch {
            for row in 0..self.rows {
                let (wanted, slack) = self.wanted(b, row);
                let error = (f64::from(found[b * self.rows + row]) - wanted).abs() / slack;
                worst = if error.is_nan() { f64::NAN } else { worst.max(error) };
                if worst.is_nan() {
                    return Ok(worst);
                }
            }
        }
        Ok(worst)
    }

    fn disturb(&mut self, gpu: &Gpu) -> Result<Option<Vec<Vec<std::ops::Range<usize>>>>, GpuError> {
        if self.batch == 1 {
            return Ok(None);
        }
        let last = (self.batch - 1) * self.k;
        for value in &mut self.host.x[last..] {
            *value = rounded(self.dtype, -1.5 * *value + 0.25);
        }
        self.upload(gpu)?;
        if self.kind == Kind::Residual {
            gpu.write(self.out.view(), &encode(self.dtype, &self.host.before))?;
        }
        let kept = (self.batch - 1) * self.rows * self.dtype.size();
        Ok(Some(vec![vec![0..kept]]))
    }

    fn misuse(&self, gpu: &Gpu) -> Vec<(&'static str, Result<(), GpuError>)> {
        let weight = self.weight(true);
        let x = self.x.view();
        let Ok(out) = self.out.cast::<E>() else { return Vec::new() };
        let call = |x: View<E>, batch: usize, weight: &Weight<E>, out: View<E>| match self.kind {
            Kind::Plain => self.linear.plain(gpu, (x, batch), weight, out),
            Kind::Swiglu => self.linear.swiglu(gpu, (x, batch), weight, out),
            Kind::Residual => self.linear.residual(gpu, (x, batch), weight, out, None),
        };
        let taller = Weight { rows: self.rows + 1, ..weight };
        vec![
            ("nine columns", call(x, 9, &weight, out)),
            ("no column", call(x, 0, &weight, out)),
            ("one more weight row than there is", call(x, self.batch, &taller, out)),
            ("one more column than x holds", call(x, self.batch + 1, &weight, out)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn projections_hold_their_promise_on_the_emulator() {
        let Ok(gpu) = Gpu::emulated() else {
            eprintln!("skipped: no C++ compiler");
            return;
        };
        for entry in ENTRIES {
            for cell in CELLS.iter().filter(|cell| cell.sizes[0] * cell.sizes[1] < 100_000) {
                let mut case = (entry.open)(&gpu, cell).unwrap();
                case.fill(&gpu, 3).unwrap();
                case.run(&gpu).unwrap();
                let error = case.error(&gpu).unwrap();
                assert!(error <= 1.0, "{} {cell:?}: {error}", entry.name);
                case.fill(&gpu, 4).unwrap();
                case.run_wrong(&gpu).unwrap();
                let wrong = case.error(&gpu).unwrap();
                assert!(wrong > 1.0, "{} {cell:?}: {wrong}", entry.name);
                for (what, result) in case.misuse(&gpu) {
                    assert!(result.is_err(), "{} {cell:?}: {what} passed", entry.name);
                }
            }
        }
    }

    fn a_column_keeps_its_bits<E: Pod>(gpu: &Gpu, dtype: DType) {
        const K: usize = 200;
        const ROWS: usize = 33;
        let cell = |sizes| Cell { elem: dtype, cache: dtype, sizes };
        let mut eight = Projection::<E>::new(gpu, &cell(&[ROWS, K, 8]), Kind::Plain).unwrap();
        eight.fill(gpu, 9).unwrap();
        eight.run(gpu).unwrap();
        let all = gpu.read(eight.out.view()).unwrap();
        let mut one = Projection::<E>::new(gpu, &cell(&[ROWS, K, 1]), Kind::Plain).unwrap();
        for (b, wanted) in all.chunks_exact(ROWS * dtype.size()).enumerate() {
            one.host = Host {
                x: eight.host.x[b * K..(b + 1) * K].to_vec(),
                w: eight.host.w.clone(),
                bias: eight.host.bias.clone(),
                before: Vec::new(),
            };
            one.upload(gpu).unwrap();
            one.run(gpu).unwrap();
            assert_eq!(gpu.read(one.out.view()).unwrap(), wanted);
        }
    }

    #[test]
    fn a_column_does_not_see_its_batch() {
        let Ok(gpu) = Gpu::emulated() else { return };
        a_column_keeps_its_bits::<f32>(&gpu, DType::F32);
        a_column_keeps_its_bits::<u16>(&gpu, DType::Bf16);
    }
}
