//! Raw scores: both forms against the formulas in f64.

#[cfg(test)]
pub(super) mod drive;
mod values;

use lockstep_traces::DType;

pub(super) use values::Random;

use super::{Case, Cell, Contract, Entry, Guarded, Output, Tolerance};
use crate::cuda::gpu::{Buffer, Gpu, GpuError, KernelFile, View};
use crate::cuda::ops::select::{
    CacheKeys, Floors, HeadTables, HeadValues, Phase, ScoreOps, Turned, Units, Unrotate,
};
use crate::cuda::testing::{encode, rounded};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        name: "score_direct",
        file: KernelFile::SELECT_SCORE,
        sources: SOURCES,
        sizes: &["layers", "kv_heads", "group", "head_dim", "rows", "form", "max", "residual"],
        contract: Contract {
            shapes: "K [layers][kv_heads][capacity][head_dim] of the cache dtype; statistics [heads][freqs] f32; out [heads][rows] f32",
            raises: &[
                "rows beyond the capacity, none, or keys off a 16-byte boundary",
                "frequencies that are not half the head width; units of more heads than there are statistics",
                "turns that are neither 1 nor the number of offsets",
                "views that are too short",
            ],
            silent: &["a K address that is not the cache's"],
            rounding: "each phase one f32 product; turned queries f64 rounded once to f32; sums in f32; form 2: moduli step by step to the cache dtype",
        },
        reference: "agg_j sum_f s (A cos - B sin) + sum_f energy |z|, A = a x + b y, B = b x - a y, all in f64 from f32 phases",
        tolerance: |_| Tolerance {
            bound: 3e-6,
            why: "relative to the sum of the absolute terms of a score: 24 fused steps in a lane and 5 across lanes, 2^-24 each; cosines and the turned query rounded to f32, 2^-24 each, the turn by a residual three more, |z| two: 40 * 2^-24 = 2.4e-6",
        },
        cells: DIRECT,
        open: |gpu, cell| Ok(Box::new(Scores::new(gpu, cell, true)?)),
    },
    Entry {
        name: "score_unrotate",
        file: KernelFile::SELECT_SCORE,
        sources: SOURCES,
        sizes: &["layers", "kv_heads", "group", "head_dim", "rows", "start", "max", "by_layer"],
        contract: Contract {
            shapes: "as score_direct; positions [kv_heads or layers * kv_heads][capacity] u32; offsets ascending",
            raises: &[
                "rows beyond the capacity, none, or keys off a 16-byte boundary",
                "more lists of positions than there are",
                "views that are too short",
            ],
            silent: &["a K address that is not the cache's", "positions of 2^24 and more"],
            rounding: "R - p, + offset, * w and + phi each to f32, phi an f32 itself; cosines within 1.2e-7; sums in f32",
        },
        reference: "agg_j sum_f |mu| |z| s cos(fl(fl(R - p + offset_j) w) + phi) + sum_f energy |z| in f64, z turned back in f64",
        tolerance: |_| Tolerance {
            bound: 1.0,
            why: "relative to what roundings may cost: each term half a step of its f32 phase, one of its angle (pi * 2^-23), 2.5e-7 for sine and cosine of the turn back and the cosine itself, and 40 * 2^-24 of the sum of absolute terms",
        },
        cells: UNROTATE,
        open: |gpu, cell| Ok(Box::new(Scores::new(gpu, cell, false)?)),
    },
];

const SOURCES: &[(&str, &str)] = &[
    ("src/cuda/ops/select/score.rs", include_str!("../../ops/select/score.rs")),
    ("src/cuda/catalog/select_score/mod.rs", include_str!("mod.rs")),
    ("src/cuda/catalog/select_score/values.rs", include_str!("values.rs")),
];

const fn cell(cache: DType, sizes: &'static [usize]) -> Cell {
    Cell { elem: cache, cache, sizes }
}

const DIRECT: &[Cell] = &[
    cell(DType::Bf16, &[2, 2, 4, 128, 300, 0, 0, 0]),
    cell(DType::F16, &[2, 2, 5, 64, 77, 0, 0, 0]),
    cell(DType::F32, &[1, 3, 1, 32, 65, 0, 0, 0]),
    cell(DType::Bf16, &[1, 2, 8, 64, 1, 1, 0, 37]),
    cell(DType::F32, &[2, 1, 2, 128, 130, 1, 1, 0]),
    cell(DType::Bf16, &[1, 2, 2, 64, 90, 2, 0, 0]),
    cell(DType::F16, &[1, 1, 3, 10, 40, 2, 1, 0]),
    cell(DType::F32, &[1, 1, 1, 256, 33, 0, 0, 5]),
];

