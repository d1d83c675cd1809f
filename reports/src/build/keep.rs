//! The keep-set map from dumps of a compaction, or from keep-sets in memory.

use lockstep_traces::store::{DumpFile, TensorView};

use super::split::Labels;
use crate::error::ReportError;
use crate::model::{KeepCounts, KeepHead, KeepMap, RowClass};

/// Keep-set of one head.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeepSet {
    /// Layer, where sets differ by layer.
    pub layer: Option<u32>,
    /// KV head, where sets differ by head.
    pub head: Option<u32>,
    /// Cache rows kept, each below [`KeepSets::rows`].
    pub keep: Vec<u32>,
    /// Cache rows kept outright, where known.
    pub protected: Vec<u32>,
}

/// Keep-sets of one compaction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeepSets {
    /// Cache rows before.
    pub rows: u32,
    /// Prompt length, where known.
    pub prompt_len: Option<u32>,
    /// Positions of the cache rows, where known; two sides are compared only where these are equal.
    pub positions: Option<Vec<i32>>,
    /// Heads in order.
    pub heads: Vec<KeepSet>,
}

impl KeepSets {
    /// Reads `keep`, and where they are there `positions.pre` and `scores.final` (rows at +inf, and rows that were not
    /// scored, are the protected ones).
    ///
    /// # Errors
    /// [`ReportError::Trace`] where a tensor is missing, has another shape than the dump's contract or names a row that
    /// does not exist.
    pub fn read(dump: &DumpFile) -> Result<Self, ReportError> {
        let keep = dump.get("keep")?;
        let number = |key: &str| dump.metadata().get(key).and_then(|text| text.parse::<u32>().ok());
        let positions = if dump.has("positions.pre") {
            let view = dump.get("positions.pre")?;
            Some((view.shape.last().copied().unwrap_or(0), view.to_i32()?))
        } else {
            None
        };
        let width = positions.as_ref().map(|(width, _)| *width);
        let rows = number("rows_before")
            .or_else(|| width.and_then(|width| u32::try_from(width).ok()))
            .ok_or_else(|| keep.error("the dump says nowhere how many rows there were before"))?;
        let offset = number("score_row_offset").unwrap_or(0);
        let layered = dump.metadata().get("mode").is_some_and(|mode| mode == "per_layer");
        let mut heads = split_heads(&keep, layered)?;
        for (_, keep_rows) in &heads {
            if let Some(row) = keep_rows.iter().find(|row| **row < 0 || row.unsigned_abs() >= rows)
            {
                return Err(keep.error(format!("row {row} is none of {rows} rows before")).into());
            }
        }
        let mut protected: Vec<Vec<u32>> = vec![Vec::new(); heads.len()];
        if dump.has("scores.final") {
            let view = dump.get("scores.final")?;
            let columns = view.shape.last().copied().unwrap_or(0);
            let values = view.to_f32()?;
            if columns > 0 && values.len() == columns * heads.len() {
                for (list, scores) in protected.iter_mut().zip(values.chunks(columns)) {
                    *list = guarded(scores, offset, rows);
                }
            }
        }
        let heads = heads
            .drain(..)
            .zip(protected)
            .map(|((name, keep), protected)| KeepSet {
                layer: name.0,
                head: name.1,
                keep: keep.into_iter().map(i32::unsigned_abs).collect(),
                protected,
            })
            .collect();
        Ok(Self {
            rows,
            prompt_len: number("prompt_len"),
            positions: positions.map(|(_, values)| values),
            heads,
        })
    }
}

type Name = (Option<u32>, Option<u32>);

