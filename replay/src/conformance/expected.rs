//! Expected tensors of one selection, and the judgement.

use lockstep_reference::select::Selection;
use lockstep_traces::{RuleSet, SelectionMode};

use super::compare::{self, KeepMatch};
use super::golden::{Array, Tensors};
use super::implementation::SelectorCase;
use super::report::CaseReport;
use super::tolerance::Tolerance;

/// Expected tensors of one selection.
pub(crate) struct Expected {
    pub(crate) raw: Option<Array>,
    pub(crate) z: Option<Array>,
    pub(crate) ranked: Option<Array>,
    pub(crate) keep: (Vec<usize>, Vec<usize>),
    /// Rows kept outright in front of the score columns.
    pub(crate) first: usize,
    pub(crate) by_score: bool,
}

impl Expected {
    pub(crate) fn read(file: &Tensors, case: &SelectorCase<'_>) -> Result<Self, String> {
        let ranked = match file.optional("agg_scores")? {
            Some(array) => Some(array),
            None => file.optional("union_final_topk_input")?,
        };
        Ok(Self::new(file.optional("raw_scores")?, ranked, file.indices("keep")?, case)
            .with_z(file.optional("per_head_topk_input")?))
    }

    pub(crate) fn new(
        raw: Option<Array>,
        ranked: Option<Array>,
        keep: (Vec<usize>, Vec<usize>),
        case: &SelectorCase<'_>,
    ) -> Self {
        let hf = case.spec.rule_set == Some(RuleSet::Hf);
        let whole = case.spec.allow_prefill_compression == Some(true);
        let first = if hf && !whole { case.moment.prompt_len } else { 0 };
        let by_score = hf && case.spec.mode != Some(SelectionMode::Union) && keep.0.len() > 1;
        Self { raw, z: None, ranked, keep, first, by_score }
    }

    fn with_z(self, z: Option<Array>) -> Self {
        Self { z, ..self }
    }

    /// Compares everything that is stored.
    pub(crate) fn judge(&self, ours: &Selection, report: &mut CaseReport, limit: Tolerance) {
        if let Some(expected) = &self.raw {
            match &ours.stages {
                Some(stages) => {
                    compare::raw(report, &stages.raw.values, &expected.values, limit.raw);
                }
                None => report.fail("no raw scores, though upstream has them"),
            }
        }
        if let Some(expected) = &self.z {
            match &ours.stages {
                Some(stages) => {
                    let what = "per_head_topk_input";
                    compare::absolute(report, what, &stages.z.values, &expected.values, limit.far);
                }
                None => report.fail("no normalised scores, though upstream has them"),
            }
        }
        self.judge_ranked(ours, report, limit);
        self.judge_keep(ours, report, limit);
    }

    fn judge_ranked(&self, ours: &Selection, report: &mut CaseReport, limit: Tolerance) {
        let Some(expected) = &self.ranked else { return };
        let Some(stages) = &ours.stages else {
            report.fail("no ranked scores, though upstream has them");
            return;
        };
        if stages.final_scores.shape != expected.shape {
            report.fail(format!(
                "ranked scores have shape {:?}, expected {:?}",
                stages.final_scores.shape, expected.shape
            ));
            return;
        }
        let k = self.keep.0.last().copied().unwrap_or(0).saturating_sub(self.first);
        for (ours, expected) in stages.final_scores.rows().zip(expected.rows()) {
            compare::ranked(report, "agg_scores", (ours, expected), k, limit);
        }
    }

    fn judge_keep(&self, ours: &Selection, report: &mut CaseReport, limit: Tolerance) {
        let Some(keep) = &ours.keep else {
            report.fail("nothing was kept, though upstream keeps rows");
            return;
        };
        let (shape, rows) = &self.keep;
        let (k, leading) = shape.split_last().map_or((0, &[][..]), |(k, rest)| (*k, rest));
        if keep.leading != leading {
            report.fail(format!("keep has axes {:?}, expected {leading:?}", keep.leading));
            return;
        }
        let own;
        let scores: Vec<&[f64]> = match (&self.ranked, &ours.stages) {
            (Some(expected), _) => expected.rows(),
            // Lifecycles of hf store no scores: the tie rule needs recomputed ones.
            (None, Some(stages)) => {
                own = &stages.final_scores;
                own.rows().collect()
            }
            (None, None) => Vec::new(),
        };
        for (index, (ours, expected)) in
            keep.sets.iter().zip(rows.chunks_exact(k.max(1))).enumerate()
        {
            let scores = scores.get(index).copied().unwrap_or_default();
            report.keep_rows += 1;
            report.compared += 1;
            match compare::keep_set(ours, expected, scores, self.first, limit.tie) {
                KeepMatch::Equal => report.keep_equal += 1,
                KeepMatch::Tie { rows } => report.tie(rows),
                KeepMatch::Differs { row } => report.fail(format!(
                    "keep-set {index}: row {row} is in one set only and does not tie at the threshold"
                )),
            }
            let by_score = self.by_score && !scores.is_empty();
            if !compare::ordered(ours, by_score, scores, self.first, limit.tie) {
                report.fail(format!("keep-set {index} is not in the order of the rule set"));
            }
            if ours != expected && self.by_score {
                report.notes.push(format!("keep-set {index}: another order among near scores"));
            }
        }
        if keep.sets.len() != rows.len() / k.max(1) {
            report.fail(format!(
                "{} keep-sets, expected {}",
                keep.sets.len(),
                rows.len() / k.max(1)
            ));
        }
    }
}
