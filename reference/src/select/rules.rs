//! Settings in force, resolved by this crate's own table of defaults (`TRIATTENTION.md` section 6).

use lockstep_traces::{Aggregation, PolicySpec, RuleSet, SelectionMode, Trigger};
use serde::{Deserialize, Serialize};

use super::SelectError;

/// Every setting of a selection, none of them optional.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Whose rules.
    pub rule_set: RuleSet,
    /// Rows kept.
    pub kv_budget: usize,
    /// Rows between compactions; also the step of the phase tables.
    pub divide_length: usize,
    /// Newest rows kept outright; 0 in `hf` and `sglang`, which have no window whatever is asked.
    pub recent_window: usize,
    /// Prompt rows are guarded. In `hf` this is the opposite of `allow_prefill_compression`.
    pub protect_prefill: bool,
    /// Prompt rows count towards the trigger (and, in `trt`, the budget).
    pub count_prompt_tokens: bool,
    /// vllm: guarded prompt rows spend the budget.
    pub include_prefill_in_budget: bool,
    /// Largest offset.
    pub offset_max_length: usize,
    /// Reduction over offsets.
    pub score_aggregation: Aggregation,
    /// Reduction over layers.
    pub layer_aggregation: Aggregation,
    /// Reduction over the GQA group.
    pub group_aggregation: Aggregation,
    /// z-score.
    pub normalize: bool,
    /// Shape of the keep-sets.
    pub mode: SelectionMode,
    /// When a compaction is due (`hf`; the others know slack only).
    pub trigger: Trigger,
    /// Drop the modulus correction.
    pub disable_mlr: bool,
    /// Drop the trigonometric term (vllm ignores it).
    pub disable_trig: bool,
    /// hf: seed of the 1e-6 noise.
    pub noise_seed: Option<u64>,
    /// Physical capacity in rows.
    pub max_rows: Option<usize>,
}

impl Rules {
    /// Resolves `spec` under its rule set (`trt` where none is named).
    ///
    /// # Errors
    /// [`SelectError::Mode`] or [`SelectError::Unsupported`] where the rule set has no such thing.
    pub fn resolve(spec: &PolicySpec) -> Result<Self, SelectError> {
        let rule_set = spec.rule_set.unwrap_or(RuleSet::Trt);
        let mode = spec.mode.unwrap_or(SelectionMode::PerHead);
        check_mode(rule_set, mode)?;
        let hf = rule_set == RuleSet::Hf;
        let windowed = matches!(rule_set, RuleSet::Trt | RuleSet::Vllm);
        let rules = Self {
            rule_set,
            kv_budget: spec.kv_budget.unwrap_or(default_budget(rule_set)),
            divide_length: spec.divide_length.unwrap_or(128),
            recent_window: if windowed { spec.recent_window.unwrap_or(128) } else { 0 },
            protect_prefill: protects(rule_set, spec),
            count_prompt_tokens: spec.count_prompt_tokens.unwrap_or(true),
            include_prefill_in_budget: spec.include_prefill_in_budget.unwrap_or(true),
            offset_max_length: spec.offset_max_length.unwrap_or(65536),
            score_aggregation: spec.score_aggregation.unwrap_or(Aggregation::Mean),
            layer_aggregation: spec.layer_aggregation.unwrap_or(match rule_set {
                RuleSet::Sglang => Aggregation::Max,
                _ => Aggregation::Mean,
            }),
            group_aggregation: spec.group_aggregation.unwrap_or(Aggregation::Max),
            normalize: spec.normalize.unwrap_or(true),
            mode,
            trigger: spec.trigger.unwrap_or(Trigger::Slack),
            disable_mlr: spec.disable_mlr.unwrap_or(false),
            disable_trig: spec.disable_trig.unwrap_or(false),
            noise_seed: if hf { noise(spec.noise_seed) } else { None },
            max_rows: spec.max_rows,
        };
        rules.check()?;
        Ok(rules)
    }

    fn check(&self) -> Result<(), SelectError> {
        let refuse = |what: &str, remedy: &str| {
            Err(SelectError::Unsupported {
                rule_set: self.rule_set,
                what: what.to_owned(),
                remedy: remedy.to_owned(),
            })
        };
        if self.offset_max_length == 0 {
            return refuse("offset_max_length of 0", "use 1 or more");
        }
        match self.rule_set {
            RuleSet::Vllm if self.disable_mlr => {
                refuse("disable_mlr: upstream's kernel raises", "leave it off or use trt or hf")
            }
            RuleSet::Trt if !self.normalize => {
                refuse("unnormalised scores", "leave `normalize` on or use hf or vllm")
            }
            RuleSet::Trt | RuleSet::Vllm | RuleSet::Sglang if self.trigger != Trigger::Slack => {
                refuse("interval trigger", "use slack, or hf")
            }
            _ if self.divide_length == 0 && self.rule_set != RuleSet::Trt => {
                refuse("divide_length of 0", "use 1 or more")
            }
            _ => Ok(()),
        }
    }
}

