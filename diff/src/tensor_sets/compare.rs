//! Two sets: match, measure, judge, explain.

use std::collections::BTreeMap;
use std::str::FromStr as _;

use lockstep_traces::tensor_files::{Element, PlainTensor, TensorSet};
use lockstep_traces::{Choice, Verdict};
use regex::Regex;

use super::conclude::{conclude, skip, unfit};
use super::hints::{Alternative, explain, shapes};
use super::judge::{Bounds, Preset, elementwise};
use super::layout::Shift;
use super::map::{ElementRule, MapError, NameMap, PairRule, whole};
use super::measure::{Wish, measure};
use super::pairs::{self, Pair, declared, pair};
use super::report::{Figures, PairReport, SetSummary, SetsReport, Status};
use super::roots;
use super::view::View;

/// For which pairs the figures of the second pass are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detail {
    /// For none.
    None,
    /// For those that diverged.
    #[default]
    Failed,
    /// For all that differ.
    All,
}

/// How two sets are compared.
#[derive(Default)]
pub struct SetOptions<'a> {
    /// Names, layouts, tolerances.
    pub map: NameMap,
    /// Same-dtype control, in the names and layouts of the baseline, which is then the truth.
    pub control: Option<&'a TensorSet>,
    /// What is allowed where the map says nothing.
    pub preset: Preset,
    /// Names that may be without a partner, besides those of the map.
    pub allow_skip: Vec<String>,
    /// Only names that match, on either side.
    pub only: Option<String>,
    /// Only tensors of these layers.
    pub layers: Option<Choice>,
    /// Second pass.
    pub detail: Detail,
    /// NaN on both sides at the same places counts as equal.
    pub nan_equal: bool,
    /// Told of every pair: how many are done, and of how many.
    pub progress: Option<&'a dyn Fn(u64, u64)>,
}

/// Where a layer's number stands in the usual names.
const LAYER: &str =
    r"(?:^|[./_])(?:layers?|h|blk|blocks?|layer_id)[._=]?(?<layer>\d+)(?:[._/=-]|$)";

/// Compares two sets. `left` is the baseline: order and relative figures are taken of it.
///
/// # Errors
/// [`MapError::Syntax`] for an expression that is none; [`MapError::Trace`] where a file's bytes contradict its checksum.
pub fn compare(
    left: &TensorSet,
    right: &TensorSet,
    options: &SetOptions<'_>,
) -> Result<SetsReport, MapError> {
    let label = |what: String| MapError::Syntax { label: "map".to_owned(), what };
    let bounds = Bounds::new(&options.map, options.preset, options.nan_equal).map_err(label)?;
    let (lefts, left_out) = prepared(left, "left", options)?;
    let (rights, right_out) = prepared(right, "right", options)?;
    let controls = options
        .control
        .map(|set| prepared(set, "left", options))
        .transpose()?
        .map(|(tensors, _)| tensors);
    let mut paired = pair(&lefts, &rights, &options.map).map_err(label)?;
    let order = ordered(&mut paired.pairs, left, right, &rights, &options.map).map_err(label)?;
    let judge =
        Judge { bounds: &bounds, options, sides: (&lefts, &rights), controls: controls.as_deref() };
    let mut reports = Vec::new();
    let mut bytes = 0;
    let total = paired.pairs.len() as u64;
    for (at, pair) in paired.pairs.iter().enumerate() {
        let report = judge.pair(pair, at)?;
        if report.status != Status::Incomparable || report.figures.elements > 0 {
            let width = Element::from_str(&report.left_element).map_or(1, Element::size);
            bytes += report.figures.elements * width as u64;
        }
        reports.push(report);
        if let Some(progress) = options.progress {
            progress(at as u64 + 1, total);
        }
    }
    let alone: Vec<&String> = paired.left_only.iter().chain(&paired.right_only).collect();
    let roots = roots::find(&mut reports, &options.map, &alone).map_err(label)?;
    let unfit = unfit(left, "baseline", &rights)
        .into_iter()
        .chain(unfit(right, "target", &lefts))
        .collect();
    let mut report = SetsReport {
        left: summary(left),
        right: summary(right),
        control: options.control.map(summary),
        order,
        pairs: reports,
        failed: Vec::new(),
        first: None,
        roots,
        left_only: paired.left_only,
        right_only: paired.right_only,
        skipped: Vec::new(),
        unfit,
        bytes,
        verdict: Verdict::Identical,
        summary: String::new(),
        limits: Vec::new(),
    };
    report
        .left_only
        .extend(left.undeclared.iter().map(|name| format!("{name} (undeclared bytes)")));
    report
        .right_only
        .extend(right.undeclared.iter().map(|name| format!("{name} (undeclared bytes)")));
    skip(&mut report, options).map_err(label)?;
    conclude(&mut report, options, left_out + right_out);
    Ok(report)
}

