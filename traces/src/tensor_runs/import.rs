//! A set of tensors becomes a run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::map::RunMap;
use super::own::SIDE;
use super::place::{Placed, Plan};
use super::rows::{Known, fits, logits, row};
use crate::foreign::UNKNOWN_TOKEN;
use crate::hash::{DEFAULT_SEEDS, ids_sha256};
use crate::limits::{TokenIds, Values};
use crate::manifest::Producer;
use crate::store::RunWriter;
use crate::store::streamed::{Streamed, write_streamed};
use crate::tensor_files::TensorSet;
use crate::{
    DumpId, EventRow, Manifest, RecordPlan, SampleRow, SourceLimits, TraceError, TraceSink as _,
};

/// Ids and logits kept of a row.
const TOP_K: usize = 8;

/// What a set of tensors does not say.
#[derive(Debug, Clone, Default)]
pub struct TensorImport {
    /// Names and places; empty: an export of this project is read as what it is, other names are kept.
    pub map: RunMap,
    /// Tokens of the prompt, where the map does not say.
    pub prompt_len: Option<u32>,
}

/// Makes a run directory `out` of a set of tensors; returns what was noticed, as the manifest's remarks. Dumps are written one tensor
/// after another from the maps. Element types are kept.
///
/// # Errors
/// [`TraceError::Tensor`] where a tensor does not fit what the map makes of it, or its bytes contradict their checksum;
/// as [`RunWriter::create`].
pub fn import_tensors(
    set: &TensorSet,
    options: &TensorImport,
    out: &Path,
) -> Result<Vec<String>, TraceError> {
    let plan = Plan::of(set, &options.map, "sample_0")?;
    let prompt_len = options.map.prompt_len.or(options.prompt_len);
    for tensor in &set.tensors {
        tensor.verify()?;
    }
    for one in row_logits(&plan) {
        fits(&one.tensor).map_err(|what| TraceError::Tensor {
            path: one.tensor.path.clone(),
            tensor: one.tensor.name.clone(),
            what,
        })?;
    }
    let rows = row_logits(&plan).next().is_some();
    let manifest = manifest(set, &plan, rows);
    let remarks = manifest.remarks.clone();
    let top_k = RecordPlan { top_k: TOP_K, ..RecordPlan::default() };
    let mut writer = RunWriter::create(out, manifest, top_k)?;
    let mut samples: BTreeSet<&str> = plan.tokens.keys().map(String::as_str).collect();
    samples.extend(plan.dumps.keys().map(sample_of));
    for sample_id in samples {
        write_dumps(&plan, sample_id, out)?;
        let fed = sample_rows(&mut writer, &plan, sample_id, prompt_len)?;
        events(&mut writer, &plan, sample_id)?;
        writer.sample(sample(sample_id, prompt_len, &fed))?;
    }
    writer.finish()?;
    Ok(remarks)
}

fn sample_of(id: &DumpId) -> &str {
    match id {
        DumpId::Compaction { sample_id, .. } | DumpId::Step { sample_id, .. } => sample_id,
    }
}

/// Every tensor that becomes a step row.
fn row_logits(plan: &Plan) -> impl Iterator<Item = &Placed> {
    let steps = plan.dumps.iter().filter(|(id, _)| matches!(id, DumpId::Step { .. }));
    steps.flat_map(|(_, tensors)| tensors).filter(|one| one.name == "logits")
}

