//! Writes a report into a directory, each file by a temporary file and a rename.

use std::fs;
use std::path::{Path, PathBuf};

use crate::charts::figures;
use crate::error::ReportError;
use crate::model::Report;
use crate::{html, json};

/// Writes `report.json`, `report.html` and each figure as `.svg` and `.png` into `dir`, which is created where it is
/// missing. A reader never sees half a file. Gives the paths written, the page first.
///
/// # Errors
/// [`ReportError::Io`] with the path; whatever the renderings report.
pub fn write_all(report: &Report, dir: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let figures = figures(report);
    let page = html::page_with(report, &figures)?;
    let mut files = vec![
        ("report.html".to_owned(), page.into_bytes()),
        ("report.json".to_owned(), json::to_bytes(report)?),
    ];
    for figure in &figures {
        files.push((format!("{}.svg", figure.name), figure.svg()?.into_bytes()));
        files.push((format!("{}.png", figure.name), figure.png()?));
    }
    fs::create_dir_all(dir)
        .map_err(|source| ReportError::Io { path: dir.to_path_buf(), source })?;
    files.into_iter().map(|(name, bytes)| write(dir, &name, &bytes)).collect()
}

fn write(dir: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf, ReportError> {
    let path = dir.join(name);
    let part = dir.join(format!(".{name}.tmp"));
    let done = fs::write(&part, bytes).and_then(|()| fs::rename(&part, &path));
    if let Err(source) = done {
        // What could not be finished is not left behind; the error told is the first one.
        let _ = fs::remove_file(&part);
        return Err(ReportError::Io { path, source });
    }
    Ok(path)
}
