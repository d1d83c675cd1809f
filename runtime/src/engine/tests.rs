//! The engine's loop: batches, stops, limits, recording, planted faults.

use std::ops::ControlFlow;

use lockstep_testkit as kit;
use lockstep_traces::{
    Cause, Choice, DType, Dump, DumpId, EventRow, FinishReason, Manifest, MemorySink, Phase,
    PolicyKind, PolicySpec, RecordPlan, RuleSet, SamplingSpec, StepRow, stats,
};

use super::golden::{ledger, plan, request, run};
use crate::{Engine, Progress, Request, RunOptions, RuntimeError};

fn prompt(name: &str, ids: &[u32]) -> Request {
    Request { sample_id: name.to_owned(), prompt_ids: ids.to_vec(), ..Request::default() }
}

/// The start of a ledger problem, so that the model says something lively.
fn requests(lengths: &[usize]) -> Vec<Request> {
    let ids = kit::task("ledger_05").prompt_ids;
    let name = |length: &usize| format!("first {length}");
    lengths.iter().map(|length| prompt(&name(length), &ids[..*length])).collect()
}

fn rows_of<'a>(sink: &'a MemorySink, name: &str) -> Vec<&'a StepRow> {
    sink.steps.iter().filter(|row| row.sample_id == name).collect()
}

fn recent(budget: usize, divide: usize) -> PolicySpec {
    PolicySpec {
        kind: Some(PolicyKind::Recent),
        kv_budget: Some(budget),
        divide_length: Some(divide),
        recent_window: Some(4),
        ..PolicySpec::default()
    }
}

fn triattention(rules: RuleSet, budget: usize, divide: usize) -> RunOptions {
    let policy = PolicySpec {
        kind: Some(PolicyKind::Triattention),
        rule_set: Some(rules),
        recent_window: (rules != RuleSet::Hf && rules != RuleSet::Sglang).then_some(8),
        ..recent(budget, divide)
    };
    let path = kit::golden().join("traces/stats/ledger_stats.safetensors");
    RunOptions {
        policy,
        stats: Some(stats::read(&path).unwrap()),
        max_new_tokens: 60,
        stop_ids: Some(Vec::new()),
        ..RunOptions::default()
    }
}

fn failure(engine: &Engine, requests: &[Request], options: &RunOptions) -> RuntimeError {
    let mut sink = MemorySink::default();
    let mut go = |_: &Progress<'_>| ControlFlow::Continue(());
    engine.run(requests, options, &mut sink, &mut go).unwrap_err()
}

#[test]
fn samples_are_the_same_alone_and_in_batches_that_are_refilled() {
    let engine = ledger(DType::F16);
    let requests = requests(&[3, 70, 1, 104, 12]);
    for policy in [PolicySpec::default(), recent(40, 8)] {
        let options = RunOptions {
            policy,
            max_new_tokens: 30,
            stop_ids: Some(vec![7]),
            sampling: SamplingSpec { temperature: Some(1.5), seed: Some(3), ..Default::default() },
            ..RunOptions::default()
        };
        let alone: Vec<MemorySink> = requests
            .iter()
            .map(|request| run(&engine, std::slice::from_ref(request), &options, plan()))
            .collect();
        let options = RunOptions { batch: 3, ..options };
        let together = run(&engine, &requests, &options, plan());
        assert_eq!(together.samples.len(), 5);
        for (request, alone) in requests.iter().zip(&alone) {
            let rows = rows_of(&together, &request.sample_id);
            assert_eq!(rows, alone.steps.iter().collect::<Vec<_>>());
            let sample = together.samples.iter().find(|s| s.sample_id == request.sample_id);
            assert_eq!(sample.unwrap().generated_ids, alone.samples[0].generated_ids);
        }
    }
}

#[test]
fn a_prompt_fed_in_chunks_has_the_bits_of_one_fed_token_by_token() {
    let engine = ledger(DType::Bf16);
    let ids = kit::task("ledger_05").prompt_ids;
    let whole = run(&engine, &[prompt("p", &ids)], &RunOptions::default(), plan());
    let teacher = [("p".to_owned(), whole.steps[1..].iter().map(|row| row.token_id).collect())];
    let options = RunOptions { teacher: teacher.into(), ..RunOptions::default() };
    let single = run(&engine, &[prompt("p", &ids[..1])], &options, plan());
    assert!(single.steps.len() > ids.len());
    for (whole, single) in whole.steps.iter().zip(&single.steps) {
        assert_eq!(whole.logits_hash, single.logits_hash, "row {}", whole.position);
        assert_eq!(whole.top_logits, single.top_logits);
    }
}

