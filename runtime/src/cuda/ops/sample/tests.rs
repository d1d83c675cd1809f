//! Against the CPU's sampler on the emulator. Without a C++ compiler these tests say so and do nothing.

use half::{bf16, f16};
use lockstep_traces::SamplingSpec;
use lockstep_traces::hash::splitmix64;

use super::super::logits::dtype_bytes;
use super::*;

fn emulator() -> Option<Gpu> {
    Gpu::emulated().map_err(|error| eprintln!("skipped: {error}")).ok()
}

/// Uniform numbers of a seed.
struct Numbers(u64);

impl Numbers {
    fn unit(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        (splitmix64(self.0) >> 40) as f32 / (1 << 24) as f32
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[((self.unit() * from.len() as f32) as usize).min(from.len() - 1)]
    }

    /// Peaked as logits are, with some -inf and, in steps of a quarter, with ties.
    fn row(&mut self, vocab: usize) -> Vec<f32> {
        let (scale, step) = (self.pick(&[1.0, 4.0, 9.0]), self.pick(&[0.0, 0.25]));
        let masked = self.pick(&[0.0, 0.0, 0.3]);
        let mut row: Vec<f32> = (0..vocab)
            .map(|_| {
                let bell = (0..6).map(|_| self.unit() - 0.5).sum::<f32>() * scale;
                let value = if step > 0.0 { (bell / step).round() * step } else { bell };
                if self.unit() < masked { f32::NEG_INFINITY } else { value }
            })
            .collect();
        row[vocab / 2] = 0.5;
        row
    }
}

fn bytes(dtype: DType, value: f32) -> Vec<u8> {
    match dtype {
        DType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        DType::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    }
}

/// The value that a tensor of `dtype` holds.
fn held(dtype: DType, value: f32) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(value).to_f32(),
        DType::Bf16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

fn upload(gpu: &Gpu, dtype: DType, rows: &[Vec<f32>], stride: usize) -> Buffer<u8> {
    let mut all = Vec::new();
    for row in rows {
        all.extend(row.iter().flat_map(|&value| bytes(dtype, value)));
        let size = dtype_bytes(dtype).unwrap();
        all.resize(all.len() + (stride - row.len()) * size, 0xff);
    }
    gpu.upload(&all).unwrap()
}

fn cpu(
    sampler: &Sampler,
    state: &mut crate::sample::SamplerState,
    row: &[f32],
) -> Result<DeviceDraw, SampleError> {
    let draw = sampler.draw(state, row)?;
    Ok(draw.into())
}

fn spec(kind: &str, temperature: f32, top_k: i64, top_p: f32, min_p: f32) -> SamplingSpec {
    SamplingSpec {
        sampler: Some(kind.to_owned()),
        temperature: Some(temperature),
        top_k: Some(top_k),
        top_p: Some(top_p),
        min_p: Some(min_p),
        ..SamplingSpec::default()
    }
}

/// Draws `turns` times from `rows` fresh rows on both sides; streams must go on together. Returns how many different tokens came.
fn follow(
    gpu: &Gpu,
    dtype: DType,
    spec: &SamplingSpec,
    (vocab, rows, turns): (usize, usize, usize),
    seed: u64,
) -> usize {
    let sampler = Sampler::resolve(spec, vocab).unwrap();
    let device = DeviceSampler::new(gpu, &sampler, dtype, rows).unwrap();
    let output = gpu.zeros::<DrawRecord>(rows).unwrap();
    let mut states: Vec<_> = (0..rows as u64).map(|row| sampler.start(Some(seed + row))).collect();
    for row in 0..rows {
        device.start(gpu, row, Some(seed + row as u64)).unwrap();
    }
    let mut numbers = Numbers(seed);
    let mut tokens = std::collections::BTreeSet::new();
    for turn in 0..turns {
        let logits: Vec<Vec<f32>> = (0..rows).map(|_| numbers.row(vocab)).collect();
        let uploaded = upload(gpu, dtype, &logits, vocab + turn % 3);
        let input = LogitsRows { logits: uploaded.view(), stride: vocab + turn % 3, rows };
        device.queue(gpu, input, 0, None, output.view()).unwrap();
        for (row, record) in gpu.read(output.view()).unwrap().iter().enumerate() {
            let values: Vec<f32> = logits[row].iter().map(|&value| held(dtype, value)).collect();
            let wanted = cpu(&sampler, &mut states[row], &values);
            assert_eq!(record.outcome(), wanted, "{spec:?} {dtype:?} turn {turn} row {row}");
            tokens.insert(record.token);
        }
    }
    let streams = gpu.read(device.streams()).unwrap();
    let wanted: Vec<Stream> = states.iter().map(stream_of).collect();
    assert_eq!(streams, wanted);
    tokens.len()
}

