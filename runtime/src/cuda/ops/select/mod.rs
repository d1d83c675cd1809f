//! TriAttention selection on the device: scores, normalisation, reduction, choice, by the rules and tables of a [`crate::select::Selector`].
//!
//! [`SelectOps`] queues a whole selection without waiting; what it says is read afterwards, where it is wanted. Below it each
//! kernel family has its own part: [`ScoreOps`], [`ReduceOps`], [`TopOps`].

mod answer;
mod noise;
mod reduce;
mod score;
mod selector;
mod tables;
mod top;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;

pub use answer::SelectFailure;
pub use noise::DeviceNoise;
pub use reduce::{Combine, GuardRows, Guards, Lists, Moments, ReduceOps, ZRule};
pub use score::{
    CacheKeys, Floors, HeadTables, HeadValues, Phase, ScoreOps, Turned, Units, Unrotate,
};
pub use selector::{Decision, DeviceSelect, Queued, SelectOps};
pub use top::{Choice, TopOps};
