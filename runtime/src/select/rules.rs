//! Effective rules: what was asked for, completed and checked by the table of a rule set (`TRIATTENTION.md` 6).

use lockstep_traces::{Aggregation, PolicySpec, RuleSet, SelectionMode, Trigger};
use serde::Serialize;
use serde_json::Value;

use super::SelectError;

/// Offsets stay exact in f32, and so does R + offset for any R below the same bound.
const LARGEST_OFFSET: usize = 1 << 23;

/// An effective setting for the manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective {
    /// Key of `manifest.config`, e.g. `policy.kv_budget`.
    pub key: &'static str,
    /// Value in force.
    pub value: Value,
    /// `flag`, `rule set`, `default`, `model` or `statistics`.
    pub source: &'static str,
}

/// Rules in force. Fields that a rule set does not use hold the value that says so (no window: 0).
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Whose rules.
    pub rule_set: RuleSet,
    /// Rows kept (`trt`: more while a prompt fills; `vllm`: more by the prompt where it is not in the budget).
    pub kv_budget: usize,
    /// Rows between compactions; also the step of the phase tables (`vllm`, `sglang`).
    pub divide_length: usize,
    /// Newest rows kept outright (`trt`, `vllm`).
    pub recent_window: usize,
    /// Prompt rows kept outright.
    pub protect_prefill: bool,
    /// Prompt rows count towards the trigger (and, in `trt`, spend the budget).
    pub count_prompt_tokens: bool,
    /// Protected prompt rows spend the budget (`vllm`).
    pub include_prefill_in_budget: bool,
    /// Offsets are 1, 2, 4, ... up to this.
    pub offset_max_length: usize,
    /// Reduction over offsets.
    pub score_aggregation: Aggregation,
    /// Reduction over layers.
    pub layer_aggregation: Aggregation,
    /// Reduction over the query heads of a KV head.
    pub group_aggregation: Aggregation,
    /// z-score before reductions.
    pub normalize: bool,
    /// Shape of keep-sets.
    pub mode: SelectionMode,
    /// When a compaction is due.
    pub trigger: Trigger,
    /// c = m and not m - |mu|.
    pub disable_mlr: bool,
    /// Score = E. `vllm`, and `sglang` unless `disable_mlr`, take the setting and ignore it.
    pub disable_trig: bool,
    /// Seed of the 1e-6 noise (`hf`).
    pub noise_seed: Option<u32>,
    effective: Vec<Effective>,
}

/// The columns of the table of defaults.
struct Defaults {
    kv_budget: usize,
    recent_window: usize,
    protect_prefill: bool,
    layer_aggregation: Aggregation,
    noise_seed: i64,
}

impl Defaults {
    const fn of(rule_set: RuleSet) -> Self {
        let (kv_budget, recent_window, protect_prefill, layer_aggregation, noise_seed) =
            match rule_set {
                RuleSet::Trt => (4096, 128, true, Aggregation::Mean, -1),
                RuleSet::Hf => (2048, 0, true, Aggregation::Mean, 0),
                RuleSet::Vllm => (2048, 128, false, Aggregation::Mean, -1),
                RuleSet::Sglang => (2048, 0, false, Aggregation::Max, -1),
            };
        Self { kv_budget, recent_window, protect_prefill, layer_aggregation, noise_seed }
    }
}

