//! One HTML file that needs nothing else: no network, no script, no font.

mod checks;
mod claims;
mod diffs;
mod figures;
mod page;
mod strip;
mod style;
mod tables;
mod view;

pub(crate) use checks::{name as check_name, place};
pub use page::page;
pub(crate) use page::page_with;
