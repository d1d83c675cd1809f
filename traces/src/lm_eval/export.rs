//! A run's samples as lm-eval writes them.

use std::io::Write as _;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::hash::sha256_hex;
use crate::store::fail::{io, malformed};
use crate::store::{RunReader, replace_file};
use crate::{SampleRow, TraceError};

/// Writes the samples of `run` to `path`, one row a sample, and returns what was left out, one line each.
///
/// `doc_id` is the place of the sample, `sample_id` beside it its name, `doc` what the run knows of the question. Hashes are
/// lm-eval's: sha256 of `json.dumps(doc, indent=2, ensure_ascii=False)`, of the prompt's text (which a run records as a hash) and of
/// the target; a hash of what the run does not know is left out. `exact_match` is 1 where answer and gold are equal as text, as
/// that metric without options has it; it is left out where one of them is missing.
///
/// # Errors
/// [`TraceError::Malformed`] for a run without samples; [`TraceError::Io`].
pub fn export_samples(run: &RunReader, path: &Path) -> Result<Vec<String>, TraceError> {
    let samples = run.samples()?;
    if samples.is_empty() {
        return Err(malformed(run.dir(), "no sample has ended: there is nothing to write"));
    }
    // A sample without an answer names no rule: it goes with the others, so that one filter holds the whole run.
    let filter = samples.iter().find_map(|one| one.answer_rule.as_deref()).unwrap_or("none");
    replace_file(path, |file| {
        let mut out = std::io::BufWriter::new(file);
        for (at, sample) in samples.iter().enumerate() {
            serde_json::to_writer(&mut out, &row(at, sample, filter))
                .map_err(std::io::Error::from)
                .and_then(|()| out.write_all(b"\n"))
                .map_err(io(path))?;
        }
        out.flush().map_err(io(path))
    })?;
    Ok(remarks(&samples))
}

fn remarks(samples: &[SampleRow]) -> Vec<String> {
    let lacking = |what: &str, of: &dyn Fn(&SampleRow) -> bool| {
        let count = samples.iter().filter(|sample| of(sample)).count();
        (count > 0).then(|| format!("{count} of {} samples have no {what}", samples.len()))
    };
    let mut remarks = vec![
        "a run holds no prompts: `arguments` is empty, and `prompt_hash` is the recorded hash of the prompt's text".to_owned(),
    ];
    remarks.extend(lacking("prompt text hash: `prompt_hash` is left out", &|one| {
        one.prompt_text_sha256.is_none()
    }));
    remarks.extend(lacking("gold answer: `target_hash` and the metric are left out", &|one| {
        one.gold.is_none()
    }));
    remarks.extend(lacking("answer: `filtered_resps` is empty", &|one| one.answer.is_none()));
    let rules: std::collections::BTreeSet<&str> =
        samples.iter().filter_map(|one| one.answer_rule.as_deref()).collect();
    if rules.len() > 1 {
        let rules: Vec<&str> = rules.into_iter().collect();
        remarks.push(format!(
            "answers were read by several rules, each a filter: {}",
            rules.join(", ")
        ));
    }
    remarks
}

fn row(at: usize, sample: &SampleRow, filter: &str) -> Value {
    let doc = json!({"gold": sample.gold, "sample_id": sample.sample_id});
    let mut row = Map::new();
    let mut set = |key: &str, value: Value| row.insert(key.to_owned(), value);
    set("doc_id", at.into());
    set("sample_id", sample.sample_id.as_str().into());
    set("target", sample.gold.clone().into());
    set("arguments", json!({}));
    set("resps", json!([sample.text.iter().collect::<Vec<_>>()]));
    set("filtered_resps", json!(sample.answer.iter().collect::<Vec<_>>()));
    set("filter", sample.answer_rule.as_deref().unwrap_or(filter).into());
    set("doc_hash", sha256_hex(indented(&doc).as_bytes()).into());
    if let Some(hash) = &sample.prompt_text_sha256 {
        set("prompt_hash", hash.as_str().into());
    }
    if let Some(gold) = &sample.gold {
        set("target_hash", sha256_hex(gold.as_bytes()).into());
    }
    let judged = sample.gold.as_ref().zip(sample.answer.as_ref());
    set("metrics", if judged.is_some() { json!(["exact_match"]) } else { json!([]) });
    if let Some((gold, answer)) = judged {
        set("exact_match", f64::from(u8::from(gold == answer)).into());
    }
    set("doc", doc);
    Value::Object(row)
}

