//! Facts of a trace in memory: a run of ours or an imported trace.

use std::borrow::Cow;
use std::collections::BTreeMap;

use lockstep_traces::Status;
use serde_json::Value;

use super::Sample;
use super::facts::{Artifact, Engine, Kind, Made, Reference, State, Subject, Trace};
use crate::Side;

/// What a run or an imported trace says. `identity` is the sha256 of its `manifest.json`, where it has one: replays name it as
/// their parent.
#[must_use]
pub fn subject_of<'a>(side: Side<'a>, identity: Option<String>) -> Subject<'a> {
    let manifest = side.manifest;
    let kind = match manifest.producer.name.as_str() {
        "lockstep-reference" => Kind::Replay,
        _ if manifest.get("trace.dialect").is_some() => Kind::Trace,
        _ => Kind::Run,
    };
    let known = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let mut subject = Subject::new(side.label, kind);
    subject.made = Made {
        producer: known(&manifest.producer.name),
        version: known(&manifest.producer.version),
        binary_sha256: manifest.producer.binary_sha256.clone(),
        created_at: known(&manifest.created_at),
        ..Made::default()
    };
    subject.identity = identity;
    subject.parent.clone_from(&manifest.parent);
    subject.engine = engine(&side, kind);
    subject.settings = (!manifest.config.is_empty()).then(|| manifest.config.clone());
    subject.artifact = artifact(&side);
    subject.samples = samples(&side);
    subject.events = Some(side.events.to_vec());
    subject.reference = (kind == Kind::Replay).then(|| reference(&side));
    subject.state = State {
        complete: Some(manifest.status == Status::Complete),
        rows_written: Some(side.steps.len as u64),
        expected_ids: manifest.get("run.samples").and_then(texts),
        ..State::default()
    };
    subject.remarks.clone_from(&manifest.remarks);
    subject.trace = Some(Trace {
        manifest: Cow::Borrowed(manifest),
        rows: Cow::Borrowed(side.samples),
        steps: Cow::Borrowed(side.steps),
        events: Cow::Borrowed(side.events),
    });
    subject
}

fn engine(side: &Side<'_>, kind: Kind) -> Engine {
    let manifest = side.manifest;
    let count = |key: &str| manifest.get(key).and_then(Value::as_u64);
    let known = |list: &[String]| (!list.is_empty()).then(|| list.to_vec());
    Engine {
        dtype: manifest.dtype.map(|dtype| dtype.name().to_owned()),
        cache_dtype: manifest.cache_dtype.map(|dtype| dtype.name().to_owned()),
        device: (kind != Kind::Trace).then(|| manifest.device.clone()),
        sm_arch: manifest.sm_arch.clone(),
        sm_count: count("sampling.sm_count").and_then(|count| u32::try_from(count).ok()),
        kernel_options: known(&manifest.kernel_options),
        weights: (!manifest.model.weights_sha256.is_empty())
            .then(|| manifest.model.weights_sha256.clone()),
        files: files(side),
        vocab: count("model.vocab_size"),
    }
}

fn files(side: &Side<'_>) -> BTreeMap<String, String> {
    let model = &side.manifest.model;
    let named = [
        ("config.json", &model.config_sha256),
        ("tokenizer.json", &model.tokenizer_sha256),
        ("statistics", &model.stats_sha256),
    ];
    let known = named.into_iter().filter_map(|(name, hash)| Some((name.to_owned(), hash.clone()?)));
    known.collect()
}

/// Rows that the cache holds, and the ladder of row counts that steps were recorded for.
fn artifact(side: &Side<'_>) -> Option<Artifact> {
    let number = |key: &str| side.manifest.get(key).and_then(Value::as_u64);
    let ladder = side.manifest.get("device.row_buckets").and_then(Value::as_array);
    let artifact = Artifact {
        profile_rows: ladder.map(|rows| rows.iter().filter_map(Value::as_u64).collect()),
        capacity_rows: number("policy.max_rows").or_else(|| number("policy.capacity")),
        ..Artifact::default()
    };
    (artifact != Artifact::default()).then_some(artifact)
}

/// Finished samples, then those that only have rows.
fn samples(side: &Side<'_>) -> Option<Vec<Sample>> {
    let mut out: Vec<Sample> = side.samples.iter().map(Sample::from).collect();
    for id in &side.steps.sample_ids {
        if !out.iter().any(|sample| sample.id == *id) {
            out.push(Sample::new(id.clone()));
        }
    }
    if let Some(Value::String(name)) = side.manifest.get("prompt.template") {
        for sample in &mut out {
            sample.template = Some(name.clone());
        }
    }
    (!out.is_empty()).then_some(out)
}

fn reference(side: &Side<'_>) -> Reference {
    let text = |key: &str| side.manifest.get(key).and_then(Value::as_str).map(str::to_owned);
    // A replay that keeps every row, or follows the recorded keep-sets, has no rules of its own.
    let selects = text("replay.policy").as_deref() == Some("own");
    Reference { selector_id: text("policy.rule_set").filter(|_| selects), ..Reference::default() }
}

fn texts(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}