/// Rows of each head with its name: `[kv_heads, k]` (or `[layers, k]`), `[layers, kv_heads, k]`, `[k]`.
fn split_heads(keep: &TensorView<'_>, layered: bool) -> Result<Vec<(Name, Vec<i32>)>, ReportError> {
    let values = keep.to_i32()?;
    let number = |index: usize| u32::try_from(index).ok();
    let (names, width): (Vec<Name>, usize) = match keep.shape.as_slice() {
        [k] => (vec![(None, None)], *k),
        [heads, k] => {
            let name = |at| if layered { (number(at), None) } else { (None, number(at)) };
            ((0..*heads).map(name).collect(), *k)
        }
        [layers, heads, k] => {
            let pairs = (0..*layers)
                .flat_map(|layer| (0..*heads).map(move |head| (number(layer), number(head))));
            (pairs.collect(), *k)
        }
        other => {
            return Err(keep
                .error(format!("has shape {other:?}, expected 1 to 3 dimensions"))
                .into());
        }
    };
    let rows = |at: usize| values.get(at * width..(at + 1) * width).unwrap_or_default().to_vec();
    Ok(names.into_iter().enumerate().map(|(at, name)| (name, rows(at))).collect())
}

/// Rows at +inf, and rows outside the scored columns.
fn guarded(scores: &[f32], offset: u32, rows: u32) -> Vec<u32> {
    (0..rows)
        .filter(|row| {
            let column = row.checked_sub(offset).and_then(|column| usize::try_from(column).ok());
            match column.and_then(|column| scores.get(column)) {
                Some(score) => *score == f32::INFINITY,
                None => true,
            }
        })
        .collect()
}

/// The map of one side, or of two whose rows before are the same.
///
/// # Errors
/// [`ReportError::Inconsistent`] where the two sides had other rows before, other heads, or a row is out of range.
pub fn keep_map(
    (sample_id, ordinal): (&str, u32),
    left: &KeepSets,
    right: Option<&KeepSets>,
    labels: Labels<'_>,
) -> Result<KeepMap, ReportError> {
    let wrong = |what: &str| ReportError::Inconsistent {
        what: format!("keep-sets of compaction {ordinal}, sample {sample_id}: {what}"),
    };
    if let Some(right) = right {
        let moved = matches!((&left.positions, &right.positions), (Some(a), Some(b)) if a != b);
        if left.rows != right.rows || moved {
            return Err(wrong(
                "the two sides had other rows before it, so their rows cannot be compared",
            ));
        }
        let names = |sets: &KeepSets| {
            sets.heads.iter().map(|head| (head.layer, head.head)).collect::<Vec<_>>()
        };
        if names(left) != names(right) {
            return Err(wrong(
                "the two sides have other heads; compare runs of one selection mode",
            ));
        }
    }
    let mut heads = Vec::with_capacity(left.heads.len());
    for (index, head) in left.heads.iter().enumerate() {
        let other = right.and_then(|right| right.heads.get(index));
        let rows = letters(head, other, left.rows).ok_or_else(|| {
            wrong(&format!("a kept row is none of the {} rows before", left.rows))
        })?;
        let counts = KeepCounts::of(&rows);
        heads.push(KeepHead { layer: head.layer, head: head.head, rows, counts });
    }
    let counts = heads.iter().fold(KeepCounts::default(), |sum, head| sum.plus(head.counts));
    Ok(KeepMap {
        sample_id: sample_id.to_owned(),
        ordinal,
        left_label: labels.left.to_owned(),
        right_label: right.map(|_| labels.right.to_owned()),
        rows: left.rows,
        prompt_len: left.prompt_len,
        heads,
        counts,
    })
}

