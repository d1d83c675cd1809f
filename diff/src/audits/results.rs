//! Audits of what runs show: rows and their counting, differences, dumps, scores, speed, claims, and outputs from a cache.

mod accounting;
mod cached;
mod complete;
mod dumps;
mod echo;
mod extraction;
mod firsts;
mod keepsets;
mod ledger;
mod made;
mod parity;
mod rows;
mod schedule;
mod sensitive;
mod speed;
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
    &dumps::MISSING,
    &dumps::INDEX,
    &dumps::GATHER,
    &keepsets::SELECTOR,
    &keepsets::FIRST_IS_BLIND,
    &keepsets::SHARED_LOGIC,
    &complete::DIRTY,
    &complete::PARTIAL,
    &complete::EMPTY,
    &complete::IDS,
    &echo::GOLD_ECHO,
    &echo::DEGENERATE,
    &extraction::RULE,
    &extraction::NORMALISATION,
    &parity::STOP,
    &parity::COMMON_WRONG,
    &parity::WRONG_CONTROL,
    &parity::SMALL_N,
    &speed::MIXED,
    &speed::BASELINE,
    &ledger::RETRACTED,
    &ledger::WIDER,
    &cached::CACHED,
];
