//! Ledger of ties and near ties, so that a count of flips can be judged.

use crate::report::{TieEntry, TieLedger};
use crate::side::Row;
use crate::ulp::Step;

/// Entries kept of one sample.
const ENTRIES: usize = 200;

/// Collects one sample's ledger.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    ledger: TieLedger,
    flips: Vec<TieEntry>,
    others: Vec<TieEntry>,
}

impl Ledger {
    /// Looks at one compared pair; `flip` where the two sides chose otherwise between tied values.
    pub(crate) fn push(&mut self, left: &Row<'_>, right: &Row<'_>, step: Step, flip: bool) {
        if left.non_finite() || right.non_finite() {
            return;
        }
        let steps =
            |row: &Row<'_>| row.margin().and_then(|(margin, largest)| step.count(margin, largest));
        let (l, r) = (steps(left), steps(right));
        self.ledger.rows += 1;
        let (left_kind, right_kind) = (kind(l, step.exact), kind(r, step.exact));
        self.ledger.exact_left += u64::from(left_kind == Kind::Exact);
        self.ledger.exact_right += u64::from(right_kind == Kind::Exact);
        self.ledger.near_left += u64::from(left_kind == Kind::Near);
        self.ledger.near_right += u64::from(right_kind == Kind::Near);
        self.ledger.tie_flips += u64::from(flip);
        if left_kind == Kind::Apart && right_kind == Kind::Apart && !flip {
            return;
        }
        self.ledger.near_rows += 1;
        let bucket = if flip { &mut self.flips } else { &mut self.others };
        if bucket.len() < ENTRIES {
            bucket.push(TieEntry {
                position: left.position,
                left_ids: best_ids(left, left_kind),
                right_ids: best_ids(right, right_kind),
                left_ulps: l,
                right_ulps: r,
                chose_otherwise: flip,
            });
        } else {
            self.ledger.entries_cut = true;
        }
    }

    pub(crate) fn finish(mut self) -> TieLedger {
        self.ledger.density = density(self.ledger.near_rows, self.ledger.rows);
        self.ledger.entries = self.flips;
        let room = ENTRIES.saturating_sub(self.ledger.entries.len());
        self.ledger.entries_cut |= self.others.len() > room;
        self.ledger.entries.extend(self.others.into_iter().take(room));
        self.ledger
    }
}

/// Sums ledgers; entries stay with the samples.
pub(crate) fn total<'a>(ledgers: impl Iterator<Item = &'a TieLedger>) -> TieLedger {
    let mut sum = TieLedger::default();
    for ledger in ledgers {
        sum.rows += ledger.rows;
        sum.exact_left += ledger.exact_left;
        sum.exact_right += ledger.exact_right;
        sum.near_left += ledger.near_left;
        sum.near_right += ledger.near_right;
        sum.tie_flips += ledger.tie_flips;
        sum.near_rows += ledger.near_rows;
        sum.entries_cut |= !ledger.entries.is_empty();
    }
    sum.density = density(sum.near_rows, sum.rows);
    sum
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Exact,
    Near,
    Apart,
}

fn kind(steps: Option<f64>, exact: bool) -> Kind {
    match steps {
        Some(steps) if steps <= 0.0 && exact => Kind::Exact,
        Some(steps) if steps <= 1.0 => Kind::Near,
        _ => Kind::Apart,
    }
}

/// Ids of the largest value where it is shared, else of the two largest.
fn best_ids(row: &Row<'_>, kind: Kind) -> Vec<u32> {
    let Some([best, second]) = row.top2() else { return vec![row.argmax] };
    if kind != Kind::Exact {
        return vec![best.0, second.0];
    }
    let mut ids: Vec<u32> = row
        .ids
        .iter()
        .zip(row.logits)
        .filter(|(_, logit)| f64::from(**logit) >= best.1)
        .map(|(id, _)| *id)
        .collect();
    ids.sort_unstable();
    ids
}

#[expect(clippy::cast_precision_loss, reason = "row counts are far below 2^53")]
fn density(near: u64, rows: u64) -> Option<f64> {
    (rows > 0).then(|| near as f64 / rows as f64)
}
