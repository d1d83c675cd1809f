//! `draw_argmax`, `draw_xorshift`, `draw_torch_cuda`.

mod reference;

use lockstep_traces::{DType, SamplingSpec};

use super::logits::{Rows, splitmix64};
use super::{Case, Cell, Contract, Entry, Guarded, Output, Tolerance};
use crate::cuda::Slot;
use crate::cuda::gpu::{Buffer, Gpu, GpuError, KernelFile};
use crate::cuda::ops::sample::{DeviceSampler, DrawRecord, Stream};
use crate::sample::{DrawKind, Sampler};
use reference::{Ranked, Settings, race_uniform, xorshift};

pub(super) const ENTRIES: &[Entry] = &[ARGMAX, XORSHIFT, TORCH_CUDA];

const SOURCES: &[(&str, &str)] = &[
    ("src/cuda/ops/sample.rs", include_str!("../ops/sample.rs")),
    ("src/cuda/ops/logits.rs", include_str!("../ops/logits.rs")),
    ("src/cuda/catalog/sample.rs", include_str!("sample.rs")),
    ("src/cuda/catalog/sample/reference.rs", include_str!("sample/reference.rs")),
    ("src/cuda/catalog/logits/rows.rs", include_str!("logits/rows.rs")),
];

const CONTRACT: Contract = Contract {
    shapes: "logits [rows][vocab] elem at a row stride, streams [slots] -> records [rows], streams moved on",
    raises: &[
        "no rows",
        "slots beyond those there are",
        "a stride below the vocabulary",
        "views shorter than the rows need",
    ],
    silent: &["a stream that was never started draws as an unseeded one"],
    rounding: "logits widened exactly; gap, quotient by the temperature, exp (in f64, rounded once), each addition in rank order and each \
               division rounded to f32",
};

const ARGMAX: Entry = Entry {
    name: "draw_argmax",
    file: KernelFile::SAMPLE,
    sources: SOURCES,
    sizes: &["rows", "vocab"],
    contract: Contract { rounding: "none: logits are compared", ..CONTRACT },
    reference: "the largest logit, lower id first",
    tolerance: |_| Tolerance { bound: 0.0, why: "comparisons only: the token must be the one" },
    cells: &[
        Cell { elem: DType::F32, cache: DType::F32, sizes: &[5, 1000] },
        Cell { elem: DType::F16, cache: DType::F16, sizes: &[4, 2049] },
        Cell { elem: DType::Bf16, cache: DType::Bf16, sizes: &[8, 5003] },
        Cell { elem: DType::Bf16, cache: DType::Bf16, sizes: &[8, 151_936] },
    ],
    open: |gpu, cell| open(gpu, cell, "argmax"),
};

const DRAWN_CELLS: &[Cell] = &[
    Cell { elem: DType::F32, cache: DType::F32, sizes: &[5, 1000, 20] },
    Cell { elem: DType::F32, cache: DType::F32, sizes: &[2, 700, 0] },
    Cell { elem: DType::F16, cache: DType::F16, sizes: &[3, 2049, 1024] },
    Cell { elem: DType::Bf16, cache: DType::Bf16, sizes: &[4, 5003, 0] },
    Cell { elem: DType::Bf16, cache: DType::Bf16, sizes: &[8, 151_936, 50] },
    Cell { elem: DType::F32, cache: DType::F32, sizes: &[4, 151_936, 1024] },
    Cell { elem: DType::Bf16, cache: DType::Bf16, sizes: &[2, 151_936, 0] },
];

const XORSHIFT: Entry = Entry {
    name: "draw_xorshift",
    file: KernelFile::SAMPLE,
    sources: SOURCES,
    sizes: &["rows", "vocab", "top_k"],
    contract: CONTRACT,
    reference: "filters in f64; the token whose interval of the running sum holds u = low 32 bits of the next xorshift64 state over 2^32",
    tolerance: |cell| Tolerance {
        bound: slack(cell),
        why: "distance of u from the token's interval: the sums that normalise and accumulate n probabilities of total 1 add 2^-24 of at most 1 \
              each, twice, and exp and the divisions some places more. A cut within that of its edge may fall to either side. u and the stream \
              must agree bit for bit.",
    },
    cells: DRAWN_CELLS,
    open: |gpu, cell| open(gpu, cell, "xorshift"),
};

const TORCH_CUDA: Entry = Entry {
    name: "draw_torch_cuda",
    file: KernelFile::SAMPLE,
    sources: SOURCES,
    sizes: &["rows", "vocab", "top_k"],
    contract: CONTRACT,
    reference: "filters in f64; the token with the largest p / -ln(U), U from Philox4x32-10 by torch's fill of the whole vocabulary",
    tolerance: |_| Tolerance {
        bound: 1e-5,
        why: "ln of the best quotient over that of the token: the sums cancel; the gap and its quotient by the temperature round 2^-24 each of \
              |gap / temperature| < 32, and exp, ln and the divisions add fewer than ten places of 2^-24. A cut whose edge the f32 sums cannot \
              tell may fall to either side. U and the stream must agree bit for bit.",
    },
    cells: DRAWN_CELLS,
    open: |gpu, cell| open(gpu, cell, "torch-cuda"),
};

