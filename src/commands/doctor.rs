//! `doctor`: what this machine offers, and what is missing.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use lockstep_runtime::cuda::catalog::{self, Status as Known, receipt};
use lockstep_runtime::cuda::gpu::{self, Gpu, GpuError};
use lockstep_runtime::cuda::ops::norm::{Norm, Rms};
use lockstep_traces::DType;
use serde::Serialize;
use serde_json::{Value, json};

use super::ops::device_json;
use crate::cli::Format;
use crate::console;
use crate::exit::Status;

pub(crate) fn execute(format: Format) -> anyhow::Result<Status> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cpu = lockstep_runtime::cpu::Isa::detect().name();
    let schema = format!(
        "{}.{}",
        lockstep_traces::manifest::SCHEMA_MAJOR,
        lockstep_traces::manifest::SCHEMA_MINOR
    );
    let cuda = Cuda::look();
    let emulator = Gpu::emulated().map(|gpu| gpu.info().compiler.clone());
    let mut text = format!("lockstep {}\n", env!("CARGO_PKG_VERSION"));
    let _ = writeln!(text, "run schema   {schema}");
    let _ = writeln!(text, "cpu backend  yes: {cores} threads, kernels {cpu}");
    cuda_text(&mut text, &cuda);
    let _ = match &emulator {
        Ok(compiler) => writeln!(text, "emulator     yes: {compiler}"),
        Err(error) => writeln!(text, "emulator     no: {error}"),
    };
    let _ = writeln!(text, "reference    candle on the CPU: f32, f64, bf16 and f16 by rounding");
    let emulator = json!({
        "there": emulator.is_ok(), "compiler": emulator.as_ref().ok(),
        "error": emulator.as_ref().err().map(ToString::to_string),
    });
    let answer = json!({
        "version": env!("CARGO_PKG_VERSION"), "schema": schema, "cpu": {"threads": cores, "kernels": cpu},
        "cuda": cuda, "emulator": emulator, "reference": "candle-cpu",
    });
    console::answer(format, &text, &answer)?;
    Ok(Status::Parity)
}

/// A library that is loaded at run time.
#[derive(Debug, Serialize)]
struct Library {
    found: bool,
    file: &'static str,
    /// How to get it.
    remedy: &'static str,
}

/// The state of the CUDA backend.
#[derive(Debug, Serialize)]
struct Cuda {
    /// A GPU is there, the kernels compile and a launch gives the right result.
    backend: bool,
    /// First line of the loaded kernel module's version file.
    driver: Option<String>,
    libraries: BTreeMap<&'static str, Library>,
    device: Value,
    /// Why no device could be opened.
    error: Option<String>,
    /// Kernel files that compile, of how many; `null` without a device.
    kernels: Option<Kernels>,
    /// Did one small launch give the right result? `null` without a device.
    launch: Option<Launch>,
    /// Compiled programs lie here.
    cache: Option<String>,
    /// Counts for the device's architecture, or for each that has receipts.
    receipts: BTreeMap<String, Receipts>,
}

#[derive(Debug, Serialize)]
struct Kernels {
    compiled: usize,
    files: usize,
    /// The first that does not compile.
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Launch {
    right: bool,
    error: Option<String>,
}

#[derive(Debug, Default, Serialize)]
struct Receipts {
    works: usize,
    unknown: usize,
    /// A file of receipts that cannot be read.
    error: Option<String>,
}

impl Cuda {
    fn look() -> Self {
        let opened = Gpu::open(0);
        let gpu = opened.as_ref().ok();
        let kernels = gpu.map(kernels);
        let launch = gpu.map(launch);
        let archs: Vec<String> = gpu.map_or_else(
            || receipt::archs().map(str::to_owned).collect(),
            |gpu| vec![gpu.info().arch.clone()],
        );
        let compiles = kernels.as_ref().is_some_and(|kernels| kernels.error.is_none());
        let right = launch.as_ref().is_some_and(|launch| launch.right);
        Self {
            backend: compiles && right,
            driver: nvidia_driver(),
            libraries: libraries(),
            device: gpu.map_or(Value::Null, |gpu| device_json(gpu.info())),
            error: opened.as_ref().err().map(ToString::to_string),
            kernels,
            launch,
            cache: gpu::cache_folder().map(|path| path.display().to_string()),
            receipts: archs.into_iter().map(|arch| (arch.clone(), receipts(&arch))).collect(),
        }
    }
}

fn libraries() -> BTreeMap<&'static str, Library> {
    let found = gpu::libraries();
    let toolkit = "install the CUDA toolkit or this library's own package, and put its folder in LD_LIBRARY_PATH";
    BTreeMap::from([
        (
            "driver",
            Library {
                found: found.driver,
                file: "libcuda.so",
                remedy: "install the NVIDIA driver of the GPU",
            },
        ),
        ("nvrtc", Library { found: found.nvrtc, file: "libnvrtc.so", remedy: toolkit }),
        ("cublas", Library { found: found.cublas, file: "libcublas.so", remedy: toolkit }),
    ])
}