#[test]
fn an_end_token_is_generated_and_never_fed() {
    let engine = ledger(DType::F32);
    let task = kit::task("ledger_01");
    let sink = run(&engine, &[request(&task)], &RunOptions::default(), plan());
    let sample = &sink.samples[0];
    assert_eq!(sample.finish, FinishReason::Eos);
    assert_eq!(sample.generated_ids, task.completion_ids);
    assert_eq!(sample.generated_ids.last(), Some(&2));
    assert!(sink.steps.iter().all(|row| row.token_id != 2));
    assert_eq!(sink.steps.len(), task.prompt_ids.len() + task.completion_ids.len() - 1);
    assert_eq!(sink.steps.last().unwrap().next_token, Some(2));
    assert!(sample.text.as_ref().unwrap().contains(&format!("\\boxed{{ {} }}", task.answer)));
    assert_eq!(sample.answer.as_deref(), Some(task.answer.as_str()));
    let prompt_end = task.prompt_ids.len() - 1;
    assert!(sink.steps[..prompt_end].iter().all(|row| row.next_token.is_none()));
    assert_eq!(sink.steps[prompt_end].next_token, Some(task.completion_ids[0]));
}

#[test]
fn length_limits_count_generated_tokens() {
    let engine = ledger(DType::F32);
    let options = RunOptions { max_new_tokens: 5, ..RunOptions::default() };
    let sink = run(&engine, &requests(&[20]), &options, plan());
    assert_eq!(sink.samples[0].finish, FinishReason::Length);
    assert_eq!((sink.samples[0].generated_ids.len(), sink.steps.len()), (5, 24));
    let options = RunOptions { max_new_tokens: 0, ..RunOptions::default() };
    let sink = run(&engine, &requests(&[20]), &options, plan());
    assert_eq!((sink.samples[0].generated_ids.len(), sink.steps.len()), (0, 20));
    assert_eq!(sink.steps[19].next_token, None);
}

#[test]
fn a_teacher_is_followed_and_the_engines_own_choice_recorded() {
    let engine = ledger(DType::F32);
    let task = kit::task("ledger_01");
    let mut forced = task.completion_ids.clone();
    forced[1] = 1100;
    forced.truncate(4);
    let options = RunOptions {
        teacher: [("ledger_01".to_owned(), forced.clone())].into(),
        ..RunOptions::default()
    };
    let sink = run(&engine, &[request(&task)], &options, plan());
    let decode: Vec<&StepRow> =
        sink.steps.iter().filter(|row| row.phase == Phase::Decode).collect();
    assert_eq!(decode.iter().map(|row| row.token_id).collect::<Vec<_>>(), forced[..3]);
    assert_eq!(decode[0].next_token, Some(task.completion_ids[1]));
    assert_eq!(sink.samples[0].finish, FinishReason::Forced);
    assert_eq!(sink.samples[0].generated_ids, forced);
}

#[test]
fn a_full_cache_ends_a_dense_sample_and_not_a_compressed_one() {
    let engine = ledger(DType::F32);
    let mut options = RunOptions {
        policy: PolicySpec { max_rows: Some(24), ..PolicySpec::default() },
        max_new_tokens: 40,
        stop_ids: Some(Vec::new()),
        ..RunOptions::default()
    };
    let sink = run(&engine, &requests(&[20]), &options, plan());
    assert_eq!(sink.samples[0].finish, FinishReason::CacheFull);
    assert_eq!(sink.steps.len(), 24);
    assert_eq!(sink.samples[0].generated_ids.len(), 5);
    let sink = run(&engine, &requests(&[30]), &options, plan());
    assert_eq!((sink.steps.len(), sink.samples[0].generated_ids.len()), (24, 0));
    // 4 KiB a row in f32.
    options.policy.max_rows = None;
    options.policy.kv_cache_bytes = Some(24 * 4096 + 4095);
    let sink = run(&engine, &requests(&[20]), &options, plan());
    assert_eq!(sink.steps.len(), 24);
    let policy = PolicySpec { max_rows: Some(24), protect_prefill: Some(false), ..recent(16, 4) };
    let sink = run(&engine, &requests(&[30]), &RunOptions { policy, ..options }, plan());
    assert_eq!(sink.samples[0].finish, FinishReason::Length);
    assert_eq!(sink.steps.len(), 69);
    assert!(sink.steps.iter().all(|row| row.rows_after <= 24));
    let filled = sink.steps.iter().find(|row| row.compaction.is_some()).unwrap();
    assert_eq!((filled.phase, filled.position), (Phase::Prompt, 19));
}

