//! The best columns of rankings with many ties, exactly.

use lockstep_traces::DType;

use super::select_score::Random;
use super::{Case, Cell, Contract, Entry, Guarded, Output, Tolerance};
use crate::cuda::gpu::{Buffer, Gpu, GpuError, KernelFile};
use crate::cuda::ops::select::{Choice, TopOps};

pub(super) const ENTRIES: &[Entry] = &[Entry {
    name: "top_k",
    file: KernelFile::SELECT_TOP,
    sources: &[
        ("src/cuda/ops/select/top.rs", include_str!("../ops/select/top.rs")),
        ("src/cuda/catalog/select_top.rs", include_str!("select_top.rs")),
    ],
    sizes: &["lists", "columns", "count", "prefix", "falling", "higher"],
    contract: Contract {
        shapes: "scores [lists][columns] f32, rows [lists][prefix + count] u32",
        raises: &["more columns taken than there are, no list, no row", "views that are too short"],
        silent: &["a NaN ranks by its bits"],
        rounding: "none",
    },
    reference: "a stable sort by falling score; ties to the lower column, or the higher one; zeros of either sign equal",
    tolerance: |_| Tolerance {
        bound: 0.0,
        why: "rows are whole numbers; counted are those that differ",
    },
    cells: &[
        cell(&[8, 3200, 3072, 0, 0, 0]),
        cell(&[3, 1000, 1, 0, 0, 0]),
        cell(&[2, 1025, 1025, 7, 0, 0]),
        cell(&[2, 77, 40, 5, 0, 1]),
        cell(&[3, 2048, 700, 13, 1, 0]),
        cell(&[2, 130, 64, 0, 1, 1]),
        cell(&[8, 2, 1, 0, 1, 0]),
        cell(&[1, 65_536, 9000, 3, 1, 0]),
        cell(&[1, 65_536, 40_000, 0, 0, 0]),
    ],
    open: |gpu, cell| Ok(Box::new(Top::new(gpu, cell)?)),
}];

const fn cell(sizes: &'static [usize]) -> Cell {
    Cell { elem: DType::F32, cache: DType::F32, sizes }
}

struct Top {
    ops: TopOps,
    choice: Choice,
    values: Vec<f32>,
    scores: Buffer<f32>,
    /// The same with the other sign: a mistake.
    negated: Buffer<f32>,
    keys: Buffer<u64>,
    rows: Guarded<u8>,
}

impl Top {
    fn new(gpu: &Gpu, cell: &Cell) -> Result<Self, GpuError> {
        let &[lists, columns, count, prefix, falling, higher] = cell.sizes else {
            return Err(GpuError::unsupported("a top-k cell of other sizes than six"));
        };
        let choice =
            Choice { lists, columns, count, prefix, falling: falling == 1, higher: higher == 1 };
        Ok(Self {
            ops: TopOps::new(gpu)?,
            choice,
            values: Vec::new(),
            scores: gpu.alloc(lists * columns)?,
            negated: gpu.alloc(lists * columns)?,
            keys: gpu.alloc(TopOps::scratch(lists, count))?,
            rows: Guarded::new(gpu, lists * (prefix + count) * 4)?,
        })
    }

    fn call(&self, gpu: &Gpu, choice: &Choice) -> Result<(), GpuError> {
        self.ops.best(gpu, choice, self.scores.view(), self.keys.view(), self.rows.cast()?)
    }
}

impl Case for Top {
    fn fill(&mut self, gpu: &Gpu, seed: u64) -> Result<(), GpuError> {
        let mut random = Random(seed);
        // Few levels, so that ties lie everywhere; zeros of either sign; guards.
        self.values = (0..self.choice.lists * self.choice.columns)
            .map(|_| match random.below(16) {
                0 => f32::INFINITY,
                1 => 0.0,
                2 => -0.0,
                3..9 => random.value(),
                level => level as f32 / 4.0 - 3.0,
            })
            .collect();
        let negated: Vec<f32> = self.values.iter().map(|score| -score).collect();
        gpu.write(self.negated.view(), &negated)?;
        gpu.write(self.scores.view(), &self.values)
    }

