//! One method of a comparison summary becomes a run.

use std::path::Path;

use serde_json::Value;

use crate::artifacts::{Summary, SummaryMethod, SummarySample, read_summary};
use crate::imported::{self, IMPORTED, Keep};
use crate::store::fail::malformed;
use crate::{DType, Manifest, SampleRow, TraceError};

/// Layout's name.
pub const SUMMARY: &str = "trtmc-summary";
/// Manifest key of the method.
pub const METHOD: &str = "trace.summary.method";

/// Makes the run `out` of the method `method` (`dense`, `tri`, `hf`), which may be left out where there is only one.
///
/// # Errors
/// As [`read_summary`] and [`crate::store::RunWriter::create`]; [`TraceError::Malformed`] where the method is not there or several
/// are, and where a sample stands twice.
pub fn import_summary(
    path: &Path,
    method: Option<&str>,
    out: &Path,
) -> Result<Vec<String>, TraceError> {
    let summary = read_summary(path)?;
    let names: Vec<&str> = summary.methods.keys().map(String::as_str).collect();
    let name = match (method, names.as_slice()) {
        (Some(name), _) => name,
        (None, &[only]) => only,
        (None, _) => {
            let what = format!("holds {}; say which with --method", names.join(", "));
            return Err(malformed(path, what));
        }
    };
    let chosen = summary.methods.get(name).ok_or_else(|| {
        malformed(path, format!("no method `{name}`; there are {}", names.join(", ")))
    })?;
    let producer = if name == "hf" { "transformers" } else { "trtmc" };
    let mut manifest = imported::manifest(SUMMARY, producer);
    manifest.set(METHOD, name, IMPORTED);
    settings(&summary, name, &mut manifest);
    totals(chosen, &mut manifest);
    for line in [
        "a summary holds no texts and no tokens",
        "a summary does not record bundles, effective seeds, prompts, code version, GPU or overrides",
    ] {
        imported::cannot(&mut manifest, line);
    }
    let mut samples: Vec<SampleRow> = Vec::new();
    for one in &chosen.samples {
        if samples.iter().any(|known| known.sample_id == one.sample_id) {
            let what = format!("{name}: sample `{}` stands twice", one.sample_id);
            return Err(malformed(path, what));
        }
        samples.push(sample(one));
    }
    imported::write(path, out, manifest, samples, Keep::Document, false)
}

fn sample(one: &SummarySample) -> SampleRow {
    SampleRow {
        prompt_ids_sha256: String::new(),
        gold: one.gold.clone(),
        answer: one.pred.clone(),
        answer_rule: one.pred.is_some().then(|| "trtmc".to_owned()),
        decode_seconds: one.decode_ms.map_or(0.0, |ms| ms / 1000.0),
        ..SampleRow::bare(one.sample_id.clone())
    }
}

/// Sampling and stop settings under the names of a run; a negative seed is none.
fn settings(summary: &Summary, name: &str, manifest: &mut Manifest) {
    let sampling = &summary.sampling;
    let stop = |on: bool| Value::from(if on { "answer" } else { "eos" });
    for (key, value) in [
        ("sampling.temperature", sampling.temperature.map(Value::from)),
        ("sampling.top_k", sampling.top_k.map(Value::from)),
        ("sampling.top_p", sampling.top_p.map(Value::from)),
        ("sampling.min_p", sampling.min_p.map(Value::from)),
        ("sampling.seed", sampling.seed.filter(|seed| *seed >= 0).map(Value::from)),
        ("prompt.chat_template", sampling.chat_template.map(Value::from)),
        ("prompt.thinking", sampling.enable_thinking.map(Value::from)),
        ("stop.max_new_tokens", summary.max_new_tokens.map(Value::from)),
        ("stop.rule", sampling.stop_on_answer.map(stop)),
        ("trace.summary.dataset", summary.dataset.clone().map(Value::from)),
        ("trace.summary.count", summary.count.map(Value::from)),
    ] {
        if let Some(value) = value {
            manifest.set(key, value, IMPORTED);
        }
    }
    match sampling.hf_dtype.as_deref().filter(|_| name == "hf") {
        Some("bfloat16") => manifest.dtype = Some(DType::Bf16),
        Some("float16") => manifest.dtype = Some(DType::F16),
        _ => {}
    }
}

