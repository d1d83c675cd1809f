//! Receipts: which sources an entry's full run on a GPU passed with. Committed, embedded, and void once a source changes.

use std::collections::BTreeMap;
use std::path::Path;

use lockstep_traces::hash::sha256_hex;
use serde::{Deserialize, Serialize};

use super::{CellReport, Entry};
use crate::cuda::gpu::{DeviceInfo, compile_options};

/// Receipts by entry, for one architecture: a file of `runtime/kernels/receipts`.
pub type Receipts = BTreeMap<String, Receipt>;

/// Files that are embedded, by architecture.
const SHIPPED: &[(&str, &str)] = &[("sm_90", include_str!("../../../kernels/receipts/sm_90.json"))];

/// What decides every entry's result besides its own files. The sources of a run are files below `runtime`.
const FRAMEWORK: &[(&str, &str)] = &[
    ("kernels/common.cuh", include_str!("../../../kernels/common.cuh")),
    ("src/cuda/catalog/guard.rs", include_str!("guard.rs")),
    ("src/cuda/catalog/run.rs", include_str!("run.rs")),
    ("src/cuda/testing.rs", include_str!("../testing.rs")),
];

/// A full run that passed on a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// Entry.
    pub entry: String,
    /// Architecture, e.g. `sm_90`.
    pub arch: String,
    /// Device name.
    pub device: String,
    /// CUDA version of the driver.
    pub driver: String,
    /// Version of NVRTC.
    pub nvrtc: String,
    /// SHA-256 of each source, by path below `runtime`.
    pub sources: BTreeMap<String, String>,
    /// Options of the kernel compiler.
    pub options: Vec<String>,
    /// Cells run: all of the entry's.
    pub cells: usize,
    /// Checks passed.
    pub checks: usize,
    /// Figures by element types (`bf16`, or `bf16/f32` with a cache of another type).
    pub groups: BTreeMap<String, Figures>,
}

/// Worst cell of a group: the one closest to its bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Largest deviation.
    pub error: f64,
    /// Its bound.
    pub bound: f64,
}

/// What is known of an entry on an architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// These very sources passed.
    Works,
    /// Nothing is known, and why.
    Unknown(String),
}

/// Architectures with receipts.
pub fn archs() -> impl Iterator<Item = &'static str> {
    SHIPPED.iter().map(|(arch, _)| *arch)
}

/// The receipts that this build carries for an architecture; none is no error.
///
/// # Errors
/// A file that is not what this build writes.
pub fn shipped(arch: &str) -> Result<Receipts, String> {
    SHIPPED.iter().find(|(name, _)| *name == arch).map_or_else(
        || Ok(Receipts::new()),
        |(_, text)| read(text).map_err(|error| format!("receipts of {arch}: {error}")),
    )
}

/// Receipts of a file.
///
/// # Errors
/// Text of another form.
pub fn read(text: &str) -> Result<Receipts, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

impl Entry {
    /// Every file that decides the entry's result, with its text, by path below `runtime`.
    #[must_use]
    pub fn files(&self) -> BTreeMap<String, &'static str> {
        let kernel = (format!("kernels/{}", self.file.name), self.file.text);
        let all = FRAMEWORK.iter().chain(self.sources);
        all.map(|&(path, text)| (path.to_owned(), text)).chain([kernel]).collect()
    }

    /// Status on `arch` by these receipts.
    #[must_use]
    pub fn status(&self, arch: &str, receipts: &Receipts) -> Status {
        match self.stale(arch, receipts) {
            Some(why) => Status::Unknown(why),
            None => Status::Works,
        }
    }

    fn stale(&self, arch: &str, receipts: &Receipts) -> Option<String> {
        let Some(receipt) = receipts.get(self.name) else {
            return Some("no receipt".to_owned());
        };
        if receipt.entry != self.name || receipt.arch != arch {
            return Some(format!("the receipt is of {} on {}", receipt.entry, receipt.arch));
        }
        let now = hashes(self);
        let changed = now.iter().find(|(path, hash)| receipt.sources.get(*path) != Some(hash));
        if let Some((path, _)) = changed {
            return Some(format!("{path} changed since"));
        }
        if let Some(path) = receipt.sources.keys().find(|path| !now.contains_key(*path)) {
            return Some(format!("{path} no longer belongs to it"));
        }
        if receipt.options != compile_options() {
            return Some("compiled with other options since".to_owned());
        }
        let all = self.cells.len();
        (receipt.cells != all).then(|| format!("{} of {all} cells were run", receipt.cells))
    }
}

