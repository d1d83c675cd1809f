//! Going on with an incomplete run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use arrow::array::BooleanArray;
use arrow::compute::filter_record_batch;
use serde_json::Value;

use super::access::Table;
use super::convert::schema_of;
use super::dumps;
use super::fail::{arrow, io, malformed};
use super::format::{Kind, read_manifest};
use super::samples;
use super::stream::{StreamFile, StreamIndex};
use super::writer::{RunWriter, Streams};
use crate::manifest::Status;
use crate::{Manifest, RecordPlan, SampleRow, TraceError};

impl RunWriter {
    /// Goes on with the incomplete run in `dir`: samples that ended are kept and returned (in order of their ends),
    /// rows and dumps of the others are dropped, so that those samples are to be run again from their start.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] where the run is complete, where another process is writing it, or where `manifest` has
    /// another effective configuration, model, dtype or device; the message names the key that differs.
    pub fn resume(
        dir: &Path,
        manifest: &Manifest,
        plan: RecordPlan,
    ) -> Result<(Self, Vec<SampleRow>), TraceError> {
        let found = read_manifest(dir)?;
        if found.status == Status::Complete {
            return Err(malformed(dir, "the run is complete: there is nothing to resume"));
        }
        if let Some(difference) = difference(&found, manifest) {
            return Err(malformed(
                dir,
                format!(
                    "the run cannot be resumed, {difference}; start a new run or give the old settings"
                ),
            ));
        }
        let kept = finished(dir)?;
        let ended: BTreeSet<String> = kept.iter().map(|row| row.sample_id.clone()).collect();
        let streams = rewrite(dir, &ended)?;
        dumps::retain(dir, &ended)?;
        for kind in Kind::ALL {
            // Left by a `finish` that was stopped half-way.
            let path = kind.table(dir);
            if path.try_exists().map_err(io(&path))? {
                std::fs::remove_file(&path).map_err(io(&path))?;
            }
        }
        let mut manifest = manifest.clone();
        manifest.remarks = found.remarks;
        manifest.created_at = found.created_at;
        if manifest.producer.binary_sha256 != found.producer.binary_sha256 {
            manifest.remarks.push(format!(
                "resumed after {} samples by another build of the producer",
                ended.len()
            ));
        }
        let mut writer = Self::new(dir, manifest, plan, streams, ended);
        writer.write_manifest()?;
        Ok((writer, kept))
    }
}

fn finished(dir: &Path) -> Result<Vec<SampleRow>, TraceError> {
    let index = StreamIndex::open(&Kind::Samples.stream(dir))?;
    let mut reader = index.reader(&schema_of(Kind::Samples))?;
    let mut rows = Vec::new();
    for number in 0..index.frames().len() {
        samples::decode(&reader.read(number)?, index.path(), &mut rows)?;
    }
    Ok(rows)
}

/// Copies the rows of ended samples into fresh streams, which then take the old ones' names.
fn rewrite(dir: &Path, ended: &BTreeSet<String>) -> Result<Streams, TraceError> {
    let fresh = |kind: Kind| kind.stream(dir).with_extension("arrows.new");
    // The old stream is locked by a writer that still lives, the fresh one by another that resumes at this moment.
    let old = std::fs::File::open(Kind::Steps.stream(dir)).map_err(io(dir))?;
    if let Err(std::fs::TryLockError::WouldBlock) = old.try_lock() {
        return Err(malformed(dir, "another process is writing this run; wait for it or stop it"));
    }
    for kind in Kind::ALL {
        match std::fs::remove_file(fresh(kind)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(io(dir)(error));
            }
            _ => {}
        }
    }
    let mut streams = Streams::create(fresh)?;
    copy(dir, Kind::Steps, ended, &mut streams.steps)?;
    copy(dir, Kind::Events, ended, &mut streams.events)?;
    copy(dir, Kind::Samples, ended, &mut streams.samples)?;
    streams.steps.rename(&Kind::Steps.stream(dir))?;
    streams.events.rename(&Kind::Events.stream(dir))?;
    streams.samples.rename(&Kind::Samples.stream(dir))?;
    Ok(streams)
}

fn copy(
    dir: &Path,
    kind: Kind,
    ended: &BTreeSet<String>,
    to: &mut StreamFile,
) -> Result<(), TraceError> {
    let index = StreamIndex::open(&kind.stream(dir))?;
    let mut reader = index.reader(&schema_of(kind))?;
    for number in 0..index.frames().len() {
        let batch = reader.read(number)?;
        let names = Table { batch: &batch, path: index.path() }.texts("sample_id")?;
        let mask: BooleanArray =
            names.iter().map(|name| Some(name.is_some_and(|name| ended.contains(name)))).collect();
        if mask.true_count() > 0 {
            let rows = filter_record_batch(&batch, &mask).map_err(arrow(index.path()))?;
            to.append(&rows)?;
        }
    }
    Ok(())
}

/// The first effective setting in which two manifests differ.
fn difference(old: &Manifest, new: &Manifest) -> Option<String> {
    let (old, new) = (settings(old), settings(new));
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let none = Value::String("not set".to_owned());
    keys.into_iter().find_map(|key| {
        let (before, after) = (old.get(key).unwrap_or(&none), new.get(key).unwrap_or(&none));
        (before != after).then(|| format!("`{key}` was {before} and is now {after}"))
    })
}

/// Everything that decides what is computed and recorded; not who runs it, where the files lie, or when.
pub(crate) fn settings(manifest: &Manifest) -> BTreeMap<String, Value> {
    let model = &manifest.model;
    let json =
        |value: Option<&String>| value.map_or(Value::Null, |text| Value::String(text.clone()));
    let mut all: BTreeMap<String, Value> =
        manifest.config.iter().map(|(key, setting)| (key.clone(), setting.value.clone())).collect();
    let mut put = |key: &str, value: Value| {
        all.insert(key.to_owned(), value);
    };
    put("producer", Value::String(manifest.producer.name.clone()));
    put("model.config_sha256", json(model.config_sha256.as_ref()));
    put("model.tokenizer_sha256", json(model.tokenizer_sha256.as_ref()));
    put("model.stats_sha256", json(model.stats_sha256.as_ref()));
    put(
        "model.weights_sha256",
        model.weights_sha256.iter().map(|(file, hash)| (file.clone(), hash.clone())).collect(),
    );
    put("dtype", manifest.dtype.map_or(Value::Null, |dtype| dtype.name().into()));
    put("cache_dtype", manifest.cache_dtype.map_or(Value::Null, |dtype| dtype.name().into()));
    put("device", manifest.device.clone().into());
    put("sm_arch", json(manifest.sm_arch.as_ref()));
    put("kernel_options", manifest.kernel_options.clone().into());
    put("includes_prompt", manifest.includes_prompt.into());
    put("parent", json(manifest.parent.as_ref()));
    put(
        "logits_hash_seeds",
        manifest.logits_hash_seeds.map_or(Value::Null, |seeds| seeds.to_vec().into()),
    );
    all
}
