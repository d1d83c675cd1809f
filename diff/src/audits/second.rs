//! Audits 25 to 63, and one of cached outputs.

mod accounting;
mod firsts;
mod made;
mod rows;
mod schedule;
mod sensitive;
mod text;
mod window;

use super::Audit;

/// In order of their numbers.
pub(super) const AUDITS: &[&Audit] = &[
    &accounting::COUNTED_TWICE,
    &accounting::PROMPT_ROWS,
    &accounting::LAST_PROMPT_ROW,
    &accounting::SEVERAL_SAMPLES,
    &schedule::PROMPT_COUNTED,
    &schedule::CANCELLING,
    &schedule::VACUOUS,
    &window::CHUNKS,
    &window::IN_PREFILL,
    &window::WINDOW,
    &firsts::ORDER,
    &firsts::TIE,
    &firsts::DEPENDENT,
    &text::CHARACTERS,
    &text::PRINTED,
    &text::SAME_ANSWER,
    &sensitive::SENSITIVE,
];
