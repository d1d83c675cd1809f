//! What decides a response.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Manifest;
use crate::hash::{ids_sha256, sha256_hex};
use crate::store::resume::settings;

/// Keys of the effective configuration that say which rows are run and how the work is cut, not what is answered.
const ABOUT_ROWS: [&str; 3] = ["run.", "dataset.", "bench."];
/// Where the statistics lie; what they are is said by their hash.
const STATS_PATH: &str = "policy.stats";
/// Vector instructions of the CPU backend, which change no bit of a result.
const ISA: &str = "isa=";

/// Everything that decides a response and is the same for all rows of a run: hashes of weights, tokenizer, chat
/// template and statistics, effective policy, sampling and stop rules, dtypes, device, kernel options, version of the
/// runtime. Values are kept as their JSON text, so that a number is compared as it is written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration(BTreeMap<String, String>);

/// The first key in which two configurations differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Dotted key.
    pub key: String,
    /// JSON text on the left, or `not set`.
    pub left: String,
    /// JSON text on the right, or `not set`.
    pub right: String,
}

/// What of a row decides its response.
#[derive(Debug, Clone, Copy)]
pub struct RowIdentity<'a> {
    /// Name; the random policy draws by it.
    pub sample_id: &'a str,
    /// Prompt.
    pub prompt_ids: &'a [u32],
    /// Seed in force.
    pub effective_seed: Option<u64>,
}

impl Configuration {
    /// The configuration of a run with this manifest. `batch` counts only where it can change a bit: on the CPU
    /// backend and under `device.deterministic` a sample's bits depend on nothing but the sample.
    #[must_use]
    pub fn of(manifest: &Manifest) -> Self {
        let settings = settings(manifest).into_iter();
        let mut all: BTreeMap<String, Value> = settings
            .filter(|(key, _)| {
                key != STATS_PATH && !ABOUT_ROWS.iter().any(|part| key.starts_with(part))
            })
            .collect();
        all.insert("runtime.version".to_owned(), manifest.producer.version.clone().into());
        let deterministic = manifest.get("device.deterministic").and_then(Value::as_bool);
        if manifest.device == "cpu" {
            let options = manifest.kernel_options.iter().filter(|option| !option.starts_with(ISA));
            all.insert("kernel_options".to_owned(), options.cloned().collect());
        } else if deterministic != Some(true)
            && let Some(batch) = manifest.get("run.batch")
        {
            all.insert("run.batch".to_owned(), batch.clone());
        }
        Self(all.into_iter().map(|(key, value)| (key, value.to_string())).collect())
    }

    /// sha256 over the keys and values in order, hex.
    #[must_use]
    pub fn sha256(&self) -> String {
        sha256_hex(&serde_json::to_vec(&self.0).unwrap_or_default())
    }

    /// JSON text of the value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// The first key, in alphabetical order, in which the two differ.
    #[must_use]
    pub fn first_difference(&self, right: &Self) -> Option<Difference> {
        let mut keys: Vec<&String> = self.0.keys().chain(right.0.keys()).collect();
        keys.sort_unstable();
        let key = keys.into_iter().find(|key| self.0.get(*key) != right.0.get(*key))?;
        let text = |side: &Self| side.get(key).unwrap_or("not set").to_owned();
        Some(Difference { key: key.clone(), left: text(self), right: text(right) })
    }

    /// Key of a row's response under this configuration: sha256, hex.
    #[must_use]
    pub fn key(&self, row: RowIdentity<'_>) -> String {
        let identity = serde_json::json!({
            "configuration": self.sha256(),
            "sample_id": row.sample_id,
            "prompt_ids_sha256": ids_sha256(row.prompt_ids),
            "prompt_len": row.prompt_ids.len(),
            "effective_seed": row.effective_seed,
        });
        sha256_hex(identity.to_string().as_bytes())
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "`{}` is {} there and {} here", self.key, self.left, self.right)
    }
}
