//! The device selector on the emulator against recorded answers of other programs. Cases are those of `crate::conformance`, which holds
//! the CPU's selector to all of them; here: every selecting `vllm_selector` case under `vllm`, those that `trt` shares under `trt`, both
//! `sglang` cases, and the `hf` cases of small caches besides three large ones that add noise, per-layer sets and a union.

use std::path::Path;

use lockstep_traces::store::DumpFile;
use lockstep_traces::{Aggregation, PolicySpec, RuleSet, SelectionMode, stats};
use serde_json::Value;

use super::fixture::{KeyBlock, emulator, padded};
use super::*;
use crate::RotaryTable;
use crate::cuda::gpu::Gpu;
use crate::select::{Dims, Rules, Selection, Selector};

/// Large `hf` cases that are run: a cosine by row, head, frequency and offset takes its time here.
const LARGE_HF: [&str; 3] = ["h04_perhead_noise_seed0", "h05_union", "h07_plph_max"];

struct Case<'a> {
    json: &'a Value,
    rule_set: RuleSet,
}

impl Case<'_> {
    fn text(&self, key: &str) -> Option<&str> {
        self.json[key].as_str()
    }

    fn config(&self, key: &str) -> Option<&Value> {
        self.json["config"].get(key).filter(|value| !value.is_null())
    }

    fn number(&self, key: &str) -> Option<usize> {
        self.config(key).and_then(Value::as_u64).and_then(|value| usize::try_from(value).ok())
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.config(key).and_then(Value::as_bool)
    }

    fn aggregation(&self, key: &str) -> Option<Aggregation> {
        self.config(key).map(|value| serde_json::from_value(value.clone()).unwrap())
    }

    fn dims(&self) -> Dims {
        let size = |key: &str| usize::try_from(self.json["dims"][key].as_u64().unwrap()).unwrap();
        Dims {
            layers: size("layers"),
            kv_heads: size("kv_heads"),
            q_heads: size("q_heads"),
            head_dim: size("head_dim"),
        }
    }

    fn environment(&self) -> Option<&str> {
        self.config("env")?.get("TRIATTN_RUNTIME_DEBUG_GROUP_PERHEAD_AGG_MODE")?.as_str()
    }

    fn mode(&self) -> SelectionMode {
        if self.rule_set == RuleSet::Hf {
            return match (self.flag("per_layer_perhead_pruning"), self.flag("per_head_pruning")) {
                (Some(true), _) => SelectionMode::PerLayerPerHead,
                (_, Some(true)) => SelectionMode::PerHead,
                _ => SelectionMode::Union,
            };
        }
        let text = |key: &str| self.config(key).and_then(Value::as_str);
        match (text("pruning_mode"), text("per_head_selection_semantics")) {
            (Some("per_layer"), _) => SelectionMode::PerLayer,
            (Some("per_layer_per_head"), _) => SelectionMode::PerLayerPerHead,
            (_, Some("legacy_layer_local")) => SelectionMode::LegacyLayerLocal,
            _ => SelectionMode::PerHead,
        }
    }

    fn spec(&self) -> PolicySpec {
        let (hf, vllm) = (self.rule_set == RuleSet::Hf, self.rule_set == RuleSet::Vllm);
        let either = |a: &str, b: &str| self.config(a).or(self.config(b)).and_then(Value::as_bool);
        PolicySpec {
            rule_set: Some(self.rule_set),
            kv_budget: self.number("kv_budget").or(self.number("budget")),
            divide_length: self.number("divide_length"),
            recent_window: self.number("window_size"),
            protect_prefill: self.flag("protect_prefill"),
            count_prompt_tokens: hf.then(|| self.flag("count_prompt_tokens").unwrap_or(false)),
            include_prefill_in_budget: self.flag("include_prefill_in_budget").filter(|_| vllm),
            allow_prefill_compression: self.flag("allow_prefill_compression"),
            offset_max_length: self.number("offset_max_length"),
            score_aggregation: self
                .aggregation("sparse_score_aggregation")
                .or(self.aggregation("score_aggregation")),
            layer_aggregation: match self.environment() {
                Some("max") => Some(Aggregation::Max),
                _ => self.aggregation("layer_aggregation"),
            },
            normalize: either("sparse_normalize_scores", "normalize_scores")
                .or(self.flag("normalize")),
            mode: Some(self.mode()),
            disable_mlr: self.flag("disable_mlr"),
            disable_trig: self.flag("disable_trig").filter(|_| self.rule_set != RuleSet::Trt),
            noise_seed: hf.then(|| {
                let seed = self.config("seed").or(self.config("pruning_seed"));
                seed.and_then(Value::as_i64).unwrap_or(-1)
            }),
            ..PolicySpec::default()
        }
    }

    /// Off the grid of the phase tables `trt` scores with other phases than those recorded.
    fn other_phases(&self, rules: &Rules) -> bool {
        let start = self.number("round_start").unwrap_or(0);
        self.rule_set == RuleSet::Trt && !start.is_multiple_of(rules.divide_length.max(1))
    }

    /// Widths of a tie and of a raw score's error, those of the conformance run.
    fn limits(&self, rules: &Rules) -> (f32, f32) {
        let raw =
            if rules.rule_set == RuleSet::Hf || self.other_phases(rules) { 5e-5 } else { 1e-6 };
        let layer_mean = rules.mode == SelectionMode::PerHead
            && rules.layer_aggregation == Aggregation::Mean
            && !self.other_phases(rules);
        let near = match (rules.mode == SelectionMode::Union, rules.normalize) {
            (true, true) => 1e-4,
            (true, false) => 5e-4,
            _ if layer_mean => 2e-5,
            _ => 5e-5,
        };
        (near, raw)
    }

    fn select(&self, gpu: &Gpu, dir: &Path, rules: Rules) -> Option<Selection> {
        let dims = self.dims();
        let stats = stats::read(&dir.join(self.text("stats").unwrap())).unwrap();
        let scaling = self.json["dims"]["attention_scaling"].as_f64().unwrap();
        let rotary = RotaryTable {
            inv_freq: stats.inv_freq.clone().unwrap_or_default(),
            attention_scaling: scaling as f32,
        };
        let file = DumpFile::open(&dir.join(self.text("input").unwrap())).unwrap();
        let keys = file.get("k_rot").unwrap();
        let rows = keys.shape[2];
        let capacity = rows + 3;
        let wide = keys.to_f32().unwrap();
        let block = KeyBlock::new(gpu, keys.dtype, &wide, (rows, capacity, dims.head_dim));
        let positions = file.get("positions").unwrap().to_i32().unwrap();
        let mut positions: Vec<Vec<u32>> = positions
            .chunks(rows)
            .map(|list| list.iter().map(|position| position.cast_unsigned()).collect())
            .collect();
        if self.config("positions").and_then(Value::as_str) == Some("shared") {
            let first = positions[0].clone();
            positions.fill(first);
        }
        let list = gpu.upload(&padded(&positions, capacity)).unwrap();
        let keep = match rules.rule_set {
            RuleSet::Vllm => self.number("budget_total").unwrap_or(rules.kv_budget),
            RuleSet::Trt | RuleSet::Hf | RuleSet::Sglang => rules.kv_budget,
        };
        let start = self.number("round_start").or(self.number("absolute_position")).unwrap();
        let prompt = ["prompt_len", "prefill_len", "prefix_length"];
        let input = DeviceSelect {
            k_base: block.address(),
            capacity,
            rows,
            positions: list.view(),
            positions_by_layer: positions.len() > dims.kv_heads,
            round_start: u32::try_from(start).unwrap(),
            prompt_len: prompt.iter().find_map(|key| self.number(key)).unwrap_or(0),
            keep,
            timed: false,
        };
        let selector = Selector::new(rules, &stats, &rotary, dims, None).unwrap();
        let ops = SelectOps::new(gpu, &selector, keys.dtype, rows).unwrap();
        let noise = selector.noise().map(|noise| DeviceNoise::new(gpu, &noise).unwrap());
        let queued = ops.select(gpu, &input, noise.as_ref()).unwrap();
        ops.selection(gpu, &queued, true).unwrap()
    }

    /// Runs the case and answers how many rows were accepted as ties.
    fn check(&self, gpu: &Gpu, dir: &Path) -> usize {
        let name = self.text("name").unwrap();
        let rules = Rules::resolve(&self.spec()).unwrap();
        let (near, raw_limit) = self.limits(&rules);
        let ours = self.select(gpu, dir, rules);
        let Some(expected) = self.text("expected") else {
            assert_eq!(ours, None, "{name}");
            return 0;
        };
        let ours = ours.unwrap();
        let file = DumpFile::open(&dir.join(expected)).unwrap();
        let has = |wanted: &str| file.names().any(|name| name == wanted);
        if has("raw_scores") {
            let theirs = file.get("raw_scores").unwrap().to_f32().unwrap();
            let raw = &ours.stages.as_ref().unwrap().raw.values;
            assert_eq!(raw.len(), theirs.len());
            let largest = theirs.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            let off = raw.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off / largest <= raw_limit, "{name}: raw scores differ by {}", off / largest);
        }
        let keep = file.get("keep").unwrap();
        assert_eq!(keep.shape, ours.keep.shape(), "{name}");
        let ranked = if has("agg_scores") { "agg_scores" } else { "union_final_topk_input" };
        let scores = ours.stages.as_ref().map(|stages| {
            let columns = stages.last.shape.last().copied().unwrap();
            (file.get(ranked).unwrap().to_f32().unwrap(), columns, stages.row_offset)
        });
        let mut ties = 0;
        let keep = keep.to_i32().unwrap();
        for (list, (ours, theirs)) in
            ours.keep.lists().zip(keep.chunks(ours.keep.len())).enumerate()
        {
            let theirs: Vec<u32> = theirs.iter().map(|row| row.cast_unsigned()).collect();
            let (mut sorted, mut wanted) = (ours.clone(), theirs.clone());
            sorted.sort_unstable();
            wanted.sort_unstable();
            if sorted == wanted {
                continue;
            }
            let (values, columns, first_row) = scores.as_ref().expect(name);
            let values = &values[list * columns..(list + 1) * columns];
            let mut falling = values.to_vec();
            falling.sort_unstable_by(|a, b| b.total_cmp(a));
            let cut = falling[ours.len() - first_row - 1];
            for row in sorted.iter().filter(|row| !wanted.contains(row)) {
                let score = values[*row as usize - first_row];
                let tied = score.total_cmp(&cut).is_eq() || (score - cut).abs() <= near;
                assert!(tied, "{name}, list {list}: row {row} scores {score}, the cut is {cut}");
                ties += 1;
            }
        }
        ties
    }
}

