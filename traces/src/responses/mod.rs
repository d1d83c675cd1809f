//! Cache of responses: what a run answered to each row, kept so that nothing is computed twice.
//!
//! One append-only JSON lines file for each configuration. The first line holds the [`Configuration`], every other one
//! a [`Response`] under a key that is the sha256 of the configuration and of what is the row's own. A line ends with
//! its newline or it is not there: a writer that is killed costs the rows in flight and nothing before them. A file of
//! another configuration is refused with the first key that differs.

mod configuration;
mod file;
mod record;
#[cfg(test)]
mod tests;

pub use configuration::{Configuration, Difference, RowIdentity};
pub use file::ResponseCache;
pub use record::Response;
