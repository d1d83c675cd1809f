//! Against the CPU's summary on the emulator. Without a C++ compiler these tests say so and do nothing.

use half::{bf16, f16};

use super::*;
use crate::engine::summarize;

fn emulator() -> Option<Gpu> {
    Gpu::emulated().map_err(|error| eprintln!("skipped: {error}")).ok()
}

fn random(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let bits = lockstep_traces::hash::splitmix64(*state);
    (bits >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// A value's bytes in `dtype` and the f32 that they stand for.
fn encode(dtype: DType, value: f32) -> (Vec<u8>, f32) {
    match dtype {
        DType::F16 => (f16::from_f32(value).to_le_bytes().to_vec(), f16::from_f32(value).to_f32()),
        DType::Bf16 => {
            (bf16::from_f32(value).to_le_bytes().to_vec(), bf16::from_f32(value).to_f32())
        }
        _ => (value.to_le_bytes().to_vec(), value),
    }
}

struct Uploaded {
    bytes: Buffer<u8>,
    stride: usize,
    values: Vec<Vec<f32>>,
}

impl Uploaded {
    /// Rows at `stride`, NaN between them.
    fn new(gpu: &Gpu, dtype: DType, rows: &[Vec<f32>], stride: usize) -> Self {
        let mut bytes = Vec::new();
        let mut values = Vec::new();
        for row in rows {
            let encoded: Vec<_> = row.iter().map(|&value| encode(dtype, value)).collect();
            let size = encoded[0].0.len();
            bytes.extend(encoded.iter().flat_map(|(bytes, _)| bytes));
            bytes.resize(bytes.len() + (stride - row.len()) * size, 0xff);
            values.push(encoded.into_iter().map(|(_, value)| value).collect());
        }
        Self { bytes: gpu.upload(&bytes).unwrap(), stride, values }
    }

    fn rows(&self) -> LogitsRows {
        LogitsRows { logits: self.bytes.view(), stride: self.stride, rows: self.values.len() }
    }
}

struct Room {
    records: Buffer<LogitsRecord>,
    ids: Buffer<u32>,
    logits: Buffer<f32>,
}

impl Room {
    fn new(gpu: &Gpu, rows: usize, k: usize) -> Self {
        let room = Self {
            records: gpu.alloc(rows).unwrap(),
            ids: gpu.alloc(rows * top_width(k)).unwrap(),
            logits: gpu.alloc(rows * top_width(k)).unwrap(),
        };
        gpu.fill(room.records.view(), 0xff).unwrap();
        gpu.fill(room.ids.view(), 0xff).unwrap();
        gpu.fill(room.logits.view(), 0xff).unwrap();
        room
    }

    fn output(&self) -> SummaryOutput {
        SummaryOutput {
            records: self.records.view(),
            top_ids: self.ids.view(),
            top_logits: self.logits.view(),
        }
    }

    fn summaries(&self, gpu: &Gpu, k: usize) -> Vec<RowSummary> {
        let width = top_width(k);
        let ids = gpu.read(self.ids.view()).unwrap();
        let logits = gpu.read(self.logits.view()).unwrap();
        let rows = ids.chunks(width).zip(logits.chunks(width));
        let records = gpu.read(self.records.view()).unwrap();
        records
            .iter()
            .zip(rows)
            .map(|(record, (ids, logits))| row_summary(record, ids, logits, k))
            .collect()
    }
}

fn assert_same(found: &RowSummary, wanted: &RowSummary, what: &str) {
    let bits = |logits: &[f32]| -> Vec<u32> {
        logits.iter().map(|&x| if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() }).collect()
    };
    assert_eq!(found.argmax, wanted.argmax, "{what}");
    assert_eq!(found.top_ids, wanted.top_ids, "{what}");
    assert_eq!(bits(&found.top_logits), bits(&wanted.top_logits), "{what}");
    assert_eq!(found.hash, wanted.hash, "{what}");
    assert_eq!(found.finite, wanted.finite, "{what}");
    assert_eq!(found.top2_margin.map(f32::to_bits), wanted.top2_margin.map(f32::to_bits), "{what}");
    match (found.logsumexp, wanted.logsumexp) {
        (Some(found), Some(wanted)) if found.is_finite() => {
            let distance = (found - wanted).abs();
            assert!(distance <= 1e-12 * wanted.abs().max(1.0), "{what}: {found} {wanted}");
        }
        (found, wanted) => assert_eq!(found, wanted, "{what}"),
    }
}

fn scattered(vocab: usize, count: usize, value: f32, base: &[f32], state: &mut u64) -> Vec<f32> {
    let mut row = base.to_vec();
    for _ in 0..count {
        let place = (random(state).abs() * vocab as f32) as usize;
        row[place.min(vocab - 1)] = value;
    }
    row
}

/// Rows of every temper: random, tied, sorted either way, constant, with values that are no numbers, and all the best in one thread.
fn rows_of(vocab: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut state = seed;
    let plain: Vec<f32> = (0..vocab).map(|_| random(&mut state) * 12.0).collect();
    let line = |scale: f32| (0..vocab).map(|id| id as f32 * scale).collect::<Vec<f32>>();
    let signs = [0.0_f32, -0.0];
    vec![
        plain.clone(),
        (0..vocab).map(|_| (random(&mut state) * 4.0).round() * 0.5).collect(),
        line(0.001),
        line(-0.001),
        vec![1.25; vocab],
        (0..vocab).map(|id| signs[id % 2]).collect(),
        scattered(vocab, 5, f32::NAN, &plain, &mut state),
        scattered(vocab, vocab * 3, f32::NAN, &plain, &mut state),
        scattered(vocab, 4, f32::INFINITY, &plain, &mut state),
        scattered(vocab, vocab, f32::NEG_INFINITY, &plain, &mut state),
        vec![f32::NAN; vocab],
        vec![f32::INFINITY; vocab],
        vec![f32::NEG_INFINITY; vocab],
        scattered(vocab, 1, f32::NAN, &vec![f32::NEG_INFINITY; vocab], &mut state),
        (0..vocab).map(|id| if id / 8 % 256 < 3 { id as f32 } else { -1.0 }).collect(),
    ]
}

fn compare(gpu: &Gpu, dtype: DType, vocab: usize, pad: usize, ks: &[usize]) {
    let rows = rows_of(vocab, vocab as u64);
    let uploaded = Uploaded::new(gpu, dtype, &rows, vocab + pad);
    let summaries = Summaries::new(gpu, dtype, vocab, rows.len(), MAX_TOP).unwrap();
    for &k in ks {
        let room = Room::new(gpu, rows.len(), k);
        summaries.queue(gpu, uploaded.rows(), None, k, room.output()).unwrap();
        for (number, (found, values)) in
            room.summaries(gpu, k).iter().zip(&uploaded.values).enumerate()
        {
            let what = format!("{dtype:?}, vocabulary {vocab}, {k} ids, row {number}");
            assert_same(found, &summarize(values, k), &what);
        }
    }
}

#[test]
fn every_row_is_summarised_as_on_the_cpu() {
    let Some(gpu) = emulator() else { return };
    compare(&gpu, DType::F32, 1, 0, &[1, 2, 64]);
    compare(&gpu, DType::F32, 2, 3, &[1, 3]);
    compare(&gpu, DType::Bf16, 37, 0, &[1, 8, 64]);
    compare(&gpu, DType::F32, 2048, 0, &[8]);
    compare(&gpu, DType::F16, 2049, 7, &[2, 8]);
    compare(&gpu, DType::Bf16, 5003, 5, &[1, 8, 33, 64]);
}

#[test]
fn every_number_of_ids_comes_out() {
    let Some(gpu) = emulator() else { return };
    let all: Vec<usize> = (1..=MAX_TOP).collect();
    compare(&gpu, DType::F32, 700, 4, &all);
}

#[test]
fn a_whole_vocabulary_is_summarised_the_same_in_decode_and_in_prefill() {
    let Some(gpu) = emulator() else { return };
    let vocab = 151_936;
    let rows: Vec<Vec<f32>> = rows_of(vocab, 3).into_iter().take(3).collect();
    let uploaded = Uploaded::new(&gpu, DType::Bf16, &rows, vocab);
    let k = 8;
    let mut summaries = Summaries::new(&gpu, DType::Bf16, vocab, rows.len(), k).unwrap();
    let slices = rows.len() * vocab.div_ceil(SLICE);
    summaries.block_keys = gpu.alloc(slices * k).unwrap();
    summaries.block_sums = gpu.alloc(slices * 3).unwrap();
    let mut before: Option<(Vec<LogitsRecord>, Vec<u32>)> = None;
    // As many blocks as slices, a few slices a block, one block a row.
    for target in [slices, 30, 1] {
        summaries.target = target;
        let room = Room::new(&gpu, rows.len(), k);
        summaries.queue(&gpu, uploaded.rows(), None, k, room.output()).unwrap();
        for (found, values) in room.summaries(&gpu, k).iter().zip(&uploaded.values) {
            assert_same(found, &summarize(values, k), &format!("{target} blocks"));
        }
        let now = (gpu.read(room.records.view()).unwrap(), gpu.read(room.ids.view()).unwrap());
        if let Some(before) = &before {
            assert_eq!(&now, before, "{target} blocks");
        }
        before = Some(now);
    }
}

#[test]
fn a_recording_counts_anew_at_every_replay_and_passes_empty_slots_by() {
    let Some(gpu) = emulator() else { return };
    let (vocab, k) = (4500, 8);
    let rows: Vec<Vec<f32>> = rows_of(vocab, 5).into_iter().take(3).collect();
    let uploaded = Uploaded::new(&gpu, DType::F32, &rows, vocab);
    let slot = |active| Slot { active, ..Slot::default() };
    let slots = gpu.upload(&[slot(1), slot(0), slot(1)]).unwrap();
    let summaries = Summaries::new(&gpu, DType::F32, vocab, 3, k).unwrap();
    let room = Room::new(&gpu, 3, k);
    let graph = gpu
        .record(|| summaries.queue(&gpu, uploaded.rows(), Some(slots.view()), k, room.output()))
        .unwrap();
    for turn in 0..4 {
        let shifted: Vec<Vec<f32>> = rows
            .iter()
            .map(|row| row.iter().cycle().skip(turn * 7).take(vocab).copied().collect())
            .collect();
        let flat: Vec<f32> = shifted.iter().flatten().copied().collect();
        gpu.write(uploaded.bytes.view(), bytemuck::cast_slice(&flat)).unwrap();
        graph.launch().unwrap();
        let found = room.summaries(&gpu, k);
        for row in [0, 2] {
            assert_same(&found[row], &summarize(&shifted[row], k), &format!("turn {turn}"));
        }
        let records = gpu.read(room.records.view()).unwrap();
        assert_eq!(bytemuck::bytes_of(&records[1]), [0xff; size_of::<LogitsRecord>()]);
        assert!(gpu.read(room.ids.view()).unwrap()[k..2 * k].iter().all(|&id| id == u32::MAX));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let Some(gpu) = emulator() else { return };
    for (dtype, vocab, rows, k) in [
        (DType::F64, 8, 1, 8),
        (DType::F32, 0, 1, 8),
        (DType::F32, 8, 0, 8),
        (DType::F32, 8, 1, 0),
        (DType::F32, 8, 1, MAX_TOP + 1),
    ] {
        let made = Summaries::new(&gpu, dtype, vocab, rows, k);
        assert!(matches!(made, Err(GpuError::Unsupported { .. })), "{dtype:?} {vocab} {rows} {k}");
    }
}
