//! The check over all dumped compactions of a run.

use std::collections::BTreeMap;

use lockstep_reference::select::{KeyView, NoiseStream, Plan, noise_draws, plan_rows};
use lockstep_traces::store::{DumpFile, RunReader};
use lockstep_traces::{
    CheckKind, CheckReport, DumpId, EventRow, PolicySpec, RuleSet, Verdict, stats,
};

use super::case::Case;
use super::event::Event;
use super::facts::{self, Moved};
use super::findings::Ledger;
use super::settings::{self, Model};
use super::setup::Setup;
use super::{SelectorError, SelectorOptions};

const UNIT: &str = "keep-sets";

/// Recomputes every dumped compaction of `run` under its rule set and compares scores, stage by stage, and keep-sets.
/// Where something differs, the hypothesis matrix is run and names the mistake that gives what was recorded.
///
/// # Errors
/// [`SelectorError`] where a file cannot be read or a dump contradicts itself. A run without dumped compactions, or
/// without what the selection reads, is `incomparable` with the reason.
pub fn check(run: &RunReader, options: &SelectorOptions) -> Result<CheckReport, SelectorError> {
    let spec = settings::policy(run.manifest())?;
    if options.rule_set.is_none()
        && let Some(why) = settings::without_selector(&spec)
    {
        return Ok(incomparable(why));
    }
    let rule_set = options.rule_set.or(spec.rule_set);
    let mut ledger = Ledger::default();
    let asked = asked(run, options)?;
    facts::absent(run, &asked, &mut ledger);
    let dumps = wanted(run, options)?;
    if dumps.is_empty() {
        for event in &asked {
            ledger.round_start(rule_set, Moved::of(event), event.round_start);
        }
        let compactions = run.events(options.sample_id.as_deref())?.len();
        return Ok(ledger.without_dumps(compactions));
    }
    let Some(path) = options.stats.clone().or_else(|| settings::stats_path(run.manifest())) else {
        return Ok(incomparable("the calibration statistics are not given"));
    };
    let recorded = run.manifest().model.stats_sha256.as_deref();
    let found = lockstep_traces::hash::sha256_file(&path)?;
    if recorded.is_some_and(|recorded| recorded != found) {
        return Ok(incomparable(format!(
            "{} is not the statistics file of this run: its sha256 is {found}",
            path.display()
        )));
    }
    let stats = stats::read(&path)?;
    let rules = settings::rules(&spec, options.rule_set)?;
    let mut model = settings::model(run.manifest(), &stats, options, rules.rule_set)?;
    model.notes.extend(settings::unrecorded(&spec, &rules));
    let prompts = run
        .samples()?
        .into_iter()
        .filter_map(|sample| Some((sample.sample_id, usize::try_from(sample.prompt_len?).ok()?)));
    let mut checker = Checker {
        options,
        claimed: spec.rule_set,
        layers: settings::layers(run.manifest()),
        prompts: prompts.collect(),
        spec: PolicySpec { rule_set: Some(rules.rule_set), ..spec },
        setup: Setup::of(rules),
        model,
        events: run.events(None)?,
        ledger,
    };
    for (sample_id, ordinal, file) in dumps {
        checker.one(&file, &sample_id, ordinal)?;
    }
    Ok(checker.report(recorded.is_none()))
}

fn incomparable(why: impl Into<String>) -> CheckReport {
    CheckReport {
        kind: CheckKind::Selector,
        verdict: Verdict::Incomparable { why: why.into() },
        compared: 0,
        different: 0,
        skipped: 0,
        unit: UNIT.to_owned(),
        findings: Vec::new(),
        limits: Vec::new(),
        detail: serde_json::Value::Null,
    }
}

/// Recorded compactions that the options ask for.
fn asked(run: &RunReader, options: &SelectorOptions) -> Result<Vec<EventRow>, SelectorError> {
    let chosen = |ordinal| options.ordinals.as_ref().is_none_or(|choice| choice.has(ordinal));
    let mut events = run.events(options.sample_id.as_deref())?;
    events.retain(|event| chosen(event.ordinal));
    Ok(events)
}

type DumpedCompaction = (String, u32, DumpFile);

fn wanted(
    run: &RunReader,
    options: &SelectorOptions,
) -> Result<Vec<DumpedCompaction>, SelectorError> {
    let mut list = Vec::new();
    for id in run.dumps()? {
        let DumpId::Compaction { sample_id, ordinal } = &id else { continue };
        let sample = options.sample_id.as_ref().is_none_or(|wanted| wanted == sample_id);
        let chosen = options.ordinals.as_ref().is_none_or(|choice| choice.has(*ordinal));
        if !sample || !chosen {
            continue;
        }
        if let Some(file) = run.dump(&id)? {
            list.push((sample_id.clone(), *ordinal, file));
        }
    }
    Ok(list)
}

/// The check under way.
pub(super) struct Checker<'a> {
    pub(super) options: &'a SelectorOptions,
    spec: PolicySpec,
    setup: Setup,
    pub(super) model: Model,
    events: Vec<EventRow>,
    /// Prompt lengths by sample.
    prompts: BTreeMap<String, usize>,
    /// Rule set that the run records, whatever it is judged by.
    claimed: Option<RuleSet>,
    /// Layers of the model, where recorded.
    layers: Option<u32>,
    pub(super) ledger: Ledger,
}

