//! z-scores and column reductions against f64; the noise bit by bit.

mod noise;

use lockstep_traces::DType;

use noise::Noise;

use super::select_score::Random;
use super::{Case, Cell, Contract, Entry, Guarded, Output, Tolerance};
use crate::cuda::gpu::{Buffer, Gpu, GpuError, KernelFile};
use crate::cuda::ops::select::{Combine, Guards, Lists, Moments, ReduceOps, ZRule};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        name: "zscore",
        file: KernelFile::SELECT_REDUCE,
        sources: SOURCES,
        sizes: &["rows", "columns", "dropped", "rule", "population", "flags"],
        contract: Contract {
            shapes: "raw [rows][columns] f32, flags [columns] u32, z [rows][columns - dropped] f32",
            raises: &[
                "no row, or as many columns dropped as there are",
                "views that are too short",
            ],
            silent: &["no column that counts gives NaN"],
            rounding: "sums, deviation and quotient in f32",
        },
        reference: "(raw - mean) / divisor, two passes in f64 over the columns that count; divisor by the rule",
        tolerance: |cell| Tolerance {
            bound: 20.0 * (cell.sizes[1] as f64 / 256.0 + 14.0) * 2.0_f64.powi(-24),
            why: "of 1 + |z|: columns / 256 + 10 additions a sum and 4 roundings besides, 2^-24 each; the mean's share is multiplied by mean / deviation, which is 20 at most here (3 by the inputs, 20 with a row's offset)",
        },
        cells: &[
            cell(&[4, 3200, 0, 0, 0, 0]),
            cell(&[3, 257, 0, 1, 0, 1]),
            cell(&[2, 200, 13, 2, 1, 0]),
            cell(&[5, 31, 0, 2, 1, 1]),
        ],
        open: |gpu, cell| Ok(Box::new(Scores::new(gpu, cell)?)),
    },
    Entry {
        name: "combine",
        file: KernelFile::SELECT_REDUCE,
        sources: SOURCES,
        sizes: &["rows", "columns", "lists", "nan"],
        contract: Contract {
            shapes: "in [rows][columns] f32, lists of rows, flags [columns] u32, out [lists][columns] f32, words [3] u32",
            raises: &["no column", "views that are too short", "no list"],
            silent: &["an empty list gives NaN"],
            rounding: "sums in f32 in the order of the list, one quotient or product",
        },
        reference: "maximum (a NaN wins), mean or zero over the rows of a list in f64; flagged columns +inf; words[0] = 1 where a NaN arose",
        tolerance: |cell| Tolerance {
            bound: (cell.sizes[0] as f64 + 2.0) * 2.0_f64.powi(-24),
            why: "of the mean absolute value of a list: an addition a row, a reciprocal and a product, 2^-24 each; a maximum is exact",
        },
        cells: &[cell(&[36, 300, 8, 0]), cell(&[5, 129, 4, 1]), cell(&[17, 1, 3, 0])],
        open: |gpu, cell| Ok(Box::new(Columns::new(gpu, cell)?)),
    },
    Entry {
        name: "noise",
        file: KernelFile::SELECT_REDUCE,
        sources: SOURCES,
        sizes: &["rows", "columns", "skip"],
        contract: Contract {
            shapes: "state [625] u32 (MT19937 and the index of the next word), z [rows][columns] f32, order [rows] u32",
            raises: &["no value", "views that are too short"],
            silent: &["an order that names a row twice"],
            rounding: "u * 1e-6 and the sum each one f32 rounding",
        },
        reference: "the 32-bit Mersenne Twister of Matsumoto and Nishimura, low 24 bits times 2^-24 times 1e-6 added, after `skip` draws",
        tolerance: |_| Tolerance {
            bound: 0.0,
            why: "integers and two roundings that IEEE 754 fixes; counted are words that differ",
        },
        cells: &[
            cell(&[4, 700, 0]),
            cell(&[3, 208, 624]),
            cell(&[1, 1, 1247]),
            cell(&[6, 33, 198]),
        ],
        open: |gpu, cell| Ok(Box::new(Noise::new(gpu, cell)?)),
    },
];