#[test]
fn streams_of_every_kind_follow_the_cpu_under_random_settings() {
    let Some(gpu) = emulator() else { return };
    let mut numbers = Numbers(11);
    for turn in 0..45 {
        let kind = ["argmax", "xorshift", "torch-cuda"][turn % 3];
        let vocab = numbers.pick(&[7, 50, 333, 1000]);
        let spec = SamplingSpec {
            sm_count: Some(numbers.pick(&[1, 132])),
            ..spec(
                kind,
                numbers.pick(&[0.3, 0.6, 1.0, 2.5]),
                numbers.pick(&[-1, 5, 40, 200]),
                numbers.pick(&[1.0, 0.95, 0.8, 0.3]),
                numbers.pick(&[0.0, 0.0, 0.02, 0.2]),
            )
        };
        let dtype = numbers.pick(&[DType::F32, DType::F16, DType::Bf16]);
        follow(&gpu, dtype, &spec, (vocab, 2, 12), 100 + turn as u64);
    }
}

#[test]
fn edge_settings_follow_the_cpu() {
    let Some(gpu) = emulator() else { return };
    for kind in ["xorshift", "torch-cuda"] {
        let shape = (300, 2, 6);
        for top in [
            spec(kind, 1.0, -1, 0.0, 0.0),
            spec(kind, 1.0, -1, 1.0, 1.0),
            spec(kind, 1.0, 1, 1.0, 0.0),
            spec(kind, 0.01, -1, 1.0, 0.0),
            spec(kind, 100.0, 5000, 1.0, 0.0),
            spec(kind, 100.0, -1, 0.999_999, 1e-9),
            spec(kind, 1.0, 2, 0.5, 0.5),
        ] {
            let tokens = follow(&gpu, DType::F32, &top, shape, 7);
            assert!(tokens > 1, "{top:?}");
        }
    }
}

#[test]
fn a_long_stream_over_one_row_follows_the_cpu_through_a_recording() {
    let Some(gpu) = emulator() else { return };
    for kind in ["argmax", "xorshift", "torch-cuda"] {
        let sampler = Sampler::resolve(&spec(kind, 1.0, 60, 0.97, 0.001), 400).unwrap();
        let device = DeviceSampler::new(&gpu, &sampler, DType::F32, 3).unwrap();
        let output = gpu.zeros::<DrawRecord>(3).unwrap();
        let rows: Vec<Vec<f32>> = (0..3).map(|seed| Numbers(seed).row(400)).collect();
        let uploaded = upload(&gpu, DType::F32, &rows, 400);
        let slot = |active| Slot { active, ..Slot::default() };
        let slots = gpu.upload(&[slot(1), slot(0), slot(1)]).unwrap();
        let mut states: Vec<_> = (0..3).map(|row| sampler.start(Some(row))).collect();
        for row in 0..3 {
            device.start(&gpu, row, Some(row as u64)).unwrap();
        }
        let input = LogitsRows { logits: uploaded.view(), stride: 400, rows: 3 };
        let queue = || device.queue(&gpu, input, 0, Some(slots.view()), output.view());
        let graph = gpu.record(queue).unwrap();
        for turn in 0..300 {
            // Recorded and not, in turn: the stream is one.
            if turn % 5 == 0 {
                queue().unwrap();
            } else {
                graph.launch().unwrap();
            }
            let records = gpu.read(output.view()).unwrap();
            for row in [0, 2] {
                let wanted = cpu(&sampler, &mut states[row], &rows[row]);
                assert_eq!(records[row].outcome(), wanted, "{kind} turn {turn}");
            }
        }
        assert_eq!(gpu.read(device.streams()).unwrap()[1], stream_of(&states[1]));
        assert_eq!(bytemuck::bytes_of(&gpu.read(output.view()).unwrap()[1]), [0; 40]);
    }
}

#[test]
fn more_survivors_than_shared_memory_holds_are_sorted_and_summed_in_order() {
    let Some(gpu) = emulator() else { return };
    for (kind, dtype, vocab) in [
        ("xorshift", DType::F32, 1500),
        ("torch-cuda", DType::F16, 5003),
        ("xorshift", DType::Bf16, 5003),
        ("torch-cuda", DType::F32, 1025),
    ] {
        for (top_k, top_p, min_p) in [(-1, 1.0, 0.0), (1100, 0.9, 0.0), (-1, 0.99, 1e-6)] {
            follow(&gpu, dtype, &spec(kind, 1.3, top_k, top_p, min_p), (vocab, 2, 4), 23);
        }
    }
}