const UNROTATE: &[Cell] = &[
    cell(DType::Bf16, &[2, 2, 4, 128, 40, 3200, 0, 0]),
    cell(DType::F32, &[2, 2, 2, 64, 33, 70_000, 0, 1]),
    cell(DType::F16, &[1, 3, 1, 32, 25, 900, 1, 0]),
    cell(DType::Bf16, &[1, 1, 5, 10, 1, 3200, 0, 0]),
    // Phases beyond the short reduction.
    cell(DType::F32, &[1, 1, 2, 8, 19, 2_000_000, 0, 0]),
];

struct Scores {
    ops: ScoreOps,
    tables: HeadTables,
    units: Units,
    direct: bool,
    dtype: DType,
    layers: usize,
    kv_heads: usize,
    group: usize,
    freqs: usize,
    rows: usize,
    capacity: usize,
    form: usize,
    largest: bool,
    residual: u32,
    start: u32,
    lists: usize,
    offsets: Vec<f32>,
    w: Vec<f32>,
    values: HeadValues,
    wide: Vec<f32>,
    positions: Vec<u32>,
    keys: Buffer<u8>,
    at: Buffer<u32>,
    cos: Buffer<f32>,
    sin: Buffer<f32>,
    turned: Buffer<f32>,
    out: Guarded<u8>,
}

/// Rows before the first one scored, and after the last.
const MARGIN: usize = 3;
/// Scale of attention, so that a wrong one shows.
const SCALING: f32 = 1.25;

impl Scores {
    fn new(gpu: &Gpu, cell: &Cell, direct: bool) -> Result<Self, GpuError> {
        let &[layers, kv_heads, group, head_dim, rows, sixth, largest, last] = cell.sizes else {
            return Err(GpuError::unsupported("a score cell of other sizes than eight"));
        };
        let (freqs, heads) = (head_dim / 2, layers * kv_heads * group);
        let capacity = rows + 2 * MARGIN;
        let offsets: Vec<f32> = (0..17).map(|power| (1_u32 << power) as f32).collect();
        let w: Vec<f32> =
            (0..freqs).map(|f| 1e4_f64.powf(-(f as f64) / freqs as f64) as f32).collect();
        let zeros = vec![0.0; heads * freqs];
        let values = HeadValues {
            re: zeros.clone(),
            im: zeros.clone(),
            modulus: zeros.clone(),
            scale: zeros.clone(),
            energy: zeros,
        };
        // Heads of a unit are spread over the matrix, as a file may list them.
        let units: Vec<(usize, Vec<usize>)> = (0..layers * kv_heads)
            .map(|unit| (unit, (0..group).map(|g| g * layers * kv_heads + unit).collect()))
            .collect();
        let turns = if largest == 1 { offsets.len() } else { 1 };
        let lists = if direct || last == 0 { kv_heads } else { layers * kv_heads };
        Ok(Self {
            ops: ScoreOps::new(gpu, cell.cache, head_dim)?,
            tables: HeadTables::new(gpu, heads, &values, &offsets, &w)?,
            units: Units::new(gpu, &units)?,
            keys: gpu.alloc(layers * kv_heads * capacity * head_dim * cell.cache.size())?,
            at: gpu.alloc(lists * capacity)?,
            cos: gpu.alloc(offsets.len() * freqs)?,
            sin: gpu.alloc(offsets.len() * freqs)?,
            turned: gpu.alloc(heads * turns * 2 * freqs)?,
            out: Guarded::new(gpu, heads * rows * 4)?,
            direct,
            dtype: cell.cache,
            layers,
            kv_heads,
            group,
            freqs,
            rows,
            capacity,
            form: if direct { sixth } else { 0 },
            largest: largest == 1,
            residual: if direct { u32::try_from(last).unwrap_or(0) } else { 0 },
            start: if direct { 4096 } else { u32::try_from(sixth).unwrap_or(0) },
            lists,
            offsets,
            w,
            values,
            wide: Vec::new(),
            positions: Vec::new(),
        })
    }

    const fn heads(&self) -> usize {
        self.layers * self.kv_heads * self.group
    }

    fn cache(&self) -> CacheKeys {
        CacheKeys {
            base: self.keys.view().address(),
            capacity: self.capacity,
            first_row: MARGIN,
            columns: self.rows,
        }
    }

    fn call(
        &self,
        gpu: &Gpu,
        start: u32,
        cache: &CacheKeys,
        out: View<f32>,
    ) -> Result<(), GpuError> {
        let tables = (&self.tables, &self.units);
        if self.direct {
            let turns = if self.largest { self.offsets.len() } else { 1 };
            let turned = Turned { values: self.turned.view(), turns };
            let phases = (self.cos.view(), self.sin.view());
            let at = Phase { base: start, residual: self.residual };
            let floors = [Floors::Native, Floors::Triton, Floors::Torch][self.form.min(2)];
            self.ops.phases(gpu, &self.tables, at, phases)?;
            self.ops.turn(gpu, &self.tables, phases, turned)?;
            return self.ops.direct(gpu, tables, cache, (turned, floors), out);
        }
        self.ops.unrotate(gpu, tables, cache, &self.how(start), out)
    }

