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
/// Tensors of the second pass.
const DETAILED: u64 = 2;

/// Reads a file once, so that it lies in the page cache.
fn warm(path: &Path) -> anyhow::Result<()> {
    let mut file = std::fs::File::open(path)?;
    std::io::copy(&mut file, &mut std::io::sink())?;
    Ok(())
}

/// A safetensors file of bf16 tensors whose values follow from their places; with `flip` the lowest bit of every value is turned.
fn write(path: &Path, tensors: u64, flip: bool) -> anyhow::Result<()> {
    let names: Vec<String> = (0..tensors)
        .map(|at| {
            format!(
                "\"layers.{at}.k\":{{\"dtype\":\"BF16\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                TENSOR / 2,
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
        block.par_chunks_mut(2).enumerate().for_each(|(place, value)| {
            let mixed = (place as u64 + at * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            // Values between 1 and 4 of either sign: every code is finite.
            let code = 0x3f80 | u16::try_from(mixed & 0x80ff).unwrap_or(0);
            value.copy_from_slice(&(code ^ u16::from(flip)).to_le_bytes());
        });
        file.write_all(&block)?;
    }
    file.sync_all()?;
    Ok(())
}

/// Equal files, and files in which every value differs by its last bit: both sides counted, against a copy by all threads.
pub(super) fn tensors(args: &BenchArgs, scratch: &Path) -> anyhow::Result<Vec<Figure>> {
    let count = (args.mb * 1_000_000 / TENSOR).max(1);
    let (left, twin, other) = (
        scratch.join("bench-set-left.safetensors"),
        scratch.join("bench-set-twin.safetensors"),
        scratch.join("bench-set-other.safetensors"),
    );
    write(&left, count, false)?;
    let mut figures = Vec::new();
    let copy = copy_rate()?;
    for (name, path, flip, detail, wanted) in [
        ("tensor sets, equal", &twin, false, Detail::Failed, Status::Identical),
        ("tensor sets, all different", &other, true, Detail::None, Status::Diverged),
        ("tensor sets, all different, detail", &other, true, Detail::All, Status::Diverged),
    ] {
        // The second pass looks at the same files as the pass before it.
        if detail != Detail::All {
            write(path, count, flip)?;
        }
        warm(&left)?;
        warm(path)?;
        // The second pass is slower: its rate is taken of a part.
        let looked_at = if detail == Detail::All { count.min(DETAILED) } else { count };
        let check = || {
            let options = ReadOptions::default();
            let (left, right) = (read(&left, &options)?, read(path, &options)?);
            let only = (looked_at < count).then(|| format!(r"^layers\.[0-{}]\.", looked_at - 1));
            let options = SetOptions { detail, only, ..SetOptions::default() };
            let report = compare(&left, &right, &options)?;
            anyhow::ensure!(
                report.pairs.iter().all(|pair| pair.status == wanted)
                    && report.pairs.len() as u64 == looked_at,
                "the made files do not compare as they were made: {}",
                report.summary
            );
            Ok(())
        };
        let times = if detail == Detail::All { 1 } else { 3 };
        let (least, peak) = watched(|| best(times, check))?;
        let rate = (2 * looked_at * TENSOR) as f64 / least;
        let note = format!(
            "{:.2} GB a side, bf16, both sides counted; largest anonymous memory seen {peak:.0} MB",
            (looked_at * TENSOR) as f64 / GB
        );
        figures.push(Figure::ratio(name, (rate / GB, copy / GB), "GB/s", note));
        if path == &twin {
            std::fs::remove_file(&twin)?;
        }
    }
    for path in [left, other] {
        std::fs::remove_file(path)?;
    }
    Ok(figures)
}