#[test]
fn recorded_answers_of_other_programs_are_given() {
    let Some(gpu) = emulator() else { return };
    let dir = lockstep_testkit::golden().join("triattention");
    let index: Value =
        serde_json::from_slice(&std::fs::read(dir.join("cases.json")).unwrap()).unwrap();
    let mut run = std::collections::BTreeMap::<&str, usize>::new();
    for json in index["cases"].as_array().unwrap() {
        let (group, name) = (json["impl"].as_str().unwrap(), json["name"].as_str().unwrap());
        if json["result"].as_str() == Some("error") {
            continue;
        }
        let rule_set = match group {
            "vllm_selector" => RuleSet::Vllm,
            "hf" => RuleSet::Hf,
            "sglang" => RuleSet::Sglang,
            _ => continue,
        };
        let case = Case { json, rule_set };
        let large = case.dims().q_heads >= 32;
        if rule_set == RuleSet::Hf && large && !LARGE_HF.contains(&name) {
            continue;
        }
        let ties = case.check(&gpu, &dir);
        // Its protected rows alone exceed the budget and are all +inf upstream.
        assert!(ties == 0 || name.starts_with("v17"), "{name}: {ties} rows differ");
        *run.entry(group).or_default() += 1;
        let config = |key: &str| case.config(key).and_then(Value::as_str);
        let shared = rule_set == RuleSet::Vllm
            && config("pruning_mode") == Some("per_head")
            && config("per_head_selection_semantics") == Some("hf_aligned_global_per_head")
            && case.environment().is_none()
            && case.text("expected").is_some_and(|path| {
                DumpFile::open(&dir.join(path)).unwrap().names().any(|name| name == "raw_scores")
            });
        if shared {
            let ties = Case { json, rule_set: RuleSet::Trt }.check(&gpu, &dir);
            assert!(ties == 0 || name.starts_with("v17"), "{name} under trt: {ties} rows differ");
            *run.entry("trt").or_default() += 1;
        }
    }
    let least = [("vllm_selector", 15), ("trt", 12), ("sglang", 2), ("hf", 8)];
    for (group, least) in least {
        assert!(run.get(group).is_some_and(|&count| count >= least), "{group}: {run:?}");
    }
}
