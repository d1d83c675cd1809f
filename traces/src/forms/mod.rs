//! Small JSON forms in which evidence is written down by a script or by hand: what a cache held, which keys a query saw, where cells
//! were moved, what a selector kept, what an experiment's arms scored.
//!
//! | form | holds | read by |
//! |---|---|---|
//! | [`CacheStates`] | rows of a cache after each step, under a window or sinks and recent rows | `check states` |
//! | [`VisibleKeys`] | keys that each query sees, by engine | `check visible` |
//! | [`Shifts`] | operations on positions, and positions and key angles after them | `check shifts` |
//! | [`KeepSpec`], [`KeptRows`] | a trigonometric score, and what was kept at each compaction | `check keepsets` |
//! | [`ArmTable`] | factors and score of each arm of an experiment | `audit arms` |
//!
//! Gzip and a byte order mark are read through. A key that a form does not know and a key that stands twice are errors, so that a
//! misspelt one is never taken for an absent one; `note` is free text everywhere.

mod arms;
mod cache_states;
mod fields;
mod keeps;
mod shifts;
#[cfg(test)]
mod tests;
mod visible;

pub use arms::{Arm, ArmTable};
pub use cache_states::{CacheState, CacheStates, CacheStep};
pub use keeps::{KeepSpec, KeptRows};
pub use shifts::{ShiftOp, Shifts};
pub use visible::{EngineKeys, VisibleKeys};
