//! Audits 25 to 63, and one of cached outputs.

mod accounting;
mod made;
mod rows;
mod schedule;

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
];
