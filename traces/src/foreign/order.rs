//! Lists of largest logits brought to one order: logit descending, lower id first on equal logits.

use std::cmp::Ordering;
use std::path::Path;

use super::precision::restore;
use super::table::Table;
use crate::TraceError;
use crate::manifest::ValueEncoding;
use crate::store::StepColumns;

/// Entries that may be added as padding where rows differ in length.
const MAX_PADDING: usize = 1 << 24;

/// How many rows had to be changed or contradict themselves.
#[derive(Debug, Default)]
pub(super) struct OrderReport {
    reordered: usize,
    other_argmax: usize,
    not_finite: usize,
    uneven: Option<(usize, usize)>,
}

impl OrderReport {
    pub(super) fn remarks(&self, remarks: &mut Vec<String>) {
        if self.not_finite > 0 {
            remarks.push(format!("{} rows have logits that are not finite", self.not_finite));
        }
        if self.reordered > 0 {
            remarks.push(format!(
                "{} rows were brought to the order logit descending, lower id first",
                self.reordered
            ));
        }
        if self.other_argmax > 0 {
            remarks.push(format!(
                "argmax_token is not the first of top_ids in {} rows; it is kept as written",
                self.other_argmax
            ));
        }
        if let Some((least, most)) = self.uneven {
            remarks.push(format!("rows carry {least} to {most} logits"));
        }
    }
}

/// Moves ids and logits of `table` into `steps`: values restored to their grid, lists ordered, argmax, margin and
/// the finite flag filled in. Where six digits are all there is, equal text keeps the writer's order, which knew more.
pub(super) fn put_in_order(
    path: &Path,
    table: &mut Table,
    encoding: ValueEncoding,
    steps: &mut StepColumns,
) -> Result<OrderReport, TraceError> {
    let mut report = OrderReport::default();
    let mut pairs: Vec<(u32, f32)> = Vec::new();
    let mut start = 0;
    for row in 0..table.ends.len() {
        let range = start..table.ends[row];
        start = range.end;
        let (ids, logits) = (&mut table.ids[range.clone()], &mut table.logits[range]);
        let mut finite = true;
        for logit in logits.iter_mut() {
            *logit = restore(*logit, encoding);
            finite &= logit.is_finite();
        }
        report.not_finite += usize::from(!finite);
        let nan = !finite && logits.iter().any(|logit| logit.is_nan());
        if !nan && !ordered(ids, logits, encoding) {
            report.reordered += 1;
            sort(ids, logits, encoding, &mut pairs);
        }
        let first = ids.first().copied().unwrap_or(0);
        let written = table.argmax[row].unwrap_or(first);
        let tied = encoding != ValueEncoding::Digits6 && level(ids, logits, written);
        let argmax = if tied { first } else { written };
        report.other_argmax += usize::from(argmax != first);
        steps.argmax.push(argmax);
        steps.finite.push(finite);
        steps.top2_margin.push(match logits {
            [a, b, ..] if a.is_finite() && b.is_finite() => Some(*a - *b),
            _ => None,
        });
        steps.top_len.push(u32::try_from(ids.len()).unwrap_or(u32::MAX));
    }
    fill_stride(path, table, steps, &mut report)?;
    Ok(report)
}

/// Is `id` in the list with the same logit as the first?
fn level(ids: &[u32], logits: &[f32], id: u32) -> bool {
    let place = ids.iter().position(|&other| other == id);
    matches!((place.and_then(|place| logits.get(place)), logits.first()), (Some(a), Some(b)) if a.total_cmp(b).is_eq())
}

fn compare(a: (u32, f32), b: (u32, f32), encoding: ValueEncoding) -> Ordering {
    let by_logit = b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal);
    if encoding == ValueEncoding::Digits6 { by_logit } else { by_logit.then(a.0.cmp(&b.0)) }
}

fn ordered(ids: &[u32], logits: &[f32], encoding: ValueEncoding) -> bool {
    (1..ids.len()).all(|i| {
        compare((ids[i - 1], logits[i - 1]), (ids[i], logits[i]), encoding) != Ordering::Greater
    })
}

fn sort(ids: &mut [u32], logits: &mut [f32], encoding: ValueEncoding, pairs: &mut Vec<(u32, f32)>) {
    pairs.clear();
    pairs.extend(ids.iter().copied().zip(logits.iter().copied()));
    pairs.sort_by(|&a, &b| compare(a, b, encoding));
    for (place, &(id, logit)) in pairs.iter().enumerate() {
        ids[place] = id;
        logits[place] = logit;
    }
}

fn fill_stride(
    path: &Path,
    table: &mut Table,
    steps: &mut StepColumns,
    report: &mut OrderReport,
) -> Result<(), TraceError> {
    let most = steps.top_len.iter().copied().max().unwrap_or(0);
    let least = steps.top_len.iter().copied().min().unwrap_or(0);
    let stride = most as usize;
    steps.top_k = stride;
    if least == most {
        steps.top_ids = std::mem::take(&mut table.ids);
        steps.top_logits = std::mem::take(&mut table.logits);
        return Ok(());
    }
    report.uneven = Some((least as usize, stride));
    let cells = table.ends.len().saturating_mul(stride);
    if cells > table.ids.len().saturating_mul(8) && cells > MAX_PADDING {
        return Err(TraceError::Malformed {
            path: path.to_owned(),
            what: format!(
                "rows carry {least} to {most} logits; write the same number on every row"
            ),
        });
    }
    let mut start = 0;
    for (row, &end) in table.ends.iter().enumerate() {
        steps.top_ids.extend_from_slice(&table.ids[start..end]);
        steps.top_logits.extend_from_slice(&table.logits[start..end]);
        steps.top_ids.resize((row + 1) * stride, u32::MAX);
        steps.top_logits.resize((row + 1) * stride, f32::NAN);
        start = end;
    }
    Ok(())
}
