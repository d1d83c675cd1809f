//! Keep-sets of two runs, compaction by compaction and head by head, as sets of positions.
//!
//! Order differences are told apart from set differences; rows that differ only among candidates of the score at the cut
//! are tie-equivalent. An event whose rows before differ already is dependent and not counted.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_traces::store::{DumpFile, RunReader};
use lockstep_traces::{DumpId, TraceError, Verdict};

use crate::keep::{KeepSets, Positions};
use crate::report::{HeadKeep, KeepClass, KeepEvent, KeepSetReport};

/// Tolerance of the score at the cut.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeepOptions {
    /// Rows whose score is this near to the k-th one may be chosen otherwise without being called different. 2e-5: twice the
    /// spread of layer-mean scores between f32 summation orders (`TRIATTENTION.md` 5.1); 5e-5 fits per-layer and maximum modes.
    pub near_cut: f64,
}

impl Default for KeepOptions {
    fn default() -> Self {
        Self { near_cut: 2e-5 }
    }
}

/// Two keep-sets of one head, compared.
#[derive(Debug, Clone, PartialEq)]
pub struct KeepPair {
    /// What they are to each other.
    pub class: KeepClass,
    /// `|A and B| / |A or B|`; 1 for two empty sets.
    pub jaccard: f64,
    /// In the left set only, ascending.
    pub left_only: Vec<u32>,
    /// In the right set only, ascending.
    pub right_only: Vec<u32>,
    /// Lowest kept minus highest dropped score, by the left's keep-set.
    pub cut_gap: Option<f64>,
}

/// Compares two keep-sets of one head. `score` gives the exact input of the top-k for a row, where it is recorded; +inf
/// marks a protected row. Rows that only one side keeps are tie-equivalent where each has the k-th value exactly, near the cut
/// where each is within `near_cut` of it.
#[must_use]
pub fn classify(
    left: &[u32],
    right: &[u32],
    score: &dyn Fn(u32) -> Option<f64>,
    all: &[u32],
    options: KeepOptions,
) -> KeepPair {
    let (a, b): (BTreeSet<u32>, BTreeSet<u32>) =
        (left.iter().copied().collect(), right.iter().copied().collect());
    let left_only: Vec<u32> = a.difference(&b).copied().collect();
    let right_only: Vec<u32> = b.difference(&a).copied().collect();
    let union = a.len() + right_only.len();
    let jaccard = if union == 0 { 1.0 } else { wide(a.len() - left_only.len()) / wide(union) };
    let finite = |row: &u32| score(*row).filter(|score| score.is_finite());
    let cut = a.iter().filter_map(finite).min_by(f64::total_cmp);
    let below = all.iter().filter(|row| !a.contains(row)).filter_map(finite).max_by(f64::total_cmp);
    let cut_gap = cut.zip(below).map(|(cut, below)| cut - below);
    let class = if left_only.is_empty() && right_only.is_empty() {
        if left == right { KeepClass::Equal } else { KeepClass::Order }
    } else {
        let distance = |row: &u32| Some((finite(row)? - cut?).abs());
        let farthest = left_only
            .iter()
            .chain(&right_only)
            .map(distance)
            .try_fold(0.0_f64, |far, distance| Some(far.max(distance?)));
        match farthest {
            Some(far) if left_only.len() != right_only.len() || far > options.near_cut => {
                KeepClass::Different
            }
            Some(far) if far > 0.0 => KeepClass::NearCut,
            Some(_) => KeepClass::TieEquivalent,
            None => KeepClass::Different,
        }
    };
    KeepPair { class, jaccard, left_only, right_only, cut_gap }
}

