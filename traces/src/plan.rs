//! What a run is asked to record beyond its step rows.

use serde::{Deserialize, Serialize};

/// A set of positions or ordinals.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// Nothing.
    #[default]
    None,
    /// Everything.
    All,
    /// These.
    These(Vec<u32>),
    /// `start..=end`, every `step`-th counted from `start`.
    Range {
        /// First.
        start: u32,
        /// Last, included.
        end: u32,
        /// Stride, at least 1.
        step: u32,
    },
}

impl Choice {
    /// Is `value` chosen?
    #[must_use]
    pub fn has(&self, value: u32) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::These(values) => values.contains(&value),
            Self::Range { start, end, step } => {
                value >= *start && value <= *end && (value - start).is_multiple_of((*step).max(1))
            }
        }
    }
}

impl std::str::FromStr for Choice {
    type Err = String;
    /// `none`, `all`, `3,7,12`, `100-200` or `100-200/10`.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "`{text}` is no set of numbers; write none, all, 3,7,12 or 100-200 or 100-200/10"
            )
        };
        let number = |part: &str| part.trim().parse::<u32>().map_err(|_| bad());
        match text.trim() {
            "none" => return Ok(Self::None),
            "all" => return Ok(Self::All),
            _ => {}
        }
        if let Some((start, rest)) = text.split_once('-') {
            let (end, step) = rest.split_once('/').unwrap_or((rest, "1"));
            let (start, end, step) = (number(start)?, number(end)?, number(step)?);
            if end < start || step == 0 {
                return Err(bad());
            }
            return Ok(Self::Range { start, end, step });
        }
        text.split(',').map(number).collect::<Result<_, _>>().map(Self::These)
    }
}

/// What to dump.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordPlan {
    /// Compactions (ordinals) whose K and V before and after are dumped.
    pub cache: Choice,
    /// Compactions whose scores by stage, keep-sets and positions are dumped.
    pub scores: Choice,
    /// Positions whose hidden states are dumped.
    pub hidden: Choice,
    /// Layers of those hidden states.
    pub hidden_layers: Choice,
    /// Positions whose full logits are dumped.
    pub logits: Choice,
    /// Ids and logits kept per step row.
    pub top_k: usize,
}
