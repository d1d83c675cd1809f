//! TriAttention selection: scores, normalisation, reduction, choice.
//!
//! The rules of four programs, by name (`TRIATTENTION.md`): `trt` (the native runtime, the default), `hf`, `vllm` and `sglang`. Everything
//! is f32, as in those programs. A [`Selector`] is a pure function of a [`CacheView`] and two numbers, N and R; when it is
//! called is [`crate::policy`]'s business.
//!
//! What upstream leaves open is settled so: equal scores fall to the lower row under every rule set; a score that is no number
//! is an error and never a ranking; a single row has deviation 0.

mod choose;
mod columns;
mod error;
mod fault;
mod input;
mod job;
mod kernel;
mod noise;
pub(crate) mod parts;
mod phase;
mod reduce;
mod rules;
mod score;
mod selector;
mod stages;
mod trig;
mod unrotate;
mod weights;

#[cfg(test)]
mod golden;

pub use error::SelectError;
pub use input::{CacheView, Dims, KeepSet, Keys, Selection, StageSeconds};
pub use noise::NoiseGenerator;
pub use rules::{Effective, Rules};
pub use selector::{SelectInput, Selector};
pub use stages::{Stage, Stages};
