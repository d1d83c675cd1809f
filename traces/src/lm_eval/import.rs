//! Samples become a run: one sample a document, its answer that of one filter.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::results;
use crate::answers::{AnswerRow, Fields, Schema, read_answers};
use crate::foreign::lines::Lines;
use crate::hash::sha256_hex;
use crate::imported::{self, IMPORTED, Keep};
use crate::store::fail::malformed;
use crate::store::is_run;
use crate::{Manifest, SampleRow, TraceError};

/// Layout's name.
pub const KIND: &str = "lm-eval";
/// Rule of an answer that is the number of the likeliest choice.
const LIKELIEST: &str = "argmax-loglikelihood";
/// Remarks that name single rows stop here.
const NAMED: usize = 5;

/// What the caller wants of a file of samples.
#[derive(Debug, Clone, Default)]
pub struct Import {
    /// Filter whose answers the samples get; without one the first of the file.
    pub filter: Option<String>,
}

/// Makes the run `out` of a file of samples. Rows of all filters stay in the kept source; a run's samples hold the answers of one.
///
/// # Errors
/// As [`read_answers`] and [`crate::store::RunWriter::create`]; [`TraceError::Malformed`] where the file is none of lm-eval's, where
/// it has not the filter asked for, and where two rows of one document and filter contradict each other.
pub fn import_samples(path: &Path, how: &Import, out: &Path) -> Result<Vec<String>, TraceError> {
    if is_run(path) {
        return Err(malformed(path, "is a run already"));
    }
    let mut read = Documents { wanted: how.filter.clone(), ..Documents::default() };
    let source = read_answers(path, &Fields::default(), |row| read.push(row))?;
    if !source.schema.is_lm_eval() {
        let what =
            format!("rows of {}, not of lm-eval: no `doc_id` with `resps`", source.schema.slug());
        return Err(malformed(path, what));
    }
    read.check(path)?;
    let mut manifest = imported::manifest(KIND, "lm-eval");
    manifest.set("trace.import_schema", source.schema.slug(), IMPORTED);
    manifest.remarks = source.remarks.clone();
    read.describe(source.schema, &mut manifest);
    if !results::describe(path, &read.hashes, &mut manifest) {
        imported::cannot(&mut manifest, "samples name no model, weights, dtype or device");
    }
    imported::write(path, out, manifest, read.samples, Keep::Rows, source.cut)
}

/// True where the first row of a file is one of lm-eval's.
#[must_use]
pub fn recognised(path: &Path) -> bool {
    let Ok(mut lines) = Lines::open(path) else { return false };
    let Ok(Some((_, text))) = lines.next() else { return false };
    let row: Result<Value, _> = serde_json::from_slice(text);
    row.is_ok_and(|row| {
        let has = |key: &str| row.get(key).is_some();
        has("doc_id") && (has("resps") || has("filtered_resps"))
    })
}

/// Documents as their rows come.
#[derive(Debug, Default)]
struct Documents {
    wanted: Option<String>,
    /// Filters in order of their first rows, with their rows.
    filters: Vec<(String, u64)>,
    /// Document and filter -> line and content of the first row.
    first: BTreeMap<(String, Option<String>), (usize, String)>,
    samples: Vec<SampleRow>,
    /// Place in `samples` by document.
    places: BTreeMap<String, usize>,
    duplicates: u64,
    conflict: Option<String>,
    likelihoods: u64,
    chats: u64,
    prompts: Vec<String>,
    /// Hashes of document, prompt and target of every row, joined.
    hashes: String,
    settings: Option<Agreed>,
}

/// Generation settings of the rows so far.
#[derive(Debug, PartialEq)]
enum Agreed {
    All(Value),
    Several,
}

