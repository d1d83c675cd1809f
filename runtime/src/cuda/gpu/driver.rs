//! What a device must do. Two stand behind it: an NVIDIA GPU, and the emulator that runs the same kernels as C++ on the host.

use std::ffi::c_void;

use super::GpuError;
use super::source::Program;

/// Identity of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name, e.g. `NVIDIA H200`.
    pub name: String,
    /// Architecture, e.g. `sm_90`.
    pub arch: String,
    /// Multiprocessors.
    pub sm_count: u32,
    /// Largest dynamic shared memory of a block, bytes.
    pub shared_limit: u32,
    /// Bytes of device memory.
    pub memory: u64,
    /// CUDA version of the driver, e.g. `13.0`.
    pub driver: String,
    /// Version of NVRTC, or of the C++ compiler of the emulator.
    pub compiler: String,
    /// An emulation and no GPU.
    pub emulated: bool,
}

/// Grid of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, bytes.
    pub shared: u32,
    /// The launch may start before the one before it ends; its kernel waits (`grid_wait`) before it touches that one's results.
    pub overlap: bool,
}

/// `c[rows, columns] = x[rows, inner] * w[columns, inner]^T`, row-major, f32 sums, rounded once to the element type.
#[derive(Debug, Clone, Copy)]
pub struct Gemm {
    /// Address of `x`.
    pub x: u64,
    /// Address of `w`.
    pub w: u64,
    /// Address of `c`.
    pub c: u64,
    /// Rows of `x` and `c`.
    pub rows: usize,
    /// Rows of `w`, columns of `c`.
    pub columns: usize,
    /// Elements summed over.
    pub inner: usize,
    /// Elements from one row of `c` to the next.
    pub stride: usize,
    /// Element type of all three.
    pub dtype: lockstep_traces::DType,
}

/// Equal pieces of device memory at equal distances, which lie one after the other once copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Address of the first.
    pub from: u64,
    /// Bytes of a piece.
    pub width: usize,
    /// Pieces.
    pub height: usize,
    /// Bytes from one piece to the next.
    pub pitch: usize,
}

/// A module, kernel, graph or event of a driver.
pub(super) type Handle = u64;

/// Every address is one that `alloc` gave; calls run in order on one stream unless they say otherwise.
pub trait Driver {
    /// Identity.
    fn info(&self) -> &DeviceInfo;
    /// Device memory, contents undefined.
    fn alloc(&self, bytes: usize) -> Result<u64, GpuError>;
    /// Gives memory back; waits for what uses it.
    fn free(&self, address: u64);
    /// Host memory that copies may run from and to while the host goes on.
    fn alloc_pinned(&self, bytes: usize) -> Result<*mut u8, GpuError>;
    /// Gives pinned memory back.
    fn free_pinned(&self, address: *mut u8, bytes: usize);
    /// Host to device. `from` stays unchanged until the next [`Driver::synchronize`].
    fn write(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), GpuError>;
    /// Device to host; there after the next [`Driver::synchronize`].
    fn read(&self, from: u64, to: *mut u8, bytes: usize) -> Result<(), GpuError>;
    /// Device to device.
    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), GpuError>;
    /// Sets every byte.
    fn fill(&self, to: u64, byte: u8, bytes: usize) -> Result<(), GpuError>;
    /// Device to pinned memory on a second stream, after everything queued so far; what is queued later runs beside it.
    fn read_beside(&self, block: &Block, to: *mut u8) -> Result<(), GpuError>;
    /// The host waits for the second stream.
    fn wait_beside(&self) -> Result<(), GpuError>;
    /// The first stream waits for what the second one has queued.
    fn join_beside(&self) -> Result<(), GpuError>;
    /// The host waits for the first stream.
    fn synchronize(&self) -> Result<(), GpuError>;
    /// Compiled program, from the cache where it lies there.
    fn load(&self, program: &Program) -> Result<Handle, GpuError>;
    /// Kernel of a module, allowed `shared_limit` bytes of dynamic shared memory.
    fn function(&self, module: Handle, program: &Program, kernel: &str)
    -> Result<Handle, GpuError>;
    /// Queues a launch; `arguments` point to values of the sizes that the kernel declares.
    fn launch(
        &self,
        function: Handle,
        shape: &Shape,
        arguments: &mut [*mut c_void],
    ) -> Result<(), GpuError>;
    /// Matrix product of the library.
    fn gemm(&self, gemm: &Gemm) -> Result<(), GpuError>;
    /// From here on calls are recorded and not run.
    fn begin_capture(&self) -> Result<(), GpuError>;
    /// What was recorded, ready to run.
    fn end_capture(&self) -> Result<Handle, GpuError>;
    /// Runs a recording.
    fn launch_graph(&self, graph: Handle) -> Result<(), GpuError>;
    /// Drops a recording.
    fn free_graph(&self, graph: Handle);
    /// A point in the first stream.
    fn mark(&self) -> Result<Handle, GpuError>;
    /// Milliseconds between two points that have passed; both are dropped.
    fn elapsed(&self, from: Handle, to: Handle) -> Result<f32, GpuError>;
}
