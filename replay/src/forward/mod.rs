//! `replay forward`: teacher-forced re-execution of a run by the reference, its self-check, and the search for the
//! first stage that differs.

mod compactor;
mod describe;
mod drive;
mod dumps;
mod feed;
#[cfg(test)]
mod golden;
mod keeps;
mod localize;
mod measure;
mod options;
mod own;
mod recording;
mod rows;
mod self_check;

pub use describe::describe;
pub use drive::{ForwardSummary, Progress, forward};
pub use keeps::read_keep;
pub use localize::{LocalizeOptions, localize};
pub use measure::{Rates, measure};
pub use options::{ForwardOptions, Policy};
pub use recording::{Event, RecordedRow, Recording};
pub use self_check::{Claim, Replayed, self_check};
