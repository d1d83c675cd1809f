//! Whether the row counts of a step trace are exact, rounded up, or not counts of live rows at all.

use super::table::Table;

/// Bucket of the dynamic binding.
const BUCKET: u32 = 32;

/// What `rows_before` and `rows_after` are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowCounts {
    /// Live rows.
    Exact,
    /// Live rows rounded up to a multiple of this.
    Bucketed(u32),
    /// The same number on every row: the allocated maximum, or a window inside one bucket.
    Constant(u32),
    /// None of these.
    Unclear,
}

impl RowCounts {
    /// Judges all rows of a step trace.
    pub(super) fn of(table: &Table) -> Self {
        if exact(table) {
            return Self::Exact;
        }
        let counts = || counts(table).flat_map(|(_, before, after)| [before, after]);
        let mut values = counts();
        let first = values.next().unwrap_or(0);
        if values.all(|value| value == first) {
            return Self::Constant(first);
        }
        if counts().all(|value| value % BUCKET == 0) {
            return Self::Bucketed(BUCKET);
        }
        match counts().fold(0, gcd) {
            0 | 1 => Self::Unclear,
            bucket => Self::Bucketed(bucket),
        }
    }

    pub(super) fn remark(self) -> Option<String> {
        Some(match self {
            Self::Exact => return None,
            Self::Bucketed(bucket) => {
                format!(
                    "row counts are rounded up to a multiple of {bucket}: live rows are not known exactly"
                )
            }
            Self::Constant(rows) => format!(
                "every row count is {rows}: the allocated maximum or one bucket, not live rows; no compaction can be seen"
            ),
            Self::Unclear => {
                "row counts are neither exact nor multiples of a bucket; they are kept as written"
                    .to_owned()
            }
        })
    }
}

/// Row, before and after, without the 1 that stands for an empty cache.
fn counts(table: &Table) -> impl Iterator<Item = (usize, u32, u32)> + '_ {
    (0..table.len()).map(|row| {
        let (before, after) = (table.rows_before[row], table.rows_after[row]);
        let empty = before == 1 && table.position[row] == 0;
        (row, if empty { 0 } else { before }, after)
    })
}

/// Exact counts grow by one with each row, go on from where the row before ended, and fall only in a compaction.
fn exact(table: &Table) -> bool {
    let mut grows = false;
    let mut last = None;
    let mut starts = table.starts.iter().copied().peekable();
    for (row, before, after) in counts(table) {
        if starts.next_if_eq(&row).is_some() {
            last = None;
        }
        if after > before.saturating_add(1) || last.is_some_and(|last| last != before) {
            return false;
        }
        grows |= after == before.saturating_add(1);
        last = Some(after);
    }
    grows
}

fn gcd(a: u32, b: u32) -> u32 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[(u32, u32, u32)]) -> Table {
        Table {
            starts: vec![0],
            position: rows.iter().map(|row| row.0).collect(),
            rows_before: rows.iter().map(|row| row.1).collect(),
            rows_after: rows.iter().map(|row| row.2).collect(),
            ..Table::default()
        }
    }

    #[test]
    fn dense_and_compressed_counts_are_exact() {
        assert_eq!(RowCounts::of(&table(&[(0, 0, 1), (1, 1, 2)])), RowCounts::Exact);
        assert_eq!(RowCounts::of(&table(&[(0, 1, 1), (1, 1, 2)])), RowCounts::Exact);
        assert_eq!(
            RowCounts::of(&table(&[(318, 318, 319), (319, 319, 256), (320, 256, 257)])),
            RowCounts::Exact
        );
    }

    #[test]
    fn rounded_counts_are_not_exact() {
        let example = [(318, 320, 320), (319, 320, 256), (320, 256, 288)];
        assert_eq!(RowCounts::of(&table(&example)), RowCounts::Bucketed(32));
        let start = [(0, 1, 32), (1, 32, 32), (2, 32, 32)];
        assert_eq!(RowCounts::of(&table(&start)), RowCounts::Bucketed(32));
        let capped = [(94, 96, 96), (95, 96, 100), (96, 100, 100)];
        assert_eq!(RowCounts::of(&table(&capped)), RowCounts::Bucketed(4));
        assert_eq!(
            RowCounts::of(&table(&[(7, 4096, 4096), (8, 4096, 4096)])),
            RowCounts::Constant(4096)
        );
    }

    #[test]
    fn a_jump_between_rows_is_unclear() {
        assert_eq!(RowCounts::of(&table(&[(5, 5, 6), (6, 9, 10)])), RowCounts::Unclear);
    }
}
