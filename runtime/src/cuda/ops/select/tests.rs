//! The device selector on the emulator against the CPU's, over rule sets, modes, shapes and planted faults. Without a C++ compiler these
//! tests say so and do nothing.

use lockstep_traces::{Aggregation, Cause, DType, PolicySpec, RuleSet, SelectionMode};

use super::fixture::{Setup, device_input, emulator};
use super::*;
use crate::cuda::ops::gather::KeepShape;
use crate::select::{Dims, KeepSet, SelectError, Selection, Stage, Stages};

/// Largest distance of two stages; infinities and NaN must agree.
fn distance(ours: &Stage, theirs: &Stage) -> f32 {
    assert_eq!(ours.shape, theirs.shape);
    let mut worst = 0.0_f32;
    for (a, b) in ours.values.iter().zip(&theirs.values) {
        if a.is_finite() && b.is_finite() {
            worst = worst.max((a - b).abs());
        } else {
            assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "{a} {b}");
        }
    }
    worst
}

/// Raw scores relative to the largest: f32 sums in another order, and roundings of the mean query turned on. Ranked ones absolutely: their
/// spread is 1, that of the raw ones a tenth of the largest or more. `hf`: a phase of 7e4 lies on a grid of 2^-7, and an angle that
/// differs in its last place moves one in 1e5 of them to its neighbour.
fn same_stages(ours: &Stages, theirs: &Stages, rule_set: RuleSet) -> Result<(), String> {
    let (raw, ranked) = if rule_set == RuleSet::Hf { (2e-5, 1e-4) } else { (2e-6, 2e-5) };
    let largest = theirs.raw.values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    let groups = match (&ours.group, &theirs.group) {
        (Some(ours), Some(theirs)) => distance(ours, theirs),
        (None, None) => 0.0,
        other => return Err(format!("{other:?}")),
    };
    let group_limit = if rule_set == RuleSet::Sglang { raw * largest } else { ranked };
    let found = [
        distance(&ours.raw, &theirs.raw) / largest / raw,
        distance(&ours.z, &theirs.z) / ranked,
        groups / group_limit,
        distance(&ours.last, &theirs.last) / ranked,
    ];
    let same = (&ours.layers, &ours.heads, ours.row_offset)
        == (&theirs.layers, &theirs.heads, theirs.row_offset);
    if same && found.iter().all(|share| *share <= 1.0) && ours.metadata() == theirs.metadata() {
        Ok(())
    } else {
        Err(format!("shares of what is allowed: {found:?}"))
    }
}

/// Rows that stand in another place score within 2e-5 of the row that stands there on the CPU.
fn same_keep(ours: &KeepSet, theirs: &Selection) {
    assert_eq!(ours.shape(), theirs.keep.shape());
    let stages = theirs.stages.as_ref().unwrap();
    let columns = stages.last.shape.last().copied().unwrap();
    let score = |list: usize, row: u32| {
        let column = (row as usize).checked_sub(stages.row_offset);
        column.map_or(f32::INFINITY, |column| stages.last.values[list * columns + column])
    };
    for (list, (ours, theirs)) in ours.lists().zip(theirs.keep.lists()).enumerate() {
        let lack = |these: &[u32], those: &[u32]| {
            these.iter().copied().filter(|row| !those.contains(row)).collect::<Vec<u32>>()
        };
        let (more, less) = (lack(ours, theirs), lack(theirs, ours));
        assert_eq!(more.len(), less.len());
        let cut = theirs.iter().map(|&row| score(list, row)).fold(f32::INFINITY, f32::min);
        let tied = |row: &u32| (score(list, *row) - cut).abs() <= 2e-5;
        assert!(more.iter().chain(&less).all(tied), "list {list}: {more:?} {less:?}");
        if more.is_empty() {
            for (&a, &b) in ours.iter().zip(theirs) {
                assert!(
                    a == b || (score(list, a) - score(list, b)).abs() <= 2e-5,
                    "order of {list}"
                );
            }
        }
    }
}

