//! Which tensors belong together, and in which order they were computed.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_traces::tensor_files::{PlainTensor, natural};
use regex::Regex;

use super::layout::{Lookup, Shift, align, apply_with, join, named};
use super::map::{Join, NameMap, Op, PairRule, whole};
use super::view::View;

/// Two views that are to be equal.
#[derive(Debug)]
pub(super) struct Pair<'a> {
    pub(super) name: String,
    pub(super) left_names: Vec<String>,
    pub(super) right_names: Vec<String>,
    pub(super) rule: Option<usize>,
    /// Both sides as they are compared, or why the declared layout does not fit them.
    pub(super) views: Result<(View<'a>, View<'a>), String>,
}

/// All that was matched, in the order of execution, and what was not.
#[derive(Debug, Default)]
pub(super) struct Paired<'a> {
    pub(super) pairs: Vec<Pair<'a>>,
    pub(super) left_only: Vec<String>,
    pub(super) right_only: Vec<String>,
}

/// The captures of a name, leading zeros left out: `layer07` and `layer7` are one layer.
fn captures(regex: &Regex, name: &str) -> Option<BTreeMap<String, String>> {
    let found = regex.captures(name)?;
    let mut out = BTreeMap::new();
    for (at, own) in regex.capture_names().enumerate().skip(1) {
        if let Some(text) = found.get(at) {
            let text = text.as_str();
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let short = text.trim_start_matches('0');
            let value = if !digits {
                text
            } else if short.is_empty() {
                "0"
            } else {
                short
            };
            out.insert(own.map_or_else(|| at.to_string(), str::to_owned), value.to_owned());
        }
    }
    Some(out)
}

type Key = Vec<(String, String)>;

/// Tensors of one side that a rule matches, in groups of equal captures; within a group by the capture that tells shards apart.
fn groups(
    regex: &Regex,
    common: &BTreeSet<String>,
    joined: Option<&Join>,
    side: &[PlainTensor],
    free: &[bool],
) -> Vec<(Key, Vec<usize>)> {
    let mut out: Vec<(Key, Vec<(String, usize)>)> = Vec::new();
    for (at, tensor) in side.iter().enumerate() {
        let Some(found) = captures(regex, &tensor.name).filter(|_| free.get(at) == Some(&true))
        else {
            continue;
        };
        let by = joined.and_then(|join| found.get(&join.by).cloned()).unwrap_or_default();
        let key: Key = found.into_iter().filter(|(name, _)| common.contains(name)).collect();
        match out.iter_mut().find(|(known, _)| *known == key) {
            Some((_, members)) => members.push((by, at)),
            None => out.push((key, vec![(by, at)])),
        }
    }
    let order = |mut members: Vec<(String, usize)>| {
        members.sort_by(|(a, _), (b, _)| natural(a, b));
        members.into_iter().map(|(_, at)| at).collect()
    };
    out.into_iter().map(|(key, members)| (key, order(members))).collect()
}

/// Names of the captures of an expression, without the one that tells shards apart.
fn names(regex: &Regex, joined: Option<&Join>) -> BTreeSet<String> {
    let all = regex.capture_names().enumerate().skip(1);
    let all = all.map(|(at, own)| own.map_or_else(|| at.to_string(), str::to_owned));
    all.filter(|name| joined.is_none_or(|join| join.by != *name)).collect()
}

/// Matches by the rules, then by equal names.
pub(super) fn pair<'a>(
    left: &'a [PlainTensor],
    right: &'a [PlainTensor],
    map: &NameMap,
) -> Result<Paired<'a>, String> {
    let (mut free_left, mut free_right) = (vec![true; left.len()], vec![true; right.len()]);
    let mut found: Vec<(usize, Pair<'a>)> = Vec::new();
    for (at, rule) in map.pairs.iter().enumerate() {
        let (l, r) = (whole(&rule.left)?, whole(&rule.right)?);
        let (l_names, r_names) =
            (names(&l, rule.left_join.as_ref()), names(&r, rule.right_join.as_ref()));
        let common: BTreeSet<String> = l_names.intersection(&r_names).cloned().collect();
        let lefts = groups(&l, &common, rule.left_join.as_ref(), left, &free_left);
        let rights = groups(&r, &common, rule.right_join.as_ref(), right, &free_right);
        for (key, members) in lefts {
            let Some((_, partners)) = rights.iter().find(|(other, _)| *other == key) else {
                continue;
            };
            members.iter().for_each(|at| mark(&mut free_left, *at));
            partners.iter().for_each(|at| mark(&mut free_right, *at));
            let l: Vec<&PlainTensor> = members.iter().filter_map(|at| left.get(*at)).collect();
            let r: Vec<&PlainTensor> = partners.iter().filter_map(|at| right.get(*at)).collect();
            let first = members.first().copied().unwrap_or(0);
            found.push((first, ruled(at, rule, &l, &r, (left, right))));
        }
    }
    if map.identity {
        found.extend(by_name((left, &mut free_left), (right, &mut free_right)));
    }
    // Two files that hold one tensor each are meant to be compared, whatever they call it.
    if let ([l], [r]) = (left, right)
        && map.identity
        && found.is_empty()
    {
        (free_left, free_right) = (vec![false], vec![false]);
        let names = (vec![l.name.clone()], vec![r.name.clone()]);
        let views = Ok((View::of(l), View::of(r)));
        found.push((
            0,
            Pair {
                name: l.name.clone(),
                left_names: names.0,
                right_names: names.1,
                rule: None,
                views,
            },
        ));
    }
    found.sort_by_key(|(at, _)| *at);
    let lone = |side: &[PlainTensor], free: &[bool]| -> Vec<String> {
        side.iter()
            .zip(free)
            .filter(|(_, free)| **free)
            .map(|(tensor, _)| tensor.name.clone())
            .collect()
    };
    Ok(Paired {
        left_only: lone(left, &free_left),
        right_only: lone(right, &free_right),
        pairs: found.into_iter().map(|(_, pair)| pair).collect(),
    })
}

