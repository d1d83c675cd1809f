//! The run that shows what an entry promises, cell by cell.
//!
//! Inputs and outputs of a case are allocations of their own, never parts of one pool: outputs are poisoned before each run, an output
//! that is left over is seen by its poison, and no input can be taken for one.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Serialize;

use super::{Case, Cell, Entry};
use crate::cuda::gpu::{DeviceInfo, Gpu, GpuError};

/// Seeds of the inputs.
pub const SEEDS: [u64; 3] = [1, 2, 3];

/// Replays of a recording, each on inputs other than those before it.
const REPLAYS: usize = 4;

/// Largest [`Cell::work`] that the emulator runs, and that `Scope::Quick` covers.
const SMALL: u64 = 1 << 22;

/// NaN bits in every float type.
const POISON: u8 = 0xff;
/// What outputs hold before the second run of the same inputs.
const OTHER_POISON: u8 = 0;

/// Which cells a run covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Every cell that the device can run.
    All,
    /// Small cells.
    Quick,
}

/// What is looked at in each cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// Buffers are allocated, kernels loaded, and no call of the device fails.
    Device,
    /// Every byte of every output is written, whatever it held before.
    Written,
    /// The bytes around each output stay as they are.
    Canaries,
    /// The deviation from the f64 reference stays within the tolerance.
    Reference,
    /// The same inputs give the same bits.
    Rerun,
    /// A recording replayed on rewritten inputs gives the bits of an eager call.
    Replay,
    /// A sequence does not see its neighbours.
    Isolation,
    /// A wrong call is out of tolerance.
    Control,
    /// Calls outside the contract are refused before anything runs.
    Misuse,
}

impl Check {
    /// Name as in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Written => "written",
            Self::Canaries => "canaries",
            Self::Reference => "reference",
            Self::Rerun => "rerun",
            Self::Replay => "replay",
            Self::Isolation => "isolation",
            Self::Control => "control",
            Self::Misuse => "misuse",
        }
    }
}

/// What a cell showed.
#[derive(Debug, Clone, Serialize)]
pub struct CellReport {
    /// Element type of activations and weights.
    pub elem: &'static str,
    /// Element type of the KV cache.
    pub cache: &'static str,
    /// Sizes, as [`Entry::sizes`] names them.
    pub sizes: Vec<usize>,
    /// Checks that were made: `None` passed, else what failed first.
    pub checks: BTreeMap<Check, Option<String>>,
    /// Largest deviation of all seeds. NaN is infinity here.
    pub error: f64,
    /// Tolerance.
    pub bound: f64,
    /// Deviation of the wrong call.
    pub control: Option<f64>,
    /// Replays compared.
    pub replays: usize,
    /// Calls outside the contract.
    pub misuses: usize,
}

impl CellReport {
    /// Did every check pass? A cell whose device failed has not passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.checks.contains_key(&Check::Device) && self.failures().next().is_none()
    }

    /// Closer to its bound than `other`, or beyond it.
    #[must_use]
    pub fn worse(&self, other: &Self) -> bool {
        let beyond = |cell: &Self| cell.error > cell.bound;
        match (beyond(self), beyond(other)) {
            // error / bound, without the division by a bound of zero.
            (true, true) | (false, false) => self.error * other.bound > other.error * self.bound,
            (here, _) => here,
        }
    }

    /// What failed.
    pub fn failures(&self) -> impl Iterator<Item = (Check, &str)> {
        self.checks.iter().filter_map(|(check, why)| Some((*check, why.as_deref()?)))
    }
}

/// Why a cell is not run, if so.
#[must_use]
pub fn skipped(device: &DeviceInfo, cell: &Cell, scope: Scope) -> Option<&'static str> {
    if cell.work() <= SMALL {
        None
    } else if scope == Scope::Quick {
        Some("large; --cells all runs it")
    } else if device.emulated {
        Some("too large for the emulator")
    } else {
        None
    }
}

/// Runs one cell.
#[must_use]
pub fn run(gpu: &Gpu, entry: &Entry, cell: &Cell, seeds: &[u64; 3]) -> CellReport {
    let report = CellReport {
        elem: cell.elem.name(),
        cache: cell.cache.name(),
        sizes: cell.sizes.to_vec(),
        checks: BTreeMap::new(),
        error: 0.0,
        bound: (entry.tolerance)(cell).bound,
        control: None,
        replays: 0,
        misuses: 0,
    };
    match (entry.open)(gpu, cell) {
        Ok(case) => Bench { gpu, case, seeds, report }.run(),
        Err(error) => {
            let checks = BTreeMap::from([(Check::Device, Some(format!("open: {error}")))]);
            CellReport { checks, ..report }
        }
    }
}

/// Bytes of each output after a run.
type Bits = Vec<Vec<u8>>;

/// A case on the bench.
struct Bench<'a> {
    gpu: &'a Gpu,
    case: Box<dyn Case>,
    seeds: &'a [u64; 3],
    report: CellReport,
}