/// What f32 sums over the survivors of a cell may be off by.
fn slack(cell: &Cell) -> f64 {
    let survivors = match *cell.sizes {
        [_, vocab, 0] => vocab,
        [_, _, top_k] => top_k,
        _ => 1,
    };
    (survivors as f64 + 32.0) * f64::from(f32::EPSILON)
}

struct DrawCase {
    sampler: Sampler,
    device: DeviceSampler,
    input: Rows,
    slack: f64,
    /// Streams before the draw; put in place by each run, so that each run is the same.
    before: Vec<Stream>,
    start: Buffer<Stream>,
    records: Guarded<u8>,
    streams: Guarded<u8>,
}

fn open(gpu: &Gpu, cell: &Cell, kind: &str) -> Result<Box<dyn Case>, GpuError> {
    let (rows, vocab) = (cell.sizes[0], cell.sizes[1]);
    let spec = SamplingSpec {
        sampler: Some(kind.to_owned()),
        temperature: Some(0.8),
        top_k: cell.sizes.get(2).and_then(|&k| i64::try_from(k).ok()),
        top_p: Some(0.9),
        min_p: Some(0.001),
        // Few enough threads that large ids take the later numbers of a block.
        sm_count: Some(2),
        ..SamplingSpec::default()
    };
    let sampler =
        Sampler::resolve(&spec, vocab).map_err(|error| GpuError::unsupported(error.to_string()))?;
    Ok(Box::new(DrawCase {
        device: DeviceSampler::new(gpu, &sampler, cell.elem, rows)?,
        input: Rows::new(gpu, cell.elem, rows, vocab)?,
        slack: slack(cell),
        before: Vec::new(),
        start: gpu.alloc(rows)?,
        records: Guarded::new(gpu, rows * size_of::<DrawRecord>())?,
        streams: Guarded::new(gpu, rows * size_of::<Stream>())?,
        sampler,
    }))
}

impl DrawCase {
    fn draw(&self, gpu: &Gpu, input: crate::cuda::ops::logits::LogitsRows) -> Result<(), GpuError> {
        gpu.copy(self.start.view(), self.device.streams())?;
        self.device.queue(gpu, input, 0, None, self.records.cast()?)?;
        gpu.copy(self.device.streams(), self.streams.cast()?)
    }

    /// Distance of a row's token from the reference's choice; infinite where record or stream is another.
    fn deviation(&self, row: &[f32], before: &Stream, after: &Stream, record: &DrawRecord) -> f64 {
        let bad = row.iter().position(|x| x.is_nan() || *x == f32::INFINITY);
        let nothing = row.iter().all(|&x| x == f32::NEG_INFINITY);
        if bad.is_some() || nothing {
            let status = if bad.is_some() { 1 } else { 2 };
            let id_agrees = bad.is_none_or(|id| id == record.bad_id as usize);
            return if record.status == status && id_agrees && after == before {
                0.0
            } else {
                f64::INFINITY
            };
        }
        let (wanted, uniform) = self.next(before, record.token);
        let random = !self.sampler.is_greedy();
        let offset = match self.sampler.settings().kind {
            DrawKind::TorchCuda => before.offset,
            _ => before.draws,
        };
        let agrees = record.status == 0
            && record.draw == before.draws
            && *after == wanted
            && record.has_uniform == u32::from(random)
            && (!random
                || (record.rng_offset, record.uniform.to_bits()) == (offset, uniform.to_bits()));
        if agrees { self.distance(row, before, record) } else { f64::INFINITY }
    }

    /// The stream after a draw of `token`, and the number that decided.
    fn next(&self, before: &Stream, token: u32) -> (Stream, f32) {
        let mut after = Stream { draws: before.draws + 1, ..*before };
        let race = self.sampler.race();
        match self.sampler.settings().kind {
            DrawKind::Argmax => (after, 0.0),
            DrawKind::Xorshift => {
                let (word, uniform) = xorshift(before.word);
                after.word = word;
                (after, uniform)
            }
            DrawKind::TorchCuda => {
                let vocab = self.input.vocab() as u64;
                after.offset += 4 * ((vocab - 1) / (4 * race.threads()) + 1);
                (after, race_uniform(before.seed, before.offset, race.threads(), token))
            }
        }
    }

