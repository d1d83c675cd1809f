//! Recorded launches that are run again as one.

use std::rc::Rc;

use super::driver::{Driver, Handle};
use super::{Gpu, GpuError};

/// A recording. Addresses and plain arguments are fixed in it; what changes from run to run lies in memory.
pub struct Graph {
    driver: Rc<dyn Driver>,
    handle: Handle,
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Graph({})", self.handle)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.driver.free_graph(self.handle);
    }
}

impl Graph {
    /// Queues the recording.
    ///
    /// # Errors
    /// Driver errors.
    pub fn launch(&self) -> Result<(), GpuError> {
        self.driver.launch_graph(self.handle)
    }
}

impl Gpu {
    /// Records what `work` queues; nothing of it runs now. Kernels must be loaded and memory allocated before.
    ///
    /// # Errors
    /// Those of `work` and the driver's; nothing is being recorded afterwards.
    pub fn record(&self, work: impl FnOnce() -> Result<(), GpuError>) -> Result<Graph, GpuError> {
        self.driver.begin_capture()?;
        let worked = work();
        let ended = self.driver.end_capture();
        worked?;
        Ok(Graph { driver: Rc::clone(&self.driver), handle: ended? })
    }
}
