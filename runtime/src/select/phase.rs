//! Offsets, inverse frequencies and the cosines and sines of `(R + offset) * w` (`TRIATTENTION.md` 3.4, 3.5).

use half::bf16;
use lockstep_traces::RuleSet;

use super::Rules;

/// Largest round start that the phase tables of upstream always reach.
const TABLE_REACH: usize = 65536;

/// 1, 2, 4, ... up to `largest`, as f32.
#[expect(clippy::cast_precision_loss, reason = "powers of two are exact")]
pub(super) fn offsets(largest: usize) -> Vec<f32> {
    (0..usize::BITS)
        .map(|power| 1_usize << power)
        .take_while(|&offset| offset <= largest)
        .map(|offset| offset as f32)
        .collect()
}

/// Inverse frequencies as the rule set uses them: `sglang` rounds them to bf16.
pub(super) fn frequencies(rule_set: RuleSet, inv_freq: &[f32]) -> Vec<f32> {
    match rule_set {
        RuleSet::Sglang => inv_freq.iter().map(|&w| bf16::from_f32(w).to_f32()).collect(),
        RuleSet::Trt | RuleSet::Hf | RuleSet::Vllm => inv_freq.to_vec(),
    }
}

/// Round start of the row of the phase table that serves `round_start`; that itself where there is no table or it does not reach.
pub(crate) fn table_row(rules: &Rules, round_start: usize) -> usize {
    let tables = match rules.rule_set {
        RuleSet::Vllm => true,
        RuleSet::Sglang => !rules.disable_mlr,
        RuleSet::Trt | RuleSet::Hf => false,
    };
    let step = rules.divide_length.max(1);
    let reach = TABLE_REACH.max(rules.kv_budget.saturating_add(step));
    let base = round_start / step * step;
    if !tables || base < step || base > reach / step * step { round_start } else { base }
}

/// Cosines and sines of every offset and frequency, `[offsets][freqs]`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Phases {
    pub(super) cos: Vec<f32>,
    pub(super) sin: Vec<f32>,
}

impl Phases {
    /// Plain form: each phase is one f32 product.
    pub(super) fn plain(round_start: usize, offsets: &[f32], frequencies: &[f32]) -> Self {
        let (sin, cos) = offsets
            .iter()
            .flat_map(|offset| {
                let time = widen(round_start) + offset;
                frequencies.iter().map(move |w| (time * w).sin_cos())
            })
            .unzip();
        Self { cos, sin }
    }

    /// As the rule set's scorer gets them: from tables stepped by the divide length where it has tables, plain elsewhere.
    pub(super) fn of(
        rules: &Rules,
        round_start: usize,
        offsets: &[f32],
        frequencies: &[f32],
    ) -> Self {
        let base = table_row(rules, round_start);
        let plain = Self::plain(base, offsets, frequencies);
        if base == round_start {
            return plain;
        }
        plain.turned(round_start - base, frequencies)
    }

    /// Adds `residual` steps by angle addition, in f32.
    fn turned(mut self, residual: usize, frequencies: &[f32]) -> Self {
        let turn: Vec<(f32, f32)> =
            frequencies.iter().map(|w| (widen(residual) * w).sin_cos()).collect();
        let freqs = frequencies.len().max(1);
        for (cos, sin) in self.cos.chunks_mut(freqs).zip(self.sin.chunks_mut(freqs)) {
            for ((cos, sin), &(turn_sin, turn_cos)) in cos.iter_mut().zip(sin).zip(&turn) {
                let (c, s) = (*cos, *sin);
                *cos = c * turn_cos - s * turn_sin;
                *sin = s * turn_cos + c * turn_sin;
            }
        }
        self
    }
}

#[expect(clippy::cast_precision_loss, reason = "positions stay below 2^24; input checks see to it")]
pub(super) fn widen(position: usize) -> f32 {
    position as f32
}

#[cfg(test)]
mod tests {
    use lockstep_traces::PolicySpec;

    use super::*;

    #[test]
    fn offsets_are_the_powers_of_two_up_to_the_largest() {
        assert_eq!(offsets(65536).len(), 17);
        assert_eq!(offsets(100), [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]);
        assert_eq!(offsets(1), [1.0]);
    }

    #[test]
    fn only_sglang_rounds_frequencies_to_bf16() {
        let w = [1.0, 0.749_894_2];
        assert_eq!(frequencies(RuleSet::Vllm, &w), w);
        assert_eq!(frequencies(RuleSet::Sglang, &w), [1.0, 0.75]);
    }

    #[test]
    fn a_residual_turns_the_table_row_and_leaves_aligned_rows_plain() {
        let rules = |rule_set| {
            Rules::resolve(&PolicySpec {
                rule_set: Some(rule_set),
                divide_length: Some(128),
                ..PolicySpec::default()
            })
            .unwrap()
        };
        let (offsets, w) = (offsets(65536), [1.0, 0.3]);
        let plain = |start| Phases::plain(start, &offsets, &w);
        let vllm = rules(RuleSet::Vllm);
        assert_eq!(Phases::of(&vllm, 3200, &offsets, &w), plain(3200));
        let turned = Phases::of(&vllm, 3199, &offsets, &w);
        assert_ne!(turned, plain(3199));
        for (index, (cos, sin)) in turned.cos.iter().zip(&turned.sin).enumerate() {
            // 3072 + offset is exact, and with w = 1 so is the phase: only the rounding of cos and sin is left.
            if index % 2 == 0 {
                let truth = f64::from(3199.0 + offsets[index / 2]);
                assert!((f64::from(*cos) - truth.cos()).abs() < 3e-7);
                assert!((f64::from(*sin) - truth.sin()).abs() < 3e-7);
            }
        }
        assert_eq!(Phases::of(&vllm, 100, &offsets, &w), plain(100), "below the table");
        assert_eq!(Phases::of(&vllm, 65_536 + 200, &offsets, &w), plain(65_736), "beyond it");
        assert_eq!(Phases::of(&rules(RuleSet::Trt), 3199, &offsets, &w), plain(3199));
    }
}
