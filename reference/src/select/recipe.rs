//! How a selection is computed, step by step, as data.
//!
//! A rule set is one recipe; a hypothesis about a mistake is the same recipe with one step changed.

use lockstep_traces::{Aggregation, RuleSet, SelectionMode};
use serde::{Deserialize, Serialize};

use super::Rules;

/// Which form of the key enters the score (`TRIATTENTION.md` 3.1, 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyForm {
    /// As stored; no token position enters.
    Rotated,
    /// Rotation undone by the row's own position, which enters the phase.
    Unrotated,
}

/// Which two elements of a row form one complex number (section 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// `f` and `f + F`.
    Half,
    /// `2f` and `2f + 1`.
    Interleaved,
}

/// Precision of key moduli in the rotated form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moduli {
    /// Moduli in full precision.
    Full,
    /// Moduli of keys rounded to the cache dtype after each operation (PyTorch scorer).
    CacheDtype,
}

/// What keeps a square root from 0 (3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Floor {
    /// Nothing.
    None,
    /// 1e-8 is added to the sum of squares.
    Added,
    /// The sum of squares is at least 1e-8.
    Clamped,
}

/// Where cosines and sines come from (3.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phases {
    /// cos and sin of one f32 product.
    Plain,
    /// Table rows at multiples of `step` up to `max`, angle addition for the residual.
    Tables {
        /// Distance of table rows.
        step: usize,
        /// Largest table row is the last multiple of `step` that does not exceed this.
        max: usize,
    },
}

/// Rows over which mean and deviation are taken (4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZRows {
    /// Every row of the cache.
    All,
    /// Rows that are ranked: neither prefix nor guarded.
    Candidates,
    /// Rows after the prompt.
    Decode,
}

/// Divisor of the variance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deviation {
    /// n - 1.
    Sample,
    /// n.
    Population,
}

/// What is done with a deviation of (nearly) 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Degenerate {
    /// Below the bound, divide by 1.
    OneBelow(f64),
    /// Divide by at least the bound.
    AtLeast(f64),
}

/// When the GQA group is reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupOrder {
    /// After the z-score.
    AfterZ,
    /// On raw scores; the z-score is then per KV head.
    BeforeZ,
}

/// Which statistics a score uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadUse {
    /// Those of each attention head.
    PerHead,
    /// Averaged over the GQA group: one score per KV head.
    GroupMean,
}

/// Which of two rows with equal scores wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TieBreak {
    /// The lower one.
    LowerRow,
    /// The higher one.
    HigherRow,
}

/// Order of the kept rows (5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowOrder {
    /// Ascending.
    Ascending,
    /// Prefix ascending, then scores descending.
    PrefixThenScore,
}

/// Every step of a selection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    /// Shape of the keep-sets.
    pub mode: SelectionMode,
    /// Key form.
    pub keys: KeyForm,
    /// Pairing of elements.
    pub pairing: Pairing,
    /// Key moduli.
    pub moduli: Moduli,
    /// Floor of |mean|.
    pub mean_floor: Floor,
    /// Floor of |key|.
    pub key_floor: Floor,
    /// Source of phases.
    pub phases: Phases,
    /// Inverse frequencies are rounded to bf16 first.
    pub omega_bf16: bool,
    /// Largest offset.
    pub offset_max_length: usize,
    /// Reduction over offsets.
    pub offsets: Aggregation,
    /// Modulus correction dropped.
    pub no_mlr: bool,
    /// Trigonometric term dropped.
    pub no_trig: bool,
    /// Statistics.
    pub heads: HeadUse,
    /// z-score at all.
    pub normalize: bool,
    /// Rows of the z-score.
    pub z_rows: ZRows,
    /// Divisor of the z-score.
    pub deviation: Deviation,
    /// Degenerate z-score.
    pub degenerate: Degenerate,
    /// Order of group reduction and z-score.
    pub group_order: GroupOrder,
    /// Reduction over the group.
    pub group: Aggregation,
    /// Reduction over layers.
    pub layers: Aggregation,
    /// Ties.
    pub ties: TieBreak,
    /// Order of rows.
    pub order: RowOrder,
    /// A layer without statistics uses those of `sorted_layers[layer mod count]` (vllm, sglang).
    pub layer_modulo: bool,
}

