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
        commit: text(&side, "producer.commit"),
        dirty: manifest.get("producer.dirty").and_then(Value::as_bool),
        diff_sha256: text(&side, "producer.diff_sha256"),
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
    // A replay that keeps every row, or follows the recorded keep-sets, has no rules of its own.
    let selects = text(side, "replay.policy").as_deref() == Some("own");
    Reference {
        selector_id: text(side, "policy.rule_set").filter(|_| selects),
        ..Reference::default()
    }
}

fn text(side: &Side<'_>, key: &str) -> Option<String> {
    side.manifest.get(key).and_then(Value::as_str).map(str::to_owned)
}

fn texts(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use lockstep_traces::DType;

    use super::*;
    use crate::testing::{dense, event};

    #[test]
    fn a_run_says_who_made_it_with_what_and_what_came_out() {
        let mut trace = dense(4, 6).dtype(DType::Bf16);
        trace.manifest.producer.binary_sha256 = Some("ab".repeat(32));
        trace.manifest.model.tokenizer_sha256 = Some("cd".repeat(32));
        trace.manifest.set("producer.commit", "1f2e", "build");
        trace.manifest.set("producer.dirty", true, "build");
        trace.manifest.set("sampling.sm_count", 132, "default");
        trace.manifest.set("run.samples", vec!["s", "t"], "flag");
        trace.samples[0].effective_seed = Some(9);
        trace.events.push(event(1, 8, 8, 4));
        let side = trace.side();
        let subject = subject_of(side, Some("ef".repeat(32)));
        assert_eq!((subject.kind, subject.label.as_str()), (Kind::Run, "test"));
        assert_eq!(subject.made.commit.as_deref(), Some("1f2e"));
        assert_eq!((subject.made.dirty, subject.made.diff_sha256.as_deref()), (Some(true), None));
        assert_eq!(subject.engine.dtype.as_deref(), Some("bf16"));
        assert_eq!(subject.engine.sm_count, Some(132));
        assert_eq!(subject.engine.files["tokenizer.json"], "cd".repeat(32));
        assert_eq!(subject.state.rows_written, Some(10));
        assert_eq!(
            subject.state.expected_ids.as_deref(),
            Some(["s".to_owned(), "t".to_owned()].as_slice())
        );
        assert_eq!(subject.events_of("s").count(), 1);
        let sample = subject.sample("s").unwrap();
        assert_eq!((sample.prompt_tokens, sample.effective_seed), (Some(4), Some(9)));
        assert_eq!((sample.decode_seconds, sample.gold.as_deref()), (None, None));
        // Rows 4 to 9 are fed 103 to 108.
        assert_eq!(subject.stream("s").unwrap(), [103, 104, 105, 106, 107, 108]);
    }

    #[test]
    fn a_replay_has_rules_of_its_own_only_where_it_selects() {
        let mut trace = dense(4, 6);
        trace.manifest.producer.name = "lockstep-reference".to_owned();
        trace.manifest.set("policy.rule_set", "hf", "manifest");
        trace.manifest.set("replay.policy", "recorded", "flag");
        let rules = |trace: &mut crate::testing::Trace| {
            let subject = subject_of(trace.side(), None);
            assert_eq!(subject.kind, Kind::Replay);
            subject.reference.unwrap().selector_id
        };
        assert_eq!(rules(&mut trace), None);
        trace.manifest.set("replay.policy", "own", "flag");
        assert_eq!(rules(&mut trace).as_deref(), Some("hf"));
    }
}