fn hashes(entry: &Entry) -> BTreeMap<String, String> {
    entry.files().into_iter().map(|(path, text)| (path, sha256_hex(text.as_bytes()))).collect()
}

impl Receipt {
    /// The receipt of a run.
    ///
    /// # Errors
    /// What keeps the run from earning one: an emulation, a cell that was left out, a check that failed.
    pub fn of(device: &DeviceInfo, entry: &Entry, cells: &[CellReport]) -> Result<Self, String> {
        if device.emulated {
            return Err("receipts are made on a GPU".to_owned());
        }
        if cells.len() != entry.cells.len() || cells.is_empty() {
            return Err(format!("{} of {} cells were run", cells.len(), entry.cells.len()));
        }
        if let Some(cell) = cells.iter().find(|cell| !cell.passed()) {
            return Err(format!("cell {:?} failed", cell.sizes));
        }
        Ok(Self {
            entry: entry.name.to_owned(),
            arch: device.arch.clone(),
            device: device.name.clone(),
            driver: device.driver.clone(),
            nvrtc: device.compiler.clone(),
            sources: hashes(entry),
            options: compile_options(),
            cells: cells.len(),
            checks: cells.iter().map(|cell| cell.checks.len()).sum(),
            groups: groups(cells),
        })
    }
}

fn groups(cells: &[CellReport]) -> BTreeMap<String, Figures> {
    let mut worst: BTreeMap<String, &CellReport> = BTreeMap::new();
    for cell in cells {
        let name = if cell.elem == cell.cache {
            cell.elem.to_owned()
        } else {
            format!("{}/{}", cell.elem, cell.cache)
        };
        let held = worst.entry(name).or_insert(cell);
        if cell.worse(held) {
            *held = cell;
        }
    }
    let figures = |cell: &CellReport| Figures { error: cell.error, bound: cell.bound };
    worst.into_iter().map(|(name, cell)| (name, figures(cell))).collect()
}

