//! The check over all dumped compactions of a run.

use std::collections::BTreeMap;

use lockstep_reference::select::{
    Grid, Input, KeyView, LayerScores, NoiseStream, Plan, Real, Selection, noise_draws, plan_rows,
};
use lockstep_traces::store::{DumpFile, RunReader};
use lockstep_traces::{
    CheckKind, CheckReport, DumpId, EventRow, PolicySpec, RuleSet, Verdict, stats,
};

use super::affine;
use super::detail::{EventDetail, HypothesisDetail, SetDetail, SetStatus};
use super::event::Event;
use super::facts::{self, Moved};
use super::findings::{EventNotes, Ledger};
use super::hypotheses::{Hypothesis, matrix};
use super::judge::{Judged, judge};
use super::limits::Limits;
use super::settings::{self, Model};
use super::setup::{Evaluated, Setup, evaluate};
use super::{SelectorError, SelectorOptions};

const UNIT: &str = "keep-sets";

/// Compactions that differ for which every hypothesis is computed.
const WHOLE_MATRICES: usize = 3;

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

struct Checker<'a> {
    options: &'a SelectorOptions,
    spec: PolicySpec,
    setup: Setup,
    model: Model,
    events: Vec<EventRow>,
    /// Prompt lengths by sample.
    prompts: BTreeMap<String, usize>,
    /// Rule set that the run records, whatever it is judged by.
    claimed: Option<RuleSet>,
    /// Layers of the model, where recorded.
    layers: Option<u32>,
    ledger: Ledger,
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
    fn noise(&self, event: &Event) -> Option<NoiseStream> {
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

/// One compaction under judgement.
struct Case<'a> {
    checker: &'a Checker<'a>,
    setup: Setup,
    spec: PolicySpec,
    event: &'a Event,
    input: &'a Input<'a>,
    /// Keys were dumped.
    known: bool,
}

