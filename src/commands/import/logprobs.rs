//! Files of log-probabilities: what the command line knows beside them.

use std::path::Path;

use lockstep_traces::limits::Values;
use lockstep_traces::logprobs::{self, Labels, LogprobImport, LogprobKind};

use super::super::inputs;
use super::super::vocabulary::TokenBytes;
use crate::cli::{ImportArgs, LabelsArg, ValuesArg};
use crate::exit::usage;

/// Reads `path` as `kind` into the run folder.
pub(super) fn read(
    kind: LogprobKind,
    path: &Path,
    args: &ImportArgs,
) -> anyhow::Result<Vec<String>> {
    let prompt_ids = args.prompt_ids.as_deref().map(inputs::prompt_ids).transpose()?;
    let given = prompt_ids.as_ref().and_then(|ids| u32::try_from(ids.len()).ok());
    if let (Some(length), Some(ids)) = (args.prompt_len, given)
        && length != ids
    {
        return Err(usage(format!("--prompt-len {length}, and --prompt-ids holds {ids} ids")));
    }
    let vocabulary = args.model.as_deref().map(TokenBytes::read).transpose()?;
    let lookup = vocabulary.as_ref().map(|known| |token: &logprobs::TokenName| known.find(token));
    let options = LogprobImport {
        values: args.values.map(|values| match values {
            ValuesArg::Raw => Values::Logprobs,
            ValuesArg::Processed => Values::ProcessedLogprobs,
        }),
        prompt_ids: prompt_ids.as_deref(),
        prompt_len: args.prompt_len,
        lookup: lookup.as_ref().map(|lookup| lookup as logprobs::Lookup<'_>),
        labels: match args.labels {
            None => Labels::Unsaid,
            Some(LabelsArg::Fed) => Labels::Fed,
            Some(LabelsArg::Next) => Labels::Next,
        },
    };
    Ok(logprobs::import(path, kind, &options, &args.out)?)
}
