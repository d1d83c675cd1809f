//! What the binary carries, so that the demo needs nothing else: the ledger model, its query statistics, its problems.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use lockstep_runtime::engine::Request;
use serde::Deserialize;

const MODEL: [(&str, &[u8]); 4] = [
    ("config.json", include_bytes!("../../../tests/data/models/ledger/config.json")),
    (
        "generation_config.json",
        include_bytes!("../../../tests/data/models/ledger/generation_config.json"),
    ),
    ("model.safetensors", include_bytes!("../../../tests/data/models/ledger/model.safetensors")),
    ("tokenizer.json", include_bytes!("../../../tests/data/models/ledger/tokenizer.json")),
];
const STATS: &[u8] =
    include_bytes!("../../../tests/data/golden/traces/stats/ledger_stats_decode_only.safetensors");
pub(crate) const TASKS: &str = include_str!("../../../tests/data/golden/traces/tasks.jsonl");

/// One ledger problem with the length of its exact completion.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub(crate) request: Request,
    pub(crate) lines: usize,
    pub(crate) completion_len: usize,
}

#[derive(Deserialize)]
struct Row {
    sample_id: String,
    answer: String,
    n_lines: usize,
    completion_len: usize,
    prompt: String,
    prompt_ids: Vec<u32>,
}

/// Folders that the embedded files were written to.
pub(crate) struct Files {
    pub(crate) model: PathBuf,
    pub(crate) stats: PathBuf,
}

/// Writes model and statistics below `out`.
pub(crate) fn write(out: &Path) -> anyhow::Result<Files> {
    let files = Files { model: out.join("model"), stats: out.join("stats.safetensors") };
    fs::create_dir_all(&files.model).with_context(|| files.model.display().to_string())?;
    for (name, bytes) in MODEL {
        let path = files.model.join(name);
        fs::write(&path, bytes).with_context(|| path.display().to_string())?;
    }
    fs::write(&files.stats, STATS).with_context(|| files.stats.display().to_string())?;
    Ok(files)
}

/// The named problems, in the order of `ids`.
pub(crate) fn problems(ids: &[&str]) -> anyhow::Result<Vec<Problem>> {
    let rows: Vec<Row> = TASKS.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    ids.iter()
        .map(|id| {
            let row = rows
                .iter()
                .find(|row| row.sample_id == *id)
                .with_context(|| format!("no problem {id}"))?;
            Ok(Problem {
                request: Request {
                    sample_id: row.sample_id.clone(),
                    prompt_ids: row.prompt_ids.clone(),
                    prompt_text: Some(row.prompt.clone()),
                    gold: Some(row.answer.clone()),
                    seed_index: None,
                },
                lines: row.n_lines,
                completion_len: row.completion_len,
            })
        })
        .collect()
}
