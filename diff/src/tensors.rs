//! Comparison of two safetensors files, streaming over their maps.
//!
//! Blocks of equal bytes are compared as bytes and never converted; only blocks that differ are looked at value by value.
//! Memory does not grow with the files.

pub(crate) mod block;
mod count;
mod lanes;
mod near;
mod stored;
pub(crate) mod tally;
mod tile;

use std::collections::BTreeSet;

use lockstep_traces::store::{DumpFile, TensorView};
use lockstep_traces::{DType, TraceError, Verdict};
use rayon::prelude::*;

use crate::report::{TensorComparison, TensorsReport};
use block::{Sums, compare_block, square_sum};

/// Bytes of one block: a multiple of every element size, small enough for the second-level cache.
const BLOCK: usize = 1 << 18;

/// Compares all tensors of two files. `left` is the baseline: relative figures are taken of it.
///
/// # Errors
/// [`TraceError::Tensor`] for a tensor of a dtype that is not read here.
pub fn compare(left: &DumpFile, right: &DumpFile) -> Result<TensorsReport, TraceError> {
    let (lefts, rights): (BTreeSet<&str>, BTreeSet<&str>) =
        (left.names().collect(), right.names().collect());
    let lone = |a: &BTreeSet<&str>, b: &BTreeSet<&str>| -> Vec<String> {
        a.difference(b).map(|name| (*name).to_owned()).collect()
    };
    let (left_only, right_only) = (lone(&lefts, &rights), lone(&rights, &lefts));
    let (mut tensors, mut bytes) = (Vec::new(), 0);
    for name in lefts.intersection(&rights) {
        let (l, r) = (left.get(name)?, right.get(name)?);
        bytes += l.bytes.len() as u64;
        tensors.push(compare_views(name, &l, &r));
    }
    let missing = left_only.len() + right_only.len();
    let verdict = crate::verdict::overall(tensors.iter().map(|one| &one.verdict), 0);
    let verdict = if tensors.is_empty() {
        Verdict::Incomparable {
            why: "no tensor of one name is in both files: nothing was compared".to_owned(),
        }
    } else if missing > 0 {
        verdict
            .worst(Verdict::Incomparable { why: format!("{missing} tensors are in one file only") })
    } else {
        verdict
    };
    let equal = tensors.iter().filter(|one| one.verdict == Verdict::Identical).count();
    let lone =
        if missing > 0 { format!(", {missing} are in one file only") } else { String::new() };
    let summary = format!("{equal} of {} tensors are bit-equal{lone}", tensors.len());
    Ok(TensorsReport { tensors, left_only, right_only, bytes, verdict, summary })
}

/// Compares one tensor. Another dtype or shape is incomparable and gives no figures.
#[must_use]
pub fn compare_views(
    name: &str,
    left: &TensorView<'_>,
    right: &TensorView<'_>,
) -> TensorComparison {
    let mut out = TensorComparison {
        name: name.to_owned(),
        dtype: left.dtype.name().to_owned(),
        shape: left.shape.clone(),
        elements: left.len() as u64,
        bit_equal: 0,
        non_finite: 0,
        max_abs: None,
        max_rel: None,
        relative_l2: None,
        max_ulp: None,
        first: None,
        verdict: Verdict::Identical,
    };
    if left.dtype != right.dtype || left.shape != right.shape {
        let why = format!(
            "{} {:?} against {} {:?}",
            left.dtype.name(),
            left.shape,
            right.dtype.name(),
            right.shape
        );
        out.verdict = Verdict::Incomparable { why };
        return out;
    }
    let sums = sum(left.dtype, left.bytes, right.bytes);
    out.bit_equal = out.elements - sums.different;
    if sums.different == 0 {
        (out.max_abs, out.max_rel, out.relative_l2, out.max_ulp) =
            (Some(0.0), Some(0.0), Some(0.0), Some(0));
        return out;
    }
    out.verdict = Verdict::Diverged;
    out.non_finite = sums.non_finite;
    out.first = sums.first;
    if sums.finite > 0 {
        let norm = sums.square_left;
        out.max_abs = Some(sums.max_abs);
        out.max_rel = Some(sums.max_rel).filter(|max| max.is_finite());
        out.max_ulp = Some(sums.max_ulp);
        out.relative_l2 =
            (norm > 0.0 && sums.non_finite == 0).then(|| (sums.square_diff / norm).sqrt());
    }
    out
}