/// One letter per row; `None` where a row is out of range.
fn letters(left: &KeepSet, right: Option<&KeepSet>, rows: u32) -> Option<String> {
    let flags = |list: &[u32]| {
        let mut flags = vec![false; usize::try_from(rows).ok()?];
        for row in list {
            *flags.get_mut(usize::try_from(*row).ok()?)? = true;
        }
        Some(flags)
    };
    let a = flags(&left.keep)?;
    let b = match right {
        Some(right) => flags(&right.keep)?,
        None => a.clone(),
    };
    let guarded = flags(&left.protected)?;
    Some(
        a.into_iter()
            .zip(b)
            .zip(guarded)
            .map(|((a, b), guarded)| match (a, b) {
                (true, true) if guarded => RowClass::Protected,
                (true, true) => RowClass::Kept,
                (false, false) => RowClass::Dropped,
                (true, false) => RowClass::LeftOnly,
                (false, true) => RowClass::RightOnly,
            })
            .map(RowClass::letter)
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_traces::store::write_dump;
    use lockstep_traces::{Dump, DumpId, Tensor};

    fn sets(keep: &[u32]) -> KeepSets {
        KeepSets {
            rows: 6,
            prompt_len: None,
            positions: Some(vec![0, 1, 2, 3, 4, 9]),
            heads: vec![KeepSet {
                layer: None,
                head: Some(0),
                keep: keep.to_vec(),
                protected: vec![0],
            }],
        }
    }

    const LABELS: Labels<'static> = Labels { left: "a", right: "b" };

    #[test]
    fn rows_of_two_sides_get_their_classes() {
        let map = keep_map(("s", 1), &sets(&[0, 1, 4]), Some(&sets(&[0, 4, 5])), LABELS).unwrap();
        assert_eq!(map.heads[0].rows, "PL..KR");
        let counts = KeepCounts { protected: 1, kept: 1, dropped: 2, left_only: 1, right_only: 1 };
        assert_eq!((map.counts, map.heads[0].counts), (counts, counts));
        let alone = keep_map(("s", 1), &sets(&[0, 1, 4]), None, LABELS).unwrap();
        assert_eq!((alone.heads[0].rows.as_str(), alone.right_label), ("PK..K.", None));
    }

    #[test]
    fn other_rows_before_are_not_compared() {
        let mut moved = sets(&[0]);
        moved.positions = Some(vec![0, 1, 2, 3, 4, 5]);
        let error = keep_map(("s", 2), &sets(&[0]), Some(&moved), LABELS).unwrap_err();
        assert!(matches!(error, ReportError::Inconsistent { .. }), "{error}");
        assert!(keep_map(("s", 2), &sets(&[6]), None, LABELS).is_err());
    }

    fn dumped(keep: Tensor) -> Result<KeepSets, ReportError> {
        let dir = tempfile::tempdir().unwrap();
        let metadata = [("rows_before", "6"), ("score_row_offset", "2"), ("prompt_len", "2")];
        let dump = Dump {
            id: DumpId::Compaction { sample_id: "s".into(), ordinal: 1 },
            metadata: metadata.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            tensors: vec![
                keep,
                Tensor::from_f32(
                    "scores.final",
                    vec![2, 4],
                    &[0.5, -1.0, 0.25, f32::INFINITY, 1.0, 2.0, 3.0, f32::INFINITY],
                ),
            ],
        };
        let path = write_dump(dir.path(), &dump).unwrap();
        KeepSets::read(&DumpFile::open(&path).unwrap())
    }

    #[test]
    fn a_dump_tells_which_rows_were_kept_outright() {
        let keep = Tensor::from_i32("keep", vec![2, 4], &[0, 1, 2, 5, 0, 1, 4, 5]);
        let sets = dumped(keep).unwrap();
        let map = keep_map(("s", 1), &sets, None, LABELS).unwrap();
        assert_eq!((map.heads[0].rows.as_str(), map.heads[1].rows.as_str()), ("PPK..P", "PP..KP"));
        assert_eq!((map.rows, map.prompt_len, map.heads[1].head), (6, Some(2), Some(1)));
    }

    #[test]
    fn a_kept_row_that_does_not_exist_is_an_error_of_its_tensor() {
        for row in [6, -1] {
            let keep = Tensor::from_i32("keep", vec![2, 1], &[0, row]);
            let error = dumped(keep).unwrap_err();
            assert!(error.to_string().contains("`keep`"), "{error}");
        }
    }
}