#[test]
fn rows_and_events_tell_one_story_under_every_rule_set() {
    let engine = ledger(DType::F32);
    for rules in [RuleSet::Trt, RuleSet::Hf, RuleSet::Vllm, RuleSet::Sglang] {
        let sink = run(&engine, &requests(&[30]), &triattention(rules, 40, 8), plan());
        assert_eq!(sink.steps.len(), 89);
        // `sglang` counts decode rows only.
        let least = if rules == RuleSet::Sglang { 1 } else { 3 };
        assert!(sink.events.len() >= least, "{rules:?}");
        let mut rows = 0;
        let mut events = sink.events.iter();
        for (position, row) in sink.steps.iter().enumerate() {
            assert_eq!(row.position as usize, position);
            assert_eq!(row.rope_index, Some(row.position));
            assert_eq!(row.rows_before, rows, "{rules:?} row {position}");
            let Some(ordinal) = row.compaction else {
                rows += 1;
                assert_eq!(row.rows_after, rows);
                continue;
            };
            let event = events.next().unwrap();
            assert_eq!(event.ordinal, ordinal);
            // Before the forward the new row is not there yet, and N is its own position.
            let before = matches!(rules, RuleSet::Vllm | RuleSet::Sglang);
            let appended = u32::from(!before);
            assert_eq!(event.rows_before, row.rows_before + appended);
            assert_eq!(row.rows_after, event.rows_after + 1 - appended);
            assert_eq!(event.absolute_position, row.position + appended);
            rows = row.rows_after;
        }
        assert!(events.next().is_none());
    }
    let sink = run(&engine, &requests(&[30]), &triattention(RuleSet::Trt, 40, 8), plan());
    let at: Vec<u32> = sink.events.iter().map(|event| event.absolute_position).collect();
    assert_eq!(at, [48, 56, 64, 72, 80, 88]);
}

fn compaction(sink: &MemorySink, ordinal: u32) -> (&EventRow, &Dump) {
    let event = sink.events.iter().find(|event| event.ordinal == ordinal).unwrap();
    let id = DumpId::Compaction { sample_id: event.sample_id.clone(), ordinal };
    assert_eq!(event.dump, Some(id.relative_path()));
    (event, sink.dumps.iter().find(|dump| dump.id == id).unwrap())
}

/// Rows whose K or V after the gather is not the row that the keep-set names, by (tensor, head, row).
fn misplaced(dump: &Dump) -> Vec<(String, usize, usize)> {
    let tensor = |name: &str| dump.tensors.iter().find(|tensor| tensor.name == name).unwrap();
    let keep = tensor("keep");
    let kept = keep.shape[1];
    let mut wrong = Vec::new();
    for after in dump.tensors.iter().filter(|tensor| tensor.name.starts_with("post.")) {
        let before = tensor(&after.name.replace("post.", "pre."));
        let width = after.shape[2] * after.dtype.size();
        for (index, row) in after.data.chunks_exact(width).enumerate() {
            let (head, place) = (index / kept, index % kept);
            let at = (head * kept + place) * 4;
            let from = i32::from_le_bytes(keep.data[at..at + 4].try_into().unwrap());
            let start = (head * before.shape[1] + usize::try_from(from).unwrap()) * width;
            if before.data[start..start + width] != *row {
                wrong.push((after.name.clone(), head, place));
            }
        }
    }
    wrong
}

