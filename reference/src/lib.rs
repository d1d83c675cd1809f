//! The independent reference: a textbook forward pass on candle, and the selector's and the sampler's rules in f64.
//!
//! Nothing here is taken from the runtime under test. Both sides read the same files and write the same
//! vocabulary (`lockstep-traces`); defaults, widening, rotary tables, norms, attention, selection and sampling are written
//! again, so that an agreement means something.

pub mod error;
pub mod forward;
mod gguf;
pub mod hyper;
pub mod rope;
pub mod sample;
pub mod select;
pub mod weights;

pub use error::ReferenceError;
pub use hyper::{Architecture, Hyper};