impl Documents {
    fn push(&mut self, row: AnswerRow) {
        for key in ["doc_hash", "prompt_hash", "target_hash"] {
            self.hashes.push_str(row.hashes.get(key).map_or("", String::as_str));
        }
        let key = (row.id.clone(), row.filter.clone());
        if let Some((line, content)) = self.first.get(&key) {
            // Rows of unnamed filters are told apart by nothing: the first of a document is its sample's.
            if *content == row.content {
                self.duplicates += 1;
            } else if row.filter.is_some() && self.conflict.is_none() {
                self.conflict = Some(format!(
                    "lines {line} and {} hold document {} of filter `{}` with different content; keep the row that counts",
                    row.line,
                    row.id,
                    row.filter.as_deref().unwrap_or_default()
                ));
            }
            return;
        }
        self.first.insert(key, (row.line, row.content.clone()));
        let filter = row.filter.clone().unwrap_or_else(|| "none".to_owned());
        match self.filters.iter_mut().find(|(name, _)| *name == filter) {
            Some((_, rows)) => *rows += 1,
            None => self.filters.push((filter.clone(), 1)),
        }
        self.tally(&row);
        let chosen = match &self.wanted {
            Some(wanted) => *wanted == filter,
            None => self.filters.first().is_some_and(|(name, _)| *name == filter),
        };
        let place = *self.places.entry(row.id.clone()).or_insert(self.samples.len());
        if place == self.samples.len() {
            self.samples.push(SampleRow {
                prompt_ids_sha256: String::new(),
                prompt_text_sha256: row
                    .prompt
                    .as_ref()
                    .map(|prompt| sha256_hex(prompt.as_bytes()))
                    .or_else(|| row.hashes.get("prompt_hash").cloned()),
                text: row.text.clone(),
                gold: row.gold.clone(),
                ..SampleRow::bare(row.id.clone())
            });
        }
        if let Some(sample) = self.samples.get_mut(place).filter(|_| chosen) {
            (sample.answer, sample.answer_rule) = answer(row, filter);
        }
    }

    fn tally(&mut self, row: &AnswerRow) {
        self.likelihoods += u64::from(row.likelihoods.is_some());
        if let Some(prompt) = &row.prompt {
            self.chats += u64::from(is_chat(prompt));
            let stated = row.hashes.get("prompt_hash");
            if stated.is_some_and(|stated| *stated != sha256_hex(prompt.as_bytes())) {
                self.prompts.push(row.id.clone());
            }
        }
        if let Some(settings) = &row.settings {
            self.settings = Some(match self.settings.take() {
                None => Agreed::All(settings.clone()),
                Some(Agreed::All(known)) if known == *settings => Agreed::All(known),
                Some(_) => Agreed::Several,
            });
        }
    }

    fn check(&self, path: &Path) -> Result<(), TraceError> {
        if let Some(what) = &self.conflict {
            return Err(malformed(path, what.clone()));
        }
        if let Some(wanted) = &self.wanted
            && !self.filters.iter().any(|(name, _)| name == wanted)
        {
            let names: Vec<&str> = self.filters.iter().map(|(name, _)| name.as_str()).collect();
            return Err(malformed(
                path,
                format!("no filter `{wanted}`; there are {}", names.join(", ")),
            ));
        }
        Ok(())
    }