fn summary(set: &TensorSet) -> SetSummary {
    SetSummary {
        path: set.path.display().to_string(),
        format: set.format.to_owned(),
        tensors: set.tensors.len(),
        remarks: set.remarks.clone(),
    }
}

/// The tensors of a side that are asked for, with the element types that the map declares; and how many were left out.
fn prepared(
    set: &TensorSet,
    side: &str,
    options: &SetOptions<'_>,
) -> Result<(Vec<PlainTensor>, usize), MapError> {
    let label = |what: String| MapError::Syntax { label: "map".to_owned(), what };
    let only = options.only.as_deref().map(Regex::new).transpose();
    let only = only.map_err(|_| label("--only is no regular expression".to_owned()))?;
    let layer = Regex::new(LAYER).map_err(|error| label(error.to_string()))?;
    let of_side = |rule: &&ElementRule| rule.side.as_deref().is_none_or(|name| name == side);
    let mut rules = Vec::new();
    for rule in options.map.elements.iter().filter(of_side) {
        rules.push((
            whole(&rule.names).map_err(label)?,
            Element::from_str(&rule.element).map_err(label)?,
        ));
    }
    let asked = |name: &str| {
        let in_layer = || {
            let Some(choice) = &options.layers else { return true };
            let found =
                layer.captures(name).and_then(|found| found.name("layer")?.as_str().parse().ok());
            found.is_some_and(|layer| choice.has(layer))
        };
        only.as_ref().is_none_or(|only| only.is_match(name)) && in_layer()
    };
    let mut out = Vec::new();
    for tensor in set.tensors.iter().filter(|tensor| asked(&tensor.name)) {
        let declared = rules.iter().find(|(names, _)| names.is_match(&tensor.name));
        out.push(match declared {
            Some((_, element)) => tensor.clone().declared(*element)?,
            None => tensor.clone(),
        });
    }
    let left_out = set.tensors.len() - out.len();
    Ok((out, left_out))
}