    fn how(&self, round_start: u32) -> Unrotate {
        Unrotate {
            positions: self.at.view(),
            lists: self.lists,
            round_start,
            trig: true,
            largest: self.largest,
            scaling: SCALING,
        }
    }

    /// |z| as the form takes it.
    fn modulus(&self, x: f32, y: f32) -> f64 {
        if self.form == 2 {
            let round = |value: f32| rounded(self.dtype, value);
            // Squares of 16-bit floats are exact in f32; the sum and the root are rounded to f32 on their way.
            let sum = round(round(x * x) + round(y * y));
            return f64::from(round(sum.sqrt()));
        }
        let square = f64::from(x).powi(2) + f64::from(y).powi(2);
        if self.form == 1 { (square + 1e-8).sqrt() } else { square.max(1e-8).sqrt() }
    }

    /// Score and what it may be off by, in units of the bound.
    fn reference(&self, head: usize, column: usize) -> (f64, f64) {
        let unit = head % (self.layers * self.kv_heads);
        let row = (unit * self.capacity + MARGIN + column) * 2 * self.freqs;
        let position = self.positions[unit % self.lists * self.capacity + MARGIN + column];
        let (mut energy, mut size, mut cost) = (0.0, 0.0, 0.0);
        let mut sums = vec![0.0; self.offsets.len()];
        for f in 0..self.freqs {
            let (x, y) = (self.wide[row + f], self.wide[row + self.freqs + f]);
            let own = head * self.freqs + f;
            let get = |list: &[f32]| f64::from(list[own]);
            let (a, b, s) = (get(&self.values.re), get(&self.values.im), get(&self.values.scale));
            let norm = if self.direct {
                self.modulus(x, y)
            } else {
                f64::from(x).hypot(f64::from(y)) / f64::from(SCALING)
            };
            energy += get(&self.values.energy) * norm;
            size += get(&self.values.energy).abs() * norm;
            let (x, y) = (f64::from(x), f64::from(y));
            if self.direct {
                size += s * ((a * x).abs() + (b * y).abs() + (b * x).abs() + (a * y).abs());
                let turn = f64::from(self.residual as f32 * self.w[f]);
                for (sum, offset) in sums.iter_mut().zip(&self.offsets) {
                    let phase = f64::from((self.start as f32 + offset) * self.w[f]) + turn;
                    *sum += s * ((a * x + b * y) * phase.cos() - (b * x - a * y) * phase.sin());
                }
                continue;
            }
            // Turned back by the f32 phase of the model's tables.
            let back = f64::from(position as f32 * self.w[f]);
            let (x, y) = (x / f64::from(SCALING), y / f64::from(SCALING));
            let (x, y) = (x * back.cos() + y * back.sin(), y * back.cos() - x * back.sin());
            let angle = (b * x - a * y).atan2(a * x + b * y);
            let amplitude = get(&self.values.modulus) * norm * s;
            size += amplitude.abs();
            let since = self.start as f32 - position as f32;
            for (sum, offset) in sums.iter_mut().zip(&self.offsets) {
                let phase = (since + offset) * self.w[f];
                let step = f64::from((phase.abs() + 4.0).next_up() - (phase.abs() + 4.0));
                *sum += amplitude * (f64::from(phase) + angle).cos();
                let share = if self.largest { 1.0 } else { 1.0 / self.offsets.len() as f64 };
                let angle_step = std::f64::consts::PI * 2.0_f64.powi(-23);
                cost += share * amplitude.abs() * (step / 2.0 + angle_step + 2.5e-7);
            }
        }
        let turning = if self.largest {
            sums.iter().copied().fold(f64::NEG_INFINITY, f64::max)
        } else {
            sums.iter().sum::<f64>() / sums.len() as f64
        };
        let scale = if self.direct { size } else { cost + size * 40.0 * 2.0_f64.powi(-24) };
        (turning + energy, scale)
    }
}

