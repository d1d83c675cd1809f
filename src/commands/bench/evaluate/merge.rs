//! `bench merge`: shards become one bench. Every expected row must be there exactly once, all under one configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lockstep_traces::store::{RunReader, RunWriter, StepQuery};
use lockstep_traces::{RecordPlan, TraceSink as _};

use super::plan::{self, Plan};
use super::prompts::PromptInfo;
use super::summary::{Recorded, Summary};
use super::text;
use crate::cli::{BenchMergeArgs, Format};
use crate::commands::recording;
use crate::console;
use crate::exit::Status;

/// Ids printed of a long list.
const SHOWN: usize = 8;

/// One folder to merge.
struct Part {
    dir: PathBuf,
    plan: Plan,
}

/// Where the rows of a configuration lie.
#[derive(Debug, PartialEq)]
struct Tally {
    /// Place in the list of folders, by sample.
    found: BTreeMap<String, usize>,
    /// Expected samples that no folder has, in dataset order.
    missing: Vec<String>,
}

pub(crate) fn execute(args: &BenchMergeArgs, format: Format) -> anyhow::Result<Status> {
    let parts: Vec<Part> = args
        .shards
        .iter()
        .map(|dir| Ok(Part { dir: dir.clone(), plan: Plan::read(dir)? }))
        .collect::<anyhow::Result<_>>()?;
    let Some((first, others)) = parts.split_first() else {
        anyhow::bail!("nothing to merge");
    };
    for other in others {
        same_bench(first, other)?;
    }
    let names: Vec<&str> = first.plan.arms.iter().map(|arm| arm.name.as_str()).collect();
    let mut tallies = Vec::new();
    for name in &names {
        tallies.push(tally(name, &first.plan, &held(name, &parts)?)?);
    }
    if let Some((name, tally)) =
        names.iter().zip(&tallies).find(|(_, tally)| !tally.missing.is_empty())
    {
        return missing(name, tally, &first.plan, format);
    }
    plan::prepare(&args.out, false)?;
    let merged = Plan {
        shard: None,
        rows: first.plan.expected.iter().map(|row| row.sample_id.clone()).collect(),
        prompts: PromptInfo {
            templated: parts.iter().map(|part| part.plan.prompts.templated).sum(),
            doubled_bos: parts
                .iter()
                .flat_map(|part| part.plan.prompts.doubled_bos.clone())
                .collect(),
            ..first.plan.prompts.clone()
        },
        batch: parts.iter().map(|part| part.plan.batch).max().unwrap_or(1),
        ..first.plan.clone()
    };
    merged.write(&args.out)?;
    let mut recorded = Vec::new();
    for (name, tally) in names.iter().zip(&tallies) {
        copy(name, &merged, &parts, tally, &args.out)?;
        recorded.push(Recorded {
            name: (*name).to_owned(),
            complete: true,
            work: None,
            served: Vec::new(),
            remarks: Vec::new(),
        });
    }
    let summary = Summary::of(&args.out, &merged, &recorded, &args.scoring)?;
    summary.write(&args.out)?;
    console::answer(format, &text::table(&summary), &summary)?;
    Ok(Status::Parity)
}

/// Two folders are parts of one bench, or the error names the first thing in which they differ.
fn same_bench(left: &Part, right: &Part) -> anyhow::Result<()> {
    let (at, to) = (left.dir.display(), right.dir.display());
    let (left, right) = (&left.plan, &right.plan);
    let differ = |what: &str, a: &str, b: &str| {
        anyhow::anyhow!(
            "{to}: `{what}` is {b}, in {at} it is {a}; only parts of one bench can be merged"
        )
    };
    if left.dataset.sha256 != right.dataset.sha256 {
        return Err(differ("dataset.sha256", &left.dataset.sha256, &right.dataset.sha256));
    }
    let names =
        |plan: &Plan| plan.arms.iter().map(|arm| arm.name.clone()).collect::<Vec<_>>().join(", ");
    if names(left) != names(right) {
        return Err(differ("configurations", &names(left), &names(right)));
    }
    for (a, b) in left.arms.iter().zip(&right.arms) {
        if let Some(found) = a.configuration.first_difference(&b.configuration) {
            return Err(differ(&format!("{}: {}", a.name, found.key), &found.left, &found.right));
        }
    }
    if left.expected != right.expected {
        let unlike = left.expected.iter().zip(&right.expected).position(|(a, b)| a != b);
        let at = unlike.unwrap_or(left.expected.len().min(right.expected.len()));
        let id = |plan: &Plan| {
            plan.expected.get(at).map_or("nothing".to_owned(), |row| row.sample_id.clone())
        };
        return Err(differ(&format!("selected row {at}"), &id(left), &id(right)));
    }
    Ok(())
}

