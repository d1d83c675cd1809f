//! The run itself under test: a small operation with a planted fault each, found and named, and without one clean.

use std::cell::Cell as Counter;
use std::ops::Range;

use lockstep_traces::DType;

use super::{
    Case, Cell, CellReport, Check, Contract, Entry, Guarded, Output, SEEDS, Scope, Tolerance, run,
    skipped,
};
use crate::cuda::gpu::{
    Arg, Buffer, Build, Gpu, GpuError, Kernel, KernelFile, Program, View, grid,
};
use crate::cuda::testing::Values;

/// The emulator, or a word of why not.
fn emulator() -> Option<Gpu> {
    Gpu::emulated().inspect_err(|error| eprintln!("skipped: {error}")).ok()
}

/// Runs every cell of the entries that the emulator takes; each must pass.
pub(super) fn hold(entries: &[Entry]) {
    let Some(gpu) = emulator() else { return };
    for entry in entries {
        let mut ran = 0;
        for cell in entry.cells {
            if skipped(gpu.info(), cell, Scope::All).is_some() {
                continue;
            }
            ran += 1;
            let report = run(&gpu, entry, cell, &SEEDS);
            let failures: Vec<_> = report.failures().collect();
            assert!(report.passed(), "{} {:?} {failures:?}", entry.name, cell.sizes);
        }
        assert!(ran > 0, "{}: no cell is small enough", entry.name);
    }
}

/// What is wrong with the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The last bytes are not written.
    Partial,
    /// Nothing is written.
    Silent,
    /// A byte past the end is written.
    PastEnd,
    /// Each run gives another bit.
    Unsteady,
    /// The input is taken when the call is queued.
    Captured,
    /// A sequence gets a byte of the next one, in the reference too.
    Leaking,
    /// What the output held before goes into it.
    Stale,
    /// A call outside the contract is accepted.
    Accepting,
    /// It is refused after a launch.
    LateRefusal,
    /// It is refused after a write.
    WritingRefusal,
    /// No call outside the contract is tried.
    NoMisuse,
    /// The wrong call is right.
    RightControl,
    /// The wrong call does nothing.
    EmptyControl,
    /// Nothing is disturbed.
    Undisturbed,
    /// Everything may change.
    NothingKept,
    /// The result is off.
    Off,
    /// The result is no number.
    NotANumber,
    /// The device fails.
    Failing,
}

/// Two sequences of this many bytes: out = in.
const LEN: usize = 24;

struct Copy {
    fault: Fault,
    sum: Kernel,
    input: Buffer<u8>,
    out: Guarded<u8>,
    host: Vec<u8>,
    runs: Counter<u8>,
}

impl Copy {
    fn bytes(&self) -> View<u8> {
        self.out.view()
    }

    /// Adds the input's last four bytes to four of the output, as f32.
    fn add(&self, gpu: &Gpu, to: View<u8>) -> Result<(), GpuError> {
        let (x, y) = (to.cast::<f32>()?, self.input.part(2 * LEN - 4..2 * LEN)?.cast::<f32>()?);
        let arguments = [x.arg(1)?, y.arg(1)?, Arg::long(1)];
        gpu.launch(&self.sum, grid([1, 1, 1], 32), &arguments)
    }

    fn copy(&self, gpu: &Gpu, range: Range<usize>) -> Result<(), GpuError> {
        gpu.copy(self.input.part(range.clone())?, self.bytes().part(range)?)
    }
}

impl Case for Copy {
    fn fill(&mut self, gpu: &Gpu, seed: u64) -> Result<(), GpuError> {
        let mut values = Values::new(seed);
        self.host = (0..2 * LEN).map(|_| values.below(200) as u8 + 1).collect();
        gpu.write(self.input.view(), &self.host)
    }

