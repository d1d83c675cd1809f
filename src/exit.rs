//! Exit statuses, which scripts may rely on.

use std::process::ExitCode;

use lockstep_replay::ReplayError;
use lockstep_replay::sampler::SamplerError;
use lockstep_runtime::RuntimeError;
use lockstep_runtime::sample::SampleError;
use lockstep_runtime::select::SelectError;
use lockstep_traces::Verdict;

/// 0 parity, 1 differs, 2 usage, 3 unreadable or inconsistent input, 4 inconclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Status {
    /// What was asked holds.
    Parity,
    /// The two sides differ.
    Differs,
    /// The command line is wrong, or asks for what this machine lacks.
    Usage,
    /// A file cannot be read, or contradicts itself.
    Unreadable,
    /// Too little was covered to say.
    Inconclusive,
}

impl Status {
    /// The status of a verdict.
    pub(crate) const fn of(verdict: &Verdict) -> Self {
        match verdict.exit_code() {
            0 => Self::Parity,
            1 => Self::Differs,
            _ => Self::Inconclusive,
        }
    }

    /// The number that the process returns.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Parity => 0,
            Self::Differs => 1,
            Self::Usage => 2,
            Self::Unreadable => 3,
            Self::Inconclusive => 4,
        }
    }
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        Self::from(status.number())
    }
}

/// An error that the user's command line caused; everything else that fails is about input.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// A usage error as `anyhow::Error`.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    Usage(message.into()).into()
}

/// What was given is too little to say anything.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct TooLittle(String);

/// An error that asks for more evidence.
pub(crate) fn inconclusive(message: impl Into<String>) -> anyhow::Error {
    TooLittle(message.into()).into()
}

/// Which status an error earns.
pub(crate) fn status_of(error: &anyhow::Error) -> Status {
    if error.chain().any(|cause| cause.is::<TooLittle>()) {
        Status::Inconclusive
    } else if error.chain().any(is_usage) {
        Status::Usage
    } else {
        Status::Unreadable
    }
}

/// Flags that are out of range or contradict each other, wherever they are found out.
fn is_usage(cause: &(dyn std::error::Error + 'static)) -> bool {
    let select = |error: &SelectError| {
        matches!(error, SelectError::Setting { .. } | SelectError::Plant { .. })
    };
    let sample = |error: &SampleError| matches!(error, SampleError::Option { .. });
    cause.is::<Usage>()
        || cause
            .downcast_ref::<SamplerError>()
            .is_some_and(|error| matches!(error, SamplerError::Options { .. }))
        || cause.downcast_ref::<SelectError>().is_some_and(select)
        || cause.downcast_ref::<SampleError>().is_some_and(sample)
        || cause.downcast_ref::<RuntimeError>().is_some_and(|error| match error {
            RuntimeError::Option { .. } => true,
            RuntimeError::Policy(error) => select(error),
            RuntimeError::Sampling(error) => sample(error),
            _ => false,
        })
        || cause
            .downcast_ref::<ReplayError>()
            .is_some_and(|error| matches!(error, ReplayError::Options { .. }))
}
