//! A target against a KLD base of llama-perplexity: its own figures, errors by chunk, and what 16-bit codes can hide.
//!
//! The direction is KL(base || target), as llama-perplexity has it. Base entries at and below -16 add nothing. A target in codes is
//! taken as stored; one of logits goes through the softmax of llama-perplexity.

mod figures;
mod judge;
mod report;
mod row;
mod side;

#[cfg(test)]
mod tests;

use lockstep_traces::TraceError;
use rayon::prelude::*;

pub use figures::{KldFigures, Percentiles, PerplexityFigures, PlusMinus};
pub use report::{ByChunk, ChunkMean, ChunkRow, Coding, KldPlace, KldReport, OtherToken};
pub use side::{KldSide, Pairing};

use crate::stats::{Bootstrap, Cluster, bootstrap_clusters, count};
use figures::Sums;
use row::{RowBounds, RowFigures, row};

/// One compared row.
struct Row {
    figures: RowFigures,
    bounds: RowBounds,
    base_error: f64,
    range: f64,
    target_error: Option<f64>,
}

/// Compares `target` with `base`, row by row, over the base's whole chunks. Rows of one chunk are in memory at a time; `progress` is told
/// of each chunk.
///
/// # Errors
/// [`TraceError`] where a record or a row cannot be read, and where the sizes of the two do not fit each other.
pub fn compare(
    (base_name, base): (&str, &KldSide),
    (target_name, target): (&str, &KldSide),
    mut progress: impl FnMut(u64, u64),
) -> Result<KldReport, TraceError> {
    let pairing = Pairing::of(base, target)?;
    let mut report = judge::empty(base_name, target_name, base, target, &pairing);
    if let Some(other) = pairing.other_token {
        judge::inputs_differ(&mut report, other);
        return Ok(report);
    }
    let mut sums = Sums::new(pairing.tokens_known);
    let mut totals = judge::Totals::default();
    let mut clusters: [Vec<Cluster>; 4] = Default::default();
    for chunk in 0..pairing.chunks {
        let rows: Result<Vec<Row>, TraceError> = (0..pairing.scored)
            .into_par_iter()
            .map_init(Vec::new, |scratch, index| {
                one(base, target, &pairing, (chunk, index), scratch)
            })
            .collect();
        let rows = rows?;
        for (index, row) in rows.iter().enumerate() {
            sums.add(&row.figures);
            totals.add(row, (chunk, pairing.first + index));
        }
        by_chunk(&mut report, chunk, &rows, &mut clusters, pairing.tokens_known);
        progress(chunk as u64 + 1, pairing.chunks as u64);
    }
    report.figures = sums.figures();
    report.by_chunk = pairing.in_chunks.then(|| means(&clusters, pairing.tokens_known));
    judge::finish(&mut report, &totals, base, target);
    Ok(report)
}

fn one(
    base: &KldSide,
    target: &KldSide,
    pairing: &Pairing,
    (chunk, index): (usize, usize),
    scratch: &mut Vec<f32>,
) -> Result<Row, TraceError> {
    let token = pairing.next_token(base, target, (chunk, index));
    let mut coded = Vec::new();
    let record = base.as_record(pairing, (chunk, index), &mut coded)?;
    let logits = target.logits(pairing, (chunk, index), record.len())?;
    let target_record = target.record((chunk, index))?;
    let side = match (&logits, &target_record) {
        (Some(logits), _) => row::TargetRow::Logits(logits),
        (None, Some(record)) => row::TargetRow::Codes(*record),
        (None, None) => return Err(target.missing(chunk, index)),
    };
    let (figures, bounds) = row(&record, &side, token, scratch);
    Ok(Row {
        figures,
        bounds,
        base_error: record.error(),
        range: f64::from(record.range()),
        target_error: target_record.map(|record| record.error()),
    })
}

/// The chunk's own means, and what it adds to the means over all.
fn by_chunk(
    report: &mut KldReport,
    chunk: usize,
    rows: &[Row],
    clusters: &mut [Vec<Cluster>; 4],
    tokens: bool,
) {
    let n = count(rows.len());
    let sum = |get: fn(&RowFigures) -> f64| rows.iter().map(|row| get(&row.figures)).sum::<f64>();
    let sums = [
        sum(|row| row.kld),
        sum(|row| f64::from(row.nll) - f64::from(row.nll_base)),
        sum(|row| f64::from(row.p_diff)),
        sum(|row| f64::from(u8::from(row.same_top))),
    ];
    for (list, sum) in clusters.iter_mut().zip(sums) {
        list.push(Cluster { sum, count: n });
    }
    let [kld, ln_ratio, delta_p, same_top] = sums.map(|sum| sum / n);
    report.by_chunks.push(ChunkRow {
        chunk: chunk as u64 + 1,
        kld,
        ln_ratio: tokens.then_some(ln_ratio),
        delta_p: tokens.then_some(delta_p),
        same_top,
    });
}

fn means(clusters: &[Vec<Cluster>; 4], tokens: bool) -> ByChunk {
    let [kld, ln_ratio, delta_p, same_top] = clusters;
    ByChunk {
        chunks: kld.len() as u64,
        kld: mean(kld),
        ln_ratio: tokens.then(|| mean(ln_ratio)).flatten(),
        delta_p: tokens.then(|| mean(delta_p)).flatten(),
        same_top: mean(same_top),
    }
}

fn mean(clusters: &[Cluster]) -> Option<ChunkMean> {
    let chunk_interval = bootstrap_clusters(clusters, Bootstrap::default())?;
    let n = count(clusters.len());
    let values: Vec<f64> = clusters.iter().map(|one| one.sum / one.count).collect();
    let value = values.iter().sum::<f64>() / n;
    let var = values.iter().map(|one| (one - value) * (one - value)).sum::<f64>() / n;
    Some(ChunkMean { value, chunk_error: (var / (n - 1.0)).sqrt(), chunk_interval })
}
