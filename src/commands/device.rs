//! Where a run computes: what was asked for, what is there, what was taken.

use lockstep_runtime::cuda::gpu::{Gpu, GpuError, libraries};
use lockstep_runtime::cuda::model::DeviceOptions;
use lockstep_runtime::engine::{DeviceChoice, Engine};

use crate::cli::{DeviceArg, DeviceArgs};
use crate::console;
use crate::exit::usage;

/// The backend for `--device`. `auto` takes a GPU that can be opened and says what it took; `cuda` without one is an error.
///
/// # Errors
/// Usage: there is no such device, with what is missing.
pub(crate) fn choose(device: DeviceArg) -> anyhow::Result<DeviceChoice> {
    match device {
        DeviceArg::Cpu => Ok(DeviceChoice::Cpu),
        DeviceArg::Emulated => match Gpu::emulated() {
            Ok(_) => Ok(DeviceChoice::Emulated),
            Err(error) => Err(usage(format!("--device emulated: {error}"))),
        },
        DeviceArg::Cuda => match Gpu::open(0) {
            Ok(_) => Ok(DeviceChoice::Cuda(0)),
            Err(error) => Err(usage(format!("--device cuda: {}", or_use("cpu", &error)))),
        },
        DeviceArg::Auto => {
            let found = libraries();
            if !(found.driver && found.nvrtc && found.cublas) {
                return Ok(DeviceChoice::Cpu);
            }
            match Gpu::open(0) {
                Ok(gpu) => {
                    console::note(&format!("device: cuda ({})", gpu.info().name));
                    Ok(DeviceChoice::Cuda(0))
                }
                Err(error) => {
                    console::note(&format!("device: cpu ({error})"));
                    Ok(DeviceChoice::Cpu)
                }
            }
        }
    }
}

/// The error of a device that could not be opened, with the one to take where a library is missing.
pub(crate) fn or_use(other: &str, error: &GpuError) -> String {
    match error {
        GpuError::Missing { .. } => format!("{error}, or use --device {other}"),
        _ => error.to_string(),
    }
}

/// Choices of a run on a device, as they were asked for.
pub(crate) fn options(args: &DeviceArgs) -> DeviceOptions {
    let standard = DeviceOptions::default();
    DeviceOptions {
        deterministic: args.deterministic,
        graphs: !args.no_cuda_graph,
        batch_buckets: args.batch_buckets.clone().unwrap_or(standard.batch_buckets),
        row_buckets: args.row_buckets.clone().unwrap_or(standard.row_buckets),
        select: !args.host_selection,
        gather: !args.host_gather,
        prefill_rows: args.prefill_rows.unwrap_or(standard.prefill_rows),
        ..standard
    }
}

/// What a loaded model computes on, for answers.
pub(crate) fn name(engine: &Engine) -> String {
    engine.gpu().map_or_else(|| "cpu".to_owned(), |gpu| format!("cuda: {}", gpu.info().name))
}
