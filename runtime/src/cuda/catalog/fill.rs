//! Entries of `embed.cu` that make weights out of nothing: `random_fill`, `constant_fill`.

use std::ops::Range;

use bytemuck::Pod;
use lockstep_traces::DType;
use lockstep_traces::hash::splitmix64;

use super::{Case, Cell, Contract, Entry, Guarded, Output, Tolerance};
use crate::cuda::gpu::{Gpu, GpuError, KernelFile};
use crate::cuda::ops::embed::Embed;
use crate::cuda::testing::{Values, encode, rounded};

const SOURCES: &[(&str, &str)] = &[
    ("src/cuda/ops/embed.rs", include_str!("../ops/embed.rs")),
    ("src/cuda/catalog/fill.rs", include_str!("fill.rs")),
];

const fn cell(elem: DType, sizes: &'static [usize]) -> Cell {
    Cell { elem, cache: elem, sizes }
}

/// One element, borders of a block, more elements than threads, more than 2^24.
const CELLS: &[Cell] = &[
    cell(DType::F32, &[1]),
    cell(DType::F32, &[257]),
    cell(DType::F16, &[1000]),
    cell(DType::Bf16, &[255]),
    cell(DType::Bf16, &[300_001]),
    cell(DType::Bf16, &[(1 << 24) + 3]),
];

const fn entry(name: &'static str, reference: &'static str) -> Entry {
    Entry {
        name,
        file: KernelFile::EMBED,
        sources: SOURCES,
        sizes: &["count"],
        contract: Contract {
            shapes: "out [count], seed u64 and scale f32, or value f32",
            raises: &["an empty view", "elements of another width"],
            silent: &["a scale or value beyond the element type becomes infinite"],
            rounding: "u * scale to f32, then to the element type",
        },
        reference,
        tolerance: |_| Tolerance {
            bound: 0.0,
            why: "every operation is exact or rounded once in a stated order; counted are bytes that differ",
        },
        cells: CELLS,
        open: |gpu, cell| open(gpu, cell, false),
    }
}

/// `random_fill`.
pub(super) const RANDOM: Entry = Entry {
    open: |gpu, cell| open(gpu, cell, true),
    ..entry(
        "random_fill",
        "x = top 23 bits of splitmix64(seed ^ i); (x + 0.5) / 2^22 - 1, times scale, in f64",
    )
};

/// `constant_fill`.
pub(super) const CONSTANT: Entry = entry("constant_fill", "the value, rounded");

struct Fill {
    random: bool,
    dtype: DType,
    embed: Embed,
    out: Guarded<u8>,
    seed: u64,
    /// Scale or value.
    value: f32,
}

fn open(gpu: &Gpu, cell: &Cell, random: bool) -> Result<Box<dyn Case>, GpuError> {
    let &[count] = cell.sizes else {
        return Err(GpuError::unsupported("a cell has a count"));
    };
    let out = Guarded::new(gpu, count * cell.elem.size())?;
    let embed = Embed::new(gpu, cell.elem)?;
    Ok(Box::new(Fill { random, dtype: cell.elem, embed, out, seed: 0, value: 0.0 }))
}

impl Fill {
    fn queue(&self, gpu: &Gpu, seed: u64, value: f32, len: usize) -> Result<(), GpuError> {
        match self.dtype {
            DType::F32 => self.queue_as::<f32>(gpu, seed, value, len),
            _ => self.queue_as::<u16>(gpu, seed, value, len),
        }
    }

    fn queue_as<E: Pod>(
        &self,
        gpu: &Gpu,
        seed: u64,
        value: f32,
        len: usize,
    ) -> Result<(), GpuError> {
        let out = self.out.cast::<E>()?.part(0..len)?;
        if self.random {
            self.embed.random_fill(gpu, out, seed, value)
        } else {
            self.embed.constant_fill(gpu, out, value)
        }
    }

    fn len(&self) -> usize {
        self.out.view().len() / self.dtype.size()
    }

    fn wanted(&self, index: usize) -> f32 {
        if !self.random {
            return self.value;
        }
        let x = (splitmix64(self.seed ^ index as u64) >> 41) as f64 + 0.5;
        let unit = x / 4_194_304.0 - 1.0;
        (unit * f64::from(self.value)) as f32
    }
}

impl Case for Fill {
    fn fill(&mut self, _: &Gpu, seed: u64) -> Result<(), GpuError> {
        let mut values = Values::new(seed);
        self.seed = values.bits();
        self.value = values.unit();
        Ok(())
    }

    fn run(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.queue(gpu, self.seed, self.value, self.len())
    }

    fn run_wrong(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.queue(gpu, self.seed, self.value * 1.5, self.len())
    }

    fn outputs(&self) -> Vec<Output<'_>> {
        vec![Output { name: "out", bytes: &self.out }]
    }

    fn by_argument(&self) -> bool {
        true
    }

    fn error(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        let found = gpu.read(self.out.view())?;
        let wanted: Vec<f32> =
            (0..self.len()).map(|index| rounded(self.dtype, self.wanted(index))).collect();
        let wanted = encode(self.dtype, &wanted);
        Ok(found.iter().zip(&wanted).filter(|(found, wanted)| found != wanted).count() as f64)
    }

    fn disturb(&mut self, _: &Gpu) -> Result<Option<Vec<Vec<Range<usize>>>>, GpuError> {
        Ok(None)
    }

    fn misuse(&self, gpu: &Gpu) -> Vec<(&'static str, Result<(), GpuError>)> {
        vec![
            ("no elements", self.queue(gpu, 1, 1.0, 0)),
            ("elements of one byte", self.queue_as::<u8>(gpu, 1, 1.0, 1)),
        ]
    }
}
