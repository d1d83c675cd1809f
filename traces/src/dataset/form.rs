//! The public forms of a row, told apart by their keys.

use serde::Serialize;
use serde_json::{Map, Value};

use super::{DatasetRow, Message, Prompt};

type Object = Map<String, Value>;

/// Form of a dataset file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// TensorRT-Model-Connect's dataset benchmark: `sample_id`, `answer`, `prompt`, optionally `seed_index`; also
    /// `prompt_ids`, which are then fed as they are.
    ModelConnect,
    /// GSM8K: `question` and an `answer` that ends in `#### N`.
    Gsm8k,
    /// `question` and a bare `answer`.
    Question,
    /// AIME, MATH: `problem` (or `Problem`) and `answer` (or `Answer`).
    Problem,
    /// Sample log of lm-evaluation-harness: `doc` with `arguments` or a question, and `target`.
    LmEval,
    /// Conversation: `messages` (or `body.messages`, as in batch requests), optionally `answer`.
    Messages,
    /// `prompt` or `prompt_ids` alone, optionally `answer`.
    Plain,
}

/// Keys that may name a row, by preference.
const IDS: [&str; 9] = [
    "sample_id",
    "id",
    "ID",
    "unique_id",
    "task_id",
    "custom_id",
    "problem_idx",
    "question_id",
    "doc_id",
];

impl Form {
    /// Name in manifests and answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ModelConnect => "model-connect",
            Self::Gsm8k => "gsm8k",
            Self::Question => "question",
            Self::Problem => "problem",
            Self::LmEval => "lm-eval",
            Self::Messages => "messages",
            Self::Plain => "plain",
        }
    }

    /// The form of a file whose first row is `row`.
    pub(super) fn of(row: &Object) -> Result<Self, String> {
        let has = |key: &str| row.contains_key(key);
        let nested = row.get("body").is_some_and(|body| body.get("messages").is_some());
        Ok(if row.get("doc").is_some_and(Value::is_object) {
            Self::LmEval
        } else if has("messages") || nested {
            Self::Messages
        } else if (has("prompt") || has("prompt_ids")) && has("sample_id") && has("answer") {
            Self::ModelConnect
        } else if has("prompt") || has("prompt_ids") {
            Self::Plain
        } else if has("question") {
            let marked =
                row.get("answer").and_then(Value::as_str).is_some_and(|text| text.contains("####"));
            if marked { Self::Gsm8k } else { Self::Question }
        } else if has("problem") || has("Problem") {
            Self::Problem
        } else {
            let keys: Vec<&str> = row.keys().map(String::as_str).take(8).collect();
            return Err(format!(
                "keys `{}` are those of no known dataset; a row needs `prompt`, `question`, `problem`, `messages` or `doc`",
                keys.join("`, `")
            ));
        })
    }

    /// Reads a row of this form.
    pub(super) fn row(self, row: &Object, index: u64, line: usize) -> Result<DatasetRow, String> {
        let (prompt, gold) = match self {
            Self::ModelConnect => {
                text(row, &["sample_id"], self)?;
                (prompt(row, self)?, Some(answer(row, &["answer"], self)?))
            }
            Self::Plain => (prompt(row, self)?, optional(row, "answer")?),
            Self::Gsm8k => (question(row, self)?, Some(marked(&answer(row, &["answer"], self)?)?)),
            Self::Question | Self::Problem => {
                (question(row, self)?, Some(answer(row, &["answer", "Answer"], self)?))
            }
            Self::LmEval => lm_eval(row)?,
            Self::Messages => (messages(row)?, optional(row, "answer")?),
        };
        let seed_index = match row.get("seed_index") {
            None | Some(Value::Null) => None,
            Some(value) => Some(value.as_u64().ok_or("`seed_index` is no whole number from 0 on")?),
        };
        Ok(DatasetRow { index, line, sample_id: id(row, index)?, prompt, gold, seed_index })
    }

    /// What this reader does not honour in such rows.
    pub(super) fn ignored(self, row: &Object) -> Option<String> {
        let asks = self == Self::LmEval && row.contains_key("arguments");
        asks.then(|| "generation arguments of the rows (`until`, temperature) are not applied; give them as flags".to_owned())
    }
}

/// Text of the first of `keys` that is there; an error names the form.
fn text<'a>(row: &'a Object, keys: &[&str], form: Form) -> Result<&'a str, String> {
    let key = keys.first().copied().unwrap_or_default();
    let (key, value) =
        keys.iter().find_map(|key| Some((*key, row.get(*key)?))).ok_or_else(|| {
            format!("`{key}` is missing, which every row of the form `{}` has", form.name())
        })?;
    match value.as_str() {
        Some(text) if !text.trim().is_empty() => Ok(text),
        Some(_) => Err(format!("`{key}` is empty")),
        None => Err(format!("`{key}` is no text")),
    }
}

/// A short value as text: text or number.
fn plain(key: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
        Value::String(_) => Err(format!("`{key}` is empty")),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(format!("`{key}` is neither text nor a number")),
    }
}