/// Compares every compaction that both runs dumped.
///
/// # Errors
/// [`TraceError`] where a dump cannot be read.
pub fn compare(
    left: &RunReader,
    right: &RunReader,
    options: KeepOptions,
) -> Result<KeepSetReport, TraceError> {
    let mut report = empty();
    let only = |run: &RunReader| -> Result<BTreeSet<DumpId>, TraceError> {
        let ids = run.dumps()?.into_iter();
        Ok(ids.filter(|id| matches!(id, DumpId::Compaction { .. })).collect())
    };
    let (lefts, rights) = (only(left)?, only(right)?);
    let lone = lefts.symmetric_difference(&rights).count() as u64;
    if lone > 0 {
        report.skipped += lone;
        report.remarks.push(format!("{lone} compactions are dumped on one side only"));
    }
    let mut jaccards = Vec::new();
    for id in lefts.intersection(&rights) {
        let (Some(l), Some(r)) = (left.dump(id)?, right.dump(id)?) else { continue };
        let (Some(l), Some(r)) = (Event::read(&l)?, Event::read(&r)?) else {
            report.skipped += 1;
            report
                .remarks
                .push(format!("{}: no keep-set or no positions on a side", id.relative_path()));
            continue;
        };
        let DumpId::Compaction { sample_id, ordinal } = id else { continue };
        let event = l.compare(&r, sample_id, *ordinal, options);
        count(&mut report, &event, &mut jaccards);
        report.events.push(event);
    }
    if !jaccards.is_empty() {
        report.mean_jaccard = Some(jaccards.iter().sum::<f64>() / wide(jaccards.len()));
    }
    conclude(&mut report);
    Ok(report)
}

struct Event {
    keep: KeepSets,
    before: Positions,
    scores: Option<Scores>,
}

/// `scores.final`: the input of the top-k by row.
struct Scores {
    values: Vec<f32>,
    columns: usize,
    /// Layers and heads of the table.
    layers: usize,
    heads: usize,
    offset: usize,
}

impl Scores {
    fn read(dump: &DumpFile, kv_heads: usize) -> Result<Option<Self>, TraceError> {
        if !dump.has("scores.final") {
            return Ok(None);
        }
        let view = dump.get("scores.final")?;
        let per_layer = dump.metadata().get("mode").is_some_and(|mode| mode == "per_layer");
        let (layers, heads, columns) = match *view.shape.as_slice() {
            [columns] => (1, 1, columns),
            [rows, columns] if per_layer || rows != kv_heads => (rows, 1, columns),
            [heads, columns] => (1, heads, columns),
            [layers, heads, columns] => (layers, heads, columns),
            _ => return Err(view.error("has a shape that no score table has")),
        };
        let offset = dump.metadata().get("score_row_offset").and_then(|text| text.parse().ok());
        Ok(Some(Self {
            values: view.to_f32()?,
            columns,
            layers,
            heads,
            offset: offset.unwrap_or(0),
        }))
    }

    fn of(&self, layer: usize, head: usize, row: usize) -> Option<f64> {
        let layer = if self.layers == 1 { 0 } else { layer };
        let head = if self.heads == 1 { 0 } else { head };
        let column = row.checked_sub(self.offset).filter(|column| *column < self.columns)?;
        if layer >= self.layers || head >= self.heads {
            return None;
        }
        self.values
            .get((layer * self.heads + head) * self.columns + column)
            .map(|score| f64::from(*score))
    }
}

impl Event {
    fn read(dump: &DumpFile) -> Result<Option<Self>, TraceError> {
        let Some(before) = Positions::read(dump, "positions.pre")? else { return Ok(None) };
        let Some(keep) = KeepSets::read(dump, Some(before.heads))? else { return Ok(None) };
        let scores = Scores::read(dump, before.heads)?;
        Ok(Some(Self { keep, before, scores }))
    }

    /// Positions kept, in order of the rows after.
    fn positions(&self, layer: usize, head: usize) -> Option<Vec<u32>> {
        let before = self.before.of(layer, head)?;
        self.keep.of(layer, head)?.iter().map(|row| before.get(*row as usize).copied()).collect()
    }

