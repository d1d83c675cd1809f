//! Benchmark output rows become a run: samples without steps.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::artifacts::{BenchRow, BenchSchema, Rows, read_bench};
use crate::imported::{self, IMPORTED, Keep};
use crate::limits::TokenIds;
use crate::store::fail::malformed;
use crate::{FinishReason, Manifest, SampleRow, TraceError};

/// Layout's name.
pub const ROWS: &str = "trtmc-rows";
/// Rule of the recorded predictions, and that of the upstream harness: the last balanced box, and nothing where there is none.
const RULE: &str = "trtmc";
const UPSTREAM_RULE: &str = "upstream-boxed";

/// Makes the run `out` of output rows of any generation. A cut file gives an incomplete run; lines that are no rows are said.
/// Where an id comes with several `seed_index`, its samples are `ID#INDEX`.
///
/// # Errors
/// As [`read_bench`] and [`crate::store::RunWriter::create`]; [`TraceError::Line`] where two rows of one id contradict each other;
/// [`TraceError::Malformed`] for a file without rows.
pub fn import_rows(path: &Path, out: &Path) -> Result<Vec<String>, TraceError> {
    let read = read_bench(path)?;
    if read.rows.is_empty() {
        return Err(malformed(
            path,
            "no output row: each line is an object with a text and an answer",
        ));
    }
    let mut manifest = imported::manifest(ROWS, producer(&read.rows));
    manifest.remarks = remarks(&read);
    let samples = samples(path, &read, &mut manifest)?;
    describe(&read.rows, &mut manifest);
    imported::write(path, out, manifest, samples, Keep::Rows, read.cut.is_some())
}

/// Who writes such rows.
fn producer(rows: &[BenchRow]) -> &'static str {
    match rows.first().map(|row| row.schema) {
        Some(BenchSchema::HfComparison) => "transformers",
        Some(BenchSchema::UpstreamLive) => "triattention-upstream",
        Some(BenchSchema::Responses) => "unknown",
        _ => "trtmc",
    }
}

fn remarks(read: &Rows<BenchRow>) -> Vec<String> {
    let mut remarks = read.remarks.clone();
    for line in &read.polluted {
        remarks.push(format!("line {} is no row ({}): {}", line.line, line.what, line.head));
    }
    let mut schemas: BTreeMap<BenchSchema, usize> = BTreeMap::new();
    for row in &read.rows {
        *schemas.entry(row.schema).or_default() += 1;
    }
    if schemas.len() > 1 {
        let told: Vec<String> =
            schemas.iter().map(|(schema, rows)| format!("{rows} {}", schema.slug())).collect();
        remarks.push(format!("rows of several generations stand in one file: {}", told.join(", ")));
    }
    let copied = schemas.get(&BenchSchema::AnswerOnly).copied().unwrap_or_default();
    if copied > 0 {
        remarks.push(format!(
            "`answer` of {copied} rows is the gold answer, copied: these rows hold no prediction"
        ));
    }
    remarks
}

/// One sample a row; a row that comes twice with the same content counts once.
fn samples(
    path: &Path,
    read: &Rows<BenchRow>,
    manifest: &mut Manifest,
) -> Result<Vec<SampleRow>, TraceError> {
    let mut indices: BTreeMap<&str, Vec<Option<u64>>> = BTreeMap::new();
    for row in &read.rows {
        let known = indices.entry(&row.sample_id).or_default();
        if !known.contains(&row.seed_index) {
            known.push(row.seed_index);
        }
    }
    let mut first: BTreeMap<String, &BenchRow> = BTreeMap::new();
    let mut out = Vec::new();
    for row in &read.rows {
        let several = indices.get(row.sample_id.as_str()).is_some_and(|known| known.len() > 1);
        let id = match row.seed_index.filter(|_| several) {
            Some(index) => format!("{}#{index}", row.sample_id),
            None => row.sample_id.clone(),
        };
        match first.get(&id) {
            Some(known) if same(known, row) => manifest.remarks.push(format!(
                "line {} repeats line {} (`{id}`) and is counted once",
                row.line, known.line
            )),
            Some(known) => {
                let what = format!(
                    "`{id}` stands on line {} with other content; keep the row that counts",
                    known.line
                );
                return Err(TraceError::Line { path: path.to_owned(), line: row.line, what });
            }
            None => {
                out.push(sample(row, &id));
                first.insert(id, row);
            }
        }
    }
    Ok(out)
}

/// Equal but for their place.
fn same(one: &BenchRow, other: &BenchRow) -> bool {
    *one == BenchRow { line: one.line, index: one.index, ..other.clone() }
}

