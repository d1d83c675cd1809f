use super::*;
use crate::cuda::gpu::View;

fn emulator() -> Option<Gpu> {
    Gpu::emulated().map_err(|error| eprintln!("skipped: {error}")).ok()
}

/// Small enough for the emulator.
fn is_small(cell: &Cell) -> bool {
    cell.sizes[0] * cell.sizes[5] * cell.sizes[2] * cell.sizes[4] < 30_000_000
}

fn poisoned(gpu: &Gpu, case: &dyn Case) {
    for output in case.outputs() {
        output.bytes.poison(gpu).unwrap();
    }
}

fn holds(gpu: &Gpu, entry: &Entry, cell: &Cell) {
    let name = entry.name;
    let mut case = (entry.open)(gpu, cell).unwrap();
    case.fill(gpu, 3).unwrap();
    poisoned(gpu, case.as_ref());
    case.run(gpu).unwrap();
    let error = case.error(gpu).unwrap();
    assert!(error <= 1.0, "{name} {cell:?}: {error}");
    let first = gpu.read(case.outputs()[0].bytes.view()).unwrap();
    assert!(case.outputs()[0].bytes.intact(gpu).unwrap(), "{name} {cell:?}");
    if let Some(kept) = case.disturb(gpu).unwrap() {
        poisoned(gpu, case.as_ref());
        case.run(gpu).unwrap();
        let second = gpu.read(case.outputs()[0].bytes.view()).unwrap();
        for range in kept.into_iter().flatten() {
            assert!(first[range.clone()] == second[range], "{name} {cell:?} sees ahead");
        }
        assert!(first != second && case.error(gpu).unwrap() <= 1.0, "{name} {cell:?}");
    }
    case.fill(gpu, 4).unwrap();
    poisoned(gpu, case.as_ref());
    case.run_wrong(gpu).unwrap();
    let wrong = case.error(gpu).unwrap();
    assert!(wrong > 1.0, "{name} {cell:?}: {wrong}");
    let launches = gpu.launches();
    for (what, result) in case.misuse(gpu) {
        assert!(result.is_err(), "{name} {cell:?}: {what} passed");
    }
    assert_eq!(gpu.launches(), launches, "{name} {cell:?}");
}

#[test]
fn attention_holds_its_promise_on_the_emulator() {
    let Some(gpu) = emulator() else { return };
    for entry in ENTRIES {
        for cell in entry.cells.iter().filter(|cell| is_small(cell)) {
            holds(&gpu, entry, cell);
        }
    }
}

/// Outputs of a chunk as it is and with mistakes planted.
fn run(gpu: &Gpu, case: &Attention<u16, u16>, next: bool, tile: bool) -> Vec<f32> {
    case.out.poison(gpu).unwrap();
    case.attention.queue(gpu, &Prefill { next, tile, ..case.call().unwrap() }).unwrap();
    decode(case.elem, &gpu.read(case.out.view()).unwrap())
}

#[test]
fn masks_are_right_at_every_boundary() {
    let Some(gpu) = emulator() else { return };
    for flash in [false, true] {
        for rows in [1, 2, 15, 16, 17, 33, 64, 65, 127, 128, 150] {
            for before in [0, 31, 33, 64, 95, 130] {
                let sizes: &'static [usize] =
                    vec![rows, before, 2, 1, 16, rows + before + 3].leak();
                let cell = cell(DType::Bf16, DType::Bf16, sizes);
                let mut case = Attention::<u16, u16>::new(&gpu, &cell, flash).unwrap();
                case.fill(&gpu, 5).unwrap();
                let _ = run(&gpu, &case, false, false);
                let error = case.error(&gpu).unwrap();
                assert!(error <= 1.0, "{flash} {sizes:?}: {error}");
            }
        }
    }
}

