//! Selector and sampler against recorded answers of other programs: a directory of cases, discovered and not listed.
//!
//! `cases.json` names the cases, their settings and files (its folder's README describes them). Run here are the groups of the four rule sets:
//! `vllm_selector`, `hf`, `sglang`, `hf_lifecycle` and `vllm_lifecycle`, and for `trt`, which has no case of its own, the `vllm_selector` cases whose answers
//! it shares: mode per_head with the layer mean, raw scores stored.

mod case;
mod compare;
mod error;
mod lifecycle;
mod run;
mod sampling;
mod selector;
mod vectors;

pub use error::ConformanceError;
pub use run::{CaseResult, Status, run};
pub use sampling::run_sampling;
