//! Everything that the demo checks, and the one mistake that it names.

use std::path::Path;

use lockstep_diff::gather::GatherOptions;
use lockstep_reference::forward::Precision;
use lockstep_replay::forward::{ForwardOptions, Policy};
use lockstep_replay::selector::{self, SelectorOptions};
use lockstep_traces::store::RunReader;
use lockstep_traces::{Cause, CheckReport, Finding, ModelConfig, Verdict};

use super::experiment::{Arm, Recorded};
use super::probe;
use crate::commands::replaying::{self, Judged};

/// Checks of one compressed run.
pub(super) struct RunChecks {
    pub(super) positions: CheckReport,
    pub(super) gather: CheckReport,
    pub(super) selector: CheckReport,
}

impl RunChecks {
    /// Heads whose keep-set differs among exact ties only.
    pub(super) fn tie_heads(&self) -> u64 {
        self.selector.detail["ties"].as_u64().unwrap_or(0)
    }
}

/// What was found.
pub(super) struct Evidence {
    /// Index of the sample that the story is about: the first that splits, else the first.
    pub(super) chosen: usize,
    /// Checks by sample.
    pub(super) checks: Vec<RunChecks>,
    /// The dense control of the chosen sample on the reference.
    pub(super) dense: Judged,
    /// The compressed run of the chosen sample on the reference, with the recorded keep-sets.
    pub(super) recorded: Judged,
    /// The selector on a cache with exact ties.
    pub(super) ties: CheckReport,
    /// All findings: harness, forward pass of the control, then cache and selector, then forward pass of the compressed run.
    pub(super) findings: Vec<Finding>,
}

impl Evidence {
    pub(super) fn collect(
        recorded: &[Recorded],
        model: &Path,
        out: &Path,
        plant: Option<Cause>,
    ) -> anyhow::Result<Self> {
        let config = ModelConfig::read(model)?;
        let mut checks = Vec::new();
        for one in recorded {
            checks.push(check(one, &config, out)?);
        }
        let splits =
            |one: &&Recorded| one.diff(Arm::Trt).is_ok_and(|diff| diff.splits.token.is_some());
        let chosen = recorded.iter().position(|one| splits(&one)).unwrap_or(0);
        let harness = plant.filter(|cause| cause.is_harness());
        let replay = |arm: Arm, policy: Policy| -> anyhow::Result<Judged> {
            let run = RunReader::open(recorded[chosen].dir(arm)?)?;
            let options = ForwardOptions {
                policy,
                precision: Precision::F32,
                plant: harness,
                ..ForwardOptions::default()
            };
            let target = out.join("replay").join(arm.name());
            replaying::replay(&run, model, &options, &target, Some("replay"))?;
            replaying::judge(&run, &target, model, &options)
        };
        let dense = replay(Arm::Dense, Policy::Dense)?;
        let compressed = replay(Arm::Trt, Policy::Recorded)?;
        let ties = probe::run(out, plant)?;
        let mut all =
            Self { chosen, checks, dense, recorded: compressed, ties, findings: Vec::new() };
        all.findings = all.gathered();
        Ok(all)
    }

    fn gathered(&self) -> Vec<Finding> {
        let mut found = self.dense.findings.clone();
        found.extend(self.recorded.self_check.findings.iter().cloned());
        for checks in &self.checks {
            for check in [&checks.positions, &checks.gather, &checks.selector] {
                found.extend(check.findings.iter().cloned());
            }
        }
        found.extend(self.ties.findings.iter().cloned());
        found.extend(
            self.recorded.localized.iter().flat_map(|check| check.findings.iter().cloned()),
        );
        found
    }

    /// The mistake that the evidence names: the first finding in order that names one.
    pub(super) fn fault(&self) -> Option<Cause> {
        self.findings.iter().find_map(|finding| finding.cause)
    }

    /// Checks of the chosen sample.
    pub(super) fn of_chosen(&self) -> &RunChecks {
        &self.checks[self.chosen]
    }

    /// Every check and replay agrees.
    pub(super) fn clean(&self) -> bool {
        let sound = |verdict: &Verdict| {
            matches!(verdict, Verdict::Identical | Verdict::WithinNoise | Verdict::Tie)
        };
        self.findings.is_empty()
            && sound(&self.ties.verdict)
            && sound(&self.dense.verdict)
            && sound(&self.recorded.verdict)
            && self.checks.iter().all(|checks| {
                sound(&checks.positions.verdict)
                    && sound(&checks.gather.verdict)
                    && sound(&checks.selector.verdict)
            })
    }
}

fn check(one: &Recorded, config: &ModelConfig, out: &Path) -> anyhow::Result<RunChecks> {
    let run = RunReader::open(one.dir(Arm::Trt)?)?;
    let options = SelectorOptions {
        stats: Some(out.join("stats.safetensors")),
        model: Some(config.clone()),
        ..SelectorOptions::default()
    };
    Ok(RunChecks {
        positions: lockstep_diff::positions::check(&run)?,
        gather: lockstep_diff::gather::check(&run, &GatherOptions::default())?,
        selector: selector::check(&run, &options)?,
    })
}
