use super::*;
use crate::cuda::ops::rope::{ObserveRows, RopeAppend};

fn holds(gpu: &Gpu, entry: &Entry, cell: &Cell) {
    let name = entry.name;
    let bound = (entry.tolerance)(cell).bound;
    let mut case = (entry.open)(gpu, cell).unwrap();
    let read = |case: &dyn Case| -> Vec<Vec<u8>> {
        let outputs = case.outputs();
        assert!(outputs.iter().all(|output| output.bytes.intact(gpu).unwrap()));
        outputs.iter().map(|output| gpu.read(output.bytes.view()).unwrap()).collect()
    };
    let prepare = |case: &dyn Case| {
        for output in case.outputs().iter().filter(|_| !case.updates_in_place()) {
            output.bytes.poison(gpu).unwrap();
        }
    };
    case.fill(gpu, 3).unwrap();
    prepare(case.as_ref());
    case.run(gpu).unwrap();
    let error = case.error(gpu).unwrap();
    assert!(error <= bound, "{name} {cell:?}: {error}");
    let first = read(case.as_ref());
    if let Some(kept) = case.disturb(gpu).unwrap() {
        prepare(case.as_ref());
        case.run(gpu).unwrap();
        assert!(case.error(gpu).unwrap() <= bound, "{name} {cell:?}");
        let second = read(case.as_ref());
        assert_eq!(kept.len(), second.len());
        for ((first, second), kept) in first.iter().zip(&second).zip(kept) {
            assert!(first != second, "{name} {cell:?}");
            for range in kept {
                assert!(first[range.clone()] == second[range], "{name} {cell:?}");
            }
        }
    }
    case.fill(gpu, 4).unwrap();
    case.run_wrong(gpu).unwrap();
    let wrong = case.error(gpu).unwrap();
    assert!(wrong > bound, "{name} {cell:?}: {wrong}");
    let launches = gpu.launches();
    for (what, result) in case.misuse(gpu) {
        assert!(result.is_err(), "{name} {cell:?}: {what} passed");
    }
    assert_eq!(gpu.launches(), launches, "{name} {cell:?}");
}

#[test]
fn rope_and_bias_hold_their_promise_on_the_emulator() {
    let Ok(gpu) = Gpu::emulated() else {
        eprintln!("skipped: no C++ compiler");
        return;
    };
    for entry in ENTRIES {
        for cell in entry.cells.iter().filter(|cell| cell.sizes[0] < 1000) {
            holds(&gpu, entry, cell);
        }
    }
}

#[test]
fn outputs_that_nobody_wants_change_nothing() {
    let Ok(gpu) = Gpu::emulated() else { return };
    let cell = cell(DType::Bf16, DType::Bf16, &[4, 0, 4, 2, 64, 4, 1]);
    let mut case = Append::<u16, u16>::new(&gpu, &cell).unwrap();
    case.fill(&gpu, 5).unwrap();
    case.run(&gpu).unwrap();
    let read = || {
        let buffers = [&case.rows_out[0], &case.caches[0], &case.caches[1]];
        buffers.map(|buffer| gpu.read(buffer.view()).unwrap())
    };
    let wanted = read();
    case.rows_out.iter().chain(&case.caches).for_each(|buffer| buffer.poison(&gpu).unwrap());
    let call = RopeAppend { observe: ObserveRows::NONE, ..case.call().unwrap() };
    case.rope.append(&gpu, &call).unwrap();
    assert!(read() == wanted);
    let observed = gpu.read(case.rows_out[1].view()).unwrap();
    assert!(observed.iter().all(|&byte| byte == 0xff));
}
