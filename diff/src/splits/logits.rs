//! Are the logits of two rows equal, as far as what is stored can tell?

use crate::side::Row;
use crate::ulp::six_digits;

/// What may be compared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogitRule {
    /// Both sides hash with the same seeds.
    pub(crate) hashes: bool,
    /// Both sides store exact values; else values are compared after rounding to six digits.
    pub(crate) exact: bool,
}

/// Outcome for one pair of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowState {
    /// Equal.
    Equal,
    /// Different.
    Differs,
    /// One side holds NaN or an infinity that the other has not.
    NonFiniteOne,
    /// Both hold NaN: neither equal nor different.
    NonFiniteBoth,
    /// Nothing is stored on a side.
    Nothing,
}

/// Figures for one pair of rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowMatch {
    pub(crate) state: RowState,
    pub(crate) by_hash: bool,
    /// Hashes agree and the stored exact values do not: a side lies.
    pub(crate) contradiction: bool,
    /// Largest difference over common finite ids: id, left, right, |left - right|.
    pub(crate) max: Option<(u32, f64, f64, f64)>,
    pub(crate) sum_sq_diff: f64,
    pub(crate) sum_sq_left: f64,
}

impl LogitRule {
    pub(crate) fn compare(self, left: &Row<'_>, right: &Row<'_>) -> RowMatch {
        let values = self.values(left, right);
        let mut found = RowMatch { by_hash: false, contradiction: false, ..values };
        let hashes = if self.hashes { left.hash.zip(right.hash) } else { None };
        if left.stored_nan() || right.stored_nan() || left.non_finite() != right.non_finite() {
            let both = left.non_finite() && right.non_finite();
            found.state = if both { RowState::NonFiniteBoth } else { RowState::NonFiniteOne };
            return found;
        }
        if let Some((l, r)) = hashes {
            found.by_hash = true;
            found.contradiction = l == r && self.exact && values.state == RowState::Differs;
            found.state =
                if l == r && !found.contradiction { RowState::Equal } else { RowState::Differs };
        }
        found
    }

    /// Compares lists as maps from id to value. An id that one side lacks fits equality where its value does not exceed
    /// the smallest value of that side's list.
    fn values(self, left: &Row<'_>, right: &Row<'_>) -> RowMatch {
        let mut found = RowMatch {
            state: RowState::Equal,
            by_hash: false,
            contradiction: false,
            max: None,
            sum_sq_diff: 0.0,
            sum_sq_left: 0.0,
        };
        if left.ids.is_empty() || right.ids.is_empty() {
            found.state = RowState::Nothing;
            return found;
        }
        let mut equal = true;
        for (at, (id, l)) in left.ids.iter().zip(left.logits).enumerate() {
            let Some(r) = find(right, *id, at) else {
                equal &= fits_below(*l, right, self.exact);
                continue;
            };
            equal &= same(*l, r, self.exact);
            if l.is_finite() && r.is_finite() {
                let (l, r) = (f64::from(*l), f64::from(r));
                let abs = (l - r).abs();
                if found.max.is_none_or(|max| abs > max.3) {
                    found.max = Some((*id, l, r, abs));
                }
                found.sum_sq_diff += abs * abs;
                found.sum_sq_left += l * l;
            }
        }
        for (at, (id, r)) in right.ids.iter().zip(right.logits).enumerate() {
            if find(left, *id, at).is_none() {
                equal &= fits_below(*r, left, self.exact);
            }
        }
        if !equal {
            found.state = RowState::Differs;
        }
        found
    }
}

/// Logit of `id`, looked for at the same place first.
fn find(row: &Row<'_>, id: u32, guess: usize) -> Option<f32> {
    let at = if row.ids.get(guess) == Some(&id) {
        guess
    } else {
        row.ids.iter().position(|other| *other == id)?
    };
    row.logits.get(at).copied()
}

fn fits_below(value: f32, other: &Row<'_>, exact: bool) -> bool {
    let least = other.logits.iter().copied().fold(f32::INFINITY, f32::min);
    value <= least || same(value, least, exact)
}

/// Equal bits with +0 and -0 as one; equal after rounding to six digits where only digits are stored.
fn same(left: f32, right: f32, exact: bool) -> bool {
    let bits = |value: f32| if value.abs().to_bits() == 0 { 0 } else { value.to_bits() };
    if bits(left) == bits(right) {
        return true;
    }
    if exact || (left - right).abs() > left.abs() * 2e-5 {
        return false;
    }
    bits(six_digits(left)) == bits(six_digits(right))
}
