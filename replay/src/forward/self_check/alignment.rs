//! Fed tokens against recorded ones, in place and one row early or late.

use lockstep_traces::{Cause, Location, StepRow};

use super::{Tally, figure};
use crate::forward::recording::Recording;

/// Shifts tried: the recorded row that a replayed row is compared with is `position + shift`.
const SHIFTS: [i64; 3] = [-1, 0, 1];

/// Share of rows that agree at one shift, and how many rows had a partner.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    agree: usize,
    of: usize,
}

impl Share {
    fn value(self) -> f64 {
        if self.of == 0 { 0.0 } else { self.agree as f64 / self.of as f64 }
    }
}

fn share(
    recording: &Recording,
    rows: &[StepRow],
    shift: i64,
    equal: impl Fn(&StepRow, usize) -> Option<bool>,
) -> Share {
    let mut share = Share::default();
    for row in rows {
        let partner = usize::try_from(i64::from(row.position) + shift).ok();
        let partner = partner.filter(|partner| *partner < recording.rows.len());
        if let Some(agree) = partner.and_then(|partner| equal(row, partner)) {
            share.of += 1;
            share.agree += usize::from(agree);
        }
    }
    share
}

/// The replay must have fed at each position the token that the recording has there; and, where the reference agrees with
/// the recording at all, their largest logits must agree in place and not one row off.
pub(super) fn check(recording: &Recording, rows: &[StepRow], tally: &mut Tally) {
    let token =
        |row: &StepRow, partner: usize| Some(row.token_id == recording.rows[partner].token_id);
    let decode = recording.prompt_len.saturating_sub(1);
    let argmax = |row: &StepRow, partner: usize| {
        // The prompt's own continuation is not the model's doing, and agrees by no rule.
        let recorded = recording.rows[partner].trace.filter(|_| partner >= decode)?;
        Some(row.argmax == recorded.argmax)
    };
    let tokens = SHIFTS.map(|shift| share(recording, rows, shift, token));
    let choices = SHIFTS.map(|shift| share(recording, rows, shift, argmax));
    let best = |shares: &[Share; 3]| {
        let order = [1, 0, 2].into_iter();
        order.max_by(|a, b| shares[*a].value().total_cmp(&shares[*b].value()).then(b.cmp(a)))
    };
    let shift_of = |index: Option<usize>| index.map_or(0, |index| SHIFTS[index]);
    let in_place = tokens[1].agree == tokens[1].of;
    // Nine in ten at one shift against less than half in place: far from both a noisy and a repetitive text.
    let choices_moved = best(&choices).filter(|index| {
        *index != 1
            && choices[*index].value() > 0.9
            && choices[1].value() < 0.5
            && choices[1].of >= 16
    });
    if in_place && choices_moved.is_none() {
        return;
    }
    let shift = if in_place { shift_of(choices_moved) } else { shift_of(best(&tokens)) };
    let moved = shift != 0 && (in_place || tokens[if shift < 0 { 0 } else { 2 }].value() > 0.99);
    let first = rows.iter().find(|row| token(row, row.position as usize) != Some(true));
    let location = Location {
        sample_id: Some(recording.sample_id.clone()),
        position: first.map(|row| row.position),
        stage: Some("token_id".to_owned()),
        ..Location::default()
    };
    let evidence = SHIFTS
        .iter()
        .zip(tokens.iter().zip(&choices))
        .flat_map(|(shift, (tokens, choices))| {
            [
                figure(&format!("token_share_at_shift_{shift}"), tokens.value()),
                figure(&format!("argmax_share_at_shift_{shift}"), choices.value()),
            ]
        })
        .collect();
    tally.different += (tokens[1].of - tokens[1].agree) as u64;
    let (cause, title) = if moved {
        let title = format!("{}: recorded row {shift:+}", Cause::TraceShifted.title());
        (Some(Cause::TraceShifted), title)
    } else {
        (None, "the replay fed other tokens than the recording".to_owned())
    };
    tally.finding(cause, title, location, evidence);
}
