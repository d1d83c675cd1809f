//! A track becomes the rows and the sample of a run.
//!
//! The entry of the token at position q is what the logits of row q - 1 gave: its list belongs to that row, which chose the
//! token or was followed by it. The last token of a track was never fed.

use super::super::model::{Entry, State};
use super::lists::{self, List};
use super::names::Names;
use super::tally::Tally;
use super::track::Track;
use crate::hash::ids_sha256;
use crate::limits::TokenIds;
use crate::{Phase, SampleRow, StepRow, TraceError, TraceSink, UNKNOWN_TOKEN};

/// Prompt ids that the caller gave; empty where none.
pub(super) type PromptIds<'a> = &'a [u32];

/// Writes the rows of `track` and its sample.
///
/// # Errors
/// What the sink reports.
pub(super) fn write(
    track: &Track,
    sample_id: &str,
    prompt: PromptIds<'_>,
    names: &mut Names<'_>,
    tally: &mut Tally,
    sink: &mut impl TraceSink,
) -> Result<(), TraceError> {
    let asked = lists::asked_length(track.asked, &track.entries);
    let ids: Vec<u32> = track.entries.iter().map(|entry| names.id(&entry.token)).collect();
    for (index, entry) in track.entries.iter().enumerate() {
        let fed = match index.checked_sub(1) {
            Some(before) => ids[before],
            None if skipped(track.start, entry) => {
                tally.no_row += u64::from(entry.logprob.value().is_some());
                continue;
            }
            None => usize::try_from(track.start - 1)
                .ok()
                .and_then(|place| prompt.get(place).copied())
                .unwrap_or(UNKNOWN_TOKEN),
        };
        let list = lists::list(entry, ids[index], asked, names, tally);
        let position = track.start.saturating_add(offset(index)) - 1;
        sink.step(row(sample_id, position, fed, ids[index], track.prompt_len, list))?;
    }
    tally.no_prompt_length += u64::from(track.prompt_len.is_none());
    sink.sample(sample(track, sample_id, prompt, &ids, names.origin()))
}

fn offset(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// The first token of a text has no row before it, nor has one of which nothing is written.
fn skipped(start: u32, entry: &Entry) -> bool {
    start == 0 || (entry.logprob.state == State::Absent && entry.candidates.is_empty())
}

fn row(
    sample_id: &str,
    position: u32,
    fed: u32,
    chosen: u32,
    prompt_len: Option<u32>,
    list: List,
) -> StepRow {
    let prompt_len = prompt_len.unwrap_or(0);
    let counts = position.saturating_add(1) >= prompt_len;
    StepRow {
        phase: if position < prompt_len { Phase::Prompt } else { Phase::Decode },
        next_token: Some(chosen).filter(|&chosen| counts && chosen != UNKNOWN_TOKEN),
        argmax: list.argmax(),
        top2_margin: list.margin(),
        finite: list.finite,
        top_ids: list.ids,
        top_logits: list.values,
        logsumexp: Some(0.0),
        ..StepRow::bare(sample_id, position, fed)
    }
}

fn sample(
    track: &Track,
    sample_id: &str,
    given: PromptIds<'_>,
    ids: &[u32],
    origin: TokenIds,
) -> SampleRow {
    let mut row = SampleRow {
        prompt_len: track.prompt_len,
        text: track.text.clone(),
        finish: track.finish,
        prompt_ids_sha256: String::new(),
        ..SampleRow::bare(sample_id)
    };
    let start = usize::try_from(track.start).unwrap_or(usize::MAX);
    let length = track.prompt_len.and_then(|length| usize::try_from(length).ok());
    let completion = length.unwrap_or(start).saturating_sub(start);
    let (prompt, generated) = ids.split_at(completion.min(ids.len()));
    let whole = |ids: &[u32]| !ids.is_empty() && !ids.contains(&UNKNOWN_TOKEN);
    if !given.is_empty() {
        row.prompt_ids = given.to_vec();
    } else if track.start == 0 && length.is_some() && whole(prompt) {
        row.prompt_ids = prompt.to_vec();
    }
    // Invented ids hash to nothing that another run could have.
    if !row.prompt_ids.is_empty() && origin != TokenIds::Invented {
        row.prompt_ids_sha256 = ids_sha256(&row.prompt_ids);
    }
    if whole(generated) {
        row.generated_ids = generated.to_vec();
    }
    row
}
