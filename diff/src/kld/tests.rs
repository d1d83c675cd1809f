//! Hand-made rows: bounds against exact values, planted changes, inputs that do not fit.

use std::path::{Path, PathBuf};

use lockstep_traces::Verdict;
use lockstep_traces::llamacpp::{KldFile, KldRecord, LogitRows, encode_row};

use super::row::{TargetRow, row};
use super::*;
use crate::stats::exact_kl;

fn data(name: &str) -> PathBuf {
    lockstep_testkit::data().join("interop/llamacpp").join(name)
}

fn records(path: &Path) -> KldSide {
    KldSide::Records(KldFile::open(path).unwrap())
}

fn logits(path: &Path) -> KldSide {
    KldSide::Logits(LogitRows::open(path, Some(16), Some(19)).unwrap())
}

fn report(base: &KldSide, target: &KldSide) -> KldReport {
    compare(("base", base), ("target", target), |_, _| {}).unwrap()
}

/// Rows of pseudo-random logits, some far below the range of codes.
fn random(seed: u64, rows: usize, vocabulary: usize, spread: f32) -> Vec<Vec<f32>> {
    let mut state = seed;
    let mut draw = || {
        state = lockstep_traces::hash::splitmix64(state);
        f32::from(u16::try_from(state >> 48).unwrap()) / 65536.0
    };
    (0..rows).map(|_| (0..vocabulary).map(|_| (draw() + draw() - 1.0) * spread).collect()).collect()
}

#[test]
fn the_coding_bounds_hold_the_exact_divergence() {
    let mut tightest = f64::INFINITY;
    for spread in [0.0, 0.3, 3.0, 8.0, 14.0, 30.0] {
        let (bases, targets) = (random(1, 20, 257, spread), random(2, 20, 257, spread));
        for (base, target) in bases.iter().zip(&targets) {
            let mut coded = Vec::new();
            encode_row(base, &mut coded).unwrap();
            let record = KldRecord::of(&coded, base.len()).unwrap();
            let (figures, bounds) =
                row(&record, &TargetRow::Logits(target), Some(3), &mut Vec::new());
            let exact = exact_kl(base, target).unwrap();
            let (off, bound) = ((figures.kld - exact).abs(), bounds.rounding + bounds.tail);
            // f32 terms: 257 products of at most 60 nats, each off by some 2^-22 of itself.
            assert!(off <= bound + 2e-6 * (1.0 + exact), "{spread}: {off} {bound}");
            if spread > 1.0 {
                tightest = tightest.min(bound / off);
            }
            // The same logits as a target differ from their own codes by no more than codes can hide.
            let (_, own) = row(&record, &TargetRow::Logits(base), None, &mut Vec::new());
            assert_eq!((own.worst, own.different), (None, 0));
        }
    }
    assert!(tightest < 50.0, "the bound says nothing: {tightest}");
}

/// Base (1/2, 1/4, 1/4), target (1/4, 1/2, 1/4): KL = ln(2)/4; the next token is id 0: nll ln 2 and ln 4, difference of p -1/4.
#[test]
fn a_row_by_hand() {
    let ln = |p: f32| p.ln();
    let (base, target) = ([ln(0.5), ln(0.25), ln(0.25)], [ln(0.25), ln(0.5), ln(0.25)]);
    let mut coded = Vec::new();
    encode_row(&base, &mut coded).unwrap();
    let record = KldRecord::of(&coded, 3).unwrap();
    let (figures, bounds) = row(&record, &TargetRow::Logits(&target), Some(0), &mut Vec::new());
    let near = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-5, "{value}");
    near(figures.kld, 2f64.ln() / 4.0);
    near(f64::from(figures.nll), 4f64.ln());
    near(f64::from(figures.nll_base), 2f64.ln());
    near(f64::from(figures.p_diff), -0.25);
    assert!(!figures.same_top && bounds.different == 2);
    let worst = bounds.worst.unwrap();
    assert!(worst.id < 2 && (worst.beyond - 2f64.ln()).abs() < 1e-4, "{worst:?}");
}

#[test]
fn its_own_logits_and_its_own_file_agree_with_a_base() {
    let base = records(&data("base.kld"));
    for target in [logits(&data("base.npy")), records(&data("base.kld"))] {
        let found = report(&base, &target);
        assert_eq!(found.verdict, Verdict::WithinNoise, "{}", found.summary);
        assert_eq!((found.different_rows, found.first), (0, None));
        let figures = found.figures.unwrap();
        assert!(figures.kld.value.abs() < 1e-4 && figures.same_top.value > 0.999);
    }
}

