//! Schedules against the compressed runs of upstream's own patch.

use lockstep_traces::stats::QueryStats;
use lockstep_traces::{DType, PolicyKind, PolicySpec, RuleSet, SelectionMode, Trigger};
use serde_json::Value;

use super::{Policy, Setup};
use crate::RotaryTable;
use crate::select::Dims;

/// Settings of a run in `summary.json`.
pub(crate) fn spec(run: &Value) -> PolicySpec {
    let flag = |name: &str| run["flags"][name].as_bool();
    let number = |name: &str| run[name].as_u64().map(|value| value as usize);
    let mode = if flag("per_layer_perhead_pruning") == Some(true) {
        SelectionMode::PerLayerPerHead
    } else if flag("per_head_pruning") == Some(true) {
        SelectionMode::PerHead
    } else {
        SelectionMode::Union
    };
    let slack = flag("use_slack_trigger") == Some(true);
    PolicySpec {
        kind: Some(PolicyKind::Triattention),
        rule_set: Some(RuleSet::Hf),
        kv_budget: number("kv_budget"),
        divide_length: number("divide_length"),
        count_prompt_tokens: flag("count_prompt_tokens"),
        allow_prefill_compression: flag("allow_prefill_compression"),
        normalize: flag("normalize_scores"),
        trigger: Some(if slack { Trigger::Slack } else { Trigger::Interval }),
        mode: Some(mode),
        noise_seed: run["flags"]["pruning_seed"].as_i64().or(Some(-1)),
        ..PolicySpec::default()
    }
}

#[test]
fn the_schedule_of_every_recorded_run_follows_from_its_settings() {
    let path = lockstep_testkit::golden().join("traces/compressed/summary.json");
    let summary: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let rotary = RotaryTable { inv_freq: vec![1.0], attention_scaling: 1.0 };
    let stats = QueryStats {
        layers: vec![0],
        heads: vec![0],
        freqs: 1,
        q_mean_real: vec![1.0],
        q_mean_imag: vec![0.0],
        q_abs_mean: vec![1.0],
        sampled: vec![(0, 0)],
        ..QueryStats::default()
    };
    let setup = Setup {
        dims: Dims { layers: 1, kv_heads: 1, q_heads: 1, head_dim: 2 },
        rotary: &rotary,
        stats: Some(&stats),
        cache_dtype: DType::F32,
        plant: None,
    };
    let mut compared = 0;
    for run in summary["runs"].as_array().unwrap() {
        let policy = Policy::resolve(&spec(run), &setup).unwrap();
        let prompt = run["prompt_len"].as_u64().unwrap() as usize;
        let fed = run["fed_rows"].as_u64().unwrap() as usize;
        let mut state = policy.start(prompt, "run");
        let chunk = policy.prompt_chunk(&state);
        policy.appended(&mut state, chunk);
        assert_eq!(state.prompt_left(), 0, "the prompt is one forward");
        let mut seen = Vec::new();
        for _ in prompt..fed {
            assert_eq!(policy.due_before_forward(&state).unwrap(), None);
            policy.appended(&mut state, 1);
            if let Some(due) = policy.due_after_append(&state).unwrap() {
                state.settle(&due, due.keep, 0);
                seen.push([due.absolute_position as u64, due.rows as u64, due.keep as u64]);
            }
        }
        let recorded: Vec<[u64; 3]> = run["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|event| {
                ["absolute_position_N", "rows_before_compaction", "rows_after_compaction"]
                    .map(|key| event[key].as_u64().unwrap())
            })
            .collect();
        assert_eq!(seen, recorded, "{} {}", run["sample_id"], run["config"]);
        compared += seen.len();
    }
    assert!(compared > 0);
}