/// Opens one cell of each kernel file: that compiles and loads it.
fn kernels(gpu: &Gpu) -> Kernels {
    let mut files = BTreeMap::new();
    for entry in catalog::entries() {
        let small = entry.cells.iter().min_by_key(|cell| cell.work());
        let Some(cell) = small.filter(|_| !files.contains_key(entry.file.name)) else { continue };
        let opened = (entry.open)(gpu, cell).map(drop);
        files.insert(entry.file.name, opened.err().map(|error| error.to_string()));
    }
    Kernels {
        compiled: files.values().filter(|error| error.is_none()).count(),
        files: files.len(),
        error: files.into_values().flatten().next(),
    }
}

/// The norm of (3, 4): mean of squares 12.5, weights 1 and 2.
fn launch(gpu: &Gpu) -> Launch {
    let run = || -> Result<Vec<f32>, GpuError> {
        let (x, weight) = (gpu.upload(&[3.0_f32, 4.0])?, gpu.upload(&[1.0_f32, 2.0])?);
        let out = gpu.zeros::<f32>(2)?;
        let rms = Rms { weight: weight.view(), eps: 0.0 };
        Norm::new(gpu, DType::F32)?.rms_norm(gpu, (x.view(), 1), rms, out.view())?;
        gpu.read(out.view())
    };
    let wanted = [3.0 / 12.5_f32.sqrt(), 8.0 / 12.5_f32.sqrt()];
    match run() {
        Ok(found) => {
            let right =
                found.iter().zip(wanted).all(|(found, wanted)| (found - wanted).abs() < 1e-6);
            let error =
                (!right).then(|| format!("the norm of 3 and 4 is {found:?}, not {wanted:?}"));
            Launch { right, error }
        }
        Err(error) => Launch { right: false, error: Some(error.to_string()) },
    }
}

fn receipts(arch: &str) -> Receipts {
    let known = match receipt::shipped(arch) {
        Ok(known) => known,
        Err(error) => return Receipts { error: Some(error), ..Receipts::default() },
    };
    let entries = catalog::entries();
    let works = |entry: &&&catalog::Entry| entry.status(arch, &known) == Known::Works;
    let works = entries.iter().filter(works).count();
    Receipts { works, unknown: entries.len() - works, error: None }
}

fn cuda_text(text: &mut String, cuda: &Cuda) {
    let name = |key: &str| cuda.device[key].as_str().unwrap_or_default();
    let _ = match &cuda.error {
        Some(error) => writeln!(text, "cuda backend no: {error}"),
        None => writeln!(
            text,
            "cuda backend {}: {}, {}, {} multiprocessors, {} MiB, CUDA {}, NVRTC {}",
            if cuda.backend { "yes" } else { "no" },
            name("name"),
            name("arch"),
            cuda.device["sm_count"],
            cuda.device["memory"].as_u64().unwrap_or_default() >> 20,
            name("cuda"),
            name("compiler"),
        ),
    };
    let _ = writeln!(text, "  module     {}", cuda.driver.as_deref().unwrap_or("not loaded"));
    for library in cuda.libraries.values() {
        let name = library.file.trim_end_matches(".so");
        let _ = if library.found {
            writeln!(text, "  {name:<10} found")
        } else {
            writeln!(text, "  {name:<10} not found: {}", library.remedy)
        };
    }
    if let Some(kernels) = &cuda.kernels {
        let (compiled, files) = (kernels.compiled, kernels.files);
        let error = kernels.error.as_deref().map_or_else(String::new, |why| format!(": {why}"));
        let _ = writeln!(text, "  kernels    {compiled} of {files} files compile{error}");
    }
    if let Some(launch) = &cuda.launch {
        let error = launch.error.as_deref().map_or_else(String::new, |why| format!(": {why}"));
        let _ =
            writeln!(text, "  launch     {}{error}", if launch.right { "right" } else { "wrong" });
    }
    let _ = writeln!(text, "  cache      {}", cuda.cache.as_deref().unwrap_or("none"));
    for (arch, counts) in &cuda.receipts {
        let _ = match &counts.error {
            Some(error) => writeln!(text, "  receipts   {error}"),
            None => writeln!(
                text,
                "  receipts   {arch}: {} entries work, {} unknown",
                counts.works, counts.unknown
            ),
        };
    }
}

/// First line of the loaded NVIDIA kernel module's version file.
fn nvidia_driver() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    text.lines().next().map(str::trim).map(str::to_owned)
}
