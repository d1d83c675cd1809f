//! The demo's runs: each problem dense, under TriAttention, and under the naive controls, all at the same budget.

use std::path::{Path, PathBuf};

use lockstep_diff::DiffReport;
use lockstep_runtime::engine::{Engine, RunOptions};
use lockstep_runtime::tokenize::Tokenizer;
use lockstep_traces::stats::QueryStats;
use lockstep_traces::{Cause, Choice, PolicyKind, PolicySpec, RecordPlan, RuleSet, SamplingSpec};

use super::embedded::Problem;
use crate::commands::diff::compare;
use crate::commands::inputs::Trace;
use crate::commands::recording::{self, Job};

/// Rows between compactions; with budgets of the prompt and 0.9 of the completion the effect shows.
const DIVIDE: usize = 32;

/// Tokens beyond the exact completion after which a run that went astray is cut.
const GRACE: usize = 16;

/// What a problem is run under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Arm {
    Dense,
    Trt,
    Recent,
    Random,
}

impl Arm {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Dense => "dense",
            Self::Trt => "trt",
            Self::Recent => "recent",
            Self::Random => "random",
        }
    }

    const fn kind(self) -> PolicyKind {
        match self {
            Self::Dense => PolicyKind::Dense,
            Self::Trt => PolicyKind::Triattention,
            Self::Recent => PolicyKind::Recent,
            Self::Random => PolicyKind::Random,
        }
    }
}

/// Rows that the demo keeps of a completion of this length.
pub(super) fn budget(problem: &Problem) -> usize {
    problem.request.prompt_ids.len() + problem.completion_len * 9 / 10
}

/// One problem with its recorded arms.
pub(super) struct Recorded {
    pub(super) problem: Problem,
    pub(super) dirs: Vec<(Arm, PathBuf)>,
    pub(super) traces: Vec<(Arm, Trace)>,
    /// Dense against each other arm.
    pub(super) diffs: Vec<(Arm, DiffReport)>,
}

impl Recorded {
    pub(super) fn trace(&self, arm: Arm) -> anyhow::Result<&Trace> {
        let found = self.traces.iter().find(|(have, _)| *have == arm).map(|(_, trace)| trace);
        found.ok_or_else(|| {
            anyhow::anyhow!("{}: no {} run", self.problem.request.sample_id, arm.name())
        })
    }

    pub(super) fn dir(&self, arm: Arm) -> anyhow::Result<&Path> {
        let found = self.dirs.iter().find(|(have, _)| *have == arm).map(|(_, dir)| dir.as_path());
        found.ok_or_else(|| {
            anyhow::anyhow!("{}: no {} run", self.problem.request.sample_id, arm.name())
        })
    }

    pub(super) fn diff(&self, arm: Arm) -> anyhow::Result<&DiffReport> {
        let found = self.diffs.iter().find(|(have, _)| *have == arm).map(|(_, diff)| diff);
        found.ok_or_else(|| {
            anyhow::anyhow!("{}: no {} comparison", self.problem.request.sample_id, arm.name())
        })
    }
}

/// What all runs of the demo share.
pub(super) struct Bench<'a> {
    pub(super) engine: &'a Engine,
    pub(super) stats: &'a QueryStats,
    pub(super) stats_path: &'a Path,
    pub(super) out: &'a Path,
    pub(super) plant: Option<Cause>,
}

impl Bench<'_> {
    /// Records a problem under each arm and compares. `None`: interrupted.
    pub(super) fn record(
        &self,
        problem: &Problem,
        arms: &[Arm],
    ) -> anyhow::Result<Option<Recorded>> {
        let (mut dirs, mut traces) = (Vec::new(), Vec::new());
        for &arm in arms {
            let dir = self.out.join("runs").join(&problem.request.sample_id).join(arm.name());
            let options = self.options(problem, arm);
            let plan = plan(problem, arm);
            let requests = [problem.request.clone()];
            let stats = (arm == Arm::Trt).then_some(self.stats_path);
            let label = format!("{} {}", problem.request.sample_id, arm.name());
            let job = Job {
                requests: &requests,
                options: &options,
                plan: &plan,
                stats,
                label: Some(&label),
            };
            if recording::record(self.engine, &job, &dir, false)?.is_none() {
                return Ok(None);
            }
            traces.push((arm, Trace::read(&dir)?));
            dirs.push((arm, dir));
        }
        let mut recorded = Recorded { problem: problem.clone(), dirs, traces, diffs: Vec::new() };
        recorded.diffs = compare_all(&recorded, self.engine.tokenizer())?;
        Ok(Some(recorded))
    }

    fn options(&self, problem: &Problem, arm: Arm) -> RunOptions {
        let compressed = arm != Arm::Dense;
        RunOptions {
            policy: PolicySpec {
                kind: Some(arm.kind()),
                rule_set: (arm == Arm::Trt).then_some(RuleSet::Trt),
                kv_budget: compressed.then(|| budget(problem)),
                divide_length: compressed.then_some(DIVIDE),
                policy_seed: (arm == Arm::Random).then_some(0),
                ..PolicySpec::default()
            },
            sampling: SamplingSpec { temperature: Some(0.0), ..SamplingSpec::default() },
            stats: (arm == Arm::Trt).then(|| self.stats.clone()),
            max_new_tokens: problem.completion_len + GRACE,
            plant: self.plant_for(arm),
            ..RunOptions::default()
        }
    }

    /// Where the planted mistake can sit: the forward pass of any arm, the cache of a compacted one, the selector of TriAttention.
    fn plant_for(&self, arm: Arm) -> Option<Cause> {
        let cause = self.plant.filter(|cause| !cause.is_harness())?;
        let possible = match cause {
            Cause::RotaryBase
            | Cause::QkNormSkipped
            | Cause::NormEpsilon
            | Cause::CausalMask
            | Cause::GqaTile => true,
            cause if cause.is_sampler() => false,
            Cause::PhysicalPositions | Cause::ValueNotGathered | Cause::StaleRow => {
                arm != Arm::Dense
            }
            _ => arm == Arm::Trt,
        };
        possible.then_some(cause)
    }
}

/// TriAttention runs keep their caches, scores and some hidden states; the dense control keeps hidden states of the same rows.
fn plan(problem: &Problem, arm: Arm) -> RecordPlan {
    let prompt = u32::try_from(problem.request.prompt_ids.len()).unwrap_or(u32::MAX);
    let first = u32::try_from(budget(problem) + DIVIDE).unwrap_or(u32::MAX);
    let divide = u32::try_from(DIVIDE).unwrap_or(u32::MAX);
    let hidden =
        Choice::These(vec![1, prompt - 1, prompt, first - 1, first, first + 1, first + divide + 1]);
    let traced = matches!(arm, Arm::Dense | Arm::Trt);
    let dumps = if arm == Arm::Trt { Choice::All } else { Choice::None };
    RecordPlan {
        cache: dumps.clone(),
        scores: dumps,
        hidden: if traced { hidden } else { Choice::None },
        hidden_layers: Choice::All,
        logits: Choice::None,
        top_k: 8,
    }
}

fn compare_all(
    recorded: &Recorded,
    tokenizer: Option<&Tokenizer>,
) -> anyhow::Result<Vec<(Arm, DiffReport)>> {
    let dense = recorded.trace(Arm::Dense)?;
    let others = recorded.traces.iter().filter(|(arm, _)| *arm != Arm::Dense);
    Ok(others.map(|(arm, trace)| (*arm, compare(dense, trace, None, tokenizer))).collect())
}