/// Pairs of equal names among what is free.
fn by_name<'a>(
    (left, free_left): (&'a [PlainTensor], &mut [bool]),
    (right, free_right): (&'a [PlainTensor], &mut [bool]),
) -> Vec<(usize, Pair<'a>)> {
    let places: BTreeMap<&str, usize> =
        right.iter().enumerate().map(|(at, tensor)| (tensor.name.as_str(), at)).collect();
    let mut found = Vec::new();
    for (at, tensor) in left.iter().enumerate() {
        let partner = places.get(tensor.name.as_str()).copied();
        let partner = partner.filter(|other| free_right.get(*other) == Some(&true));
        let Some((place, other)) = partner.and_then(|place| Some((place, right.get(place)?)))
        else {
            continue;
        };
        if free_left.get(at) != Some(&true) {
            continue;
        }
        mark(free_left, at);
        mark(free_right, place);
        let pair = Pair {
            name: tensor.name.clone(),
            left_names: vec![tensor.name.clone()],
            right_names: vec![other.name.clone()],
            rule: None,
            views: Ok((View::of(tensor), View::of(other))),
        };
        found.push((at, pair));
    }
    found
}

fn mark(free: &mut [bool], at: usize) {
    if let Some(slot) = free.get_mut(at) {
        *slot = false;
    }
}

fn ruled<'a>(
    at: usize,
    rule: &PairRule,
    left: &[&'a PlainTensor],
    right: &[&'a PlainTensor],
    (all_left, all_right): (&'a [PlainTensor], &'a [PlainTensor]),
) -> Pair<'a> {
    let names =
        |side: &[&PlainTensor]| side.iter().map(|tensor| tensor.name.clone()).collect::<Vec<_>>();
    let views = || views(rule, (left, right), (all_left, all_right), None);
    Pair {
        name: left.first().map(|tensor| tensor.name.clone()).unwrap_or_default(),
        left_names: names(left),
        right_names: names(right),
        rule: Some(at),
        views: views().map_err(|what| format!("rule {at}: {what}")),
    }
}

/// Both sides of a rule's pair.
pub(super) fn views<'a>(
    rule: &PairRule,
    (left, right): (&[&'a PlainTensor], &[&'a PlainTensor]),
    (all_left, all_right): (&'a [PlainTensor], &'a [PlainTensor]),
    shift: Option<Shift>,
) -> Result<(View<'a>, View<'a>), String> {
    let find = |side: &'a [PlainTensor], name: &str| side.iter().find(|tensor| tensor.name == name);
    let l =
        laid(left, rule.left_join.as_ref(), &rule.left_layout, &|name| find(all_left, name), None)?;
    let r = laid(
        right,
        rule.right_join.as_ref(),
        &rule.right_layout,
        &|name| find(all_right, name),
        shift,
    )?;
    match (&rule.left_dims, &rule.right_dims) {
        (Some(a), Some(b)) => align((l, a), (r, b)),
        _ => Ok((l, r)),
    }
}

/// The baseline's side of a rule for other tensors of its names: a control's.
pub(super) fn left_view<'a>(
    rule: &PairRule,
    tensors: &[&'a PlainTensor],
    all: &'a [PlainTensor],
) -> Result<View<'a>, String> {
    let find = |name: &str| all.iter().find(|tensor| tensor.name == name);
    let view = laid(tensors, rule.left_join.as_ref(), &rule.left_layout, &find, None)?;
    match &rule.left_dims {
        Some(dims) => named(view, dims).map(|(view, _)| view),
        None => Ok(view),
    }
}

/// One side of a pair as the map declares it; `shift` is a mistake in the use of its block table.
fn laid<'a>(
    tensors: &[&'a PlainTensor],
    shards: Option<&Join>,
    layout: &[Op],
    lookup: Lookup<'_, 'a>,
    shift: Option<Shift>,
) -> Result<View<'a>, String> {
    let view = match (tensors, shards) {
        ([one], None) => View::of(one),
        (_, Some(shards)) => join(tensors, shards)?,
        ([first, second, ..], None) => {
            return Err(format!(
                "`{}` and `{}` are both meant; capture on both sides what tells them apart, or join them",
                first.name, second.name
            ));
        }
        ([], None) => return Err("no tensor".to_owned()),
    };
    layout.iter().try_fold(view, |view, op| apply_with(view, op, lookup, shift))
}

/// Puts pairs into the declared order: by the first expression that matches, then as they stood.
pub(super) fn declared(pairs: &mut [Pair<'_>], order: &[String]) -> Result<(), String> {
    let order = order.iter().map(|pattern| whole(pattern)).collect::<Result<Vec<_>, _>>()?;
    pairs.sort_by_key(|pair| {
        order.iter().position(|regex| regex.is_match(&pair.name)).unwrap_or(order.len())
    });
    Ok(())
}
