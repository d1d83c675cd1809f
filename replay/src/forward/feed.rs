//! The order in which tokens are fed, and where chunks end.

use std::ops::Range;

use lockstep_traces::Cause;

use super::recording::Recording;

/// One token on its way into the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token {
    /// Token.
    pub(super) id: u32,
    /// Rotary index.
    pub(super) index: u32,
    /// Row of the recording that the result stands for; `None`: fed and not looked at.
    pub(super) row: Option<usize>,
}

/// The tokens in order. Without a plant: row `i` of the recording at index `i`, each once.
///
/// A planted mistake changes what the harness does, never what it reports about itself: the self-check has to find it in
/// the rows.
pub(super) fn tokens(recording: &Recording, plant: Option<Cause>) -> Vec<Token> {
    let rows = &recording.rows;
    let prompt = recording.prompt_len.min(rows.len());
    let plain = rows.iter().enumerate().map(|(row, r)| (r.token_id, Some(row)));
    let again = |range: Range<usize>| rows[range].iter().map(|r| (r.token_id, None));
    let order: Vec<(u32, Option<usize>)> = match plant {
        // The prompt is warmed up and then fed once more with the trace's rows.
        Some(Cause::PromptFedTwice) => again(0..prompt).chain(plain).collect(),
        // Decoding starts by feeding the last prompt row, which the prompt had fed already.
        Some(Cause::LastPromptRowFedAgain) if prompt > 0 => {
            let (head, tail): (Vec<_>, Vec<_>) =
                plain.partition(|(_, row)| row.is_some_and(|row| row < prompt));
            head.into_iter().chain(again(prompt - 1..prompt)).chain(tail).collect()
        }
        // The first row of the trace is skipped as if it were a header.
        Some(Cause::TraceShifted) => {
            rows.iter().skip(1).enumerate().map(|(row, r)| (r.token_id, Some(row))).collect()
        }
        _ => plain.collect(),
    };
    order.into_iter().zip(0..).map(|((id, row), index)| Token { id, index, row }).collect()
}

/// End of the chunk that starts at `start`: its size, the end of the tokens, or the next compaction, which happens after
/// `stop` tokens.
pub(super) fn chunk_end(start: usize, chunk: usize, tokens: usize, stop: Option<usize>) -> usize {
    let end = start.saturating_add(chunk.max(1)).min(tokens);
    stop.map_or(end, |stop| end.min(stop.max(start + 1)))
}

/// How many tokens have been fed when the compaction at N happens: up to and with the row of position N - 1.
pub(super) fn fed_at(tokens: &[Token], absolute_position: u32) -> Option<usize> {
    let row = absolute_position.checked_sub(1)? as usize;
    tokens.iter().rposition(|token| token.row == Some(row)).map(|index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::super::recording::RecordedRow;
    use super::*;
    use lockstep_traces::Phase;

    fn recording() -> Recording {
        let rows = (0..5)
            .map(|i| RecordedRow {
                token_id: 10 + i,
                next_token: None,
                phase: if i < 3 { Phase::Prompt } else { Phase::Decode },
                trace: None,
            })
            .collect();
        Recording {
            sample_id: "s".to_owned(),
            prompt_len: 3,
            rows,
            first_traced: 0,
            events: Vec::new(),
            sample: None,
        }
    }

    fn ids(plant: Option<Cause>) -> Vec<u32> {
        tokens(&recording(), plant).iter().map(|token| token.id).collect()
    }

    #[test]
    fn every_row_is_fed_once_unless_a_mistake_is_planted() {
        assert_eq!(ids(None), [10, 11, 12, 13, 14]);
        assert_eq!(ids(Some(Cause::PromptFedTwice)), [10, 11, 12, 10, 11, 12, 13, 14]);
        assert_eq!(ids(Some(Cause::LastPromptRowFedAgain)), [10, 11, 12, 12, 13, 14]);
        assert_eq!(ids(Some(Cause::TraceShifted)), [11, 12, 13, 14]);
    }

    #[test]
    fn chunks_end_at_compactions_and_at_their_size() {
        assert_eq!(chunk_end(0, 4, 10, None), 4);
        assert_eq!(chunk_end(8, 4, 10, None), 10);
        assert_eq!(chunk_end(0, 4, 10, Some(3)), 3);
        assert_eq!(chunk_end(0, 4, 10, Some(7)), 4);
    }

    #[test]
    fn a_compaction_waits_for_the_row_before_its_position() {
        let plain = tokens(&recording(), None);
        assert_eq!(fed_at(&plain, 4), Some(4));
        let twice = tokens(&recording(), Some(Cause::PromptFedTwice));
        assert_eq!(fed_at(&twice, 4), Some(7));
        assert_eq!((fed_at(&plain, 0), fed_at(&plain, 6)), (None, None));
    }
}
