//! What can go wrong between the host and a device.

use std::path::PathBuf;

/// A device, a kernel or a launch failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// A library that the backend loads at run time is not there.
    #[error("{library} was not found: {remedy}")]
    Missing {
        /// Library, with the file names tried.
        library: &'static str,
        /// How to get it.
        remedy: &'static str,
    },
    /// A call of the driver failed.
    #[error("{call} failed: {code}")]
    Driver {
        /// Function called.
        call: &'static str,
        /// Name of the error.
        code: String,
    },
    /// cuBLAS failed.
    #[error("cuBLAS {call} failed: {code}")]
    Blas {
        /// Function called.
        call: &'static str,
        /// Name of the error.
        code: String,
    },
    /// A kernel file does not compile.
    #[error("kernel file {file} does not compile for {target}: {log}")]
    Compile {
        /// File below `runtime/kernels`.
        file: &'static str,
        /// Architecture or compiler.
        target: String,
        /// First lines of the compiler's log.
        log: String,
    },
    /// A kernel file has no such kernel.
    #[error("kernel file {file} has no kernel `{kernel}`")]
    NoKernel {
        /// File.
        file: &'static str,
        /// Kernel.
        kernel: String,
    },
    /// A launch does not fit the kernel or the device.
    #[error("kernel `{kernel}`: {what}")]
    Launch {
        /// Kernel.
        kernel: String,
        /// What does not fit.
        what: String,
    },
    /// A part of a buffer that lies outside it.
    #[error("elements {start}..{end} of a device buffer of {len}")]
    Range {
        /// First.
        start: usize,
        /// One past the last.
        end: usize,
        /// Length.
        len: usize,
    },
    /// The device has not enough memory.
    #[error("{wanted} bytes of device memory are wanted, {free} are free: {remedy}")]
    Memory {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes free.
        free: usize,
        /// What to do.
        remedy: &'static str,
    },
    /// A shape that no kernel takes.
    #[error("{what}")]
    Unsupported {
        /// What, and what would be taken.
        what: String,
    },
    /// A file of the compile cache could not be used.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
}

impl GpuError {
    pub(crate) fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported { what: what.into() }
    }
}