#[test]
fn ties_and_spreads_that_fill_one_bin_are_cut_at_the_right_id() {
    let Some(gpu) = emulator() else { return };
    let vocab = 5003;
    let rows: Vec<Vec<f32>> = vec![
        vec![2.5; vocab],
        (0..vocab).map(|id| if id % 2 == 0 { 0.0 } else { -0.0 }).collect(),
        // One bin, told apart by the last bits of the logit.
        (0..vocab as u32).map(|id| f32::from_bits(0x3f80_0000 + id * 7919 % 4096)).collect(),
    ];
    let uploaded = upload(&gpu, DType::F32, &rows, vocab);
    let input = LogitsRows { logits: uploaded.view(), stride: vocab, rows: 3 };
    for top_k in [1, 600, 1024, 1025, -1] {
        for kind in ["xorshift", "torch-cuda"] {
            let sampler = Sampler::resolve(&spec(kind, 1.0, top_k, 1.0, 0.0), vocab).unwrap();
            let device = DeviceSampler::new(&gpu, &sampler, DType::F32, 3).unwrap();
            let output = gpu.zeros::<DrawRecord>(3).unwrap();
            let mut states: Vec<_> = (0..3).map(|row| sampler.start(Some(90 + row))).collect();
            for row in 0..3 {
                device.start(&gpu, row, Some(90 + row as u64)).unwrap();
            }
            for _ in 0..3 {
                device.queue(&gpu, input, 0, None, output.view()).unwrap();
                let records = gpu.read(output.view()).unwrap();
                for (row, values) in rows.iter().enumerate() {
                    let wanted = cpu(&sampler, &mut states[row], values);
                    assert_eq!(records[row].outcome(), wanted, "{kind} {top_k} row {row}");
                }
            }
        }
    }
}

#[test]
fn a_whole_vocabulary_follows_the_cpu() {
    let Some(gpu) = emulator() else { return };
    for (kind, top_k, top_p) in [
        ("argmax", -1, 1.0),
        ("torch-cuda", 50, 0.95),
        ("torch-cuda", -1, 0.9),
        ("xorshift", -1, 1.0),
    ] {
        let spec = spec(kind, 0.8, top_k, top_p, 0.0);
        follow(&gpu, DType::Bf16, &spec, (151_936, 1, 2), 5);
    }
}

#[test]
fn rows_that_cannot_be_drawn_from_are_named_and_leave_the_stream() {
    let Some(gpu) = emulator() else { return };
    let vocab = 3000;
    let good = Numbers(1).row(vocab);
    let with = |places: &[(usize, f32)]| {
        let mut row = good.clone();
        places.iter().for_each(|&(id, value)| row[id] = value);
        row
    };
    let rows = [
        with(&[(2999, f32::NAN), (1700, f32::INFINITY)]),
        with(&[(5, f32::NAN)]),
        vec![f32::NEG_INFINITY; vocab],
        good.clone(),
    ];
    let uploaded = upload(&gpu, DType::F32, &rows, vocab);
    let clean = upload(&gpu, DType::F32, &vec![good; 4], vocab);
    for kind in ["argmax", "xorshift", "torch-cuda"] {
        let sampler = Sampler::resolve(&spec(kind, 1.0, 20, 1.0, 0.0), vocab).unwrap();
        let device = DeviceSampler::new(&gpu, &sampler, DType::F32, 4).unwrap();
        let output = gpu.zeros::<DrawRecord>(4).unwrap();
        let mut states: Vec<_> = (0..4).map(|_| sampler.start(None)).collect();
        for (turn, logits) in [&clean, &uploaded, &clean, &uploaded].into_iter().enumerate() {
            let input = LogitsRows { logits: logits.view(), stride: vocab, rows: 4 };
            device.queue(&gpu, input, 0, None, output.view()).unwrap();
            let records = gpu.read(output.view()).unwrap();
            for (row, record) in records.iter().enumerate() {
                let values = if turn % 2 == 0 { &rows[3] } else { &rows[row] };
                let (found, wanted) = (record.outcome(), cpu(&sampler, &mut states[row], values));
                // NaN is not equal to itself.
                assert_eq!(format!("{found:?}"), format!("{wanted:?}"), "{kind} {turn} {row}");
            }
        }
        let wanted: Vec<Stream> = states.iter().map(stream_of).collect();
        assert_eq!(gpu.read(device.streams()).unwrap(), wanted);
        assert_eq!((wanted[0].draws, wanted[3].draws), (2, 4));
    }
}

