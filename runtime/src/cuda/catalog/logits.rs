//! `logits_summary`.

mod rows;

use lockstep_traces::DType;

use super::{Case, Cell, Contract, Entry, Guarded, Output, Tolerance};
use crate::cuda::Slot;
use crate::cuda::gpu::{Gpu, GpuError, KernelFile};
use crate::cuda::ops::logits::{LogitsRecord, MAX_TOP, Summaries, SummaryOutput, top_width};

pub(super) use rows::{Rows, splitmix64};

const SEEDS: [u64; 2] = [0x6A09_E667_F3BC_C908, 0xBB67_AE85_84CA_A73B];

pub(super) const ENTRIES: &[Entry] = &[LOGITS_SUMMARY];

const LOGITS_SUMMARY: Entry = Entry {
    name: "logits_summary",
    file: KernelFile::LOGITS,
    sources: &[
        ("src/cuda/ops/logits.rs", include_str!("../ops/logits.rs")),
        ("src/cuda/catalog/logits.rs", include_str!("logits.rs")),
        ("src/cuda/catalog/logits/rows.rs", include_str!("logits/rows.rs")),
    ],
    sizes: &["rows", "vocab", "k"],
    contract: Contract {
        shapes: "logits [rows][vocab] elem at a row stride -> records [rows], top_ids u32 and top_logits f32 [rows][max(k, 2)]",
        raises: &[
            "no rows, or more than there is room for",
            "no ids, or more than there is room for",
            "a stride below the vocabulary",
            "views shorter than the rows need",
        ],
        silent: &["slots that do not belong to the rows"],
        rounding: "logits widened exactly; exp, sums and ln in f64; the hash and the order are exact",
    },
    reference: "ids sorted by (logit descending, id), NaN last; max + ln(sum(exp(l - max))) in f64, NaN with NaN or +inf in the row; \
                sum over ids of splitmix64(seed ^ (id << 32 | bits)), wrapping",
    tolerance,
    cells: &[
        Cell { elem: DType::F32, cache: DType::F32, sizes: &[4, 1000, 8] },
        Cell { elem: DType::F32, cache: DType::F32, sizes: &[1, 2, 1] },
        Cell { elem: DType::F16, cache: DType::F16, sizes: &[5, 4099, 64] },
        Cell { elem: DType::Bf16, cache: DType::Bf16, sizes: &[8, 5003, 1] },
        Cell { elem: DType::Bf16, cache: DType::Bf16, sizes: &[64, 2048, 8] },
        Cell { elem: DType::Bf16, cache: DType::Bf16, sizes: &[4, 151_936, 8] },
        Cell { elem: DType::F32, cache: DType::F32, sizes: &[1, 151_936, 20] },
    ],
    open,
};

fn tolerance(cell: &Cell) -> Tolerance {
    Tolerance {
        bound: 2.0 * (cell.sizes[1] as f64 + 16.0) * f64::EPSILON,
        why: "|logsumexp - reference| over max(1, |reference|): both sums add at most `vocab` positive terms in f64, each sum 2^-53, exp within \
              two places; ln makes the relative error of the sum an absolute one. Everything else must agree bit for bit.",
    }
}

struct SummaryCase {
    summaries: Summaries,
    input: Rows,
    k: usize,
    records: Guarded<u8>,
    ids: Guarded<u8>,
    logits: Guarded<u8>,
}

fn open(gpu: &Gpu, cell: &Cell) -> Result<Box<dyn Case>, GpuError> {
    let &[rows, vocab, k] = cell.sizes else {
        return Err(GpuError::unsupported("sizes that are not rows, vocab, k"));
    };
    Ok(Box::new(SummaryCase {
        summaries: Summaries::new(gpu, cell.elem, vocab, rows, k)?,
        input: Rows::new(gpu, cell.elem, rows, vocab)?,
        k,
        records: Guarded::new(gpu, rows * size_of::<LogitsRecord>())?,
        ids: Guarded::new(gpu, rows * top_width(k) * 4)?,
        logits: Guarded::new(gpu, rows * top_width(k) * 4)?,
    }))
}

impl SummaryCase {
    fn output(&self) -> Result<SummaryOutput, GpuError> {
        Ok(SummaryOutput {
            records: self.records.cast()?,
            top_ids: self.ids.cast()?,
            top_logits: self.logits.cast()?,
        })
    }
}

