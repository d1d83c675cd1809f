//! The keep dump: one JSON object for one compaction.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::TraceError;
use crate::store::fail::{io, malformed};
use crate::store::replace_file;

/// Largest file read; the three lists of a 1M-row cache with 8 heads stay below.
const MAX_BYTES: u64 = 512 << 20;

/// Timings and counts, present where the engine profiled.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Profile {
    /// Rows kept outright.
    pub reserved_count: u32,
    /// Rows ranked.
    pub candidate_count: u32,
    /// Layers with statistics.
    pub sampled_layers: u32,
    /// Attention heads with statistics, over all layers.
    pub sampled_heads: u32,
    /// Scoring.
    pub score_ms: f64,
    /// Normalising and reducing.
    pub combine_ms: f64,
    /// Ranking.
    pub select_ms: f64,
    /// Moving rows; starts before the selection, so it contains its time.
    pub repack_ms: f64,
}

/// A keep dump as it stands in its file. Field names and their order are the engine's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeepDump {
    /// As written: one too high where there is no `profile` (see [`super::true_ordinal`]).
    pub compaction_index: u32,
    /// N: position of the next token.
    pub absolute_position: u32,
    /// Rows before, exact.
    pub cache_length_before: u32,
    /// Rows kept per head.
    pub keep_count: u32,
    /// Prompt length once the prefill is marked complete, else 0.
    pub prompt_end_position: u32,
    /// Prompt length.
    pub planned_prompt_length: u32,
    /// Effective value.
    pub protect_prefill: bool,
    /// Effective value.
    pub recent_window: u32,
    /// Effective value.
    pub kv_budget: u32,
    /// Effective value.
    pub count_prompt_tokens: bool,
    /// Positions of head 0's rows, `[rows]`.
    pub cache_positions: Vec<u32>,
    /// Positions before, `[kv_heads][rows]`.
    pub cache_positions_per_head: Vec<Vec<u32>>,
    /// Positions after, `[kv_heads][kept]`.
    pub new_positions_by_head: Vec<Vec<u32>>,
    /// Rows of the cache before, ascending, `[kv_heads][kept]`.
    pub keep_indices_by_head: Vec<Vec<u32>>,
    /// With profiling only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// `[rows, kv_heads, head_dim]`, with cache dumping only, as are the fields below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score_cache_shape: Option<[usize; 3]>,
    /// `float32`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score_cache_dtype: Option<String>,
    /// K before, a file a layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score_cache_files: Option<Vec<String>>,
    /// V before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_cache_files: Option<Vec<String>>,
    /// `[kept, kv_heads, head_dim]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_score_cache_shape: Option<[usize; 3]>,
    /// K after.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_score_cache_files: Option<Vec<String>>,
    /// V after.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_value_cache_files: Option<Vec<String>>,
}