/// Samples that each folder holds of a configuration.
fn held(name: &str, parts: &[Part]) -> anyhow::Result<Vec<(String, Vec<String>)>> {
    let ids = |part: &Part| {
        let dir = part.dir.join(name);
        if !dir.exists() {
            // The bench was stopped before it came here.
            return Ok((part.dir.display().to_string(), Vec::new()));
        }
        let rows = RunReader::open(&dir)?.samples()?;
        let ids = rows.into_iter().map(|row| row.sample_id).collect();
        Ok((part.dir.display().to_string(), ids))
    };
    parts.iter().map(ids).collect()
}

/// Each expected sample once.
fn tally(name: &str, plan: &Plan, held: &[(String, Vec<String>)]) -> anyhow::Result<Tally> {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for (place, (dir, ids)) in held.iter().enumerate() {
        for id in ids {
            if plan.row_index(id).is_none() {
                anyhow::bail!(
                    "{dir}: {name}: sample `{id}` was not selected; this folder is of another bench"
                );
            }
            if let Some(other) = found.insert(id.clone(), place) {
                let other = held.get(other).map_or("", |(dir, _)| dir.as_str());
                anyhow::bail!(
                    "{name}: sample `{id}` is in {other} and in {dir}; each row must be there once, give each folder once"
                );
            }
        }
    }
    let ids = plan.expected.iter().map(|row| &row.sample_id);
    let missing = ids.filter(|id| !found.contains_key(*id)).cloned().collect();
    Ok(Tally { found, missing })
}

/// Says which rows no folder has; nothing is written.
fn missing(name: &str, tally: &Tally, plan: &Plan, format: Format) -> anyhow::Result<Status> {
    let count = tally.missing.len();
    let mut list = tally.missing.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if count > SHOWN {
        list.push_str(", ...");
    }
    let expected = plan.expected.len();
    console::note(&format!(
        "lockstep: {name}: {count} of {expected} rows are in no folder: {list}; finish that shard with --resume, or give its folder"
    ));
    let answer = serde_json::json!({
        "status": "incomplete", "configuration": name, "expected": expected, "missing": tally.missing,
    });
    console::answer(
        format,
        &format!("{name}: {} of {expected} rows\n", expected - count),
        &answer,
    )?;
    Ok(Status::Inconclusive)
}

