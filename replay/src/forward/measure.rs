//! How fast the reference replays: chunked, token by token, and against the machine's own f32 matmul.

use std::path::Path;
use std::time::Instant;

use lockstep_reference::forward::{Chunk, Model, Precision, Watch, gemm_flops};

use crate::ReplayError;

/// Rates of one model on one machine, measured in one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Rows a second, fed in chunks.
    pub chunked_rows: f64,
    /// Rows a second, fed one at a time behind the same rows.
    pub single_rows: f64,
    /// Floating-point operations a second of the chunked replay's matmuls.
    pub chunked_flops: f64,
    /// Floating-point operations a second of one large f32 product.
    pub gemm_flops: f64,
}

impl Rates {
    /// Chunked over token by token.
    #[must_use]
    pub fn speedup(&self) -> f64 {
        self.chunked_rows / self.single_rows
    }

    /// Chunked replay over the plain product.
    #[must_use]
    pub fn share_of_gemm(&self) -> f64 {
        self.chunked_flops / self.gemm_flops
    }
}

/// Feeds `rows` pseudo-random tokens dense in f32, in chunks of `chunk`, then `singles` more one at a time.
///
/// # Errors
/// A model that cannot be loaded.
pub fn measure(
    model_dir: &Path,
    rows: usize,
    chunk: usize,
    singles: usize,
) -> Result<Rates, ReplayError> {
    let model = Model::load(model_dir, Precision::F32)?;
    let vocab = u64::try_from(model.hyper().vocab).unwrap_or(1);
    let id = |row: usize| {
        let mixed = (row as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
        u32::try_from(mixed % vocab).unwrap_or(0)
    };
    let mut cache = model.new_cache()?;
    let mut feed = |start: usize, end: usize, chunk: usize| -> Result<f64, ReplayError> {
        let started = Instant::now();
        let mut at = start;
        while at < end {
            let next = (at + chunk.max(1)).min(end);
            let ids: Vec<u32> = (at..next).map(id).collect();
            let positions: Vec<u32> =
                (at..next).map(|row| u32::try_from(row).unwrap_or(u32::MAX)).collect();
            let logits: Vec<usize> = (0..ids.len()).collect();
            let chunk = Chunk { ids: &ids, positions: &positions, logits: &logits };
            model.feed(&mut cache, &chunk, Watch::default())?;
            at = next;
        }
        Ok(started.elapsed().as_secs_f64())
    };
    // The first rows pay for page faults and for widening what stays resident.
    let warm = chunk.min(rows / 4).max(1);
    feed(0, warm, warm)?;
    let chunked = feed(warm, rows, chunk)?;
    let single = feed(rows, rows + singles, 1)?;
    let flops: u64 = (warm..rows).map(|row| model.flops(row as u64 + 1)).sum();
    let hyper = model.hyper();
    Ok(Rates {
        chunked_rows: (rows - warm) as f64 / chunked,
        single_rows: singles as f64 / single,
        chunked_flops: flops as f64 / chunked,
        gemm_flops: gemm_flops([chunk, hyper.hidden.max(1024), hyper.intermediate.max(4096)], 5)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_rows_that_were_timed() {
        let rates = measure(&lockstep_testkit::ledger(), 64, 16, 4).unwrap();
        assert!(rates.chunked_rows > 0.0 && rates.single_rows > 0.0);
        assert!(rates.chunked_flops.is_finite() && rates.gemm_flops.is_finite());
        let doubled = Rates { chunked_rows: 2.0 * rates.chunked_rows, ..rates };
        assert!((doubled.speedup() / rates.speedup() - 2.0).abs() < 1e-9);
    }

    /// Prints the figures for `LOCKSTEP_BENCH_MODEL`; a person reads them.
    #[test]
    #[ignore = "a measurement, not a test: needs a quiet machine"]
    fn figures_of_this_machine() {
        let dir = std::env::var_os("LOCKSTEP_BENCH_MODEL")
            .map_or_else(lockstep_testkit::ledger, std::path::PathBuf::from);
        let rates = measure(&dir, 1024, 512, 16).unwrap();
        println!("{rates:?} speedup {:.1} of gemm {:.2}", rates.speedup(), rates.share_of_gemm());
    }
}
