//! Arguments of `bench score`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use lockstep_diff::answers::{Normalise, Rule};

/// What a gate holds the score against.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum GateReference {
    /// The baseline's score over the questions that both sides have.
    Baseline,
    /// Points, 0 to 100.
    Points(f64),
}

impl FromStr for GateReference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "baseline" {
            return Ok(Self::Baseline);
        }
        match text.parse::<f64>() {
            Ok(points) if (0.0..=100.0).contains(&points) => Ok(Self::Points(points)),
            _ => Err(format!("`{text}` is neither `baseline` nor points from 0 to 100")),
        }
    }
}

/// `bench score`.
#[derive(Debug, Args)]
pub(crate) struct ScoreArgs {
    /// Files of answers (lm-eval's samples, rows of TensorRT-Model-Connect's benchmark, rows with gold and prediction or text) or runs;
    /// the first is the baseline of the others.
    #[arg(required = true, value_name = "FILE|RUN")]
    pub(crate) inputs: Vec<PathBuf>,
    /// Baseline; every FILE|RUN is then a target.
    #[arg(long, value_name = "FILE|RUN")]
    pub(crate) baseline: Option<PathBuf>,
    /// How an answer is read: recorded, strict-boxed, strict-boxed-fbox, trtmc-cpp, trtmc-python. Without it: recorded for lm-eval's
    /// samples and for rows without a text, else strict-boxed.
    #[arg(long, value_parser = rule)]
    pub(crate) rule: Option<Rule>,
    /// What makes two answers equal: integer, integer:LOW..HIGH, number, text.
    #[arg(long, default_value = "number")]
    pub(crate) normalise: Normalise,
    /// Field of the question's id.
    #[arg(long, value_name = "KEY")]
    pub(crate) id_field: Option<String>,
    /// Field of the gold answer.
    #[arg(long, value_name = "KEY")]
    pub(crate) gold_field: Option<String>,
    /// Field of the recorded prediction.
    #[arg(long, value_name = "KEY")]
    pub(crate) answer_field: Option<String>,
    /// Field of the completion.
    #[arg(long, value_name = "KEY")]
    pub(crate) text_field: Option<String>,
    /// Hold each target's score (a single input's own) against a reference: `baseline`, or points from 0 to 100. It then decides the
    /// exit status.
    #[arg(long, value_name = "baseline|POINTS")]
    pub(crate) gate: Option<GateReference>,
    /// Chance that a run as good as the reference fails the gate.
    #[arg(long, default_value_t = 0.05)]
    pub(crate) gate_alpha: f64,
    /// Chance that a run worse by the smallest loss it can tell apart passes the gate.
    #[arg(long, default_value_t = 0.2)]
    pub(crate) gate_beta: f64,
    /// Standard deviation of one question's score, points; 50 is the most that right or wrong can have.
    #[arg(long, default_value_t = 50.0)]
    pub(crate) gate_sigma: f64,
    /// Resamples of the bootstrap, at least 40.
    #[arg(long, default_value_t = 2000)]
    pub(crate) resamples: usize,
    /// Seed of the bootstrap.
    #[arg(long, default_value_t = 0x10c5_7e9d)]
    pub(crate) resample_seed: u64,
    /// List every row, not only those that are not plainly correct.
    #[arg(long)]
    pub(crate) rows: bool,
}

fn rule(text: &str) -> Result<Rule, String> {
    Rule::from_slug(text).ok_or_else(|| {
        format!("no rule `{text}`; there are {}", Rule::ALL.map(Rule::slug).join(", "))
    })
}
