//! Whoever runs the rule-set cases: the reference here, a runtime elsewhere.

use lockstep_reference::select::{
    Grid, Heads, Input, KeyView, Moment, NoiseStream, Outcome, Plan, Positions, Progress, Ranker,
    Recipe, Rules, Selection, due, plan, select,
};
use lockstep_traces::PolicySpec;

use super::golden::CaseStats;

/// One selection of a golden case.
#[derive(Debug)]
pub struct SelectorCase<'a> {
    /// Name of the case.
    pub name: &'a str,
    /// Rule set and settings; what is `None` is the rule set's default.
    pub spec: PolicySpec,
    /// Statistics.
    pub stats: &'a CaseStats,
    /// Layer numbers of `keys`.
    pub layers: Vec<u32>,
    /// Cached keys by layer.
    pub keys: Vec<KeyView<'a>>,
    /// Positions of the rows.
    pub positions: Positions,
    /// Heads of the model.
    pub heads: Heads,
    /// Where the sequence stands.
    pub moment: Moment,
    /// A new generation: noise begins anew. False for the later compactions of a lifecycle.
    pub begins: bool,
}

/// Runs selections and says when they are due.
pub trait Implementation {
    /// Name for the report.
    fn name(&self) -> &str;

    /// Selects.
    ///
    /// # Errors
    /// One line, where the implementation refuses the case.
    fn select(&mut self, case: &SelectorCase<'_>) -> Result<Selection, String>;

    /// Ranks by given raw scores `[layers, heads, rows]`; `None` where the implementation cannot begin there.
    fn rank(&mut self, case: &SelectorCase<'_>, raw: &Grid) -> Option<Result<Selection, String>>;

    /// Is a compaction due?
    ///
    /// # Errors
    /// One line, where the implementation refuses the settings.
    fn due(&mut self, spec: &PolicySpec, progress: &Progress) -> Result<bool, String>;
}

/// The reference selector.
#[derive(Debug, Default)]
pub struct Reference {
    noise: Option<NoiseStream>,
}

fn text(error: lockstep_reference::select::SelectError) -> String {
    error.to_string()
}

impl SelectorCase<'_> {
    fn input(&self) -> Input<'_> {
        Input {
            layers: self.layers.clone(),
            keys: self.keys.clone(),
            positions: self.positions.clone(),
            heads: self.heads,
            moment: self.moment,
        }
    }
}

impl Implementation for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn select(&mut self, case: &SelectorCase<'_>) -> Result<Selection, String> {
        let rules = Rules::resolve(&case.spec).map_err(text)?;
        if case.begins {
            self.noise = rules.noise_seed.map(NoiseStream::new);
        }
        let stats = case.stats.head_stats().map_err(text)?;
        select::<f64>(&rules, &stats, &case.input(), self.noise.as_mut()).map_err(text)
    }

    fn rank(&mut self, case: &SelectorCase<'_>, raw: &Grid) -> Option<Result<Selection, String>> {
        Some(rank(case, raw))
    }

    fn due(&mut self, spec: &PolicySpec, progress: &Progress) -> Result<bool, String> {
        Ok(due(&Rules::resolve(spec).map_err(text)?, progress))
    }
}

fn rank(case: &SelectorCase<'_>, raw: &Grid) -> Result<Selection, String> {
    let rules = Rules::resolve(&case.spec).map_err(text)?;
    let stats = case.stats.head_stats().map_err(text)?;
    let input = case.input();
    let Plan::Ranked(ranking) = plan(&rules, &input) else {
        return Err("nothing is ranked here".to_owned());
    };
    let recipe = Recipe::of(&rules);
    let ranker = Ranker::new(&recipe, &ranking, &stats, &input).map_err(text)?;
    let [_, heads, _] = raw.shape[..] else {
        return Err(format!("raw scores have shape {:?}, expected three axes", raw.shape));
    };
    let rows: Vec<Option<Vec<f64>>> = raw.rows().map(|row| Some(row.to_vec())).collect();
    let layers: Vec<_> = rows.chunks_exact(heads.max(1)).map(<[_]>::to_vec).collect();
    let selection = ranker.rank::<f64>(&layers, None);
    debug_assert_eq!(selection.outcome, Outcome::Ranked);
    Ok(selection)
}
