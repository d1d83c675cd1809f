//! Which row of the left is held against which row of the right.

use crate::report::AlignmentKind;
use crate::side::Track;

/// How rows are to be paired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Align {
    /// By position; by step where no position is common.
    #[default]
    Auto,
    /// By absolute position.
    Position,
    /// First row with first row, and so on.
    Step,
}

/// Pairs of row indices, in order, and what is left over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Paired {
    pub(crate) by: AlignmentKind,
    /// Right position minus left position of a pair.
    pub(crate) offset: i64,
    pub(crate) pairs: Vec<(usize, usize)>,
    pub(crate) left_only: Leftover,
    pub(crate) right_only: Leftover,
}

/// Rows of one side without a partner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Leftover {
    /// Before the first pair.
    pub(crate) leading: Vec<usize>,
    /// Between pairs.
    pub(crate) inside: Vec<usize>,
    /// After the last pair.
    pub(crate) trailing: Vec<usize>,
}

impl Leftover {
    pub(crate) fn count(&self) -> u64 {
        (self.leading.len() + self.inside.len() + self.trailing.len()) as u64
    }
}

/// Pairs the rows of two tracks.
pub(crate) fn pair(left: &Track<'_>, right: &Track<'_>, align: Align) -> Paired {
    let by_position = merge(left, right, 0, AlignmentKind::Position);
    let by_step = || {
        let offset = match (left.position(0), right.position(0)) {
            (Some(l), Some(r)) => i64::from(r) - i64::from(l),
            _ => 0,
        };
        merge(left, right, offset, AlignmentKind::Step)
    };
    match align {
        Align::Position => by_position,
        Align::Step => by_step(),
        Align::Auto => {
            if by_position.pairs.is_empty() {
                by_step()
            } else {
                by_position
            }
        }
    }
}

fn merge(left: &Track<'_>, right: &Track<'_>, offset: i64, by: AlignmentKind) -> Paired {
    let mut out = Paired {
        by,
        offset,
        pairs: Vec::with_capacity(left.len.min(right.len)),
        left_only: Leftover::default(),
        right_only: Leftover::default(),
    };
    let (mut lone_left, mut lone_right) = (Vec::new(), Vec::new());
    let (mut i, mut j) = (0, 0);
    loop {
        let l = left.position(i).map(|position| i64::from(position) + offset);
        let r = right.position(j).map(i64::from);
        match (l, r) {
            (Some(l), Some(r)) if l == r => {
                settle(&mut out.left_only, &mut lone_left, out.pairs.is_empty());
                settle(&mut out.right_only, &mut lone_right, out.pairs.is_empty());
                out.pairs.push((i, j));
                i += 1;
                j += 1;
            }
            (Some(l), Some(r)) if l < r => {
                lone_left.push(i);
                i += 1;
            }
            (Some(_), None) => {
                lone_left.push(i);
                i += 1;
            }
            (_, Some(_)) => {
                lone_right.push(j);
                j += 1;
            }
            (None, None) => break,
        }
    }
    out.left_only.trailing = lone_left;
    out.right_only.trailing = lone_right;
    out
}

fn settle(leftover: &mut Leftover, lone: &mut Vec<usize>, first: bool) {
    if first {
        leftover.leading.append(lone);
    } else {
        leftover.inside.append(lone);
    }
}

/// Rows looked at when a shift of the fed tokens is tested.
const SHIFT_ROWS: usize = 64;
/// Matches below which a shift is not named.
const SHIFT_LEAST: usize = 8;

/// Lag at which the right side's fed tokens equal the left's though they do not at lag 0: 1 where the right is fed each
/// token one row late, -1 where one row early.
pub(crate) fn token_lag(
    left: &Track<'_>,
    right: &Track<'_>,
    pairs: &[(usize, usize)],
) -> Option<i64> {
    let seen = pairs.get(..pairs.len().min(SHIFT_ROWS))?;
    let equal = |lag: i64| {
        let (mut matches, mut rows) = (0_usize, 0_usize);
        for (l, r) in seen {
            let Some(shifted) = usize::try_from(i64::try_from(*r).ok()? + lag).ok() else {
                continue;
            };
            if let (Some(a), Some(b)) = (left.token(*l), right.token(shifted)) {
                rows += 1;
                matches += usize::from(a == b);
            }
        }
        Some((matches, rows))
    };
    let (same, rows) = equal(0)?;
    // A stream of one repeated token matches at every lag and shows nothing.
    if same * 2 > rows {
        return None;
    }
    [1_i64, -1].into_iter().find(|lag| {
        equal(*lag).is_some_and(|(matches, rows)| rows >= SHIFT_LEAST && matches == rows)
    })
}