    fn run(&self, gpu: &Gpu) -> Result<(), GpuError> {
        let last = 2 * LEN - 1;
        match self.fault {
            Fault::Silent => return Ok(()),
            Fault::Failing => return Err(GpuError::unsupported("planted")),
            Fault::Partial => return self.copy(gpu, 0..2 * LEN - 3),
            Fault::Stale => {
                self.copy(gpu, 0..2 * LEN - 4)?;
                return self.add(gpu, self.bytes().part(2 * LEN - 4..2 * LEN)?);
            }
            _ => self.copy(gpu, 0..2 * LEN)?,
        }
        match self.fault {
            Fault::PastEnd => gpu.fill(self.out.one_past().part(2 * LEN..2 * LEN + 1)?, 7),
            Fault::Unsteady => {
                self.runs.set(self.runs.get().wrapping_add(1));
                gpu.fill(self.bytes().part(0..1)?, self.runs.get())
            }
            Fault::Captured => gpu.fill(self.bytes().part(0..1)?, self.host[0]),
            Fault::Leaking => gpu.copy(self.input.part(last..last + 1)?, self.bytes().part(0..1)?),
            Fault::Off => gpu.fill(self.bytes().part(0..1)?, 255),
            _ => Ok(()),
        }
    }

    fn run_wrong(&self, gpu: &Gpu) -> Result<(), GpuError> {
        match self.fault {
            Fault::RightControl => self.run(gpu),
            Fault::EmptyControl => Ok(()),
            _ => gpu.fill(self.bytes(), 0),
        }
    }

    fn outputs(&self) -> Vec<Output<'_>> {
        vec![Output { name: "out", bytes: &self.out }]
    }

    fn error(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        if self.fault == Fault::NotANumber {
            return Ok(f64::NAN);
        }
        // Left to the other checks: this reference looks away from what the fault touches.
        let judged = match self.fault {
            Fault::Partial => 0..2 * LEN - 3,
            Fault::Unsteady | Fault::Leaking => 1..2 * LEN,
            Fault::Stale => 0..2 * LEN - 4,
            Fault::Silent => 0..0,
            _ => 0..2 * LEN,
        };
        let found = gpu.read(self.bytes())?;
        let far = |at: usize| f64::from(found[at].abs_diff(self.host[at]));
        let worst = judged.map(far).fold(0.0, f64::max);
        // The control has to be seen whatever is looked away from.
        Ok(if found.iter().all(|&byte| byte == 0) { 255.0 } else { worst })
    }

    fn disturb(&mut self, gpu: &Gpu) -> Result<Option<Vec<Vec<Range<usize>>>>, GpuError> {
        if self.fault != Fault::Undisturbed {
            self.host[LEN..].iter_mut().for_each(|byte| *byte = 255 - *byte);
            self.host[2 * LEN - 1] = 254;
        }
        gpu.write(self.input.view(), &self.host)?;
        let kept = if self.fault == Fault::NothingKept { 0 } else { LEN };
        Ok(Some(vec![vec![0..kept]]))
    }

    fn misuse(&self, gpu: &Gpu) -> Vec<(&'static str, Result<(), GpuError>)> {
        let refused = self.bytes().part(0..2 * LEN + 1).map(|_| ());
        match self.fault {
            Fault::NoMisuse => return Vec::new(),
            Fault::Accepting => return vec![("a long output", refused), ("no rows", Ok(()))],
            Fault::LateRefusal => {
                let aside = gpu.zeros::<u8>(4).unwrap();
                self.add(gpu, aside.view()).unwrap();
            }
            Fault::WritingRefusal => gpu.fill(self.bytes().part(0..1).unwrap(), 1).unwrap(),
            _ => {}
        }
        vec![("a long output", refused)]
    }
}

/// Every fault with the checks that name it.
const FAULTS: &[(Fault, &[Check])] = &[
    (Fault::None, &[]),
    (Fault::Partial, &[Check::Written]),
    (Fault::Silent, &[Check::Written, Check::Isolation]),
    (Fault::PastEnd, &[Check::Canaries]),
    (Fault::Unsteady, &[Check::Rerun, Check::Replay, Check::Isolation]),
    (Fault::Captured, &[Check::Replay]),
    (Fault::Leaking, &[Check::Isolation]),
    (Fault::Stale, &[Check::Written]),
    (Fault::Accepting, &[Check::Misuse]),
    (Fault::LateRefusal, &[Check::Misuse]),
    (Fault::WritingRefusal, &[Check::Misuse]),
    (Fault::NoMisuse, &[Check::Misuse]),
    (Fault::RightControl, &[Check::Control]),
    (Fault::EmptyControl, &[Check::Control]),
    (Fault::Undisturbed, &[Check::Isolation]),
    (Fault::NothingKept, &[Check::Isolation]),
    (Fault::Off, &[Check::Reference]),
    (Fault::NotANumber, &[Check::Reference, Check::Control]),
    (Fault::Failing, &[Check::Device]),
];