/// Totals as stated; where the samples say otherwise, that is a remark.
fn totals(method: &SummaryMethod, manifest: &mut Manifest) {
    for (key, value) in [
        ("accuracy", method.accuracy.map(Value::from)),
        ("hf_agreement", method.hf_agreement.map(Value::from)),
        ("total_generated_tokens", method.total_generated_tokens.map(Value::from)),
        ("total_wall_ms", method.total_wall_ms.map(Value::from)),
        ("total_decode_ms", method.total_decode_ms.map(Value::from)),
        ("wall_tokens_per_sec", method.wall_tokens_per_sec.map(Value::from)),
        ("decode_tokens_per_sec", method.decode_tokens_per_sec.map(Value::from)),
    ] {
        if let Some(value) = value {
            manifest.set(&format!("trace.summary.{key}"), value, IMPORTED);
        }
    }
    let rows = method.samples.len() as u64;
    if let Some(count) = method.count.filter(|count| *count != rows) {
        manifest.remarks.push(format!("{count} samples are counted and {rows} are listed"));
    }
    let right = method.samples.iter().filter(|one| one.correct == Some(true)).count();
    // Shares are printed in full; half a sample is more than any rounding of them.
    let stated = method.accuracy.filter(|_| rows > 0);
    if let Some(stated) = stated.filter(|stated| (stated * rows as f64 - right as f64).abs() > 0.5)
    {
        manifest.remarks.push(format!(
            "accuracy {stated} is stated; {right} of {rows} samples are called correct"
        ));
    }
    let tokens: Option<u64> = method.samples.iter().map(|one| one.generated_tokens).sum();
    if let (Some(sum), Some(stated)) = (tokens, method.total_generated_tokens)
        && sum != stated
        && rows > 0
    {
        manifest
            .remarks
            .push(format!("{stated} generated tokens are stated; the samples have {sum}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::RunReader;

    const TEXT: &str = r#"{"dataset":"toy.jsonl","count":2,"max_new_tokens":12000,
        "sampling":{"temperature":0.6,"top_k":20,"top_p":0.95,"min_p":0.0,"seed":-1,"hf_dtype":"bfloat16","stop_on_answer":true},
        "tri":{"count":2,"accuracy":0.5,"total_generated_tokens":30,"samples":[
            {"sample_id":"a","gold":"1","pred":"1","correct":true,"generated_tokens":10,"decode_ms":250.0},
            {"sample_id":"b","gold":"2","pred":null,"correct":false,"generated_tokens":20,"decode_ms":null}]},
        "hf":{"count":2,"accuracy":1.0,"samples":[{"sample_id":"a","gold":"1","pred":"1","correct":true}]}}"#;

    fn import(
        text: &str,
        method: Option<&str>,
    ) -> Result<(tempfile::TempDir, RunReader), TraceError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("summary");
        std::fs::write(&path, text).unwrap();
        let out = dir.path().join("run");
        import_summary(&path, method, &out)?;
        Ok((dir, RunReader::open(&out)?))
    }

    #[test]
    fn a_method_is_a_run_with_its_samples_and_settings() {
        let (_dir, run) = import(TEXT, Some("tri")).unwrap();
        let manifest = run.manifest();
        assert_eq!(manifest.get("sampling.temperature").unwrap(), 0.6);
        assert_eq!(manifest.get("sampling.seed"), None);
        assert_eq!(manifest.get("stop.rule").unwrap(), "answer");
        assert_eq!((manifest.dtype, manifest.remarks.len()), (None, 0));
        let samples = run.samples().unwrap();
        assert_eq!((samples[0].answer.as_deref(), &samples[1].answer), (Some("1"), &None));
        assert!((samples[0].decode_seconds - 0.25).abs() < 1e-12);
    }

    #[test]
    fn totals_that_the_samples_deny_are_said_and_several_methods_must_be_told_apart() {
        let (_dir, run) = import(TEXT, Some("hf")).unwrap();
        assert_eq!(run.manifest().dtype, Some(DType::Bf16));
        assert_eq!(run.manifest().remarks, ["2 samples are counted and 1 are listed"]);
        let wrong = TEXT.replace("\"accuracy\":0.5", "\"accuracy\":1.0");
        let (_dir, run) = import(&wrong, Some("tri")).unwrap();
        assert_eq!(
            run.manifest().remarks,
            ["accuracy 1 is stated; 1 of 2 samples are called correct"]
        );
        assert!(
            import(TEXT, None)
                .unwrap_err()
                .to_string()
                .contains("hf, tri; say which with --method")
        );
        assert!(import(TEXT, Some("dense")).unwrap_err().to_string().contains("no method `dense`"));
    }
}