impl Bench<'_> {
    fn run(mut self) -> CellReport {
        match self.all() {
            Ok(()) => self.pass(Check::Device),
            Err((step, error)) => self.fail(Check::Device, format!("{step}: {error}")),
        }
        self.report
    }

    fn all(&mut self) -> Result<(), (&'static str, GpuError)> {
        let wanted = self.seeds().map_err(|error| ("run", error))?;
        self.replay(&wanted).map_err(|error| ("replay", error))?;
        self.isolation(&wanted[0]).map_err(|error| ("isolation", error))?;
        self.control().map_err(|error| ("wrong call", error))?;
        self.misuse().map_err(|error| ("misuse", error))
    }

    /// Notes that a check was made; a failure that it already has stays.
    fn pass(&mut self, check: Check) {
        self.report.checks.entry(check).or_default();
    }

    fn fail(&mut self, check: Check, why: String) {
        self.report.checks.entry(check).or_default().get_or_insert(why);
    }

    fn poison(&self, byte: u8) -> Result<(), GpuError> {
        if self.case.updates_in_place() {
            return Ok(());
        }
        self.poison_all(byte)
    }

    fn poison_all(&self, byte: u8) -> Result<(), GpuError> {
        self.case.outputs().iter().try_for_each(|output| output.bytes.fill(self.gpu, byte))
    }

    /// Waits, reads the outputs and looks at the canaries.
    fn outputs(&mut self) -> Result<Bits, GpuError> {
        self.gpu.synchronize()?;
        let mut bits = Vec::new();
        let mut broken = None;
        for output in self.case.outputs() {
            let (bytes, intact) = output.bytes.snapshot(self.gpu)?;
            broken = broken.or_else(|| (!intact).then_some(output.name));
            bits.push(bytes);
        }
        if let Some(name) = broken {
            self.fail(Check::Canaries, format!("bytes around {name} were written"));
        }
        Ok(bits)
    }

    /// Fresh inputs, poisoned outputs, one call.
    fn once(&mut self, seed: u64, poison: u8) -> Result<Bits, GpuError> {
        self.case.fill(self.gpu, seed)?;
        self.poison(poison)?;
        self.case.run(self.gpu)?;
        self.outputs()
    }

    fn names(&self) -> Vec<&'static str> {
        self.case.outputs().iter().map(|output| output.name).collect()
    }

    /// Each seed twice: against the reference, then again on other poison. Gives the bits of each.
    fn seeds(&mut self) -> Result<Vec<Bits>, GpuError> {
        let mut wanted = Vec::new();
        for &seed in self.seeds {
            let bits = self.once(seed, POISON)?;
            let error = self.case.error(self.gpu)?;
            let within = error <= self.report.bound;
            let error = if error.is_nan() { f64::INFINITY } else { error };
            self.report.error = self.report.error.max(error);
            if !within {
                let bound = self.report.bound;
                self.fail(Check::Reference, format!("seed {seed}: {error:.3e}, bound {bound:.3e}"));
            }
            self.again(seed, &bits)?;
            wanted.push(bits);
        }
        self.pass(Check::Reference);
        self.pass(Check::Canaries);
        self.pass(Check::Rerun);
        if !self.case.updates_in_place() {
            self.pass(Check::Written);
        }
        Ok(wanted)
    }

    /// The second run of a seed. A byte that follows the poison was not written.
    fn again(&mut self, seed: u64, first: &Bits) -> Result<(), GpuError> {
        let second = self.once(seed, OTHER_POISON)?;
        if second == *first {
            return Ok(());
        }
        if self.case.updates_in_place() {
            self.fail(Check::Rerun, differing(&self.names(), first, &second, seed));
            return Ok(());
        }
        for (name, (first, second)) in self.names().into_iter().zip(first.iter().zip(&second)) {
            let left: Vec<usize> = (0..first.len())
                .filter(|&at| first[at] == POISON && second[at] == OTHER_POISON)
                .collect();
            let Some(from) = left.first() else { continue };
            let (left, len) = (left.len(), first.len());
            let why = if left == len {
                format!("{name} is not written")
            } else {
                format!("{name}: {left} of {len} bytes are not written, the first at {from}")
            };
            self.fail(Check::Written, why);
        }
        let third = self.once(seed, POISON)?;
        if third != *first {
            self.fail(Check::Rerun, differing(&self.names(), first, &third, seed));
        } else if !self.report.checks.contains_key(&Check::Written) {
            let why = format!("seed {seed}: outputs depend on what they held before the run");
            self.fail(Check::Written, why);
        }
        Ok(())
    }

    /// Recorded once, replayed on rewritten inputs.
    fn replay(&mut self, wanted: &[Bits]) -> Result<(), GpuError> {
        let fixed = self.case.by_argument();
        let recorded = if fixed { 0 } else { self.seeds.len() - 1 };
        self.case.fill(self.gpu, self.seeds[recorded])?;
        let graph = match self.gpu.record(|| self.case.run(self.gpu)) {
            Ok(graph) => graph,
            Err(error) => {
                self.fail(Check::Replay, format!("cannot be recorded: {error}"));
                return Ok(());
            }
        };
        for turn in 0..REPLAYS {
            let which = if fixed { recorded } else { turn % self.seeds.len() };
            let seed = self.seeds[which];
            self.case.fill(self.gpu, seed)?;
            self.poison(POISON)?;
            graph.launch()?;
            let bits = self.outputs()?;
            if bits != wanted[which] {
                let why = differing(&self.names(), &wanted[which], &bits, seed);
                self.fail(Check::Replay, format!("replay {}: {why}", turn + 1));
            }
            self.report.replays += 1;
        }
        self.pass(Check::Replay);
        Ok(())
    }

    fn isolation(&mut self, before: &Bits) -> Result<(), GpuError> {
        self.case.fill(self.gpu, self.seeds[0])?;
        let Some(kept) = self.case.disturb(self.gpu)? else { return Ok(()) };
        self.poison(POISON)?;
        self.case.run(self.gpu)?;
        let after = self.outputs()?;
        match isolated(&self.names(), &kept, before, &after) {
            Ok(()) => self.pass(Check::Isolation),
            Err(why) => self.fail(Check::Isolation, why),
        }
        Ok(())
    }

    /// A call with a planted mistake must be seen.
    fn control(&mut self) -> Result<(), GpuError> {
        self.case.fill(self.gpu, self.seeds[0])?;
        self.poison(POISON)?;
        self.case.run_wrong(self.gpu)?;
        let bits = self.outputs()?;
        let error = self.case.error(self.gpu)?;
        self.report.control = Some(error);
        let bound = self.report.bound;
        let empty =
            !self.case.updates_in_place() && bits.iter().flatten().all(|&byte| byte == POISON);
        if empty {
            self.fail(
                Check::Control,
                "the wrong call writes nothing, which shows nothing".to_owned(),
            );
        } else if error.is_nan() || error <= bound {
            self.fail(Check::Control, format!("the wrong call has {error:.3e}, bound {bound:.3e}"));
        }
        self.pass(Check::Control);
        Ok(())
    }

    fn misuse(&mut self) -> Result<(), GpuError> {
        self.case.fill(self.gpu, self.seeds[0])?;
        self.poison_all(POISON)?;
        let before = self.gpu.launches();
        let calls = self.case.misuse(self.gpu);
        let launched = self.gpu.launches() - before;
        self.report.misuses = calls.len();
        if calls.is_empty() {
            self.fail(Check::Misuse, "no call outside the contract is tried".to_owned());
        }
        if let Some((what, _)) = calls.iter().find(|(_, result)| result.is_ok()) {
            self.fail(Check::Misuse, format!("{what} is accepted"));
        }
        if launched > 0 {
            self.fail(Check::Misuse, format!("{launched} launches before the refusal"));
        }
        if self.outputs()?.iter().flatten().any(|&byte| byte != POISON) {
            self.fail(Check::Misuse, "a refused call writes an output".to_owned());
        }
        self.pass(Check::Misuse);
        Ok(())
    }
}

