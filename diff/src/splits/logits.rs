//! Are the values of two rows equal, as far as what is stored can tell?

use lockstep_traces::UNKNOWN_TOKEN;
use lockstep_traces::limits::Values;

use super::ranks;
use crate::precision::{Precision, Scale, softmax_rounding, sum_rounding};
use crate::side::{Row, Side};
use crate::ulp::{six_digits, ulp};

/// What may be compared, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogitRule {
    /// Both sides hash with the same seeds.
    pub(crate) hashes: bool,
    /// Both sides store exact values of the same kind.
    pub(crate) exact: bool,
    /// How values are held against each other.
    pub(crate) scale: Scale,
    /// Both sides store logits, so that their log-sum-exps are numbers of one kind.
    sums: bool,
    left: Precision,
    right: Precision,
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

/// What differs where no listed value does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Beside {
    /// Log-sum-exp, left and right.
    Sum(f64, f64),
    /// Margin of the two largest, left and right.
    Margin(f64, f64),
    /// Rank from 1, and the ids there.
    Rank(usize, u32, u32),
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
    pub(crate) beside: Option<Beside>,
}

const NOTHING: RowMatch = RowMatch {
    state: RowState::Nothing,
    by_hash: false,
    contradiction: false,
    max: None,
    sum_sq_diff: 0.0,
    sum_sq_left: 0.0,
    beside: None,
};

/// What is taken from the values of a pair of rows before they are compared, and what that costs in precision.
#[derive(Debug, Clone, Copy)]
struct Shift {
    left: f64,
    right: f64,
    largest: Option<f64>,
}

impl LogitRule {
    pub(crate) fn of(left: &Side<'_>, right: &Side<'_>, scale: Scale) -> Self {
        let seeds = left.manifest.logits_hash_seeds;
        let same = scale == Scale::Same;
        let logits = |side: &Side<'_>| side.manifest.limits.values == Values::Logits;
        let (l, r) = (Precision::of(left.manifest), Precision::of(right.manifest));
        Self {
            hashes: same && seeds.is_some() && seeds == right.manifest.logits_hash_seeds,
            exact: same && l.exact() && r.exact(),
            scale,
            sums: same && logits(left) && logits(right) && l.exact() && r.exact(),
            left: l,
            right: r,
        }
    }

    /// Both sides are exact or hold six digits.
    pub(crate) fn digits_only(self) -> bool {
        let plain = |precision| matches!(precision, Precision::Exact | Precision::Digits6);
        self.scale == Scale::Same && plain(self.left) && plain(self.right)
    }

    pub(crate) fn compare(self, left: &Row<'_>, right: &Row<'_>) -> RowMatch {
        let values = match self.scale {
            Scale::Nothing => return NOTHING,
            Scale::Ranks => self.ranks(left, right),
            Scale::Same | Scale::Normalised { .. } => self.values(left, right),
        };
        let mut found = self.beside(values, left, right);
        let hashes = if self.hashes { left.hash.zip(right.hash) } else { None };
        if left.stored_nan() || right.stored_nan() || left.non_finite() != right.non_finite() {
            let both = left.non_finite() && right.non_finite();
            found.state = if both { RowState::NonFiniteBoth } else { RowState::NonFiniteOne };
            return found;
        }
        if let Some((l, r)) = hashes {
            found.by_hash = true;
            found.contradiction = l == r && self.exact && found.state == RowState::Differs;
            found.state =
                if l == r && !found.contradiction { RowState::Equal } else { RowState::Differs };
        }
        found
    }

    /// Compares lists as maps from id to value. An id that one side lacks fits equality where its value does not exceed
    /// the smallest value of that side's list.
    fn values(self, left: &Row<'_>, right: &Row<'_>) -> RowMatch {
        if left.ids.is_empty() || right.ids.is_empty() {
            return NOTHING;
        }
        let mut found = NOTHING;
        let shift = self.shift(left, right);
        let unknown = |row: &Row<'_>| row.ids.contains(&UNKNOWN_TOKEN);
        let (left_open, right_open) = (unknown(left), unknown(right));
        let (mut equal, mut met) = (true, false);
        for (at, (id, l)) in left.ids.iter().zip(left.logits).enumerate() {
            if *id == UNKNOWN_TOKEN {
                continue;
            }
            let Some(r) = find(right, *id, at) else {
                if !right_open {
                    met = true;
                    equal &= self.fits_below(*l, right, shift, true);
                }
                continue;
            };
            met = true;
            equal &= self.same(*l, r, shift);
            if l.is_finite() && r.is_finite() {
                let (l, r) = (f64::from(*l) - shift.left, f64::from(r) - shift.right);
                let abs = (l - r).abs();
                if found.max.is_none_or(|max| abs > max.3) {
                    found.max = Some((*id, l, r, abs));
                }
                found.sum_sq_diff += abs * abs;
                found.sum_sq_left += l * l;
            }
        }
        for (at, (id, r)) in right.ids.iter().zip(right.logits).enumerate() {
            if *id != UNKNOWN_TOKEN && !left_open && find(left, *id, at).is_none() {
                met = true;
                equal &= self.fits_below(*r, left, shift, false);
            }
        }
        found.state = match (met, equal) {
            (false, _) => RowState::Nothing,
            (true, true) => RowState::Equal,
            (true, false) => RowState::Differs,
        };
        found
    }

