//! One door for every artifact that is no trace.

use std::path::{Path, PathBuf};

use super::bench::{BenchRow, read_bench};
use super::bundle::{Bundle, read_bundle};
use super::dataset::{DatasetRow, read_dataset};
use super::document::{EffectiveConfig, Summary, read_effective_config, read_summary};
use super::jsonl::Rows;
use super::kind::{ArtifactKind, guess};
use super::log::{EngineLog, read_log};
use super::replayed::{ReplayRows, read_replay};
use crate::TraceError;
use crate::trtmc::{Bins, GatherFault, KeepDump, gather_faults};

/// A keep dump with what its binaries say.
#[derive(Debug, Clone, PartialEq)]
pub struct DumpFacts {
    /// File.
    pub path: PathBuf,
    /// The dump.
    pub dump: KeepDump,
    /// Binaries that it lists and that are not there.
    pub missing: Vec<String>,
    /// Caches before and after that were held against the keep-sets, K and V apart; `None` where a binary is missing or none
    /// is listed.
    pub gathered: Option<Gathered>,
}

/// Dumped caches against their keep-sets, bit for bit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gathered {
    /// Caches with rows before and after.
    pub caches: usize,
    /// Rows (of single heads) compared.
    pub rows: usize,
    /// Caches that differ.
    pub faults: Vec<GatherFault>,
}

/// An artifact as facts.
#[derive(Debug, Clone, PartialEq)]
pub enum Artifact {
    /// A benchmark's dataset.
    Dataset(Rows<DatasetRow>),
    /// A benchmark's output.
    Bench(Rows<BenchRow>),
    /// A comparison summary.
    Summary(Summary),
    /// An engine bundle.
    Bundle(Box<Bundle>),
    /// An effective configuration.
    EffectiveConfig(EffectiveConfig),
    /// An engine's log.
    Log(EngineLog),
    /// A keep dump.
    KeepDump(Box<DumpFacts>),
    /// What a replay believed; its rows are a trace as well.
    Replay(ReplayRows),
}

/// Reads what lies at `path`; `None` for runs, plain traces and what is not known.
///
/// # Errors
/// [`TraceError`] of the reader of its kind.
pub fn read(path: &Path) -> Result<Option<Artifact>, TraceError> {
    Ok(Some(match guess(path)? {
        None | Some(ArtifactKind::Run | ArtifactKind::Trace) => return Ok(None),
        Some(ArtifactKind::Dataset) => Artifact::Dataset(read_dataset(path)?),
        Some(ArtifactKind::Bench) => Artifact::Bench(read_bench(path)?),
        Some(ArtifactKind::Summary) => Artifact::Summary(read_summary(path)?),
        Some(ArtifactKind::Bundle) => Artifact::Bundle(Box::new(read_bundle(path)?)),
        Some(ArtifactKind::EffectiveConfig) => {
            Artifact::EffectiveConfig(read_effective_config(path)?)
        }
        Some(ArtifactKind::Log) => Artifact::Log(read_log(path)?),
        Some(ArtifactKind::KeepDump) => Artifact::KeepDump(Box::new(dump_facts(path)?)),
        Some(ArtifactKind::Replay) => Artifact::Replay(read_replay(path)?),
    }))
}

/// Reads a keep dump and holds its binaries, where all of them are there, against its keep-sets.
fn dump_facts(path: &Path) -> Result<DumpFacts, TraceError> {
    let dump = KeepDump::read(path)?;
    let lists = [
        &dump.score_cache_files,
        &dump.value_cache_files,
        &dump.post_score_cache_files,
        &dump.post_value_cache_files,
    ];
    let listed: Vec<&String> = lists.into_iter().flatten().flatten().collect();
    let beside = |name: &str| path.with_file_name(name.rsplit(['/', '\\']).next().unwrap_or(name));
    let missing: Vec<String> =
        listed.iter().filter(|name| !beside(name).exists()).map(|name| (*name).clone()).collect();
    let gathered = if listed.is_empty() || !missing.is_empty() {
        None
    } else {
        let bins = Bins::open(&dump, path)?;
        let caches = bins.layers.iter().filter(|layer| layer.post.is_some()).count();
        let rows = dump.keep_indices_by_head.iter().map(Vec::len).sum::<usize>() * caches;
        Some(Gathered { caches, rows, faults: gather_faults(&dump, &bins) })
    };
    Ok(DumpFacts { path: path.to_owned(), dump, missing, gathered })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_without_its_binaries_says_which() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keep.json");
        let mut dump = crate::trtmc::example_dump();
        dump.score_cache_shape = Some([12, 2, 4]);
        dump.score_cache_dtype = Some("float32".to_owned());
        dump.score_cache_files = Some(vec!["t/keep.json.layer00.bin".to_owned()]);
        dump.write(&path).unwrap();
        let Some(Artifact::KeepDump(facts)) = read(&path).unwrap() else { panic!("no dump") };
        assert_eq!((facts.missing.len(), facts.gathered), (1, None));
    }

    #[test]
    fn traces_and_unknown_files_are_no_artifacts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, "hello").unwrap();
        assert_eq!(read(&path).unwrap(), None);
        std::fs::write(
            &path,
            "{\"position\":0,\"token_id\":1,\"rows_before\":1,\"rows_after\":1,\"top\":[[1,2]]}",
        )
        .unwrap();
        assert_eq!(read(&path).unwrap(), None);
    }

    /// Every artifact, cut or with a byte turned, place after place: an answer or an error, never a panic.
    #[test]
    fn no_damage_makes_a_reader_panic() {
        let config = br#"{"dynamic_kv_profile_rows":[32,64],"triattention":{"kv_budget":32}}"#;
        let stats = br#"{"version":2,"stats":{"layer00_head00":{"q_mean_real":[1.0]}}}"#;
        let bundle = super::super::testing::bundle(
            b"BUNDLE\x01\0",
            &[("config.json", config), ("triattention_stats.json", stats)],
        );
        let artifacts: [&[u8]; 7] = [
            &bundle,
            br#"{"sample_id":"a","answer":"1","prompt":"p","seed_index":3}"#,
            br#"{"sample_id":"a","gold_answer":"1","pred_answer":null,"generated_token_ids":[1],"decode_ms":1.5,"text":"t\u0041"}"#,
            br#"{"sampling":{"seed":1},"tri":{"samples":[{"sample_id":"a"}]}}"#,
            br#"{"a":{"b":{"value":1,"source":"bundle default"}}}"#,
            b"[trtf.triattention.profile] compact#2 abs_pos=384 old_rows=320 kept_rows=256\n[trtf] Decode: 4 tokens, 5.2 ms, 7.8 tok/s",
            br#"{"position_before":1,"token_id":2,"rows_before":1,"rows_after":2,"argmax_token":1,"top_ids":[1],"top_logits":[nan],"comp_before":{"absolute_position":1,"cache_positions_len":1,"prefix_length":0}}"#,
        ];
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let mut read_whole = 0;
        for whole in artifacts {
            std::fs::write(&path, whole).unwrap();
            read_whole += usize::from(matches!(read(&path), Ok(Some(_))));
            for at in 0..whole.len() {
                let mut bytes = whole.to_vec();
                match at % 4 {
                    0 => bytes.truncate(at),
                    turn => bytes[at] ^= [0x01, 0x80, 0xff][turn - 1],
                }
                std::fs::write(&path, &bytes).unwrap();
                let _ = read(&path);
            }
        }
        assert_eq!(read_whole, artifacts.len());
    }
}