#[test]
fn one_row_draws_for_any_slot() {
    let Some(gpu) = emulator() else { return };
    let sampler = Sampler::resolve(&spec("torch-cuda", 1.0, -1, 1.0, 0.0), 200).unwrap();
    let device = DeviceSampler::new(&gpu, &sampler, DType::F32, 4).unwrap();
    let output = gpu.zeros::<DrawRecord>(4).unwrap();
    let row = Numbers(4).row(200);
    let uploaded = upload(&gpu, DType::F32, std::slice::from_ref(&row), 200);
    let input = LogitsRows { logits: uploaded.view(), stride: 200, rows: 1 };
    device.start(&gpu, 2, Some(77)).unwrap();
    device.queue(&gpu, input, 2, None, output.view()).unwrap();
    let wanted = cpu(&sampler, &mut sampler.start(Some(77)), &row);
    assert_eq!(gpu.read(output.view()).unwrap()[0].outcome(), wanted);
    assert!(matches!(
        device.queue(&gpu, input, 4, None, output.view()),
        Err(GpuError::Range { .. })
    ));
    assert!(matches!(device.start(&gpu, 4, None), Err(GpuError::Range { .. })));
    let narrow = LogitsRows { stride: 199, ..input };
    assert!(matches!(
        device.queue(&gpu, narrow, 0, None, output.view()),
        Err(GpuError::Unsupported { .. })
    ));
    let two = LogitsRows { rows: 2, ..input };
    assert!(matches!(device.queue(&gpu, two, 0, None, output.view()), Err(GpuError::Range { .. })));
}

/// Draws from a row whose mass lies on a few ids.
fn sparse(gpu: &Gpu, vocab: usize, seed: u64, masses: &[(usize, f32)], count: usize) -> Vec<u32> {
    let sampler = Sampler::resolve(&spec("torch-cuda", 1.0, -1, 1.0, 0.0), vocab).unwrap();
    let device = DeviceSampler::new(gpu, &sampler, DType::F32, 1).unwrap();
    let output = gpu.zeros::<DrawRecord>(1).unwrap();
    let mut row = vec![f32::NEG_INFINITY; vocab];
    masses.iter().for_each(|&(id, mass)| row[id] = mass.ln());
    let uploaded = upload(gpu, DType::F32, &[row], vocab);
    let input = LogitsRows { logits: uploaded.view(), stride: vocab, rows: 1 };
    device.start(gpu, 0, Some(seed)).unwrap();
    let draw = || {
        device.queue(gpu, input, 0, None, output.view()).unwrap();
        gpu.read(output.view()).unwrap()[0].outcome().unwrap().token
    };
    (0..count).map(|_| draw()).collect()
}

#[test]
fn the_streams_of_the_native_runtime_and_of_torch_come_out() {
    let Some(gpu) = emulator() else { return };
    // Expected draws of the native runtime.
    let two = [(279, 0.545_416_1), (419, 0.454_583_85)];
    let stream = sparse(&gpu, 100_000, 1235, &two, 8);
    assert_eq!(stream, [419, 279, 279, 419, 279, 279, 419, 419]);
    // torch 2.11 on an H200 with seed 0, the same as in the test of the race on the CPU.
    let all = [
        (940, 0.002_073_981),
        (16_536, 0.001_993_097_1),
        (30_350, 0.007_708_797),
        (51_028, 0.005_855_678_6),
        (58_233, 0.027_563_41),
        (60_785, 0.001_089_356_6),
        (65_257, 0.006_727_404),
        (65_841, 0.180_862_86),
        (67_031, 0.022_654_863),
        (68_884, 0.008_861_015),
        (77_059, 0.097_877_84),
        (77_277, 0.016_731_681),
        (77_643, 0.090_222_53),
        (77_692, 0.121_235_06),
        (79_619, 0.046_417_546),
        (89_827, 0.003_166_778_7),
        (93_777, 0.045_420_79),
        (121_510, 0.074_198_49),
        (122_888, 0.227_170_5),
        (143_512, 0.012_168_312),
    ];
    let stream = sparse(&gpu, 151_936, 0, &all, 8);
    assert_eq!(stream, [77_277, 122_888, 77_643, 121_510, 77_059, 77_692, 65_841, 65_841]);
}
