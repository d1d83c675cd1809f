//! Facts of artifacts that another program left: datasets, benchmark rows, bundles, configurations, logs, dumps.

use lockstep_traces::FinishReason;
use lockstep_traces::artifacts::{
    Artifact, BenchRow, BenchSchema, DatasetRow, DumpFacts, EffectiveConfig, ReplayRows, Rows,
    Summary, SummaryMethod, run_key,
};

use super::facts::{Believed, Dump, Gathered, Kind, Lines, Rate, Sample, Subject};

mod engine_facts;

/// What an artifact says; several subjects where it speaks of several runs.
#[must_use]
pub fn subjects_of(artifact: &Artifact, label: &str) -> Vec<Subject<'static>> {
    match artifact {
        Artifact::Dataset(rows) => vec![dataset(rows, label)],
        Artifact::Bench(rows) => vec![bench(rows, label)],
        Artifact::Summary(summary) => summary
            .methods
            .iter()
            .map(|(name, method)| method_of(summary, name, method, label))
            .collect(),
        Artifact::Bundle(bundle) => vec![engine_facts::bundle(bundle, label)],
        Artifact::EffectiveConfig(config) => vec![effective(config, label)],
        Artifact::Log(log) => vec![engine_facts::log(log, label)],
        Artifact::KeepDump(dump) => vec![keep_dump(dump, label)],
        Artifact::Replay(rows) => vec![replay(rows, label)],
    }
}

fn lines<T>(rows: &Rows<T>) -> Lines {
    let damaged: Vec<(u64, String)> =
        rows.polluted.iter().map(|line| (line.line as u64, line.what.clone())).collect();
    Lines {
        read: (rows.rows.len() + rows.polluted.len() + usize::from(rows.cut.is_some())) as u64,
        damaged,
    }
}

fn dataset(rows: &Rows<DatasetRow>, label: &str) -> Subject<'static> {
    let mut subject = Subject::new(label, Kind::Dataset);
    let sample = |row: &DatasetRow| Sample {
        row_index: u64::try_from(row.dataset_index.unwrap_or_else(|| row.effective_index())).ok(),
        prompt_text: Some(row.prompt.clone()),
        prompt_text_sha256: Some(row.prompt_sha256.clone()),
        seed_index: u64::try_from(row.effective_index()).ok(),
        gold: Some(row.answer.clone()),
        ..Sample::new(row.sample_id.clone())
    };
    subject.samples = Some(rows.rows.iter().map(sample).collect());
    subject.lines = Some(lines(rows));
    subject.remarks.clone_from(&rows.remarks);
    subject
}

fn bench(rows: &Rows<BenchRow>, label: &str) -> Subject<'static> {
    let mut subject = Subject::new(label, Kind::Benchmark);
    subject.samples = Some(rows.rows.iter().map(answered).collect());
    subject.lines = Some(lines(rows));
    subject.state.rows_written = Some(rows.rows.len() as u64);
    subject.state.complete = rows.cut.is_some().then_some(false);
    subject.rates = row_rate(&rows.rows).map(|rate| vec![rate]);
    // A temperature is a setting of a run: rows that do not agree on one have none in common.
    if let Some(temperature) = rows.rows.first().and_then(|row| row.temperature) {
        let bits = |row: &BenchRow| row.temperature.map(f64::to_bits);
        if rows.rows.iter().all(|row| bits(row) == Some(temperature.to_bits())) {
            subject.set("sampling.temperature", temperature, "rows");
        } else {
            subject.remarks.push("rows of several temperatures stand in one file".to_owned());
        }
    }
    subject.remarks.extend(rows.remarks.iter().cloned());
    subject
}

fn answered(row: &BenchRow) -> Sample {
    let seconds = |milliseconds: Option<f64>| milliseconds.map(|value| value / 1000.0);
    let copied = row.schema.copies_gold();
    Sample {
        row_index: row.schema.in_order().then_some(row.index as u64),
        seed_index: row.seed_index,
        effective_seed: row.effective_seed,
        gold: row.gold_answer.clone(),
        pred: row.pred_answer.clone(),
        field_answer: row.answer.clone().filter(|_| copied),
        text: Some(row.text.clone()),
        generated_ids: row.generated_token_ids.clone(),
        generated_tokens: row.generated_tokens,
        prefill_seconds: seconds(row.prefill_ms),
        decode_seconds: seconds(row.decode_ms),
        wall_seconds: seconds(row.wall_ms),
        recorded_at: row.recorded_at,
        model: row.model_sha.clone().or_else(|| row.model.clone()),
        prompt_text_sha256: row.prompt_sha256.clone(),
        finish: (row.stopped_on_boxed == Some(true)).then_some(FinishReason::Stop),
        ..Sample::new(row.sample_id.clone())
    }
}

