//! Inputs that several verbs read: traces with their samples, datasets, faults.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use lockstep_diff::Side;
use lockstep_runtime::engine::Request;
use lockstep_runtime::weights::open_gguf;
use lockstep_traces::gguf::{GgufArray, GgufValue, is_gguf};
use lockstep_traces::hash::sha256_file;
use lockstep_traces::limits::TokenIds;
use lockstep_traces::recorded;
use lockstep_traces::store::{RunReader, is_run};
use lockstep_traces::{Cause, Loaded, ModelConfig, SampleRow, TokenTexts};
use serde::Deserialize;

use crate::exit::usage;

/// A trace with its finished samples, ready for a comparison.
#[derive(Clone)]
pub(crate) struct Trace {
    pub(crate) label: String,
    pub(crate) loaded: Loaded,
    pub(crate) samples: Vec<SampleRow>,
    /// sha256 of the manifest of a run.
    pub(crate) identity: Option<String>,
    /// What its ids stand for, where they only number texts.
    token_texts: Option<TokenTexts>,
    /// Its ids were brought to one numbering with the other side's.
    pub(crate) joint: bool,
    /// Bytes of the tokens of that numbering, where no tokenizer has it.
    pub(crate) names: BTreeMap<u32, Vec<u8>>,
}

impl Trace {
    /// Reads a run folder, a recording or a foreign trace.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let label = path.display().to_string();
        if recorded::is_recorded(path) {
            let (loaded, samples) = recorded::load_recorded(path)?;
            return Ok(Self {
                label,
                loaded,
                samples,
                identity: None,
                token_texts: None,
                joint: false,
                names: BTreeMap::new(),
            });
        }
        let loaded = lockstep_traces::load(path)
            .map_err(|error| super::import::elsewhere(path).unwrap_or_else(|| error.into()))?;
        let (samples, identity) = if is_run(path) {
            (RunReader::open(path)?.samples()?, Some(sha256_file(path.join("manifest.json"))?))
        } else {
            (Vec::new(), None)
        };
        let invented = loaded.manifest.limits.token_ids == TokenIds::Invented;
        let token_texts = if invented { TokenTexts::read(path)? } else { None };
        Ok(Self {
            label,
            loaded,
            samples,
            identity,
            token_texts,
            joint: false,
            names: BTreeMap::new(),
        })
    }

    /// Its ids only number texts.
    pub(crate) fn numbers_texts(&self) -> bool {
        self.loaded.manifest.limits.token_ids == TokenIds::Invented
    }

    /// What its ids stand for.
    pub(crate) fn texts(&self) -> anyhow::Result<&TokenTexts> {
        self.token_texts.as_ref().ok_or_else(|| {
            anyhow::anyhow!(
                "{}: its token ids number texts, and {} is missing; import the run again",
                self.label,
                lockstep_traces::token_texts::FILE
            )
        })
    }

    /// Drops the rows of every other sample.
    pub(crate) fn keep_only(&mut self, ids: &[String]) {
        let steps = &self.loaded.steps;
        let rows: Vec<_> = (0..steps.len)
            .filter(|&i| steps.sample_id(i).is_some_and(|id| ids.iter().any(|wanted| wanted == id)))
            .filter_map(|i| steps.row(i))
            .collect();
        self.loaded.steps = lockstep_traces::store::StepColumns::from_rows(&rows);
        self.loaded.samples.clone_from(&self.loaded.steps.sample_ids);
        self.loaded.events.retain(|event| ids.contains(&event.sample_id));
        self.samples.retain(|row| ids.contains(&row.sample_id));
    }

    /// Gives the samples the ids that those of `other` bear, in order.
    pub(crate) fn rename_as(&mut self, other: &Self) {
        let map: BTreeMap<String, String> =
            self.loaded.samples.iter().cloned().zip(other.loaded.samples.iter().cloned()).collect();
        let rename = |id: &mut String| {
            if let Some(new) = map.get(id.as_str()) {
                id.clone_from(new);
            }
        };
        self.loaded.samples.iter_mut().for_each(rename);
        self.loaded.steps.sample_ids.iter_mut().for_each(rename);
        self.loaded.events.iter_mut().for_each(|event| rename(&mut event.sample_id));
        self.samples.iter_mut().for_each(|row| rename(&mut row.sample_id));
    }

    /// As one side of a comparison.
    pub(crate) fn side(&self) -> Side<'_> {
        Side {
            label: &self.label,
            manifest: &self.loaded.manifest,
            samples: &self.samples,
            steps: &self.loaded.steps,
            events: &self.loaded.events,
        }
    }
}

