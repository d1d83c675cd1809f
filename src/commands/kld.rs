//! `diff kld`: a target against a KLD base of llama-perplexity.

use std::fmt::Write as _;
use std::path::Path;

use lockstep_diff::kld::{
    ChunkMean, KldFigures, KldPlace, KldReport, KldSide, Percentiles, PerplexityFigures, PlusMinus,
    compare,
};
use lockstep_traces::llamacpp::{KldFile, LogitRows, is_kld};

use super::inputs::wide;
use crate::cli::{DiffKldArgs, Format};
use crate::console::{self, Progress};
use crate::exit::Status;

pub(crate) fn execute(args: &DiffKldArgs, format: Format) -> anyhow::Result<Status> {
    let opened = |path: &Path| is_kld(path).then(|| KldFile::open(path)).transpose();
    let (base, target) = (opened(&args.baseline)?, opened(&args.target)?);
    let shape = base.as_ref().or(target.as_ref()).map(KldFile::shape);
    let n_ctx = shape.map(|shape| shape.n_ctx).or_else(|| args.chunk_tokens.map(wide));
    let n_vocab = shape.map(|shape| shape.n_vocab).or_else(|| args.vocab.map(wide));
    let side = |file: Option<KldFile>, path: &Path| match file {
        Some(file) => Ok::<_, anyhow::Error>(KldSide::Records(file)),
        None => Ok(KldSide::Logits(LogitRows::open(path, n_ctx, n_vocab)?)),
    };
    let (base, target) = (side(base, &args.baseline)?, side(target, &args.target)?);
    let (left, right) = (args.baseline.display().to_string(), args.target.display().to_string());
    let mut bar = Progress::new("chunks");
    let report = compare((&left, &base), (&right, &target), |done, total| bar.update(done, total))?;
    drop(bar);
    console::answer(format, &text(&report, args.by_chunk), &report)?;
    Ok(Status::of(&report.verdict))
}

fn text(report: &KldReport, by_chunk: bool) -> String {
    let mut out = format!(
        "{} against {}: {}\n{}\n",
        report.base,
        report.target,
        report.verdict.word(),
        report.summary
    );
    if let Some(figures) = &report.figures {
        perplexities(&mut out, figures);
        divergences(&mut out, figures);
        if let Some(perplexity) = &figures.perplexity {
            differences(&mut out, perplexity);
        }
        let PlusMinus { value, sigma } = figures.same_top;
        let _ = writeln!(out, "Same top p: {:6.3} ± {:5.3} %", 100.0 * value, 100.0 * sigma);
        ours(&mut out, report);
    }
    if by_chunk {
        let _ = writeln!(out, "\nchunk      mean KLD  ln(PPL(Q)/PPL(base))    mean Δp  same top");
        for row in &report.by_chunks {
            let number = |value: Option<f64>, width: usize, digits: usize| {
                value.map_or_else(|| format!("{:>width$}", "-"), |v| format!("{v:width$.digits$}"))
            };
            let _ = writeln!(
                out,
                "{:5}  {:12.6}  {}  {} %  {:6.2} %",
                row.chunk,
                row.kld,
                number(row.ln_ratio, 20, 6),
                number(row.delta_p.map(|share| 100.0 * share), 7, 3),
                100.0 * row.same_top
            );
        }
    }
    for limit in &report.limits {
        let _ = writeln!(out, "note: {limit}");
    }
    out
}

/// A line as llama-perplexity prints it.
fn line(out: &mut String, name: &str, figure: PlusMinus) {
    let _ = writeln!(out, "{name}: {:10.6} ± {:10.6}", figure.value, figure.sigma);
}

fn perplexities(out: &mut String, figures: &KldFigures) {
    let Some(found) = &figures.perplexity else { return };
    out.push_str("====== Perplexity statistics ======\n");
    line(out, "Mean PPL(Q)                   ", found.ppl);
    line(out, "Mean PPL(base)                ", found.ppl_base);
    let _ = writeln!(out, "Cor(ln(PPL(Q)), ln(PPL(base))): {:6.2}%", 100.0 * found.correlation);
    line(out, "Mean ln(PPL(Q)/PPL(base))     ", found.ln_ratio);
    line(out, "Mean PPL(Q)/PPL(base)         ", found.ratio);
    line(out, "Mean PPL(Q)-PPL(base)         ", found.difference);
}

