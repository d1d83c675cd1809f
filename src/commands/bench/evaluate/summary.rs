//! `summary.json`: what a bench came to, read back from its runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lockstep_diff::answers::Outcome;
use lockstep_diff::stats::PairedScores;
use lockstep_runtime::engine::StopRules;
use lockstep_traces::store::RunReader;
use lockstep_traces::{FinishReason, Manifest, SampleRow};
use serde::Serialize;
use serde_json::Value;

use super::plan::{DatasetInfo, Plan};
use super::prompts::PromptInfo;
use super::reference::Agreement;
use super::scores::{self, Scored, Scores};
use super::speed::Speed;
pub(super) use super::speed::Work;
use super::text;
use crate::cli::ScoringArgs;

const SCHEMA: u32 = 1;

/// A configuration as this call left it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Recorded {
    pub(super) name: String,
    pub(super) complete: bool,
    /// What was computed; `None` for a merge, which computes nothing.
    pub(super) work: Option<Work>,
    /// Samples taken from the response cache.
    pub(super) served: Vec<String>,
    /// What was read around in the cache.
    pub(super) remarks: Vec<String>,
}

/// `summary.json`, and the answer of `bench run` and `bench merge`.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    pub(super) schema: u32,
    /// `complete`, or `incomplete` where a configuration was interrupted or not begun.
    pub(super) status: &'static str,
    pub(super) dataset: DatasetInfo,
    pub(super) prompts: PromptInfo,
    pub(super) shard: Option<String>,
    /// Rows of all shards.
    pub(super) expected: usize,
    /// Rows of this one.
    pub(super) rows: usize,
    pub(super) batch: usize,
    pub(super) runs: Vec<Configured>,
    /// The first configuration against each other one, over the rows that both have.
    pub(super) pairs: Vec<PairedScores>,
    pub(super) reference: Option<Agreement>,
    /// What a reader must know before the numbers.
    pub(super) flags: Vec<String>,
}

/// One configuration.
#[derive(Debug, Serialize)]
pub(super) struct Configured {
    pub(super) name: String,
    /// Folder of the run, below the bench.
    pub(super) dir: String,
    pub(super) complete: bool,
    /// sha256 of everything that decides a response.
    pub(super) configuration_sha256: String,
    /// `policy.*`, `sampling.*` and `stop.*` in force.
    pub(super) settings: BTreeMap<String, Value>,
    pub(super) dtype: Option<String>,
    pub(super) device: String,
    /// Rows there are; `expected` is how many there should be.
    pub(super) rows: usize,
    pub(super) expected: usize,
    pub(super) from_cache: usize,
    pub(super) computed: usize,
    pub(super) scores: Scores,
    /// Rows by finish reason.
    pub(super) finishes: BTreeMap<String, u64>,
    pub(super) compactions: usize,
    pub(super) speed: Speed,
    pub(super) work: Option<Work>,
    pub(super) samples: Vec<Sample>,
    pub(super) remarks: Vec<String>,
}

/// One row.
#[derive(Debug, Serialize)]
pub(super) struct Sample {
    pub(super) sample_id: String,
    /// 0-based index in the dataset.
    pub(super) row_index: Option<u64>,
    pub(super) base_seed: Option<u64>,
    pub(super) seed_index: Option<u64>,
    pub(super) effective_seed: Option<u64>,
    pub(super) gold: Option<String>,
    pub(super) answer: Option<String>,
    pub(super) outcome: Outcome,
    pub(super) note: Option<String>,
    pub(super) finish: FinishReason,
    /// Which rule on the text stopped it.
    pub(super) stopped_by: Option<String>,
    pub(super) prompt_tokens: usize,
    pub(super) generated_tokens: usize,
    pub(super) prefill_seconds: f64,
    pub(super) decode_seconds: f64,
    pub(super) from_cache: bool,
    pub(super) prompt_ids_sha256: String,
}

impl Summary {
    /// Reads the runs of `recorded` below `out`.
    pub(super) fn of(
        out: &Path,
        plan: &Plan,
        recorded: &[Recorded],
        how: &ScoringArgs,
    ) -> anyhow::Result<Self> {
        let runs: Vec<Configured> = recorded
            .iter()
            .map(|one| Configured::read(out, plan, one, how))
            .collect::<anyhow::Result<_>>()?;
        let complete = runs.len() == plan.arms.len() && runs.iter().all(|run| run.complete);
        let pairs = match runs.split_first() {
            Some((first, others)) if first.samples.iter().any(|row| row.gold.is_some()) => {
                others.iter().map(|other| scores::paired(&first.side(), &other.side())).collect()
            }
            _ => Vec::new(),
        };
        let mut summary = Self {
            schema: SCHEMA,
            status: if complete { "complete" } else { "incomplete" },
            dataset: plan.dataset.clone(),
            prompts: plan.prompts.clone(),
            shard: plan.shard.clone(),
            expected: plan.expected.len(),
            rows: plan.rows.len(),
            batch: plan.batch,
            runs,
            pairs,
            reference: None,
            flags: Vec::new(),
        };
        summary.flags = summary.flags();
        Ok(summary)
    }

