//! The ledger of claims: what somebody says that runs and answers show, with the artifacts that it stands on.
//!
//! A ledger is a TOML file of `[[claim]]` records, oldest first, made for version control: records are appended, never
//! edited, fields keep their order, and a record's id comes from its own content, so that two branches can add records.
//! This module reads and writes the file and looks at the cited artifacts; whether a claim still stands is judged elsewhere.

mod cover;
mod ledger;
mod look;
mod record;
#[cfg(test)]
mod tests;

pub use cover::Coverage;
pub use ledger::Ledger;
pub use look::{Found, cite, look};
pub use record::{ArtifactKind, Cited, Claim, Scope, Window};
