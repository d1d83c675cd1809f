//! One compaction under judgement: recorded stages and keep-sets against the rule set's, and against the hypotheses.

use lockstep_reference::select::{Grid, Input, LayerScores, NoiseStream, Real, Selection};
use lockstep_traces::PolicySpec;

use super::SelectorError;
use super::affine;
use super::check::Checker;
use super::detail::{EventDetail, HypothesisDetail, SetDetail, SetStatus};
use super::event::Event;
use super::hypotheses::{Hypothesis, matrix};
use super::judge::{Judged, judge};
use super::limits::Limits;
use super::notes::EventNotes;
use super::setup::{Evaluated, Setup, evaluate};

/// Compactions that differ for which every hypothesis is computed.
const WHOLE_MATRICES: usize = 3;

/// One compaction under judgement.
pub(super) struct Case<'a> {
    pub(super) checker: &'a Checker<'a>,
    pub(super) setup: Setup,
    pub(super) spec: PolicySpec,
    pub(super) event: &'a Event,
    pub(super) input: &'a Input<'a>,
    /// Keys were dumped.
    pub(super) known: bool,
}

impl Case<'_> {
    /// Judges the compaction and, where it differs, tries the hypotheses.
    pub(super) fn run(&self) -> Result<(EventDetail, EventNotes), SelectorError> {
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
