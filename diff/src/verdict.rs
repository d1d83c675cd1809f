//! From what was found to a verdict, in order of judgement.

use lockstep_traces::Verdict;

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
            format!("rows differ from position {} on, logits do not", split.position),
        );
    }
    if let Some(why) = &facts.unfinished {
        return incomparable(why.clone());
    }
    if facts.without_logits == facts.compared {
        return incomparable(
            "no logits are stored on a side: tokens and rows agree, numbers were not compared",
        );
    }
    if facts.tie_parting.is_some() || facts.tie_flips > 0 {
        let at = facts
            .tie_parting
            .map_or_else(String::new, |split| format!(" at position {}", split.position));
        return (Verdict::Tie, format!("only choices among exactly equal logits differ{at}"));
    }
    if facts.exact {
        (Verdict::Identical, format!("{} rows are equal in everything stored", facts.compared))
    } else {
        (
            Verdict::WithinNoise,
            format!("{} rows are equal to six digits; bits are not stored", facts.compared),
        )
    }
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
    if let Some(noise) = facts.noise {
        let text = format!("logits differ{at} ({size}); {}", noise.summary);
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
            "logits differ{at} ({size}), {words} the fixed tolerance {:.1e}: {}",
            tolerance.relative_l2, tolerance.reason
        );
        return (if within { Verdict::WithinNoise } else { Verdict::Diverged }, text);
    }
    (
        Verdict::Diverged,
        format!(
            "logits differ{at} ({size}); argmax and tokens agree; without a control noise is not judged"
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
