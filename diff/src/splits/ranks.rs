//! The order of two rows' values, where the values themselves cannot be held against each other.

use lockstep_traces::UNKNOWN_TOKEN;

use crate::precision::Precision;
use crate::side::Row;

/// First rank (from 1) at which both sides clearly say otherwise, with the ids there. `None` where none is; a temperature keeps
/// the order, and filters only cut the lists, which are compared as far as both go.
pub(super) fn first_difference(
    left: (&Row<'_>, Precision),
    right: (&Row<'_>, Precision),
) -> Option<(usize, u32, u32)> {
    let (l, r) = (sorted(left.0), sorted(right.0));
    let least = |list: &[(u32, f64)]| list.last().map_or(f64::NEG_INFINITY, |entry| entry.1);
    // A list that was cut says of what it lacks only that it is not larger than its last entry.
    let value = |list: &[(u32, f64)], id: u32| {
        list.iter().find(|entry| entry.0 == id).map_or_else(|| least(list), |entry| entry.1)
    };
    let clear = |list: &[(u32, f64)], precision: Precision, a: u32, b: u32| {
        let (first, second) = (value(list, a), value(list, b));
        first - second > precision.error(first) + precision.error(second)
    };
    l.iter().zip(&r).enumerate().find_map(|(rank, (a, b))| {
        let differ = a.0 != b.0
            && ![a.0, b.0].contains(&UNKNOWN_TOKEN)
            && clear(&l, left.1, a.0, b.0)
            && clear(&r, right.1, b.0, a.0);
        differ.then_some((rank + 1, a.0, b.0))
    })
}

/// Finite entries, the largest first.
fn sorted(row: &Row<'_>) -> Vec<(u32, f64)> {
    let entries = row.ids.iter().copied().zip(row.logits.iter().map(|value| f64::from(*value)));
    let mut list: Vec<(u32, f64)> = entries.filter(|entry| entry.1.is_finite()).collect();
    list.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    list
}