/// Puts new receipts into `folder/<arch>.json`: `made` replaces, `failed` entries lose theirs, entries that the catalog no longer has go.
///
/// # Errors
/// File errors, and a file of another form.
pub fn write(
    folder: &Path,
    arch: &str,
    made: Vec<Receipt>,
    failed: &[&str],
) -> Result<usize, String> {
    let path = folder.join(format!("{arch}.json"));
    let say = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let mut receipts = match std::fs::read_to_string(&path) {
        Ok(text) => read(&text).map_err(|error| say(&error))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Receipts::new(),
        Err(error) => return Err(say(&error)),
    };
    receipts.extend(made.into_iter().map(|receipt| (receipt.entry.clone(), receipt)));
    let names: Vec<&str> = super::entries().iter().map(|entry| entry.name).collect();
    receipts.retain(|name, _| names.contains(&name.as_str()) && !failed.contains(&name.as_str()));
    let mut text = serde_json::to_string_pretty(&receipts).map_err(|error| say(&error))?;
    text.push('\n');
    std::fs::create_dir_all(folder).map_err(|error| say(&error))?;
    std::fs::write(&path, text).map_err(|error| say(&error))?;
    Ok(receipts.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::catalog::{Check, entries};

    fn device(arch: &str, emulated: bool) -> DeviceInfo {
        DeviceInfo {
            name: "a GPU".to_owned(),
            arch: arch.to_owned(),
            sm_count: 1,
            shared_limit: 0,
            memory: 0,
            driver: "13.0".to_owned(),
            compiler: "13.0".to_owned(),
            emulated,
        }
    }

    fn passed(entry: &Entry) -> Vec<CellReport> {
        let report = |cell: &crate::cuda::catalog::Cell| CellReport {
            elem: cell.elem.name(),
            cache: cell.cache.name(),
            sizes: cell.sizes.to_vec(),
            checks: BTreeMap::from([(Check::Device, None), (Check::Reference, None)]),
            error: 0.25,
            bound: 1.0,
            control: None,
            replays: 4,
            misuses: 1,
        };
        entry.cells.iter().map(report).collect()
    }

    fn first() -> &'static Entry {
        entries()[0]
    }

    fn receipts() -> Receipts {
        let entry = first();
        let receipt = Receipt::of(&device("sm_90", false), entry, &passed(entry)).unwrap();
        Receipts::from([(entry.name.to_owned(), receipt)])
    }

    fn why(receipts: &Receipts, arch: &str) -> String {
        match first().status(arch, receipts) {
            Status::Unknown(why) => why,
            Status::Works => panic!("works"),
        }
    }

    #[test]
    fn a_receipt_holds_until_a_source_changes_and_for_its_own_architecture() {
        let fresh = receipts();
        assert_eq!(first().status("sm_90", &fresh), Status::Works);
        assert_eq!(read(&serde_json::to_string(&fresh).unwrap()).unwrap(), fresh);
        assert_eq!(why(&Receipts::new(), "sm_90"), "no receipt");
        assert!(why(&fresh, "sm_100").contains("on sm_90"));
        for path in first().files().into_keys() {
            let mut stale = fresh.clone();
            let receipt = stale.get_mut(first().name).unwrap();
            receipt.sources.insert(path.clone(), sha256_hex(b"another byte"));
            assert_eq!(why(&stale, "sm_90"), format!("{path} changed since"));
        }
        let spoil = |change: fn(&mut Receipt)| {
            let mut stale = fresh.clone();
            change(stale.get_mut(first().name).unwrap());
            why(&stale, "sm_90")
        };
        assert!(spoil(|receipt| receipt.options[0] = "-O0".to_owned()).contains("options"));
        assert!(spoil(|receipt| receipt.cells -= 1).contains("cells"));
        assert!(spoil(|receipt| receipt.entry = "another".to_owned()).contains("another"));
        let more = |receipt: &mut Receipt| {
            receipt.sources.insert("gone.rs".to_owned(), String::new());
        };
        assert!(spoil(more).contains("gone.rs"));
    }

    #[test]
    fn one_changed_byte_of_a_source_makes_an_entry_unknown() {
        let fresh = receipts();
        let text: &'static str = Box::leak(format!("{} ", first().file.text).into_boxed_str());
        let file = crate::cuda::gpu::KernelFile { text, ..first().file };
        let changed = Entry { file, ..*first() };
        let status = changed.status("sm_90", &fresh);
        let wanted = format!("kernels/{} changed since", first().file.name);
        assert_eq!(status, Status::Unknown(wanted));
    }

    #[test]
    fn only_a_full_pass_on_a_gpu_earns_a_receipt() {
        let (entry, gpu) = (first(), device("sm_90", false));
        let whole = passed(entry);
        assert!(Receipt::of(&device("emulated", true), entry, &whole).is_err());
        assert!(Receipt::of(&gpu, entry, &whole[1..]).is_err());
        let mut failed = whole.clone();
        failed[0].checks.insert(Check::Rerun, Some("differs".to_owned()));
        assert!(Receipt::of(&gpu, entry, &failed).is_err());
        let mut dead = whole;
        dead[0].checks.remove(&Check::Device);
        assert!(Receipt::of(&gpu, entry, &dead).is_err());
    }

    #[test]
    fn a_failed_entry_loses_the_receipt_that_it_had() {
        let folder = tempfile::tempdir().unwrap();
        let made: Vec<Receipt> = receipts().into_values().collect();
        let mut gone = made[0].clone();
        gone.entry = "no_such_entry".to_owned();
        assert_eq!(write(folder.path(), "sm_90", vec![made[0].clone(), gone], &[]), Ok(1));
        let text = std::fs::read_to_string(folder.path().join("sm_90.json")).unwrap();
        assert_eq!(read(&text).unwrap(), receipts());
        assert_eq!(write(folder.path(), "sm_90", Vec::new(), &[first().name]), Ok(0));
    }

    #[test]
    fn embedded_receipts_are_of_entries_and_of_their_own_architecture() {
        let names: Vec<&str> = entries().iter().map(|entry| entry.name).collect();
        for arch in archs() {
            for (name, receipt) in shipped(arch).unwrap() {
                assert!(names.contains(&name.as_str()), "{name}");
                assert_eq!((receipt.entry, receipt.arch), (name, arch.to_owned()));
            }
        }
        assert_eq!(shipped("sm_1").unwrap(), Receipts::new());
    }

    #[test]
    fn every_entry_has_a_fresh_receipt_for_sm_90() {
        let receipts = shipped("sm_90").unwrap();
        for entry in entries() {
            assert_eq!(entry.status("sm_90", &receipts), Status::Works, "{}", entry.name);
        }
    }
}
