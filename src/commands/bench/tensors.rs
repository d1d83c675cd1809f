//! `bench --self --only tensors`: two safetensors files in the page cache, compared through the door of `diff tensors`.

use std::io::Write as _;
use std::path::Path;

use lockstep_diff::tensor_sets::{Detail, SetOptions, Status, compare};
use lockstep_traces::tensor_files::{ReadOptions, read};
use rayon::prelude::*;

use super::Figure;
use super::parts::{GB, best, copy_rate, watched};
use crate::cli::BenchArgs;

/// Bytes of one tensor.
const TENSOR: u64 = 1 << 28;

/// Reads a file once, so that it lies in the page cache.
fn warm(path: &Path) -> anyhow::Result<()> {
    let mut file = std::fs::File::open(path)?;
    std::io::copy(&mut file, &mut std::io::sink())?;
    Ok(())
}

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// bf16 values that follow from their places.
    Half,
    /// The same with the lowest bit of every value turned.
    Flipped,
    /// f32 values between 1 and 2.
    Single,
    /// The same, each a few to a few thousand representable values off.
    Noisy,
}

impl Content {
    const fn dtype(self) -> (&'static str, u64) {
        match self {
            Self::Half | Self::Flipped => ("BF16", 2),
            Self::Single | Self::Noisy => ("F32", 4),
        }
    }

    /// Fills the bytes of block `at`.
    fn fill(self, at: u64, block: &mut [u8]) {
        let mixed = move |place: usize| {
            (place as u64 + at * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
        };
        if matches!(self, Self::Half | Self::Flipped) {
            block.par_chunks_mut(2).with_min_len(1 << 16).enumerate().for_each(|(place, value)| {
                // Values between 1 and 4 of either sign: every code is finite.
                let code = 0x3f80 | u16::try_from(mixed(place) & 0x80ff).unwrap_or(0);
                let flip = u16::from(self == Self::Flipped);
                value.copy_from_slice(&(code ^ flip).to_le_bytes());
            });
        } else {
            block.par_chunks_mut(4).with_min_len(1 << 16).enumerate().for_each(|(place, value)| {
                let bits = mixed(place);
                let code = 0x3f80_0000 | u32::try_from(bits & 0x7f_ffff).unwrap_or(0);
                let off = if self == Self::Noisy { 1 << (bits >> 23 & 15) } else { 0 };
                value.copy_from_slice(&(code ^ off).to_le_bytes());
            });
        }
    }
}

/// A safetensors file of `tensors` tensors.
fn write(path: &Path, tensors: u64, content: Content) -> anyhow::Result<()> {
    let (dtype, width) = content.dtype();
    let names: Vec<String> = (0..tensors)
        .map(|at| {
            format!(
                "\"layers.{at}.k\":{{\"dtype\":\"{dtype}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                TENSOR / width,
                at * TENSOR,
                (at + 1) * TENSOR
            )
        })
        .collect();
    let mut header = format!("{{{}}}", names.join(",")).into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = std::fs::File::create(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    let mut block = vec![0_u8; 1 << 24];
    for at in 0..tensors * TENSOR / (1 << 24) {
        content.fill(at, &mut block);
        file.write_all(&block)?;
    }
    file.sync_all()?;
    Ok(())
}

/// Equal files, and files in which every value differs, with and without details: both sides counted, against a copy by all threads.
pub(super) fn tensors(args: &BenchArgs, scratch: &Path) -> anyhow::Result<Vec<Figure>> {
    let count = (args.mb * 1_000_000 / TENSOR).max(1);
    let copy = copy_rate()?;
    let mut figures = Vec::new();
    for (left, right, cases) in [
        (Content::Half, Content::Half, [("tensor sets, equal", Detail::Failed)].as_slice()),
        (
            Content::Half,
            Content::Flipped,
            &[
                ("tensor sets, bf16 all different, figures of the verdict", Detail::None),
                ("tensor sets, bf16 all different", Detail::Failed),
            ],
        ),
        (Content::Single, Content::Noisy, &[("tensor sets, f32 all different", Detail::Failed)]),
    ] {
        let paths =
            [scratch.join("bench-left.safetensors"), scratch.join("bench-right.safetensors")];
        for (path, content) in paths.iter().zip([left, right]) {
            write(path, count, content)?;
            warm(path)?;
        }
        let [baseline, target] = &paths;
        let wanted = if left == right { Status::Identical } else { Status::Diverged };
        for (name, detail) in cases {
            let check = || {
                let options = ReadOptions::default();
                let (left, right) = (read(baseline, &options)?, read(target, &options)?);
                let options = SetOptions { detail: *detail, ..SetOptions::default() };
                let report = compare(&left, &right, &options)?;
                anyhow::ensure!(
                    report.pairs.iter().all(|pair| pair.status == wanted)
                        && report.pairs.len() as u64 == count,
                    "the made files do not compare as they were made: {}",
                    report.summary
                );
                Ok(())
            };
            let (least, peak) = watched(|| best(3, check))?;
            let rate = (2 * count * TENSOR) as f64 / least;
            let note = format!(
                "{:.2} GB a side, both sides counted; largest anonymous memory seen {peak:.0} MB",
                (count * TENSOR) as f64 / GB
            );
            figures.push(Figure::ratio(name, (rate / GB, copy / GB), "GB/s", note));
        }
        for path in paths {
            std::fs::remove_file(path)?;
        }
    }
    Ok(figures)
}