/// The kind of rate that rows of this file state: of wall time in the transformers driver, else of decode.
fn row_rate(rows: &[BenchRow]) -> Option<Rate> {
    let row = rows.iter().find(|row| row.tokens_per_sec.is_some())?;
    let metric = if row.schema == BenchSchema::HfComparison { "wall" } else { "decode" };
    Some(Rate { metric: metric.to_owned(), tokens_per_sec: row.tokens_per_sec?, total: false })
}

fn method_of(
    summary: &Summary,
    name: &str,
    method: &SummaryMethod,
    label: &str,
) -> Subject<'static> {
    let mut subject = Subject::new(format!("{label}#{name}"), Kind::Summary);
    let samples = method.samples.iter().map(|sample| Sample {
        gold: sample.gold.clone(),
        pred: sample.pred.clone(),
        correct: sample.correct,
        generated_tokens: sample.generated_tokens,
        wall_seconds: sample.wall_ms.map(|value| value / 1000.0),
        decode_seconds: sample.decode_ms.map(|value| value / 1000.0),
        ..Sample::new(sample.sample_id.clone())
    });
    subject.samples = Some(samples.collect());
    subject.state.rows_written = Some(method.samples.len() as u64);
    subject.state.complete = summary.count.map(|count| count <= method.samples.len() as u64);
    let total = |metric: &str, rate: Option<f64>| {
        rate.map(|rate| Rate { metric: metric.to_owned(), tokens_per_sec: rate, total: true })
    };
    let rates =
        [total("wall", method.wall_tokens_per_sec), total("decode", method.decode_tokens_per_sec)];
    subject.rates = Some(rates.into_iter().flatten().collect());
    let sampling = &summary.sampling;
    let mut set = |key: &str, value: Option<serde_json::Value>| {
        if let Some(value) = value {
            subject.set(key, value, "summary");
        }
    };
    set("sampling.temperature", sampling.temperature.map(Into::into));
    set("sampling.top_k", sampling.top_k.map(Into::into));
    set("sampling.top_p", sampling.top_p.map(Into::into));
    set("sampling.min_p", sampling.min_p.map(Into::into));
    set("sampling.seed", sampling.seed.filter(|seed| *seed >= 0).map(Into::into));
    set("stop.max_new_tokens", summary.max_new_tokens.map(Into::into));
    set("stop.rule", sampling.stop_on_answer.map(|on| if on { "answer" } else { "eos" }.into()));
    let dtype = sampling.hf_dtype.as_deref().filter(|_| name == "hf");
    subject.engine.dtype = dtype.and_then(|dtype| match dtype {
        "bfloat16" => Some("bf16".to_owned()),
        "float16" => Some("f16".to_owned()),
        _ => None,
    });
    subject
}

/// Names of the engine's settings as a run of ours calls them; others keep theirs.
fn effective(config: &EffectiveConfig, label: &str) -> Subject<'static> {
    let mut subject = Subject::new(label, Kind::Config);
    for (name, setting) in &config.settings {
        subject.set(run_key(name), setting.value.clone(), &setting.source);
    }
    subject
}

/// A dump names no sample: it is the first of its run, as imported traces call it.
fn keep_dump(facts: &DumpFacts, label: &str) -> Subject<'static> {
    let dump = &facts.dump;
    let mut subject = Subject::new(label, Kind::Dump)
        .with("policy.kv_budget", dump.kv_budget, "dump")
        .with(
            "policy.divide_length",
            dump.cache_length_before.saturating_sub(dump.keep_count),
            "rows dropped",
        )
        .with("policy.recent_window", dump.recent_window, "dump")
        .with("policy.protect_prefill", dump.protect_prefill, "dump")
        .with("policy.count_prompt_tokens", dump.count_prompt_tokens, "dump")
        .with_sample(Sample {
            prompt_tokens: Some(dump.planned_prompt_length),
            ..Sample::new("sample_0")
        });
    let gathered = facts.gathered.as_ref().map(|held| Gathered {
        layers: held.caches as u64,
        heads: dump.kv_heads() as u64,
        rows: held.rows as u64,
        different: held
            .faults
            .iter()
            .map(|fault| {
                (format!("{} {}", fault.part.letter(), fault.layer), fault.different as u64)
            })
            .collect(),
        group: None,
    });
    subject.dumps = Some(vec![Dump {
        path: facts.path.display().to_string(),
        ordinal: Some(dump.compaction_index),
        absolute_position: Some(dump.absolute_position),
        rows_before: Some(dump.cache_length_before),
        keep_count: Some(dump.keep_count),
        keep: Some(dump.keep_indices_by_head.clone()),
        positions: Some(dump.cache_positions_per_head.clone()),
        files_missing: facts.missing.clone(),
        profiled: Some(dump.profile.is_some()),
        gathered,
        ..Dump::default()
    }]);
    subject
}