const ENTRY: Entry = Entry {
    name: "copy",
    file: KernelFile::NORM,
    sources: &[],
    sizes: &["fault"],
    contract: Contract { shapes: "", raises: &[], silent: &[], rounding: "" },
    reference: "in",
    tolerance: |_| Tolerance { bound: 4.0, why: "planted faults are larger" },
    cells: &[],
    open: |gpu, cell| {
        Ok(Box::new(Copy {
            fault: FAULTS[cell.sizes[0]].0,
            sum: add_rows(gpu)?,
            input: gpu.alloc(2 * LEN)?,
            out: Guarded::new(gpu, 2 * LEN)?,
            host: Vec::new(),
            runs: Counter::default(),
        }))
    },
};

fn add_rows(gpu: &Gpu) -> Result<Kernel, GpuError> {
    gpu.kernel(Program { file: KernelFile::NORM, build: Build::of(DType::F32) }, "add_rows")
}

fn report(gpu: &Gpu, index: usize) -> CellReport {
    let sizes: &'static [usize] = Box::leak(Box::new([index]));
    run(gpu, &ENTRY, &Cell { elem: DType::U8, cache: DType::U8, sizes }, &SEEDS)
}

#[test]
fn every_planted_fault_is_named_and_nothing_else() {
    let Some(gpu) = emulator() else { return };
    for (index, (fault, wanted)) in FAULTS.iter().enumerate() {
        let report = report(&gpu, index);
        let found: Vec<Check> = report.failures().map(|(check, _)| check).collect();
        assert_eq!(found, *wanted, "{fault:?}: {:?}", report.checks);
        assert_eq!(report.passed(), wanted.is_empty(), "{fault:?}");
    }
}

#[test]
fn a_clean_cell_covers_every_check_and_says_how_much() {
    let Some(gpu) = emulator() else { return };
    let report = report(&gpu, 0);
    assert_eq!(report.checks.len(), 9);
    assert_eq!((report.replays, report.misuses), (4, 1));
    assert!(report.error.abs() < 1e-9 && report.control > Some(4.0));
}

#[test]
fn a_failure_says_what_and_where() {
    let Some(gpu) = emulator() else { return };
    let why = |fault: Fault| {
        let index = FAULTS.iter().position(|(other, _)| *other == fault).unwrap();
        let report = report(&gpu, index);
        let (_, why) = report.failures().next().unwrap();
        why.to_owned()
    };
    assert_eq!(why(Fault::Silent), "out is not written");
    assert_eq!(why(Fault::Partial), "out: 3 of 48 bytes are not written, the first at 45");
    assert_eq!(why(Fault::PastEnd), "bytes around out were written");
    assert!(why(Fault::Stale).contains("depend on what they held before"));
    assert!(why(Fault::Captured).starts_with("replay 1: seed 1: 1 bytes of out differ"));
    assert_eq!(why(Fault::Leaking), "byte 0 of out changes with another sequence");
    assert_eq!(why(Fault::Accepting), "no rows is accepted");
    assert_eq!(why(Fault::LateRefusal), "1 launches before the refusal");
    assert_eq!(why(Fault::Failing), "run: planted");
}

#[test]
fn large_cells_are_left_to_a_gpu_and_to_a_full_run() {
    let Some(gpu) = emulator() else { return };
    let cell = |sizes| Cell { elem: DType::F32, cache: DType::F32, sizes };
    let (small, large) = (cell(&[10, 2, 128, 63, 0]), cell(&[4096, 4096, 1]));
    assert_eq!(skipped(gpu.info(), &small, Scope::All), None);
    assert_eq!(skipped(gpu.info(), &small, Scope::Quick), None);
    assert_eq!(skipped(gpu.info(), &large, Scope::All), Some("too large for the emulator"));
    let real = crate::cuda::gpu::DeviceInfo { emulated: false, ..gpu.info().clone() };
    assert_eq!(skipped(&real, &large, Scope::All), None);
    assert!(skipped(&real, &large, Scope::Quick).is_some());
}