const SOURCES: &[(&str, &str)] = &[
    ("src/cuda/ops/select/reduce.rs", include_str!("../../ops/select/reduce.rs")),
    ("src/cuda/catalog/select_reduce/mod.rs", include_str!("mod.rs")),
    ("src/cuda/catalog/select_reduce/noise.rs", include_str!("noise.rs")),
];

const fn cell(sizes: &'static [usize]) -> Cell {
    Cell { elem: DType::F32, cache: DType::F32, sizes }
}

struct Scores {
    ops: ReduceOps,
    rows: usize,
    columns: usize,
    how: Moments,
    values: Vec<f32>,
    left_out: Vec<u32>,
    raw: Buffer<f32>,
    flags: Buffer<u32>,
    z: Guarded<u8>,
}

impl Scores {
    fn new(gpu: &Gpu, cell: &Cell) -> Result<Self, GpuError> {
        let &[rows, columns, dropped, rule, population, flags] = cell.sizes else {
            return Err(GpuError::unsupported("a z-score cell of other sizes than six"));
        };
        let rule = [ZRule::Native, ZRule::Triton, ZRule::Clamped][rule.min(2)];
        let buffer = gpu.alloc(columns)?;
        let left_out = (flags == 1).then_some(buffer.view());
        Ok(Self {
            ops: ReduceOps::new(gpu)?,
            rows,
            columns,
            how: Moments { rule, population: population == 1, left_out, dropped },
            values: Vec::new(),
            left_out: Vec::new(),
            raw: gpu.alloc(rows * columns)?,
            flags: buffer,
            z: Guarded::new(gpu, rows * (columns - dropped) * 4)?,
        })
    }

    fn call(&self, gpu: &Gpu, how: &Moments) -> Result<(), GpuError> {
        let raw = (self.raw.view(), self.rows, self.columns);
        self.ops.zscore(gpu, raw, how, self.z.cast()?)
    }

    fn reference(&self, row: &[f32]) -> Vec<f64> {
        let counted: Vec<f64> = row
            .iter()
            .zip(&self.left_out)
            .filter(|&(_, &out)| self.how.left_out.is_none() || out == 0)
            .map(|(&value, _)| f64::from(value))
            .collect();
        let count = counted.len() as f64;
        let mean = counted.iter().sum::<f64>() / count;
        let squares: f64 = counted.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = (squares / if self.how.population { count } else { count - 1.0 }).sqrt();
        let divisor = match self.how.rule {
            ZRule::Native if deviation < 1e-6 => 1.0,
            ZRule::Triton if deviation < 1e-8 => 1.0,
            ZRule::Clamped => deviation.max(1e-6),
            _ => deviation,
        };
        row[self.how.dropped..].iter().map(|&value| (f64::from(value) - mean) / divisor).collect()
    }
}

impl Case for Scores {
    fn fill(&mut self, gpu: &Gpu, seed: u64) -> Result<(), GpuError> {
        let mut random = Random(seed);
        self.values = random.values(self.rows * self.columns);
        for (row, values) in self.values.chunks_mut(self.columns).enumerate() {
            values.iter_mut().for_each(|value| *value += 2.0 * row as f32);
        }
        // The last row has no spread: its divisor is the rule's.
        let last = (self.rows - 1) * self.columns;
        self.values[last..].fill(0.75);
        self.left_out = (0..self.columns).map(|_| u32::from(random.below(4) == 0)).collect();
        gpu.write(self.raw.view(), &self.values)?;
        gpu.write(self.flags.view(), &self.left_out)
    }

    fn run(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.call(gpu, &self.how)
    }

    fn run_wrong(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.call(gpu, &Moments { population: !self.how.population, ..self.how })
    }

