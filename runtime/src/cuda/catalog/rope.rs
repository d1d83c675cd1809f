//! Entries of `rope.cu`: `rope_append`, `bias_add`.

mod append;
mod bias;
#[cfg(test)]
mod tests;

use lockstep_traces::DType;

use self::append::Append;
use self::bias::Bias;
use super::{Case, Cell, Contract, Entry, Tolerance};
use crate::cuda::gpu::{Gpu, GpuError, KernelFile};

const SOURCES: &[(&str, &str)] = &[
    ("src/cuda/ops/rope.rs", include_str!("../ops/rope.rs")),
    ("src/cuda/catalog/rope.rs", include_str!("rope.rs")),
    ("src/cuda/catalog/rope/append.rs", include_str!("rope/append.rs")),
    ("src/cuda/catalog/rope/bias.rs", include_str!("rope/bias.rs")),
];

const fn cell(elem: DType, cache: DType, sizes: &'static [usize]) -> Cell {
    Cell { elem, cache, sizes }
}

const APPEND_SIZES: &[&str] =
    &["rows", "rows_before", "heads", "kv_heads", "head_dim", "capacity", "norm"];

/// Without and with norm, every pair of types, widths whose half is no multiple of 32, full caches (their bytes are outputs then).
const APPEND_CELLS: &[Cell] = &[
    cell(DType::F32, DType::F32, &[1, 0, 4, 2, 64, 1, 0]),
    cell(DType::F32, DType::F32, &[9, 5, 4, 1, 128, 20, 0]),
    cell(DType::F32, DType::F32, &[9, 5, 3, 3, 6, 14, 1]),
    cell(DType::F32, DType::Bf16, &[5, 0, 8, 2, 80, 5, 1]),
    cell(DType::F32, DType::F16, &[5, 2, 2, 1, 32, 8, 0]),
    cell(DType::F16, DType::F16, &[33, 0, 8, 1, 64, 33, 0]),
    cell(DType::F16, DType::Bf16, &[7, 1, 5, 1, 128, 9, 1]),
    cell(DType::F16, DType::F32, &[7, 1, 2, 2, 256, 9, 1]),
    cell(DType::Bf16, DType::Bf16, &[17, 40, 4, 2, 64, 64, 0]),
    cell(DType::Bf16, DType::Bf16, &[16, 0, 4, 2, 128, 16, 1]),
    cell(DType::Bf16, DType::F16, &[3, 3, 2, 1, 96, 7, 0]),
    cell(DType::Bf16, DType::F32, &[3, 3, 2, 1, 250, 7, 1]),
    cell(DType::Bf16, DType::Bf16, &[2048, 100, 32, 8, 128, 3000, 1]),
];

const BIAS_SIZES: &[&str] = &["rows", "width"];

const BIAS_CELLS: &[Cell] = &[
    cell(DType::F32, DType::F32, &[1, 6]),
    cell(DType::F32, DType::F32, &[5, 300]),
    cell(DType::F16, DType::F16, &[3, 257]),
    cell(DType::Bf16, DType::Bf16, &[17, 1536]),
    cell(DType::Bf16, DType::Bf16, &[2048, 6144]),
];

fn append_tolerance(cell: &Cell) -> Tolerance {
    if cell.sizes.last() == Some(&0) {
        let why = "single products and sums, each rounded once: bits must agree";
        return Tolerance { bound: 0.0, why };
    }
    Tolerance {
        bound: 1.0,
        why: "error over, with u one unit of elem: 2 u of a normed value (its two roundings may fall the other way) and, in units of 2^-24, \
              head_dim / 64 + 16 for the mean and the root; after the rotation 3 u and that of |x cos| + |y sin| and 1 u of the sum; \
              in the cache one unit of its type more. v, which is only copied, must agree in bits",
    }
}

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        name: "rope_append",
        file: KernelFile::ROPE,
        sources: SOURCES,
        sizes: APPEND_SIZES,
        contract: Contract {
            shapes: "qkv [rows, (heads + 2 kv_heads) head_dim], q [rows, heads, head_dim] of elem; norm weights [head_dim], cos and sin \
                     [rows, head_dim / 2] f32; k and v [kv_heads, capacity, head_dim] of the cache's type; q_norm as q, k_norm and k_rope \
                     [rows, kv_heads, head_dim] of elem, each optional",
            raises: &[
                "no rows",
                "more rows than the cache has room for",
                "a view shorter than its shape",
                "elements of another width than the kernels'",
                "a head width that is odd or above 256, query heads that are no multiple of the KV heads",
            ],
            silent: &[
                "cosines and sines that are not rounded to elem",
                "rows_before that is not the number of live rows: rows are overwritten or left out",
                "cache rows other than the new ones are not touched",
            ],
            rounding: "norm twice, each product and the sum of the rotation, to elem; k and v once more to the cache's type",
        },
        reference: "w x / sqrt(mean(x^2) + eps) and the rotation, in f64 with the same roundings",
        tolerance: append_tolerance,
        cells: APPEND_CELLS,
        open: open_append,
    },
    Entry {
        name: "bias_add",
        file: KernelFile::ROPE,
        sources: SOURCES,
        sizes: BIAS_SIZES,
        contract: Contract {
            shapes: "x [rows, width] of elem, bias [width] f32",
            raises: &[
                "no rows or no width",
                "a view shorter than its shape",
                "elements of another width",
            ],
            silent: &["a call that is repeated adds the bias again"],
            rounding: "the f32 sum, once to elem; x was rounded before, where decode and the CPU add the bias to the f32 product",
        },
        reference: "x + bias, rounded",
        tolerance: |_| Tolerance { bound: 0.0, why: "one sum, rounded: bits must agree" },
        cells: BIAS_CELLS,
        open: |gpu, cell| {
            Ok(match cell.elem {
                DType::F32 => Box::new(Bias::<f32>::new(gpu, cell)?),
                _ => Box::new(Bias::<u16>::new(gpu, cell)?),
            })
        },
    },
];

fn open_append(gpu: &Gpu, cell: &Cell) -> Result<Box<dyn Case>, GpuError> {
    Ok(match (cell.elem, cell.cache) {
        (DType::F32, DType::F32) => Box::new(Append::<f32, f32>::new(gpu, cell)?),
        (DType::F32, _) => Box::new(Append::<f32, u16>::new(gpu, cell)?),
        (_, DType::F32) => Box::new(Append::<u16, f32>::new(gpu, cell)?),
        _ => Box::new(Append::<u16, u16>::new(gpu, cell)?),
    })
}

/// Values with the error that each may have.
type Allowed = Vec<(f64, f64)>;

/// Largest error over its allowance; where nothing is allowed, the error over the smallest number.
fn compare(found: &[f32], wanted: &Allowed) -> f64 {
    let errors = found.iter().zip(wanted).map(|(&found, &(value, slack))| {
        (f64::from(found) - value).abs() / slack.max(f64::MIN_POSITIVE)
    });
    errors.fold(0.0, worse)
}

/// The larger one; NaN stays.
fn worse(worst: f64, error: f64) -> f64 {
    if error.is_nan() || worst.is_nan() { f64::NAN } else { worst.max(error) }
}