/// One run out of the parts, rows in dataset order.
fn copy(name: &str, plan: &Plan, parts: &[Part], tally: &Tally, out: &Path) -> anyhow::Result<()> {
    let runs: Vec<Option<RunReader>> = parts
        .iter()
        .map(|part| {
            Some(part.dir.join(name))
                .filter(|dir| dir.exists())
                .map(|dir| RunReader::open(&dir))
                .transpose()
        })
        .collect::<Result<_, _>>()?;
    let Some(model) = runs.iter().flatten().next() else {
        anyhow::bail!("{name}: no folder has this run");
    };
    let mut manifest = model.manifest().clone();
    manifest.producer = recording::producer(&manifest.producer.name);
    manifest.created_at = recording::now();
    // Remarks are about the rows of one part.
    manifest.remarks =
        distinct(runs.iter().flatten().flat_map(|run| run.manifest().remarks.clone()));
    manifest.set("run.samples", plan.rows.clone(), "merge");
    let indexes: Vec<u64> = plan.expected.iter().map(|row| row.row_index).collect();
    manifest.set("dataset.row_index", indexes, "merge");
    manifest.set("run.batch", plan.batch, "merge");
    manifest.set("bench.shard", serde_json::Value::Null, "merge");
    let shards: Vec<Option<String>> = parts.iter().map(|part| part.plan.shard.clone()).collect();
    manifest.set("bench.merged", shards, "merge");
    let mut writer = RunWriter::create(
        &out.join(name),
        manifest,
        RecordPlan { top_k: 1, ..RecordPlan::default() },
    )?;
    let mut samples: Vec<BTreeMap<String, lockstep_traces::SampleRow>> = Vec::new();
    for run in &runs {
        let rows = run.as_ref().map(RunReader::samples).transpose()?.unwrap_or_default();
        samples.push(rows.into_iter().map(|row| (row.sample_id.clone(), row)).collect());
    }
    for id in &plan.rows {
        let place = tally.found.get(id).copied().unwrap_or(usize::MAX);
        let run = runs.get(place).and_then(Option::as_ref);
        let sample = samples.get_mut(place).and_then(|rows| rows.remove(id));
        let (Some(run), Some(sample)) = (run, sample) else {
            anyhow::bail!("{name}: sample `{id}` went away while it was merged");
        };
        let steps =
            run.steps(&StepQuery { sample_id: Some(id.clone()), ..StepQuery::default() })?;
        for row in (0..steps.len).filter_map(|row| steps.row(row)) {
            writer.step(row)?;
        }
        for event in run.events(Some(id))? {
            writer.event(event)?;
        }
        writer.sample(sample)?;
    }
    Ok(writer.finish()?)
}

/// Each remark once, in order.
fn distinct(remarks: impl Iterator<Item = String>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for remark in remarks {
        if !all.contains(&remark) {
            all.push(remark);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::evaluate::plan::{DatasetInfo, Expected};

    fn plan(ids: &[&str]) -> Plan {
        let expected = ids
            .iter()
            .zip(0..)
            .map(|(id, row_index)| Expected { sample_id: (*id).to_owned(), row_index });
        Plan {
            schema: 1,
            dataset: DatasetInfo {
                path: "d".into(),
                sha256: "0".into(),
                form: "plain".into(),
                rows: ids.len(),
            },
            prompts: PromptInfo {
                template: "none".into(),
                template_sha256: None,
                add_generation_prompt: None,
                enable_thinking: None,
                instruction: None,
                templated: 0,
                doubled_bos: Vec::new(),
            },
            expected: expected.collect(),
            shard: None,
            rows: Vec::new(),
            batch: 1,
            arms: Vec::new(),
        }
    }

    fn held(parts: &[(&str, &[&str])]) -> Vec<(String, Vec<String>)> {
        let owned = |(dir, ids): &(&str, &[&str])| {
            ((*dir).to_owned(), ids.iter().map(|id| (*id).to_owned()).collect())
        };
        parts.iter().map(owned).collect()
    }

    #[test]
    fn every_row_once_is_clean() {
        let tally =
            tally("dense", &plan(&["a", "b", "c"]), &held(&[("x", &["c", "a"]), ("y", &["b"])]))
                .unwrap();
        assert_eq!(tally.missing, [""; 0]);
        assert_eq!(
            tally.found.into_iter().collect::<Vec<_>>(),
            [("a".into(), 0), ("b".into(), 1), ("c".into(), 0)]
        );
    }

    #[test]
    fn a_doubled_a_missing_and_a_foreign_row_are_named() {
        let plan = plan(&["a", "b", "c"]);
        let fault = |parts: &[(&str, &[&str])]| {
            tally("dense", &plan, &held(parts)).unwrap_err().to_string()
        };
        let twice = fault(&[("x", &["a"]), ("y", &["b", "a"])]);
        assert!(twice.contains("`a` is in x and in y"), "{twice}");
        assert!(fault(&[("x", &["a", "a"])]).contains("`a` is in x and in x"));
        assert!(fault(&[("x", &["a", "z"])]).contains("`z` was not selected"));
        assert_eq!(
            tally("dense", &plan, &held(&[("x", &["b"]), ("y", &[])])).unwrap().missing,
            ["a", "c"]
        );
    }
}