fn manifest(set: &TensorSet, plan: &Plan, rows: bool) -> Manifest {
    let producer = Producer { name: producer(set.format).to_owned(), ..Producer::default() };
    let mut manifest = Manifest::new(producer, "unknown");
    let caches = || plan.dumps.values().flatten().filter(|one| one.name.starts_with("pre.k."));
    manifest.cache_dtype = caches().find_map(|one| one.tensor.element.dtype());
    manifest.includes_prompt = plan.tokens.values().any(|ids| ids.contains_key(&0));
    manifest.logits_hash_seeds = rows.then_some(DEFAULT_SEEDS);
    manifest.set("trace.top_k", TOP_K, "imported");
    let mut cannot = Vec::new();
    if plan.unplaced > 0 {
        cannot.push(format!(
            "{} tensors have no step or iteration in their name: position 0 stands for it",
            plan.unplaced
        ));
    }
    if plan.kept > plan.unplaced {
        cannot.push(
            "the position of tensors that no rule of the map names is the step or iteration in their name".to_owned(),
        );
    }
    let compactions = plan.dumps.keys().filter(|id| matches!(id, DumpId::Compaction { .. }));
    let unknown = compactions.filter(|id| absolute(plan, id).is_none()).count();
    if unknown > 0 {
        cannot.push(format!(
            "{unknown} compactions do not say the position of the next token: they have no event row"
        ));
    }
    let ids = if plan.tokens.is_empty() { TokenIds::Nothing } else { TokenIds::Given };
    manifest.limits = SourceLimits {
        values: if rows { Values::Logits } else { Values::Nothing },
        token_ids: ids,
        rows: false,
        cannot,
        ..SourceLimits::default()
    };
    manifest.remarks.clone_from(&set.remarks);
    // The file beside exported arrays was read.
    let beside = |remark: &String| !plan.metadata.is_empty() && remark.ends_with(SIDE);
    manifest.remarks.retain(|remark| !beside(remark));
    if plan.kept > 0 {
        manifest.remarks.push(format!(
            "{} of {} tensors keep their own names; no check looks at them, `diff tensors` does",
            plan.kept,
            set.tensors.len()
        ));
    }
    let left_out = set.misfits.len() + set.undeclared.len();
    if left_out > 0 {
        manifest.remarks.push(format!(
            "{left_out} files are bytes of no declared type or shape and were left out; declare them with --raw"
        ));
    }
    manifest
}

fn producer(format: &str) -> &'static str {
    match format {
        "SGLang dump" => "sglang",
        "msProbe dump" => "msprobe",
        "TensorRT-LLM debug tensors" => "tensorrt-llm",
        "Polygraphy run results" => "polygraphy",
        _ => "tensor files",
    }
}

/// Writes the dumps of a sample, each by temporary file and rename.
fn write_dumps(plan: &Plan, sample: &str, out: &Path) -> Result<(), TraceError> {
    for (id, tensors) in plan.dumps.iter().filter(|(id, _)| sample_of(id) == sample) {
        let mut metadata = plan.metadata.get(id).cloned().unwrap_or_default();
        // Parts are files of the run that was exported; here is one file.
        metadata.remove("parts");
        metadata.insert("sample_id".to_owned(), sample.to_owned());
        let mut say = |key: &str, value: u32| {
            metadata.entry(key.to_owned()).or_insert_with(|| value.to_string());
        };
        match id {
            DumpId::Step { position, .. } => say("position", *position),
            DumpId::Compaction { ordinal, .. } => {
                say("ordinal", *ordinal);
                if let Some(absolute) = absolute(plan, id) {
                    say("absolute_position", absolute);
                }
            }
        }
        let flat = matches!(id, DumpId::Step { .. });
        let streamed = tensors.iter().map(|one| streamed(one, flat)).collect();
        write_streamed(&out.join(id.relative_path()), &metadata, streamed)?;
    }
    Ok(())
}

/// Tensors of a step that have one of our names are 1-D there.
fn streamed(one: &Placed, step: bool) -> Streamed<'_> {
    let tensor = &one.tensor;
    let ours = one.name == "logits" || one.name.starts_with("hidden.");
    let shape =
        if step && ours { vec![tensor.shape.iter().product()] } else { tensor.shape.clone() };
    let write = move |out: &mut dyn std::io::Write| tensor.write_to(out);
    Streamed { name: one.name.clone(), element: tensor.element, shape, write: Box::new(write) }
}

