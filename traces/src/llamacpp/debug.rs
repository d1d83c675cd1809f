//! One row of logits without a header: `llama-debug --save-logits` and the scripts of model-conversion.
//!
//! `llamacpp-NAME.bin` (and `pytorch-NAME.bin`) holds the f32 logits of the prompt's last token; `llamacpp-NAME-tokens.bin` beside it
//! holds the prompt's tokens as i32.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::import::bare;
use crate::foreign::UNKNOWN_TOKEN;
use crate::hash::{DEFAULT_SEEDS, ids_sha256};
use crate::limits::TokenIds;
use crate::manifest::Producer;
use crate::store::RunWriter;
use crate::store::fail::malformed;
use crate::summary::summarise;
use crate::tensor_files::source::Mapped;
use crate::{
    Choice, Dump, DumpId, FinishReason, Manifest, RecordPlan, SampleRow, SourceLimits, Tensor,
    TraceError, TraceSink as _,
};

/// Largest vocabulary that is read.
const MOST: usize = 1 << 24;

/// A mapped row.
#[derive(Debug)]
pub struct DebugRow {
    path: PathBuf,
    map: Arc<Mapped>,
}

impl DebugRow {
    /// Maps a file that must hold `n_vocab` f32 values.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] where the vocabulary is not given or does not fit the length, and for values that no row of logits
    /// has (a NaN); [`TraceError::Io`].
    pub fn open(path: &Path, n_vocab: Option<usize>) -> Result<Self, TraceError> {
        let map = Mapped::open(path)?;
        let length = map.bytes().len();
        let fits = length / 4;
        let fault = |what: String| Err(malformed(path, what));
        let Some(n_vocab) = n_vocab else {
            return fault(format!(
                "{length} bytes without a header that is known here; where they are one row of f32 logits, say so with --vocab {fits}"
            ));
        };
        if n_vocab.checked_mul(4) != Some(length) || n_vocab == 0 || n_vocab > MOST {
            return fault(format!(
                "{length} bytes are {fits} values of f32 and {} bytes more, not one row of {n_vocab} logits",
                length % 4
            ));
        }
        let row = Self { path: path.to_path_buf(), map };
        if let Some(id) = row.logits().iter().position(|logit| logit.is_nan()) {
            return fault(format!("the logit of id {id} is NaN: damaged, or no f32 values"));
        }
        Ok(row)
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.bytes().len() / 4
    }

    /// True for a row of nothing, which [`DebugRow::open`] refuses.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The logits.
    #[must_use]
    pub fn logits(&self) -> Vec<f32> {
        self.map.bytes().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}

/// Makes a run of one row, with its logits dumped. The prompt's tokens are read from the file beside it where there is one; else the
/// row stands at position 0 and its token is unknown. Returns the remarks.
///
/// # Errors
/// As [`DebugRow::open`]; [`TraceError::Malformed`] where the tokens are no ids of the vocabulary.
pub fn import_debug(
    path: &Path,
    n_vocab: Option<usize>,
    top_k: usize,
    out: &Path,
) -> Result<Vec<String>, TraceError> {
    let row = DebugRow::open(path, n_vocab)?;
    let tokens = tokens_beside(path, row.len())?;
    let position = tokens.len().saturating_sub(1);
    let mut remarks = Vec::new();
    if tokens.is_empty() {
        remarks.push("the prompt's tokens are not known: the row stands at position 0".to_owned());
    } else {
        remarks.push(format!("the row is that of the last of {} tokens", tokens.len()));
    }
    let producer = Producer { name: "llama-debug".to_owned(), ..Producer::default() };
    let mut manifest = Manifest::new(producer, "unknown");
    manifest.logits_hash_seeds = Some(DEFAULT_SEEDS);
    manifest.includes_prompt = false;
    manifest.limits = SourceLimits {
        rows: false,
        token_ids: if tokens.is_empty() { TokenIds::Nothing } else { TokenIds::Given },
        ..SourceLimits::default()
    };
    manifest.set("trace.top_k", top_k, "imported");
    manifest.set("llama.n_vocab", row.len(), "imported");
    manifest.remarks.clone_from(&remarks);
    let plan = RecordPlan { top_k, logits: Choice::All, ..RecordPlan::default() };
    let mut writer = RunWriter::create(out, manifest, plan)?;
    let sample_id = "row";
    let mut step = bare(sample_id, position, tokens.last().copied().unwrap_or(UNKNOWN_TOKEN));
    let logits = row.logits();
    summarise(&mut step, &logits, top_k);
    writer.dump(dump_of(sample_id, step.position, &logits))?;
    writer.step(step)?;
    writer.sample(SampleRow {
        prompt_ids_sha256: if tokens.is_empty() { String::new() } else { ids_sha256(&tokens) },
        prompt_len: u32::try_from(tokens.len()).ok().filter(|length| *length > 0),
        prompt_ids: tokens,
        finish: FinishReason::Forced,
        ..SampleRow::bare(sample_id)
    })?;
    writer.finish()?;
    Ok(remarks)
}

/// A dump of one row of logits.
pub(super) fn dump_of(sample_id: &str, position: u32, logits: &[f32]) -> Dump {
    Dump {
        id: DumpId::Step { sample_id: sample_id.to_owned(), position },
        metadata: std::collections::BTreeMap::new(),
        tensors: vec![Tensor::from_f32("logits", vec![logits.len()], logits)],
    }
}

/// Tokens of `NAME-tokens.bin` beside `NAME.bin`; empty where there is no such file.
fn tokens_beside(path: &Path, n_vocab: usize) -> Result<Vec<u32>, TraceError> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let beside = path.with_file_name(format!("{stem}-tokens.bin"));
    if !beside.is_file() {
        return Ok(Vec::new());
    }
    let map = Mapped::open(&beside)?;
    let (tokens, rest) = map.bytes().as_chunks::<4>();
    let tokens: Vec<u32> = tokens.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    let strange = tokens.iter().find(|id| usize::try_from(**id).map_or(true, |id| id >= n_vocab));
    if !rest.is_empty() || strange.is_some() {
        return Err(malformed(
            &beside,
            format!(
                "no list of i32 token ids below {n_vocab}; move it away if it belongs to another file"
            ),
        ));
    }
    Ok(tokens)
}
