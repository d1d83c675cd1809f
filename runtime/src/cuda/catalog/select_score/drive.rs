//! Entries on the emulator, one after the other.

use crate::cuda::catalog::{Case, Entry};
use crate::cuda::gpu::Gpu;

/// Every cell of the entries on the emulator: within tolerance over several seeds, canaries alive, the same bits again, a planted mistake
/// out of tolerance, other sequences left alone, misuse refused before anything is launched.
pub(in crate::cuda::catalog) fn drive(entries: &[Entry]) {
    let gpu = match Gpu::emulated() {
        Ok(gpu) => gpu,
        Err(error) => {
            eprintln!("skipped: {error}");
            return;
        }
    };
    for entry in entries {
        for cell in entry.cells {
            let what = format!("{} {:?} {:?}", entry.name, cell.cache, cell.sizes);
            let mut case = (entry.open)(&gpu, cell).unwrap();
            let bound = (entry.tolerance)(cell).bound;
            let read = |case: &dyn Case| -> Vec<Vec<u8>> {
                case.outputs().iter().map(|out| gpu.read(out.bytes.view()).unwrap()).collect()
            };
            let fresh = |case: &dyn Case| {
                case.outputs().iter().for_each(|out| out.bytes.poison(&gpu).unwrap());
            };
            for seed in 1..3 {
                case.fill(&gpu, seed).unwrap();
                fresh(&*case);
                case.run(&gpu).unwrap();
                let error = case.error(&gpu).unwrap();
                assert!(error <= bound, "{what}: {error:.3e} of {bound:.3e}");
                let first = read(&*case);
                case.fill(&gpu, seed).unwrap();
                fresh(&*case);
                case.run(&gpu).unwrap();
                assert!(read(&*case) == first, "{what}: other bits");
            }
            let before = read(&*case);
            case.run_wrong(&gpu).unwrap();
            let error = case.error(&gpu).unwrap();
            assert!(error.is_nan() || error > bound, "{what}: a mistake shows as {error:.3e}");
            if let Some(same) = case.disturb(&gpu).unwrap() {
                case.run(&gpu).unwrap();
                let after = read(&*case);
                assert!(before != after, "{what}: the disturbance changes nothing");
                for ((before, after), ranges) in before.iter().zip(&after).zip(&same) {
                    for range in ranges {
                        assert_eq!(before[range.clone()], after[range.clone()], "{what}");
                    }
                }
                let error = case.error(&gpu).unwrap();
                assert!(error <= bound, "{what}, disturbed: {error:.3e}");
            }
            for out in case.outputs() {
                assert!(out.bytes.intact(&gpu).unwrap(), "{what}: {} overrun", out.name);
            }
            let launches = gpu.launches();
            let misuse = case.misuse(&gpu);
            assert!(!misuse.is_empty());
            for (how, result) in misuse {
                assert!(result.is_err(), "{what}: {how}");
            }
            assert_eq!(gpu.launches(), launches, "{what}: refused before anything is launched");
        }
    }
}
