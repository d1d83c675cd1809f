//! The map: which names belong together, how each side lies, what is allowed. YAML, or JSON, which is YAML too.

use std::str::FromStr;

use lockstep_traces::TraceError;
use lockstep_traces::tensor_files::{Element, RawSpec};
use regex::Regex;
use serde::Deserialize;

/// A map that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// Not a map.
    #[error("{label}: {what}")]
    Syntax {
        /// The file, or the flag.
        label: String,
        /// What is wrong and where.
        what: String,
    },
    /// A file behind a tensor is damaged.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// A map as it is written. Expressions match whole names.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NameMap {
    /// Rules by which names are matched; the first that matches a name counts.
    pub(super) pairs: Vec<PairRule>,
    /// Match what no rule matched by equal names.
    pub(super) identity: bool,
    /// Expressions in the order of execution.
    pub(super) order: Vec<String>,
    /// Which names are inputs and outputs of one call.
    pub(super) roles: Option<Roles>,
    /// Raw files: `FILES=TYPE:SHAPE`.
    pub(super) raw: Vec<String>,
    /// Element types that the files could not say.
    pub(super) elements: Vec<ElementRule>,
    /// What is allowed, with the reason.
    pub(super) tolerances: Vec<ToleranceRule>,
    /// Names that may be without a partner.
    pub(super) allow_skip: Vec<String>,
}

impl Default for NameMap {
    fn default() -> Self {
        Self {
            pairs: Vec::new(),
            identity: true,
            order: Vec::new(),
            roles: None,
            raw: Vec::new(),
            elements: Vec::new(),
            tolerances: Vec::new(),
            allow_skip: Vec::new(),
        }
    }
}

/// Tensors of one side and their partners: those whose common captures are equal.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PairRule {
    pub(super) left: String,
    pub(super) right: String,
    /// Names of the axes, `[rows][heads][dim]`; `1` is squeezed. The right side is brought into the order of the left.
    #[serde(default)]
    pub(super) left_dims: Option<String>,
    #[serde(default)]
    pub(super) right_dims: Option<String>,
    #[serde(default)]
    pub(super) left_layout: Vec<Op>,
    #[serde(default)]
    pub(super) right_layout: Vec<Op>,
    #[serde(default)]
    pub(super) left_join: Option<Join>,
    #[serde(default)]
    pub(super) right_join: Option<Join>,
}

/// Shards that lie in several tensors.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Join {
    /// Axis along which they are joined.
    pub(super) axis: usize,
    /// Capture that tells them apart, in whose order they are joined.
    pub(super) by: String,
    /// Make a new axis of them.
    #[serde(default)]
    pub(super) stack: bool,
}

