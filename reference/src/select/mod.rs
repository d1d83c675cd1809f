//! Selector rules in f64: which cached rows stay at a compaction, with every stage on the way.
//!
//! Written from `TRIATTENTION.md` alone and shared with no other crate. Every phase `t * w` is one f32 product, as in
//! each program under test; everything after it is f64 (or f32, for the control). The ranking is a full stable sort.

mod budget;
mod calibrate;
mod choose;
mod error;
mod heads;
mod input;
mod noise;
mod paged;
mod phase;
mod pipeline;
mod ranker;
mod real;
mod recipe;
mod reduce;
mod rules;
mod schedule;
mod score;
mod shared;
mod stages;
mod torch;
mod zscore;

pub use budget::{Plan, Ranking, plan, plan_rows};
pub use calibrate::{HeadCalibration, calibrate};
pub use choose::{best, kth};
pub use error::SelectError;
pub use heads::{HeadArrays, HeadStats};
pub use input::{Heads, Input, KeyView, Moment, Positions, widen};
pub use noise::NoiseStream;
pub use paged::{Pool, move_rows};
pub use phase::{Trig, offsets, trig};
pub use pipeline::{OverLayers, in_turn, select, select_by};
pub use ranker::{Ranker, noise_draws};
pub use real::Real;
pub use recipe::{
    Degenerate, Deviation, Floor, GroupOrder, HeadUse, KeyForm, Moduli, Pairing, Phases, Recipe,
    RowOrder, TieBreak, ZRows,
};
pub use reduce::reduce;
pub use rules::Rules;
pub use schedule::{Progress, due};
pub use score::{LayerScores, Scorer};
pub use shared::{SharedRules, SharedSelection, select_shared};
pub use stages::{Grid, KeepSet, Outcome, Selection, Stages};
pub use torch::{TorchScore, torch_scores};
pub use zscore::zscore;
