//! How many things were changed at once between two runs.

use std::collections::BTreeMap;

use super::{Group, SettingsReport};
use crate::report::InputDifference;

/// A value that is not recorded.
const ABSENT: &str = "-";

/// One thing that was changed: a key, or a group of keys that follow from one choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Key, or `policy` for a policy of another kind, or `implementation` for a replay of the other side.
    pub name: String,
    /// Left and right value as text, `-` where not recorded.
    pub values: (String, String),
    /// Keys that follow from it.
    pub follows: Vec<String>,
}

impl Variable {
    /// Do both sides state a value? What one side does not record is no change that can be seen.
    #[must_use]
    pub fn stated(&self) -> bool {
        self.values.0 != ABSENT && self.values.1 != ABSENT
    }

    /// `policy.kv_budget: 256 against 128`.
    #[must_use]
    pub fn words(&self) -> String {
        format!("{}: {} against {}", self.name, self.values.0, self.values.1)
    }
}

/// What was changed. Recording, the list of samples and per-sample prompts and seeds are no variables: pairs are made by sample and have
/// audits of their own. A key that was not set by anybody (source `default`, `rule set`, ...) follows from a set key of its group
/// where one differs; else it is a variable of its own, since a default that differs is a difference. A policy of another
/// kind is one variable with all its keys. With `lineage` one side replays the other and executable, device and
/// kernels are one variable.
#[must_use]
pub fn variables(report: &SettingsReport, lineage: bool) -> Vec<Variable> {
    let mut by_group: BTreeMap<Group, Vec<&InputDifference>> = BTreeMap::new();
    let mut implementation: Vec<&InputDifference> = Vec::new();
    for (group, one) in report.differences() {
        match group {
            Group::Trace | Group::Inputs => {}
            _ if lineage && of_implementation(group, one) => implementation.push(one),
            _ => by_group.entry(group).or_default().push(one),
        }
    }
    let mut out = Vec::new();
    for (group, differences) in by_group {
        if group == Group::Policy && differences.iter().any(|one| one.key == "policy.kind") {
            out.push(together("policy", "policy.kind", &differences));
        } else {
            out.extend(apart(&differences));
        }
    }
    if !implementation.is_empty() {
        out.push(together("implementation", "producer.name", &implementation));
    }
    out
}

/// Of a replay and its run: executable, device and kernels; keys that only one of the two programs records; and the element type
/// of cached rows, which follows from a reference's precision.
fn of_implementation(group: Group, one: &InputDifference) -> bool {
    group == Group::Device
        || one.left.is_none()
        || one.right.is_none()
        || matches!(one.key.as_str(), "cache_dtype" | "model.cache_dtype")
}

fn text(value: &Option<serde_json::Value>) -> String {
    match value {
        None => ABSENT.to_owned(),
        Some(serde_json::Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

fn together(name: &str, key: &str, differences: &[&InputDifference]) -> Variable {
    let head = differences.iter().find(|one| one.key == key).or(differences.first());
    Variable {
        name: name.to_owned(),
        values: head.map_or_else(Default::default, |one| (text(&one.left), text(&one.right))),
        follows: differences
            .iter()
            .filter(|one| one.key != key)
            .map(|one| one.key.clone())
            .collect(),
    }
}

/// A person or a file set it; nobody sets what is a default or follows from a rule.
fn set(one: &InputDifference) -> bool {
    let declared = |source: &Option<String>| {
        source.as_deref().is_some_and(|source| {
            !source.starts_with("default")
                && source != "rule set"
                && !source.starts_with("temperature")
        })
    };
    declared(&one.left_source) || declared(&one.right_source)
}

fn apart(differences: &[&InputDifference]) -> Vec<Variable> {
    let (declared, others): (Vec<&InputDifference>, Vec<&InputDifference>) =
        differences.iter().copied().partition(|one| set(one));
    let variable = |one: &InputDifference| Variable {
        name: one.key.clone(),
        values: (text(&one.left), text(&one.right)),
        follows: Vec::new(),
    };
    if declared.is_empty() {
        return others.into_iter().map(variable).collect();
    }
    let mut out: Vec<Variable> = merged(&declared).into_iter().map(variable).collect();
    if let Some(first) = out.first_mut() {
        first.follows = others.iter().map(|one| one.key.clone()).collect();
    }
    out
}

/// `dtype` and `model.dtype` are one setting told twice.
fn merged<'d>(differences: &[&'d InputDifference]) -> Vec<&'d InputDifference> {
    let twin = |key: &str| differences.iter().any(|one| one.key == key);
    differences
        .iter()
        .copied()
        .filter(|one| {
            !(matches!(one.key.as_str(), "dtype" | "cache_dtype")
                && twin(&format!("model.{}", one.key)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::compare;
    use super::*;
    use crate::audits::Subject;
    use crate::audits::facts::Kind;

    fn names(left: &Subject<'_>, right: &Subject<'_>, lineage: bool) -> Vec<String> {
        variables(&compare(left, right), lineage).into_iter().map(|one| one.name).collect()
    }

    fn dense() -> Subject<'static> {
        let mut run = Subject::new("dense", Kind::Run)
            .with("policy.kind", "dense", "flag")
            .with("sampling.temperature", 0.0, "default")
            .with("sampling.sampler", "argmax", "default")
            .with("trace.top_k", 8, "flag")
            .with("stop.max_new_tokens", 512, "flag");
        run.made.producer = Some("lockstep-runtime".into());
        run
    }

    #[test]
    fn a_policy_switched_on_is_one_variable_with_all_its_keys() {
        let tri = dense()
            .with("policy.kind", "triattention", "flag")
            .with("policy.kv_budget", 256, "flag")
            .with("policy.rule_set", "trt", "default")
            .with("trace.top_k", 20, "flag");
        assert_eq!(names(&dense(), &tri, false), ["policy"]);
        let two = tri.with("stop.max_new_tokens", 600, "flag");
        assert_eq!(names(&dense(), &two, false), ["policy", "stop.max_new_tokens"]);
    }

    #[test]
    fn what_follows_from_a_set_key_is_no_variable_and_a_default_alone_is_one() {
        let warm = dense()
            .with("sampling.temperature", 0.6, "flag")
            .with("sampling.sampler", "torch-cuda", "default")
            .with("sampling.sm_count", 132, "default");
        assert_eq!(names(&dense(), &warm, false), ["sampling.temperature"]);
        let drifted = dense().with("sampling.sampler", "xorshift", "default");
        assert_eq!(names(&dense(), &drifted, false), ["sampling.sampler"]);
    }

    #[test]
    fn a_replay_is_one_variable_and_its_precision_another() {
        let mut replay = dense();
        replay.made.producer = Some("lockstep-reference".into());
        replay.engine.device = Some("candle-cpu".into());
        assert_eq!(names(&dense(), &replay, true), ["implementation"]);
        assert_eq!(names(&dense(), &replay, false).len(), 2);
        let mut run = dense();
        (run.engine.dtype, replay.engine.dtype) = (Some("bf16".into()), Some("f32".into()));
        run.set("model.rope_theta", 10_000, "config.json");
        run.set("model.eos_token_id", 2, "config.json");
        assert_eq!(names(&run, &replay, true), ["dtype", "implementation"]);
        // A value that both resolve, and resolve differently, is what a replay is there to find.
        replay.set("model.rope_theta", 1_000_000, "config.json");
        assert_eq!(names(&run, &replay, true), ["dtype", "model.rope_theta", "implementation"]);
    }
}
