//! What audits look at: facts about runs and artifacts, whatever file they were read from.
//!
//! Every fact is optional. Who reads a file fills in what the file says and nothing else; an audit that needs a fact which is
//! not there says `no evidence` and names it.

mod comparisons;
pub(super) mod made;
mod merge;
mod query;
mod rows;
mod sample;
mod subject;

use lockstep_traces::SampleRow;

use super::Note;

pub use comparisons::Comparisons;
pub use rows::RowsBySample;
pub use sample::Sample;
pub use subject::{
    Artifact, Believed, Claim, ClaimScope, Dump, Engine, Gathered, History, Kind, Lines, Made,
    Rate, Reference, State, Subject, Trace,
};

/// Everything that one audit run looks at.
#[derive(Debug, Clone, Default)]
pub struct Evidence<'a> {
    /// Runs, artifacts, benchmark outputs.
    pub subjects: Vec<Subject<'a>>,
    /// Baselines: indices into `subjects`.
    pub left: Vec<usize>,
    /// Targets: indices into `subjects`.
    pub right: Vec<usize>,
    /// Commits of the code under test and the one that an artifact must be newer than.
    pub history: Option<History>,
    /// Comparisons of pairs of traces, each made once however many audits look at it.
    pub comparisons: Comparisons,
}

impl<'a> Evidence<'a> {
    /// One subject, no pair.
    #[must_use]
    pub fn one(subject: Subject<'a>) -> Self {
        Self { subjects: vec![subject], ..Self::default() }
    }

    /// A baseline and a target.
    #[must_use]
    pub fn pair(left: Subject<'a>, right: Subject<'a>) -> Self {
        Self { subjects: vec![left, right], left: vec![0], right: vec![1], ..Self::default() }
    }

    /// Subjects without a pair.
    #[must_use]
    pub fn all(subjects: Vec<Subject<'a>>) -> Self {
        Self { subjects, ..Self::default() }
    }

    /// Every baseline against every target.
    #[must_use]
    pub fn pairs(&self) -> Vec<Pair<'_, 'a>> {
        let take = |index: &usize| self.subjects.get(*index);
        let mut pairs = Vec::new();
        for left in self.left.iter().filter_map(take) {
            for right in self.right.iter().filter_map(take) {
                pairs.push(Pair { left, right, evidence: self });
            }
        }
        pairs
    }
}

/// A baseline and a target, with everything else that was given.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'e, 'a> {
    /// Baseline.
    pub left: &'e Subject<'a>,
    /// Target.
    pub right: &'e Subject<'a>,
    /// All the evidence, for controls and claims beside the pair.
    pub evidence: &'e Evidence<'a>,
}

impl<'e, 'a> Pair<'e, 'a> {
    /// One is the replay of the other: what differs between them is the implementation, on purpose.
    #[must_use]
    pub fn lineage(&self) -> bool {
        let child = |one: &Subject<'_>, other: &Subject<'_>| {
            one.parent.is_some() && one.parent == other.identity
        };
        child(self.left, self.right) || child(self.right, self.left)
    }

    /// The same fact of both sides, or a note that names whoever lacks it.
    ///
    /// # Errors
    /// A [`Note`] with outcome `no evidence`.
    pub fn both<T>(
        &self,
        field: &str,
        fact: impl Fn(&'e Subject<'a>) -> Option<T>,
    ) -> Result<(T, T), Note> {
        match (fact(self.left), fact(self.right)) {
            (Some(left), Some(right)) => Ok((left, right)),
            (None, Some(_)) => Err(Note::missing(field, &self.left.label)),
            (Some(_), None) => Err(Note::missing(field, &self.right.label)),
            (None, None) => Err(Note::no_evidence(format!("`{field}` is not recorded"))
                .of([self.left.label.as_str(), self.right.label.as_str()])),
        }
    }

    /// Samples that are held against each other: of equal id, or the only one with the only one.
    #[must_use]
    pub fn samples(&self) -> Vec<(&'e Sample, &'e Sample)> {
        let (Some(left), Some(right)) = (&self.left.samples, &self.right.samples) else {
            return Vec::new();
        };
        if let ([one], [other]) = (left.as_slice(), right.as_slice()) {
            return vec![(one, other)];
        }
        let other = |id: &str| right.iter().find(|sample| sample.id == id);
        left.iter().filter_map(|sample| Some((sample, other(&sample.id)?))).collect()
    }

    /// `Some(true)` where the cache policies of the two sides differ in kind or in a setting that is recorded on both.
    #[must_use]
    pub fn policies_differ(&self) -> Option<bool> {
        let (left, right) = (self.left.text("policy.kind")?, self.right.text("policy.kind")?);
        if left == "recorded" || right == "recorded" || (left == "dense" && right == "dense") {
            return Some(false);
        }
        if left != right {
            return Some(true);
        }
        let (left, right) = (self.left.settings.as_ref()?, self.right.settings.as_ref()?);
        Some(left.iter().filter(|(key, _)| key.starts_with("policy.")).any(|(key, setting)| {
            right.get(key).is_some_and(|other| !crate::inputs::equal(&setting.value, &other.value))
        }))
    }
}

/// A finished sample of a run as facts.
impl From<&SampleRow> for Sample {
    fn from(row: &SampleRow) -> Self {
        let known = |ids: &[u32]| (!ids.is_empty()).then(|| ids.to_vec());
        let seconds = |value: f64| (value > 0.0).then_some(value);
        let prompt_ids = known(&row.prompt_ids);
        Self {
            id: row.sample_id.clone(),
            prompt_ids_sha256: prompt_ids.is_some().then(|| row.prompt_ids_sha256.clone()),
            prompt_text_sha256: row.prompt_text_sha256.clone(),
            prompt_tokens: row.prompt_len,
            prompt_ids,
            base_seed: row.base_seed,
            seed_index: row.seed_index,
            effective_seed: row.effective_seed,
            gold: row.gold.clone(),
            pred: row.answer.clone(),
            pred_rule: row.answer_rule.clone(),
            text: row.text.clone(),
            generated_ids: known(&row.generated_ids),
            generated_tokens: known(&row.generated_ids).map(|ids| ids.len() as u64),
            prefill_seconds: seconds(row.prefill_seconds),
            decode_seconds: seconds(row.decode_seconds),
            finish: Some(row.finish),
            ..Self::default()
        }
    }
}
