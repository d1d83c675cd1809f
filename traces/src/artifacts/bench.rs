//! Benchmark output rows: one answered problem a line, in every generation of their schema.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::fields::Fields;
use super::jsonl::{self, Place, Rows};
use crate::TraceError;

/// Generation of an output row, told by its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BenchSchema {
    /// TensorRT-Model-Connect, first: `answer` and no prediction. The `answer` is the gold one, copied.
    AnswerOnly,
    /// TensorRT-Model-Connect, second: `gold_answer` and `pred_answer`.
    Predicted,
    /// TensorRT-Model-Connect, third: with `generated_token_ids` and `setup_ms`.
    WithTokenIds,
    /// The transformers comparison driver: wall time only, its rate is per wall second.
    HfComparison,
    /// The upstream single-sample harness: `stopped_on_boxed`.
    UpstreamLive,
    /// Responses with model, prompt hash and a time stamp.
    Responses,
}

impl BenchSchema {
    /// The generation that the keys of a row tell; `None` where they are those of no output row. The one place where generations
    /// are told apart.
    pub(crate) fn of(has: impl Fn(&str) -> bool) -> Option<Self> {
        if has("response") && has("id") {
            return Some(Self::Responses);
        }
        if !has("text") {
            return None;
        }
        match (has("gold_answer") || has("pred_answer"), has("answer")) {
            (true, _) if has("stopped_on_boxed") => Some(Self::UpstreamLive),
            (true, _) if has("generated_token_ids") => Some(Self::WithTokenIds),
            (true, _) if has("prefill_ms") || has("decode_ms") => Some(Self::Predicted),
            (true, _) => Some(Self::HfComparison),
            (false, true) => Some(Self::AnswerOnly),
            (false, false) => None,
        }
    }

    /// The field `answer` of such rows is the gold answer, copied.
    #[must_use]
    pub const fn copies_gold(self) -> bool {
        matches!(self, Self::AnswerOnly)
    }

    /// Written by the engine's own benchmark, row by row in the order of its dataset; the transformers driver shards its rows.
    #[must_use]
    pub const fn in_order(self) -> bool {
        matches!(self, Self::AnswerOnly | Self::Predicted | Self::WithTokenIds)
    }

    /// Name in manifests: that of the serialised form.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::AnswerOnly => "answer_only",
            Self::Predicted => "predicted",
            Self::WithTokenIds => "with_token_ids",
            Self::HfComparison => "hf_comparison",
            Self::UpstreamLive => "upstream_live",
            Self::Responses => "responses",
        }
    }
}

/// One answered problem. What a generation does not write is `None`; no generation of the engine's writes the effective seed,
/// the temperature, the prompt, the stop reason or the artifact that was run, though rows that other drivers derive from them do.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchRow {
    /// 1-based line.
    pub line: usize,
    /// 0-based place in the file.
    pub index: usize,
    /// Generation.
    pub schema: BenchSchema,
    /// Keys in the order of the file.
    pub keys: Vec<String>,
    /// Sample.
    pub sample_id: String,
    /// `answer`, as written.
    pub answer: Option<String>,
    /// `gold_answer`.
    pub gold_answer: Option<String>,
    /// `pred_answer`; an empty one, which the engine writes where it found none, is `None`.
    pub pred_answer: Option<String>,
    /// Number of generated tokens, as counted by the writer.
    pub generated_tokens: Option<u64>,
    /// The tokens.
    pub generated_token_ids: Option<Vec<u32>>,
    /// Milliseconds of setup.
    pub setup_ms: Option<f64>,
    /// Milliseconds of prefill.
    pub prefill_ms: Option<f64>,
    /// Milliseconds of decode.
    pub decode_ms: Option<f64>,
    /// Milliseconds on the wall.
    pub wall_ms: Option<f64>,
    /// Rate as written: per second of decode, or of wall time in [`BenchSchema::HfComparison`].
    pub tokens_per_sec: Option<f64>,
    /// Time stamp, in the writer's unit.
    pub recorded_at: Option<f64>,
    /// Index that was added to the base seed.
    pub seed_index: Option<u64>,
    /// Seed in force.
    pub effective_seed: Option<u64>,
    /// Temperature.
    pub temperature: Option<f64>,
    /// Generated text, lossy where its bytes are no UTF-8; empty where it is null.
    pub text: String,
    /// Generation stopped at a box.
    pub stopped_on_boxed: Option<bool>,
    /// Model name.
    pub model: Option<String>,
    /// Model hash.
    pub model_sha: Option<String>,
    /// sha256 of the prompt.
    pub prompt_sha256: Option<String>,
}

