//! The two JSON sections of a bundle that an investigation needs: its model configuration with the keys that the
//! builder injects, and the head of the selector's statistics.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::TraceError;

/// Injected keys of `config.json`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct BundleConfig {
    /// Rows of each optimization profile, as built.
    #[serde(rename = "dynamic_kv_profile_rows")]
    pub profile_rows: Option<Vec<u32>>,
    /// The cache binding is dynamic.
    pub dynamic_kv_cache: Option<bool>,
    /// Strategy at run time.
    pub runtime_strategy: Option<String>,
    /// Precision.
    pub precision: Option<String>,
    /// The cache policy's settings as built; empty for a dense bundle.
    #[serde(rename = "triattention")]
    pub policy: BTreeMap<String, Value>,
}

/// Head of the statistics; the vectors themselves are skipped over.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct StatsHeader {
    /// Format version.
    pub version: Option<u64>,
    /// `sampled_head_rkv` or `sampled_head_layer_stats`.
    pub format: Option<String>,
    /// Head size.
    pub head_dim: Option<u64>,
    /// `half` or `interleaved`.
    pub rope_style: Option<String>,
    /// Rotary base.
    pub rope_theta: Option<f64>,
    /// Query heads.
    pub num_attention_heads: Option<u64>,
    /// KV heads.
    pub num_key_value_heads: Option<u64>,
    /// Heads that the statistics are of, per layer.
    pub stats_head_count: Option<u64>,
    /// Layers.
    pub num_layers: Option<u64>,
    /// Number of sampled (layer, head) pairs.
    #[serde(deserialize_with = "length")]
    pub sampled_heads: u64,
    /// Number of entries of `stats`.
    #[serde(rename = "stats", deserialize_with = "length")]
    pub head_entries: u64,
    /// Number of entries of `layer_stats`, which win where both are there.
    #[serde(rename = "layer_stats", deserialize_with = "length")]
    pub layer_entries: u64,
}

/// Reads the configuration section.
pub(super) fn read_config(path: &Path, bytes: impl Read) -> Result<BundleConfig, TraceError> {
    json(path, bytes)
}

/// Reads the head of the statistics section.
pub(super) fn read_stats(path: &Path, bytes: impl Read) -> Result<StatsHeader, TraceError> {
    json(path, bytes)
}

fn json<T: serde::de::DeserializeOwned>(path: &Path, bytes: impl Read) -> Result<T, TraceError> {
    serde_json::from_reader(bytes).map_err(|source| TraceError::Json {
        path: path.to_owned(),
        line: source.line(),
        source,
    })
}

/// Number of elements of a list or an object, without keeping any.
fn length<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    struct Length;
    impl<'de> Visitor<'de> for Length {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list or an object")
        }

        fn visit_unit<E>(self) -> Result<u64, E> {
            Ok(0)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<u64, A::Error> {
            let mut count = 0;
            while seq.next_element::<IgnoredAny>()?.is_some() {
                count += 1;
            }
            Ok(count)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<u64, A::Error> {
            let mut count = 0;
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                count += 1;
            }
            Ok(count)
        }
    }
    deserializer.deserialize_any(Length)
}
