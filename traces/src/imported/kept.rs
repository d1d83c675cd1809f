//! The source of an imported run, kept beside its tables.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::IMPORTED;
use crate::hash::sha256_file;
use crate::store::fail::{io, malformed};
use crate::{Manifest, TraceError};

const NAME: &str = "trace.source_kept";
const KEPT_SHA: &str = "trace.source_kept_sha256";
const SHA: &str = "trace.source_sha256";
const ROWS: &str = "source.jsonl.gz";
const DOCUMENT: &str = "source.json";

/// Whether, and how, a source is kept in its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Lines, packed; a packed file as it is.
    Rows,
    /// A document as it is.
    Document,
    /// Not at all: the manifest carries what it says.
    Nothing,
}

/// Puts the sha256 of the source into a manifest.
pub(crate) fn name(source: &Path, manifest: &mut Manifest) -> Result<(), TraceError> {
    manifest.set(SHA, sha256_file(source)?, IMPORTED);
    Ok(())
}

/// Copies `source` into the run `out` and says so in its manifest.
///
/// # Errors
/// [`TraceError::Io`].
pub(crate) fn keep(
    source: &Path,
    out: &Path,
    how: Keep,
    manifest: &mut Manifest,
) -> Result<(), TraceError> {
    let name = match how {
        Keep::Rows => ROWS,
        Keep::Document => DOCUMENT,
        Keep::Nothing => return Ok(()),
    };
    let path = out.join(name);
    let mut front = [0_u8; 2];
    let packed = File::open(source).map_err(io(source))?.read(&mut front).map_err(io(source))? == 2
        && front == [0x1f, 0x8b];
    if how == Keep::Rows && !packed {
        let mut from = File::open(source).map_err(io(source))?;
        let to = File::create(&path).map_err(io(&path))?;
        let mut to = GzEncoder::new(to, Compression::default());
        std::io::copy(&mut from, &mut to).map_err(io(&path))?;
        to.finish().and_then(|mut file| file.flush()).map_err(io(&path))?;
    } else {
        std::fs::copy(source, &path).map_err(io(&path))?;
    }
    manifest.set(NAME, name, IMPORTED);
    manifest.set(KEPT_SHA, sha256_file(&path)?, IMPORTED);
    Ok(())
}

/// The kept source of the run in `dir`, after its hash was held against the manifest's; `None` where none is kept.
///
/// # Errors
/// [`TraceError::Io`]; [`TraceError::Malformed`] for a kept source with another hash, and for a manifest that names another file.
pub fn kept(dir: &Path, manifest: &Manifest) -> Result<Option<PathBuf>, TraceError> {
    let text = |key: &str| manifest.get(key).and_then(serde_json::Value::as_str);
    let Some(name) = text(NAME) else { return Ok(None) };
    if ![ROWS, DOCUMENT].contains(&name) {
        return Err(malformed(
            dir,
            format!("manifest.json: {NAME} is `{name}`, which no importer writes"),
        ));
    }
    let path = dir.join(name);
    let found = sha256_file(&path)?;
    if text(KEPT_SHA) != Some(found.as_str()) {
        return Err(malformed(
            &path,
            format!("its sha256 is {found}, not that of the manifest: import the source again"),
        ));
    }
    Ok(Some(path))
}
