//! Operations on positions, carried out.

use lockstep_traces::forms::ShiftOp;

/// Cells after some operations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Moved {
    /// Position by cell; `None`: gone.
    pub(super) positions: Vec<Option<i64>>,
    /// What each operation added, `[operation][cell]`.
    pub(super) deltas: Vec<Vec<i64>>,
    /// Operations that removed a cell.
    pub(super) removing: Vec<bool>,
}

impl Moved {
    /// Operations that moved a cell.
    pub(super) fn moving(&self) -> Vec<usize> {
        let moves = |(_, deltas): &(usize, &Vec<i64>)| deltas.iter().any(|delta| *delta != 0);
        self.deltas.iter().enumerate().filter(moves).map(|(at, _)| at).collect()
    }
}

/// Carries out the operations for which `done` holds.
pub(super) fn carry_out(cells: &[i64], ops: &[ShiftOp], done: impl Fn(usize) -> bool) -> Moved {
    let mut positions: Vec<Option<i64>> = cells.iter().copied().map(Some).collect();
    let (mut deltas, mut removing) = (Vec::new(), Vec::new());
    for (at, op) in ops.iter().enumerate() {
        let mut moved = vec![0; cells.len()];
        let mut removed = false;
        if done(at) {
            for (cell, slot) in positions.iter_mut().enumerate() {
                let Some(before) = *slot else { continue };
                *slot = after(*op, before);
                removed |= slot.is_none();
                moved[cell] = slot.map_or(0, |now| now - before);
            }
        }
        deltas.push(moved);
        removing.push(removed);
    }
    Moved { positions, deltas, removing }
}

/// Where an operation puts a cell.
fn after(op: ShiftOp, position: i64) -> Option<i64> {
    match op {
        ShiftOp::Add { from, to, delta } if (from..to).contains(&position) => {
            Some(position.saturating_add(delta)).filter(|now| *now >= 0)
        }
        ShiftOp::Div { from, to, factor } if (from..to).contains(&position) => {
            Some(position / factor)
        }
        ShiftOp::Remove { from, to } if (from..to).contains(&position) => None,
        _ => Some(position),
    }
}
