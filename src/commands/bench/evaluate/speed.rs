//! Times and rates of a run: sums over sums, each rate under the name of its convention.

use lockstep_runtime::engine::RunSummary;
use lockstep_traces::SampleRow;
use serde::Serialize;

/// Times of the rows of a run. A pass over a batch counts for every row in it, so with a batch above 1 the rates are
/// those that one row sees, not the throughput of the machine. A rate without seconds is `null`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Speed {
    pub(super) rows: usize,
    pub(super) prompt_tokens: u64,
    pub(super) generated_tokens: u64,
    pub(super) prefill_seconds: f64,
    pub(super) decode_seconds: f64,
    /// sum(prompt tokens) / sum(prefill seconds).
    pub(super) prompt_per_prefill_second: Option<f64>,
    /// sum(generated) / sum(decode seconds). The first token of a row comes from its prefill and is counted all the same:
    /// the convention of TensorRT-Model-Connect's `tokens_per_sec`.
    pub(super) generated_per_decode_second: Option<f64>,
    /// sum(generated - 1) / sum(decode seconds): tokens that decode passes really made.
    pub(super) generated_less_one_per_decode_second: Option<f64>,
    /// sum(generated) / sum(prefill + decode seconds): the wall-based convention of scripts around transformers.
    pub(super) generated_per_wall_second: Option<f64>,
}

impl Speed {
    pub(super) fn of(rows: &[SampleRow]) -> Self {
        let generated = |row: &SampleRow| row.generated_ids.len() as u64;
        let mut speed = Self {
            rows: rows.len(),
            prompt_tokens: rows.iter().map(|row| row.prompt_ids.len() as u64).sum(),
            generated_tokens: rows.iter().map(generated).sum(),
            prefill_seconds: rows.iter().map(|row| row.prefill_seconds).sum(),
            decode_seconds: rows.iter().map(|row| row.decode_seconds).sum(),
            ..Self::default()
        };
        let decoded: u64 = rows.iter().map(|row| generated(row).saturating_sub(1)).sum();
        speed.prompt_per_prefill_second = rate(speed.prompt_tokens, speed.prefill_seconds);
        speed.generated_per_decode_second = rate(speed.generated_tokens, speed.decode_seconds);
        speed.generated_less_one_per_decode_second = rate(decoded, speed.decode_seconds);
        speed.generated_per_wall_second =
            rate(speed.generated_tokens, speed.prefill_seconds + speed.decode_seconds);
        speed
    }
}

/// What this call computed; rows from a response cache are not in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Work {
    pub(super) rows: usize,
    pub(super) prompt_tokens: u64,
    /// Generated tokens fed back.
    pub(super) decode_tokens: u64,
    pub(super) prefill_seconds: f64,
    /// Seconds of decode passes, a batch counted once.
    pub(super) decode_seconds: f64,
    /// Seconds of the call for this configuration, reading and writing included.
    pub(super) wall_seconds: f64,
    /// Tokens fed back / seconds of decode passes: throughput of the machine at this batch.
    pub(super) decode_tokens_per_second: Option<f64>,
}

impl Work {
    pub(super) fn of(summary: &RunSummary, wall_seconds: f64) -> Self {
        Self {
            rows: summary.finished,
            prompt_tokens: summary.prompt_tokens,
            decode_tokens: summary.decode_tokens,
            prefill_seconds: summary.prefill_seconds,
            decode_seconds: summary.decode_seconds,
            wall_seconds,
            decode_tokens_per_second: rate(summary.decode_tokens, summary.decode_seconds),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^53")]
fn rate(tokens: u64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| tokens as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(prompt: usize, generated: usize, prefill: f64, decode: f64) -> SampleRow {
        SampleRow {
            prompt_ids: vec![1; prompt],
            generated_ids: vec![2; generated],
            prefill_seconds: prefill,
            decode_seconds: decode,
            ..SampleRow::bare("x")
        }
    }

    /// Two rows of unlike rates: 100 tokens in 1 s and 10 tokens in 4 s. The mean of the rates would be 51.25.
    #[test]
    fn rates_are_sums_over_sums_and_each_has_its_own_convention() {
        let speed = Speed::of(&[row(8, 100, 0.5, 1.0), row(24, 10, 1.5, 4.0)]);
        assert_eq!(speed.generated_per_decode_second, Some(22.0));
        assert_eq!(speed.generated_less_one_per_decode_second, Some(21.6));
        assert_eq!(speed.generated_per_wall_second, Some(110.0 / 7.0));
        assert_eq!(speed.prompt_per_prefill_second, Some(16.0));
        assert_eq!((speed.rows, speed.prompt_tokens, speed.generated_tokens), (2, 32, 110));
    }

    #[test]
    fn a_rate_without_seconds_is_no_number() {
        let speed = Speed::of(&[row(8, 0, 0.0, 0.0)]);
        assert_eq!(
            (speed.generated_per_decode_second, speed.generated_per_wall_second),
            (None, None)
        );
        assert_eq!(speed.generated_less_one_per_decode_second, None);
    }
}