    fn run(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.call(gpu, &self.choice)
    }

    fn run_wrong(&self, gpu: &Gpu) -> Result<(), GpuError> {
        let Choice { columns, count, prefix, falling, .. } = self.choice;
        if count == columns && !falling {
            // All columns in their order: ranked scores say nothing, so the prefix takes one column too many.
            return self.call(gpu, &Choice { count: count - 1, prefix: prefix + 1, ..self.choice });
        }
        let (scores, keys) = (self.negated.view(), self.keys.view());
        self.ops.best(gpu, &self.choice, scores, keys, self.rows.cast()?)
    }

    fn outputs(&self) -> Vec<Output<'_>> {
        vec![Output { name: "rows", bytes: &self.rows }]
    }

    fn error(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        let found = gpu.read(self.rows.cast::<u32>()?)?;
        let Choice { columns, count, prefix, falling, higher, .. } = self.choice;
        let mut wrong = 0.0;
        for (list, scores) in found.chunks(prefix + count).zip(self.values.chunks(columns)) {
            let mut order: Vec<usize> = (0..columns).collect();
            if higher {
                order.reverse();
            }
            order.sort_by(|&a, &b| {
                scores[b].partial_cmp(&scores[a]).unwrap_or(std::cmp::Ordering::Equal)
            });
            order.truncate(count);
            if !falling {
                order.sort_unstable();
            }
            let wanted = (0..prefix).chain(order.into_iter().map(|column| prefix + column));
            wrong += list.iter().zip(wanted).filter(|&(&a, b)| a as usize != b).count() as f64;
        }
        Ok(wrong)
    }

    fn disturb(&mut self, gpu: &Gpu) -> Result<Option<Vec<Vec<std::ops::Range<usize>>>>, GpuError> {
        if self.choice.lists == 1 || self.choice.count == self.choice.columns {
            return Ok(None);
        }
        self.values[..self.choice.columns].reverse();
        gpu.write(self.scores.view(), &self.values)?;
        let bytes = (self.choice.prefix + self.choice.count) * 4;
        Ok(Some(vec![std::iter::once(bytes..self.choice.lists * bytes).collect()]))
    }

    fn misuse(&self, gpu: &Gpu) -> Vec<(&'static str, Result<(), GpuError>)> {
        let good = self.choice;
        let more = Choice { count: good.columns + 1, ..good };
        let Ok(rows) = self.rows.cast::<u32>() else { return Vec::new() };
        let short = rows.part(0..rows.len() - 1).unwrap_or(rows);
        let (scores, keys) = (self.scores.view(), self.keys.view());
        vec![
            ("more columns than there are", self.call(gpu, &more)),
            ("no list", self.call(gpu, &Choice { lists: 0, ..good })),
            ("no row", self.call(gpu, &Choice { count: 0, prefix: 0, ..good })),
            ("a list too many", self.call(gpu, &Choice { lists: good.lists + 1, ..good })),
            ("rows that are too short", self.ops.best(gpu, &good, scores, keys, short)),
            ("no row in order", self.ops.in_order(gpu, rows, 1, 0)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::select_score::drive::drive;
    use super::*;

    #[test]
    fn the_best_columns_are_those_of_a_sort() {
        drive(ENTRIES);
    }

    #[test]
    fn one_column_is_chosen_of_one() {
        let Ok(gpu) = Gpu::emulated() else {
            eprintln!("skipped: no emulator");
            return;
        };
        let ops = TopOps::new(&gpu).unwrap();
        let scores = gpu.upload(&[f32::NEG_INFINITY]).unwrap();
        let rows = gpu.alloc::<u32>(3).unwrap();
        let keys = gpu.alloc(0).unwrap();
        for falling in [false, true] {
            let choice =
                Choice { lists: 1, columns: 1, count: 1, prefix: 2, falling, higher: false };
            ops.best(&gpu, &choice, scores.view(), keys.view(), rows.view()).unwrap();
            assert_eq!(gpu.read(rows.view()).unwrap(), [0, 1, 2]);
        }
    }
}
