//! The engine on the emulated device against the engine on the CPU: same rows, same keep-sets, same bits where bits are promised.
//! Without a C++ compiler these tests say so and do nothing.

use lockstep_testkit as kit;
use lockstep_traces::{
    Cause, DType, Dump, MemorySink, PolicyKind, PolicySpec, RecordPlan, RuleSet, SamplingSpec,
    StepRow, stats,
};

use super::golden::run;
use super::{DeviceChoice, Engine, LoadOptions, Request, RunOptions};
use crate::RuntimeError;
use crate::cuda::gpu::GpuError;
use crate::cuda::model::DeviceOptions;

/// The ledger model on both backends, or a word of why not.
fn both(dtype: DType) -> Option<(Engine, Engine)> {
    let load = |device| {
        let options = LoadOptions { dtype: Some(dtype), device, ..LoadOptions::default() };
        Engine::load(&kit::ledger(), &options)
    };
    match load(DeviceChoice::Emulated) {
        Ok(device) => Some((load(DeviceChoice::Cpu).unwrap(), device)),
        Err(RuntimeError::Device(GpuError::Missing { library, .. })) => {
            eprintln!("skipped: no {library}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The start of a problem.
fn prompt(name: &str, length: usize) -> Request {
    let prompt_ids = kit::task("ledger_05").prompt_ids[..length].to_vec();
    Request { sample_id: name.to_owned(), prompt_ids, ..Request::default() }
}

fn dense(tokens: usize) -> RunOptions {
    let (max_new_tokens, stop_ids) = (tokens, Some(Vec::new()));
    RunOptions { max_new_tokens, stop_ids, ..RunOptions::default() }
}

fn compacting(rules: RuleSet, tokens: usize) -> RunOptions {
    let policy = PolicySpec {
        kind: Some(PolicyKind::Triattention),
        rule_set: Some(rules),
        kv_budget: Some(14),
        divide_length: Some(4),
        recent_window: (rules == RuleSet::Trt || rules == RuleSet::Vllm).then_some(3),
        ..PolicySpec::default()
    };
    let path = kit::golden().join("traces/stats/ledger_stats.safetensors");
    RunOptions { policy, stats: Some(stats::read(&path).unwrap()), ..dense(tokens) }
}

fn everything() -> RecordPlan {
    let all = || "all".parse().unwrap();
    RecordPlan { cache: all(), scores: all(), top_k: 8, ..RecordPlan::default() }
}

fn with_device(options: &RunOptions, change: impl Fn(&mut DeviceOptions)) -> RunOptions {
    let mut options = options.clone();
    change(&mut options.device);
    options
}

/// Rows agree in everything that is not a logit, and in the logits within `bound`.
fn agree(cpu: &MemorySink, device: &MemorySink, bound: f32) {
    assert_eq!(cpu.steps.len(), device.steps.len());
    for (a, b) in cpu.steps.iter().zip(&device.steps) {
        let at = format!("{} {}", a.sample_id, a.position);
        let place = |row: &StepRow| {
            let rows = (row.rows_before, row.rows_after, row.compaction, row.rope_index);
            (row.position, row.phase, row.token_id, row.next_token, rows, row.finite)
        };
        assert_eq!(place(a), place(b), "{at}");
        assert_eq!(a.argmax, b.argmax, "{at}");
        let gap = a.top_logits.iter().zip(&b.top_logits).map(|(a, b)| (a - b).abs());
        let gap = gap.fold(0.0, f32::max);
        assert!(gap <= bound, "{at}: {gap}");
        let (a, b) = (a.logsumexp.unwrap(), b.logsumexp.unwrap());
        assert!((a - b).abs() <= f64::from(bound), "{at}: {a} {b}");
    }
    assert_eq!(cpu.samples.len(), device.samples.len());
    for (a, b) in cpu.samples.iter().zip(&device.samples) {
        assert_eq!((&a.generated_ids, a.finish), (&b.generated_ids, b.finish));
    }
}

fn tensor<'a>(dump: &'a Dump, name: &str) -> &'a lockstep_traces::Tensor {
    dump.tensors.iter().find(|tensor| tensor.name == name).unwrap()
}

fn floats(tensor: &lockstep_traces::Tensor) -> Vec<f32> {
    bytemuck::allocation::pod_collect_to_vec(&tensor.data)
}

/// Bits of every row that a run promises to repeat.
fn bits(sink: &MemorySink, name: &str) -> Vec<([u64; 2], Option<u32>)> {
    let rows = sink.steps.iter().filter(|row| row.sample_id == name);
    rows.map(|row| (row.logits_hash.unwrap(), row.next_token)).collect()
}

#[test]
fn dense_rows_are_the_cpus_in_each_dtype() {
    // f32: sums of another order. f16, bf16: attention rounds less, a few units of the last place of logits below 32.
    for (dtype, bound) in [(DType::F32, 1e-4), (DType::F16, 0.06), (DType::Bf16, 0.5)] {
        let Some((cpu, device)) = both(dtype) else { return };
        let tokens = if dtype == DType::F32 { 6 } else { 2 };
        let requests = [prompt("a", 17), prompt("b", 5)];
        let options = RunOptions { batch: 2, ..dense(tokens) };
        let wanted = run(&cpu, &requests, &options, everything());
        let teacher = wanted.samples.iter().map(|s| (s.sample_id.clone(), s.generated_ids.clone()));
        let forced = RunOptions { teacher: teacher.collect(), ..options };
        let wanted = run(&cpu, &requests, &forced, everything());
        let found = run(&device, &requests, &forced, everything());
        if dtype == DType::F32 {
            agree(&wanted, &found, bound);
        } else {
            for (a, b) in wanted.steps.iter().zip(&found.steps) {
                let gap = (a.logsumexp.unwrap() - b.logsumexp.unwrap()).abs();
                assert!(gap <= f64::from(bound), "{dtype:?} {}: {gap}", a.position);
            }
        }
    }
}

#[test]
fn every_hidden_stage_is_the_cpus() {
    let Some((cpu, device)) = both(DType::F32) else { return };
    let all = || "all".parse().unwrap();
    let plan = RecordPlan {
        hidden: "3,9,10".parse().unwrap(),
        hidden_layers: all(),
        logits: "3,10".parse().unwrap(),
        top_k: 4,
        ..RecordPlan::default()
    };
    let requests = [prompt("a", 9)];
    let wanted = run(&cpu, &requests, &dense(3), plan.clone());
    let found = run(&device, &requests, &dense(3), plan);
    assert_eq!(wanted.dumps.len(), 3);
    for (a, b) in wanted.dumps.iter().zip(&found.dumps) {
        let names = |dump: &Dump| dump.tensors.iter().map(|t| t.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(a), names(b), "{:?}", a.id);
        for (a, b) in a.tensors.iter().zip(&b.tensors) {
            let (a_values, b_values) = (floats(a), floats(b));
            let size = a_values.iter().fold(1.0_f32, |size, v| size.max(v.abs()));
            for (x, y) in a_values.iter().zip(&b_values) {
                assert!((x - y).abs() <= 2e-5 * size, "{}: {x} {y}", a.name);
            }
        }
    }
}

#[test]
fn a_sequence_has_its_bits_alone_in_any_batch_and_with_or_without_graphs() {
    let Some((_, device)) = both(DType::F16) else { return };
    let fixed = with_device(&dense(4), |device| device.deterministic = true);
    let requests: Vec<Request> =
        [9, 2, 5].iter().map(|length| prompt(&length.to_string(), *length)).collect();
    let eight = RunOptions { batch: 3, ..fixed.clone() };
    let together = run(&device, &requests, &eight, everything());
    let eager = with_device(&fixed, |device| {
        device.graphs = false;
        device.row_buckets = vec![64, 4096];
    });
    for request in &requests {
        let alone = run(&device, std::slice::from_ref(request), &eager, everything());
        let name = &request.sample_id;
        assert_eq!(bits(&alone, name), bits(&together, name), "{name}");
        assert!(alone.steps.iter().any(|row| row.rows_bucketed == Some(64)));
    }
}

#[test]
fn compactions_choose_and_move_the_rows_that_the_cpu_does() {
    let Some((cpu, device)) = both(DType::F32) else { return };
    for rules in [RuleSet::Trt, RuleSet::Hf, RuleSet::Vllm, RuleSet::Sglang] {
        // `sglang` counts decode tokens only.
        let options = compacting(rules, if rules == RuleSet::Sglang { 20 } else { 16 });
        let requests = [prompt("a", 8)];
        let wanted = run(&cpu, &requests, &options, everything());
        let found = run(&device, &requests, &options, everything());
        assert!(wanted.events.len() >= if rules == RuleSet::Sglang { 1 } else { 2 }, "{rules:?}");
        agree(&wanted, &found, 1e-3);
        assert_eq!(wanted.dumps.len(), found.dumps.len());
        for (a, b) in wanted.dumps.iter().zip(&found.dumps) {
            for name in ["keep", "positions.pre", "positions.post"] {
                assert_eq!(tensor(a, name), tensor(b, name), "{rules:?} {:?}", a.id);
            }
            assert_eq!(a.metadata, b.metadata);
            let names = |dump: &Dump| {
                let mut names: Vec<_> = dump.tensors.iter().map(|t| t.name.clone()).collect();
                names.sort();
                names
            };
            assert_eq!(names(a), names(b));
        }
        for (a, b) in wanted.events.iter().zip(&found.events) {
            assert_eq!(
                (a.protected, a.candidates, a.round_start),
                (b.protected, b.candidates, b.round_start)
            );
            assert_eq!((a.rows_before, a.rows_after), (b.rows_before, b.rows_after));
        }
    }
}

#[test]
fn host_and_device_selection_and_gather_give_the_same_bits() {
    let Some((_, device)) = both(DType::F32) else { return };
    let base = with_device(&compacting(RuleSet::Trt, 15), |device| device.deterministic = true);
    let requests = [prompt("a", 8)];
    let wanted = run(&device, &requests, &base, everything());
    for (select, gather) in [(false, true), (true, false), (false, false)] {
        let options =
            with_device(&base, |device| (device.select, device.gather) = (select, gather));
        let found = run(&device, &requests, &options, everything());
        assert_eq!(bits(&wanted, "a"), bits(&found, "a"), "select {select}, gather {gather}");
        for (a, b) in wanted.dumps.iter().zip(&found.dumps) {
            for name in ["keep", "post.k.layer01", "post.v.layer03", "positions.post"] {
                assert_eq!(tensor(a, name), tensor(b, name));
            }
        }
    }
}

#[test]
fn naive_controls_and_capacities_work_there_too() {
    let Some((cpu, device)) = both(DType::F32) else { return };
    for kind in [PolicyKind::Recent, PolicyKind::Random] {
        let policy = PolicySpec {
            kind: Some(kind),
            kv_budget: Some(8),
            divide_length: Some(4),
            max_rows: Some(12),
            protect_prefill: Some(false),
            ..PolicySpec::default()
        };
        let options = RunOptions { policy, ..dense(12) };
        let requests = [prompt("a", 16)];
        let wanted = run(&cpu, &requests, &options, everything());
        let found = run(&device, &requests, &options, everything());
        assert!(!wanted.events.is_empty());
        agree(&wanted, &found, 1e-3);
    }
}

#[test]
fn sampled_tokens_are_the_cpus() {
    let Some((cpu, device)) = both(DType::F32) else { return };
    for sampler in ["torch-cuda", "xorshift"] {
        let sampling = SamplingSpec {
            sampler: Some(sampler.to_owned()),
            temperature: Some(1.3),
            top_p: Some(0.9),
            seed: Some(11),
            ..SamplingSpec::default()
        };
        let options = RunOptions { sampling, batch: 2, ..dense(8) };
        let requests = [prompt("a", 7), prompt("b", 5), prompt("c", 3)];
        let wanted = run(&cpu, &requests, &options, everything());
        let found = run(&device, &requests, &options, everything());
        for sample in &wanted.samples {
            let twin = found.samples.iter().find(|s| s.sample_id == sample.sample_id).unwrap();
            assert_eq!(sample.generated_ids, twin.generated_ids, "{sampler}");
        }
        let draws = |sink: &MemorySink| {
            let mut rows: Vec<_> = sink
                .steps
                .iter()
                .map(|r| {
                    (r.sample_id.clone(), r.position, r.uniform.map(f32::to_bits), r.rng_offset)
                })
                .collect();
            rows.sort();
            rows
        };
        assert_eq!(draws(&wanted), draws(&found), "{sampler}");
    }
}

#[test]
fn draws_and_filters_of_the_host_are_refused_there() {
    let Some((_, device)) = both(DType::F32) else { return };
    let warm = SamplingSpec { temperature: Some(1.0), ..SamplingSpec::default() };
    for (sampling, word) in [
        (SamplingSpec { sampler: Some("torch-cpu".to_owned()), ..warm.clone() }, "torch-cpu"),
        (SamplingSpec { filters: Some("hf".to_owned()), ..warm }, "--filters native"),
    ] {
        let options = RunOptions { sampling, ..dense(2) };
        let mut go = |_: &crate::Progress<'_>| std::ops::ControlFlow::Continue(());
        let refused = device.run(&[prompt("a", 3)], &options, &mut MemorySink::default(), &mut go);
        let why = refused.unwrap_err().to_string();
        assert!(why.contains(word) && why.contains("--device cpu"), "{why}");
    }
}

/// Faults that sit in kernel arguments: each changes the device's run as it changes the CPU's.
#[test]
fn planted_faults_show_on_the_device_as_on_the_cpu() {
    let Some((cpu, device)) = both(DType::F32) else { return };
    for cause in [
        Cause::RotaryBase,
        Cause::QkNormSkipped,
        Cause::NormEpsilon,
        Cause::CausalMask,
        Cause::GqaTile,
        Cause::RoundStartRows,
        Cause::PhysicalPositions,
        Cause::ZscoreRows,
        Cause::ZscorePopulation,
        Cause::LayerMax,
        Cause::ValueNotGathered,
        Cause::StaleRow,
        Cause::WindowRowLost,
    ] {
        let clean = compacting(RuleSet::Trt, 16);
        let options = RunOptions { plant: Some(cause), ..clean };
        let requests = [prompt("a", 8)];
        let wanted = run(&cpu, &requests, &options, everything());
        let found = run(&device, &requests, &options, everything());
        agree(&wanted, &found, 2e-3);
        for (a, b) in wanted.dumps.iter().zip(&found.dumps) {
            assert_eq!(tensor(a, "keep"), tensor(b, "keep"), "{cause:?}");
            let (a, b) = (tensor(a, "post.v.layer03"), tensor(b, "post.v.layer03"));
            let pairs = floats(a).into_iter().zip(floats(b));
            for (x, y) in pairs {
                assert!((x - y).abs() < 1e-3, "{cause:?}: {x} {y}");
            }
        }
    }
}

#[test]
fn random_weights_of_a_shape_run_and_say_so() {
    let options = LoadOptions { device: DeviceChoice::Emulated, ..LoadOptions::default() };
    let engine = match Engine::random("qwen3-tiny", &options) {
        Ok(engine) => engine,
        Err(RuntimeError::Device(GpuError::Missing { .. })) => return,
        Err(error) => panic!("{error}"),
    };
    let request =
        Request { sample_id: "r".to_owned(), prompt_ids: vec![1, 2, 3], ..Request::default() };
    let sink = run(&engine, &[request], &dense(4), everything());
    assert!(sink.steps.iter().all(|row| row.finite && row.top2_margin.unwrap() > 0.0));
    let settings = engine.settings(&dense(4)).unwrap();
    assert!(settings["model.random"].value.as_str().unwrap().starts_with("qwen3-tiny"));
    assert_eq!(settings["model.rope_theta"].source, "shape");
    let unknown = Engine::random("qwen3-9b", &options).unwrap_err();
    assert!(unknown.to_string().contains("qwen3-8b"), "{unknown}");
    assert!(Engine::random("qwen3-tiny", &LoadOptions::default()).is_err());
}
