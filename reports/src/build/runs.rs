//! A run in a few words.

use lockstep_traces::Manifest;
use lockstep_traces::store::{RunReader, StepQuery};
use serde_json::Value;

use crate::error::ReportError;
use crate::model::RunSummary;

/// How much a run holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunCounts {
    /// Samples.
    pub samples: u64,
    /// Step rows.
    pub rows: u64,
    /// Compactions.
    pub compactions: u64,
}

/// A run as its manifest describes it.
#[must_use]
pub fn run_summary(label: &str, manifest: &Manifest, counts: RunCounts) -> RunSummary {
    let producer = format!("{} {}", manifest.producer.name, manifest.producer.version);
    RunSummary {
        label: label.to_owned(),
        producer: producer.trim().to_owned(),
        policy: policy(manifest),
        dtype: manifest.dtype.map(|dtype| dtype.name().to_owned()),
        cache_dtype: manifest.cache_dtype.map(|dtype| dtype.name().to_owned()),
        device: match &manifest.sm_arch {
            Some(arch) => format!("{} ({arch})", manifest.device),
            None => manifest.device.clone(),
        },
        samples: counts.samples,
        rows: counts.rows,
        compactions: counts.compactions,
        status: manifest.status,
        plant: text(manifest, "plant"),
        remarks: manifest.remarks.clone(),
        config: manifest.config.clone(),
    }
}

/// A run directory: its manifest, and its tables counted.
///
/// # Errors
/// [`ReportError::Trace`] where a table cannot be read.
pub fn summarize(label: &str, run: &RunReader) -> Result<RunSummary, ReportError> {
    // Sample and position are always read; nothing else is needed to count rows.
    let query = StepQuery { columns: Some(Vec::new()), ..StepQuery::default() };
    let counts = RunCounts {
        samples: run.sample_ids()?.len() as u64,
        rows: run.steps(&query)?.len as u64,
        compactions: run.events(None)?.len() as u64,
    };
    let mut summary = run_summary(label, run.manifest(), counts);
    summary.remarks.extend(run.remarks().iter().cloned());
    Ok(summary)
}

fn text(manifest: &Manifest, key: &str) -> Option<String> {
    match manifest.get(key)? {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// `triattention (trt), budget 130, divide 32`.
fn policy(manifest: &Manifest) -> String {
    let mut out = text(manifest, "policy.kind").unwrap_or_else(|| "unknown".to_owned());
    if out == "triattention"
        && let Some(rules) = text(manifest, "policy.rule_set")
    {
        out = format!("{out} ({rules})");
    }
    if out != "dense" {
        for (key, name) in [("policy.kv_budget", "budget"), ("policy.divide_length", "divide")] {
            if let Some(value) = text(manifest, key) {
                out = format!("{out}, {name} {value}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_traces::manifest::Producer;

    #[test]
    fn a_policy_is_named_with_its_rules_and_sizes() {
        let mut manifest = Manifest::new(
            Producer { name: "lockstep-runtime".into(), ..Producer::default() },
            "cpu",
        );
        manifest.set("policy.kind", "triattention", "flag");
        manifest.set("policy.rule_set", "trt", "default");
        manifest.set("policy.kv_budget", 130, "flag");
        manifest.set("policy.divide_length", 32, "flag");
        let summary = run_summary("a", &manifest, RunCounts { rows: 7, ..RunCounts::default() });
        assert_eq!(summary.policy, "triattention (trt), budget 130, divide 32");
        assert_eq!(summary.producer, "lockstep-runtime");
        assert_eq!((summary.rows, summary.plant), (7, None));
        manifest.set("policy.kind", "dense", "flag");
        assert_eq!(run_summary("a", &manifest, RunCounts::default()).policy, "dense");
    }
}
