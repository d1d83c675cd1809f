//! Facts of engine bundles and engine logs.

use std::collections::BTreeMap;

use lockstep_traces::EventRow;
use lockstep_traces::artifacts::{Bundle, EngineLog};
use serde_json::Value;

use super::super::facts::{Artifact, Kind, Sample, Subject};

/// A bundle: its sections, its ladder and what it declares about its policy.
pub(super) fn bundle(bundle: &Bundle, label: &str) -> Subject<'static> {
    let mut subject = Subject::new(label, Kind::Bundle);
    let sections =
        bundle.sections.iter().map(|section| (section.name.clone(), section.sha256.clone()));
    subject.artifact = Some(Artifact {
        sections: Some(sections.collect()),
        profile_rows: bundle
            .profile_rows()
            .map(|rows| rows.iter().map(|rows| u64::from(*rows)).collect()),
        capacity_rows: bundle.header.max_cache_length,
        precision: bundle.header.precision.clone(),
        builder: bundle.header.trt_version.clone(),
        gpu: bundle.header.gpu_name.clone(),
        ..Artifact::default()
    });
    subject.made.created_at.clone_from(&bundle.header.created_at);
    subject.identity = Some(bundle.sha256.clone());
    subject.declared = bundle.config.as_ref().map(|config| declared(&config.policy));
    subject
}

fn declared(policy: &BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let enabled = policy.get("enabled").and_then(Value::as_bool).unwrap_or(!policy.is_empty());
    let kind = if enabled { "triattention" } else { "dense" };
    let mut out = BTreeMap::from([("policy.kind".to_owned(), Value::from(kind))]);
    for key in
        ["kv_budget", "divide_length", "recent_window", "count_prompt_tokens", "protect_prefill"]
    {
        if let Some(value) = policy.get(key).filter(|_| enabled) {
            out.insert(format!("policy.{key}"), value.clone());
        }
    }
    out
}

/// A log: the policy's settings as it started, its compactions, the samples of a benchmark. Compactions belong to the sample
/// that is reported next; a log without samples is about the first one.
pub(super) fn log(log: &EngineLog, label: &str) -> Subject<'static> {
    let mut subject = Subject::new(label, Kind::Log);
    if let Some(init) = log.inits.first() {
        let source = "log";
        subject.set("policy.kind", "triattention", source);
        subject.set("policy.kv_budget", init.kv_budget, source);
        subject.set("policy.divide_length", init.divide_length, source);
        subject.set("policy.recent_window", init.recent_window, source);
        for (key, value) in [
            ("policy.count_prompt_tokens", init.count_prompt_tokens),
            ("policy.protect_prefill", init.protect_prefill),
        ] {
            if let Some(value) = value {
                subject.set(key, value, source);
            }
        }
        if let Some(aggregation) = &init.per_layer_aggregation {
            subject.set("policy.layer_aggregation", aggregation.as_str(), source);
        }
    }
    let samples = log.samples.iter().map(|line| Sample {
        generated_tokens: Some(line.generated_tokens),
        decode_seconds: Some(line.decode_ms / 1000.0),
        ..Sample::new(line.sample_id.clone())
    });
    subject.samples = Some(samples.collect::<Vec<_>>()).filter(|samples| !samples.is_empty());
    let prefixes: BTreeMap<u32, u32> = log
        .compactions
        .iter()
        .filter_map(|line| Some((line.absolute_position, line.kept_prefix?)))
        .collect();
    subject.kept_prefix = (!prefixes.is_empty()).then_some(prefixes);
    // Without the policy's lines nothing is known of compactions: they are written by debug and profile runs only.
    let events = events(log);
    subject.events = (!events.is_empty()).then_some(events);
    subject
        .remarks
        .extend(log.torn.iter().map(|(line, what)| format!("line {line} is torn: {what}")));
    subject.remarks.push(format!("{} lines of other kinds", log.unknown));
    subject
}

fn events(log: &EngineLog) -> Vec<EventRow> {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    log.events()
        .iter()
        .map(|line| {
            let next = log.samples.iter().find(|sample| sample.line > line.line);
            let id = next.map_or("sample_0", |sample| sample.sample_id.as_str());
            let count = counts.entry(id).or_default();
            *count += 1;
            EventRow {
                sample_id: id.to_owned(),
                ordinal: line.ordinal.unwrap_or(*count),
                absolute_position: line.absolute_position,
                round_start: None,
                rows_before: line.old_rows,
                rows_after: line.kept_rows,
                protected: 0,
                candidates: 0,
                score_seconds: 0.0,
                reduce_seconds: 0.0,
                select_seconds: 0.0,
                gather_seconds: 0.0,
                dump: None,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_traces::artifacts::{CompactLine, InitLine, SampleLine};

    #[test]
    fn a_log_gives_settings_and_numbers_compactions_by_sample() {
        let compact = |line, absolute_position| CompactLine {
            line,
            ordinal: None,
            absolute_position,
            old_rows: 320,
            kept_rows: 256,
            kept_prefix: Some(41),
        };
        let sample = |line, id: &str| SampleLine {
            line,
            sample_id: id.to_owned(),
            generated_tokens: 9,
            decode_ms: 100.0,
            tokens_per_sec: 90.0,
        };
        let init = InitLine {
            line: 1,
            kv_budget: 256,
            divide_length: 64,
            recent_window: 128,
            per_layer_aggregation: Some("mean".to_owned()),
            count_prompt_tokens: Some(true),
            protect_prefill: None,
            kv_heads: None,
            query_heads: None,
            cache_heads: None,
            layers_with_stats: None,
        };
        let read = EngineLog {
            inits: vec![init],
            compactions: vec![compact(2, 320), compact(3, 384), compact(5, 320)],
            samples: vec![sample(4, "a"), sample(6, "b")],
            ..EngineLog::default()
        };
        let subject = log(&read, "stderr");
        let seen: Vec<_> = subject
            .events
            .iter()
            .flatten()
            .map(|e| (e.sample_id.as_str(), e.ordinal, e.absolute_position))
            .collect();
        assert_eq!(seen, [("a", 1, 320), ("a", 2, 384), ("b", 1, 320)]);
        assert_eq!(
            (subject.count("policy.kv_budget"), subject.switch("policy.protect_prefill")),
            (Some(256), None)
        );
        assert_eq!(subject.kept_prefix.as_ref().and_then(|kept| kept.get(&384)), Some(&41));
    }
}
