//! Was the replay computed in the arithmetic that it claims?

use std::path::Path;

use lockstep_reference::forward::{Chunk, Model, Precision, Watch};
use lockstep_traces::{Cause, Location, StepRow};
use serde_json::{Value, json};

use super::{Claim, Tally, figure};
use crate::ReplayError;
use crate::forward::recording::Recording;

/// Another size of chunk moves an error by some tens of percent; the next dtype on either side moves it by 8 at least.
const RATIO: f64 = 4.0;

/// Values below which neither the grid nor the ratio is judged.
const ENOUGH: usize = 64;

/// Two tests on the largest logits of the first rows: do they lie on a narrow grid, and is their error against f64 that of
/// a control in the claimed arithmetic? `end` is the first compaction's position.
pub(super) fn check(
    recording: &Recording,
    rows: &[StepRow],
    end: Option<u32>,
    model_dir: &Path,
    claim: &Claim,
    tally: &mut Tally,
) -> Result<Value, ReplayError> {
    let limit = claim.control_rows.min(recording.rows.len());
    let limit = end.map_or(limit, |end| limit.min(end as usize));
    let judged: Vec<&StepRow> = rows.iter().filter(|row| (row.position as usize) < limit).collect();
    let values: usize = judged.iter().map(|row| row.top_logits.len()).sum();
    if values < ENOUGH {
        tally.limits.push(format!(
            "arithmetic not judged: {values} logits among the first {limit} rows, {ENOUGH} needed"
        ));
        return Ok(Value::Null);
    }
    let logits = || judged.iter().flat_map(|row| row.top_logits.iter().copied());
    let on_grid = |precision: Precision| {
        let rounding = precision.rounding();
        logits().all(|value| rounding.f32(value).to_bits() == value.to_bits())
    };
    let grid = [Precision::Bf16, Precision::F16].into_iter().find(|p| on_grid(*p));
    let truth = control(recording, limit, model_dir, Precision::F64)?;
    let same = control(recording, limit, model_dir, claim.precision)?;
    let mut sums = [0f64; 3];
    for row in &judged {
        for (id, value) in row.top_ids.iter().zip(&row.top_logits) {
            let at = |logits: &[Vec<f32>]| {
                let row = logits.get(row.position as usize);
                row.and_then(|row| row.get(*id as usize)).map_or(f64::NAN, |v| f64::from(*v))
            };
            let (exact, claimed) = (at(&truth), at(&same));
            sums[0] += (f64::from(*value) - exact).powi(2);
            sums[1] += (claimed - exact).powi(2);
            sums[2] += exact.powi(2);
        }
    }
    let [error, expected, size] = sums.map(|sum| (sum / values as f64).sqrt());
    // The stored logits are f32; a control cannot be finer than that.
    let ratio = error / expected.max(size * Precision::F32.unit_roundoff() / 2.0);
    let wrong_grid = match (claim.precision, grid) {
        (Precision::Bf16 | Precision::F16, found) => found != Some(claim.precision),
        (_, found) => found.is_some(),
    };
    let detail = json!({
        "rows": judged.len(),
        "values": values,
        "grid": grid.map(|precision| precision.dtype().name()),
        "error_rms": error,
        "control_error_rms": expected,
        "ratio": ratio,
    });
    // A single f32 rounding of an f64 result is less than any f32 computation costs.
    let finer = claim.precision != Precision::F64 && ratio < 1.0 / RATIO;
    if wrong_grid || finer || ratio.is_nan() || ratio > RATIO {
        let found = grid.map_or_else(
            || if finer { "a finer one".to_owned() } else { "another".to_owned() },
            |precision| precision.dtype().name().to_owned(),
        );
        let claimed = claim.precision.dtype().name();
        let location = Location {
            sample_id: Some(recording.sample_id.clone()),
            stage: Some("logits".to_owned()),
            ..Location::default()
        };
        let evidence = vec![
            figure("claimed_dtype", claimed),
            figure("grid_of_all_values", detail["grid"].clone()),
            figure("error_rms", error),
            figure("control_error_rms", expected),
            figure("ratio", ratio),
        ];
        let cause = Cause::ReferenceDtype;
        let title = format!("{}: {claimed} claimed, values are of {found}", cause.title());
        tally.different += judged.len() as u64;
        tally.finding(Some(cause), title, location, evidence);
    }
    Ok(detail)
}

/// Logits of the first rows, dense, in one chunk.
fn control(
    recording: &Recording,
    rows: usize,
    model_dir: &Path,
    precision: Precision,
) -> Result<Vec<Vec<f32>>, ReplayError> {
    let model = Model::load(model_dir, precision)?;
    let ids: Vec<u32> = recording.rows.iter().take(rows).map(|row| row.token_id).collect();
    let positions: Vec<u32> = (0..).take(ids.len()).collect();
    let wanted: Vec<usize> = (0..ids.len()).collect();
    let chunk = Chunk { ids: &ids, positions: &positions, logits: &wanted };
    let fed = model.feed(&mut model.new_cache()?, &chunk, Watch::default())?;
    Ok(fed.logits.rows().map(<[f32]>::to_vec).collect())
}
