//! Dataset files of TensorRT-Model-Connect's benchmark: one problem a line.

use std::path::Path;

use super::fields::Fields;
use super::jsonl::{self, Place, Rows};
use crate::TraceError;
use crate::hash::sha256_hex;

/// One problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetRow {
    /// 1-based line.
    pub line: usize,
    /// 0-based place among the lines that are not blank: what the benchmark adds to its seed where the row has no
    /// `seed_index`.
    pub index: usize,
    /// Sample.
    pub sample_id: String,
    /// Gold answer.
    pub answer: String,
    /// Prompt as text, before any chat template.
    pub prompt: String,
    /// sha256 of the prompt's UTF-8 bytes, hex.
    pub prompt_sha256: String,
    /// Problem without instruction, where the writer kept it.
    pub question: Option<String>,
    /// What the row wants to be added to the seed.
    pub seed_index: Option<i64>,
    /// Place in the dataset from which the row was taken; the transformers driver adds it to its seed.
    pub dataset_index: Option<i64>,
    /// Keys in the order of the file.
    pub keys: Vec<String>,
}

impl DatasetRow {
    /// What the benchmark adds to its base seed for this row.
    #[must_use]
    pub fn effective_index(&self) -> i64 {
        self.seed_index.unwrap_or_else(|| i64::try_from(self.index).unwrap_or(i64::MAX))
    }
}

/// Reads a dataset. A line that is no object, or lacks a string `sample_id`, `answer` or `prompt`, is kept as
/// polluted. The file does not say which template, tokenizer or seed its rows are run with.
///
/// # Errors
/// As every JSON Lines artifact: [`TraceError::Io`], [`TraceError::Malformed`], [`TraceError::Line`].
pub fn read_dataset(path: &Path) -> Result<Rows<DatasetRow>, TraceError> {
    jsonl::read(path, row)
}

fn row(place: Place, fields: Fields) -> Result<DatasetRow, String> {
    let prompt = fields.text("prompt")?;
    Ok(DatasetRow {
        line: place.line,
        index: place.index,
        sample_id: fields.text("sample_id")?,
        answer: fields.text("answer")?,
        prompt_sha256: sha256_hex(prompt.as_bytes()),
        prompt,
        question: fields.optional_text("question")?,
        seed_index: fields.optional_integer("seed_index")?,
        dataset_index: fields.optional_integer("dataset_index")?,
        keys: fields.keys(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dataset_with_a_progress_bar_before_its_row_gives_the_row_and_the_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("one.jsonl");
        let text = "Loading: 100%|##########| 30/30\n{\"dataset_index\":0,\"sample_id\":\"toy_9\",\"answer\":\"62\",\"question\":\"q\",\"prompt\":\"abc\"}\n";
        std::fs::write(&path, text).unwrap();
        let read = read_dataset(&path).unwrap();
        assert_eq!(read.polluted.len(), 1);
        assert_eq!(
            (read.polluted[0].line, read.polluted[0].head.as_str()),
            (1, "Loading: 100%|##########| 30/30")
        );
        let row = &read.rows[0];
        assert_eq!((row.line, row.index, row.dataset_index, row.seed_index), (2, 1, Some(0), None));
        assert_eq!(row.effective_index(), 1);
        // The published digest of "abc".
        assert_eq!(
            row.prompt_sha256,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn rows_without_required_keys_and_with_wrong_types_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.jsonl");
        let text = "{\"sample_id\":\"a\",\"answer\":\"1\"}\n{\"sample_id\":\"b\",\"answer\":7,\"prompt\":\"p\"}\n{\"sample_id\":\"c\",\"answer\":\"1\",\"prompt\":\"p\",\"seed_index\":\"3\"}\n{\"sample_id\":\"d\",\"answer\":\"1\",\"prompt\":\"p\",\"seed_index\":3}\n";
        std::fs::write(&path, text).unwrap();
        let read = read_dataset(&path).unwrap();
        let what: Vec<_> = read.polluted.iter().map(|p| p.what.as_str()).collect();
        assert_eq!(
            what,
            [
                "the object has no `prompt`",
                "`answer` is no string",
                "`seed_index` is no whole number"
            ]
        );
        assert_eq!(read.rows[0].effective_index(), 3);
    }
}