    fn flags(&self) -> Vec<String> {
        let mut flags = Vec::new();
        if let Some(first) = self.prompts.doubled_bos.first() {
            flags.push(format!(
                "doubled beginning-of-sequence token in {} prompts, first `{first}`",
                self.prompts.doubled_bos.len()
            ));
        }
        for run in &self.runs {
            if run.rows < run.expected {
                flags.push(format!(
                    "{}: {} of {} rows; its figures are of an unfinished run",
                    run.name, run.rows, run.expected
                ));
            }
            let seeds: Vec<u64> = run.samples.iter().filter_map(|row| row.effective_seed).collect();
            let distinct: BTreeSet<&u64> = seeds.iter().collect();
            if distinct.len() < seeds.len() {
                flags.push(format!(
                    "{}: {} rows share an effective seed with another",
                    run.name,
                    seeds.len() - distinct.len()
                ));
            }
        }
        flags
    }

    /// Writes `summary.json` and `summary.txt`.
    pub(super) fn write(&self, out: &Path) -> anyhow::Result<()> {
        let mut json = serde_json::to_string_pretty(self)?;
        json.push('\n');
        for (name, content) in [("summary.json", json), ("summary.txt", text::table(self))] {
            let path = out.join(name);
            std::fs::write(&path, content)
                .map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
        }
        Ok(())
    }
}

impl Configured {
    fn read(out: &Path, plan: &Plan, one: &Recorded, how: &ScoringArgs) -> anyhow::Result<Self> {
        let dir = out.join(&one.name);
        let run = RunReader::open(&dir)?;
        let mut rows = run.samples()?;
        rows.sort_by_key(|row| plan.row_index(&row.sample_id));
        let scored: Vec<Scored> = rows.iter().map(|row| scores::score(row, how)).collect();
        let stop = stop_rules(run.manifest());
        let samples: Vec<Sample> = rows
            .iter()
            .zip(&scored)
            .map(|(row, scored)| sample(row, scored, plan, one, &stop))
            .collect();
        let mut finishes = BTreeMap::new();
        for row in &rows {
            *finishes.entry(finish_word(row.finish)).or_insert(0) += 1;
        }
        let manifest = run.manifest();
        let arm = plan.arms.iter().find(|arm| arm.name == one.name);
        let told =
            |key: &str| ["policy.", "sampling.", "stop."].iter().any(|part| key.starts_with(part));
        let settings = manifest.config.iter().filter(|(key, _)| told(key));
        Ok(Self {
            name: one.name.clone(),
            dir: one.name.clone(),
            complete: one.complete && rows.len() == plan.rows.len(),
            configuration_sha256: arm.map(|arm| arm.configuration.sha256()).unwrap_or_default(),
            settings: settings.map(|(key, setting)| (key.clone(), setting.value.clone())).collect(),
            dtype: manifest.dtype.map(|dtype| dtype.name().to_owned()),
            device: manifest.device.clone(),
            rows: rows.len(),
            expected: plan.rows.len(),
            from_cache: one.served.len(),
            computed: one.work.map_or(0, |work| work.rows),
            scores: Scores::of(&scored, how),
            finishes,
            compactions: run.events(None)?.len(),
            speed: Speed::of(&rows),
            work: one.work,
            samples,
            remarks: one.remarks.clone(),
        })
    }

    /// Samples with a gold answer, correct or not.
    fn side(&self) -> scores::Side<'_> {
        let scored = self.samples.iter().filter(|row| row.outcome != Outcome::Unscored);
        let correct = scored.map(|row| (row.sample_id.as_str(), row.outcome == Outcome::Correct));
        (&self.name, correct.collect())
    }
}

fn sample(
    row: &SampleRow,
    scored: &Scored,
    plan: &Plan,
    one: &Recorded,
    stop: &StopRules,
) -> Sample {
    let text = row.text.as_deref().filter(|_| row.finish == FinishReason::Stop);
    Sample {
        sample_id: row.sample_id.clone(),
        row_index: plan.row_index(&row.sample_id),
        base_seed: row.base_seed,
        seed_index: row.seed_index,
        effective_seed: row.effective_seed,
        gold: row.gold.clone(),
        answer: scored.answer.clone(),
        outcome: scored.outcome,
        note: scored.note.clone(),
        finish: row.finish,
        stopped_by: text.and_then(|text| stop.fulfilled(text)),
        prompt_tokens: row.prompt_ids.len(),
        generated_tokens: row.generated_ids.len(),
        prefill_seconds: row.prefill_seconds,
        decode_seconds: row.decode_seconds,
        from_cache: one.served.contains(&row.sample_id),
        prompt_ids_sha256: row.prompt_ids_sha256.clone(),
    }
}

/// The rules on the text that a run was under.
fn stop_rules(manifest: &Manifest) -> StopRules {
    let strings =
        manifest.get("stop.strings").and_then(|value| serde_json::from_value(value.clone()).ok());
    StopRules {
        strings: strings.unwrap_or_default(),
        on_answer: manifest.get("stop.rule").and_then(Value::as_str) == Some("answer"),
        ..StopRules::default()
    }
}

fn finish_word(finish: FinishReason) -> String {
    let value = serde_json::to_value(finish).ok();
    value.and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}