impl Rules {
    /// Completes a specification by the table of its rule set (`trt` where none is named; `hf`: the worker's column) and checks it.
    ///
    /// # Errors
    /// [`SelectError::Setting`] with the field that contradicts the rule set or another field.
    pub fn resolve(spec: &PolicySpec) -> Result<Self, SelectError> {
        let rule_set = spec.rule_set.unwrap_or(RuleSet::Trt);
        let name = rule_set_name(rule_set);
        refuse_foreign(spec, rule_set, name)?;
        let defaults = Defaults::of(rule_set);
        let mut take = Taker { effective: Vec::new() };
        let source = if spec.rule_set.is_some() { "flag" } else { "default" };
        take.push("policy.rule_set", name, source);
        let kv_budget = take.take("policy.kv_budget", spec.kv_budget, defaults.kv_budget);
        let divide_length = take.take("policy.divide_length", spec.divide_length, 128);
        let recent_window =
            take.take("policy.recent_window", spec.recent_window, defaults.recent_window);
        let protect_prefill = take.protection(spec, defaults.protect_prefill)?;
        let rules = Self {
            rule_set,
            kv_budget,
            divide_length,
            recent_window,
            protect_prefill,
            count_prompt_tokens: take.take(
                "policy.count_prompt_tokens",
                spec.count_prompt_tokens,
                rule_set != RuleSet::Sglang,
            ),
            include_prefill_in_budget: take.take(
                "policy.include_prefill_in_budget",
                spec.include_prefill_in_budget,
                true,
            ),
            offset_max_length: take.take("policy.offset_max_length", spec.offset_max_length, 65536),
            score_aggregation: take.take(
                "policy.score_aggregation",
                spec.score_aggregation,
                Aggregation::Mean,
            ),
            layer_aggregation: take.take(
                "policy.layer_aggregation",
                spec.layer_aggregation,
                defaults.layer_aggregation,
            ),
            group_aggregation: take.take(
                "policy.group_aggregation",
                spec.group_aggregation,
                Aggregation::Max,
            ),
            normalize: take.take("policy.normalize", spec.normalize, true),
            mode: take.take("policy.mode", spec.mode, SelectionMode::PerHead),
            trigger: take.take("policy.trigger", spec.trigger, Trigger::Slack),
            disable_mlr: take.take("policy.disable_mlr", spec.disable_mlr, false),
            disable_trig: take.take("policy.disable_trig", spec.disable_trig, false),
            noise_seed: take.noise(spec.noise_seed, defaults.noise_seed)?,
            effective: Vec::new(),
        };
        let rules = Self { effective: take.effective, ..rules };
        rules.check(name)?;
        Ok(rules)
    }

    /// Settings in force with their sources, for the manifest.
    #[must_use]
    pub fn effective(&self) -> &[Effective] {
        &self.effective
    }

    /// Is the trigonometric term dropped in fact?
    pub(crate) const fn trig_dropped(&self) -> bool {
        match self.rule_set {
            RuleSet::Trt | RuleSet::Hf => self.disable_trig,
            RuleSet::Vllm => false,
            RuleSet::Sglang => self.disable_trig && self.disable_mlr,
        }
    }

    fn check(&self, name: &str) -> Result<(), SelectError> {
        if self.kv_budget == 0 {
            return Err(SelectError::setting("kv_budget", "must be at least 1"));
        }
        if self.divide_length == 0 && self.rule_set != RuleSet::Trt {
            return Err(SelectError::setting(
                "divide_length",
                format!("must be at least 1 under rule set {name}"),
            ));
        }
        if self.offset_max_length == 0 || self.offset_max_length > LARGEST_OFFSET {
            return Err(SelectError::setting(
                "offset_max_length",
                format!("must lie in 1..={LARGEST_OFFSET}"),
            ));
        }
        if self.kv_budget.checked_add(self.divide_length).is_none() {
            return Err(SelectError::setting("divide_length", "is too large"));
        }
        let group_matters = self.mode == SelectionMode::PerLayerPerHead;
        if self.group_aggregation == Aggregation::Mean && !group_matters {
            return Err(SelectError::setting(
                "group_aggregation",
                "mean applies to mode per_layer_per_head of hf and vllm only; leave it out or set max",
            ));
        }
        if self.rule_set == RuleSet::Vllm
            && self.layer_aggregation == Aggregation::Max
            && self.mode != SelectionMode::PerHead
        {
            return Err(SelectError::setting(
                "layer_aggregation",
                "max applies to mode per_head of vllm only; the other modes do not reduce over layers",
            ));
        }
        Ok(())
    }
}

pub(super) const fn rule_set_name(rule_set: RuleSet) -> &'static str {
    match rule_set {
        RuleSet::Trt => "trt",
        RuleSet::Hf => "hf",
        RuleSet::Vllm => "vllm",
        RuleSet::Sglang => "sglang",
    }
}

/// Refuses a setting whose value the rule set cannot honour.
fn only<T: PartialEq>(
    field: &'static str,
    given: Option<T>,
    allowed: &[T],
    why: impl FnOnce() -> String,
) -> Result<(), SelectError> {
    match given {
        Some(value) if !allowed.contains(&value) => Err(SelectError::setting(field, why())),
        _ => Ok(()),
    }
}