impl Recipe {
    /// The recipe of resolved rules.
    #[must_use]
    pub fn of(rules: &Rules) -> Self {
        let mut recipe = Self {
            mode: rules.mode,
            keys: KeyForm::Rotated,
            pairing: Pairing::Half,
            moduli: Moduli::Full,
            mean_floor: Floor::Clamped,
            key_floor: Floor::Clamped,
            phases: Phases::Plain,
            omega_bf16: false,
            offset_max_length: rules.offset_max_length,
            offsets: rules.score_aggregation,
            no_mlr: rules.disable_mlr,
            no_trig: rules.disable_trig,
            heads: HeadUse::PerHead,
            normalize: rules.normalize,
            z_rows: ZRows::All,
            deviation: Deviation::Sample,
            degenerate: Degenerate::OneBelow(1e-6),
            group_order: GroupOrder::AfterZ,
            group: Aggregation::Max,
            layers: rules.layer_aggregation,
            ties: TieBreak::LowerRow,
            order: RowOrder::Ascending,
            layer_modulo: false,
        };
        match rules.rule_set {
            RuleSet::Trt => {}
            RuleSet::Hf => recipe.set_hf(rules),
            RuleSet::Vllm => recipe.set_vllm(rules),
            RuleSet::Sglang => recipe.set_sglang(rules),
        }
        recipe
    }

    fn set_hf(&mut self, rules: &Rules) {
        self.keys = KeyForm::Unrotated;
        (self.mean_floor, self.key_floor) = (Floor::None, Floor::None);
        self.z_rows = ZRows::Decode;
        self.deviation = Deviation::Population;
        self.degenerate = Degenerate::AtLeast(1e-6);
        self.layers = Aggregation::Mean;
        if rules.mode == SelectionMode::PerLayerPerHead {
            self.group = rules.group_aggregation;
        }
        if rules.mode != SelectionMode::Union {
            self.order = RowOrder::PrefixThenScore;
        }
    }

    fn set_vllm(&mut self, rules: &Rules) {
        self.set_triton(rules);
        self.no_trig = false;
        match rules.mode {
            SelectionMode::PerLayerPerHead => self.group = rules.group_aggregation,
            SelectionMode::PerLayer | SelectionMode::LegacyLayerLocal => {
                self.heads = HeadUse::GroupMean;
            }
            SelectionMode::PerHead | SelectionMode::Union => {}
        }
    }

    fn set_sglang(&mut self, rules: &Rules) {
        self.set_triton(rules);
        self.omega_bf16 = true;
        self.group_order = GroupOrder::BeforeZ;
        if rules.disable_mlr {
            self.set_torch();
        } else {
            self.no_trig = false;
        }
    }

    /// The PyTorch scorer: moduli in the cache dtype, plain phases (3.3 to 3.5).
    pub fn set_torch(&mut self) {
        self.moduli = Moduli::CacheDtype;
        (self.mean_floor, self.key_floor) = (Floor::Added, Floor::None);
        self.phases = Phases::Plain;
    }

    fn set_triton(&mut self, rules: &Rules) {
        (self.mean_floor, self.key_floor) = (Floor::Added, Floor::Added);
        self.degenerate = Degenerate::OneBelow(1e-8);
        self.layer_modulo = true;
        self.phases = Phases::Tables {
            step: rules.divide_length,
            max: rules.offset_max_length.max(rules.kv_budget.saturating_add(rules.divide_length)),
        };
    }

    /// Does the mode keep one set per layer?
    #[must_use]
    pub const fn is_layered(&self) -> bool {
        matches!(
            self.mode,
            SelectionMode::PerLayer
                | SelectionMode::PerLayerPerHead
                | SelectionMode::LegacyLayerLocal
        )
    }
}