    fn describe(&self, schema: Schema, manifest: &mut Manifest) {
        let mut say = |line: String| manifest.remarks.push(line);
        let told: Vec<String> =
            self.filters.iter().map(|(name, rows)| format!("{name} ({rows} rows)")).collect();
        let chosen = self.wanted.clone().or_else(|| Some(self.filters.first()?.0.clone()));
        if self.filters.len() > 1 {
            say(format!(
                "filters: {}; the samples' answers are those of `{}`, `--filter` takes another",
                told.join(", "),
                chosen.as_deref().unwrap_or_default()
            ));
        }
        if schema == Schema::LmEvalNoFilter {
            say("rows name no filter: the first row of each document is its sample".to_owned());
        }
        if self.duplicates > 0 {
            say(format!("{} rows repeat an earlier one and are counted once", self.duplicates));
        }
        if self.likelihoods > 0 {
            say(format!(
                "{} rows hold log-likelihoods and no text: the answer is the number of the likeliest choice, the first of equal ones; \
                 the values stay in source.jsonl.gz",
                self.likelihoods
            ));
        }
        if self.chats > 0 {
            say(format!("the prompts of {} rows are chat messages as JSON text", self.chats));
        }
        if !self.prompts.is_empty() {
            let some: Vec<&str> = self.prompts.iter().take(NAMED).map(String::as_str).collect();
            say(format!(
                "prompt_hash of {} rows is not the sha256 of their prompt: {}",
                self.prompts.len(),
                some.join(", ")
            ));
        }
        manifest.set("trace.lm_eval.filter", chosen.unwrap_or_default(), IMPORTED);
        match &self.settings {
            Some(Agreed::All(settings)) => generation(settings, manifest),
            Some(Agreed::Several) => {
                manifest.remarks.push("rows were generated with several settings".to_owned());
            }
            None => {}
        }
        imported::cannot(manifest, "samples hold no token ids, no times and no seed of a sample");
    }
}

/// Generation settings under the names of a run; others keep theirs.
fn generation(settings: &Value, manifest: &mut Manifest) {
    for (key, value) in settings.as_object().into_iter().flatten() {
        let ours = match key.as_str() {
            "max_gen_toks" | "max_tokens" | "max_new_tokens" => "stop.max_new_tokens".to_owned(),
            "until" => "stop.until".to_owned(),
            other => format!("sampling.{other}"),
        };
        manifest.set(&ours, value.clone(), IMPORTED);
    }
}

/// What the filter left, or the number of the likeliest choice.
fn answer(row: AnswerRow, filter: String) -> (Option<String>, Option<String>) {
    if let Some(values) = &row.likelihoods {
        let finite = values.len() > 1 && values.iter().all(|(value, _)| !value.is_nan());
        let mut best: Option<(usize, f64)> = None;
        for (at, (value, _)) in values.iter().enumerate().filter(|_| finite) {
            if best.is_none_or(|(_, most)| *value > most) {
                best = Some((at, *value));
            }
        }
        let answer = best.map(|(at, _)| at.to_string());
        let rule = answer.is_some().then(|| LIKELIEST.to_owned());
        return (answer, rule);
    }
    let rule = row.answer.is_some().then_some(filter);
    (row.answer, rule)
}

