//! A KLD base file becomes a run: a chunk is a sample.

use std::path::Path;

use super::kld::KldFile;
use super::record::KldRecord;
use crate::foreign::UNKNOWN_TOKEN;
use crate::limits::Values;
use crate::manifest::{Producer, ValueEncoding};
use crate::store::RunWriter;
use crate::{
    FinishReason, Manifest, Phase, RecordPlan, SampleRow, SourceLimits, StepRow, TraceError,
    TraceSink as _,
};

/// Width above which a row is not llama.cpp's own: 16 nats, and what f32 may add.
const OWN_RANGE: f32 = 16.001;

/// Makes a run directory `out` of a KLD base file, with the `top_k` highest log-probabilities of each scored row (at least 1, at most
/// the vocabulary). A file that is cut gives an incomplete run of its whole chunks. Memory does not grow with the file. Returns the
/// remarks, which stand in the manifest as well.
///
/// # Errors
/// As [`KldFile::open`], [`KldFile::sound_record`] and [`RunWriter::create`].
pub fn import_kld(path: &Path, top_k: usize, out: &Path) -> Result<Vec<String>, TraceError> {
    let file = KldFile::open(path)?;
    let top_k = top_k.clamp(1, file.shape().n_vocab);
    let plan = RecordPlan { top_k, ..RecordPlan::default() };
    let mut writer = RunWriter::create(out, manifest(&file, top_k), plan)?;
    let (mut error, mut range) = (0.0_f64, 0.0_f32);
    for chunk in 0..file.chunks() {
        let sample_id = format!("chunk_{}", chunk + 1);
        let mut ids = Vec::with_capacity(file.shape().n_ctx);
        for position in 0..file.shape().n_ctx {
            let token = file.token(chunk, position).unwrap_or(UNKNOWN_TOKEN);
            ids.push(token);
            let mut row = bare(&sample_id, position, token);
            if let Some(index) = position.checked_sub(file.shape().first())
                && index < file.shape().scored()
            {
                let record = file.sound_record(chunk, index)?;
                error = error.max(record.error());
                range = range.max(record.range());
                fill(&mut row, &record, top_k);
            }
            writer.step(row)?;
        }
        let length = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        writer.sample(SampleRow {
            prompt_ids_sha256: crate::hash::ids_sha256(&ids),
            prompt_ids: ids,
            prompt_len: Some(length),
            finish: FinishReason::Forced,
            ..SampleRow::bare(sample_id)
        })?;
    }
    let remarks = remarks(&file, error, range);
    let manifest = writer.manifest_mut();
    manifest.limits.value_error = Some(error);
    manifest.remarks.clone_from(&remarks);
    if file.cut().is_some() {
        writer.flush()?;
    } else {
        writer.finish()?;
    }
    Ok(remarks)
}

fn manifest(file: &KldFile, top_k: usize) -> Manifest {
    let producer = Producer { name: "llama-perplexity".to_owned(), ..Producer::default() };
    let mut manifest = Manifest::new(producer, "unknown");
    manifest.encoding = ValueEncoding::Codes16;
    manifest.limits = SourceLimits {
        values: Values::Logprobs,
        rows: false,
        cannot: vec![
            "equal codes are no ties: they tell log-probabilities apart only beyond the error of a code".to_owned(),
            "the first token of each chunk is the text's own; BOS may have been fed in its place".to_owned(),
            "positions before the middle of a chunk and its last one have no values".to_owned(),
        ],
        ..SourceLimits::default()
    };
    let shape = file.shape();
    for (key, value) in [
        ("trace.top_k", top_k),
        ("llama.n_ctx", shape.n_ctx),
        ("llama.n_vocab", shape.n_vocab),
        ("llama.n_chunk", shape.n_chunk),
    ] {
        manifest.set(key, value, "imported");
    }
    manifest
}

fn remarks(file: &KldFile, error: f64, range: f32) -> Vec<String> {
    let shape = file.shape();
    let mut remarks = vec![format!(
        "{} chunks of {} tokens, {} of each scored, vocabulary {}; a log-probability is off by at most {error:.2e} nats",
        file.chunks(),
        shape.n_ctx,
        shape.scored(),
        shape.n_vocab
    )];
    if range > OWN_RANGE {
        remarks.push(format!(
            "rows span up to {range:.2} nats: llama.cpp cuts them at 16, ik_llama.cpp at 24"
        ));
    }
    remarks.extend(file.cut().map(str::to_owned));
    remarks
}

/// A prompt row of which only the token is known.
pub(super) fn bare(sample_id: &str, position: usize, token: u32) -> StepRow {
    let position = u32::try_from(position).unwrap_or(u32::MAX);
    StepRow { phase: Phase::Prompt, ..StepRow::bare(sample_id, position, token) }
}

fn fill(row: &mut StepRow, record: &KldRecord<'_>, top_k: usize) {
    let value = |id: &u32| {
        let code = usize::try_from(*id).ok().and_then(|id| record.code(id)).unwrap_or(0);
        record.value(code)
    };
    let best = record.top(top_k.max(2));
    row.argmax = best.first().copied().unwrap_or(UNKNOWN_TOKEN);
    if let [first, second, ..] = best.as_slice() {
        row.top2_margin = Some(value(first) - value(second));
    }
    row.top_ids = best.into_iter().take(top_k).collect();
    row.top_logits = row.top_ids.iter().map(value).collect();
    row.logsumexp = Some(0.0);
}