fn answer(row: &Object, keys: &[&str], form: Form) -> Result<String, String> {
    let first = keys.first().copied().unwrap_or_default();
    let found = keys.iter().find_map(|key| Some((*key, row.get(*key)?)));
    let (key, value) = found.ok_or_else(|| {
        format!("`{first}` is missing, which every row of the form `{}` has", form.name())
    })?;
    plain(key, value)
}

fn optional(row: &Object, key: &str) -> Result<Option<String>, String> {
    match row.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => plain(key, value).map(Some),
    }
}

fn id(row: &Object, index: u64) -> Result<String, String> {
    match IDS.iter().find_map(|key| Some((*key, row.get(*key)?))) {
        None => Ok(format!("row_{index}")),
        Some((key, value)) => plain(key, value),
    }
}

/// `prompt_ids`, or `prompt` as text.
fn prompt(row: &Object, form: Form) -> Result<Prompt, String> {
    let Some(ids) = row.get("prompt_ids").filter(|ids| !ids.is_null()) else {
        return text(row, &["prompt"], form).map(|text| Prompt::Text(text.to_owned()));
    };
    let bad = || "`prompt_ids` is no list of token ids".to_owned();
    let ids = ids.as_array().ok_or_else(bad)?;
    let ids: Option<Vec<u32>> = ids.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect();
    let ids = ids.filter(|ids| !ids.is_empty()).ok_or_else(bad)?;
    let text = row.get("prompt").and_then(Value::as_str).map(str::to_owned);
    Ok(Prompt::Ids { ids, text })
}

fn question(row: &Object, form: Form) -> Result<Prompt, String> {
    let keys: &[&str] = if form == Form::Problem { &["problem", "Problem"] } else { &["question"] };
    text(row, keys, form).map(|text| Prompt::Question(text.to_owned()))
}

/// What follows the last `####`, without thousands separators.
fn marked(answer: &str) -> Result<String, String> {
    let (_, number) = answer
        .rsplit_once("####")
        .ok_or("`answer` has no `####` before its result, as every row of the form `gsm8k` has")?;
    let number = number.trim().replace(',', "");
    if number.is_empty() {
        Err("nothing follows `####` in `answer`".to_owned())
    } else {
        Ok(number)
    }
}

/// A sample log keeps the text that was put to the model in `arguments`; a bare `doc` is a question.
fn lm_eval(row: &Object) -> Result<(Prompt, Option<String>), String> {
    let doc = row.get("doc").and_then(Value::as_object).ok_or("`doc` is no object")?;
    let context = row.get("arguments").and_then(|arguments| {
        let first = arguments.get(0).or_else(|| arguments.get("gen_args_0"))?;
        first.get(0).or_else(|| first.get("arg_0"))?.as_str()
    });
    let prompt = match context {
        Some(text) => Prompt::Text(text.to_owned()),
        None if row.contains_key("arguments") => {
            return Err("`arguments` holds no text at its first place".to_owned());
        }
        None if doc.contains_key("question") => question(doc, Form::Question)?,
        None => question(doc, Form::Problem)
            .map_err(|_| "neither `arguments` nor a `question` or `problem` in `doc`".to_owned())?,
    };
    let gold = match row.get("target").or_else(|| doc.get("answer")) {
        None | Some(Value::Null) => return Err("neither `target` nor `doc.answer`".to_owned()),
        Some(value) => plain("target", value)?,
    };
    let gold = if gold.contains("####") { marked(&gold)? } else { gold };
    Ok((prompt, Some(gold)))
}

fn messages(row: &Object) -> Result<Prompt, String> {
    let list = row.get("messages").or_else(|| row.get("body")?.get("messages"));
    let list = list
        .and_then(Value::as_array)
        .ok_or("`messages` is missing, which every row of the form `messages` has")?;
    let turns: Vec<Message> = list
        .iter()
        .enumerate()
        .map(|(number, turn)| message(number, turn))
        .collect::<Result<_, _>>()?;
    match turns.last() {
        None => Err("`messages` is empty".to_owned()),
        Some(last) if last.role == "assistant" => Err(
            "the conversation ends with an assistant's turn; put the expected answer into `answer`"
                .to_owned(),
        ),
        Some(_) => Ok(Prompt::Messages(turns)),
    }
}

fn message(number: usize, turn: &Value) -> Result<Message, String> {
    let part = |key: &str| turn.get(key).and_then(Value::as_str);
    let role = part("role").ok_or_else(|| format!("message {number} has no `role`"))?;
    let content = match turn.get("content") {
        Some(Value::String(text)) => text.clone(),
        // Content in parts: text parts are joined, anything else cannot be fed.
        Some(Value::Array(parts)) => {
            let texts: Option<Vec<&str>> =
                parts.iter().map(|part| part.get("text").and_then(Value::as_str)).collect();
            texts.ok_or_else(|| format!("message {number} has a part that is no text"))?.concat()
        }
        _ => return Err(format!("message {number} has no `content`")),
    };
    Ok(Message { role: role.to_owned(), content })
}
