//! `llama-results`: a GGUF file with the tokens of a prompt and a row of logits for each of them.
//!
//! Keys: `path_model`, and in newer versions `decode_steps`. Tensors: `tokens` (I32, T ids) and `logits` (F32). With decode steps S the
//! rows are those of the prompt (T), of S further steps that feed the prompt's ids round and round, of the prompt again from an empty
//! cache (T), and of one step that feeds its last id after the state behind the S steps was restored.
//!
//! The dimensions of `logits` are written as [rows, vocabulary] with the fastest first, and its memory is row after row, each of the
//! whole vocabulary: read by its header, it would be a table of the vocabulary's rows. Which of the two dimensions counts rows is told
//! by the number of tokens.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::debug::dump_of;
use super::import::bare;
use crate::foreign::UNKNOWN_TOKEN;
use crate::gguf::{GgufHeader, GgufTensor, GgufValue, is_gguf};
use crate::hash::{DEFAULT_SEEDS, ids_sha256};
use crate::manifest::Producer;
use crate::store::RunWriter;
use crate::store::fail::malformed;
use crate::summary::summarise;
use crate::tensor_files::source::Mapped;
use crate::{
    Choice, FinishReason, Manifest, Phase, RecordPlan, SampleRow, SourceLimits, TraceError,
    TraceSink as _,
};

/// An opened results file.
#[derive(Debug)]
pub struct ResultsFile {
    path: PathBuf,
    map: Arc<Mapped>,
    logits: usize,
    /// Ids of the prompt.
    pub tokens: Vec<u32>,
    /// Entries of a row.
    pub n_vocab: usize,
    /// Rows.
    pub rows: usize,
    /// Steps after the prompt.
    pub decode_steps: usize,
    /// The model as the program was given it.
    pub model: String,
    /// How the dimensions were taken, one line.
    pub remark: String,
}

/// Is this a GGUF file with the tensors and the key of `llama-results`?
#[must_use]
pub fn is_results(path: &Path) -> bool {
    is_gguf(path) && ResultsFile::open(path).is_ok()
}

impl ResultsFile {
    /// Maps a file and settles which dimension of `logits` counts rows.
    ///
    /// # Errors
    /// [`TraceError::Gguf`]; [`TraceError::Tensor`] where a tensor is missing, has another type, or no dimension is the number of rows.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let map = Mapped::open(path)?;
        let header = GgufHeader::parse(map.bytes())
            .map_err(|source| TraceError::Gguf { path: path.to_path_buf(), source })?;
        let Some(GgufValue::Text(model)) = header.get("path_model") else {
            return Err(malformed(path, "no key `path_model`: not a file of llama-results"));
        };
        let steps = header.get("decode_steps").map_or(Some(0), GgufValue::as_u64);
        let steps = steps.and_then(|steps| usize::try_from(steps).ok());
        let decode_steps =
            steps.ok_or_else(|| malformed(path, "key `decode_steps` is no count"))?;
        let ids = tensor(path, &header, "tokens", "I32")?;
        let bytes = map.bytes().get(ids.range.clone()).unwrap_or_default();
        let tokens: Vec<u32> =
            bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let table = tensor(path, &header, "logits", "F32")?;
        let (rows, n_vocab, remark) = settle(path, table, tokens.len(), decode_steps)?;
        let strange =
            tokens.iter().find(|id| usize::try_from(**id).map_or(true, |id| id >= n_vocab));
        if let Some(id) = strange {
            return Err(fault(path, "tokens", format!("{id} is no id below {n_vocab}: damaged")));
        }
        let (logits, model) = (table.range.start, model.clone());
        let path = path.to_path_buf();
        Ok(Self { path, logits, tokens, n_vocab, rows, decode_steps, model, remark, map })
    }

    /// A row of logits.
    ///
    /// # Errors
    /// [`TraceError::Tensor`] where there is no such row.
    pub fn row(&self, row: usize) -> Result<Vec<f32>, TraceError> {
        let size = 4 * self.n_vocab;
        let start = self.logits + row * size;
        let bytes = self.map.bytes().get(start..start + size).filter(|_| row < self.rows);
        let bytes =
            bytes.ok_or_else(|| fault(&self.path, "logits", format!("row {row} is not there")))?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }
}

fn fault(path: &Path, tensor: &str, what: String) -> TraceError {
    TraceError::Tensor { path: path.to_path_buf(), tensor: tensor.to_owned(), what }
}

fn tensor<'h>(
    path: &Path,
    header: &'h GgufHeader,
    name: &str,
    element: &str,
) -> Result<&'h GgufTensor, TraceError> {
    let found = header.tensors.get(name);
    let found = found.ok_or_else(|| fault(path, name, "is not in this file".to_owned()))?;
    if found.element.name() != element {
        return Err(fault(path, name, format!("is {}, expected {element}", found.element)));
    }
    Ok(found)
}