#[test]
fn a_compaction_dump_holds_cache_keep_set_positions_and_scores() {
    let engine = ledger(DType::F16);
    let plan = RecordPlan { cache: Choice::All, scores: Choice::These(vec![2]), ..plan() };
    let sink = run(&engine, &requests(&[30]), &triattention(RuleSet::Trt, 40, 8), plan);
    let (event, dump) = compaction(&sink, 2);
    assert_eq!((event.rows_before, event.rows_after), (48, 40));
    assert_eq!((event.protected, event.candidates), (38, 10));
    let shape = |name: &str| {
        let tensor = dump.tensors.iter().find(|tensor| tensor.name == name);
        tensor.unwrap_or_else(|| panic!("no {name}")).shape.clone()
    };
    assert_eq!(shape("pre.k.layer00"), [2, 48, 64]);
    assert_eq!(shape("post.v.layer03"), [2, 40, 64]);
    assert_eq!(shape("positions.pre"), [2, 48]);
    assert_eq!(shape("positions.post"), [2, 40]);
    assert_eq!(shape("keep"), [2, 40]);
    assert_eq!(shape("scores.raw"), [4, 8, 48]);
    assert_eq!(shape("scores.final"), [2, 48]);
    assert_eq!(dump.metadata["round_start"], "56");
    assert_eq!(dump.metadata["prompt_len"], "30");
    assert_eq!(dump.metadata["rule_set"], "trt");
    assert_eq!(misplaced(dump), []);
    let (_, first) = compaction(&sink, 1);
    assert!(first.tensors.iter().all(|tensor| !tensor.name.starts_with("scores")));
}

fn planted(cause: Cause) -> MemorySink {
    let options = RunOptions { plant: Some(cause), ..triattention(RuleSet::Trt, 40, 8) };
    let plan = RecordPlan {
        cache: Choice::All,
        hidden: Choice::These(vec![1]),
        hidden_layers: Choice::These(vec![0]),
        ..plan()
    };
    run(&ledger(DType::F32), &requests(&[30]), &options, plan)
}

fn stage<'a>(sink: &'a MemorySink, name: &str) -> Option<&'a [u8]> {
    let step = |dump: &&Dump| matches!(dump.id, DumpId::Step { .. });
    let dump = sink.dumps.iter().find(step).unwrap();
    let tensor = dump.tensors.iter().find(|tensor| tensor.name == format!("hidden.{name}"));
    tensor.map(|tensor| tensor.data.as_slice())
}

#[test]
fn a_fault_in_the_forward_pass_first_shows_at_its_own_stage() {
    let clean = RunOptions { plant: None, ..triattention(RuleSet::Trt, 40, 8) };
    let recording = RecordPlan {
        hidden: Choice::These(vec![1]),
        hidden_layers: Choice::These(vec![0]),
        ..plan()
    };
    let clean = run(&ledger(DType::F32), &requests(&[30]), &clean, recording);
    for (cause, right, wrong) in [
        (Cause::RotaryBase, "layer00.q_norm", "layer00.q_rope"),
        (Cause::NormEpsilon, "embed", "layer00.input_norm"),
        (Cause::CausalMask, "layer00.k_rope", "layer00.attn_heads"),
        (Cause::GqaTile, "layer00.k_rope", "layer00.attn_heads"),
    ] {
        let spoiled = planted(cause);
        assert_eq!(stage(&clean, right), stage(&spoiled, right), "{}", cause.slug());
        assert_ne!(stage(&clean, wrong), stage(&spoiled, wrong), "{}", cause.slug());
    }
    let spoiled = planted(Cause::QkNormSkipped);
    assert_eq!(stage(&spoiled, "layer00.q_norm"), None);
    assert_eq!(stage(&clean, "layer00.q_proj"), stage(&spoiled, "layer00.q_proj"));
    assert_ne!(stage(&clean, "layer00.q_rope"), stage(&spoiled, "layer00.q_rope"));
}

#[test]
fn a_fault_in_the_gather_shows_in_the_dump_and_nowhere_before() {
    let clean =
        run(&ledger(DType::F32), &requests(&[30]), &triattention(RuleSet::Trt, 40, 8), plan());
    let spoiled = planted(Cause::ValueNotGathered);
    let wrong = misplaced(compaction(&spoiled, 1).1);
    assert!(!wrong.is_empty() && wrong.iter().all(|(name, ..)| name.starts_with("post.v")));
    let stale = planted(Cause::StaleRow);
    let wrong = misplaced(compaction(&stale, 1).1);
    let names: Vec<&str> = wrong.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["post.k.layer03", "post.v.layer03"]);
    for sink in [spoiled, stale] {
        // The row that compacts still has its logits from before.
        for (row, clean) in sink.steps[..48].iter().zip(&clean.steps) {
            assert_eq!(row, clean);
        }
        assert_ne!(sink.steps[48].logits_hash, clean.steps[48].logits_hash);
    }
}