/// Reads output rows of any generation. A killed run leaves a valid prefix or one cut line.
///
/// # Errors
/// As every JSON Lines artifact: [`TraceError::Io`], [`TraceError::Malformed`], [`TraceError::Line`].
pub fn read_bench(path: &Path) -> Result<Rows<BenchRow>, TraceError> {
    jsonl::read(path, row)
}

fn row(place: Place, fields: Fields) -> Result<BenchRow, String> {
    let schema = schema(&fields)?;
    let responses = schema == BenchSchema::Responses;
    let (id, text) = if responses { ("id", "response") } else { ("sample_id", "text") };
    let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
    Ok(BenchRow {
        line: place.line,
        index: place.index,
        schema,
        keys: fields.keys(),
        sample_id: fields.text(id)?,
        answer: fields.optional_text("answer")?,
        gold_answer: fields.optional_text("gold_answer")?,
        pred_answer: filled(fields.optional_text("pred_answer")?),
        generated_tokens: fields.optional_count("generated_tokens")?,
        generated_token_ids: fields.optional_ids("generated_token_ids")?,
        setup_ms: fields.optional_number("setup_ms")?,
        prefill_ms: fields.optional_number("prefill_ms")?,
        decode_ms: fields.optional_number("decode_ms")?,
        wall_ms: fields.optional_number("wall_ms")?,
        tokens_per_sec: fields.optional_number("tokens_per_sec")?,
        recorded_at: fields.optional_number("t")?,
        seed_index: fields.optional_count("seed_index")?,
        effective_seed: fields.optional_count("effective_seed")?,
        temperature: fields.optional_number("temperature")?,
        text: fields.optional_text(text)?.unwrap_or_default(),
        stopped_on_boxed: fields.optional_flag("stopped_on_boxed")?,
        model: fields.optional_text("model")?,
        model_sha: fields.optional_text("model_sha")?,
        prompt_sha256: fields.optional_text("prompt_sha256")?,
    })
}