/// Rows, vocabulary, and how they were found.
fn settle(
    path: &Path,
    logits: &GgufTensor,
    tokens: usize,
    steps: usize,
) -> Result<(usize, usize, String), TraceError> {
    let (first, second) = match logits.ne.as_slice() {
        [first] => (*first, 1),
        [first, second] => (*first, *second),
        other => {
            return Err(fault(
                path,
                "logits",
                format!("has dimensions {other:?}; two are expected"),
            ));
        }
    };
    let rows = match steps {
        0 => Some(tokens),
        steps => tokens.checked_mul(2).and_then(|twice| twice.checked_add(steps)?.checked_add(1)),
    };
    let counted = format!("{tokens} tokens and {steps} decode steps");
    match rows {
        Some(rows) if rows == first && rows == second => {
            Ok((rows, second, format!("{counted} make {rows} rows; both dimensions are {rows}")))
        }
        Some(rows) if rows == first => Ok((
            rows,
            second,
            format!(
                "{counted} make {rows} rows: logits are {rows} rows of {second}, and the dimensions [{first}, {second}] stand the other \
                 way round, as llama-results writes them"
            ),
        )),
        Some(rows) if rows == second => {
            Ok((rows, first, format!("{counted} make {rows} rows of {first} logits")))
        }
        _ => Err(fault(
            path,
            "logits",
            format!(
                "has dimensions [{first}, {second}], and neither is the number of rows that {counted} make"
            ),
        )),
    }
}

/// Makes a run directory `out`: sample `results`, and with decode steps `refill` for the prompt's second time. Every row of logits is
/// dumped. Returns the remarks.
///
/// # Errors
/// As [`ResultsFile::open`] and [`RunWriter::create`].
pub fn import_results(path: &Path, top_k: usize, out: &Path) -> Result<Vec<String>, TraceError> {
    let file = ResultsFile::open(path)?;
    let producer = Producer { name: "llama-results".to_owned(), ..Producer::default() };
    let mut manifest = Manifest::new(producer, "unknown");
    manifest.model.path = Some(file.model.clone());
    manifest.logits_hash_seeds = Some(DEFAULT_SEEDS);
    manifest.limits = SourceLimits { rows: false, ..SourceLimits::default() };
    manifest.set("trace.top_k", top_k, "imported");
    manifest.set("llama.n_vocab", file.n_vocab, "imported");
    manifest.set("llama.decode_steps", file.decode_steps, "imported");
    manifest.remarks = vec![file.remark.clone()];
    if file.decode_steps > 0 {
        manifest.remarks.push(format!(
            "the rows after the prompt feed its ids again and sample nothing; the row at position {} follows a restored state",
            file.tokens.len() + file.decode_steps
        ));
    }
    let remarks = manifest.remarks.clone();
    let plan = RecordPlan { top_k, logits: Choice::All, ..RecordPlan::default() };
    let mut writer = RunWriter::create(out, manifest, plan)?;
    let (prompt, steps) = (file.tokens.len(), file.decode_steps);
    let first = (0..prompt + steps).chain((steps > 0).then_some(file.rows.saturating_sub(1)));
    write(&mut writer, &file, ("results", first), top_k)?;
    if steps > 0 {
        write(&mut writer, &file, ("refill", prompt + steps..2 * prompt + steps), top_k)?;
    }
    writer.finish()?;
    Ok(remarks)
}

fn write(
    writer: &mut RunWriter,
    file: &ResultsFile,
    (sample_id, rows): (&str, impl Iterator<Item = usize>),
    top_k: usize,
) -> Result<(), TraceError> {
    let prompt = file.tokens.len();
    for (position, row) in rows.enumerate() {
        // Steps feed the prompt's ids round and round; the last one feeds its last id.
        let restored = file.decode_steps > 0 && position == prompt + file.decode_steps;
        let id = if restored { prompt.checked_sub(1) } else { position.checked_rem(prompt) };
        let id = id.and_then(|id| file.tokens.get(id)).copied().unwrap_or(UNKNOWN_TOKEN);
        let mut step = bare(sample_id, position, id);
        step.phase = if position < prompt { Phase::Prompt } else { Phase::Decode };
        let logits = file.row(row)?;
        summarise(&mut step, &logits, top_k);
        writer.dump(dump_of(sample_id, step.position, &logits))?;
        writer.step(step)?;
    }
    writer.sample(SampleRow {
        prompt_ids_sha256: ids_sha256(&file.tokens),
        prompt_ids: file.tokens.clone(),
        prompt_len: u32::try_from(prompt).ok(),
        finish: FinishReason::Forced,
        ..SampleRow::bare(sample_id)
    })
}
