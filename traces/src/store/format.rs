//! Names and versions: what writer and reader of a run directory must agree on.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::fail::{io, malformed};
use crate::manifest::{SCHEMA_MAJOR, SCHEMA_MINOR, Status};
use crate::{Manifest, TraceError};

/// A manifest larger than this is none.
const MANIFEST_LIMIT: u64 = 64 << 20;

/// The three tables of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Steps,
    Events,
    Samples,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Steps, Self::Events, Self::Samples];

    const fn stem(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::Events => "events",
            Self::Samples => "samples",
        }
    }

    /// The stream beside a run that is being written.
    pub(crate) fn stream(self, dir: &Path) -> PathBuf {
        dir.join(format!("{}.arrows", self.stem()))
    }

    /// Name of the table of a finished run.
    pub(crate) fn table_name(self) -> String {
        format!("{}.parquet", self.stem())
    }

    /// The table of a finished run.
    pub(crate) fn table(self, dir: &Path) -> PathBuf {
        dir.join(self.table_name())
    }
}

/// `manifest.json` of `dir`.
pub(crate) fn manifest_path(dir: &Path) -> PathBuf {
    dir.join("manifest.json")
}

/// Writes a file under another name and renames it when it is whole: readers see the old file or the new one, and a
/// mapped file is never cut under its reader. Whoever must survive a power cut syncs in `write`.
pub(crate) fn replace_file<T>(
    path: &Path,
    write: impl FnOnce(&mut File) -> Result<T, TraceError>,
) -> Result<T, TraceError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut builder = tempfile::Builder::new();
    builder.prefix(".writing-");
    #[cfg(unix)]
    let mode = {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::Permissions::from_mode(0o666)
    };
    #[cfg(unix)]
    builder.permissions(mode);
    let mut temporary =
        builder.tempfile_in(parent.unwrap_or_else(|| Path::new("."))).map_err(io(path))?;
    let written = write(temporary.as_file_mut())?;
    temporary.persist(path).map_err(|error| io(path)(error.error))?;
    Ok(written)
}

/// Writes `manifest.json`.
pub(crate) fn write_manifest(dir: &Path, manifest: &Manifest) -> Result<(), TraceError> {
    let path = manifest_path(dir);
    let mut text = serde_json::to_vec_pretty(manifest).map_err(|source| TraceError::Json {
        path: path.clone(),
        line: source.line(),
        source,
    })?;
    text.push(b'\n');
    replace_file(&path, |file| {
        file.write_all(&text).map_err(io(&path))?;
        match manifest.status {
            Status::Complete => file.sync_all().map_err(io(&path)),
            Status::Incomplete => Ok(()),
        }
    })
}

/// Reads `manifest.json`; the version is judged before anything else, so that a file of another version is
/// told apart from a damaged one.
pub(crate) fn read_manifest(dir: &Path) -> Result<Manifest, TraceError> {
    let path = manifest_path(dir);
    let file = File::open(&path).map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound && dir.is_dir() {
            malformed(dir, "no manifest.json: this is no run directory, or its writer was stopped before the run began")
        } else {
            io(&path)(error)
        }
    })?;
    let mut text = Vec::new();
    file.take(MANIFEST_LIMIT + 1).read_to_end(&mut text).map_err(io(&path))?;
    if text.len() as u64 > MANIFEST_LIMIT {
        return Err(malformed(&path, "larger than 64 MiB: not a manifest"));
    }
    let json = |source: serde_json::Error| TraceError::Json {
        path: path.clone(),
        line: source.line(),
        source,
    };
    let value: Value = serde_json::from_slice(&text).map_err(json)?;
    check_version(&path, value.get("schema").and_then(Value::as_str))?;
    serde_json::from_slice(&text).map_err(json)
}

fn check_version(path: &Path, schema: Option<&str>) -> Result<(), TraceError> {
    let parsed = schema
        .and_then(|text| text.split_once('.'))
        .and_then(|(major, minor)| Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?)));
    let Some((major, minor)) = parsed else {
        let found = schema.map_or_else(|| "is missing".to_owned(), |text| format!("is `{text}`"));
        return Err(malformed(path, format!("`schema` {found}, expected \"major.minor\"")));
    };
    let remedy = if major < SCHEMA_MAJOR {
        "record the run again, or read it with the release that wrote it"
    } else if major > SCHEMA_MAJOR || minor > SCHEMA_MINOR {
        "read it with the release that wrote it or a later one"
    } else {
        return Ok(());
    };
    Err(TraceError::Version {
        path: path.to_path_buf(),
        found: format!("{major}.{minor}"),
        supported: format!("{SCHEMA_MAJOR}.0 to {SCHEMA_MAJOR}.{SCHEMA_MINOR}"),
        remedy: remedy.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Producer;

    fn with_schema(schema: &str) -> (tempfile::TempDir, Result<Manifest, TraceError>) {
        let dir = tempfile::tempdir().unwrap();
        let mut manifest = Manifest::new(Producer::default(), "cpu");
        manifest.schema = schema.to_owned();
        write_manifest(dir.path(), &manifest).unwrap();
        let read = read_manifest(dir.path());
        (dir, read)
    }

    #[test]
    fn this_build_reads_its_own_version() {
        let (_dir, read) = with_schema(&format!("{SCHEMA_MAJOR}.{SCHEMA_MINOR}"));
        assert_eq!(read.unwrap().device, "cpu");
    }

    #[test]
    fn another_major_and_a_newer_minor_are_refused_with_a_remedy() {
        let newer_minor = format!("{SCHEMA_MAJOR}.{}", SCHEMA_MINOR + 1);
        let newer_major = format!("{}.0", SCHEMA_MAJOR + 1);
        let older_major = format!("{}.9", SCHEMA_MAJOR - 1);
        for (schema, word) in [
            (newer_minor, "later one"),
            (newer_major, "later one"),
            (older_major, "record the run again"),
        ] {
            let (_dir, read) = with_schema(&schema);
            match read.unwrap_err() {
                TraceError::Version { found, remedy, path, .. } => {
                    assert_eq!(found, schema);
                    assert!(remedy.contains(word), "{remedy}");
                    assert!(path.ends_with("manifest.json"));
                }
                other => panic!("{schema}: {other}"),
            }
        }
    }

    #[test]
    fn a_version_of_the_future_is_told_even_where_its_fields_are_unknown() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(manifest_path(dir.path()), r#"{"schema":"7.3","everything":"else"}"#)
            .unwrap();
        assert!(matches!(read_manifest(dir.path()), Err(TraceError::Version { .. })));
    }

    #[test]
    fn a_manifest_without_version_or_json_is_damaged_not_old() {
        let dir = tempfile::tempdir().unwrap();
        for (text, version) in [("{}", true), (r#"{"schema":"one"}"#, true), ("{", false)] {
            std::fs::write(manifest_path(dir.path()), text).unwrap();
            let error = read_manifest(dir.path()).unwrap_err();
            match error {
                TraceError::Malformed { what, .. } => assert!(version && what.contains("schema")),
                TraceError::Json { .. } => assert!(!version),
                other => panic!("{text}: {other}"),
            }
        }
    }

    #[test]
    fn a_folder_without_manifest_is_said_to_be_no_run() {
        let dir = tempfile::tempdir().unwrap();
        let error = read_manifest(dir.path()).unwrap_err().to_string();
        assert!(error.contains("no run directory"), "{error}");
    }
}