    fn outputs(&self) -> Vec<Output<'_>> {
        vec![Output { name: "z", bytes: &self.z }]
    }

    fn error(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        let found = gpu.read(self.z.cast::<f32>()?)?;
        let mut worst = 0.0_f64;
        let rows = self.values.chunks(self.columns);
        for (row, z) in rows.zip(found.chunks(self.columns - self.how.dropped)) {
            for (&z, wanted) in z.iter().zip(self.reference(row)) {
                let off = (f64::from(z) - wanted).abs() / (1.0 + wanted.abs());
                if off.is_nan() {
                    return Ok(off);
                }
                worst = worst.max(off);
            }
        }
        Ok(worst)
    }

    fn disturb(&mut self, gpu: &Gpu) -> Result<Option<Vec<Vec<std::ops::Range<usize>>>>, GpuError> {
        self.values[..self.columns].reverse();
        self.values[0] += 1.0;
        gpu.write(self.raw.view(), &self.values)?;
        let bytes = (self.columns - self.how.dropped) * 4;
        Ok(Some(vec![std::iter::once(bytes..self.rows * bytes).collect()]))
    }

    fn misuse(&self, gpu: &Gpu) -> Vec<(&'static str, Result<(), GpuError>)> {
        let Ok(z) = self.z.cast::<f32>() else { return Vec::new() };
        let (raw, rows, columns) = (self.raw.view(), self.rows, self.columns);
        let all = Moments { dropped: columns, ..self.how };
        let short = z.part(0..z.len() - 1).unwrap_or(z);
        vec![
            ("no row", self.ops.zscore(gpu, (raw, 0, columns), &self.how, z)),
            ("every column dropped", self.call(gpu, &all)),
            ("a row too many", self.ops.zscore(gpu, (raw, rows + 1, columns), &self.how, z)),
            (
                "a result that is too short",
                self.ops.zscore(gpu, (raw, rows, columns), &self.how, short),
            ),
        ]
    }
}

struct Columns {
    ops: ReduceOps,
    columns: usize,
    members: Vec<(Combine, Vec<usize>)>,
    lists: Lists,
    wrong: Lists,
    nan: bool,
    values: Vec<f32>,
    marks: Vec<u32>,
    input: Buffer<f32>,
    flags: Buffer<u32>,
    out: Guarded<u8>,
    words: Guarded<u8>,
}

impl Columns {
    fn new(gpu: &Gpu, cell: &Cell) -> Result<Self, GpuError> {
        let &[rows, columns, lists, nan] = cell.sizes else {
            return Err(GpuError::unsupported("a combine cell of other sizes than four"));
        };
        let rules = [Combine::ReciprocalMean, Combine::Max, Combine::Mean, Combine::Zero];
        let members: Vec<(Combine, Vec<usize>)> = (0..lists)
            .map(|list| {
                (rules[list % 4], (0..rows).filter(|row| row % lists <= list).rev().collect())
            })
            .collect();
        // Without their last row.
        let wrong: Vec<(Combine, Vec<usize>)> = members
            .iter()
            .map(|(how, rows)| (*how, rows[..rows.len() - usize::from(rows.len() > 1)].to_vec()))
            .collect();
        Ok(Self {
            ops: ReduceOps::new(gpu)?,
            columns,
            lists: Lists::new(gpu, &members)?,
            wrong: Lists::new(gpu, &wrong)?,
            members,
            nan: nan == 1,
            values: Vec::new(),
            marks: Vec::new(),
            input: gpu.alloc(rows * columns)?,
            flags: gpu.alloc(columns)?,
            out: Guarded::new(gpu, lists * columns * 4)?,
            words: Guarded::new(gpu, 12)?,
        })
    }

    fn call(&self, gpu: &Gpu, lists: &Lists) -> Result<(), GpuError> {
        gpu.fill(self.words.view(), 0)?;
        let guards = self.guards()?;
        let input = (self.input.view(), self.columns);
        self.ops.combine(gpu, input, lists, Some(&guards), self.out.cast()?)
    }

    fn guards(&self) -> Result<Guards, GpuError> {
        Ok(Guards { flags: self.flags.view(), words: self.words.cast()?, newest_lost: false })
    }

