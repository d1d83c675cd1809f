//! What a cache would hold under the rule and under known mistakes of it.

use lockstep_traces::forms::CacheStates;
use serde::Serialize;

/// Position by slot.
pub(super) type Slots = Vec<Option<u64>>;

/// A way to keep rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    /// The rule: sinks and the newest rows.
    AsStated,
    /// Slots are rolled when the row that fills the last slot comes, not when the one after it does.
    RolledTooSoon,
    /// The newest of the old rows goes, not the oldest behind the sinks.
    DropsNewestOld,
    /// The slots are a ring: the next row goes over the slot after the last one written, sinks or not.
    RingBuffer,
    /// The oldest row goes, sinks or not.
    OldestGoes,
    /// The sinks are counted among the recent rows.
    SinksWithinRecent,
    /// Only the recent rows stay.
    NoSinks,
    /// One row more than the rule.
    OneMore,
    /// One row less than the rule.
    OneLess,
    /// Nothing goes.
    NeverEvicts,
    /// A full cache takes nothing.
    RefusesNew,
    /// The newest row is not there yet.
    OneStepLate,
}

impl Policy {
    pub(super) const MISTAKES: [Self; 11] = [
        Self::RolledTooSoon,
        Self::DropsNewestOld,
        Self::RingBuffer,
        Self::OldestGoes,
        Self::SinksWithinRecent,
        Self::NoSinks,
        Self::OneMore,
        Self::OneLess,
        Self::NeverEvicts,
        Self::RefusesNew,
        Self::OneStepLate,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::AsStated => "as_stated",
            Self::RolledTooSoon => "rolled_too_soon",
            Self::DropsNewestOld => "drops_newest_old",
            Self::RingBuffer => "ring_buffer",
            Self::OldestGoes => "oldest_goes",
            Self::SinksWithinRecent => "sinks_within_recent",
            Self::NoSinks => "no_sinks",
            Self::OneMore => "one_row_more",
            Self::OneLess => "one_row_less",
            Self::NeverEvicts => "never_evicts",
            Self::RefusesNew => "refuses_new",
            Self::OneStepLate => "one_step_late",
        }
    }

    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::AsStated => "the rule",
            Self::RolledTooSoon => {
                "rolled one step too soon: already when the cache becomes full, which leaves an unwritten slot in the middle"
            }
            Self::DropsNewestOld => {
                "drops the newest old row instead of the oldest behind the sinks"
            }
            Self::RingBuffer => "writes over its slots in a ring, as a plain ring buffer would",
            Self::OldestGoes => "drops the oldest row of all, as a plain window would",
            Self::SinksWithinRecent => "counts the sinks among the recent rows",
            Self::NoSinks => "keeps the recent rows and no sinks",
            Self::OneMore => "keeps one row more than the rule",
            Self::OneLess => "keeps one row less than the rule",
            Self::NeverEvicts => "never drops a row",
            Self::RefusesNew => "takes no row any more once it is full",
            Self::OneStepLate => "lacks the newest row: read before it was written",
        }
    }

    /// The states of all steps.
    pub(super) fn states(self, form: &CacheStates) -> Vec<Slots> {
        let mut cache = Cache {
            slots: form.start.iter().copied().map(Some).collect(),
            sink: form.sink,
            rows: form.sink + form.recent,
            overwritten: 0,
        };
        let mut states = Vec::with_capacity(form.steps.len());
        for step in &form.steps {
            let newest = step.fed.len().saturating_sub(1);
            let mut shown = None;
            for (at, position) in step.fed.iter().enumerate() {
                if self == Self::OneStepLate && at == newest {
                    shown = Some(cache.slots.clone());
                }
                cache.append(self, *position);
            }
            states.push(shown.unwrap_or_else(|| cache.slots.clone()));
        }
        states
    }
}

struct Cache {
    slots: Slots,
    sink: usize,
    rows: usize,
    /// Slots that a ring has written over.
    overwritten: usize,
}

impl Cache {
    fn append(&mut self, policy: Policy, position: u64) {
        let full = self.slots.len() >= self.rows;
        match policy {
            Policy::AsStated | Policy::OneStepLate => self.keep(position, self.sink, self.rows),
            Policy::OneMore => self.keep(position, self.sink, self.rows + 1),
            Policy::OneLess => self.keep(position, self.sink, self.rows - 1),
            Policy::OldestGoes => self.keep(position, 0, self.rows),
            Policy::SinksWithinRecent => self.keep(position, self.sink, self.rows - self.sink),
            Policy::NoSinks => self.keep(position, 0, self.rows - self.sink),
            Policy::NeverEvicts => self.slots.push(Some(position)),
            Policy::RefusesNew if full => {}
            Policy::RefusesNew => self.slots.push(Some(position)),
            Policy::RolledTooSoon => self.roll(position),
            Policy::DropsNewestOld => {
                if full {
                    self.slots.pop();
                }
                self.slots.push(Some(position));
            }
            Policy::RingBuffer if full => {
                let at = self.overwritten % self.rows;
                if let Some(slot) = self.slots.get_mut(at) {
                    *slot = Some(position);
                }
                self.overwritten += 1;
            }
            Policy::RingBuffer => self.slots.push(Some(position)),
        }
    }

    /// Appends, and drops behind `sink` what is more than `rows`.
    fn keep(&mut self, position: u64, sink: usize, rows: usize) {
        self.slots.push(Some(position));
        while self.slots.len() > rows {
            self.slots.remove(sink.min(self.slots.len() - 1));
        }
    }

    /// Rolls the slots behind the sinks to the left as soon as the last one is to be written.
    fn roll(&mut self, position: u64) {
        if self.slots.len() + 1 < self.rows {
            self.slots.push(Some(position));
            return;
        }
        self.slots.resize(self.rows, None);
        self.slots.remove(self.sink);
        self.slots.push(Some(position));
    }
}

/// How many observed states a policy gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fit {
    /// `as_stated`, `rolled_too_soon`, `drops_newest_old`, `ring_buffer`, `oldest_goes`, `sinks_within_recent`, `no_sinks`,
    /// `one_row_more`, `one_row_less`, `never_evicts`, `refuses_new` or `one_step_late`.
    pub name: String,
    /// In words.
    pub title: String,
    /// States with the same rows, in whatever slots.
    pub rows: usize,
    /// States with the same rows in the same slots.
    pub slots: usize,
    /// States.
    pub of: usize,
}

impl Fit {
    pub(super) const fn all_rows(&self) -> bool {
        self.rows == self.of
    }

    pub(super) const fn all_slots(&self) -> bool {
        self.slots == self.of
    }
}

/// Holds states (`None` where a step has none) against what the policy gives.
pub(super) fn fit(policy: Policy, given: &[Slots], observed: &[Option<&Slots>]) -> Fit {
    let mut out = Fit {
        name: policy.name().to_owned(),
        title: policy.words().to_owned(),
        rows: 0,
        slots: 0,
        of: 0,
    };
    for (given, observed) in given.iter().zip(observed) {
        if let Some(observed) = observed {
            out.of += 1;
            out.rows += usize::from(written(given) == written(observed));
            out.slots += usize::from(trimmed(given) == trimmed(observed));
        }
    }
    out
}

/// Positions in a state, rising.
pub(super) fn written(slots: &[Option<u64>]) -> Vec<u64> {
    let mut rows: Vec<u64> = slots.iter().flatten().copied().collect();
    rows.sort_unstable();
    rows
}

/// Slots up to the last that was written.
fn trimmed(slots: &[Option<u64>]) -> &[Option<u64>] {
    let end = slots.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    &slots[..end]
}