fn refuse_foreign(spec: &PolicySpec, rule_set: RuleSet, name: &str) -> Result<(), SelectError> {
    let says = |what: &str| format!("rule set {name} {what}");
    if rule_set != RuleSet::Hf {
        only("allow_prefill_compression", spec.allow_prefill_compression, &[], || {
            says("has no such setting; use protect_prefill")
        })?;
        only("trigger", spec.trigger, &[Trigger::Slack], || says("has the slack trigger only"))?;
        if spec.noise_seed.is_some_and(|seed| seed >= 0) {
            return Err(SelectError::setting("noise_seed", says("adds no noise; leave it out")));
        }
    }
    if rule_set != RuleSet::Vllm {
        only("include_prefill_in_budget", spec.include_prefill_in_budget, &[true], || {
            says("always counts protected prompt rows within the budget")
        })?;
    }
    let modes: &[SelectionMode] = match rule_set {
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
    };
    only("mode", spec.mode, modes, || {
        says(match rule_set {
            RuleSet::Trt | RuleSet::Sglang => "has mode per_head only",
            RuleSet::Hf => "has modes per_head, per_layer_per_head and union",
            RuleSet::Vllm => {
                "has modes per_head, per_layer_per_head, per_layer and legacy_layer_local"
            }
        })
    })?;
    match rule_set {
        RuleSet::Trt => only("normalize", spec.normalize, &[true], || says("always normalises")),
        RuleSet::Hf => {
            only("recent_window", spec.recent_window, &[0], || says("has no recent window"))?;
            only("layer_aggregation", spec.layer_aggregation, &[Aggregation::Mean], || {
                says("takes the mean over layers")
            })
        }
        RuleSet::Vllm => {
            only("disable_mlr", spec.disable_mlr, &[false], || {
                says("cannot score without the modulus correction")
            })?;
            only("count_prompt_tokens", spec.count_prompt_tokens, &[true], || {
                says("counts prompt rows; see include_prefill_in_budget")
            })?;
            only("offset_max_length", spec.offset_max_length, &[65536], || {
                says("fixes it at 65536")
            })
        }
        RuleSet::Sglang => {
            only("recent_window", spec.recent_window, &[0], || says("forces the window to 0"))?;
            only("count_prompt_tokens", spec.count_prompt_tokens, &[false], || {
                says("triggers on decode tokens only")
            })
        }
    }
}

/// Takes settings one by one and remembers where each came from.
struct Taker {
    effective: Vec<Effective>,
}

impl Taker {
    fn push(&mut self, key: &'static str, value: impl Serialize, source: &'static str) {
        // Plain numbers, booleans and unit variants always convert.
        let value = serde_json::to_value(value).unwrap_or(Value::Null);
        self.effective.push(Effective { key, value, source });
    }

    fn take<T: Serialize + Copy>(&mut self, key: &'static str, given: Option<T>, default: T) -> T {
        let value = given.unwrap_or(default);
        self.push(key, value, if given.is_some() { "flag" } else { "rule set" });
        value
    }

    /// `hf` spells protection as its opposite; both spellings are read there.
    fn protection(&mut self, spec: &PolicySpec, default: bool) -> Result<bool, SelectError> {
        let opposite = spec.allow_prefill_compression.map(|allow| !allow);
        if let (Some(protect), Some(opposite)) = (spec.protect_prefill, opposite)
            && protect != opposite
        {
            return Err(SelectError::setting(
                "allow_prefill_compression",
                format!("contradicts protect_prefill = {protect}; give one of them"),
            ));
        }
        Ok(self.take("policy.protect_prefill", spec.protect_prefill.or(opposite), default))
    }