impl Case for Scores {
    fn fill(&mut self, gpu: &Gpu, seed: u64) -> Result<(), GpuError> {
        let mut random = Random(seed);
        let size = self.heads() * self.freqs;
        let (re, im) = (random.values(size), random.values(size));
        let modulus: Vec<f32> = re.iter().zip(&im).map(|(a, b)| a.hypot(*b)).collect();
        let scale = random.values(size).iter().map(|value| 1.5 + value / 4.0).collect();
        let energy = random.values(size).iter().map(|value| value / 2.0).collect();
        self.values = HeadValues { re, im, modulus, scale, energy };
        self.tables.write(gpu, &self.values)?;
        let count = self.layers * self.kv_heads * self.capacity * 2 * self.freqs;
        self.wide =
            random.values(count).iter().map(|value| rounded(self.dtype, 2.0 * value)).collect();
        // Zeros show the floors.
        self.wide[MARGIN * 2 * self.freqs..(MARGIN * 2 + 1) * self.freqs].fill(0.0);
        gpu.write(self.keys.view(), &encode(self.dtype, &self.wide))?;
        let reach = self.start as usize;
        self.positions =
            (0..self.lists * self.capacity).map(|_| random.below(reach) as u32).collect();
        gpu.write(self.at.view(), &self.positions)
    }

    fn run(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.call(gpu, self.start, &self.cache(), self.out.cast()?)
    }

    fn run_wrong(&self, gpu: &Gpu) -> Result<(), GpuError> {
        // R is one position late.
        self.call(gpu, self.start + 1, &self.cache(), self.out.cast()?)
    }

    fn outputs(&self) -> Vec<Output<'_>> {
        vec![Output { name: "scores", bytes: &self.out }]
    }

    fn error(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        let found = gpu.read(self.out.cast::<f32>()?)?;
        let mut worst = 0.0_f64;
        for (index, &score) in found.iter().enumerate() {
            let (wanted, scale) = self.reference(index / self.rows, index % self.rows);
            let off = (f64::from(score) - wanted).abs() / scale;
            worst = if off.is_nan() { f64::NAN } else { worst.max(off) };
            if worst.is_nan() {
                break;
            }
        }
        Ok(worst)
    }

    fn disturb(&mut self, gpu: &Gpu) -> Result<Option<Vec<Vec<std::ops::Range<usize>>>>, GpuError> {
        let units = self.layers * self.kv_heads;
        if self.rows == 1 && units == 1 {
            // Every score comes from the one row: there is none that may not change.
            return Ok(None);
        }
        // The last row scored of the first unit.
        let width = 2 * self.freqs;
        let start = (MARGIN + self.rows - 1) * width;
        for value in &mut self.wide[start..start + width] {
            *value = rounded(self.dtype, *value + 1.0);
        }
        gpu.write(self.keys.view(), &encode(self.dtype, &self.wide))?;
        let row_bytes = self.rows * 4;
        let same = (0..self.heads())
            .map(|head| {
                let start = head * row_bytes;
                start..start + row_bytes - if head % units == 0 { 4 } else { 0 }
            })
            .collect();
        Ok(Some(vec![same]))
    }

    fn misuse(&self, gpu: &Gpu) -> Vec<(&'static str, Result<(), GpuError>)> {
        let out = self.out.cast::<f32>();
        let Ok(out) = out else { return Vec::new() };
        let good = self.cache();
        let tables = (&self.tables, &self.units);
        let turned = Turned { values: self.turned.view(), turns: 1 };
        let score = |cache: &CacheKeys, out: View<f32>| {
            if self.direct {
                self.ops.direct(gpu, tables, cache, (turned, Floors::Native), out)
            } else {
                self.ops.unrotate(gpu, tables, cache, &self.how(self.start), out)
            }
        };
        let short = out.part(0..out.len() - 1).unwrap_or(out);
        let mut calls = vec![
            ("no row", score(&CacheKeys { columns: 0, ..good }, out)),
            ("rows beyond the capacity", score(&CacheKeys { columns: self.capacity, ..good }, out)),
            ("keys off a boundary", score(&CacheKeys { base: good.base + 2, ..good }, out)),
            ("no keys", score(&CacheKeys { base: 0, ..good }, out)),
            ("scores that are too short", score(&good, short)),
        ];
        if self.direct {
            let phases = (self.cos.view(), self.sin.view());
            let odd = Turned { turns: 2, ..turned };
            calls.push(("two turns", self.ops.turn(gpu, &self.tables, phases, odd)));
            let width = 2 * self.freqs + 2;
            let other = ScoreOps::new(gpu, self.dtype, width)
                .and_then(|ops| ops.direct(gpu, tables, &good, (turned, Floors::Native), out));
            calls.push(("another head width", other));
            calls.push(("an odd head width", ScoreOps::new(gpu, self.dtype, 7).map(|_| ())));
        } else {
            let how = Unrotate { lists: self.lists + 1, ..self.how(self.start) };
            calls.push(("a list too many", self.ops.unrotate(gpu, tables, &good, &how, out)));
        }
        calls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_those_of_the_formulas() {
        drive::drive(ENTRIES);
    }
}
