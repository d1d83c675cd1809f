//! One layer, one of K and V, one head.

use super::Kind;

/// Bytes of one head before and after, and the rows that were to be kept.
#[derive(Debug)]
pub(crate) struct HeadTask<'a> {
    pub(crate) layer: u32,
    pub(crate) kind: Kind,
    pub(crate) head: usize,
    pub(crate) pre: &'a [u8],
    pub(crate) post: &'a [u8],
    pub(crate) keep: &'a [u32],
    pub(crate) row_bytes: usize,
}

/// A head that is no gather by its keep-set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeadFault {
    pub(crate) layer: u32,
    pub(crate) kind: Kind,
    pub(crate) head: usize,
    /// Rows that differ.
    pub(crate) bad: usize,
    /// The first of them (at most 16).
    pub(crate) rows: Vec<usize>,
    /// A kept index that no row before has.
    pub(crate) out_of_range: Option<u32>,
    /// The rows after are the first rows before, in order.
    pub(crate) identity: bool,
}

impl HeadFault {
    /// Is this the fault of `task`?
    pub(crate) fn of(&self, task: &HeadTask<'_>) -> bool {
        (self.layer, self.kind, self.head) == (task.layer, task.kind, task.head)
    }
}

/// Rows named of one head.
const NAMED: usize = 16;

impl HeadTask<'_> {
    /// Compares the head; stretches of consecutive kept rows are compared as one slice. `None` where all rows are equal.
    pub(crate) fn check(&self) -> Option<HeadFault> {
        let (mut bad, mut rows, mut out_of_range) = (0, Vec::new(), None);
        let mut start = 0;
        while start < self.keep.len() {
            let length = run_length(self.keep.get(start..).unwrap_or_default());
            let source = self.keep.get(start).map_or(usize::MAX, |row| *row as usize);
            let kept = slice(self.pre, source, length, self.row_bytes);
            let after = slice(self.post, start, length, self.row_bytes);
            if kept.is_none() || kept != after {
                for row in start..start + length {
                    let source = source.saturating_add(row - start);
                    let kept = slice(self.pre, source, 1, self.row_bytes);
                    if kept.is_some() && kept == slice(self.post, row, 1, self.row_bytes) {
                        continue;
                    }
                    if kept.is_none() {
                        out_of_range = out_of_range.or_else(|| self.keep.get(row).copied());
                    }
                    bad += 1;
                    if rows.len() < NAMED {
                        rows.push(row);
                    }
                }
            }
            start += length;
        }
        (bad > 0).then(|| HeadFault {
            layer: self.layer,
            kind: self.kind,
            head: self.head,
            bad,
            rows,
            out_of_range,
            identity: self.pre.get(..self.post.len()) == Some(self.post),
        })
    }

    /// More than one row before and all of them equal: any gather would give these rows after.
    pub(crate) fn flat(&self) -> bool {
        let mut rows = self.pre.chunks_exact(self.row_bytes);
        let first = rows.next();
        let others = rows.len() > 0;
        others && rows.all(|row| Some(row) == first)
    }

    /// Row before whose bytes stand in row `row` after.
    pub(crate) fn source_of(&self, row: usize) -> Option<usize> {
        let wanted = slice(self.post, row, 1, self.row_bytes)?;
        self.pre.chunks_exact(self.row_bytes).position(|bytes| bytes == wanted)
    }
}

/// Length of the stretch of consecutive rows at the start of `keep`, at least 1.
fn run_length(keep: &[u32]) -> usize {
    let consecutive = |two: &[u32]| matches!(two, [a, b] if a.checked_add(1) == Some(*b));
    1 + keep.windows(2).take_while(|two| consecutive(two)).count()
}

fn slice(bytes: &[u8], row: usize, rows: usize, row_bytes: usize) -> Option<&[u8]> {
    let start = row.checked_mul(row_bytes)?;
    bytes.get(start..start.checked_add(rows.checked_mul(row_bytes)?)?)
}