/// First place where outputs differ.
fn differing(names: &[&str], wanted: &Bits, found: &Bits, seed: u64) -> String {
    for (name, (wanted, found)) in names.iter().zip(wanted.iter().zip(found)) {
        let differ = |&at: &usize| wanted[at] != found[at];
        if let Some(at) = (0..wanted.len().min(found.len())).find(differ) {
            let count = (at..wanted.len().min(found.len())).filter(differ).count();
            return format!("seed {seed}: {count} bytes of {name} differ, the first at {at}");
        }
    }
    format!("seed {seed}: outputs of another length")
}

/// Bytes in `kept` must be the same, and some other byte must differ: else nothing was disturbed.
fn isolated(
    names: &[&str],
    kept: &[Vec<Range<usize>>],
    before: &Bits,
    after: &Bits,
) -> Result<(), String> {
    if kept.len() != names.len() {
        return Err(format!("ranges for {} of {} outputs", kept.len(), names.len()));
    }
    if kept.iter().flatten().all(Range::is_empty) {
        return Err("no range may not change, so nothing is shown".to_owned());
    }
    let mut changed = false;
    for ((name, ranges), (before, after)) in names.iter().zip(kept).zip(before.iter().zip(after)) {
        if let Some(range) = ranges.iter().find(|range| range.end > before.len()) {
            return Err(format!("{name} has no bytes {range:?}"));
        }
        for at in (0..before.len()).filter(|&at| before[at] != after[at]) {
            if ranges.iter().any(|range| range.contains(&at)) {
                return Err(format!("byte {at} of {name} changes with another sequence"));
            }
            changed = true;
        }
    }
    if changed { Ok(()) } else { Err("the disturbed sequence stays as it was".to_owned()) }
}
