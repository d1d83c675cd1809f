//! From rows to an outcome.

use lockstep_traces::Verdict;
use lockstep_traces::llamacpp::LogitRows;

use super::Row;
use super::report::{Coding, KldPlace, KldReport, OtherToken};
use super::side::{KldSide, Pairing};
use crate::stats::count;

/// Width above which a row is not llama.cpp's own: 16 nats, and what f32 may add.
const OWN_RANGE: f64 = 16.001;
/// Tokens below which llama-perplexity prints no statistics.
const FEW: u64 = 100;

/// Sums over rows that only we take.
#[derive(Debug, Default)]
pub(super) struct Totals {
    rows: usize,
    coding: Coding,
    different: u64,
    non_finite: u64,
    first: Option<KldPlace>,
    worst: Option<KldPlace>,
}

impl Totals {
    pub(super) fn add(&mut self, row: &Row, (chunk, position): (usize, usize)) {
        let Row { figures, bounds, base_error, range, target_error } = row;
        self.rows += 1;
        let coding = &mut self.coding;
        coding.value_error = coding.value_error.max(*base_error);
        coding.range = coding.range.max(*range);
        if let Some(error) = target_error {
            let before = coding.target_value_error.unwrap_or(0.0);
            coding.target_value_error = Some(before.max(*error));
        }
        coding.kld_rounding += bounds.rounding;
        coding.kld_tail += bounds.tail;
        coding.target_cut_mass += bounds.cut_mass;
        self.non_finite += u64::from(!bounds.finite);
        let Some(worst) = bounds.worst else { return };
        self.different += 1;
        let place = KldPlace {
            chunk: chunk as u64 + 1,
            position: position as u64,
            kld: figures.kld,
            token_id: worst.id as u64,
            base: worst.base,
            target: worst.target,
            beyond: worst.beyond,
            entries: bounds.different as u64,
        };
        self.first.get_or_insert(place);
        if self.worst.is_none_or(|before| place.beyond > before.beyond) {
            self.worst = Some(place);
        }
    }
}

/// A report with nothing in it yet.
pub(super) fn empty(
    base_name: &str,
    target_name: &str,
    base: &KldSide,
    target: &KldSide,
    pairing: &Pairing,
) -> KldReport {
    let vocabulary = [base, target].iter().find_map(|side| match side {
        KldSide::Records(file) => Some(file.shape().n_vocab),
        KldSide::Logits(rows) => rows.size().1,
    });
    KldReport {
        base: base_name.to_owned(),
        target: target_name.to_owned(),
        direction: "KL(base || target)".to_owned(),
        n_ctx: pairing.n_ctx as u64,
        n_vocab: vocabulary.unwrap_or(0) as u64,
        chunks: pairing.chunks as u64,
        figures: None,
        by_chunk: None,
        coding: Coding::default(),
        different_rows: 0,
        non_finite_rows: 0,
        first: None,
        worst: None,
        other_token: None,
        by_chunks: Vec::new(),
        verdict: Verdict::Identical,
        summary: String::new(),
        limits: limits(base, target, pairing),
    }
}

fn limits(base: &KldSide, target: &KldSide, pairing: &Pairing) -> Vec<String> {
    let mut limits = Vec::new();
    for (side, name) in [(base, "base"), (target, "target")] {
        match side {
            KldSide::Records(file) => {
                limits.extend(file.cut().map(|cut| format!("the {name} is {cut}")));
            }
            KldSide::Logits(LogitRows::Run(run)) => {
                limits.extend(run.remarks().iter().map(|remark| format!("{name}: {remark}")));
            }
            KldSide::Logits(_) => {}
        }
    }
    if matches!(base, KldSide::Logits(_)) {
        limits.push(
            "the base holds logits; they were coded as llama-perplexity would have stored them"
                .to_owned(),
        );
    }
    if matches!(target, KldSide::Records(_)) {
        limits.push(
            "the target is in codes: log-probabilities are taken as stored, and KL is a lower bound where its entries were cut".to_owned(),
        );
    }
    if !pairing.tokens_known {
        limits.push("no token is known: no perplexity and no Δp".to_owned());
    }
    if pairing.other_first > 0 {
        limits.push(format!(
            "the first token of {} chunks is another one on the two sides: one of them may have fed BOS in its place",
            pairing.other_first
        ));
    }
    limits
}

/// Another token than in the base: nothing behind it can be compared.
pub(super) fn inputs_differ(report: &mut KldReport, other: OtherToken) {
    let OtherToken { chunk, position, base, target } = other;
    let why = format!(
        "the tokens differ: {base} against {target} in chunk {chunk} at position {position}; log-probabilities of other texts cannot be compared"
    );
    report.other_token = Some(other);
    report.summary.clone_from(&why);
    report.verdict = Verdict::Incomparable { why };
}

/// Verdict and summary.
pub(super) fn finish(report: &mut KldReport, totals: &Totals, base: &KldSide, target: &KldSide) {
    let n = count(totals.rows.max(1));
    report.coding = totals.coding;
    report.coding.kld_rounding /= n;
    report.coding.kld_tail /= n;
    report.coding.target_cut_mass /= n;
    report.different_rows = totals.different;
    report.non_finite_rows = totals.non_finite;
    (report.first, report.worst) = (totals.first, totals.worst);
    if report.coding.range > OWN_RANGE {
        report.limits.push(format!(
            "rows of the base span up to {:.2} nats: llama.cpp cuts them at 16, ik_llama.cpp at 24",
            report.coding.range
        ));
    }
    let tokens = report.figures.map_or(0, |figures| figures.tokens);
    if tokens < FEW {
        report.limits.push(format!(
            "llama-perplexity prints no statistics for fewer than {FEW} tokens; here there are {tokens}"
        ));
    }
    let rows = totals.rows;
    (report.verdict, report.summary) = match &report.first {
        _ if rows == 0 => {
            let why = "no scored row: nothing was compared".to_owned();
            (Verdict::Incomparable { why: why.clone() }, why)
        }
        Some(first) => (
            Verdict::Diverged,
            format!(
                "{} of {rows} rows differ by more than the codes can hide, first in chunk {}, position {}: token {} has {:.6} against {:.6}",
                totals.different,
                first.chunk,
                first.position,
                first.token_id,
                first.base,
                first.target
            ),
        ),
        None => (
            Verdict::WithinNoise,
            format!(
                "all {rows} rows agree as far as codes can show: a log-probability may still be off by {:.2e} nats",
                report.coding.value_error + report.coding.target_value_error.unwrap_or(0.0)
            ),
        ),
    };
    let cut = [base, target]
        .iter()
        .any(|side| matches!(side, KldSide::Records(file) if file.cut().is_some()));
    if cut && report.verdict == Verdict::WithinNoise {
        let why = "a file is cut: the rows that it lost were not compared".to_owned();
        report.verdict = Verdict::Incomparable { why };
    }
}