#[test]
fn a_planted_mask_shows_one_row_more_and_no_other() {
    let Some(gpu) = emulator() else { return };
    for flash in [false, true] {
        let cell = cell(DType::F16, DType::F16, &[70, 61, 4, 2, 32, 140]);
        let mut case = Attention::<u16, u16>::new(&gpu, &cell, flash).unwrap();
        case.fill(&gpu, 6).unwrap();
        let right = run(&gpu, &case, false, false);
        let wrong = run(&gpu, &case, true, false);
        // With the mistake row i is what a row of position i + 1 with the same q would be; the last row has no next one.
        let last = case.query(69, 0).start;
        assert!(right[last..].iter().zip(&wrong[last..]).all(|(a, b)| a.to_bits() == b.to_bits()));
        assert!((0..69).all(|row| {
            let range = case.query(row, 0).start..case.query(row + 1, 0).start;
            right[range.clone()].iter().zip(&wrong[range]).any(|(a, b)| a.to_bits() != b.to_bits())
        }));
        case.before += 1;
        let range = 0..case.query(69, 0).start;
        let compared = (0..69).flat_map(|row| (0..4).map(move |head| (row, head)));
        let error = compared
            .map(|(row, head)| {
                case.compare(row, head, &wrong[range.clone()][case.query(row, head)])
            })
            .fold(0.0, worse);
        assert!(error <= 1.0, "{flash}: {error}");
    }
}

#[test]
fn a_planted_tiling_gives_query_heads_to_other_kv_heads() {
    let Some(gpu) = emulator() else { return };
    for flash in [false, true] {
        let cell = cell(DType::Bf16, DType::Bf16, &[20, 10, 8, 2, 64, 32]);
        let mut case = Attention::<u16, u16>::new(&gpu, &cell, flash).unwrap();
        case.fill(&gpu, 7).unwrap();
        let (right, tiled) = (run(&gpu, &case, false, false), run(&gpu, &case, false, true));
        for row in 0..20 {
            for head in 0..8 {
                let range = case.query(row, head);
                let same = right[range.clone()] == tiled[range];
                assert_eq!(same, head / 4 == head % 2, "{flash} {row} {head}");
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_how_a_prompt_is_cut() {
    let Some(gpu) = emulator() else { return };
    for flash in [false, true] {
        let whole_cell = cell(DType::Bf16, DType::Bf16, &[140, 0, 2, 1, 32, 140]);
        let mut whole = Attention::<u16, u16>::new(&gpu, &whole_cell, flash).unwrap();
        whole.fill(&gpu, 8).unwrap();
        let wanted = run(&gpu, &whole, false, false);
        for cut in [1, 37, 64, 100, 139] {
            let sizes: &'static [usize] = vec![140 - cut, cut, 2, 1, 32, 140].leak();
            let tail_cell = cell(DType::Bf16, DType::Bf16, sizes);
            let mut tail = Attention::<u16, u16>::new(&gpu, &tail_cell, flash).unwrap();
            let start = whole.query(cut, 0).start;
            tail.host = Host {
                q: whole.host.q[start..].to_vec(),
                k: whole.host.k.clone(),
                v: whole.host.v.clone(),
            };
            tail.upload(&gpu).unwrap();
            let found = run(&gpu, &tail, false, false);
            assert!(found.iter().zip(&wanted[start..]).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
}

#[test]
fn addresses_between_pieces_are_refused_by_the_fast_kernel_only() {
    let Some(gpu) = emulator() else { return };
    let cell = cell(DType::Bf16, DType::Bf16, &[4, 0, 2, 1, 16, 4]);
    let shifted = gpu.alloc::<u16>(4 * 2 * 16 + 1).unwrap();
    for flash in [false, true] {
        let mut case = Attention::<u16, u16>::new(&gpu, &cell, flash).unwrap();
        case.fill(&gpu, 9).unwrap();
        let out: View<u16> = shifted.part(1..shifted.len()).unwrap();
        let result = case.attention.queue(&gpu, &Prefill { out, ..case.call().unwrap() });
        assert_eq!(result.is_err(), flash);
    }
}