/// A row's summary in f64: ids by rank, ln(sum(exp)), finiteness, hash.
fn reference(row: &[f32]) -> (Vec<u32>, f64, bool, [u64; 2]) {
    let mut ids: Vec<u32> = (0..).take(row.len()).collect();
    // NaN below everything, so that it comes last; +0 makes the zeros one.
    let height = |id: u32| {
        let logit = row[id as usize] + 0.0;
        (!logit.is_nan(), if logit.is_nan() { 0.0 } else { logit })
    };
    ids.sort_by(|&a, &b| {
        let ((a_there, a_logit), (b_there, b_logit)) = (height(a), height(b));
        b_there.cmp(&a_there).then(b_logit.total_cmp(&a_logit)).then(a.cmp(&b))
    });
    let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let logsumexp = if row.iter().any(|x| x.is_nan()) || top == f32::INFINITY {
        f64::NAN
    } else if top == f32::NEG_INFINITY {
        f64::NEG_INFINITY
    } else {
        let sum: f64 = row.iter().map(|&x| (f64::from(x) - f64::from(top)).exp()).sum();
        f64::from(top) + sum.ln()
    };
    let hash = SEEDS.map(|seed| {
        (0_u64..).zip(row).fold(0_u64, |sum, (id, &x)| {
            let bits = if x.is_nan() { 0x7FC0_0000 } else { (x + 0.0).to_bits() };
            sum.wrapping_add(splitmix64(seed ^ (id << 32 | u64::from(bits))))
        })
    });
    (ids, logsumexp, row.iter().all(|x| x.is_finite()), hash)
}

/// Distance of one row's outputs from the reference.
fn deviation(row: &[f32], record: &LogitsRecord, ids: &[u32], logits: &[f32]) -> f64 {
    let (order, logsumexp, finite, hash) = reference(row);
    let found = order.len().min(ids.len());
    let bits = |x: f32| if x.is_nan() { 0x7FC0_0000 } else { x.to_bits() };
    let same_logits =
        ids.iter().zip(logits).take(found).all(|(&id, &x)| bits(row[id as usize]) == bits(x));
    if record.hash != hash
        || record.finite != u32::from(finite)
        || record.found as usize != found
        || ids[..found] != order[..found]
        || !same_logits
        || ids[found..].iter().any(|&id| id != u32::MAX)
        || logits[found..].iter().any(|x| !x.is_nan())
    {
        return f64::INFINITY;
    }
    if logsumexp.is_finite() {
        (record.logsumexp - logsumexp).abs() / logsumexp.abs().max(1.0)
    } else if record.logsumexp.is_nan() == logsumexp.is_nan()
        && record.logsumexp.is_sign_negative() | logsumexp.is_nan()
        && !record.logsumexp.is_finite()
    {
        0.0
    } else {
        f64::INFINITY
    }
}

impl Case for SummaryCase {
    fn fill(&mut self, gpu: &Gpu, seed: u64) -> Result<(), GpuError> {
        self.input.fill(gpu, seed)
    }

    fn run(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.summaries.queue(gpu, self.input.view(), None, self.k, self.output()?)
    }

    fn run_wrong(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.summaries.queue(gpu, self.input.one_off()?, None, self.k, self.output()?)
    }

