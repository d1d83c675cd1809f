//! May a difference of scores be put down to one factor of an experiment?
//!
//! Two arms control a factor where they differ in that factor and in nothing else. Where every arm that has another level of the factor
//! also has another level of a second one, the two are confounded: the scores say nothing about either.

mod confounded;
mod judge;
mod pointers;
#[cfg(test)]
mod tests;

use lockstep_traces::Verdict;
use serde::Serialize;
use serde_json::{Map, Value};

pub use judge::judge;

/// What is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Factor to which the difference would be put down.
    pub factor: String,
    /// Its level in the baseline; that of the first arm without it.
    pub baseline: Option<Value>,
    /// Largest difference of two scores that counts as none.
    pub tolerance: f64,
    /// Block of which lengths may be no multiple.
    pub block: u64,
}

/// A level of the factor against the baseline's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LevelJudgement {
    /// The level.
    pub level: Value,
    /// `supported`: every controlled pair differs, in one direction. `contradicted`: none does, though uncontrolled ones do.
    /// `interaction`: controlled pairs disagree. `confounded`: scores differ, and no pair is controlled. `no_effect`: no pair differs.
    pub outcome: String,
    /// Pairs of an arm of the baseline's level and one of this.
    pub pairs: usize,
    /// Pairs whose scores differ.
    pub differing: usize,
    /// Controlled pairs.
    pub controlled: Vec<ControlledPair>,
}

/// Two arms that differ in the factor and in nothing else.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ControlledPair {
    /// Arm of the baseline's level.
    pub baseline: String,
    /// The other.
    pub arm: String,
    /// Score of the other less that of the baseline.
    pub difference: f64,
    /// The difference is more than the tolerance.
    pub differs: bool,
}

/// A factor that changes with the one asked for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Confounder {
    /// The factor.
    pub factor: String,
    /// Pairs across the two levels in which it differs, of `pairs`.
    pub differing: usize,
    /// Pairs of an arm of the baseline's level and one of another.
    pub pairs: usize,
    /// It differs in every one of them: fully confounded.
    pub always: bool,
    /// Levels beside the baseline's level of the factor asked for.
    pub levels_of_baseline: Vec<Value>,
    /// Levels beside its other levels.
    pub levels_of_others: Vec<Value>,
    /// Another such factor, whose level decides whether this one is there at all.
    pub part_of: Option<String>,
}

/// An arm that nobody ran and that would control the factor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MissingControl {
    /// Its levels; factors that it would not have are left out.
    pub levels: Map<String, Value>,
    /// In words: the factor asked for and those confounded with it.
    pub words: String,
    /// Arms with which it would make a controlled pair.
    pub controls: Vec<String>,
}

/// A level that all arms with an effect have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SharedLevel {
    /// Factor.
    pub factor: String,
    /// Level.
    pub level: Value,
    /// Arms without an effect that have it too; where there is none, the effect goes with it.
    pub also_unaffected: Vec<String>,
}

/// A length that is no multiple of the block.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OddLength {
    /// Factor.
    pub factor: String,
    /// Length.
    pub length: u64,
    /// Block.
    pub block: u64,
    /// Length mod block.
    pub remainder: u64,
    /// Arms with an effect that have it.
    pub affected: Vec<String>,
    /// Arms without an effect that have it.
    pub unaffected: Vec<String>,
}

/// Something that a reader must know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ArmFinding {
    /// `fully_confounded`, `jointly_confounded`, `control_contradicts`, `controls_disagree`, `missing_control`, `same_at_every_level`,
    /// `goes_with`, `odd_length`, `noise_above_effect`.
    pub name: String,
    /// One line.
    pub title: String,
}

/// Answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ArmReport {
    /// Factor asked for.
    pub factor: String,
    /// Key of the score.
    pub effect: String,
    /// The level of the baseline.
    pub baseline_level: Value,
    /// Arms judged.
    pub arms: usize,
    /// The difference may be put down to the factor.
    pub attributable: bool,
    /// Levels other than the baseline's.
    pub levels: Vec<LevelJudgement>,
    /// Factors that change with the one asked for, those that always do first.
    pub confounders: Vec<Confounder>,
    /// Arms that would control it; any one of them tells for the levels that it pairs with.
    pub missing_controls: Vec<MissingControl>,
    /// Arms whose score is not that of the first arm of the baseline's level.
    pub affected: Vec<String>,
    /// Levels that all affected arms share.
    pub shared_by_affected: Vec<SharedLevel>,
    /// The one score of all affected arms, where they have several levels of the factor and one score.
    pub same_score: Option<f64>,
    /// Lengths that are no multiple of the block.
    pub odd_lengths: Vec<OddLength>,
    /// Largest difference of two arms that are equal in every factor: a control of the scores; `null` where no two are.
    pub repeat_difference: Option<f64>,
    /// What was found.
    pub findings: Vec<ArmFinding>,
    /// What the evidence does not cover.
    pub limits: Vec<String>,
    /// Outcome.
    pub verdict: Verdict,
    /// One line.
    pub summary: String,
}

impl ArmFinding {
    fn new(name: &str, title: impl Into<String>) -> Self {
        Self { name: name.to_owned(), title: title.into() }
    }
}

/// A level in words.
fn said(level: &Value) -> String {
    match level {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