impl Case<'_> {
    fn run(&self) -> Result<(EventDetail, EventNotes), SelectorError> {
        let setup = &self.setup;
        let noise = self.checker.noise(self.event);
        let exact = self.evaluate::<f64>(setup, None, noise.as_ref())?;
        let asked = self.checker.options.tolerance;
        let mut limits = Limits::floors(&setup.recipe, setup.rules.rule_set, asked);
        if !setup.recipe.normalize {
            limits = limits.in_raw_units(&exact.selection);
        }
        let mut judged = judge(self.event, &exact.selection, &setup.recipe, &limits);
        if !judged.agrees() && self.known {
            let rough = self.evaluate::<f32>(setup, None, noise.as_ref())?;
            limits = limits.with_control(&exact.selection, &rough.selection);
            if let Some(asked) = asked {
                limits.stage[0] = asked;
            }
            judged = judge(self.event, &exact.selection, &setup.recipe, &limits);
        }
        let mut hypotheses = if !judged.agrees() || self.checker.options.always_hypotheses {
            self.hypotheses(&exact, &limits, noise.as_ref())?
        } else {
            Vec::new()
        };
        if !self.known && !hypotheses.iter().any(|hypothesis| hypothesis.reproduces) {
            hypotheses.extend(affine::unrecorded_rows(&self.event.scores, &judged));
        }
        let notes = EventNotes::of(self.event, self.input, &exact.selection, self.known);
        Ok((self.detail(&judged, hypotheses), notes))
    }

    fn evaluate<R: Real>(
        &self,
        setup: &Setup,
        held: Option<&[LayerScores<R>]>,
        noise: Option<&NoiseStream>,
    ) -> Result<Evaluated<R>, SelectorError> {
        let recorded = (!self.known).then_some(&self.event.scores);
        let stats = &self.checker.model.stats;
        Ok(evaluate(setup, stats, self.input, held, recorded, noise)?)
    }

    /// The whole matrix for the first compactions that differ; after them what has explained one before, and the whole only
    /// where that does not explain this one.
    fn hypotheses(
        &self,
        exact: &Evaluated<f64>,
        limits: &Limits,
        noise: Option<&NoiseStream>,
    ) -> Result<Vec<HypothesisDetail>, SelectorError> {
        let checker = self.checker;
        let all = matrix(&self.setup, &self.spec, &checker.model, self.input);
        let explained = checker.ledger.explanations();
        let (known, rest): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|hypothesis| explained.contains(hypothesis.name));
        let mut details = Vec::new();
        for hypothesis in &known {
            details.extend(self.hypothesis(hypothesis, exact, limits, noise)?);
        }
        let enough = checker.ledger.differing() >= WHOLE_MATRICES
            && details.iter().any(|detail| detail.reproduces);
        if !enough || checker.options.always_hypotheses {
            for hypothesis in &rest {
                details.extend(self.hypothesis(hypothesis, exact, limits, noise)?);
            }
        }
        Ok(details)
    }

    /// `None` where the dump does not hold what the hypothesis needs, or its rules cannot be applied to this cache.
    fn hypothesis(
        &self,
        hypothesis: &Hypothesis,
        exact: &Evaluated<f64>,
        limits: &Limits,
        noise: Option<&NoiseStream>,
    ) -> Result<Option<HypothesisDetail>, SelectorError> {
        let same_scores = hypothesis.setup.scores_like(&self.setup);
        // Recorded raw scores stand for other rows as well, where those were recorded.
        if !self.known && !hypothesis.setup.scores_like(&with_z_rows(&self.setup, hypothesis)) {
            return Ok(None);
        }
        let held = exact.raw.as_deref().filter(|_| same_scores);
        let other = match self.evaluate::<f64>(&hypothesis.setup, held, noise) {
            Ok(other) => other.selection,
            // Statistics of a part of the heads cannot be averaged, for one: the hypothesis does not apply.
            Err(SelectorError::Select(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let judged = judge(self.event, &other, &hypothesis.setup.recipe, limits);
        let indistinguishable = alike(self.event, &exact.selection, &other, limits);
        Ok(Some(HypothesisDetail {
            name: hypothesis.name.to_owned(),
            cause: hypothesis.cause.map(|cause| cause.slug().to_owned()),
            exact_heads: judged.count(SetStatus::Exact),
            tie_heads: judged.count(SetStatus::Tie),
            heads: u64::try_from(judged.sets.len()).unwrap_or(u64::MAX),
            mean_jaccard: judged.mean_jaccard(),
            max_stage_error: judged.max_stage_error(),
            first_stage: judged.first_stage().map(str::to_owned),
            reproduces: judged.agrees() && !indistinguishable,
            indistinguishable,
        }))
    }

    fn detail(&self, judged: &Judged, hypotheses: Vec<HypothesisDetail>) -> EventDetail {
        let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let first = judged.first_stage();
        let tied = judged.sets.iter().any(|set| set.status == SetStatus::Tie);
        let status = match (first, tied) {
            (Some(_), _) => SetStatus::Differs,
            (None, true) => SetStatus::Tie,
            (None, false) => SetStatus::Exact,
        };
        let told = |set: &&SetDetail| {
            set.status != SetStatus::Exact
                || !set.ordered
                || !set.unprotected.is_empty()
                || set.against_tie_rule
        };
        EventDetail {
            sample_id: self.event.sample_id.clone(),
            ordinal: self.event.ordinal,
            absolute_position: narrow(self.event.absolute_position),
            round_start: self.event.round_start.map(narrow),
            rows_before: narrow(self.event.rows_before),
            rows_after: narrow(self.event.rows_after),
            status,
            first_stage: first.map(str::to_owned),
            heads: u64::try_from(judged.sets.len()).unwrap_or(u64::MAX),
            exact: judged.count(SetStatus::Exact),
            tie: judged.count(SetStatus::Tie),
            differs: judged.count(SetStatus::Differs),
            stages: judged.stages.clone(),
            sets: judged.sets.iter().filter(told).cloned().collect(),
            budget: judged.budget.clone(),
            hypotheses,
        }
    }
}

/// The setup with the rows of the hypothesis in its z-score.
fn with_z_rows(setup: &Setup, hypothesis: &Hypothesis) -> Setup {
    let mut setup = setup.clone();
    setup.recipe.z_rows = hypothesis.setup.recipe.z_rows;
    setup
}

/// Would nothing that is recorded tell the two selections apart?
fn alike(event: &Event, a: &Selection, b: &Selection, limits: &Limits) -> bool {
    let keeps = event.keep.is_none() || a.keep == b.keep;
    let (Some(x), Some(y)) = (&a.stages, &b.stages) else {
        return keeps && a.stages.is_none() == b.stages.is_none();
    };
    let scores = &event.scores;
    let pairs = [
        (scores.raw.is_some(), &x.raw, &y.raw),
        (scores.z.is_some(), &x.z, &y.z),
        (scores.group.is_some(), &x.group, &y.group),
        (scores.ranked.is_some(), &x.final_scores, &y.final_scores),
    ];
    let near = |(index, (recorded, x, y)): (usize, (bool, &Grid, &Grid))| {
        let scale = if index == 0 {
            x.values.iter().filter(|v| v.is_finite()).fold(0.0f64, |held, v| held.max(v.abs()))
        } else {
            1.0
        };
        let limit = limits.stage[index] * scale;
        let close = |(x, y): (&f64, &f64)| {
            x.total_cmp(y).is_eq() || (x - y).abs() <= limit || (x.is_nan() && y.is_nan())
        };
        !recorded || (x.shape == y.shape && x.values.iter().zip(&y.values).all(close))
    };
    keeps && pairs.into_iter().enumerate().all(near)
}
