//! Moving kept rows inside a paged cache (`TRIATTENTION.md` section 8): permutation of all rows, or filling holes.

use super::SelectError;
use super::error::same;

/// Shape of a pool `[2 (K, V), blocks, block_size, heads, width]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// Blocks.
    pub blocks: usize,
    /// Rows of a block.
    pub block_size: usize,
    /// KV heads.
    pub heads: usize,
    /// Elements of a row of one head.
    pub width: usize,
}

/// Moves the rows of one request. `keep` holds ascending rows by KV head; `rows` is how many the request has, over
/// `block_ids` in order. With `permute` the dropped rows follow the kept ones; without it rows from beyond the kept count
/// fill the slots below it that are not kept, and nothing else changes.
///
/// # Errors
/// [`SelectError`] where a block, row or size is outside the pool, or a row is kept twice.
pub fn move_rows<T: Copy>(
    values: &mut [T],
    pool: Pool,
    block_ids: &[usize],
    rows: usize,
    keep: &[Vec<usize>],
    permute: bool,
) -> Result<(), SelectError> {
    let slots = pool.blocks * pool.block_size;
    let stride = pool.heads * pool.width;
    same("elements of the pool", 2 * slots * stride, values.len())?;
    same("keep-sets by head", pool.heads, keep.len())?;
    let slot = |row: usize| {
        let block =
            block_ids.get(row / pool.block_size.max(1)).filter(|block| **block < pool.blocks);
        block.map(|block| block * pool.block_size + row % pool.block_size).ok_or_else(|| {
            SelectError::Input { what: format!("row {row} lies in no block of the pool") }
        })
    };
    let slots_of: Vec<usize> = (0..rows).map(slot).collect::<Result<_, _>>()?;
    let before = values.to_vec();
    for (head, kept) in keep.iter().enumerate() {
        for (to, from) in moves(kept, rows, permute)? {
            for part in 0..2 {
                let at = |row: usize| (part * slots + slots_of[row]) * stride + head * pool.width;
                values[at(to)..at(to) + pool.width]
                    .copy_from_slice(&before[at(from)..at(from) + pool.width]);
            }
        }
    }
    Ok(())
}

/// (to, from) rows of one head.
fn moves(kept: &[usize], rows: usize, permute: bool) -> Result<Vec<(usize, usize)>, SelectError> {
    let mut is_kept = vec![false; rows];
    for row in kept {
        match is_kept.get_mut(*row) {
            Some(held) if !*held => *held = true,
            _ => {
                return Err(SelectError::Input {
                    what: format!("row {row} of a keep-set is outside 0..{rows} or kept twice"),
                });
            }
        }
    }
    let dropped = (0..rows).filter(|row| !is_kept[*row]);
    if permute {
        return Ok(kept.iter().copied().chain(dropped).enumerate().collect());
    }
    let holes = dropped.take_while(|row| *row < kept.len());
    let survivors = (0..rows).filter(|row| is_kept[*row] && *row >= kept.len());
    Ok(holes.zip(survivors).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_puts_dropped_rows_behind_the_kept_ones() {
        assert_eq!(moves(&[1, 3], 4, true), Ok(vec![(0, 1), (1, 3), (2, 0), (3, 2)]));
    }

    #[test]
    fn filling_holes_moves_only_what_must_move() {
        assert_eq!(moves(&[1, 3, 5], 6, false), Ok(vec![(0, 3), (2, 5)]));
    }

    #[test]
    fn a_row_kept_twice_or_outside_is_refused() {
        assert!(moves(&[1, 1], 4, true).is_err());
        assert!(moves(&[4], 4, true).is_err());
    }
}
