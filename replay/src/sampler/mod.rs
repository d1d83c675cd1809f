//! Which sampler made a token stream.
//!
//! Evidence is a row of logits (or of probabilities) for each token, the settings, a seed and the tokens. Every known sampler is run on it under
//! every known convention: which numbers, in which order of ids, from which draw on, with which seed, after which filters. What reproduces the
//! stream is named; where several do, or the evidence is too thin to tell, that is the answer.

mod devices;
mod error;
mod evidence;
mod file;
mod hypothesis;
mod identify;
mod kept;
mod logprobs;
mod numbers;
mod prepared;
mod report;
mod run;
mod score;
mod words;

#[cfg(test)]
mod tests;

pub use devices::{Device, DeviceSplit, Place, compare_devices, read_devices};
pub use error::SamplerError;
pub use evidence::{Claim, Evidence, Row, Step, Stream};
pub use file::{FileEvidence, TokenList, read as read_file};
pub use hypothesis::{Draw, Hypothesis, Numbers, Pattern, SeedRule};
pub use identify::{Answer, Drawn, Identification, Misfit, Scored, identify};
pub use kept::{KeptAnswer, KeptList, explain_kept};
pub use logprobs::{LogprobAnswer, LogprobList, explain_logprobs};
pub use report::{check_report, file_report};
pub use run::{Overrides, SamplerOptions, apply_overrides, check, evidence_of};
pub use words::Described;
