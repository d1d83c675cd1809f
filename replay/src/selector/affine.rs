//! z-scores over rows whose raw scores were not recorded.
//!
//! Whatever rows a z-score counts, it is a rising affine image of the raw scores. One that is such an image, and whose mean
//! over the recorded rows is not zero, was taken over others as well.

use lockstep_reference::select::Grid;

use super::detail::HypothesisDetail;
use super::event::Recorded;
use super::judge::Judged;

/// Error of an image, in standard deviations.
const NEAR: f64 = 1e-3;

/// The hypothesis, where rows before the recorded ones exist and every recorded head bears it out.
pub(super) fn unrecorded_rows(recorded: &Recorded, judged: &Judged) -> Option<HypothesisDetail> {
    let (raw, z) = (recorded.raw.as_ref()?, recorded.z.as_ref()?);
    let first = judged.first_stage()?;
    if recorded.offset == 0 || first != "normalise" || !moved(raw, z) {
        return None;
    }
    Some(HypothesisDetail {
        name: "zscore_unrecorded_rows".to_owned(),
        cause: Some(lockstep_traces::Cause::ZscoreRows.slug().to_owned()),
        exact_heads: 0,
        tie_heads: 0,
        heads: u64::try_from(judged.sets.len()).unwrap_or(u64::MAX),
        mean_jaccard: judged.mean_jaccard(),
        max_stage_error: None,
        first_stage: Some(first.to_owned()),
        reproduces: true,
        indistinguishable: false,
    })
}

/// Is every row of `z` an affine image of the same row of `raw`, and some row's mean far from zero?
fn moved(raw: &Grid, z: &Grid) -> bool {
    if raw.shape != z.shape {
        return false;
    }
    let mut shifted = false;
    for (raw, z) in raw.rows().zip(z.rows()) {
        let pairs: Vec<(f64, f64)> = raw
            .iter()
            .copied()
            .zip(z.iter().copied())
            .filter(|(x, y)| x.is_finite() && y.is_finite())
            .collect();
        if pairs.is_empty() {
            continue;
        }
        let Some(mean) = image(&pairs) else { return false };
        shifted |= mean.abs() > 10.0 * NEAR;
    }
    shifted
}

/// Mean of the image; `None` where it is none.
fn image(pairs: &[(f64, f64)]) -> Option<f64> {
    let low = pairs.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let high = pairs.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    let slope = (high.1 - low.1) / (high.0 - low.0);
    let on_it = |(x, y): &(f64, f64)| (low.1 + slope * (x - low.0) - y).abs() <= NEAR;
    let rises = slope.is_finite() && slope > 0.0 && pairs.len() > 2;
    (rises && pairs.iter().all(on_it))
        .then(|| pairs.iter().map(|(_, y)| y).sum::<f64>() / pairs.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(values: &[f64]) -> Grid {
        Grid { shape: vec![1, 1, values.len()], values: values.to_vec() }
    }

    #[test]
    fn only_a_shifted_affine_image_counts_other_rows() {
        let raw = grid(&[1.0, 2.0, 4.0, 9.0]);
        // (x - 3) / 5: mean 0.2.
        assert!(moved(&raw, &grid(&[-0.4, -0.2, 0.2, 1.2])));
        // (x - 4) / 5: the mean of the recorded rows themselves.
        assert!(!moved(&raw, &grid(&[-0.6, -0.4, 0.0, 1.0])));
        assert!(!moved(&raw, &grid(&[-0.4, -0.1, 0.2, 1.2])), "bent");
        assert!(!moved(&raw, &grid(&[0.4, 0.2, -0.2, -1.2])), "falling");
        assert!(!moved(&raw, &Grid { shape: vec![1, 4], ..grid(&[-0.4, -0.2, 0.2, 1.2]) }));
    }
}