    fn outputs(&self) -> Vec<Output<'_>> {
        vec![
            Output { name: "records", bytes: &self.records },
            Output { name: "top_ids", bytes: &self.ids },
            Output { name: "top_logits", bytes: &self.logits },
        ]
    }

    fn error(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        let output = self.output()?;
        let width = top_width(self.k);
        let (ids, logits) = (gpu.read(output.top_ids)?, gpu.read(output.top_logits)?);
        let records = gpu.read(output.records)?;
        let rows = records.iter().zip(ids.chunks(width).zip(logits.chunks(width)));
        Ok(self
            .input
            .values()
            .iter()
            .zip(rows)
            .map(|(row, (record, (ids, logits)))| deviation(row, record, ids, logits))
            .fold(0.0, |worst: f64, error| if error.is_nan() { error } else { worst.max(error) }))
    }

    fn disturb(&mut self, gpu: &Gpu) -> Result<Option<Vec<Vec<std::ops::Range<usize>>>>, GpuError> {
        let rows = self.input.values().len();
        if rows < 2 {
            return Ok(None);
        }
        self.input.disturb(gpu, 0)?;
        let rest = |each: usize| std::iter::once(each..rows * each).collect();
        let width = top_width(self.k) * 4;
        Ok(Some(vec![rest(size_of::<LogitsRecord>()), rest(width), rest(width)]))
    }

    fn misuse(&self, gpu: &Gpu) -> Vec<(&'static str, Result<(), GpuError>)> {
        let input = self.input.view();
        let Ok(output) = self.output() else { return Vec::new() };
        let queue = |input, k, output| self.summaries.queue(gpu, input, None, k, output);
        let mut short = output;
        short.top_ids = output.top_ids.part(0..1).unwrap_or(output.top_ids);
        let mut cut = input;
        cut.logits = input.logits.part(0..1).unwrap_or(input.logits);
        let mut more = input;
        more.rows += 1;
        let mut narrow = input;
        narrow.stride = self.input.vocab() - 1;
        let mut none = input;
        none.rows = 0;
        let mut list = vec![
            ("more rows than there is room for", queue(more, self.k, output)),
            ("no rows", queue(none, self.k, output)),
            ("a stride below the vocabulary", queue(narrow, self.k, output)),
            ("logits that end early", queue(cut, self.k, output)),
            ("ids that end early", queue(input, self.k, short)),
            ("no ids", queue(input, 0, output)),
            ("more ids than there is room for", queue(input, MAX_TOP + 1, output)),
        ];
        if let Ok(slots) = gpu.zeros::<Slot>(input.rows - 1) {
            let call = self.summaries.queue(gpu, input, Some(slots.view()), self.k, output);
            list.push(("fewer slots than rows", call));
        }
        list
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Drives every cell of an entry up to `most` logits: right, wrong, disturbed, misused.
    pub(in super::super) fn drive(entry: &Entry, most: usize) {
        let gpu = match Gpu::emulated() {
            Ok(gpu) => gpu,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let size = |cell: &Cell| cell.sizes[0] * cell.sizes[1];
        for cell in entry.cells.iter().filter(|cell| size(cell) <= most) {
            let bound = (entry.tolerance)(cell).bound;
            let mut case = (entry.open)(&gpu, cell).unwrap();
            let poison = |case: &dyn Case| {
                case.outputs().iter().for_each(|output| output.bytes.poison(&gpu).unwrap());
            };
            let bytes = |case: &dyn Case| -> Vec<Vec<u8>> {
                let outputs = case.outputs();
                outputs.iter().map(|output| gpu.read(output.bytes.view()).unwrap()).collect()
            };
            for seed in 0..3 {
                case.fill(&gpu, seed).unwrap();
                poison(case.as_ref());
                case.run(&gpu).unwrap();
                let error = case.error(&gpu).unwrap();
                assert!(error <= bound, "{} {cell:?} seed {seed}: {error}", entry.name);
                let first = bytes(case.as_ref());
                case.run(&gpu).unwrap();
                assert_eq!(first, bytes(case.as_ref()), "{} {cell:?}", entry.name);
                assert!(case.outputs().iter().all(|output| output.bytes.intact(&gpu).unwrap()));
                if let Some(kept) = case.disturb(&gpu).unwrap() {
                    case.run(&gpu).unwrap();
                    let second = bytes(case.as_ref());
                    assert_ne!(first, second, "{} {cell:?}: nothing was disturbed", entry.name);
                    for (output, ranges) in kept.iter().enumerate() {
                        for range in ranges {
                            let range = range.clone();
                            assert_eq!(first[output][range.clone()], second[output][range]);
                        }
                    }
                }
                case.fill(&gpu, seed).unwrap();
                poison(case.as_ref());
                case.run_wrong(&gpu).unwrap();
                let error = case.error(&gpu).unwrap();
                assert!(
                    error.is_nan() || error > bound,
                    "{} {cell:?} seed {seed}: {error}",
                    entry.name
                );
            }
            for (what, result) in case.misuse(&gpu) {
                assert!(result.is_err(), "{} {cell:?}: {what}", entry.name);
            }
        }
    }

    #[test]
    fn the_summary_keeps_its_contract() {
        drive(&LOGITS_SUMMARY, 160_000);
    }
}
