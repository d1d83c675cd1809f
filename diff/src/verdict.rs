//! From what was found to a verdict, in order of judgement.

use lockstep_traces::Verdict;

use crate::precision::Scale;
use crate::report::{Alignment, NoiseReport, Split, SplitClass, Splits};

/// What the judgement of one sample rests on.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) splits: &'a Splits,
    pub(crate) tie_parting: Option<&'a Split>,
    pub(crate) alignment: Alignment,
    pub(crate) prompt_differs_at: Option<u32>,
    pub(crate) compared: u64,
    pub(crate) without_logits: u64,
    pub(crate) differing: u64,
    pub(crate) one_non_finite: u64,
    pub(crate) both_non_finite: u64,
    pub(crate) tie_flips: u64,
    pub(crate) relative_l2: Option<f64>,
    pub(crate) max_abs: Option<f64>,
    pub(crate) exact: bool,
    /// Both sides are exact or hold six digits.
    pub(crate) digits_only: bool,
    /// How values were compared.
    pub(crate) scale: Scale,
    /// `logits`, `log-probabilities` or `ranks`.
    pub(crate) noun: &'static str,
    /// Both sides count cache rows.
    pub(crate) rows_known: bool,
    /// Parts that a side lacks, as the end of a sentence.
    pub(crate) lacking: String,
    /// Prompt rows that choose no token and have another argmax: how many, and the first.
    pub(crate) prompt_flips: Option<(u64, u32)>,
    /// Rows whose chosen tokens were compared.
    pub(crate) tokens_compared: u64,
    /// Why rows are missing though nothing differs: a side is incomplete.
    pub(crate) unfinished: Option<String>,
    pub(crate) noise: Option<&'a NoiseReport>,
    pub(crate) tolerance: Option<&'a crate::Tolerance>,
}

fn incomparable(why: impl Into<String>) -> (Verdict, String) {
    let why = why.into();
    (Verdict::Incomparable { why: why.clone() }, why)
}

/// Judges one sample: nothing compared -> structure and presence -> choices -> non-finite -> noise -> policy -> coverage
/// -> tie -> equality.
pub(crate) fn judge(facts: &Facts<'_>) -> (Verdict, String) {
    if facts.compared == 0 {
        return incomparable(match facts.prompt_differs_at {
            Some(position) => {
                format!("the fed tokens differ from position {position} on: nothing is comparable")
            }
            None => "no row is on both sides: nothing was compared".to_owned(),
        });
    }
    if let Some(found) = choices(facts).or_else(|| structure(facts)) {
        return (Verdict::Diverged, found);
    }
    if facts.one_non_finite > 0 {
        return (
            Verdict::Diverged,
            format!("{} rows are non-finite on one side only", facts.one_non_finite),
        );
    }
    if facts.both_non_finite > 0 {
        return incomparable(format!(
            "{} rows are non-finite on both sides: neither equal nor different",
            facts.both_non_finite
        ));
    }
    if let Some(position) = facts.prompt_differs_at {
        return incomparable(format!("the prompts differ at position {position}"));
    }
    if facts.differing > 0 {
        return differing(facts);
    }
    if let Some(split) = &facts.splits.structural {
        return (
            Verdict::Diverged,
            format!("rows differ from position {} on, {} do not", split.position, facts.noun),
        );
    }
    if let Some(why) = &facts.unfinished {
        return incomparable(why.clone());
    }
    if facts.without_logits == facts.compared {
        return without_values(facts);
    }
    if facts.tie_parting.is_some() || facts.tie_flips > 0 {
        let at = facts
            .tie_parting
            .map_or_else(String::new, |split| format!(" at position {}", split.position));
        return (Verdict::Tie, format!("only choices among exactly equal logits differ{at}"));
    }
    agreed(facts)
}

/// Everything that was compared agrees. Only what lacks no part of the evidence is identical; otherwise the sentence says what
/// was compared, and what was not.
fn agreed(facts: &Facts<'_>) -> (Verdict, String) {
    let rows = facts.compared;
    if facts.exact && facts.lacking.is_empty() {
        return (Verdict::Identical, format!("{rows} rows are equal in everything stored"));
    }
    let text = match facts.scale {
        _ if facts.exact => format!("{rows} rows are equal in everything stored"),
        _ if facts.digits_only => {
            format!("{rows} rows are equal to six digits; bits are not stored")
        }
        Scale::Same => format!(
            "{} of {rows} rows are equal within the precision in which their {} are written",
            rows.saturating_sub(facts.without_logits),
            facts.noun
        ),
        Scale::Normalised { .. } => format!(
            "log-probabilities of {} of {rows} rows agree within the rounding of an f32 log-softmax and of the values as written",
            rows.saturating_sub(facts.without_logits)
        ),
        Scale::Ranks | Scale::Nothing => format!("tokens and ranks of {rows} rows agree"),
    };
    (Verdict::WithinNoise, text + &facts.lacking)
}