/// Sorts the pairs by execution, and says what that order is.
fn ordered(
    pairs: &mut [Pair<'_>],
    left: &TensorSet,
    right: &TensorSet,
    rights: &[PlainTensor],
    map: &NameMap,
) -> Result<String, String> {
    if !map.order.is_empty() {
        declared(pairs, &map.order)?;
        return Ok("declared".to_owned());
    }
    if left.order == "names" && right.order != "names" {
        let place: BTreeMap<&str, usize> =
            rights.iter().enumerate().map(|(at, tensor)| (tensor.name.as_str(), at)).collect();
        pairs.sort_by_key(|pair| {
            pair.right_names.first().and_then(|name| place.get(name.as_str()).copied())
        });
        return Ok(right.order.to_owned());
    }
    Ok(left.order.to_owned())
}

/// What the judgement of each pair needs.
struct Judge<'j, 'a> {
    bounds: &'j Bounds,
    options: &'j SetOptions<'j>,
    sides: (&'a [PlainTensor], &'a [PlainTensor]),
    controls: Option<&'a [PlainTensor]>,
}

impl<'a> Judge<'_, 'a> {
    fn pair(&self, pair: &Pair<'a>, order: usize) -> Result<PairReport, MapError> {
        let mut report = PairReport {
            name: pair.name.clone(),
            left: pair.left_names.clone(),
            right: pair.right_names.clone(),
            rule: pair.rule,
            order,
            left_element: String::new(),
            right_element: String::new(),
            shape: Vec::new(),
            role: None,
            status: Status::Incomparable,
            why: String::new(),
            judged: None,
            control: None,
            figures: Figures::default(),
            hints: Vec::new(),
        };
        let (left, right) = match &pair.views {
            Ok(views) => views,
            Err(why) => {
                report.why.clone_from(why);
                return Ok(report);
            }
        };
        for tensor in left.pieces.iter().chain(&right.pieces) {
            tensor.verify()?;
        }
        left.element.name().clone_into(&mut report.left_element);
        right.element.name().clone_into(&mut report.right_element);
        report.shape = left.shape();
        if left.shape() != right.shape() {
            report.why = format!("shape {:?} against {:?}", left.shape(), right.shape());
            report.hints = shapes(left, right);
            return Ok(report);
        }
        let (preset, detail) = (self.bounds.preset, self.options.detail);
        let bound = elementwise(preset, left.element, right.element);
        let wish = Wish { detail: detail != Detail::None || bound.is_some(), bound };
        let (mut figures, mut details) = measure(left, right, wish);
        if detail == Detail::All || bound.is_some() {
            // The verdict of an elementwise tolerance rests on them.
            details.take().into_iter().for_each(|found| found.fill(&mut figures, left, right));
        }
        let control = self.control(pair, left)?;
        let control = control.as_ref().map(|(figures, element)| (figures, *element));
        let outcome =
            self.bounds.judge(&pair.name, &figures, (left.element, right.element), control);
        if outcome.status == Status::Diverged {
            details.into_iter().for_each(|found| found.fill(&mut figures, left, right));
            report.hints = explain(left, right, &self.alternatives(pair));
        }
        report.status = outcome.status;
        report.why = outcome.why;
        report.judged = outcome.judged;
        report.control = outcome.control;
        report.figures = figures;
        Ok(report)
    }

    /// The control's figures against the baseline; `None` without a control of this name and shape.
    fn control(
        &self,
        pair: &Pair<'a>,
        left: &View<'a>,
    ) -> Result<Option<(Figures, Element)>, MapError> {
        let Some(controls) = self.controls else { return Ok(None) };
        let found: Option<Vec<&PlainTensor>> = pair
            .left_names
            .iter()
            .map(|name| controls.iter().find(|tensor| tensor.name == *name))
            .collect();
        let Some(found) = found else { return Ok(None) };
        let rule = pair.rule.and_then(|at| self.options.map.pairs.get(at));
        let view = match (rule, found.as_slice()) {
            (Some(rule), found) => pairs::left_view(rule, found, controls).ok(),
            (None, [one]) => Some(View::of(one)),
            _ => None,
        };
        let Some(view) = view.filter(|view| view.shape() == left.shape()) else { return Ok(None) };
        for tensor in &view.pieces {
            tensor.verify()?;
        }
        let (figures, _) = measure(left, &view, Wish::default());
        Ok(Some((figures, view.element)))
    }

    /// Other readings of the target that the rule's own steps suggest: its block table off by one, its shards in another order.
    fn alternatives(&self, pair: &Pair<'a>) -> Vec<Alternative<'a>> {
        let Some(rule) = pair.rule.and_then(|at| self.options.map.pairs.get(at)) else {
            return Vec::new();
        };
        let find = |side: &'a [PlainTensor], names: &[String]| -> Vec<&'a PlainTensor> {
            names
                .iter()
                .filter_map(|name| side.iter().find(|tensor| tensor.name == *name))
                .collect()
        };
        let (left, right) =
            (find(self.sides.0, &pair.left_names), find(self.sides.1, &pair.right_names));
        let view = |right: &[&'a PlainTensor], shift: Option<Shift>| {
            pairs::views(rule, (&left, right), self.sides, shift).ok().map(|(_, right)| right)
        };
        let mut out = Vec::new();
        if rule.right_layout.iter().any(|op| op.pages.is_some()) {
            let shifts = [
                (Shift::Entry(1), "every entry of the block table is one too small"),
                (Shift::Entry(-1), "every entry of the block table is one too large"),
                (Shift::Place(1), "the block table is read one place too early"),
                (Shift::Place(-1), "the block table is read one place too late"),
            ];
            for (shift, text) in shifts {
                let view = view(&right, Some(shift));
                out.extend(view.map(|view| Alternative {
                    name: "block_table_off",
                    text: text.to_owned(),
                    view,
                }));
            }
        }
        out.extend(shard_orders(rule, &right).into_iter().filter_map(|(text, shards)| {
            Some(Alternative { name: "shards_reordered", text, view: view(&shards, None)? })
        }));
        out
    }
}

/// Two shards exchanged, and all of them in reverse.
fn shard_orders<'a>(
    rule: &PairRule,
    shards: &[&'a PlainTensor],
) -> Vec<(String, Vec<&'a PlainTensor>)> {
    let mut out = Vec::new();
    if rule.right_join.is_none() || !(2..=16).contains(&shards.len()) {
        return out;
    }
    for a in 0..shards.len() {
        for b in a + 1..shards.len() {
            let mut order = shards.to_vec();
            order.swap(a, b);
            out.push((format!("shards {a} and {b} of the target are exchanged"), order));
        }
    }
    if shards.len() > 2 {
        let reversed = shards.iter().rev().copied().collect();
        out.push(("the shards of the target are in reverse order".to_owned(), reversed));
    }
    out
}
