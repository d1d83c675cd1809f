//! What a file is, told by its content.

use std::io::Read as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::bundle::BundleFormat;
use super::fields::Fields;
use super::jsonl::{Tally, parse};
use super::log;
use crate::TraceError;
use crate::foreign::lines::Lines;
use crate::store::fail::io;

/// Lines looked at before a file is called unknown.
const LINES: usize = 256;

/// Kinds of artifacts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArtifactKind {
    /// A run directory of this workbench.
    Run,
    /// A trace of rows: TensorRT-Model-Connect's step trace, a position trace, a neutral trace.
    Trace,
    /// Rows of the replay harness in compressing mode, with the state of its policy.
    Replay,
    /// A keep dump.
    KeepDump,
    /// A benchmark's dataset.
    Dataset,
    /// A benchmark's output rows.
    Bench,
    /// A comparison summary.
    Summary,
    /// An engine bundle.
    Bundle,
    /// An effective configuration.
    EffectiveConfig,
    /// An engine's log.
    Log,
}

/// Guesses the kind of `path` from its content; names play no part. `None` where nothing known was met in the first
/// 256 lines.
///
/// # Errors
/// [`TraceError::Io`]; as the line reader for damage within those lines.
pub fn guess(path: &Path) -> Result<Option<ArtifactKind>, TraceError> {
    if path.is_dir() {
        return Ok(crate::store::is_run(path).then_some(ArtifactKind::Run));
    }
    let mut front = Vec::new();
    let file = std::fs::File::open(path).map_err(io(path))?;
    file.take(8).read_to_end(&mut front).map_err(io(path))?;
    if BundleFormat::of(&front).is_some() {
        return Ok(Some(ArtifactKind::Bundle));
    }
    if let Some(kind) = by_lines(path)? {
        return Ok(Some(kind));
    }
    Ok(by_document(path))
}

fn by_lines(path: &Path) -> Result<Option<ArtifactKind>, TraceError> {
    let mut lines = Lines::open(path)?;
    let mut tally = Tally::default();
    let mut seen = 0;
    while seen < LINES
        && let Some((_, text)) = lines.next()?
    {
        seen += 1;
        let kind = match parse(text, &mut tally) {
            Ok(fields) => by_keys(&fields),
            Err(_) => log::is_known(&String::from_utf8_lossy(text)).then_some(ArtifactKind::Log),
        };
        if kind.is_some() {
            return Ok(kind);
        }
    }
    Ok(None)
}

fn by_keys(fields: &Fields) -> Option<ArtifactKind> {
    let has = |key: &str| fields.has(key);
    if has("comp_before") && has("rows_before") {
        return Some(ArtifactKind::Replay);
    }
    if has("rows_before") && (has("position_before") || has("position")) {
        return Some(ArtifactKind::Trace);
    }
    if (has("text") || has("response")) && (has("sample_id") || has("id")) {
        return Some(ArtifactKind::Bench);
    }
    if has("prompt") && has("sample_id") {
        return Some(ArtifactKind::Dataset);
    }
    of_document(fields)
}

fn of_document(fields: &Fields) -> Option<ArtifactKind> {
    if fields.has("compaction_index") && fields.has("keep_indices_by_head") {
        return Some(ArtifactKind::KeepDump);
    }
    if fields.has("sampling") && ["dense", "tri", "hf"].iter().any(|name| fields.has(name)) {
        return Some(ArtifactKind::Summary);
    }
    let keys = fields.keys();
    let layered = |key: &String| {
        let entries = fields.get(key).and_then(serde_json::Value::as_object);
        entries.is_some_and(|entries| entries.values().all(|entry| entry.get("source").is_some()))
    };
    (!keys.is_empty() && keys.iter().all(layered)).then_some(ArtifactKind::EffectiveConfig)
}

/// A document over several lines. Keep dumps are large; their first keys are enough.
fn by_document(path: &Path) -> Option<ArtifactKind> {
    const FRONT: u64 = 1 << 20;
    let mut text = Vec::new();
    std::fs::File::open(path).ok()?.take(FRONT).read_to_end(&mut text).ok()?;
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
    if let Ok(fields) = serde_json::from_slice::<Fields>(text) {
        return of_document(&fields);
    }
    let cut = text.trim_ascii_start().starts_with(b"{") && text.len() as u64 >= FRONT;
    let named =
        String::from_utf8_lossy(text.get(..256.min(text.len()))?).contains("\"compaction_index\"");
    (cut && named).then_some(ArtifactKind::KeepDump)
}

#[cfg(test)]
mod tests {
    use super::super::testing::bundle;
    use super::*;
    use crate::trtmc::KeepDump;

    fn kind(bytes: &[u8]) -> Option<ArtifactKind> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("artifact");
        std::fs::write(&path, bytes).unwrap();
        guess(&path).unwrap()
    }

    #[test]
    fn content_tells_the_kind() {
        use ArtifactKind as K;
        let trace = r#"{"position_before":0,"token_id":1,"decoder_idx":0,"rows_before":32,"rows_after":32,"argmax_token":1,"argmax_logit":1,"top_ids":[1],"top_logits":[1]}"#;
        let neutral =
            r#"{"position":0,"token_id":1,"rows_before":1,"rows_after":1,"top":[[1,NaN]]}"#;
        let replay = r#"{"position_before":0,"token_id":1,"rows_before":0,"rows_after":1,"comp_before":null}"#;
        for (text, wanted) in [
            (trace, Some(K::Trace)),
            (neutral, Some(K::Trace)),
            (replay, Some(K::Replay)),
            (r#"{"sample_id":"a","answer":"1","prompt":"p"}"#, Some(K::Dataset)),
            ("50%|###\n{\"sample_id\":\"a\",\"answer\":\"1\",\"prompt\":\"p\"}", Some(K::Dataset)),
            (r#"{"sample_id":"a","answer":"1","generated_tokens":1,"text":"t"}"#, Some(K::Bench)),
            (r#"{"id":"q0","model":"m","response":"t","t":1}"#, Some(K::Bench)),
            ("{\n \"sampling\": {},\n \"tri\": {}\n}", Some(K::Summary)),
            (r#"{"a":{"b":{"value":1,"source":"bundle default"}}}"#, Some(K::EffectiveConfig)),
            ("loading\n[trtmc] KV cache rows=64 (bundle max=64)\n", Some(K::Log)),
            ("hello\n", None),
            ("{}", None),
            ("", None),
        ] {
            assert_eq!(kind(text.as_bytes()), wanted, "{text}");
        }
        assert_eq!(kind(&bundle(b"TRTFB\0\x01\0", &[])), Some(K::Bundle));
    }

    #[test]
    fn a_keep_dump_is_known_small_and_large() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k.json");
        let rows: Vec<u32> = (0..120_000).collect();
        for count in [4_u32, 120_000] {
            let rows = rows[..count as usize].to_vec();
            let dump = KeepDump {
                cache_length_before: count,
                keep_count: count,
                cache_positions: rows.clone(),
                cache_positions_per_head: vec![rows.clone()],
                new_positions_by_head: vec![rows.clone()],
                keep_indices_by_head: vec![rows],
                ..crate::trtmc::example_dump()
            };
            dump.write(&path).unwrap();
            assert_eq!(guess(&path).unwrap(), Some(ArtifactKind::KeepDump));
        }
    }

    #[test]
    fn folders_are_runs_or_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(guess(dir.path()).unwrap(), None);
    }
}
