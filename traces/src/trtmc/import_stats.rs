//! A statistics file becomes a run that is a manifest and the statistics in the dense form.

use std::path::Path;

use crate::TraceError;
use crate::hash::sha256_file;
use crate::imported::{self, IMPORTED, Keep};
use crate::stats;

/// Layout's name.
pub const STATS: &str = "trtmc-stats";
/// The statistics beside the manifest.
const FILE: &str = "statistics.safetensors";

/// Makes the run `out` of calibration statistics (`.pt` or safetensors). Their values stand in `statistics.safetensors`; the manifest
/// has the file's hash, its axes and its metadata under `policy.stats.*`.
///
/// # Errors
/// As [`stats::read`], [`stats::write_safetensors`] and [`crate::store::RunWriter::create`].
pub fn import_stats(path: &Path, out: &Path) -> Result<Vec<String>, TraceError> {
    let read = stats::read(path)?;
    let mut manifest = imported::manifest(STATS, "calibration");
    manifest.model.stats_sha256 = Some(sha256_file(path)?);
    let every = read.layers.len() * read.heads.len();
    for (key, value) in [
        ("layers", read.layers.len()),
        ("heads", read.heads.len()),
        ("freqs", read.freqs),
        ("sampled_heads", read.sampled.len()),
    ] {
        manifest.set(&format!("policy.stats.{key}"), value, IMPORTED);
    }
    for (key, value) in &read.metadata {
        manifest.set(&format!("policy.stats.metadata.{key}"), value.clone(), IMPORTED);
    }
    if read.sampled.len() < every {
        manifest.remarks.push(format!("{} of {every} heads are sampled", read.sampled.len()));
    }
    imported::cannot(&mut manifest, "statistics name no run: there are no samples and no rows");
    if read.inv_freq.is_none() {
        imported::cannot(
            &mut manifest,
            "the file has no inverse frequencies: the rotary base is not in it",
        );
    }
    let remarks = imported::write(path, out, manifest, Vec::new(), Keep::Nothing, false)?;
    stats::write_safetensors(&read, &out.join(FILE))?;
    Ok(remarks)
}

/// True for a file of statistics; a file of weights is none.
#[must_use]
pub fn is_stats(path: &Path) -> bool {
    path.is_file() && stats::read(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::RunReader;

    #[test]
    fn statistics_are_a_manifest_and_equal_values() {
        let source = lockstep_testkit::data().join("calibration/calib_ledger_05_all.safetensors");
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("run");
        import_stats(&source, &out).unwrap();
        let run = RunReader::open(&out).unwrap();
        let read = stats::read(&source).unwrap();
        assert_eq!(stats::read(&out.join(FILE)).unwrap(), read);
        let manifest = run.manifest();
        assert_eq!(manifest.model.stats_sha256, Some(sha256_file(&source).unwrap()));
        assert_eq!(manifest.get("policy.stats.freqs").unwrap(), read.freqs);
        assert!(run.samples().unwrap().is_empty());
    }
}
