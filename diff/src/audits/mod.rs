//! Audits: does the evidence prove what it is used for?
//!
//! An [`Audit`] looks at facts ([`Evidence`], [`Subject`]) and not at files, so that a run of ours, a foreign trace and a
//! benchmark row are judged alike. Each yields `pass`, `flag`, `void` (the comparison proves nothing) or `no evidence`, which
//! names the missing fact and is never a pass. Each ships [`Control`]s: its fault planted, and clean evidence; [`verify`] runs
//! them.

mod artifact_facts;
mod audit;
mod capacity;
mod control;
mod engine;
pub mod facts;
mod finding;
pub mod gate;
mod policy_runs;
mod prompts;
mod provenance;
mod reference;
pub mod registry;
pub mod report;
mod results;
mod rows;
mod run_facts;
mod sampler;
mod seeds;
mod sequence;
mod variables;

pub use artifact_facts::subjects_of;
pub use audit::{Against, Audit, Each, Whole};
pub use control::{Control, verify};
pub use facts::{Evidence, Pair, Sample, Subject};
pub use finding::{Finding, Note, Outcome};
pub use report::{AuditReport, run};
pub use run_facts::subject_of;

/// The first twelve digits of a hash, which is what a person compares.
#[must_use]
pub fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}