impl KeepDump {
    /// Reads and validates a dump.
    ///
    /// # Errors
    /// [`TraceError::Io`]; [`TraceError::Json`] with the line for anything but the JSON of a keep dump;
    /// [`TraceError::Malformed`] where lists and counts contradict each other.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let size = std::fs::metadata(path).map_err(io(path))?.len();
        if size > MAX_BYTES {
            return Err(malformed(path, format!("{size} bytes are no keep dump")));
        }
        let bytes = std::fs::read(path).map_err(io(path))?;
        let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
        let dump: Self = serde_json::from_slice(text).map_err(|source| TraceError::Json {
            path: path.to_owned(),
            line: source.line(),
            source,
        })?;
        dump.validate().map_err(|what| malformed(path, what))?;
        Ok(dump)
    }

    /// Writes the dump as the engine does: one object, indented by two.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] where it contradicts itself; [`TraceError::Io`].
    pub fn write(&self, path: &Path) -> Result<(), TraceError> {
        self.validate().map_err(|what| malformed(path, what))?;
        replace_file(path, |file| {
            serde_json::to_writer_pretty(std::io::BufWriter::new(file), self).map_err(|source| {
                TraceError::Json { path: path.to_owned(), line: source.line(), source }
            })
        })
    }

    /// Number of KV heads.
    #[must_use]
    pub const fn kv_heads(&self) -> usize {
        self.keep_indices_by_head.len()
    }

    fn validate(&self) -> Result<(), String> {
        let heads = self.kv_heads();
        if heads == 0 {
            return Err("`keep_indices_by_head` is empty".to_owned());
        }
        for (name, found) in [
            ("cache_positions_per_head", self.cache_positions_per_head.len()),
            ("new_positions_by_head", self.new_positions_by_head.len()),
        ] {
            if found != heads {
                return Err(format!("`{name}` has {found} heads, `keep_indices_by_head` {heads}"));
            }
        }
        if self.cache_positions != self.cache_positions_per_head[0] {
            return Err("`cache_positions` is not head 0 of `cache_positions_per_head`".to_owned());
        }
        (0..heads).try_for_each(|head| self.validate_head(head))
    }

    fn validate_head(&self, head: usize) -> Result<(), String> {
        let rows = self.cache_length_before as usize;
        let kept = self.keep_count as usize;
        let (old, new, keep) = (
            &self.cache_positions_per_head[head],
            &self.new_positions_by_head[head],
            &self.keep_indices_by_head[head],
        );
        for (name, found, wanted, count) in [
            ("cache_positions_per_head", old.len(), rows, "cache_length_before"),
            ("keep_indices_by_head", keep.len(), kept, "keep_count"),
            ("new_positions_by_head", new.len(), kept, "keep_count"),
        ] {
            if found != wanted {
                return Err(format!(
                    "`{name}` of head {head} has {found} entries, `{count}` is {wanted}"
                ));
            }
        }
        if let Some(pair) = keep.windows(2).find(|pair| pair[0] >= pair[1]) {
            let (a, b) = (pair[0], pair[1]);
            return Err(format!(
                "`keep_indices_by_head` of head {head}: {b} follows {a}; rows ascend and stand once"
            ));
        }
        for (&row, &position) in keep.iter().zip(new) {
            match old.get(row as usize) {
                None => {
                    return Err(format!(
                        "`keep_indices_by_head` of head {head}: row {row} is not among the {rows} rows before"
                    ));
                }
                Some(&old) if old != position => {
                    return Err(format!(
                        "`new_positions_by_head` of head {head}: row {row} has position {position}, before the compaction it had {old}"
                    ));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Budget 8, divide 4, window 2, prompt 3, two heads, no profile: the index reads one high.
    pub(crate) fn example() -> KeepDump {
        let old: Vec<u32> = (0..12).collect();
        let keep = vec![vec![0, 1, 2, 4, 7, 8, 10, 11], vec![0, 1, 2, 3, 6, 9, 10, 11]];
        KeepDump {
            compaction_index: 2,
            absolute_position: 12,
            cache_length_before: 12,
            keep_count: 8,
            prompt_end_position: 3,
            planned_prompt_length: 3,
            protect_prefill: true,
            recent_window: 2,
            kv_budget: 8,
            count_prompt_tokens: true,
            cache_positions: old.clone(),
            cache_positions_per_head: vec![old.clone(), old],
            new_positions_by_head: keep.clone(),
            keep_indices_by_head: keep,
            profile: None,
            score_cache_shape: None,
            score_cache_dtype: None,
            score_cache_files: None,
            value_cache_files: None,
            post_score_cache_shape: None,
            post_score_cache_files: None,
            post_value_cache_files: None,
        }
    }

    #[test]
    fn a_dump_is_written_with_the_engines_keys_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k.json");
        example().write(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("{\n  \"compaction_index\": 2,\n  \"absolute_position\": 12,\n"));
        assert!(!text.contains("profile") && !text.contains("score_cache"));
        assert_eq!(KeepDump::read(&path).unwrap(), example());
    }

    #[test]
    fn each_contradiction_is_named() {
        type Plant = fn(&mut KeepDump);
        let planted: [(&str, Plant); 9] = [
            ("has 12 entries, `cache_length_before`", |dump| dump.cache_length_before = 13),
            ("has 8 entries, `keep_count`", |dump| dump.keep_count = 7),
            ("not head 0", |dump| dump.cache_positions[3] = 9),
            ("7 follows 7", |dump| dump.keep_indices_by_head[0][3] = 7),
            ("row 12 is not among", |dump| dump.keep_indices_by_head[1][7] = 12),
            ("row 8 has position 9", |dump| dump.new_positions_by_head[0][5] = 9),
            ("1 heads", |dump| dump.new_positions_by_head.truncate(1)),
            ("head 1 has 7 entries", |dump| dump.keep_indices_by_head[1].truncate(7)),
            ("is empty", |dump| dump.keep_indices_by_head.clear()),
        ];
        for (what, plant) in planted {
            let mut dump = example();
            plant(&mut dump);
            let error = dump.validate().unwrap_err();
            assert!(error.contains(what), "{what}: {error}");
        }
        assert_eq!(example().validate(), Ok(()));
    }

    #[test]
    fn another_json_document_and_a_cut_one_are_refused_with_their_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k.json");
        std::fs::write(&path, "{\n  \"a\": 1\n}").unwrap();
        assert!(matches!(KeepDump::read(&path), Err(TraceError::Json { line: 3, .. })));
        example().write(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert!(matches!(KeepDump::read(&path), Err(TraceError::Json { .. })));
    }
}
