//! Looking at cited artifacts: their hashes, their own verdicts, what they cover.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cover::{self, Coverage};
use super::record::{ArtifactKind, Cited};
use crate::TraceError;
use crate::hash::{sha256_file, sha256_hex};
use crate::store::{RunReader, is_run};

/// Longest answer that is read into memory.
const MOST_ANSWER: u64 = 256 << 20;
/// Most files of a folder, and deepest nesting.
const MOST_FILES: usize = 200_000;
const DEEPEST: usize = 24;

/// A cited artifact as it stands now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Found {
    /// sha256; `None` where nothing is there.
    pub sha256: Option<String>,
    /// Its own verdict.
    pub verdict: Option<String>,
    /// Its own verdict says that it proves nothing (`void`, `incomparable`, `no_evidence`, ...).
    pub proves_nothing: bool,
    /// Names of its parts that are void.
    pub voids: Vec<String>,
    /// What it covers, as far as it says so.
    pub covers: Coverage,
    /// Why it could not be looked into.
    pub problem: Option<String>,
}

/// Cites what lies at `path` in a ledger that lies in the folder `base`.
///
/// # Errors
/// [`TraceError::Io`] where nothing can be read there.
pub fn cite(base: &Path, path: &Path) -> Result<Cited, TraceError> {
    let (sha256, kind, answer) = fingerprint(path)?;
    let verdict = answer.as_ref().and_then(cover::verdict);
    Ok(Cited { path: relative(base, path), sha256, kind, verdict })
}

/// Looks at a cited artifact. Never fails: what cannot be read is said in `problem`.
#[must_use]
pub fn look(base: &Path, cited: &Cited) -> Found {
    let path = base.join(&cited.path);
    if !path.exists() {
        return Found::default();
    }
    match open(&path) {
        Ok(found) => found,
        Err(error) => Found { problem: Some(error.to_string()), ..Found::default() },
    }
}

fn open(path: &Path) -> Result<Found, TraceError> {
    let (sha256, _, answer) = fingerprint(path)?;
    let mut found = Found { sha256: Some(sha256), ..Found::default() };
    if let Some(answer) = &answer {
        found.verdict = cover::verdict(answer);
        found.proves_nothing = found.verdict.as_deref().is_some_and(cover::proves_nothing);
        cover::voids(answer, 0, &mut found.voids);
        found.covers.scan(answer);
    }
    if is_run(path) {
        match RunReader::open(path).and_then(|run| Coverage::of_run(&run)) {
            Ok(covers) => found.covers = covers,
            Err(error) => found.problem = Some(error.to_string()),
        }
    }
    Ok(found)
}

/// Hash and kind of an artifact, and its content where it is JSON.
fn fingerprint(path: &Path) -> Result<(String, ArtifactKind, Option<Value>), TraceError> {
    if path.is_dir() {
        return Ok((folder_hash(path)?, ArtifactKind::Folder, None));
    }
    let io = |source| TraceError::Io { path: path.to_owned(), source };
    if fs::metadata(path).map_err(io)?.len() > MOST_ANSWER {
        return Ok((sha256_file(path)?, ArtifactKind::File, None));
    }
    let bytes = fs::read(path).map_err(io)?;
    let answer = json(&bytes);
    let kind = if answer.is_some() { ArtifactKind::Answer } else { ArtifactKind::File };
    Ok((sha256_hex(&bytes), kind, answer))
}

/// One document, or a list of the documents of JSON Lines; `None` where it is neither.
fn json(bytes: &[u8]) -> Option<Value> {
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace())?;
    if !matches!(first, b'{' | b'[') {
        return None;
    }
    let stream = serde_json::Deserializer::from_slice(bytes).into_iter::<Value>();
    let mut documents = stream.collect::<Result<Vec<_>, _>>().ok()?;
    if documents.len() == 1 { documents.pop() } else { Some(Value::Array(documents)) }
}

fn folder_hash(dir: &Path) -> Result<String, TraceError> {
    let mut files = Vec::new();
    collect(dir, String::new(), 0, &mut files)?;
    files.sort();
    let mut lines = String::new();
    for (name, path) in files {
        lines.extend([sha256_file(&path)?.as_str(), "  ", &name, "\n"]);
    }
    Ok(sha256_hex(lines.as_bytes()))
}

fn collect(
    dir: &Path,
    prefix: String,
    depth: usize,
    files: &mut Vec<(String, PathBuf)>,
) -> Result<(), TraceError> {
    let io = |source| TraceError::Io { path: dir.to_owned(), source };
    for entry in fs::read_dir(dir).map_err(io)? {
        let entry = entry.map_err(io)?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let path = entry.path();
        if files.len() >= MOST_FILES || depth > DEEPEST {
            return Err(TraceError::Malformed {
                path: dir.to_owned(),
                what: format!(
                    "more than {MOST_FILES} files or {DEEPEST} folders deep; cite a part of it"
                ),
            });
        }
        if path.is_dir() {
            collect(&path, format!("{name}/"), depth + 1, files)?;
        } else {
            files.push((name, path));
        }
    }
    Ok(())
}

/// `path` seen from `base`, with `/` and `..`.
fn relative(base: &Path, path: &Path) -> String {
    let here = if base.as_os_str().is_empty() { Path::new(".") } else { base };
    let (Ok(here), Ok(there)) = (fs::canonicalize(here), fs::canonicalize(path)) else {
        return path.to_string_lossy().into_owned();
    };
    let names = |path: &Path| -> Vec<String> {
        path.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect()
    };
    let (here, there) = (names(&here), names(&there));
    let common = here.iter().zip(&there).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n("..", here.len() - common);
    let down = there.iter().skip(common).map(String::as_str);
    let parts: Vec<&str> = up.chain(down).collect();
    if parts.is_empty() { ".".to_owned() } else { parts.join("/") }
}