/// `json.dumps(value, indent=2, ensure_ascii=False)`: serde's pretty form is the same but for its order of keys, which here is
/// that of the value.
fn indented(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::{Fields, read_answers};
    use crate::lm_eval::{Import, import_samples};
    use crate::manifest::{Manifest, Producer};
    use crate::store::RunWriter;
    use crate::{RecordPlan, TraceSink as _};

    #[test]
    fn hashes_are_those_that_lm_eval_computes() {
        // From a file of lm_eval 0.4.13 (samples_gen.jsonl of the test data).
        let doc = json!({"question": "2 + 2", "answer": "4"});
        let text = std::fs::read_to_string(
            lockstep_testkit::data().join("interop/lm-eval/samples_gen.jsonl"),
        )
        .unwrap();
        // Key order is part of the hash: it is taken from the file's own text.
        let written = "{\n  \"question\": \"2 + 2\",\n  \"answer\": \"4\"\n}";
        let hash = sha256_hex(written.as_bytes());
        assert!(text.lines().next().unwrap().contains(&hash));
        assert_eq!(indented(&doc).len(), written.len());
        let target = sha256_hex(b"4");
        assert!(text.lines().next().unwrap().contains(&format!("\"target_hash\": \"{target}\"")));
    }

    #[test]
    fn what_is_written_reads_back_as_the_same_answers() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let manifest = Manifest::new(Producer::default(), "cpu");
        let mut writer = RunWriter::create(&run, manifest, RecordPlan::default()).unwrap();
        let mut one = SampleRow::bare("toy_4");
        (one.gold, one.answer) = (Some("62".to_owned()), Some("62".to_owned()));
        (one.text, one.answer_rule) =
            (Some("so \\boxed{62}".to_owned()), Some("last-boxed".to_owned()));
        one.prompt_text_sha256 = Some("ab".repeat(32));
        let mut two = SampleRow::bare("toy_5");
        (two.gold, two.answer, two.text) = (Some("7".to_owned()), None, Some("\u{e9}".to_owned()));
        writer.sample(one).unwrap();
        writer.sample(two).unwrap();
        writer.finish().unwrap();
        let out = dir.path().join("samples.jsonl");
        let remarks = export_samples(&RunReader::open(&run).unwrap(), &out).unwrap();
        assert!(
            remarks.iter().any(|line| line.starts_with("1 of 2 samples have no prompt text hash"))
        );
        assert!(remarks.iter().any(|line| line.starts_with("1 of 2 samples have no answer")));
        let mut rows = Vec::new();
        let source = read_answers(&out, &Fields::default(), |row| rows.push(row)).unwrap();
        assert!(source.schema.is_lm_eval());
        assert_eq!((rows[0].id.as_str(), rows[1].id.as_str()), ("toy_4", "toy_5"));
        assert_eq!(rows[0].metric, Some(("exact_match".to_owned(), 1.0)));
        assert_eq!(
            (rows[0].filter.as_deref(), rows[1].filter.as_deref()),
            (Some("last-boxed"), Some("last-boxed"))
        );
        // python: hashlib.sha256(json.dumps({"gold": "62", "sample_id": "toy_4"}, indent=2, ensure_ascii=False).encode()).hexdigest()
        assert_eq!(
            rows[0].hashes["doc_hash"],
            "11892ece551968753ab87c0e946199045ba9d089ff8077beba11ea1d13d48727"
        );
        let again = dir.path().join("again");
        import_samples(&out, &Import::default(), &again).unwrap();
        let samples = RunReader::open(&again).unwrap().samples().unwrap();
        assert_eq!(
            (samples[0].answer.as_deref(), samples[0].gold.as_deref()),
            (Some("62"), Some("62"))
        );
        assert_eq!((&samples[1].answer, samples[1].text.as_deref()), (&None, Some("\u{e9}")));
        assert_eq!(samples[0].prompt_text_sha256, Some("ab".repeat(32)));
    }
}
