//! Reports: data in, bytes out.
//!
//! A [`Report`] is `report.json`. The page, the figures and the terminal text are renderings of it and hold no number
//! of their own. Nothing here reads a clock, a locale, a system font or a path; equal reports give equal bytes.

pub mod build;
pub mod charts;
pub mod error;
pub mod escape;
pub mod html;
pub mod json;
pub mod junit;
pub mod model;
pub mod num;
pub mod tensors;
pub mod text;
mod write;

pub use error::ReportError;
pub use model::Report;
pub use num::Num;
pub use write::write_all;

// The gallery's report is made with the public names; unit tests look inside its figures.
#[cfg(test)]
extern crate self as lockstep_reports;
#[cfg(test)]
#[path = "../examples/gallery/compared.rs"]
mod compared;
#[cfg(test)]
#[path = "../examples/gallery/made_up.rs"]
mod made_up;
