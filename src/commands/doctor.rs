//! `doctor`: what this machine offers, and what is missing.

use std::fmt::Write as _;

use serde_json::json;

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
    let driver = nvidia_driver();
    let mut text = format!("lockstep {}\n", env!("CARGO_PKG_VERSION"));
    let _ = writeln!(text, "run schema   {schema}");
    let _ = writeln!(text, "cpu backend  yes: {cores} threads, kernels {cpu}");
    let _ = writeln!(
        text,
        "cuda backend no: this build has none{}",
        driver.as_deref().map_or_else(
            || ", and no NVIDIA driver is loaded".to_owned(),
            |v| format!(" (driver: {v})")
        )
    );
    let _ = writeln!(text, "reference    candle on the CPU: f32, f64, bf16 and f16 by rounding");
    let answer = json!({
        "version": env!("CARGO_PKG_VERSION"), "schema": schema, "cpu": {"threads": cores, "kernels": cpu},
        "cuda": {"backend": false, "driver": driver}, "reference": "candle-cpu",
    });
    console::answer(format, &text, &answer)?;
    Ok(Status::Parity)
}

/// First line of the loaded NVIDIA kernel module's version file.
fn nvidia_driver() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    text.lines().next().map(str::trim).map(str::to_owned)
}