fn same(ours: &Selection, theirs: &Selection, rule_set: RuleSet, what: &str) {
    same_keep(&ours.keep, theirs);
    let stages = |selection: &Selection| selection.stages.clone().unwrap();
    same_stages(&stages(ours), &stages(theirs), rule_set)
        .unwrap_or_else(|why| panic!("{what}: {why}"));
    assert_eq!(
        (ours.protected, ours.candidates, ours.round_start),
        (theirs.protected, theirs.candidates, theirs.round_start),
        "{what}"
    );
}

fn modes(rule_set: RuleSet) -> &'static [SelectionMode] {
    match rule_set {
        RuleSet::Trt | RuleSet::Sglang => &[SelectionMode::PerHead],
        RuleSet::Hf => {
            &[SelectionMode::PerHead, SelectionMode::PerLayerPerHead, SelectionMode::Union]
        }
        RuleSet::Vllm => &[
            SelectionMode::PerHead,
            SelectionMode::PerLayerPerHead,
            SelectionMode::PerLayer,
            SelectionMode::LegacyLayerLocal,
        ],
    }
}

const RULE_SETS: [RuleSet; 4] = [RuleSet::Trt, RuleSet::Hf, RuleSet::Vllm, RuleSet::Sglang];

fn spec(rule_set: RuleSet, mode: SelectionMode) -> PolicySpec {
    PolicySpec {
        rule_set: Some(rule_set),
        mode: Some(mode),
        kv_budget: Some(64),
        recent_window: matches!(rule_set, RuleSet::Trt | RuleSet::Vllm).then_some(5),
        ..PolicySpec::default()
    }
}

fn dims(layers: usize, group: usize, head_dim: usize) -> Dims {
    Dims { layers, kv_heads: 2, q_heads: 2 * group, head_dim }
}

#[test]
fn every_rule_set_and_mode_chooses_as_on_the_cpu() {
    let Some(gpu) = emulator() else { return };
    let setups = [
        Setup::new(dims(2, 2, 8), 40, DType::F32, 2),
        Setup::new(dims(3, 1, 64), 67, DType::Bf16, 3),
        Setup::new(dims(2, 3, 64), 200, DType::F16, 4),
        Setup::new(dims(2, 2, 8), 121, DType::Bf16, 5),
    ];
    for (index, setup) in setups.iter().enumerate() {
        let block = setup.block(&gpu);
        for rule_set in RULE_SETS {
            for &mode in modes(rule_set) {
                let what = format!("{rule_set:?} {mode:?} {index}");
                let selector = setup.selector(&spec(rule_set, mode), None).unwrap();
                let theirs = setup.on_cpu(&selector, &block, 1).unwrap().unwrap();
                let ours = setup.on_device(&gpu, &selector, &block, 1).unwrap().unwrap();
                same(&ours, &theirs, rule_set, &what);
            }
        }
    }
}

