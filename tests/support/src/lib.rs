//! Shared by the tests of every crate: where data lie, and small readers for them.
//!
//! The kit calls no model mathematics of the runtime or of the reference.

pub mod fuzz;
pub mod gguf;

use std::path::{Path, PathBuf};

/// The workspace root: the nearest folder with a `Cargo.lock` above the crate whose tests run. Asked at run time, since a build may be
/// shared between checkouts.
#[must_use]
pub fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let root = here.ancestors().find(|dir| dir.join("Cargo.lock").exists());
    root.map_or_else(|| here.clone(), Path::to_path_buf)
}

/// `tests/data`.
#[must_use]
pub fn data() -> PathBuf {
    root().join("tests").join("data")
}

/// The golden folder: `LOCKSTEP_GOLDEN` if set, else the part that the repository carries.
#[must_use]
pub fn golden() -> PathBuf {
    std::env::var_os("LOCKSTEP_GOLDEN").map_or_else(|| data().join("golden"), PathBuf::from)
}

/// The embedded ledger model's directory.
#[must_use]
pub fn ledger() -> PathBuf {
    data().join("models").join("ledger")
}

/// One ledger problem.
#[derive(Debug, Clone)]
pub struct Task {
    /// `ledger_05`.
    pub sample_id: String,
    /// Expected answer.
    pub answer: String,
    /// Prompt text.
    pub prompt: String,
    /// Prompt ids.
    pub prompt_ids: Vec<u32>,
    /// Completion ids of the exact run, `<eos>` included.
    pub completion_ids: Vec<u32>,
}

/// The ledger problem with this id.
///
/// # Panics
/// Where the golden folder has no such problem: a test without its data must fail.
#[must_use]
pub fn task(sample_id: &str) -> Task {
    let path = golden().join("traces").join("tasks.jsonl");
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find(|row| row["sample_id"] == sample_id)
        .map_or_else(|| panic!("{}: no task {sample_id}", path.display()), |row| from_json(&row))
}

fn from_json(row: &serde_json::Value) -> Task {
    let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let ids = |key: &str| {
        let list = row[key].as_array().cloned().unwrap_or_default();
        list.iter()
            .filter_map(serde_json::Value::as_u64)
            .filter_map(|id| u32::try_from(id).ok())
            .collect()
    };
    Task {
        sample_id: text("sample_id"),
        answer: text("answer"),
        prompt: text("prompt"),
        prompt_ids: ids("prompt_ids"),
        completion_ids: ids("gold_completion_ids"),
    }
}

/// Text of a gzip file.
///
/// # Panics
/// Where the file is missing or no gzip.
#[must_use]
pub fn gunzip(path: &Path) -> String {
    use std::io::Read as _;
    let file =
        std::fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    flate2::read::GzDecoder::new(file)
        .read_to_string(&mut text)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text
}

/// The quantised SmolLM2-135M-Instruct that `scripts/fetch-smollm2` fetches: in `LOCKSTEP_MODELS`, else `~/.cache/lockstep/models`. `None`,
/// with a word on stderr, where it is not there: a test without it is skipped, and says so.
///
/// # Panics
/// Where it is not there and `LOCKSTEP_REQUIRE_MODELS` is set.
#[must_use]
#[expect(clippy::print_stderr, reason = "a skipped test says why")]
pub fn smollm2() -> Option<PathBuf> {
    let folder = std::env::var_os("LOCKSTEP_MODELS").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME")?;
        Some(Path::new(&home).join(".cache").join("lockstep").join("models"))
    })?;
    let path = folder.join("SmolLM2-135M-Instruct.Q4_1.gguf");
    if path.is_file() {
        return Some(path);
    }
    assert!(
        std::env::var_os("LOCKSTEP_REQUIRE_MODELS").is_none(),
        "{} is not there; run scripts/fetch-smollm2",
        path.display()
    );
    eprintln!("skipped: {} is not there; run scripts/fetch-smollm2", path.display());
    None
}