    /// A value and the mean of the absolute ones that it is made of.
    fn reference(&self, how: Combine, rows: &[usize], column: usize) -> (f64, f64) {
        let members: Vec<f64> =
            rows.iter().map(|row| f64::from(self.values[row * self.columns + column])).collect();
        let count = members.len() as f64;
        let size = members.iter().map(|value| value.abs()).sum::<f64>() / count;
        let value = match how {
            Combine::Zero => 0.0,
            Combine::Max if members.iter().any(|value| value.is_nan()) => f64::NAN,
            Combine::Max => members.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            Combine::Mean | Combine::ReciprocalMean => members.iter().sum::<f64>() / count,
        };
        (value, size)
    }
}

impl Case for Columns {
    fn fill(&mut self, gpu: &Gpu, seed: u64) -> Result<(), GpuError> {
        let mut random = Random(seed);
        self.values = random.values(self.input.len());
        if self.nan {
            self.values[self.columns / 2] = f32::NAN;
        }
        self.marks = (0..self.columns).map(|_| u32::from(random.below(5) == 0)).collect();
        self.marks[self.columns / 2] = 0;
        gpu.write(self.input.view(), &self.values)?;
        gpu.write(self.flags.view(), &self.marks)
    }

    fn run(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.call(gpu, &self.lists)
    }

    fn run_wrong(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.call(gpu, &self.wrong)
    }

    fn outputs(&self) -> Vec<Output<'_>> {
        vec![Output { name: "out", bytes: &self.out }, Output { name: "words", bytes: &self.words }]
    }

    fn error(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        let found = gpu.read(self.out.cast::<f32>()?)?;
        let mut worst = 0.0_f64;
        for (list, (how, rows)) in self.members.iter().enumerate() {
            for column in 0..self.columns {
                let ours = f64::from(found[list * self.columns + column]);
                let (wanted, size) = self.reference(*how, rows, column);
                let off = if self.marks[column] == 1 {
                    if ours == f64::INFINITY { 0.0 } else { f64::INFINITY }
                } else if wanted.is_nan() {
                    if ours.is_nan() { 0.0 } else { f64::INFINITY }
                } else {
                    (ours - wanted).abs() / size.max(f64::MIN_POSITIVE)
                };
                if off.is_nan() {
                    return Ok(off);
                }
                worst = worst.max(off);
            }
        }
        let words = gpu.read(self.words.cast::<u32>()?)?;
        Ok(if words == [u32::from(self.nan), 0, 0] { worst } else { f64::INFINITY })
    }

    fn disturb(&mut self, gpu: &Gpu) -> Result<Option<Vec<Vec<std::ops::Range<usize>>>>, GpuError> {
        // Every row's first column: the other columns are other sequences as far as this goes.
        self.values.iter_mut().step_by(self.columns).for_each(|value| *value += 1.0);
        self.marks[0] = 0;
        gpu.write(self.input.view(), &self.values)?;
        gpu.write(self.flags.view(), &self.marks)?;
        let row = self.columns * 4;
        let same = (0..self.members.len()).map(|list| list * row + 4..(list + 1) * row);
        Ok(Some(vec![same.collect(), std::iter::once(0..12).collect()]))
    }

    fn misuse(&self, gpu: &Gpu) -> Vec<(&'static str, Result<(), GpuError>)> {
        let (Ok(out), Ok(guards)) = (self.out.cast::<f32>(), self.guards()) else {
            return Vec::new();
        };
        let (input, columns) = (self.input.view(), self.columns);
        let short = out.part(0..out.len() - 1).unwrap_or(out);
        let call = |columns, guards: &Guards, out| {
            self.ops.combine(gpu, (input, columns), &self.lists, Some(guards), out)
        };
        let narrow = Guards { words: guards.words.part(0..2).unwrap_or(guards.words), ..guards };
        vec![
            ("no column", call(0, &guards, out)),
            ("a column too many", call(columns + 1, &guards, out)),
            ("a result that is too short", call(columns, &guards, short)),
            ("words that are too few", call(columns, &narrow, out)),
            ("no list", Lists::new(gpu, &[]).map(|_| ())),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::select_score::drive::drive;
    use super::*;

    #[test]
    fn reductions_and_noise_are_those_of_the_formulas() {
        drive(ENTRIES);
    }
}