    fn noise(&mut self, given: Option<i64>, default: i64) -> Result<Option<u32>, SelectError> {
        let seed = self.take("policy.noise_seed", given, default);
        if seed == -1 {
            return Ok(None);
        }
        u32::try_from(seed).map(Some).map_err(|_| {
            SelectError::setting("noise_seed", format!("{seed} is neither -1 (off) nor a u32"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(rule_set: RuleSet) -> PolicySpec {
        PolicySpec { rule_set: Some(rule_set), ..PolicySpec::default() }
    }

    fn field_of(result: Result<Rules, SelectError>) -> &'static str {
        match result {
            Err(SelectError::Setting { field, .. }) => field,
            other => panic!("expected a setting error, got {other:?}"),
        }
    }

    #[test]
    fn the_default_rule_set_is_trt_with_its_schema_defaults() {
        let rules = Rules::resolve(&PolicySpec::default()).unwrap();
        assert_eq!(rules.rule_set, RuleSet::Trt);
        assert_eq!((rules.kv_budget, rules.divide_length, rules.recent_window), (4096, 128, 128));
        assert!(rules.protect_prefill && rules.count_prompt_tokens && rules.normalize);
        assert_eq!(rules.layer_aggregation, Aggregation::Mean);
        assert_eq!(rules.noise_seed, None);
    }

    #[test]
    fn each_rule_set_has_its_own_column_of_defaults() {
        let hf = Rules::resolve(&spec(RuleSet::Hf)).unwrap();
        assert_eq!((hf.kv_budget, hf.recent_window, hf.noise_seed), (2048, 0, Some(0)));
        assert!(hf.protect_prefill && hf.count_prompt_tokens && hf.normalize);
        assert_eq!((hf.mode, hf.trigger), (SelectionMode::PerHead, Trigger::Slack));
        let vllm = Rules::resolve(&spec(RuleSet::Vllm)).unwrap();
        assert_eq!((vllm.kv_budget, vllm.recent_window, vllm.protect_prefill), (2048, 128, false));
        let sglang = Rules::resolve(&spec(RuleSet::Sglang)).unwrap();
        assert_eq!((sglang.recent_window, sglang.protect_prefill), (0, false));
        assert_eq!(sglang.layer_aggregation, Aggregation::Max);
    }

    #[test]
    fn the_source_of_every_setting_is_kept() {
        let rules =
            Rules::resolve(&PolicySpec { kv_budget: Some(77), ..spec(RuleSet::Hf) }).unwrap();
        let source = |key: &str| {
            rules.effective().iter().find(|entry| entry.key == key).map(|entry| entry.source)
        };
        assert_eq!(source("policy.kv_budget"), Some("flag"));
        assert_eq!(source("policy.rule_set"), Some("flag"));
        assert_eq!(source("policy.divide_length"), Some("rule set"));
        assert_eq!(rules.effective().len(), 17);
    }

    #[test]
    fn settings_that_a_rule_set_cannot_honour_are_named() {
        let cases = [
            (PolicySpec { mode: Some(SelectionMode::Union), ..spec(RuleSet::Trt) }, "mode"),
            (PolicySpec { normalize: Some(false), ..spec(RuleSet::Trt) }, "normalize"),
            (PolicySpec { trigger: Some(Trigger::Interval), ..spec(RuleSet::Trt) }, "trigger"),
            (PolicySpec { noise_seed: Some(0), ..spec(RuleSet::Trt) }, "noise_seed"),
            (PolicySpec { recent_window: Some(16), ..spec(RuleSet::Hf) }, "recent_window"),
            (PolicySpec { mode: Some(SelectionMode::PerLayer), ..spec(RuleSet::Hf) }, "mode"),
            (PolicySpec { noise_seed: Some(-2), ..spec(RuleSet::Hf) }, "noise_seed"),
            (PolicySpec { disable_mlr: Some(true), ..spec(RuleSet::Vllm) }, "disable_mlr"),
            (PolicySpec { divide_length: Some(0), ..spec(RuleSet::Vllm) }, "divide_length"),
            (PolicySpec { recent_window: Some(1), ..spec(RuleSet::Sglang) }, "recent_window"),
            (PolicySpec { kv_budget: Some(0), ..spec(RuleSet::Sglang) }, "kv_budget"),
            (
                PolicySpec { group_aggregation: Some(Aggregation::Mean), ..spec(RuleSet::Trt) },
                "group_aggregation",
            ),
            (
                PolicySpec {
                    protect_prefill: Some(true),
                    allow_prefill_compression: Some(true),
                    ..spec(RuleSet::Hf)
                },
                "allow_prefill_compression",
            ),
        ];
        for (spec, field) in cases {
            assert_eq!(field_of(Rules::resolve(&spec)), field);
        }
    }

    #[test]
    fn library_modes_of_hf_are_reached_by_naming_them() {
        let rules = Rules::resolve(&PolicySpec {
            mode: Some(SelectionMode::Union),
            trigger: Some(Trigger::Interval),
            count_prompt_tokens: Some(false),
            normalize: Some(false),
            allow_prefill_compression: Some(true),
            noise_seed: Some(-1),
            ..spec(RuleSet::Hf)
        })
        .unwrap();
        assert_eq!((rules.mode, rules.trigger), (SelectionMode::Union, Trigger::Interval));
        assert!(!rules.count_prompt_tokens && !rules.normalize && !rules.protect_prefill);
        assert_eq!(rules.noise_seed, None);
    }

    #[test]
    fn ignored_settings_of_the_triton_scorers_stay_ignored() {
        let vllm = PolicySpec { disable_trig: Some(true), ..spec(RuleSet::Vllm) };
        assert!(!Rules::resolve(&vllm).unwrap().trig_dropped());
        let sglang = PolicySpec { disable_trig: Some(true), ..spec(RuleSet::Sglang) };
        assert!(!Rules::resolve(&sglang).unwrap().trig_dropped());
        let torch = PolicySpec { disable_mlr: Some(true), ..sglang };
        assert!(Rules::resolve(&torch).unwrap().trig_dropped());
    }
}