/// No pair of rows has values on both sides. Where a source says that it has none, agreement of all that it does have is
/// parity; where a trace that should hold values holds none, it is not.
fn without_values(facts: &Facts<'_>) -> (Verdict, String) {
    let tokens = facts.tokens_compared;
    if tokens > 0 && facts.scale == Scale::Nothing {
        return (
            Verdict::WithinNoise,
            format!("the chosen tokens of {tokens} rows agree{}", facts.lacking),
        );
    }
    let others = match (tokens > 0, facts.rows_known) {
        (true, true) => "tokens and rows agree, numbers were not compared",
        (true, false) => "tokens agree, numbers and rows were not compared",
        (false, true) => "rows agree, numbers and chosen tokens were not compared",
        (false, false) => "nothing was compared",
    };
    incomparable(format!("no logits are stored on a side: {others}{}", facts.lacking))
}

fn choices(facts: &Facts<'_>) -> Option<String> {
    let real = |split: &&Split| !excused(split, facts.noise);
    if let Some(split) = facts.splits.token.as_ref().filter(real) {
        return Some(format!(
            "tokens part: decided at row {}, fed at {}; {}",
            split.position, split.fed_at, split.note
        ));
    }
    let split = facts.splits.argmax.as_ref().filter(real)?;
    Some(format!("argmax parts at row {}; {}", split.position, split.note))
}

/// A choice is put down to noise only where the logits are within the control's noise and the gap is no larger than what
/// two errors of that size can turn.
fn excused(split: &Split, noise: Option<&NoiseReport>) -> bool {
    let Some(noise) = noise.filter(|noise| noise.verdict == Verdict::WithinNoise) else {
        return false;
    };
    let Some(control) = noise.metrics.iter().find(|metric| metric.name == "max_abs") else {
        return false;
    };
    let gaps = [split.left.as_ref(), split.right.as_ref()];
    let gap = gaps.into_iter().flatten().filter_map(|view| view.gap).fold(f64::INFINITY, f64::min);
    split.class != SplitClass::NonFinite && gap <= 2.0 * control.control
}

fn structure(facts: &Facts<'_>) -> Option<String> {
    let split = facts.splits.structural.as_ref()?;
    if split.class == SplitClass::Policy {
        return None;
    }
    let mut text = format!("structure parts at row {}: {}", split.position, split.note);
    if let Some(offset) = facts.alignment.rows_offset.filter(|offset| *offset != 0) {
        text.push_str("; constant row offset ");
        text.push_str(&offset.to_string());
    }
    Some(text)
}

fn differing(facts: &Facts<'_>) -> (Verdict, String) {
    let size = match (facts.max_abs, facts.relative_l2) {
        (Some(max), Some(relative)) => {
            format!("largest difference {max:.3e}, relative L2 {relative:.3e}")
        }
        _ => "sizes unknown".to_owned(),
    };
    let at = facts
        .splits
        .logit
        .as_ref()
        .map_or_else(String::new, |split| format!(" from row {} on", split.position));
    let flips = facts.prompt_flips.map(|(rows, first)| {
        format!("argmax differs at {rows} prompt rows, first {first}, which choose no token")
    });
    let behind = flips.as_ref().map_or_else(String::new, |flips| format!("; {flips}"));
    if let Some(noise) = facts.noise {
        let text = format!("{} differ{at} ({size}); {}{behind}", facts.noun, noise.summary);
        return match &noise.verdict {
            Verdict::WithinNoise | Verdict::Identical | Verdict::Tie => {
                (Verdict::WithinNoise, text)
            }
            Verdict::Incomparable { why } => (Verdict::Incomparable { why: why.clone() }, text),
            Verdict::Diverged => (Verdict::Diverged, text),
        };
    }
    if let Some(tolerance) = facts.tolerance {
        let within = facts.relative_l2.is_some_and(|relative| relative <= tolerance.relative_l2);
        let words = if within { "within" } else { "beyond" };
        let text = format!(
            "{} differ{at} ({size}), {words} the fixed tolerance {:.1e}: {}{behind}",
            facts.noun, tolerance.relative_l2, tolerance.reason
        );
        return (if within { Verdict::WithinNoise } else { Verdict::Diverged }, text);
    }
    let choices = flips.map_or_else(
        || "argmax and tokens agree".to_owned(),
        |flips| format!("{flips}; chosen tokens agree"),
    );
    (
        Verdict::Diverged,
        format!(
            "{} differ{at} ({size}); {choices}; without a control noise is not judged",
            facts.noun
        ),
    )
}

/// Folds verdicts of samples; nothing at all is incomparable.
pub(crate) fn overall<'a>(verdicts: impl Iterator<Item = &'a Verdict>, missing: usize) -> Verdict {
    let mut worst: Option<Verdict> = None;
    for verdict in verdicts {
        worst = Some(match worst {
            Some(so_far) => so_far.worst(verdict.clone()),
            None => verdict.clone(),
        });
    }
    let Some(worst) = worst else {
        return Verdict::Incomparable {
            why: "no sample is on both sides: nothing was compared".to_owned(),
        };
    };
    if missing == 0 {
        return worst;
    }
    worst.worst(Verdict::Incomparable { why: format!("{missing} samples are on one side only") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_sample_is_never_counted_as_equal() {
        let verdict = overall([Verdict::Identical].iter(), 1);
        assert_eq!(verdict.exit_code(), 4);
        assert_eq!(overall([Verdict::Identical, Verdict::Tie].iter(), 0), Verdict::Tie);
        assert_eq!(overall([Verdict::Diverged].iter(), 3), Verdict::Diverged);
    }

    #[test]
    fn a_comparison_of_nothing_fails() {
        assert_eq!(overall(std::iter::empty(), 0).exit_code(), 4);
    }
}