#[test]
fn a_change_in_one_record_is_found_and_named() {
    let mut bytes = std::fs::read(data("base.kld")).unwrap();
    let home = tempfile::tempdir().unwrap();
    // Chunk 7, its third scored row (position 10), id 4: 400 codes away from what it was.
    let at = 20 + 15 * 16 * 4 + (6 * 7 + 2) * 48 + 8 + 2 * 4;
    let code = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let moved = if code > 30_000 { code - 400 } else { code + 400 };
    bytes[at..at + 2].copy_from_slice(&moved.to_le_bytes());
    let path = home.path().join("moved.kld");
    std::fs::write(&path, &bytes).unwrap();
    let moved = records(&path);
    for target in [logits(&data("base.npy")), records(&data("base.kld"))] {
        let found = report(&moved, &target);
        assert_eq!((&found.verdict, found.different_rows), (&Verdict::Diverged, 1));
        let first = found.first.unwrap();
        assert_eq!((first.chunk, first.position, first.token_id, first.entries), (7, 10, 4, 1));
        assert_eq!(found.worst, found.first);
        assert!(found.summary.contains("chunk 7, position 10"), "{}", found.summary);
    }
}

#[test]
fn another_token_makes_the_two_incomparable() {
    let mut bytes = std::fs::read(data("base.kld")).unwrap();
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("other.kld");
    // Chunk 3, position 5.
    let at = 20 + 4 * (2 * 16 + 5);
    bytes[at] = if bytes[at] == 3 { 4 } else { 3 };
    std::fs::write(&path, &bytes).unwrap();
    let found = report(&records(&data("base.kld")), &records(&path));
    let other = found.other_token.unwrap();
    assert_eq!((other.chunk, other.position), (3, 5));
    assert!(matches!(found.verdict, Verdict::Incomparable { .. }) && found.figures.is_none());
    // The first token of a chunk may be BOS on one side.
    let mut bytes = std::fs::read(data("base.kld")).unwrap();
    bytes[20 + 4 * 16] = 0;
    std::fs::write(&path, &bytes).unwrap();
    let found = report(&records(&data("base.kld")), &records(&path));
    assert_eq!(found.verdict, Verdict::WithinNoise);
    assert!(found.limits.iter().any(|line| line.contains("may have fed BOS")));
}

#[test]
fn sizes_that_do_not_fit_are_refused_and_lone_rows_compared() {
    let base = records(&data("base.kld"));
    let wrong = |target: &KldSide| {
        compare(("base", &base), ("target", target), |_, _| {}).unwrap_err().to_string()
    };
    let edges = wrong(&logits(&data("edges.npy")));
    assert!(edges.contains("5 rows of logits; the base has 105 scored rows"), "{edges}");
    // Two bare rows: no tokens, no chunks, no perplexity.
    let row = logits(&data("results/llamacpp-base.bin"));
    let found = report(&row, &row);
    let figures = found.figures.unwrap();
    assert_eq!((figures.tokens, figures.perplexity, found.by_chunk), (1, None, None));
    assert_eq!(found.verdict, Verdict::WithinNoise);
    assert!(found.limits.iter().any(|line| line.contains("no perplexity")));
}

#[test]
fn rows_that_are_not_finite_differ() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("nan.npy");
    let mut bytes = std::fs::read(data("base.npy")).unwrap();
    let at = bytes.len() - 4 * 19 * 105 + 4 * (19 * 30 + 2);
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let found = report(&records(&data("base.kld")), &logits(&path));
    assert_eq!((found.verdict, found.non_finite_rows), (Verdict::Diverged, 1));
    // Row 30 is the third of chunk 5.
    assert_eq!(found.first.map(|first| (first.chunk, first.position)), Some((5, 10)));
}

/// Two chunks whose means are 1 and 3, tokens all equal within: the error by chunk is 1, the error by token far smaller.
#[test]
fn the_error_by_chunk_is_that_of_the_chunks_means() {
    let cluster = |mean: f64| Cluster { sum: mean * 50.0, count: 50.0 };
    let found = mean(&[cluster(1.0), cluster(3.0)]).unwrap();
    assert!((found.value - 2.0).abs() < 1e-12 && (found.chunk_error - 1.0).abs() < 1e-12);
    assert!(
        (found.chunk_interval.0 - 1.0).abs() < 1e-12
            && (found.chunk_interval.1 - 3.0).abs() < 1e-12
    );
    assert!(mean(&[cluster(1.0)]).is_none());
}