fn sample(row: &BenchRow, id: &str) -> SampleRow {
    let seconds = |ms: Option<f64>| ms.map_or(0.0, |ms| ms / 1000.0);
    let copied = row.schema.copies_gold();
    let rule = if row.schema == BenchSchema::UpstreamLive { UPSTREAM_RULE } else { RULE };
    SampleRow {
        prompt_ids_sha256: String::new(),
        prompt_text_sha256: row.prompt_sha256.clone(),
        seed_index: row.seed_index,
        effective_seed: row.effective_seed,
        generated_ids: row.generated_token_ids.clone().unwrap_or_default(),
        text: Some(row.text.clone()),
        gold: if copied { row.answer.clone() } else { row.gold_answer.clone() },
        answer: row.pred_answer.clone(),
        answer_rule: row.pred_answer.is_some().then(|| rule.to_owned()),
        finish: if row.stopped_on_boxed == Some(true) {
            FinishReason::Stop
        } else {
            FinishReason::Unknown
        },
        prefill_seconds: seconds(row.prefill_ms),
        decode_seconds: seconds(row.decode_ms),
        ..SampleRow::bare(id)
    }
}

/// What all rows agree on, and what none says.
fn describe(rows: &[BenchRow], manifest: &mut Manifest) {
    let mut schemas: Vec<&str> = rows.iter().map(|row| row.schema.slug()).collect();
    schemas.dedup();
    manifest.set("trace.import_schema", schemas.join(", "), IMPORTED);
    let agreed = |of: &dyn Fn(&BenchRow) -> Option<Value>| -> Option<Value> {
        let value = of(rows.first()?)?;
        rows.iter().all(|row| of(row).as_ref() == Some(&value)).then_some(value)
    };
    for (key, value) in [
        ("sampling.temperature", agreed(&|row| row.temperature.map(Value::from))),
        ("trace.rows.model", agreed(&|row| row.model.clone().map(Value::from))),
        ("trace.rows.model_sha", agreed(&|row| row.model_sha.clone().map(Value::from))),
    ] {
        if let Some(value) = value {
            manifest.set(key, value, IMPORTED);
        }
    }
    let with_ids = rows.iter().filter(|row| row.generated_token_ids.is_some()).count();
    if with_ids == rows.len() {
        manifest.limits.token_ids = TokenIds::Given;
    } else {
        imported::cannot(manifest, format!("{with_ids} of {} rows have token ids", rows.len()));
    }
    for (what, known) in [
        ("effective seed", rows.iter().all(|row| row.effective_seed.is_some())),
        ("temperature", rows.iter().all(|row| row.temperature.is_some())),
        ("prompt or its hash", rows.iter().all(|row| row.prompt_sha256.is_some())),
        ("time of prefill", rows.iter().all(|row| row.prefill_ms.is_some())),
        ("time of decode", rows.iter().all(|row| row.decode_ms.is_some())),
        ("stop reason", rows.iter().all(|row| row.stopped_on_boxed == Some(true))),
        ("prediction", rows.iter().all(|row| !row.schema.copies_gold())),
    ] {
        if !known {
            imported::cannot(manifest, format!("not every row says its {what}"));
        }
    }
    imported::cannot(manifest, "rows name no bundle, engine, code version or GPU");
    let counted = |row: &BenchRow| match (&row.generated_token_ids, row.generated_tokens) {
        (Some(ids), Some(count)) if ids.len() as u64 != count => Some((ids.len(), count)),
        _ => None,
    };
    for row in rows {
        if let Some((ids, count)) = counted(row) {
            manifest.remarks.push(format!(
                "line {} (`{}`) counts {count} generated tokens and lists {ids}",
                row.line, row.sample_id
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Values;
    use crate::store::RunReader;

    const FIRST: &str = r#"{"sample_id":"toy_2","answer":"588","generated_tokens":4,"prefill_ms":20.0,"decode_ms":50.0,"wall_ms":75.0,"tokens_per_sec":80.0,"text":"so 4"}"#;
    const SECOND: &str = r#"{"sample_id":"toy_2","gold_answer":"588","pred_answer":"4","generated_tokens":4,"prefill_ms":20.0,"decode_ms":50.0,"wall_ms":75.0,"tokens_per_sec":80.0,"text":"so 4"}"#;
    const THIRD: &str = r#"{"sample_id":"toy_4","gold_answer":"12","pred_answer":"","generated_tokens":3,"generated_token_ids":[785,1156,2613],"setup_ms":1.204,"prefill_ms":36.5,"decode_ms":5150.25,"wall_ms":5189.0,"tokens_per_sec":0.58,"text":"First"}"#;

    fn run(text: &str) -> Result<(tempfile::TempDir, RunReader, Vec<String>), TraceError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows");
        std::fs::write(&path, text).unwrap();
        let out = dir.path().join("run");
        let remarks = import_rows(&path, &out)?;
        let run = RunReader::open(&out)?;
        Ok((dir, run, remarks))
    }

    #[test]
    fn rows_of_the_first_date_have_gold_and_no_answer() {
        let (_dir, run, remarks) = run(FIRST).unwrap();
        let sample = run.samples().unwrap().remove(0);
        assert_eq!((sample.gold.as_deref(), &sample.answer), (Some("588"), &None));
        assert!((sample.prefill_seconds - 0.02).abs() < 1e-12);
        assert!((sample.decode_seconds - 0.05).abs() < 1e-12);
        assert!(remarks.iter().any(|line| line.contains("hold no prediction")), "{remarks:?}");
        let limits = &run.manifest().limits;
        assert_eq!(
            (limits.values, limits.token_ids, limits.rows),
            (Values::Nothing, TokenIds::Nothing, false)
        );
        assert!(limits.cannot.iter().any(|line| line.contains("prediction")));
    }

    #[test]
    fn rows_of_the_second_date_have_both_answers() {
        let (_dir, run, _) = run(SECOND).unwrap();
        let sample = run.samples().unwrap().remove(0);
        assert_eq!(
            (sample.gold.as_deref(), sample.answer.as_deref(), sample.answer_rule.as_deref()),
            (Some("588"), Some("4"), Some("trtmc"))
        );
        assert_eq!(sample.text.as_deref(), Some("so 4"));
    }

    #[test]
    fn rows_of_the_third_date_have_their_tokens() {
        let (_dir, run, _) = run(THIRD).unwrap();
        let sample = run.samples().unwrap().remove(0);
        assert_eq!(sample.generated_ids, [785, 1156, 2613]);
        assert_eq!((sample.answer, sample.answer_rule), (None, None));
        assert!((sample.decode_seconds - 5.150_25).abs() < 1e-12);
        assert_eq!(run.manifest().limits.token_ids, TokenIds::Given);
        assert_eq!(run.manifest().get("trace.import_schema").unwrap(), "with_token_ids");
    }

    #[test]
    fn settings_that_all_rows_state_reach_the_manifest() {
        let row = |id: &str, seed: u64, heat: f64| {
            THIRD.replace("toy_4", id).replace(
                "\"setup_ms\"",
                &format!("\"effective_seed\":{seed},\"temperature\":{heat},\"setup_ms\""),
            )
        };
        let (_dir, one, _) = run(&[row("a", 1234, 0.6), row("b", 1235, 0.6)].join("\n")).unwrap();
        assert_eq!(one.manifest().config["sampling.temperature"].value, 0.6);
        assert_eq!(one.manifest().config["sampling.temperature"].source, "imported");
        assert_eq!(one.samples().unwrap()[1].effective_seed, Some(1235));
        let (_dir, other, _) = run(&[row("a", 1234, 0.6), row("b", 1235, 0.7)].join("\n")).unwrap();
        assert_eq!(other.manifest().get("sampling.temperature"), None);
    }

    #[test]
    fn repeats_cuts_and_contradictions() {
        let (_dir, twice, remarks) = run(&format!("{SECOND}\n{SECOND}\n")).unwrap();
        assert_eq!(twice.samples().unwrap().len(), 1);
        assert!(remarks.iter().any(|line| line.contains("line 2 repeats line 1")), "{remarks:?}");
        let other = SECOND.replace("\"pred_answer\":\"4\"", "\"pred_answer\":\"5\"");
        let error = run(&format!("{SECOND}\n{other}\n")).unwrap_err().to_string();
        assert!(error.contains("rows:2: `toy_2` stands on line 1 with other content"), "{error}");
        let seeded = |at: u8| other.replace("\"text\"", &format!("\"seed_index\":{at},\"text\""));
        let (_dir, run_of_two, _) = run(&[seeded(0), seeded(1)].join("\n")).unwrap();
        assert_eq!(run_of_two.sample_ids().unwrap(), ["toy_2#0", "toy_2#1"]);
        let (_dir, cut, _) = run(&format!("{SECOND}\n{}", &THIRD[..60])).unwrap();
        assert!(!cut.is_complete());
        assert_eq!(cut.samples().unwrap().len(), 1);
        assert!(run("{\"sample_id\":\"a\"}\n").is_err());
    }

    #[test]
    fn the_source_is_kept_and_a_changed_copy_is_refused() {
        let (_dir, run, _) = run(THIRD).unwrap();
        let kept = imported::kept(run.dir(), run.manifest()).unwrap().unwrap();
        assert_eq!(read_bench(&kept).unwrap().rows.len(), 1);
        std::fs::write(&kept, THIRD.replace("12", "13")).unwrap();
        assert!(imported::kept(run.dir(), run.manifest()).is_err());
    }
}