    fn ranks(self, left: &Row<'_>, right: &Row<'_>) -> RowMatch {
        if left.ids.is_empty() || right.ids.is_empty() {
            return NOTHING;
        }
        match ranks::first_difference((left, self.left), (right, self.right)) {
            Some((rank, a, b)) => RowMatch {
                state: RowState::Differs,
                beside: Some(Beside::Rank(rank, a, b)),
                ..NOTHING
            },
            None => RowMatch { state: RowState::Equal, ..NOTHING },
        }
    }

    /// Log-sum-exps and stored margins, which tell of entries that are not listed.
    fn beside(self, mut found: RowMatch, left: &Row<'_>, right: &Row<'_>) -> RowMatch {
        if self.scale == Scale::Ranks || found.state == RowState::Differs {
            return found;
        }
        let sums = if self.sums { left.logsumexp.zip(right.logsumexp) } else { None };
        if let Some((l, r)) = sums.filter(|(l, r)| l.is_finite() && r.is_finite())
            && (l - r).abs() > sum_rounding(l) + sum_rounding(r)
        {
            found.state = RowState::Differs;
            found.beside = Some(Beside::Sum(l, r));
            return found;
        }
        // Two listed values on both sides have been compared already.
        let unlisted = left.ids.len() < 2 || right.ids.len() < 2;
        if unlisted && let Some(((l, l_most), (r, r_most))) = left.margin().zip(right.margin()) {
            let rounding = ulp(lockstep_traces::DType::F32, l.max(r)).unwrap_or(0.0)
                + match self.scale {
                    Scale::Normalised { .. } => {
                        2.0 * softmax_rounding(l_most.abs().max(r_most.abs()))
                    }
                    _ => 0.0,
                };
            let allowed = 2.0 * (self.left.error(l_most) + self.right.error(r_most)) + rounding;
            if (l - r).abs() > allowed {
                found.state = RowState::Differs;
                found.beside = Some(Beside::Margin(l, r));
            }
        }
        found
    }

    fn shift(self, left: &Row<'_>, right: &Row<'_>) -> Shift {
        let Scale::Normalised { logits_left } = self.scale else {
            return Shift { left: 0.0, right: 0.0, largest: None };
        };
        let logits = if logits_left { left } else { right };
        let most = |row: &Row<'_>| {
            let values = row.logits.iter().copied().filter(|value| value.is_finite());
            f64::from(values.fold(f32::NEG_INFINITY, f32::max))
        };
        let (l, r) = (most(left), most(right));
        let size = l.abs().max(r.abs());
        match logits.logsumexp.filter(|sum| sum.is_finite()) {
            Some(sum) if logits_left => {
                Shift { left: sum, right: 0.0, largest: Some(size.max(sum.abs())) }
            }
            Some(sum) => Shift { left: 0.0, right: sum, largest: Some(size.max(sum.abs())) },
            None => Shift { left: l, right: r, largest: Some(size) },
        }
    }

    /// How far two equal values may lie apart.
    pub(crate) fn allowed(self, left: f32, right: f32) -> f64 {
        self.left.error(f64::from(left)) + self.right.error(f64::from(right))
    }

    fn same(self, left: f32, right: f32, shift: Shift) -> bool {
        if self.digits_only() {
            return same_digits(left, right, self.exact);
        }
        let rounding = shift.largest.map_or(0.0, |largest| {
            softmax_rounding(largest.max(f64::from(left.abs().max(right.abs()))))
        });
        let (l, r) = (f64::from(left) - shift.left, f64::from(right) - shift.right);
        l.total_cmp(&r).is_eq() || (l - r).abs() <= self.allowed(left, right) + rounding
    }

    /// Could `value` stand below the end of the other side's list?
    fn fits_below(self, value: f32, other: &Row<'_>, shift: Shift, value_left: bool) -> bool {
        let least = other.logits.iter().copied().fold(f32::INFINITY, f32::min);
        let (l, r) = if value_left { (value, least) } else { (least, value) };
        let (own, end) = if value_left {
            (f64::from(l) - shift.left, f64::from(r) - shift.right)
        } else {
            (f64::from(r) - shift.right, f64::from(l) - shift.left)
        };
        own <= end || self.same(l, r, shift)
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

/// Equal bits with +0 and -0 as one; equal after rounding to six digits where only digits are stored.
fn same_digits(left: f32, right: f32, exact: bool) -> bool {
    let bits = |value: f32| if value.abs().to_bits() == 0 { 0 } else { value.to_bits() };
    if bits(left) == bits(right) {
        return true;
    }
    if exact || (left - right).abs() > left.abs() * 2e-5 {
        return false;
    }
    bits(six_digits(left)) == bits(six_digits(right))
}
