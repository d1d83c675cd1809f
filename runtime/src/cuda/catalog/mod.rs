//! The op catalog: what each kernel promises, and the run that shows it.

mod attention_decode;
mod attention_prefill;
mod embed;
mod entry;
#[cfg(test)]
mod faults;
mod fill;
mod gather;
mod guard;
mod linear;
mod logits;
mod norm;
pub mod receipt;
mod rope;
mod run;
mod sample;
mod select_reduce;
mod select_score;
mod select_top;

pub use entry::{Case, Cell, Contract, Entry, Open, Output, Tolerance};
pub use guard::Guarded;
pub use receipt::{Receipt, Receipts, Status};
pub use run::{CellReport, Check, SEEDS, Scope, run, skipped};

/// Every entry, by file.
#[must_use]
pub fn entries() -> Vec<&'static Entry> {
    let files = [
        embed::ENTRIES,
        norm::ENTRIES,
        rope::ENTRIES,
        linear::ENTRIES,
        attention_decode::ENTRIES,
        attention_prefill::ENTRIES,
        logits::ENTRIES,
        sample::ENTRIES,
        select_score::ENTRIES,
        select_reduce::ENTRIES,
        select_top::ENTRIES,
        gather::ENTRIES,
    ];
    files.into_iter().flatten().collect()
}