fn divergences(out: &mut String, figures: &KldFigures) {
    out.push_str("====== KL divergence statistics ======\n");
    line(out, "Mean    KLD", figures.kld);
    let Percentiles { maximum, p99_9, p99, p95, p90, median, p10, p5, p1, p0_1, minimum, .. } =
        figures.kld_percentiles;
    for (name, value) in [
        ("Maximum", maximum),
        ("99.9%  ", p99_9),
        ("99.0%  ", p99),
        ("95.0%  ", p95),
        ("90.0%  ", p90),
        ("Median ", median),
        ("10.0%  ", p10),
        (" 5.0%  ", p5),
        (" 1.0%  ", p1),
        (" 0.1%  ", p0_1),
        ("Minimum", minimum),
    ] {
        let _ = writeln!(out, "{name} KLD: {value:10.6}");
    }
}

fn differences(out: &mut String, found: &PerplexityFigures) {
    out.push_str("====== Token probability statistics ======\n");
    let percent = |figure: PlusMinus| (100.0 * figure.value, 100.0 * figure.sigma);
    let (mean, sigma) = percent(found.delta_p);
    let _ = writeln!(out, "Mean    Δp: {mean:6.3} ± {sigma:5.3} %");
    let all = found.delta_p_percentiles;
    for (name, value) in [
        ("Maximum", all.maximum),
        ("99.9%  ", all.p99_9),
        ("99.0%  ", all.p99),
        ("95.0%  ", all.p95),
        ("90.0%  ", all.p90),
        ("75.0%  ", all.p75),
        ("Median ", all.median),
        ("25.0%  ", all.p25),
        ("10.0%  ", all.p10),
        (" 5.0%  ", all.p5),
        (" 1.0%  ", all.p1),
        (" 0.1%  ", all.p0_1),
        ("Minimum", all.minimum),
    ] {
        let _ = writeln!(out, "{name} Δp: {:6.3}%", 100.0 * f64::from(value));
    }
    let (rms, sigma) = percent(found.delta_p_rms);
    let _ = writeln!(out, "RMS Δp    : {rms:6.3} ± {sigma:5.3} %");
}

/// What llama-perplexity does not print.
fn ours(out: &mut String, report: &KldReport) {
    if let Some(by_chunk) = &report.by_chunk {
        let _ = writeln!(
            out,
            "====== Errors by chunk ({} chunks; tokens of one chunk are not independent) ======",
            by_chunk.chunks
        );
        let mut mean = |name: &str, mean: Option<ChunkMean>, unit: f64| {
            let Some(ChunkMean { value, chunk_error, chunk_interval: (low, high) }) = mean else {
                return;
            };
            let _ = writeln!(
                out,
                "{name}: {:10.6}, chunk error {:.6}, 95 % of resampled chunks {:.6} to {:.6}",
                unit * value,
                unit * chunk_error,
                unit * low,
                unit * high
            );
        };
        mean("Mean KLD                 ", by_chunk.kld, 1.0);
        mean("Mean ln(PPL(Q)/PPL(base))", by_chunk.ln_ratio, 1.0);
        mean("Mean Δp, %               ", by_chunk.delta_p, 100.0);
        mean("Same top p, %            ", by_chunk.same_top, 100.0);
    }
    let coding = &report.coding;
    let _ = writeln!(out, "====== What 16-bit codes can hide ======");
    let _ = writeln!(
        out,
        "{}: a log-probability of the base is off by at most {:.2e} nats, rows span up to {:.2} nats",
        report.direction, coding.value_error, coding.range
    );
    if let Some(error) = coding.target_value_error {
        let _ = writeln!(
            out,
            "a log-probability of the target is off by at most {error:.2e} nats; base mass on entries that it cut: {:.2e}",
            coding.target_cut_mass
        );
    }
    let _ = writeln!(
        out,
        "the mean KLD is off by at most {:.2e} for the steps of the codes and {:.2e} for entries below their range or at and under -16",
        coding.kld_rounding, coding.kld_tail
    );
    for (name, place) in [("first", &report.first), ("worst", &report.worst)] {
        let Some(KldPlace { chunk, position, kld, token_id, base, target, beyond, entries }) =
            place
        else {
            continue;
        };
        let _ = writeln!(
            out,
            "{name} row that differs beyond that: chunk {chunk}, position {position}, KLD {kld:.6}, {entries} entries; token {token_id}: \
             {base:.6} against {target:.6}, {beyond:.2e} nats too far"
        );
    }
}
