//! From the keys of a row to what they mean.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::likelihood;
use super::row::{AnswerRow, Fields, Schema};
use crate::artifacts::BenchSchema;
use crate::hash::sha256_hex;

const IDS: [&str; 6] = ["sample_id", "id", "doc_id", "problem_id", "question_id", "index"];
const GOLDS: [&str; 4] = ["gold", "gold_answer", "target", "reference_answer"];
const ANSWERS: [&str; 4] = ["pred", "pred_answer", "prediction", "extracted_answer"];
const TEXTS: [&str; 5] = ["response", "text", "completion", "output", "generated_text"];

/// lm-eval's metrics of right and wrong, in the order in which one is taken where a row does not list its own.
const METRICS: [&str; 4] = ["exact_match", "acc", "acc_norm", "em"];

/// Whose row it is.
pub(super) fn schema(row: &Map<String, Value>) -> Schema {
    let has = |key: &str| row.contains_key(key);
    if has("doc_id") && (has("resps") || has("filtered_resps")) {
        return if has("filter") { Schema::LmEval } else { Schema::LmEvalNoFilter };
    }
    let bench = BenchSchema::of(has).filter(|_| has("sample_id") && has("generated_tokens"));
    match bench {
        Some(BenchSchema::AnswerOnly) => Schema::TrtmcGoldEcho,
        // Without a place for a prediction a missing one was not asked for.
        Some(_) if !has("pred_answer") => Schema::Plain,
        Some(BenchSchema::WithTokenIds) => Schema::TrtmcTokenIds,
        Some(BenchSchema::Predicted) => Schema::Trtmc,
        Some(BenchSchema::HfComparison | BenchSchema::UpstreamLive) => Schema::TrtmcHf,
        Some(BenchSchema::Responses) | None => Schema::Plain,
    }
}

/// A row of `schema`, its fields as declared or as the schema calls them.
///
/// # Errors
/// One line: the field that is missing, and the remedy.
pub(super) fn row(
    row: &Map<String, Value>,
    schema: Schema,
    fields: &Fields,
    line: usize,
) -> Result<AnswerRow, String> {
    let named = |declared: &Option<String>| -> Result<Option<String>, String> {
        let Some(key) = declared else { return Ok(None) };
        let value = row.get(key).ok_or_else(|| format!("the row has no `{key}`"))?;
        Ok(Some(scalar(value).unwrap_or_default()))
    };
    let found = |keys: &[&str]| keys.iter().find_map(|key| row.get(*key).and_then(scalar));
    let id = match named(&fields.id)? {
        Some(id) => id,
        None => found(&IDS).ok_or_else(|| {
            format!("the row has none of the ids {}; name its field", IDS.join(", "))
        })?,
    };
    let mut out = AnswerRow {
        schema,
        line,
        id,
        repeat: row.get("seed_index").and_then(Value::as_u64),
        content: sha256_hex(&serde_json::to_vec(row).unwrap_or_default()),
        ..AnswerRow::default()
    };
    match schema {
        Schema::LmEval | Schema::LmEvalNoFilter => lm_eval(row, &mut out),
        Schema::TrtmcGoldEcho => {
            out.gold = found(&["answer"]);
            out.text = found(&["text"]);
        }
        _ => {
            out.answer = found(&ANSWERS);
            out.gold = found(&GOLDS);
            out.text = found(&TEXTS);
            // `answer` is whichever of the two has no field of its own.
            match (&out.answer, &out.gold) {
                (None, Some(_)) => out.answer = found(&["answer"]),
                (_, None) => out.gold = found(&["answer"]),
                _ => {}
            }
        }
    }
    out.tokens = row.get("generated_token_ids").and_then(ids);
    for (field, target) in [
        (&fields.gold, &mut out.gold),
        (&fields.answer, &mut out.answer),
        (&fields.text, &mut out.text),
    ] {
        if let Some(value) = named(field)? {
            *target = Some(value);
        }
    }
    if out.answer.is_none()
        && out.text.is_none()
        && out.metric.is_none()
        && !row.contains_key("pred_answer")
    {
        return Err(format!(
            "the row has neither a prediction ({}) nor a text ({}); name its field",
            ANSWERS.join(", "),
            TEXTS.join(", ")
        ));
    }
    Ok(out)
}

fn lm_eval(row: &Map<String, Value>, out: &mut AnswerRow) {
    out.filter = row.get("filter").and_then(scalar);
    out.gold = row.get("target").and_then(scalar).map(|target| solution(&target).to_owned());
    let arguments = row.get("arguments");
    out.prompt = arguments.and_then(likelihood::prompt);
    out.settings = arguments.and_then(likelihood::settings);
    out.likelihoods = row.get("resps").and_then(|resps| likelihood::values(arguments, resps));
    if out.likelihoods.is_none() {
        out.text = row.get("resps").and_then(first_text);
        out.answer = row.get("filtered_resps").and_then(first_text);
    }
    let listed: Vec<&str> = row
        .get("metrics")
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    out.metric = listed.into_iter().chain(METRICS).find_map(|name| {
        let value = row.get(name)?;
        let value =
            value.as_f64().or_else(|| value.as_bool().map(|right| f64::from(u8::from(right))))?;
        Some((name.to_owned(), value))
    });
    out.hashes = ["doc_hash", "prompt_hash", "target_hash"]
        .into_iter()
        .filter_map(|key| Some((key.to_owned(), row.get(key)?.as_str()?.to_owned())))
        .collect::<BTreeMap<_, _>>();
}

/// GSM8K's gold is a worked solution with the answer behind `####`.
fn solution(target: &str) -> &str {
    target.rsplit_once("####").map_or(target, |(_, answer)| answer.trim())
}

/// Text, number or truth value as text.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        _ => None,
    }
}

/// The first text in nested lists (`[["text"]]`, `["text"]`, `"text"`); lists of log-probabilities have none.
fn first_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(items) => first_text(items.first()?),
        _ => None,
    }
}

/// Token ids; `None` where one of them is none.
fn ids(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
}