fn check_mode(rule_set: RuleSet, mode: SelectionMode) -> Result<(), SelectError> {
    use SelectionMode::{LegacyLayerLocal, PerHead, PerLayer, PerLayerPerHead, Union};
    let (has, available) = match rule_set {
        RuleSet::Trt | RuleSet::Sglang => (mode == PerHead, "per_head"),
        RuleSet::Hf => (
            matches!(mode, PerHead | PerLayerPerHead | Union),
            "per_head, per_layer_per_head, union",
        ),
        RuleSet::Vllm => (
            matches!(mode, PerHead | PerLayerPerHead | PerLayer | LegacyLayerLocal),
            "per_head, per_layer_per_head, per_layer, legacy_layer_local",
        ),
    };
    if has { Ok(()) } else { Err(SelectError::Mode { rule_set, mode, available }) }
}

const fn default_budget(rule_set: RuleSet) -> usize {
    match rule_set {
        RuleSet::Trt => 4096,
        RuleSet::Hf | RuleSet::Vllm | RuleSet::Sglang => 2048,
    }
}

/// hf speaks of allowing compression of the prompt, the others of protecting it; where both words are given to hf,
/// its own word holds.
fn protects(rule_set: RuleSet, spec: &PolicySpec) -> bool {
    match rule_set {
        RuleSet::Hf => match spec.allow_prefill_compression {
            Some(allowed) => !allowed,
            None => spec.protect_prefill.unwrap_or(true),
        },
        RuleSet::Trt => spec.protect_prefill.unwrap_or(true),
        RuleSet::Vllm | RuleSet::Sglang => spec.protect_prefill.unwrap_or(false),
    }
}

/// The worker's seed is 0; a negative one turns the noise off.
fn noise(asked: Option<i64>) -> Option<u64> {
    u64::try_from(asked.unwrap_or(0)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rule_set: RuleSet) -> Rules {
        Rules::resolve(&PolicySpec { rule_set: Some(rule_set), ..PolicySpec::default() }).unwrap()
    }

    #[test]
    fn defaults_are_the_columns_of_section_six() {
        let (trt, hf, vllm, sglang) =
            (of(RuleSet::Trt), of(RuleSet::Hf), of(RuleSet::Vllm), of(RuleSet::Sglang));
        assert_eq!(
            [trt.kv_budget, hf.kv_budget, vllm.kv_budget, sglang.kv_budget],
            [4096, 2048, 2048, 2048]
        );
        assert_eq!(
            [trt.recent_window, hf.recent_window, vllm.recent_window, sglang.recent_window],
            [128, 0, 128, 0]
        );
        assert_eq!(
            [trt.protect_prefill, hf.protect_prefill, vllm.protect_prefill, sglang.protect_prefill],
            [true, true, false, false]
        );
        assert_eq!(sglang.layer_aggregation, Aggregation::Max);
        assert_eq!(trt.layer_aggregation, Aggregation::Mean);
        assert_eq!([trt.noise_seed, hf.noise_seed, vllm.noise_seed], [None, Some(0), None]);
    }

    #[test]
    fn nothing_named_means_trt() {
        assert_eq!(Rules::resolve(&PolicySpec::default()).unwrap().rule_set, RuleSet::Trt);
    }

    #[test]
    fn hf_prefers_its_own_word_for_prompt_protection() {
        let spec = PolicySpec {
            rule_set: Some(RuleSet::Hf),
            allow_prefill_compression: Some(true),
            protect_prefill: Some(true),
            noise_seed: Some(-1),
            ..PolicySpec::default()
        };
        let rules = Rules::resolve(&spec).unwrap();
        assert!(!rules.protect_prefill);
        assert_eq!(rules.noise_seed, None);
    }

    #[test]
    fn what_a_rule_set_lacks_is_refused_by_name() {
        let spec = PolicySpec {
            rule_set: Some(RuleSet::Vllm),
            disable_mlr: Some(true),
            ..PolicySpec::default()
        };
        let error = Rules::resolve(&spec).unwrap_err();
        assert!(error.to_string().contains("disable_mlr"), "{error}");
        let spec = PolicySpec {
            rule_set: Some(RuleSet::Trt),
            mode: Some(SelectionMode::Union),
            ..PolicySpec::default()
        };
        assert!(matches!(Rules::resolve(&spec), Err(SelectError::Mode { .. })));
    }
}