/// Position of the next token at a compaction.
fn absolute(plan: &Plan, id: &DumpId) -> Option<u32> {
    let said = || plan.metadata.get(id)?.get("absolute_position")?.parse().ok();
    plan.absolute.get(id).copied().or_else(said)
}

/// The rows of a sample: where there are logits, ids or our own names. Returns the fed ids.
fn sample_rows(
    writer: &mut RunWriter,
    plan: &Plan,
    sample: &str,
    prompt_len: Option<u32>,
) -> Result<BTreeMap<u32, u32>, TraceError> {
    let none = BTreeMap::new();
    let tokens = plan.tokens.get(sample).unwrap_or(&none);
    let mut rows: BTreeMap<u32, Option<&Placed>> =
        tokens.keys().map(|position| (*position, None)).collect();
    for (id, tensors) in &plan.dumps {
        let DumpId::Step { sample_id, position } = id else { continue };
        if sample_id != sample {
            continue;
        }
        if let Some(found) = tensors.iter().find(|one| one.name == "logits") {
            rows.insert(*position, Some(found));
        } else if tensors.iter().any(|one| one.name.starts_with("hidden.")) {
            rows.entry(*position).or_insert(None);
        }
    }
    for (position, found) in rows {
        let values = found.map(|one| {
            logits(&one.tensor).map_err(|what| TraceError::Tensor {
                path: one.tensor.path.clone(),
                tensor: one.tensor.name.clone(),
                what,
            })
        });
        let values = values.transpose()?;
        let next = position.checked_add(1).and_then(|next| tokens.get(&next).copied());
        let known = Known { position, token: tokens.get(&position).copied(), next, prompt_len };
        writer.step(row(sample, known, values.as_deref(), TOP_K))?;
    }
    Ok(tokens.clone())
}

/// One event for each compaction that says where it was.
fn events(writer: &mut RunWriter, plan: &Plan, sample: &str) -> Result<(), TraceError> {
    for (id, tensors) in &plan.dumps {
        let DumpId::Compaction { sample_id, ordinal } = id else { continue };
        let Some(absolute_position) = absolute(plan, id).filter(|_| sample_id == sample) else {
            continue;
        };
        let said = |key: &str| plan.metadata.get(id)?.get(key)?.parse().ok();
        let rows = |prefix: &str| {
            let cache = tensors.iter().find(|one| one.name.starts_with(prefix))?;
            u32::try_from(*cache.tensor.shape.get(1)?).ok()
        };
        writer.event(EventRow {
            sample_id: sample.to_owned(),
            ordinal: *ordinal,
            absolute_position,
            round_start: said("round_start"),
            rows_before: said("rows_before").or_else(|| rows("pre.k.")).unwrap_or(0),
            rows_after: said("rows_after").or_else(|| rows("post.k.")).unwrap_or(0),
            protected: 0,
            candidates: 0,
            score_seconds: 0.0,
            reduce_seconds: 0.0,
            select_seconds: 0.0,
            gather_seconds: 0.0,
            dump: Some(id.relative_path()),
        })?;
    }
    Ok(())
}

fn sample(sample_id: &str, prompt_len: Option<u32>, fed: &BTreeMap<u32, u32>) -> SampleRow {
    let mut row = SampleRow { prompt_len, ..SampleRow::bare(sample_id) };
    let Some(length) = prompt_len else {
        row.prompt_ids_sha256 = String::new();
        return row;
    };
    row.prompt_ids = (0..length).map_while(|position| fed.get(&position).copied()).collect();
    if row.prompt_ids.len() == length as usize {
        row.prompt_ids_sha256 = ids_sha256(&row.prompt_ids);
    } else {
        row.prompt_ids.clear();
        row.prompt_ids_sha256 = String::new();
    }
    row.generated_ids = (length..).map_while(|position| fed.get(&position).copied()).collect();
    debug_assert!(!row.generated_ids.contains(&UNKNOWN_TOKEN), "ids are known");
    row
}
