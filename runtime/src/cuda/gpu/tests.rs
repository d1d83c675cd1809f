//! The device layer on the emulator. Without a C++ compiler these tests say so and do nothing.

use half::bf16;
use lockstep_traces::DType;

use super::*;

/// The emulator, or a word of why not.
pub(crate) fn emulator() -> Option<Gpu> {
    match Gpu::emulated() {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

fn norm(gpu: &Gpu, dtype: DType) -> Kernel {
    gpu.kernel(Program { file: KernelFile::NORM, build: Build::of(dtype) }, "rms_norm").unwrap()
}

#[test]
fn a_norm_of_three_and_four_comes_out() {
    let Some(gpu) = emulator() else { return };
    // Mean of squares 12.5; with weights 1 and 2: 3 / sqrt(12.5) and 8 / sqrt(12.5).
    let x = gpu.upload(&[3.0_f32, 4.0]).unwrap();
    let weight = gpu.upload(&[1.0_f32, 2.0]).unwrap();
    let out = gpu.alloc::<f32>(2).unwrap();
    let arguments = [
        x.view().arg(2).unwrap(),
        weight.view().arg(2).unwrap(),
        out.view().arg(2).unwrap(),
        Arg::count(2).unwrap(),
        Arg::from(0.0_f32),
    ];
    gpu.launch(&norm(&gpu, DType::F32), grid([1, 1, 1], 256), &arguments).unwrap();
    let found = gpu.read(out.view()).unwrap();
    let root = 12.5_f32.sqrt();
    assert!((found[0] - 3.0 / root).abs() < 1e-6 && (found[1] - 8.0 / root).abs() < 1e-6);
}

#[test]
fn a_recording_reads_memory_anew_each_time() {
    let Some(gpu) = emulator() else { return };
    let kernel =
        gpu.kernel(Program { file: KernelFile::NORM, build: Build::of(DType::Bf16) }, "add_rows");
    let kernel = kernel.unwrap();
    let bits =
        |values: &[f32]| values.iter().map(|&v| bf16::from_f32(v).to_bits()).collect::<Vec<u16>>();
    let x = gpu.upload(&bits(&[1.0, 2.0])).unwrap();
    let y = gpu.upload(&bits(&[0.5, 0.25])).unwrap();
    let arguments = [x.view().arg(2).unwrap(), y.view().arg(2).unwrap(), Arg::long(2)];
    let graph = gpu.record(|| gpu.launch(&kernel, grid([1, 1, 1], 32), &arguments)).unwrap();
    assert_eq!(gpu.read(x.view()).unwrap(), bits(&[1.0, 2.0]));
    graph.launch().unwrap();
    graph.launch().unwrap();
    assert_eq!(gpu.read(x.view()).unwrap(), bits(&[2.0, 2.5]));
}

#[test]
fn launches_that_do_not_fit_are_refused() {
    let Some(gpu) = emulator() else { return };
    let kernel = norm(&gpu, DType::F32);
    let x = gpu.alloc::<f32>(4).unwrap();
    let fails = |shape: Shape, arguments: &[Arg]| match gpu.launch(&kernel, shape, arguments) {
        Err(GpuError::Launch { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    let pointer = x.view().arg(4).unwrap();
    let good = [pointer, pointer, pointer, Arg::from(4), Arg::from(1e-6_f32)];
    assert!(fails(grid([1, 1, 1], 32), &good[..4]).contains("5 arguments"));
    let swapped = [pointer, pointer, Arg::from(4), pointer, Arg::from(1e-6_f32)];
    assert!(fails(grid([1, 1, 1], 32), &swapped).contains("argument 2"));
    assert!(fails(grid([1, 1, 1], 2048), &good).contains("2048 threads"));
    assert!(fails(grid([0, 1, 1], 32), &good).contains("grid"));
    assert!(fails(grid([1, 1, 1], 32).shared(1 << 20), &good).contains("shared memory"));
    assert!(matches!(x.view().arg(5), Err(GpuError::Range { .. })));
    assert!(matches!(x.part(3..5), Err(GpuError::Range { .. })));
    let program = Program { file: KernelFile::NORM, build: Build::of(DType::F32) };
    assert!(matches!(gpu.kernel(program, "no_such"), Err(GpuError::NoKernel { .. })));
}

#[test]
fn a_product_is_row_times_row() {
    let Some(gpu) = emulator() else { return };
    let x = gpu.upload(&[1.0_f32, 2.0, 3.0, 4.0]).unwrap();
    let w = gpu.upload(&[1.0_f32, 0.0, 1.0, 1.0, 0.0, 2.0]).unwrap();
    let c = gpu.alloc::<f32>(6).unwrap();
    let (rows, columns, inner, stride) = (2, 3, 2, 3);
    let gemm = Gemm {
        x: x.view().address(),
        w: w.view().address(),
        c: c.view().address(),
        rows,
        columns,
        inner,
        stride,
        dtype: DType::F32,
    };
    gpu.gemm(&gemm).unwrap();
    assert_eq!(gpu.read(c.view()).unwrap(), [1.0, 3.0, 4.0, 3.0, 7.0, 8.0]);
}