#[test]
fn physical_positions_fall_back_after_a_compaction_and_are_recorded() {
    let sink = planted(Cause::PhysicalPositions);
    assert_eq!((sink.steps[47].rope_index, sink.steps[47].compaction), (Some(47), Some(1)));
    assert_eq!((sink.steps[48].position, sink.steps[48].rope_index), (48, Some(40)));
}

#[test]
fn faults_that_cannot_show_are_refused() {
    let engine = ledger(DType::F32);
    for cause in [Cause::StaleRow, Cause::PhysicalPositions, Cause::TraceShifted, Cause::TieOrder] {
        let options = RunOptions { plant: Some(cause), ..RunOptions::default() };
        let error = failure(&engine, &requests(&[5]), &options);
        assert!(error.to_string().contains(cause.slug()), "{error}");
    }
}

#[test]
fn requests_and_options_that_cannot_be_run_are_refused() {
    let engine = ledger(DType::F32);
    let options = RunOptions::default();
    for (requests, wanted) in [
        (vec![prompt("a", &[])], "empty"),
        (vec![prompt("a", &[1152])], "1152"),
        (vec![prompt("a", &[1]), prompt("a", &[1])], "twice"),
    ] {
        let error = failure(&engine, &requests, &options);
        assert!(matches!(&error, RuntimeError::Request { sample_id, .. } if sample_id == "a"));
        assert!(error.to_string().contains(wanted), "{error}");
    }
    let none = RunOptions { batch: 0, ..RunOptions::default() };
    let error = failure(&engine, &requests(&[3]), &none);
    assert!(matches!(error, RuntimeError::Option { name: "batch", .. }));
    let teacher = [("first 3".to_owned(), vec![5000])].into();
    let error = failure(&engine, &requests(&[3]), &RunOptions { teacher, ..options });
    assert!(error.to_string().contains("5000"), "{error}");
}

#[test]
fn a_run_that_is_stopped_says_so_and_ends_no_sample() {
    let engine = ledger(DType::F32);
    let mut sink = MemorySink::default();
    let mut seen = Vec::new();
    let mut stop = |progress: &Progress<'_>| {
        seen.push((progress.fed, progress.feed_at_most, progress.finished));
        if progress.fed >= 23 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let options = RunOptions { max_new_tokens: 10, ..RunOptions::default() };
    let summary = engine.run(&requests(&[20, 5]), &options, &mut sink, &mut stop).unwrap();
    assert!(summary.interrupted);
    assert_eq!((summary.finished, summary.prompt_tokens, summary.decode_tokens), (0, 20, 3));
    assert_eq!(seen, [(20, 43, 0), (21, 43, 0), (22, 43, 0), (23, 43, 0)]);
    assert_eq!((sink.steps.len(), sink.samples.len()), (23, 0));
}

#[test]
fn the_manifest_lists_what_is_in_force_with_its_source() {
    let engine = ledger(DType::F32);
    let options = RunOptions { plant: Some(Cause::LayerMax), ..triattention(RuleSet::Trt, 40, 8) };
    let mut manifest = Manifest::new(lockstep_traces::manifest::Producer::default(), "");
    engine.describe(&options, &mut manifest).unwrap();
    let value = |key: &str| (&manifest.config[key].value, manifest.config[key].source.as_str());
    assert_eq!(value("model.rope_theta"), (&10_000.0.into(), "config.json"));
    assert_eq!(value("model.dtype"), (&"f32".into(), "flag"));
    assert_eq!(value("model.cache_dtype"), (&"f32".into(), "default"));
    assert_eq!(value("policy.kv_budget"), (&40.into(), "flag"));
    assert_eq!(value("sampling.sampler").0, "argmax");
    assert_eq!(value("stop.ids"), (&Vec::<u32>::new().into(), "flag"));
    assert_eq!(value("plant").0, "layer-max");
    assert_eq!(manifest.device, "cpu");
    assert!(manifest.model.weights_sha256["model.safetensors"].starts_with("33332a7364c18860"));
}
