//! `rank_*.json` of a training framework's checker: `logprob_entries[batch][place]` with `global_position`, `token_id`,
//! `logprob`, `is_valid`.
//!
//! Such a file gives the log-probability of a label under the logits of the row at `global_position`. Whether the label is
//! the row's own token or the next one depends on who made the labels, and the file does not say it: the list of a row holds
//! the label, and its fed and chosen tokens stay unknown unless the caller tells. Ranks of a tensor-parallel group repeat
//! each other; those of a context-parallel one hold parts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::super::model::Logprob;
use super::super::node::Node;
use super::super::read::documents;
use super::lists::narrow;
use super::tally::Tally;
use crate::store::fail::{io, malformed};
use crate::{SampleRow, StepRow, TraceError, TraceSink, UNKNOWN_TOKEN};

/// Whose labels the tokens of an entry are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Labels {
    /// Not said.
    #[default]
    Unsaid,
    /// The row's own token.
    Fed,
    /// The token that follows the row.
    Next,
}

/// `rank_*.json` of a folder by rank, or the file itself.
///
/// # Errors
/// [`TraceError::Io`]; [`TraceError::Malformed`] where the folder has none.
pub(super) fn files(path: &Path) -> Result<Vec<PathBuf>, TraceError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(path).map_err(io(path))? {
        let file = entry.map_err(io(path))?.path();
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let rank = name.strip_prefix("rank_").and_then(|rest| rest.strip_suffix(".json"));
        if let Some(rank) = rank.and_then(|rank| rank.parse::<u32>().ok()) {
            found.insert(rank, file);
        }
    }
    if found.is_empty() {
        return Err(malformed(path, "no file `rank_N.json` in it"));
    }
    Ok(found.into_values().collect())
}

/// Entries by batch row and position.
type Entries = BTreeMap<(usize, u32), (u32, Logprob)>;

/// What was read besides the entries.
#[derive(Debug, Default)]
struct Merged {
    entries: Entries,
    /// Entries without a label, by batch row.
    invalid: u64,
    repeated: u64,
    contradicted: u64,
}

/// Writes all rows of the files at `path`; what was read around comes back.
///
/// # Errors
/// [`TraceError`] where a file is none of these, or two ranks give other tokens to one position.
pub(super) fn write(
    path: &Path,
    labels: Labels,
    tally: &mut Tally,
    sink: &mut impl TraceSink,
) -> Result<Vec<String>, TraceError> {
    let files = files(path)?;
    let mut merged = Merged::default();
    for file in &files {
        merge(file, &mut merged).map_err(|fault| match fault {
            Fault::Trace(error) => error,
            Fault::Layout(what) => malformed(file, what),
        })?;
    }
    if merged.entries.is_empty() {
        return Err(malformed(path, "no valid entry is in it"));
    }
    let mut remarks = vec![format!("{} rank files", files.len())];
    let rows: Vec<_> = merged.entries.iter().collect();
    let mut gaps = 0;
    for batch in rows.chunk_by(|left, right| left.0.0 == right.0.0) {
        gaps += batch.windows(2).filter(|pair| pair[1].0.1 - pair[0].0.1 > 1).count();
        let sample_id = format!("batch_{}", batch[0].0.0);
        tally.invented_ids += 1;
        for (index, &(&(_, position), &(token, logprob))) in batch.iter().enumerate() {
            let neighbour = |place: Option<usize>, wanted: Option<u32>| {
                let (key, entry) = batch.get(place?)?;
                (Some(key.1) == wanted).then_some(entry.0)
            };
            let before = neighbour(index.checked_sub(1), position.checked_sub(1));
            let after = neighbour(Some(index + 1), position.checked_add(1));
            let (fed, chosen) = match labels {
                Labels::Unsaid => (None, None),
                Labels::Fed => (Some(token), after),
                Labels::Next => (before, Some(token)),
            };
            tally.value(&logprob);
            tally.own_only += 1;
            sink.step(row(&sample_id, position, (fed, chosen), (token, logprob)))?;
        }
        sink.sample(SampleRow { prompt_ids_sha256: String::new(), ..SampleRow::bare(sample_id) })?;
    }
    let mut say = |count: u64, text: &str| {
        if count > 0 {
            remarks.push(format!("{count} {text}"));
        }
    };
    say(merged.invalid, "entries are marked as not valid, and are no rows");
    say(merged.repeated, "entries stand in several rank files");
    say(merged.contradicted, "of them with another value; the lowest rank's was kept");
    say(
        gaps as u64,
        "gaps between positions: a rank file is missing, or its entries are not valid",
    );
    if labels == Labels::Unsaid {
        remarks.push(
            "the file does not say whether a label is the row's own token or the next one: fed and chosen tokens are unknown (give --labels fed or next)"
                .to_owned(),
        );
    }
    Ok(remarks)
}

enum Fault {
    Trace(TraceError),
    Layout(String),
}

fn merge(file: &Path, merged: &mut Merged) -> Result<(), Fault> {
    let found = documents(file).map_err(Fault::Trace)?;
    let node = found.nodes.first();
    let batches =
        node.and_then(|node| node.get("logprob_entries").or_else(|| node.get("entries"))?.list());
    let batches = batches.ok_or_else(|| Fault::Layout("no `logprob_entries` in it".to_owned()))?;
    for (batch, entries) in batches.iter().enumerate() {
        let entries = entries
            .list()
            .ok_or_else(|| Fault::Layout(format!("`logprob_entries[{batch}]` is no list")))?;
        for (place, entry) in entries.iter().enumerate() {
            let bad =
                |what: &str| Fault::Layout(format!("`logprob_entries[{batch}][{place}]`: {what}"));
            let number = |key: &str| {
                entry.get(key).and_then(Node::index).and_then(|value| u32::try_from(value).ok())
            };
            if entry.get("is_valid") == Some(&Node::Bool(false)) {
                merged.invalid += 1;
                continue;
            }
            let position = number("global_position").ok_or_else(|| bad("no `global_position`"))?;
            let token = number("token_id").ok_or_else(|| bad("no `token_id`"))?;
            let logprob = Logprob::of_token(entry.get("logprob"));
            match merged.entries.get(&(batch, position)) {
                None => {
                    merged.entries.insert((batch, position), (token, logprob));
                }
                Some((known, _)) if *known != token => {
                    return Err(bad(&format!(
                        "token {token} at position {position}, where another rank has {known}"
                    )));
                }
                Some((_, known)) => {
                    merged.repeated += 1;
                    merged.contradicted +=
                        u64::from(known.written.to_bits() != logprob.written.to_bits());
                }
            }
        }
    }
    Ok(())
}

fn row(
    sample_id: &str,
    position: u32,
    (fed, chosen): (Option<u32>, Option<u32>),
    (token, logprob): (u32, Logprob),
) -> StepRow {
    let value = logprob.value();
    StepRow {
        next_token: chosen,
        top_ids: value.iter().map(|_| token).collect(),
        top_logits: value.iter().map(|value| narrow(*value)).collect(),
        logsumexp: Some(0.0),
        finite: value.is_some(),
        ..StepRow::bare(sample_id, position, fed.unwrap_or(UNKNOWN_TOKEN))
    }
}
