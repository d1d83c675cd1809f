//! How a run uses the device, and what that means for its bits.

use crate::cuda::gpu::GpuError;
use crate::cuda::ops::linear::MOST_COLUMNS;

/// Rows of a split in the deterministic mode.
const FIXED_SPLIT: u32 = 256;

/// Choices of a run on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Splits of the attention have a fixed number of rows, so that a sequence's bits do not depend on its batch or on the bucket ladders.
    /// Off: they fill the device, and sums of the same values may be grouped another way in another batch or bucket.
    pub deterministic: bool,
    /// Decode passes are recorded once a bucket and replayed.
    pub graphs: bool,
    /// Batch sizes that passes are recorded for, ascending.
    pub batch_buckets: Vec<usize>,
    /// Live rows that passes are recorded for, ascending; beyond the last they double.
    pub row_buckets: Vec<usize>,
    /// Rows are scored and chosen on the device; off: by the CPU's selector from downloaded keys.
    pub select: bool,
    /// Rows are moved on the device; off: downloaded, moved by the CPU, uploaded.
    pub gather: bool,
    /// Step rows are summarised (top ids, logsumexp, hash). Off, rows hold the drawn token only: to measure what summaries cost.
    pub summaries: bool,
    /// Stages of a selection are timed one by one; the host waits for each.
    pub timed: bool,
    /// Prompt rows of one pass.
    pub prefill_rows: usize,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            deterministic: false,
            graphs: true,
            batch_buckets: vec![1, 2, 4, 8],
            row_buckets: vec![256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768],
            select: true,
            gather: true,
            summaries: true,
            timed: false,
            prefill_rows: 2048,
        }
    }
}

impl DeviceOptions {
    /// Checks the ladders.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] with what is wrong.
    pub fn check(&self) -> Result<(), GpuError> {
        let rises = |ladder: &[usize]| {
            ladder.first().is_some_and(|&first| first > 0)
                && ladder.windows(2).all(|pair| pair[0] < pair[1])
        };
        let most = self.batch_buckets.last().copied().unwrap_or(0);
        if !rises(&self.batch_buckets) || most > MOST_COLUMNS {
            return Err(GpuError::unsupported(format!(
                "batch buckets {:?}; a rising list up to {MOST_COLUMNS} is taken",
                self.batch_buckets
            )));
        }
        if !rises(&self.row_buckets) {
            return Err(GpuError::unsupported(format!(
                "row buckets {:?}; a rising list of row counts is taken",
                self.row_buckets
            )));
        }
        if self.prefill_rows == 0 || self.prefill_rows > 1 << 16 {
            return Err(GpuError::unsupported(format!(
                "{} prompt rows a pass; 1 to 65536 are taken",
                self.prefill_rows
            )));
        }
        Ok(())
    }

    /// Smallest batch bucket that holds `batch` sequences.
    #[must_use]
    pub fn batch_bucket(&self, batch: usize) -> Option<usize> {
        self.batch_buckets.iter().copied().find(|&bucket| bucket >= batch)
    }

    /// Smallest row bucket that holds `rows` live rows.
    #[must_use]
    pub fn row_bucket(&self, rows: usize) -> usize {
        let listed = self.row_buckets.iter().copied().find(|&bucket| bucket >= rows);
        listed.unwrap_or_else(|| {
            let mut bucket = self.row_buckets.last().copied().unwrap_or(1).max(1);
            while bucket < rows {
                bucket *= 2;
            }
            bucket
        })
    }
}

/// How the rows of a KV head are split over blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Splits {
    /// Blocks of the grid.
    pub(super) count: usize,
    /// Rows of a block; 0: the live rows divided by `count`.
    pub(super) rows: u32,
}

impl Splits {
    /// Splits for a bucket: fixed sizes, or as many blocks as the device holds at once, of 32 rows at least.
    pub(super) fn of(
        options: &DeviceOptions,
        (batch, rows): (usize, usize),
        kv_heads: usize,
        sm_count: u32,
    ) -> Self {
        if options.deterministic {
            return Self { count: rows.div_ceil(FIXED_SPLIT as usize), rows: FIXED_SPLIT };
        }
        let fill = (3 * sm_count as usize / (kv_heads * batch)).max(1);
        Self { count: rows.div_ceil(32).min(fill), rows: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_the_next_rung_and_double_beyond_the_last() {
        let options = DeviceOptions { row_buckets: vec![100, 300], ..DeviceOptions::default() };
        assert_eq!(
            [1, 100, 101, 300, 301, 700].map(|rows| options.row_bucket(rows)),
            [100, 100, 300, 300, 600, 1200]
        );
        assert_eq!(
            [1, 3, 8, 9].map(|batch| options.batch_bucket(batch)),
            [Some(1), Some(4), Some(8), None]
        );
    }

    #[test]
    fn ladders_that_do_not_rise_are_refused() {
        for (batch, rows) in [
            (vec![], vec![1]),
            (vec![2, 1], vec![1]),
            (vec![16], vec![1]),
            (vec![1], vec![5, 5]),
            (vec![0], vec![1]),
        ] {
            let options = DeviceOptions {
                batch_buckets: batch,
                row_buckets: rows,
                ..DeviceOptions::default()
            };
            assert!(options.check().is_err(), "{options:?}");
        }
        assert!(DeviceOptions::default().check().is_ok());
        assert!(DeviceOptions { prefill_rows: 0, ..DeviceOptions::default() }.check().is_err());
    }

    #[test]
    fn fixed_splits_depend_on_rows_alone() {
        let fixed = DeviceOptions { deterministic: true, ..DeviceOptions::default() };
        for batch in 1..=8 {
            let splits = Splits::of(&fixed, (batch, 4096), 8, 132);
            assert_eq!(splits, Splits { count: 16, rows: 256 });
        }
        let free = DeviceOptions::default();
        assert_eq!(Splits::of(&free, (1, 4096), 8, 132), Splits { count: 49, rows: 0 });
        assert_eq!(Splits::of(&free, (8, 4096), 8, 132), Splits { count: 6, rows: 0 });
        assert_eq!(Splits::of(&free, (1, 256), 8, 132), Splits { count: 8, rows: 0 });
    }
}