impl Checker<'_> {
    fn one(&mut self, file: &DumpFile, sample_id: &str, ordinal: u32) -> Result<(), SelectorError> {
        let row = self
            .events
            .iter()
            .find(|row| row.sample_id == sample_id && row.ordinal == ordinal)
            .cloned();
        let claims = facts::claims(file, sample_id, ordinal, row.as_ref(), self.claimed);
        let judged = claims.iter().all(|claim| claim.harmless);
        self.ledger.contradicted(sample_id, ordinal, claims);
        if !judged {
            return Ok(());
        }
        let mut event = Event::read(file, sample_id, ordinal)?;
        event.prompt_len = event.prompt_len.or_else(|| self.prompts.get(sample_id).copied());
        if let Some(row) = &row {
            event.absolute_position = usize::try_from(row.absolute_position).unwrap_or(usize::MAX);
        }
        let keys = self.keys(file, &event)?;
        if keys.is_empty() {
            let recorded = [event.round_start.and_then(|r| u32::try_from(r).ok())];
            let recorded = recorded.into_iter().chain([row.and_then(|row| row.round_start)]);
            for round_start in recorded {
                self.ledger.round_start(self.spec.rule_set, Moved::at(&event), round_start);
            }
        }
        if let Some(why) = self.unusable(&event, &keys) {
            self.ledger.skip(&event, why);
            return Ok(());
        }
        let Some(positions) = event.positions.clone() else { return Ok(()) };
        if event.keep.is_none() {
            self.ledger.skip(&event, "keep-sets (`keep`) are not dumped");
        }
        let known = !keys.is_empty();
        let (mut setup, mut spec) = (self.setup.clone(), self.spec.clone());
        if spec.kv_budget.is_none() {
            (setup.rules.kv_budget, spec.kv_budget) = (event.rows_after, Some(event.rows_after));
        }
        let input = event.input(keys, positions, self.model.q_heads, &setup.rules);
        let case = Case { checker: self, setup, spec, event: &event, input: &input, known };
        let (detail, notes) = case.run()?;
        self.ledger.add(detail, notes);
        Ok(())
    }

    /// Keys of every layer that the rule set scores; none where one of them is missing.
    fn keys<'f>(
        &mut self,
        file: &'f DumpFile,
        event: &Event,
    ) -> Result<Vec<KeyView<'f>>, SelectorError> {
        let keys = event.keys(file)?;
        let layers = self.layers.unwrap_or(u32::MAX);
        let missing = self
            .model
            .stats
            .layers()
            .iter()
            .find(|layer| **layer < layers && !event.layers.contains(layer));
        match missing {
            Some(layer) if !keys.is_empty() => {
                let why =
                    format!("keys of a scored layer (`pre.k.layer{layer:02}`) are not dumped");
                self.ledger.skip(event, &why);
                Ok(Vec::new())
            }
            _ => Ok(keys),
        }
    }

    /// Why a dump cannot be judged at all, if it cannot.
    fn unusable(&self, event: &Event, keys: &[KeyView<'_>]) -> Option<&'static str> {
        let rules = &self.setup.rules;
        if event.prompt_len.is_none() && (rules.protect_prefill || !rules.count_prompt_tokens) {
            return Some("the prompt's length is not recorded");
        }
        if event.positions.is_none() {
            return Some("positions before the compaction (`positions.pre`) are not dumped");
        }
        if keys.is_empty() && event.scores.raw.is_none() {
            return Some("neither keys (`pre.k.layerNN`) nor raw scores (`scores.raw`) are dumped");
        }
        if event.keep.is_none() && event.scores.is_empty() {
            return Some("neither keep-sets (`keep`) nor scores are dumped");
        }
        None
    }

    /// Noise of rule set `hf` as it stands before this compaction: draws of the earlier ones of the sample are passed over.
    pub(super) fn noise(&self, event: &Event) -> Option<NoiseStream> {
        let mut stream = NoiseStream::new(self.setup.rules.noise_seed?);
        let earlier = self
            .events
            .iter()
            .filter(|row| row.sample_id == event.sample_id && row.ordinal < event.ordinal);
        for row in earlier {
            let rows = usize::try_from(row.rows_before).unwrap_or(usize::MAX);
            let n = usize::try_from(row.absolute_position).unwrap_or(usize::MAX);
            let moment = lockstep_reference::select::Moment::at(n, event.prompt_len.unwrap_or(0));
            if let Plan::Ranked(ranking) = plan_rows(&self.setup.rules, rows, moment, &[]) {
                let cols = rows - ranking.first;
                stream.skip(noise_draws(&self.setup.recipe, &self.model.stats, cols));
            }
        }
        Some(stream)
    }

    fn report(self, unverified: bool) -> CheckReport {
        let mut limits = self.model.notes.clone();
        if unverified {
            limits.push(
                "the run records no hash of its statistics file: the one given is taken on trust"
                    .to_owned(),
            );
        }
        self.ledger.report(&self.setup, limits)
    }
}