/// Sums over blocks in parallel; blocks are joined in order, so that the result depends on no schedule. The square sum of
/// equal blocks is taken only where another block differs, for only then is a norm asked for.
fn sum(dtype: DType, left: &[u8], right: &[u8]) -> Sums {
    let per_block = (BLOCK / dtype.size()) as u64;
    let pairs = || left.par_chunks(BLOCK).zip(right.par_chunks(BLOCK));
    let blocks: Vec<Option<Sums>> =
        pairs().map(|(l, r)| (l != r).then(|| compare_block(dtype, l, r))).collect();
    let mut total = Sums::default();
    if blocks.iter().all(Option::is_none) {
        return total;
    }
    let blocks: Vec<Sums> = pairs()
        .zip(blocks)
        .map(|((l, _), block)| {
            block.unwrap_or_else(|| {
                let square = square_sum(dtype, l);
                Sums { square_left: square, square_right: square, ..Sums::default() }
            })
        })
        .collect();
    for (at, block) in blocks.iter().enumerate() {
        total.join(block, at as u64 * per_block);
    }
    total
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lockstep_traces::Tensor;
    use lockstep_traces::store::write_safetensors;

    use super::*;

    fn file(home: &tempfile::TempDir, name: &str, tensors: &[Tensor]) -> DumpFile {
        let path = home.path().join(name);
        write_safetensors(&path, &BTreeMap::new(), tensors).unwrap();
        DumpFile::open(&path).unwrap()
    }

    fn f32s(values: &[f32]) -> Vec<Tensor> {
        vec![Tensor::from_f32("t", vec![values.len()], values)]
    }

    #[test]
    fn figures_of_a_small_difference_are_the_hand_worked_ones() {
        let home = tempfile::tempdir().unwrap();
        let left = file(&home, "a", &f32s(&[3.0, 4.0, 0.0, -1.0]));
        let right = file(&home, "b", &f32s(&[3.0, 4.5, 0.25, -1.0]));
        let report = compare(&left, &right).unwrap();
        let one = &report.tensors[0];
        assert_eq!((one.elements, one.bit_equal, one.first), (4, 2, Some(1)));
        assert_eq!((one.max_abs, one.max_rel), (Some(0.5), Some(0.125)));
        // sqrt((0.25 + 0.0625) / 26)
        assert!((one.relative_l2.unwrap() - (0.3125_f64 / 26.0).sqrt()).abs() < 1e-15);
        // From 0 to 0.25: every f32 up to it, its bits.
        assert_eq!(one.max_ulp, Some(u64::from(0.25_f32.to_bits())));
        assert_eq!(report.verdict, Verdict::Diverged);
    }

    #[test]
    fn one_ulp_across_zero_and_in_half_precision() {
        let home = tempfile::tempdir().unwrap();
        let half = |value: half::f16| Tensor {
            name: "t".into(),
            dtype: DType::F16,
            shape: vec![1],
            data: value.to_le_bytes().to_vec(),
        };
        let left = file(&home, "a", &[half(half::f16::from_f32(1.0))]);
        let right = file(&home, "b", &[half(half::f16::from_bits(0x3c01))]);
        assert_eq!(compare(&left, &right).unwrap().tensors[0].max_ulp, Some(1));
        let left = file(&home, "c", &f32s(&[f32::from_bits(1)]));
        let right = file(&home, "d", &f32s(&[-f32::from_bits(1)]));
        assert_eq!(compare(&left, &right).unwrap().tensors[0].max_ulp, Some(2));
    }

    #[test]
    fn nan_is_never_equal_to_another_value_and_gives_no_norm() {
        let home = tempfile::tempdir().unwrap();
        let left = file(&home, "a", &f32s(&[1.0, f32::NAN, f32::INFINITY, 2.0]));
        let right = file(&home, "b", &f32s(&[1.0, 5.0, f32::NEG_INFINITY, 2.5]));
        let one = compare(&left, &right).unwrap().tensors.remove(0);
        assert_eq!((one.bit_equal, one.non_finite, one.max_abs), (1, 2, Some(0.5)));
        assert!(one.relative_l2.is_none());
    }

    #[test]
    fn equal_files_are_identical_and_a_difference_far_in_is_found() {
        let home = tempfile::tempdir().unwrap();
        let mut values: Vec<f32> = (0..300_000).map(|at| (at % 1000) as f32 - 500.0).collect();
        let left = file(&home, "a", &f32s(&values));
        assert_eq!(compare(&left, &left).unwrap().verdict, Verdict::Identical);
        values[299_998] += 1.0;
        let right = file(&home, "b", &f32s(&values));
        let one = compare(&left, &right).unwrap().tensors.remove(0);
        assert_eq!((one.bit_equal, one.first, one.max_abs), (299_999, Some(299_998), Some(1.0)));
    }

    #[test]
    fn another_shape_or_name_is_incomparable() {
        let home = tempfile::tempdir().unwrap();
        let left = file(&home, "a", &f32s(&[1.0, 2.0]));
        let right = file(&home, "b", &[Tensor::from_f32("t", vec![1, 2], &[1.0, 2.0])]);
        assert_eq!(compare(&left, &right).unwrap().verdict.exit_code(), 4);
        let right = file(&home, "c", &[Tensor::from_f32("u", vec![2], &[1.0, 2.0])]);
        let report = compare(&left, &right).unwrap();
        assert_eq!(
            (report.verdict.exit_code(), report.left_only, report.right_only),
            (4, vec!["t".to_owned()], vec!["u".to_owned()])
        );
    }

    #[test]
    fn integers_are_compared_by_value() {
        let home = tempfile::tempdir().unwrap();
        let left = file(&home, "a", &[Tensor::from_i32("t", vec![2], &[-1, 7])]);
        let right = file(&home, "b", &[Tensor::from_i32("t", vec![2], &[-3, 7])]);
        let one = compare(&left, &right).unwrap().tensors.remove(0);
        assert_eq!((one.max_abs, one.max_rel, one.bit_equal), (Some(2.0), Some(2.0), 1));
    }
}