/// The fault that a `--plant` names; `None` without the flag.
pub(crate) fn plant(slug: Option<&str>) -> anyhow::Result<Option<Cause>> {
    slug.map(|slug| {
        Cause::from_slug(slug).ok_or_else(|| {
            usage(format!("no fault `{slug}`; `lockstep demo --plant list` prints them"))
        })
    })
    .transpose()
}

/// One row of a dataset.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct DatasetRow {
    pub(crate) sample_id: Option<String>,
    pub(crate) prompt: Option<String>,
    pub(crate) prompt_ids: Option<Vec<u32>>,
    pub(crate) answer: Option<String>,
    pub(crate) seed_index: Option<u64>,
    pub(crate) gold_completion_ids: Option<Vec<u32>>,
}

/// Reads a dataset (JSON lines) and takes the rows that `select` names.
pub(crate) fn dataset(
    path: &Path,
    select: Option<&str>,
) -> anyhow::Result<Vec<(usize, DatasetRow)>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let row: DatasetRow = serde_json::from_str(line).with_context(|| {
            format!(
                "{}:{}: no dataset row; each line is an object with `prompt` or `prompt_ids`",
                path.display(),
                number + 1
            )
        })?;
        if row.prompt.is_none() && row.prompt_ids.is_none() {
            anyhow::bail!("{}:{}: neither `prompt` nor `prompt_ids`", path.display(), number + 1);
        }
        rows.push((rows.len(), row));
    }
    if rows.is_empty() {
        anyhow::bail!("{}: no rows", path.display());
    }
    match select {
        Some(select) => take(rows, select, path),
        None => Ok(rows),
    }
}

fn take(
    rows: Vec<(usize, DatasetRow)>,
    select: &str,
    path: &Path,
) -> anyhow::Result<Vec<(usize, DatasetRow)>> {
    if let Ok(choice) = select.parse::<lockstep_traces::Choice>() {
        let taken: Vec<_> = rows
            .into_iter()
            .filter(|(index, _)| u32::try_from(*index).is_ok_and(|index| choice.has(index)))
            .collect();
        if taken.is_empty() {
            return Err(usage(format!("--select {select} takes no row of {}", path.display())));
        }
        return Ok(taken);
    }
    let mut taken = Vec::new();
    for id in select.split(',').map(str::trim) {
        let row = rows.iter().find(|(_, row)| row.sample_id.as_deref() == Some(id));
        taken.push(
            row.cloned().ok_or_else(|| usage(format!("no sample `{id}` in {}", path.display())))?,
        );
    }
    Ok(taken)
}

/// Token ids of a file: a JSON list, or numbers with blanks or commas between.
pub(crate) fn prompt_ids(path: &Path) -> anyhow::Result<Vec<u32>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let parts = text
        .split(|c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']'))
        .filter(|part| !part.is_empty());
    let ids = parts
        .map(|part| {
            part.parse::<u32>()
                .map_err(|_| anyhow::anyhow!("{}: `{part}` is no token id", path.display()))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    if ids.is_empty() {
        anyhow::bail!("{}: no token ids", path.display());
    }
    Ok(ids)
}

/// A dataset row as a request; text is encoded by `encode`.
pub(crate) fn request(
    index: usize,
    row: DatasetRow,
    encode: &dyn Fn(&str) -> anyhow::Result<Vec<u32>>,
) -> anyhow::Result<Request> {
    let prompt_ids = match (row.prompt_ids, &row.prompt) {
        (Some(ids), _) => ids,
        (None, Some(text)) => encode(text)?,
        (None, None) => Vec::new(),
    };
    Ok(Request {
        sample_id: row.sample_id.unwrap_or_else(|| format!("row_{index}")),
        prompt_ids,
        prompt_text: row.prompt,
        gold: row.answer,
        seed_index: Some(row.seed_index.unwrap_or(index as u64)),
    })
}

/// Entries of a row of logits of a model: `vocab_size` of its config.json, or the tokens of a GGUF file.
pub(crate) fn vocabulary(model: &Path) -> anyhow::Result<usize> {
    let unknown = || {
        usage(format!("--model {}: it does not say its vocabulary; give --vocab", model.display()))
    };
    if is_gguf(model) {
        let (_, header) = open_gguf(model)?;
        return match header.get("tokenizer.ggml.tokens") {
            Some(GgufValue::Array(GgufArray(tokens))) => Ok(tokens.len()),
            _ => Err(unknown()),
        };
    }
    let config = ModelConfig::read(model)?;
    config.vocab_size.ok_or_else(unknown)
}

/// A count of the command line.
pub(crate) fn wide(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