fn schema(fields: &Fields) -> Result<BenchSchema, String> {
    BenchSchema::of(|key| fields.has(key)).ok_or_else(|| {
        if fields.has("text") {
            "the object has none of `answer`, `gold_answer` and `pred_answer`".to_owned()
        } else {
            "the object has no `text`: it is no output row".to_owned()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const THIRD: &str = r#"{"sample_id":"toy_4","gold_answer":"12","pred_answer":"12","generated_tokens":3,"generated_token_ids":[785,1156,2613],"setup_ms":1.204000,"prefill_ms":36.118000,"decode_ms":5150.220000,"wall_ms":5189.004000,"tokens_per_sec":79.996583,"text":"First count\n\\boxed{12}"}"#;

    fn read_text(text: &str) -> Rows<BenchRow> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.jsonl");
        std::fs::write(&path, text).unwrap();
        read_bench(&path).unwrap()
    }

    #[test]
    fn the_keys_tell_the_generation() {
        let second = THIRD
            .replace("\"generated_token_ids\":[785,1156,2613],", "")
            .replace("\"setup_ms\":1.204000,", "");
        let first =
            second.replace("\"gold_answer\":\"12\",\"pred_answer\":\"12\"", "\"answer\":\"588\"");
        let hf = second.replace("\"prefill_ms\":36.118000,\"decode_ms\":5150.220000,", "");
        let live = hf.replace("\"wall_ms\"", "\"stopped_on_boxed\":true,\"wall_ms\"");
        let response = r#"{"id":"q0","model":"m-A","model_sha":"aaa1","prompt_sha256":"7a","response":"text 0","t":1000}"#;
        let file = [&first, &second, THIRD, &hf, &live, response].join("\n");
        let read = read_text(&file);
        let schemas: Vec<_> = read.rows.iter().map(|row| row.schema).collect();
        use BenchSchema as S;
        let wanted = [
            S::AnswerOnly,
            S::Predicted,
            S::WithTokenIds,
            S::HfComparison,
            S::UpstreamLive,
            S::Responses,
        ];
        assert_eq!(schemas, wanted);
        assert_eq!(read.rows[0].answer.as_deref(), Some("588"));
        assert_eq!((&read.rows[0].gold_answer, &read.rows[0].pred_answer), (&None, &None));
        assert_eq!(read.rows[0].keys[1], "answer");
        assert_eq!(read.rows[4].stopped_on_boxed, Some(true));
        assert_eq!(read.rows[5].recorded_at, Some(1000.0));
    }

    #[test]
    fn a_row_has_what_its_line_says() {
        let row = read_text(THIRD).rows.remove(0);
        assert_eq!(row.generated_token_ids, Some(vec![785, 1156, 2613]));
        assert_eq!((row.setup_ms, row.prefill_ms), (Some(1.204), Some(36.118)));
        assert_eq!((row.decode_ms, row.wall_ms), (Some(5150.22), Some(5189.004)));
        assert_eq!(row.text, "First count\n\\boxed{12}");
    }

    #[test]
    fn no_prediction_is_none_whether_empty_or_null() {
        let empty = THIRD.replace("\"pred_answer\":\"12\"", "\"pred_answer\":\"\"");
        let null = THIRD.replace("\"pred_answer\":\"12\"", "\"pred_answer\":null");
        let read = read_text(&format!("{empty}\n{null}\n"));
        assert!(read.rows.iter().all(|row| row.pred_answer.is_none()));
    }

    #[test]
    fn rates_that_are_not_finite_and_cut_text_are_read() {
        let odd = THIRD.replace("79.996583", "inf").replace("First", "Fi\u{1}rst");
        let cut = &THIRD[..THIRD.len() - 9];
        let read = read_text(&format!("{odd}\n{cut}"));
        assert_eq!((read.rows.len(), read.cut), (1, Some(2)));
        assert_eq!(read.rows[0].tokens_per_sec, None);
        assert!(read.rows[0].text.starts_with("Fi\u{1}rst"));
    }

    #[test]
    fn seeds_temperatures_and_empty_texts_of_foreign_rows_are_read() {
        let more = THIRD
            .replace(
                "\"setup_ms\"",
                "\"seed_index\":3,\"effective_seed\":1237,\"temperature\":0.6,\"setup_ms\"",
            )
            .replace("\"First count\\n\\\\boxed{12}\"", "null");
        let row = read_text(&more).rows.remove(0);
        assert_eq!(
            (row.seed_index, row.effective_seed, row.temperature, row.text.as_str()),
            (Some(3), Some(1237), Some(0.6), "")
        );
        let row = read_text(THIRD).rows.remove(0);
        assert_eq!((row.seed_index, row.effective_seed, row.temperature), (None, None, None));
    }

    #[test]
    fn objects_of_another_kind_are_pollution() {
        let read = read_text(
            "{\"sample_id\":\"a\",\"prompt\":\"p\",\"answer\":\"1\"}\n{\"sample_id\":\"a\",\"text\":\"t\"}\n",
        );
        assert_eq!((read.rows.len(), read.polluted.len()), (0, 2));
    }
}