    fn distance(&self, row: &[f32], before: &Stream, record: &DrawRecord) -> f64 {
        let filters = self.sampler.settings().filters;
        let settings = Settings {
            temperature: f64::from(filters.temperature),
            top_k: filters.top_k,
            top_p: f64::from(filters.top_p),
            min_p: f64::from(filters.min_p),
            threads: self.sampler.race().threads(),
        };
        match self.sampler.settings().kind {
            DrawKind::Argmax => {
                let best = (0..row.len() as u32)
                    .max_by(|&a, &b| {
                        let logit = |id: u32| row[id as usize] + 0.0;
                        logit(a).total_cmp(&logit(b)).then(b.cmp(&a))
                    })
                    .unwrap_or(u32::MAX);
                if best == record.token { 0.0 } else { f64::INFINITY }
            }
            DrawKind::Xorshift => Ranked::new(row, settings, self.slack)
                .interval_distance(record.token, f64::from(record.uniform)),
            DrawKind::TorchCuda => {
                let uniform = |id| race_uniform(before.seed, before.offset, settings.threads, id);
                Ranked::new(row, settings, self.slack).race_distance(record.token, uniform)
            }
        }
    }
}

impl Case for DrawCase {
    fn fill(&mut self, gpu: &Gpu, seed: u64) -> Result<(), GpuError> {
        self.input.fill_finite(gpu, seed)?;
        // Two rows that cannot be drawn from, where rows are left to draw from.
        if self.input.values().len() >= 5 {
            let id = self.input.vocab() - 1;
            let odd = if seed.is_multiple_of(2) { f32::NAN } else { f32::INFINITY };
            self.input.spoil(gpu, 2, Some(id), odd)?;
            self.input.spoil(gpu, 3, None, f32::NEG_INFINITY)?;
        }
        let stream = |row: usize| {
            let number = |place: u64| splitmix64(seed << 32 ^ (row as u64) << 8 ^ place);
            let draws = number(1) % 1000;
            Stream {
                seed: number(2),
                draws,
                offset: draws * self.sampler.race().increment(),
                word: number(3).max(1),
            }
        };
        self.before = (0..self.input.values().len()).map(stream).collect();
        gpu.write(self.start.view(), &self.before)
    }

    fn run(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.draw(gpu, self.input.view())
    }

    fn run_wrong(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.draw(gpu, self.input.one_off()?)
    }

    fn outputs(&self) -> Vec<Output<'_>> {
        vec![
            Output { name: "records", bytes: &self.records },
            Output { name: "streams", bytes: &self.streams },
        ]
    }

    fn error(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        let records: Vec<DrawRecord> = gpu.read(self.records.cast()?)?;
        let streams: Vec<Stream> = gpu.read(self.streams.cast()?)?;
        let before_and_after = self.before.iter().zip(&streams);
        let rows = self.input.values().iter().zip(before_and_after.zip(&records));
        Ok(rows
            .map(|(row, ((before, after), record))| self.deviation(row, before, after, record))
            .fold(0.0, |worst: f64, error| if error.is_nan() { error } else { worst.max(error) }))
    }

    fn disturb(&mut self, gpu: &Gpu) -> Result<Option<Vec<Vec<std::ops::Range<usize>>>>, GpuError> {
        let rows = self.input.values().len();
        if rows < 2 {
            return Ok(None);
        }
        self.input.disturb(gpu, 0)?;
        self.before[0].word ^= 0x5555;
        self.before[0].seed ^= 1;
        self.before[0].draws += 1;
        gpu.write(self.start.view(), &self.before)?;
        let rest = |each: usize| std::iter::once(each..rows * each).collect();
        Ok(Some(vec![rest(size_of::<DrawRecord>()), rest(size_of::<Stream>())]))
    }

    fn misuse(&self, gpu: &Gpu) -> Vec<(&'static str, Result<(), GpuError>)> {
        let input = self.input.view();
        let Ok(records) = self.records.cast::<DrawRecord>() else { return Vec::new() };
        let queue = |input, first, records| self.device.queue(gpu, input, first, None, records);
        let short = records.part(1..input.rows).unwrap_or(records);
        let mut cut = input;
        cut.logits = input.logits.part(0..1).unwrap_or(input.logits);
        let mut none = input;
        none.rows = 0;
        let mut narrow = input;
        narrow.stride = self.input.vocab() - 1;
        let mut list = vec![
            ("slots beyond those there are", queue(input, 1, records)),
            ("no rows", queue(none, 0, records)),
            ("a stride below the vocabulary", queue(narrow, 0, records)),
            ("logits that end early", queue(cut, 0, records)),
            ("records that end early", queue(input, 0, short)),
        ];
        if let Ok(slots) = gpu.zeros::<Slot>(input.rows - 1) {
            let call = self.device.queue(gpu, input, 0, Some(slots.view()), records);
            list.push(("fewer slots than rows", call));
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::super::logits::tests::drive;
    use super::*;

    #[test]
    fn the_argmax_keeps_its_contract() {
        drive(&ARGMAX, 160_000);
    }

    #[test]
    fn the_running_sum_keeps_its_contract() {
        drive(&XORSHIFT, 30_000);
    }

    #[test]
    fn the_race_keeps_its_contract() {
        drive(&TORCH_CUDA, 30_000);
    }
}