/// One step of a layout; exactly one key.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Op {
    /// Another shape over the same elements in row-major order.
    pub(super) shape: Option<Vec<usize>>,
    /// New order of the axes.
    pub(super) permute: Option<Vec<usize>>,
    /// Axis of size 1 to drop.
    pub(super) squeeze: Option<usize>,
    /// Slices of an axis, by index.
    pub(super) take: Option<Take>,
    /// A range of an axis.
    pub(super) slice: Option<Slice>,
    /// Blocks and rows in a block become rows in the order of a block table.
    pub(super) pages: Option<Pages>,
    /// Each slice stands for several (KV heads for query heads).
    pub(super) expand: Option<Expand>,
    /// One axis as several.
    pub(super) split: Option<Split>,
    /// An axis and the next as one.
    pub(super) merge: Option<usize>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Take {
    pub(super) axis: usize,
    pub(super) rows: Vec<usize>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Slice {
    pub(super) axis: usize,
    pub(super) from: usize,
    pub(super) to: usize,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pages {
    /// Axis of blocks; the next one is the rows of a block.
    pub(super) axis: usize,
    #[serde(default)]
    pub(super) table: Vec<usize>,
    /// Integer tensor of the same side that holds the table.
    #[serde(default)]
    pub(super) table_from: Option<String>,
    /// Rows in use; all rows of the table without it.
    #[serde(default)]
    pub(super) rows: Option<usize>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expand {
    pub(super) axis: usize,
    pub(super) times: usize,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Split {
    pub(super) axis: usize,
    pub(super) sizes: Vec<usize>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Roles {
    pub(super) input: String,
    pub(super) output: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ElementRule {
    pub(super) names: String,
    /// `left`, `right`, or both without it.
    #[serde(default)]
    pub(super) side: Option<String>,
    pub(super) element: String,
}

/// An upper bound of one metric.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ToleranceRule {
    #[serde(default)]
    pub(super) names: Option<String>,
    pub(super) metric: String,
    pub(super) at_most: f64,
    pub(super) reason: String,
}

/// Metrics that a tolerance may bound.
pub(super) const METRICS: [&str; 8] =
    ["deepgemm", "relative_l2", "nmse", "max_abs", "mean_abs", "max_rel", "rmse", "max_ulp"];

impl NameMap {
    /// Reads a map; `label` names it in errors.
    ///
    /// # Errors
    /// [`MapError::Syntax`] with the place, also for expressions, types and metrics that are none.
    pub fn parse(text: &str, label: &str) -> Result<Self, MapError> {
        let fault = |what: String| MapError::Syntax { label: label.to_owned(), what };
        if text.trim().is_empty() {
            return Err(fault("is empty".to_owned()));
        }
        let map: Self = serde_saphyr::from_str(text).map_err(|error| {
            let what = error.to_string();
            fault(what.lines().next().unwrap_or("not YAML").to_owned())
        })?;
        map.check().map_err(fault)?;
        Ok(map)
    }

    fn check(&self) -> Result<(), String> {
        for rule in &self.pairs {
            whole(&rule.left)?;
            whole(&rule.right)?;
            for op in rule.left_layout.iter().chain(&rule.right_layout) {
                op.check()?;
            }
            if rule.left_dims.is_some() != rule.right_dims.is_some() {
                return Err(format!(
                    "rule `{}`: give left_dims and right_dims, or neither",
                    rule.left
                ));
            }
        }
        for pattern in self.order.iter().chain(&self.allow_skip) {
            whole(pattern)?;
        }
        for rule in &self.elements {
            whole(&rule.names)?;
            Element::from_str(&rule.element)?;
            if !matches!(rule.side.as_deref(), None | Some("left" | "right")) {
                return Err(format!("elements of `{}`: side is left or right", rule.names));
            }
        }
        if let Some(roles) = &self.roles {
            for pattern in [&roles.input, &roles.output] {
                if !whole(pattern)?.capture_names().flatten().any(|name| name == "call") {
                    return Err(format!("role `{pattern}` has no capture (?<call>..)"));
                }
            }
        }
        for rule in &self.tolerances {
            whole(rule.names.as_deref().unwrap_or(".*"))?;
            if !METRICS.contains(&rule.metric.as_str()) {
                return Err(format!(
                    "no metric `{}`; there are {}",
                    rule.metric,
                    METRICS.join(", ")
                ));
            }
            if rule.reason.trim().is_empty() || rule.at_most.is_nan() || rule.at_most < 0.0 {
                return Err(format!(
                    "the tolerance of {} needs a bound of 0 or more and a reason",
                    rule.metric
                ));
            }
        }
        self.raw().map(|_| ())
    }

    /// Declarations of raw files.
    ///
    /// # Errors
    /// The text of one that is none.
    pub fn raw(&self) -> Result<Vec<RawSpec>, String> {
        self.raw.iter().map(|text| text.parse()).collect()
    }
}

impl Op {
    fn check(&self) -> Result<(), String> {
        let set = [
            self.shape.is_some(),
            self.permute.is_some(),
            self.squeeze.is_some(),
            self.take.is_some(),
            self.slice.is_some(),
            self.pages.is_some(),
            self.expand.is_some(),
            self.split.is_some(),
            self.merge.is_some(),
        ];
        match set.iter().filter(|set| **set).count() {
            1 => Ok(()),
            n => Err(format!("a step of a layout has {n} keys; one is expected")),
        }
    }
}

/// An expression that matches whole names.
pub(super) fn whole(pattern: &str) -> Result<Regex, String> {
    Regex::new(&format!("^(?:{pattern})$")).map_err(|error| {
        let text = error.to_string();
        let last = text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        format!("`{pattern}` is no regular expression: {last}")
    })
}
