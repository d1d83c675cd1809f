//! `bench.json`: what was asked of a bench, so that its parts can be merged and its rows counted.

use std::path::Path;

use lockstep_traces::dataset::{Dataset, Taken};
use lockstep_traces::responses::Configuration;
use serde::{Deserialize, Serialize};

use super::prompts::{PromptInfo, Prompts};
use crate::cli::BenchRunArgs;
use crate::exit::usage;

const FILE: &str = "bench.json";
const SCHEMA: u32 = 1;

/// The dataset of a bench.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DatasetInfo {
    pub(super) path: String,
    /// sha256 of the file.
    pub(super) sha256: String,
    /// Form of its rows.
    pub(super) form: String,
    /// Rows in the file.
    pub(super) rows: usize,
}

/// A row that is expected, from all shards together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Expected {
    pub(super) sample_id: String,
    /// 0-based index in the dataset.
    pub(super) row_index: u64,
}

/// One configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PlannedArm {
    pub(super) name: String,
    /// Everything that decides a response.
    pub(super) configuration: Configuration,
}

/// `bench.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) schema: u32,
    pub(super) dataset: DatasetInfo,
    pub(super) prompts: PromptInfo,
    /// Every row that was selected, whatever the shard, in dataset order.
    pub(super) expected: Vec<Expected>,
    /// `i/n`; `null` for the whole.
    pub(super) shard: Option<String>,
    /// Ids of this shard, in dataset order.
    pub(super) rows: Vec<String>,
    pub(super) batch: usize,
    pub(super) arms: Vec<PlannedArm>,
}

impl Plan {
    pub(super) fn of(
        args: &BenchRunArgs,
        (dataset, taken): (&Dataset, &Taken),
        prompts: &Prompts,
        arms: Vec<PlannedArm>,
    ) -> Self {
        let expected = taken.expected.iter().filter_map(|place| dataset.rows.get(*place));
        Self {
            schema: SCHEMA,
            dataset: DatasetInfo {
                path: dataset.path.display().to_string(),
                sha256: dataset.sha256.clone(),
                form: dataset.form.name().to_owned(),
                rows: dataset.rows.len(),
            },
            prompts: prompts.info.clone(),
            expected: expected
                .map(|row| Expected { sample_id: row.sample_id.clone(), row_index: row.index })
                .collect(),
            shard: args.shard.map(|shard| shard.to_string()),
            rows: prompts.requests.iter().map(|request| request.sample_id.clone()).collect(),
            batch: args.batch,
            arms,
        }
    }

    pub(super) fn write(&self, out: &Path) -> anyhow::Result<()> {
        let path = out.join(FILE);
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        std::fs::write(&path, text).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))
    }

    pub(super) fn read(out: &Path) -> anyhow::Result<Self> {
        let path = out.join(FILE);
        let text = std::fs::read(&path).map_err(|error| {
            anyhow::anyhow!("{}: {error}; `bench run` writes it", path.display())
        })?;
        let plan: Self = serde_json::from_slice(&text)
            .map_err(|error| anyhow::anyhow!("{}: no plan of a bench: {error}", path.display()))?;
        anyhow::ensure!(
            plan.schema == SCHEMA,
            "{}: schema {}, this build reads {SCHEMA}; run the bench again",
            path.display(),
            plan.schema
        );
        Ok(plan)
    }

    /// Index in the dataset of a sample.
    pub(super) fn row_index(&self, sample_id: &str) -> Option<u64> {
        self.expected.iter().find(|row| row.sample_id == sample_id).map(|row| row.row_index)
    }
}

/// The folder of a bench: a new one is empty, one that is gone on with was written by a bench.
pub(super) fn prepare(out: &Path, resume: bool) -> anyhow::Result<()> {
    let there = out.exists() && std::fs::read_dir(out)?.next().is_some();
    if there && !resume {
        return Err(usage(format!(
            "{} holds files; --resume goes on with a bench, or give another --out",
            out.display()
        )));
    }
    if there && !out.join(FILE).is_file() && !only_embedded(out)? {
        return Err(usage(format!(
            "{} holds files and no {FILE}: this is no bench to resume",
            out.display()
        )));
    }
    std::fs::create_dir_all(out).map_err(|error| anyhow::anyhow!("{}: {error}", out.display()))
}

/// A bench that was stopped before it had a plan has written the embedded files at most.
fn only_embedded(out: &Path) -> anyhow::Result<bool> {
    for entry in std::fs::read_dir(out)? {
        if entry?.file_name() != super::LEDGER {
            return Ok(false);
        }
    }
    Ok(true)
}