    fn compare(
        &self,
        other: &Self,
        sample_id: &str,
        ordinal: u32,
        options: KeepOptions,
    ) -> KeepEvent {
        let layers = [
            self.keep.units().0,
            other.keep.units().0,
            self.before.layers(),
            other.before.layers(),
        ];
        let layers = layers.into_iter().max().unwrap_or(1);
        let kv_heads = self.before.heads.max(other.before.heads);
        let shared = self.keep.units().1 == 1 && other.keep.units().1 == 1;
        let mut event = KeepEvent {
            sample_id: sample_id.to_owned(),
            ordinal,
            same_rows_before: true,
            heads: Vec::new(),
            left_identical_across_heads: false,
            right_identical_across_heads: false,
        };
        let (mut left_sets, mut right_sets) = (BTreeSet::new(), BTreeSet::new());
        for layer in 0..layers {
            for head in 0..if shared { 1 } else { kv_heads } {
                let (before_l, before_r) =
                    (self.before.of(layer, head), other.before.of(layer, head));
                let sorted = |positions: Option<&[u32]>| -> Option<BTreeSet<u32>> {
                    positions.map(|positions| positions.iter().copied().collect())
                };
                event.same_rows_before &= sorted(before_l) == sorted(before_r);
                let (Some(l), Some(r)) =
                    (self.positions(layer, head), other.positions(layer, head))
                else {
                    event.same_rows_before = false;
                    continue;
                };
                let all = before_l.unwrap_or_default();
                // The left's scores decide; the right's stand in where the left recorded none.
                let (scores, rows) = match &self.scores {
                    Some(scores) => (Some(scores), all),
                    None => (other.scores.as_ref(), before_r.unwrap_or_default()),
                };
                let row_of: BTreeMap<u32, usize> =
                    rows.iter().enumerate().map(|(row, position)| (*position, row)).collect();
                let score = |position: u32| scores?.of(layer, head, *row_of.get(&position)?);
                let pair = classify(&l, &r, &score, all, options);
                event.heads.push(HeadKeep {
                    layer: (layers > 1)
                        .then_some(layer)
                        .and_then(|layer| u32::try_from(layer).ok()),
                    head: (!shared).then_some(head).and_then(|head| u32::try_from(head).ok()),
                    class: pair.class,
                    jaccard: pair.jaccard,
                    left_only: pair.left_only,
                    right_only: pair.right_only,
                    cut_gap: pair.cut_gap,
                });
                left_sets.insert(l.into_iter().collect::<BTreeSet<u32>>());
                right_sets.insert(r.into_iter().collect::<BTreeSet<u32>>());
            }
        }
        let several = event.heads.len() > 1;
        event.left_identical_across_heads = several && left_sets.len() == 1;
        event.right_identical_across_heads = several && right_sets.len() == 1;
        event
    }
}

fn empty() -> KeepSetReport {
    KeepSetReport {
        events: Vec::new(),
        heads: 0,
        equal: 0,
        order: 0,
        tie_equivalent: 0,
        near_cut: 0,
        different: 0,
        dependent: 0,
        skipped: 0,
        mean_jaccard: None,
        remarks: Vec::new(),
        verdict: Verdict::Identical,
        summary: String::new(),
    }
}

fn count(report: &mut KeepSetReport, event: &KeepEvent, jaccards: &mut Vec<f64>) {
    if !event.same_rows_before {
        report.dependent += event.heads.len() as u64;
        return;
    }
    if event.left_identical_across_heads != event.right_identical_across_heads {
        let side = if event.left_identical_across_heads { "left" } else { "right" };
        report.remarks.push(format!(
            "`{}` compaction {}: identical across heads on the {side} only",
            event.sample_id, event.ordinal
        ));
    }
    for head in &event.heads {
        report.heads += 1;
        jaccards.push(head.jaccard);
        *match head.class {
            KeepClass::Equal => &mut report.equal,
            KeepClass::Order => &mut report.order,
            KeepClass::TieEquivalent => &mut report.tie_equivalent,
            KeepClass::NearCut => &mut report.near_cut,
            KeepClass::Different => &mut report.different,
        } += 1;
    }
}

fn conclude(report: &mut KeepSetReport) {
    let same = report.equal + report.order;
    report.summary = format!("{same} of {} head keep-sets are equal as sets", report.heads);
    let add = |count: u64, words: &str| {
        if count > 0 { format!(", {count} {words}") } else { String::new() }
    };
    report.summary.push_str(&add(report.order, "of them in another order"));
    report.summary.push_str(&add(report.tie_equivalent, "tie-equivalent"));
    report.summary.push_str(&add(report.near_cut, "near the cut"));
    report.summary.push_str(&add(report.different, "different"));
    report.summary.push_str(&add(report.dependent, "dependent on an earlier difference"));
    let incomparable = |why: &str| Verdict::Incomparable { why: why.to_owned() };
    report.verdict = if report.heads == 0 {
        incomparable("no compaction with keep-sets and equal rows before is on both sides")
    } else if report.different > 0 {
        Verdict::Diverged
    } else if report.skipped > 0 {
        incomparable("compactions are missing on a side; the others agree")
    } else if report.near_cut > 0 {
        Verdict::WithinNoise
    } else if report.tie_equivalent > 0 {
        Verdict::Tie
    } else {
        Verdict::Identical
    };
}

fn wide(value: usize) -> f64 {
    crate::stats::count(value)
}

#[cfg(test)]
mod tests;
