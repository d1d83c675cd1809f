//! A device: memory, programs, launches, graphs. Knows nothing of models.

mod cache;
mod driver;
mod emulated;
mod error;
mod graph;
mod launch;
mod memory;
mod nvidia;
mod source;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

pub use driver::{DeviceInfo, Driver, Gemm, Shape};
pub use error::GpuError;
pub use graph::Graph;
pub use launch::{Arg, Kernel, blocks, grid};
pub use memory::{Buffer, Pinned, View};
pub use nvidia::{Libraries, libraries};
pub use source::{Build, KernelFile, Parameter, Program};

use driver::Handle;

/// A device with one queue of work and a second one for copies beside it.
#[derive(Clone)]
pub struct Gpu {
    driver: Rc<dyn Driver>,
    modules: Rc<RefCell<BTreeMap<Program, Handle>>>,
    launches: Rc<Cell<u64>>,
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu").field("device", self.info()).finish_non_exhaustive()
    }
}

impl Gpu {
    /// CUDA device `ordinal`.
    ///
    /// # Errors
    /// [`GpuError::Missing`] without a driver or NVRTC; driver errors.
    pub fn open(ordinal: usize) -> Result<Self, GpuError> {
        Ok(Self::with(Rc::new(nvidia::Nvidia::open(ordinal)?)))
    }

    /// The emulator: kernels compiled as C++ by the machine's compiler (`CXX`, else `g++`).
    ///
    /// # Errors
    /// [`GpuError::Missing`] without a compiler.
    pub fn emulated() -> Result<Self, GpuError> {
        Ok(Self::with(Rc::new(emulated::Emulated::open()?)))
    }

    fn with(driver: Rc<dyn Driver>) -> Self {
        Self { driver, modules: Rc::default(), launches: Rc::default() }
    }

    /// Identity.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        self.driver.info()
    }

    /// Launches queued so far (graph replays not counted).
    #[must_use]
    pub fn launches(&self) -> u64 {
        self.launches.get()
    }

    /// Waits for the queue.
    ///
    /// # Errors
    /// Driver errors, those of earlier launches among them.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        self.driver.synchronize()
    }

    /// Waits for the copies beside the queue.
    ///
    /// # Errors
    /// As [`Gpu::synchronize`].
    pub fn wait_beside(&self) -> Result<(), GpuError> {
        self.driver.wait_beside()
    }

    /// What is queued from here on runs after the copies queued beside.
    ///
    /// # Errors
    /// As [`Gpu::synchronize`].
    pub fn join_beside(&self) -> Result<(), GpuError> {
        self.driver.join_beside()
    }

    /// Matrix product, queued.
    ///
    /// # Errors
    /// cuBLAS errors.
    pub fn gemm(&self, gemm: &Gemm) -> Result<(), GpuError> {
        self.driver.gemm(gemm)
    }

    /// Seconds that `work` takes on the device.
    ///
    /// # Errors
    /// Those of `work` and the driver's.
    pub fn timed(&self, work: impl FnOnce() -> Result<(), GpuError>) -> Result<f64, GpuError> {
        let start = self.driver.mark()?;
        work()?;
        let end = self.driver.mark()?;
        self.driver.synchronize()?;
        Ok(f64::from(self.driver.elapsed(start, end)?) / 1e3)
    }
}

/// Options of the kernel compiler, as they are recorded; `-D` options come besides.
#[must_use]
pub fn compile_options() -> Vec<String> {
    nvidia::OPTIONS.iter().map(|option| (*option).to_owned()).collect()
}

/// Folder of compiled programs; `None` where neither the environment nor the user's home says one.
#[must_use]
pub fn cache_folder() -> Option<std::path::PathBuf> {
    cache::folder()
}

#[cfg(test)]
mod tests;