/// Only rows of a compressing replay say where it believed to be.
fn replay(rows: &ReplayRows, label: &str) -> Subject<'static> {
    let mut subject = Subject::new(label, Kind::Trace);
    let believed: Vec<Believed> = rows
        .rows
        .iter()
        .filter_map(|row| {
            let absolute_position = row.comp_before?.absolute_position;
            Some(Believed { position: row.position_before, absolute_position })
        })
        .collect();
    // The harness writes its policy's state in compressing mode only.
    if !believed.is_empty() {
        subject.set("policy.kind", "triattention", "comp_before");
        subject.believed = Some(believed);
    }
    subject
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(text: &str) -> Subject<'static> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, text).unwrap();
        let artifact = lockstep_traces::artifacts::read(&path).unwrap().unwrap();
        subjects_of(&artifact, "x").remove(0)
    }

    #[test]
    fn benchmark_rows_keep_a_copied_answer_apart_from_a_prediction() {
        let first = subject(
            r#"{"sample_id":"a","answer":"588","generated_tokens":4,"decode_ms":50,"wall_ms":60,"tokens_per_sec":80,"text":"t"}"#,
        );
        let sample = first.sample("a").unwrap();
        assert_eq!(
            (sample.field_answer.as_deref(), &sample.pred, &sample.gold),
            (Some("588"), &None, &None)
        );
        assert_eq!((sample.decode_seconds, sample.wall_seconds), (Some(0.05), Some(0.06)));
        assert_eq!(first.rates.as_ref().unwrap()[0].metric, "decode");
        let hf = subject(
            r#"{"sample_id":"a","gold_answer":"1","pred_answer":null,"generated_tokens":4,"wall_ms":60,"tokens_per_sec":66,"text":"t"}"#,
        );
        assert_eq!(
            (
                hf.sample("a").unwrap().gold.as_deref(),
                hf.rates.as_ref().unwrap()[0].metric.as_str()
            ),
            (Some("1"), "wall")
        );
    }

    #[test]
    fn a_dataset_gives_prompts_seeds_and_damaged_lines() {
        let set = subject(
            "10%|#\n{\"sample_id\":\"a\",\"answer\":\"1\",\"prompt\":\"p\",\"dataset_index\":7}\n",
        );
        let lines = set.lines.as_ref().unwrap();
        assert_eq!((lines.read, lines.damaged[0].0), (2, 1));
        let sample = set.sample("a").unwrap();
        assert_eq!(
            (sample.row_index, sample.seed_index, sample.gold.as_deref()),
            (Some(7), Some(1), Some("1"))
        );
    }

    #[test]
    fn a_configuration_speaks_the_names_of_a_run() {
        let config = subject(
            r#"{"triattention":{"dump_keep_path":{"value":"k.json","source":"session request"}},"runtime":{"x":{"value":1,"source":"schema default"}}}"#,
        );
        assert_eq!(
            (config.text("dump.path").as_deref(), config.count("runtime.x")),
            (Some("k.json"), Some(1))
        );
    }

    #[test]
    fn a_replay_says_where_it_believed_to_be() {
        let row = r#"{"position_before":10,"token_id":1,"rows_before":10,"rows_after":11,"argmax_token":1,"argmax_logit":1,"top_ids":[1],"top_logits":[1],"comp_before":{"absolute_position":15,"cache_positions_len":10,"prefix_length":5},"comp_after":{"absolute_position":16,"cache_positions_len":11,"prefix_length":5}}"#;
        assert_eq!(
            subject(row).believed.unwrap(),
            [Believed { position: 10, absolute_position: 15 }]
        );
    }

    #[test]
    fn a_summary_is_one_subject_a_method() {
        let text = r#"{"count":2,"sampling":{"temperature":0.6,"seed":-1,"hf_dtype":"bfloat16","stop_on_answer":true},"hf":{"wall_tokens_per_sec":7.5,"samples":[{"sample_id":"a","correct":true}]}}"#;
        let hf = subject(text);
        assert_eq!(
            (hf.label.as_str(), hf.state.complete, hf.engine.dtype.as_deref()),
            ("x#hf", Some(false), Some("bf16"))
        );
        assert_eq!(
            (hf.text("sampling.seed"), hf.text("stop.rule").as_deref()),
            (None, Some("answer"))
        );
    }
}
