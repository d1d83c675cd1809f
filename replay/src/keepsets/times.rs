//! What an engine may have taken for the time of the score.

use lockstep_traces::forms::{KeepSpec, KeptRows};

/// Times that are tried.
pub const TIMES: [Time; 13] = [
    Time::AbsolutePosition,
    Time::Rows,
    Time::BeforeAbsolute,
    Time::AfterAbsolute,
    Time::LastRow,
    Time::LastSlot,
    Time::FirstAbsolute,
    Time::PreviousAbsolute,
    Time::Budget,
    Time::Zero,
    Time::SinceFirstRow,
    Time::Slots,
    Time::SlotsAndRows,
];

/// What t is, and for the last two what p is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// The position of the next token.
    AbsolutePosition,
    /// The number of rows in the cache.
    Rows,
    /// One less than the absolute position.
    BeforeAbsolute,
    /// One more than the absolute position.
    AfterAbsolute,
    /// The position of the newest row.
    LastRow,
    /// One less than the number of rows.
    LastSlot,
    /// The absolute position of the first compaction, at every one.
    FirstAbsolute,
    /// The absolute position of the compaction before; 0 at the first.
    PreviousAbsolute,
    /// The number of rows kept.
    Budget,
    /// 0.
    Zero,
    /// The absolute position less the position of the first row.
    SinceFirstRow,
    /// The absolute position, and the slot of a row for its position.
    Slots,
    /// The number of rows, and the slot of a row for its position.
    SlotsAndRows,
}

impl Time {
    /// Stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AbsolutePosition => "absolute_position",
            Self::Rows => "rows",
            Self::BeforeAbsolute => "absolute_position_minus_1",
            Self::AfterAbsolute => "absolute_position_plus_1",
            Self::LastRow => "position_of_last_row",
            Self::LastSlot => "rows_minus_1",
            Self::FirstAbsolute => "first_absolute_position",
            Self::PreviousAbsolute => "previous_absolute_position",
            Self::Budget => "budget",
            Self::Zero => "zero",
            Self::SinceFirstRow => "absolute_position_minus_first_row",
            Self::Slots => "absolute_position_and_slots",
            Self::SlotsAndRows => "rows_and_slots",
        }
    }

    /// In words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::AbsolutePosition => "t is the absolute position",
            Self::Rows => "t is the number of rows in the cache, not the absolute position",
            Self::BeforeAbsolute => "t is one less than the absolute position",
            Self::AfterAbsolute => "t is one more than the absolute position",
            Self::LastRow => "t is the position of the newest row",
            Self::LastSlot => "t is one less than the number of rows",
            Self::FirstAbsolute => "t stays at the absolute position of the first compaction",
            Self::PreviousAbsolute => "t is the absolute position of the compaction before",
            Self::Budget => "t is the budget",
            Self::Zero => "t is 0",
            Self::SinceFirstRow => "t is counted from the first row in the cache",
            Self::Slots => "p is the slot of a row, not its position",
            Self::SlotsAndRows => "t is the number of rows and p the slot of a row",
        }
    }

    /// By its name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        TIMES.into_iter().find(|time| time.name() == name)
    }

    /// t at a compaction; positions are below 2^53.
    pub(super) fn value(self, spec: &KeepSpec, records: &[KeptRows], at: usize) -> Option<f64> {
        let record = records.get(at)?;
        let absolute = record.absolute_position as f64;
        let rows = record.rows.len() as f64;
        Some(match self {
            Self::AbsolutePosition | Self::Slots => absolute,
            Self::Rows | Self::SlotsAndRows => rows,
            Self::BeforeAbsolute => absolute - 1.0,
            Self::AfterAbsolute => absolute + 1.0,
            Self::LastRow => *record.rows.iter().max()? as f64,
            Self::LastSlot => rows - 1.0,
            Self::FirstAbsolute => records.first()?.absolute_position as f64,
            Self::PreviousAbsolute => match at {
                0 => 0.0,
                _ => records.get(at - 1)?.absolute_position as f64,
            },
            Self::Budget => spec.budget as f64,
            Self::Zero => 0.0,
            Self::SinceFirstRow => absolute - *record.rows.first()? as f64,
        })
    }

    /// What the score takes for the positions of the rows.
    pub(super) fn places(self, record: &KeptRows) -> Vec<f64> {
        match self {
            Self::Slots | Self::SlotsAndRows => {
                (0..record.rows.len()).map(|slot| slot as f64).collect()
            }
            _ => record.rows.iter().map(|row| *row as f64).collect(),
        }
    }

    /// True where this hypothesis and another feed the score with the same numbers at a compaction.
    pub(super) fn same_as(
        self,
        other: Self,
        spec: &KeepSpec,
        records: &[KeptRows],
        at: usize,
    ) -> bool {
        let Some(record) = records.get(at) else { return false };
        // Whole numbers below 2^53: equality is exact.
        let bits = |time: Self| time.value(spec, records, at).map(f64::to_bits);
        bits(self) == bits(other) && self.places(record) == other.places(record)
    }
}
