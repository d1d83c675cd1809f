//! Foreign trace files, and one door for everything that holds a trace.

mod assemble;
mod dialect;
#[cfg(test)]
mod golden;
pub(crate) mod lines;
mod load;
mod number;
mod order;
mod precision;
pub(crate) mod print;
mod read;
mod rowcount;
mod scan;
mod table;
#[cfg(test)]
mod tests;

pub use assemble::UNKNOWN_TOKEN;
pub use dialect::Dialect;
pub use load::{Loaded, load, load_with};
pub use table::ForeignOptions;
