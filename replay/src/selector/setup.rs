//! One way to compute a selection: rules, recipe, moment, frequencies; and its evaluation.

use lockstep_reference::select::{
    HeadStats, Input, LayerScores, NoiseStream, Outcome, Plan, Ranker, Ranking, Real, Recipe,
    RowOrder, Rules, SelectError, Selection, ZRows, best, plan, select_by,
};
use rayon::prelude::*;

use super::event::Recorded;

/// What is done to the guards of a ranking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GuardEdit {
    /// Nothing.
    None,
    /// The newest row is not guarded by the window.
    NewestFree,
    /// The window ends, and begins, one row early.
    Shifted,
    /// The newest row is never kept.
    NewestDropped,
}

/// A way to compute a selection.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) rules: Rules,
    pub(super) recipe: Recipe,
    pub(super) guard: GuardEdit,
    /// R; `None`: as the rule set has it.
    pub(super) round_start: Option<usize>,
    /// Frequencies; `None`: those of the statistics in use.
    pub(super) omega: Option<Vec<f32>>,
}

impl Setup {
    pub(super) fn of(rules: Rules) -> Self {
        let recipe = Recipe::of(&rules);
        Self { rules, recipe, guard: GuardEdit::None, round_start: None, omega: None }
    }

    /// Do the two give the same raw scores of the same rows?
    pub(super) fn scores_like(&self, other: &Self) -> bool {
        let (a, b) = (&self.recipe, &other.recipe);
        a.keys == b.keys
            && a.pairing == b.pairing
            && a.moduli == b.moduli
            && (a.mean_floor, a.key_floor) == (b.mean_floor, b.key_floor)
            && a.phases == b.phases
            && a.omega_bf16 == b.omega_bf16
            && a.offset_max_length == b.offset_max_length
            && a.offsets == b.offsets
            && (a.no_mlr, a.no_trig) == (b.no_mlr, b.no_trig)
            && a.heads == b.heads
            && (a.z_rows == ZRows::All) == (b.z_rows == ZRows::All)
            && self.rules.protect_prefill == other.rules.protect_prefill
            && self.rules.rule_set == other.rules.rule_set
            && self.round_start == other.round_start
            && self.omega == other.omega
    }
}

/// A selection and, where rows were ranked, the raw scores it came from.
pub(super) struct Evaluated<R> {
    pub(super) selection: Selection,
    pub(super) raw: Option<Vec<LayerScores<R>>>,
}

fn over_layers<R: Real>(
    layers: usize,
    score: &(dyn Fn(usize) -> LayerScores<R> + Sync),
) -> Vec<LayerScores<R>> {
    (0..layers).into_par_iter().map(score).collect()
}

/// Evaluates a setup. Raw scores are taken from `held` where given, from the recorded ones where the keys were not dumped
/// (`keys_known` false), and computed otherwise.
pub(super) fn evaluate<R: Real>(
    setup: &Setup,
    stats: &HeadStats,
    input: &Input<'_>,
    held: Option<&[LayerScores<R>]>,
    recorded: Option<&Recorded>,
    noise: Option<&NoiseStream>,
) -> Result<Evaluated<R>, SelectError> {
    let mut input = input.clone();
    if let Some(round_start) = setup.round_start {
        input.moment.round_start = round_start;
    }
    let own;
    let stats = match &setup.omega {
        Some(omega) => {
            own = stats.with_omega(omega)?;
            &own
        }
        None => stats,
    };
    let mut noise = noise.filter(|_| setup.rules.noise_seed.is_some()).cloned();
    let mut ranking = match plan(&setup.rules, &input) {
        Plan::Ranked(ranking) => ranking,
        Plan::Identity | Plan::Fixed { .. } | Plan::Refused { .. } => {
            let selection =
                select_by::<R>(&setup.rules, &setup.recipe, stats, &input, None, &over_layers)?;
            debug_assert_ne!(selection.outcome, Outcome::Ranked);
            return Ok(Evaluated { selection, raw: None });
        }
    };
    edit(&mut ranking, setup);
    let ranker = Ranker::new(&setup.recipe, &ranking, stats, &input)?;
    let raw = match (held, recorded) {
        (Some(held), _) => held.to_vec(),
        (None, Some(recorded)) => from_recorded(recorded, &setup.recipe, &ranking, &ranker)?,
        (None, None) => ranker.raw::<R>(&input, &over_layers)?,
    };
    let mut selection = ranker.rank(&raw, noise.as_mut());
    if setup.guard == GuardEdit::NewestDropped {
        drop_newest(&mut selection, &setup.recipe);
    }
    Ok(Evaluated { selection, raw: Some(raw) })
}

fn edit(ranking: &mut Ranking, setup: &Setup) {
    let rows = ranking.guarded.len();
    let window = setup.rules.recent_window.min(rows).min(ranking.keep);
    if window == 0 {
        return;
    }
    match setup.guard {
        GuardEdit::None | GuardEdit::NewestDropped => {}
        GuardEdit::NewestFree | GuardEdit::Shifted => {
            if let Some(newest) = ranking.guarded.last_mut() {
                *newest = false;
            }
        }
    }
    if setup.guard == GuardEdit::Shifted
        && let Some(before) =
            rows.checked_sub(window + 1).and_then(|row| ranking.guarded.get_mut(row))
    {
        *before = true;
    }
}

/// Ranks the newest row last and chooses again.
fn drop_newest(selection: &mut Selection, recipe: &Recipe) {
    selection.protected.pop();
    let (Some(stages), Some(keep)) = (&mut selection.stages, &mut selection.keep) else { return };
    let (cols, first) = (stages.final_scores.cols().max(1), stages.score_row_offset);
    for (row, set) in stages.final_scores.values.chunks_exact_mut(cols).zip(&mut keep.sets) {
        if let Some(newest) = row.last_mut() {
            *newest = f64::NEG_INFINITY;
        }
        let mut chosen = best(row, set.len().saturating_sub(first), recipe.ties);
        if recipe.order == RowOrder::Ascending {
            chosen.sort_unstable();
        }
        *set = (0..first).chain(chosen.into_iter().map(|row| row + first)).collect();
    }
}

/// Recorded raw scores in the shape of computed ones.
fn from_recorded<R: Real>(
    recorded: &Recorded,
    recipe: &Recipe,
    ranking: &Ranking,
    ranker: &Ranker<'_>,
) -> Result<Vec<LayerScores<R>>, SelectError> {
    let wrong = |what: &str| SelectError::Input { what: what.to_owned() };
    let grid =
        recorded.raw.as_ref().ok_or_else(|| wrong("neither keys nor raw scores were dumped"))?;
    let [layers, heads, _] = grid.shape[..] else {
        return Err(wrong("recorded raw scores have no three axes"));
    };
    if layers != ranker.score_layers().len() || heads != ranker.score_heads().len() {
        return Err(wrong(
            "recorded raw scores are of other layers or heads than the rule set scores",
        ));
    }
    let wanted = if recipe.z_rows == ZRows::All { 0 } else { ranking.first };
    let cut = wanted
        .checked_sub(recorded.offset)
        .ok_or_else(|| wrong("rows that this z-score counts have no recorded raw score"))?;
    let row = |row: &[f64]| {
        let sampled = row.iter().any(|value| !value.is_nan());
        sampled.then(|| row.iter().skip(cut).map(|value| R::of(*value)).collect())
    };
    let rows: Vec<Option<Vec<R>>> = grid.rows().map(row).collect();
    Ok(rows.chunks_exact(heads.max(1)).map(<[_]>::to_vec).collect())
}