/// A change to a specification and the rule sets that take it.
type Setting = (&'static [RuleSet], fn(&mut PolicySpec));

fn settings() -> Vec<Setting> {
    const ALL: &[RuleSet] = &RULE_SETS;
    const HF: &[RuleSet] = &[RuleSet::Hf];
    vec![
        (ALL, |spec| spec.score_aggregation = Some(Aggregation::Max)),
        (ALL, |spec| spec.protect_prefill = Some(true)),
        (&[RuleSet::Trt, RuleSet::Hf, RuleSet::Sglang], |spec| spec.disable_mlr = Some(true)),
        (&[RuleSet::Trt, RuleSet::Hf], |spec| spec.disable_trig = Some(true)),
        (&[RuleSet::Sglang], |spec| {
            (spec.disable_mlr, spec.disable_trig) = (Some(true), Some(true));
        }),
        (&[RuleSet::Trt, RuleSet::Vllm, RuleSet::Sglang], |spec| {
            let max = spec.rule_set != Some(RuleSet::Sglang);
            spec.layer_aggregation = Some(if max { Aggregation::Max } else { Aggregation::Mean });
        }),
        (&[RuleSet::Hf, RuleSet::Vllm], |spec| {
            spec.mode = Some(SelectionMode::PerLayerPerHead);
            spec.group_aggregation = Some(Aggregation::Mean);
        }),
        (&[RuleSet::Hf, RuleSet::Vllm, RuleSet::Sglang], |spec| spec.normalize = Some(false)),
        (&[RuleSet::Trt, RuleSet::Hf, RuleSet::Sglang], |spec| spec.offset_max_length = Some(100)),
        (&[RuleSet::Trt], |spec| {
            (spec.protect_prefill, spec.count_prompt_tokens) = (Some(false), Some(false));
        }),
        (HF, |spec| spec.allow_prefill_compression = Some(true)),
        (HF, |spec| spec.noise_seed = Some(-1)),
        (HF, |spec| spec.mode = Some(SelectionMode::Union)),
    ]
}

#[test]
fn every_setting_that_enters_a_score_does_what_it_does_on_the_cpu() {
    let Some(gpu) = emulator() else { return };
    let setup = Setup::new(dims(2, 2, 8), 77, DType::Bf16, 9);
    let block = setup.block(&gpu);
    for (index, (rule_sets, change)) in settings().into_iter().enumerate() {
        for &rule_set in rule_sets {
            let mut spec = spec(rule_set, SelectionMode::PerHead);
            change(&mut spec);
            let selector = setup.selector(&spec, None).unwrap();
            let theirs = setup.on_cpu(&selector, &block, 1).unwrap().unwrap();
            let ours = setup.on_device(&gpu, &selector, &block, 1).unwrap().unwrap();
            same(&ours, &theirs, rule_set, &format!("{rule_set:?}, setting {index}"));
        }
    }
}

#[test]
fn planted_faults_show_as_on_the_cpu() {
    let Some(gpu) = emulator() else { return };
    let mut setup = Setup::new(dims(2, 2, 8), 60, DType::F32, 11);
    // Equal rows, so that the order of ties decides.
    let (rows, width) = (setup.rows, setup.dims.head_dim);
    for head in setup.wide.chunks_mut(rows * width) {
        let first = head[20 * width..21 * width].to_vec();
        head.chunks_mut(width).skip(20).for_each(|row| row.copy_from_slice(&first));
    }
    let block = setup.block(&gpu);
    let causes = [
        Cause::RoundStartRows,
        Cause::ZscoreRows,
        Cause::ZscorePopulation,
        Cause::LayerMax,
        Cause::TieOrder,
        Cause::WindowRowLost,
    ];
    for rule_set in RULE_SETS {
        for &mode in modes(rule_set) {
            // Without noise equal rows stay equal.
            let mut spec = spec(rule_set, mode);
            spec.noise_seed = (rule_set == RuleSet::Hf).then_some(-1);
            let clean = setup.selector(&spec, None).unwrap();
            let clean_theirs = setup.on_cpu(&clean, &block, 1).unwrap().unwrap();
            let clean = setup.on_device(&gpu, &clean, &block, 1).unwrap().unwrap();
            for cause in causes {
                let Ok(selector) = setup.selector(&spec, Some(cause)) else { continue };
                let theirs = setup.on_cpu(&selector, &block, 1).unwrap().unwrap();
                let ours = setup.on_device(&gpu, &selector, &block, 1).unwrap().unwrap();
                same(&ours, &theirs, rule_set, &format!("{rule_set:?} {mode:?} {cause:?}"));
                let shows = |ours: &Selection, clean: &Selection| {
                    ours.keep != clean.keep || ours.stages != clean.stages
                };
                let expected = shows(&theirs, &clean_theirs);
                assert_eq!(shows(&ours, &clean), expected, "{rule_set:?} {mode:?} {cause:?}");
                // Under `hf` equal keys at other positions differ in their roundings: there is no tie.
                assert!(expected || (rule_set, cause) == (RuleSet::Hf, Cause::TieOrder));
            }
        }
    }
}

#[test]
fn ties_fall_exactly_as_on_the_cpu() {
    let Some(gpu) = emulator() else { return };
    let mut setup = Setup::new(dims(2, 1, 8), 50, DType::Bf16, 12);
    let one: Vec<f32> = setup.wide[..8].to_vec();
    setup.wide.chunks_mut(8).for_each(|row| row.copy_from_slice(&one));
    let block = setup.block(&gpu);
    for plant in [None, Some(Cause::TieOrder)] {
        for rule_set in [RuleSet::Trt, RuleSet::Vllm, RuleSet::Sglang] {
            let selector = setup.selector(&spec(rule_set, SelectionMode::PerHead), plant).unwrap();
            let theirs = setup.on_cpu(&selector, &block, 1).unwrap().unwrap();
            let ours = setup.on_device(&gpu, &selector, &block, 1).unwrap().unwrap();
            assert_eq!(ours.keep, theirs.keep);
        }
    }
}

#[test]
fn noise_goes_on_from_one_compaction_to_the_next() {
    let Some(gpu) = emulator() else { return };
    let mut setup = Setup::new(dims(2, 2, 8), 45, DType::F32, 13);
    // Heads in file order, out of the order of layers.
    setup.stats.sampled = vec![(1, 3), (0, 2), (1, 0), (0, 0)];
    let block = setup.block(&gpu);
    for &mode in modes(RuleSet::Hf) {
        let selector = setup.selector(&spec(RuleSet::Hf, mode), None).unwrap();
        for rounds in [1, 3] {
            let theirs = setup.on_cpu(&selector, &block, rounds).unwrap().unwrap();
            let ours = setup.on_device(&gpu, &selector, &block, rounds).unwrap().unwrap();
            same(&ours, &theirs, RuleSet::Hf, &format!("{mode:?} {rounds}"));
        }
    }
    let mut host = crate::select::NoiseGenerator::new(5);
    let device = DeviceNoise::new(&gpu, &host).unwrap();
    let reduce = ReduceOps::new(&gpu).unwrap();
    for (rows, columns, skip) in [(2, 300, 0), (3, 208, 11), (1, 1, 1247), (2, 312, 624)] {
        let z = gpu.zeros::<f32>(rows * columns).unwrap();
        let order: Vec<u32> = (0..rows as u32).rev().collect();
        let order = gpu.upload(&order).unwrap();
        reduce.noise(&gpu, &device, (z.view(), columns), order.view(), skip).unwrap();
        host.skip(skip);
        let mut wanted = vec![vec![0.0; columns]; rows];
        wanted.iter_mut().rev().for_each(|row| host.add_to(row));
        assert_eq!(gpu.read(z.view()).unwrap(), wanted.concat());
        assert_eq!(device.read(&gpu).unwrap(), host);
    }
    device.reset(&gpu, &crate::select::NoiseGenerator::new(5)).unwrap();
    assert_eq!(device.read(&gpu).unwrap(), crate::select::NoiseGenerator::new(5));
}

#[test]
fn sparse_statistics_fall_back_as_on_the_cpu() {
    let Some(gpu) = emulator() else { return };
    let mut setup = Setup::new(dims(3, 2, 8), 52, DType::F32, 14);
    // KV head 1 has no sampled head in layer 0, layer 1 none at all; then KV head 1 none anywhere.
    for sampled in [vec![(0, 1), (2, 0), (2, 3)], vec![(0, 1), (2, 0)]] {
        setup.stats.sampled = sampled;
        let block = setup.block(&gpu);
        for rule_set in [RuleSet::Trt, RuleSet::Hf] {
            for &mode in modes(rule_set) {
                let selector = setup.selector(&spec(rule_set, mode), None).unwrap();
                let theirs = setup.on_cpu(&selector, &block, 1).unwrap().unwrap();
                let ours = setup.on_device(&gpu, &selector, &block, 1).unwrap().unwrap();
                same(&ours, &theirs, rule_set, &format!("{rule_set:?} {mode:?}"));
            }
        }
    }
}

#[test]
fn what_needs_no_score_is_decided_without_one() {
    let Some(gpu) = emulator() else { return };
    let mut setup = Setup::new(dims(2, 1, 8), 30, DType::F32, 15);
    let block = setup.block(&gpu);
    for (rule_set, keep, prompt_len) in
        [(RuleSet::Trt, 30, 3), (RuleSet::Vllm, 40, 3), (RuleSet::Hf, 8, 10), (RuleSet::Hf, 30, 10)]
    {
        (setup.keep, setup.prompt_len) = (keep, prompt_len);
        for &mode in modes(rule_set) {
            let selector = setup.selector(&spec(rule_set, mode), None).unwrap();
            let theirs = setup.on_cpu(&selector, &block, 1).unwrap().unwrap();
            let ours = setup.on_device(&gpu, &selector, &block, 1).unwrap().unwrap();
            assert_eq!(ours, theirs);
            let ops = SelectOps::new(&gpu, &selector, DType::F32, 30).unwrap();
            let queued = ops.select(&gpu, &device_input(&gpu, &setup, &block).0, None).unwrap();
            let lists = queued.keep.unwrap();
            assert_eq!(lists.shape, KeepShape::of(&theirs.keep));
            let wanted: Vec<u32> = theirs.keep.lists().flatten().copied().collect();
            assert_eq!(gpu.read(lists.rows.part(0..wanted.len()).unwrap()).unwrap(), wanted);
        }
    }
    setup.prompt_len = 20;
    let spec = PolicySpec {
        kv_budget: Some(12),
        protect_prefill: Some(true),
        ..spec(RuleSet::Vllm, SelectionMode::PerHead)
    };
    let selector = setup.selector(&spec, None).unwrap();
    assert_eq!(setup.on_cpu(&selector, &block, 1).unwrap(), None);
    assert_eq!(setup.on_device(&gpu, &selector, &block, 1).unwrap(), None);
}

#[test]
fn a_key_that_is_no_number_is_named_as_on_the_cpu() {
    let Some(gpu) = emulator() else { return };
    for rule_set in RULE_SETS {
        for value in [f32::NAN, f32::INFINITY] {
            let mut setup = Setup::new(dims(2, 2, 8), 40, DType::F32, 16);
            // Layer 1, KV head 0, row 25.
            setup.wide[(2 * 40 + 25) * 8 + 3] = value;
            let block = setup.block(&gpu);
            let selector = setup.selector(&spec(rule_set, SelectionMode::PerHead), None).unwrap();
            let theirs = setup.on_cpu(&selector, &block, 1).unwrap_err();
            let ours = setup.on_device(&gpu, &selector, &block, 1).unwrap_err();
            assert!(matches!(ours, SelectFailure::Select(SelectError::NotANumber { row: 25, .. })));
            assert_eq!(ours.to_string(), theirs.to_string());
        }
    }
}

#[test]
fn input_out_of_bounds_is_refused() {
    let Some(gpu) = emulator() else { return };
    let setup = Setup::new(dims(2, 2, 8), 40, DType::F32, 17);
    let block = setup.block(&gpu);
    let selector = setup.selector(&spec(RuleSet::Trt, SelectionMode::PerHead), None).unwrap();
    let ops = SelectOps::new(&gpu, &selector, DType::F32, 40).unwrap();
    assert!(ops.bytes() > 0);
    let (good, positions) = device_input(&gpu, &setup, &block);
    let queued = ops.select(&gpu, &good, None).unwrap();
    assert!(queued.seconds.score > 0.0 && queued.seconds.select > 0.0);
    let launched = gpu.launches();
    for wrong in [
        DeviceSelect { rows: 0, ..good },
        DeviceSelect { rows: 41, ..good },
        DeviceSelect { capacity: 39, ..good },
        DeviceSelect { positions_by_layer: !good.positions_by_layer, capacity: 1000, ..good },
    ] {
        assert!(matches!(ops.select(&gpu, &wrong, None), Err(SelectFailure::Gpu(_))), "{wrong:?}");
    }
    let far = DeviceSelect { round_start: 1 << 23, ..good };
    assert!(matches!(ops.select(&gpu, &far, None), Err(SelectFailure::Select(_))));
    assert_eq!(gpu.launches(), launched, "refused before anything is launched");
    let wrong = DeviceSelect { k_base: good.k_base + 4, ..good };
    assert!(matches!(ops.select(&gpu, &wrong, None), Err(SelectFailure::Gpu(_))));
    // A position too large for exact phases is found on the device.
    gpu.write(positions.part(7..8).unwrap(), &[1 << 23]).unwrap();
    let queued = ops.select(&gpu, &good, None).unwrap();
    let error = ops.selection(&gpu, &queued, false).unwrap_err();
    assert!(error.to_string().contains("too large"), "{error}");
    assert!(SelectOps::new(&gpu, &selector, DType::F32, 0).is_err());
    assert!(SelectOps::new(&gpu, &selector, DType::I32, 8).is_err());
}
