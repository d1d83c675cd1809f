//! Facts of a run that was made of an artifact: those of the artifact itself.

use std::path::Path;

use lockstep_diff::audits::facts::{Artifact as Built, Kind, Sample, Subject};
use lockstep_diff::audits::subjects_of;
use lockstep_traces::answers::{AnswerRow, Fields, read_answers};
use lockstep_traces::artifacts::{self, Artifact};
use lockstep_traces::store::RunReader;
use lockstep_traces::{Manifest, imported, lm_eval, trtmc};
use serde_json::Value;

/// The subject; `None` for runs that were recorded, and for imported traces and dumps.
pub(super) fn subject(path: &Path) -> anyhow::Result<Option<Subject<'static>>> {
    let run = RunReader::open(path)?;
    let manifest = run.manifest();
    let label = path.display().to_string();
    let mut subject = match imported::kind(manifest) {
        Some(trtmc::ROWS | trtmc::SUMMARY | trtmc::CONFIG) => kept(path, manifest, &label)?,
        Some(trtmc::BUNDLE | trtmc::LADDER) => built(manifest, &label),
        Some(trtmc::STATS) => statistics(manifest, label),
        Some(lm_eval::KIND) => samples(path, &label)?,
        _ => return Ok(None),
    };
    // What a bundle declares was not in force: it is no setting of a run.
    let set = manifest.config.iter().filter(|(key, _)| !key.starts_with("trace."));
    for (key, setting) in set.filter(|_| subject.kind != Kind::Bundle) {
        let settings = subject.settings.get_or_insert_default();
        settings.entry(key.clone()).or_insert_with(|| setting.clone());
    }
    Ok(Some(subject))
}

fn statistics(manifest: &Manifest, label: String) -> Subject<'static> {
    let mut subject = Subject::new(label, Kind::Config);
    if let Some(hash) = &manifest.model.stats_sha256 {
        subject.engine.files.insert("statistics".to_owned(), hash.clone());
    }
    subject
}

/// Of the copy that the run keeps; of a summary only the run's method.
fn kept(path: &Path, manifest: &Manifest, label: &str) -> anyhow::Result<Subject<'static>> {
    let missing = || anyhow::anyhow!("{label}: the run keeps no source; import it again");
    let source = imported::kept(path, manifest)?.ok_or_else(missing)?;
    let mut artifact = artifacts::read(&source)?.ok_or_else(missing)?;
    match &mut artifact {
        Artifact::Summary(summary) => {
            let method = manifest.get(trtmc::METHOD).and_then(Value::as_str);
            summary.methods.retain(|name, _| Some(name.as_str()) == method);
        }
        // It is the run that packs them.
        Artifact::Bench(rows) => rows.remarks.retain(|line| !line.contains("gzip")),
        _ => {}
    }
    let mut subject = subjects_of(&artifact, label).into_iter().next().ok_or_else(missing)?;
    label.clone_into(&mut subject.label);
    Ok(subject)
}

/// A bundle or a ladder: everything stands in the manifest.
fn built(manifest: &Manifest, label: &str) -> Subject<'static> {
    let text = |key: &str| manifest.get(key).and_then(Value::as_str).map(str::to_owned);
    let mut subject = Subject::new(label, Kind::Bundle);
    let hash = |value: &Value| {
        let text = value.as_str().filter(|text| text.len() == 64)?;
        text.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| text.to_owned())
    };
    let sections: std::collections::BTreeMap<String, String> = manifest
        .config
        .iter()
        .filter_map(|(key, setting)| {
            Some((key.strip_prefix("artifact.")?.to_owned(), hash(&setting.value)?))
        })
        .collect();
    let ladder = manifest.get("artifact.profile_rows").and_then(Value::as_array);
    subject.artifact = Some(Built {
        sections: (!sections.is_empty()).then_some(sections),
        profile_rows: ladder.map(|rows| rows.iter().filter_map(Value::as_u64).collect()),
        capacity_rows: manifest.get("artifact.capacity_rows").and_then(Value::as_u64),
        precision: text("artifact.precision"),
        builder: text("artifact.builder"),
        gpu: text("artifact.gpu"),
        ..Built::default()
    });
    subject.made.created_at = Some(manifest.created_at.clone()).filter(|time| !time.is_empty());
    let declared = manifest.config.iter().filter_map(|(key, setting)| {
        Some((key.strip_prefix("declared.")?.to_owned(), setting.value.clone()))
    });
    subject.declared = Some(declared.collect());
    subject
}

/// Rows of lm-eval: a sample for each document and filter.
fn samples(path: &Path, label: &str) -> anyhow::Result<Subject<'static>> {
    let mut rows = Vec::new();
    let source = read_answers(path, &Fields::default(), |row| rows.push(sample(row)))?;
    let mut subject = Subject::new(label, Kind::Benchmark);
    subject.state.rows_written = Some(source.rows);
    subject.state.complete = source.cut.then_some(false);
    subject.samples = Some(rows);
    subject.remarks = source.remarks;
    Ok(subject)
}

fn sample(row: AnswerRow) -> Sample {
    Sample {
        filter: row.filter,
        prompt_text_sha256: row.hashes.get("prompt_hash").cloned(),
        gold: row.gold,
        correct: row.metric.map(|(_, value)| value.total_cmp(&1.0).is_eq()),
        pred: row.answer,
        text: row.text,
        prompt_text: row.prompt,
        ..Sample::new(row.id)
    }
}
