//! What differs between the effective configurations of two runs: key, value and source on both sides, by group.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_traces::Verdict;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::audits::Subject;
use crate::inputs::equal;
use crate::report::InputDifference;

mod flat;
mod variables;

pub use variables::{Variable, variables};

/// Part of a configuration, in the order in which it is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Samples, prompts and their seeds.
    Inputs,
    /// Weights, resolved model values, dtypes.
    Model,
    /// Cache policy and its statistics.
    Policy,
    /// Sampling.
    Sampling,
    /// When generation ends.
    Stop,
    /// Executable, device, kernels, batch, planted faults.
    Device,
    /// What was recorded and how.
    Trace,
}

impl Group {
    /// `inputs`, `model`, `policy`, `sampling`, `stop`, `device`, `trace`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Inputs => "inputs",
            Self::Model => "model",
            Self::Policy => "policy",
            Self::Sampling => "sampling",
            Self::Stop => "stop",
            Self::Device => "device",
            Self::Trace => "trace",
        }
    }

    /// The group of a dotted key.
    #[must_use]
    pub fn of(key: &str) -> Self {
        match key.split('.').next().unwrap_or_default() {
            "inputs" => Self::Inputs,
            "run" if key == "run.samples" => Self::Inputs,
            "model" | "dtype" | "cache_dtype" => Self::Model,
            "policy" | "triattention" => Self::Policy,
            "sampling" => Self::Sampling,
            "stop" => Self::Stop,
            "trace" => Self::Trace,
            _ => Self::Device,
        }
    }
}

/// Differences of one group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupDifferences {
    /// Group.
    pub group: Group,
    /// Keys with unequal values, and keys that one side does not have (its value is `null`), by key.
    pub differences: Vec<InputDifference>,
}

/// Answer of a comparison of two configurations. Keys are stable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SettingsReport {
    /// Baseline.
    pub left: String,
    /// Target.
    pub right: String,
    /// Groups that differ, in a fixed order.
    pub groups: Vec<GroupDifferences>,
    /// Keys with equal values.
    pub equal: u64,
    /// Keys that differ or stand on one side only.
    pub differing: u64,
    /// `identical`, `diverged`, or `incomparable` where a side records no configuration.
    pub verdict: Verdict,
}

impl SettingsReport {
    /// All differences with their groups.
    pub fn differences(&self) -> impl Iterator<Item = (Group, &InputDifference)> {
        self.groups.iter().flat_map(|group| {
            group.differences.iter().map(move |difference| (group.group, difference))
        })
    }
}

/// Compares everything that two subjects record of their configuration. Times, paths and arguments are left out: they differ
/// between any two runs and change nothing.
#[must_use]
pub fn compare(left: &Subject<'_>, right: &Subject<'_>) -> SettingsReport {
    let (l, r) = (flat::flat(left), flat::flat(right));
    let keys: BTreeSet<&String> = l.keys().chain(r.keys()).collect();
    let mut by_group: BTreeMap<Group, Vec<InputDifference>> = BTreeMap::new();
    let mut same = 0;
    for key in keys {
        let (a, b) = (l.get(key), r.get(key));
        if let (Some(a), Some(b)) = (a, b)
            && alike(&a.value, &b.value)
        {
            same += 1;
            continue;
        }
        by_group.entry(Group::of(key)).or_default().push(InputDifference {
            key: key.clone(),
            left: a.map(|setting| setting.value.clone()),
            right: b.map(|setting| setting.value.clone()),
            left_source: a.map(|setting| setting.source.clone()),
            right_source: b.map(|setting| setting.source.clone()),
        });
    }
    let groups: Vec<GroupDifferences> = by_group
        .into_iter()
        .map(|(group, differences)| GroupDifferences { group, differences })
        .collect();
    let differing = groups.iter().map(|group| group.differences.len() as u64).sum();
    let verdict = match (l.is_empty(), r.is_empty(), differing) {
        (true, _, _) => unrecorded(&left.label),
        (_, true, _) => unrecorded(&right.label),
        (_, _, 0) => Verdict::Identical,
        _ => Verdict::Diverged,
    };
    SettingsReport {
        left: left.label.clone(),
        right: right.label.clone(),
        groups,
        equal: same,
        differing,
        verdict,
    }
}

fn unrecorded(label: &str) -> Verdict {
    Verdict::Incomparable { why: format!("{label} records no configuration") }
}

/// Numbers by value, lists element by element.
fn alike(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Array(l), Value::Array(r)) => {
            l.len() == r.len() && l.iter().zip(r).all(|(l, r)| alike(l, r))
        }
        _ => equal(left, right),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audits::Sample;
    use crate::audits::facts::Kind;

    fn run(label: &str) -> Subject<'static> {
        Subject::new(label, Kind::Run)
            .with("policy.kind", "triattention", "flag")
            .with("policy.kv_budget", 256, "flag")
            .with("model.rope_theta", 10_000, "config.json")
            .with("sampling.temperature", 0.0, "default")
            .with("stop.ids", vec![1, 2], "model")
    }

    #[test]
    fn equal_configurations_have_nothing_to_show() {
        let mut right = run("b").with("model.rope_theta", 10_000.0, "default");
        right.made.created_at = Some("2026-01-01T00:00:00Z".to_owned());
        let found = compare(&run("a"), &right);
        assert_eq!((found.equal, found.differing), (5, 0));
        assert_eq!(found.verdict, Verdict::Identical);
        assert!(found.groups.is_empty());
    }

    #[test]
    fn a_difference_is_told_with_value_and_source_in_its_group() {
        let mut left = run("a").with_sample(Sample {
            prompt_ids_sha256: Some("aa".into()),
            effective_seed: Some(3),
            ..Sample::new("s")
        });
        left.engine.dtype = Some("f32".into());
        left.made.binary_sha256 = Some("11".into());
        let mut right = run("b")
            .with("policy.kv_budget", 128, "bundle")
            .with("stop.ids", vec![1], "flag")
            .with_sample(Sample {
                prompt_ids_sha256: Some("bb".into()),
                effective_seed: Some(3),
                ..Sample::new("s")
            });
        right.engine.dtype = Some("bf16".into());
        right.made.binary_sha256 = Some("22".into());
        let found = compare(&left, &right);
        let told: Vec<(Group, &str)> =
            found.differences().map(|(group, one)| (group, one.key.as_str())).collect();
        assert_eq!(
            told,
            [
                (Group::Inputs, "inputs.s.prompt_ids_sha256"),
                (Group::Model, "dtype"),
                (Group::Policy, "policy.kv_budget"),
                (Group::Stop, "stop.ids"),
                (Group::Device, "producer.binary_sha256"),
            ]
        );
        let budget = &found.groups[2].differences[0];
        assert_eq!((&budget.left, &budget.right), (&Some(256.into()), &Some(128.into())));
        assert_eq!(budget.left_source.as_deref(), Some("flag"));
        assert_eq!(budget.right_source.as_deref(), Some("bundle"));
        assert_eq!(found.verdict, Verdict::Diverged);
    }

    #[test]
    fn a_key_on_one_side_differs_and_a_side_without_any_is_incomparable() {
        let more = run("b").with("policy.recent_window", 128, "flag");
        let found = compare(&run("a"), &more);
        assert_eq!(found.differing, 1);
        assert_eq!(found.groups[0].differences[0].left, None);
        let nothing = compare(&run("a"), &Subject::new("trace.jsonl", Kind::Trace));
        assert_eq!(nothing.verdict.exit_code(), 4);
    }
}