/// Messages as `apply_chat_template` of API models leaves them.
fn is_chat(prompt: &str) -> bool {
    prompt.starts_with('[')
        && serde_json::from_str::<Vec<Value>>(prompt)
            .is_ok_and(|list| !list.is_empty() && list.iter().all(|one| one.get("role").is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::RunReader;

    fn file(name: &str) -> std::path::PathBuf {
        lockstep_testkit::data().join("interop/lm-eval").join(name)
    }

    fn import(
        path: &Path,
        filter: Option<&str>,
    ) -> Result<(tempfile::TempDir, RunReader), TraceError> {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("run");
        import_samples(path, &Import { filter: filter.map(str::to_owned) }, &out)?;
        Ok((dir, RunReader::open(&out)?))
    }

    fn answers(run: &RunReader) -> Vec<(String, Option<String>, Option<String>)> {
        let samples = run.samples().unwrap();
        samples.into_iter().map(|row| (row.sample_id, row.answer, row.answer_rule)).collect()
    }

    fn says(run: &RunReader, what: &str) -> bool {
        run.manifest().remarks.iter().any(|line| line.contains(what))
    }

    /// What the canned model of `make.py` says, read by hand.
    #[test]
    fn a_real_file_gives_one_sample_a_document_with_the_answers_of_a_filter() {
        let path = file("samples_gen.jsonl");
        let (_dir, run) = import(&path, None).unwrap();
        let row = |id: &str, answer: &str| {
            (id.to_owned(), Some(answer.to_owned()), Some("strict-match".to_owned()))
        };
        assert_eq!(
            answers(&run),
            [row("0", "4"), row("1", "[invalid]"), row("2", "8"), row("3", "[invalid]")]
        );
        let (_dir, run) = import(&path, Some("flexible-extract")).unwrap();
        let read: Vec<_> =
            answers(&run).into_iter().map(|(_, answer, _)| answer.unwrap()).collect();
        assert_eq!(read, ["4", "15", "8", "[invalid]"]);
        let sample = run.samples().unwrap().remove(0);
        assert_eq!(
            (sample.gold.as_deref(), sample.text.as_deref()),
            (Some("4"), Some("two and two\n#### 4"))
        );
        // sha256 of "Question: 2 + 2\nAnswer:", which lm-eval wrote as the prompt's hash.
        assert_eq!(
            sample.prompt_text_sha256.as_deref(),
            Some("8e62e6a6e9babf3401655b8cca2288924002bb41c52fa0ac15bfd5c7233bcc02")
        );
        let manifest = run.manifest();
        assert_eq!(manifest.get("stop.max_new_tokens").unwrap(), 32);
        assert_eq!(manifest.config["sampling.temperature"].source, "imported");
        assert!(says(&run, "strict-match (4 rows), flexible-extract (4 rows)"));
        assert!(
            import(&path, Some("loose")).unwrap_err().to_string().contains("no filter `loose`")
        );
    }

    #[test]
    fn files_are_known_by_their_first_row() {
        assert!(
            recognised(&file("samples_gen.jsonl")) && recognised(&file("samples_choice.jsonl"))
        );
        assert!(!recognised(&file("make.py")) && !recognised(&file("absent")));
    }

    #[test]
    fn choices_and_chats_of_real_files() {
        let (_dir, run) = import(&file("samples_choice.jsonl"), None).unwrap();
        let row = |id: &str| (id.to_owned(), Some("1".to_owned()), Some(LIKELIEST.to_owned()));
        assert_eq!(answers(&run), [row("0"), row("1")]);
        let samples = run.samples().unwrap();
        assert_eq!((samples[1].gold.as_deref(), &samples[1].text), (Some("0"), &None));
        assert!(says(&run, "2 rows hold log-likelihoods"));
        let (_dir, run) = import(&file("samples_chat.jsonl"), None).unwrap();
        assert!(says(&run, "the prompts of 8 rows are chat messages"));
    }

    #[test]
    fn repeated_rows_count_once_and_contradictions_are_refused() {
        let text = std::fs::read_to_string(file("samples_gen.jsonl")).unwrap();
        let first = text.lines().next().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, format!("{text}{first}\n")).unwrap();
        let (_dir, run) = import(&path, None).unwrap();
        assert_eq!(run.samples().unwrap().len(), 4);
        assert!(says(&run, "1 rows repeat an earlier one"));
        let other = first.replace("\"filtered_resps\": [\"4\"]", "\"filtered_resps\": [\"5\"]");
        std::fs::write(&path, format!("{text}{other}\n")).unwrap();
        let error = import(&path, None).unwrap_err().to_string();
        assert!(
            error.contains("lines 1 and 9 hold document 0 of filter `strict-match`"),
            "{error}"
        );
        let turned = text.replacen("Question: 2 + 2", "Question: 2 + 3", 1);
        std::fs::write(&path, turned).unwrap();
        let (_dir, run) = import(&path, None).unwrap();
        assert!(says(&run, "prompt_hash of 1 rows is not the sha256 of their prompt: 0"));
        std::fs::write(&path, "{\"id\":1,\"gold\":\"5\",\"pred\":\"5\"}\n").unwrap();
        assert!(import(&path, None).unwrap_err().to_string().contains("not of lm-eval"));
    }
}
