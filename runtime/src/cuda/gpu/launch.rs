//! The one place where kernels are launched: arguments against the declared parameters, the grid against the device.

use std::ffi::c_void;

use super::driver::{Handle, Shape};
use super::source::{Parameter, Program};
use super::{Gpu, GpuError};

/// A kernel of a loaded module.
#[derive(Debug, Clone)]
pub struct Kernel {
    pub(super) name: String,
    pub(super) function: Handle,
    pub(super) parameters: Vec<Parameter>,
}

/// One argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arg {
    bits: u64,
    kind: Parameter,
}

impl Arg {
    pub(super) const fn pointer(address: u64) -> Self {
        Self { bits: address, kind: Parameter::Pointer }
    }

    /// No address: the kernel leaves that output out.
    #[must_use]
    pub const fn none() -> Self {
        Self::pointer(0)
    }

    /// 32-bit count.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] for a count that does not fit.
    pub fn count(value: usize) -> Result<Self, GpuError> {
        u32::try_from(value)
            .map(Self::from)
            .map_err(|_| GpuError::unsupported(format!("a size of {value} does not fit 32 bits")))
    }

    /// 64-bit word.
    #[must_use]
    pub const fn long(value: u64) -> Self {
        Self { bits: value, kind: Parameter::Long }
    }
}

impl From<u32> for Arg {
    fn from(value: u32) -> Self {
        Self { bits: u64::from(value), kind: Parameter::Word }
    }
}

impl From<f32> for Arg {
    fn from(value: f32) -> Self {
        Self::from(value.to_bits())
    }
}

/// Grid of a launch with one-dimensional blocks.
#[must_use]
pub const fn grid(blocks: [u32; 3], threads: u32) -> Shape {
    Shape { grid: blocks, block: [threads, 1, 1], shared: 0, overlap: false }
}

impl Shape {
    /// With dynamic shared memory.
    #[must_use]
    pub const fn shared(mut self, bytes: u32) -> Self {
        self.shared = bytes;
        self
    }

    /// May overlap the launch before it; its kernel calls `grid_wait`.
    #[must_use]
    pub const fn overlapping(mut self) -> Self {
        self.overlap = true;
        self
    }
}

/// Number of blocks that cover `items`.
///
/// # Errors
/// [`GpuError::Unsupported`] for more than a grid holds.
pub fn blocks(items: usize, per_block: usize) -> Result<u32, GpuError> {
    u32::try_from(items.div_ceil(per_block.max(1)))
        .map_err(|_| GpuError::unsupported(format!("{items} items are more than a grid holds")))
}

impl Gpu {
    /// A kernel of a program, compiled and loaded on first use.
    ///
    /// # Errors
    /// [`GpuError::NoKernel`], [`GpuError::Compile`] and driver errors.
    pub fn kernel(&self, program: Program, name: &str) -> Result<Kernel, GpuError> {
        let parameters = program.parameters(name)?;
        let module = {
            let mut modules = self.modules.borrow_mut();
            match modules.get(&program) {
                Some(module) => *module,
                None => {
                    let module = self.driver.load(&program)?;
                    modules.insert(program, module);
                    module
                }
            }
        };
        let function = self.driver.function(module, &program, name)?;
        Ok(Kernel { name: name.to_owned(), function, parameters })
    }

    /// Queues a launch.
    ///
    /// # Errors
    /// [`GpuError::Launch`] where arguments or grid do not fit, and driver errors.
    pub fn launch(&self, kernel: &Kernel, shape: Shape, arguments: &[Arg]) -> Result<(), GpuError> {
        self.check(kernel, &shape, arguments)
            .map_err(|what| GpuError::Launch { kernel: kernel.name.clone(), what })?;
        let mut values: Vec<u64> = arguments.iter().map(|argument| argument.bits).collect();
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        self.launches.set(self.launches.get() + 1);
        self.driver.launch(kernel.function, &shape, &mut pointers)
    }

    fn check(&self, kernel: &Kernel, shape: &Shape, arguments: &[Arg]) -> Result<(), String> {
        if arguments.len() != kernel.parameters.len() {
            let wanted = kernel.parameters.len();
            return Err(format!("takes {wanted} arguments, {} are given", arguments.len()));
        }
        for (index, (argument, declared)) in arguments.iter().zip(&kernel.parameters).enumerate() {
            if argument.kind != *declared {
                return Err(format!(
                    "argument {index} is {declared:?}, {:?} is given",
                    argument.kind
                ));
            }
        }
        let threads: u64 = shape.block.iter().map(|&size| u64::from(size)).product();
        if threads == 0 || threads > 1024 {
            return Err(format!("{threads} threads a block; 1 to 1024 are possible"));
        }
        let [x, y, z] = shape.grid;
        if x == 0 || y == 0 || z == 0 || x > i32::MAX as u32 || y > 65_535 || z > 65_535 {
            return Err(format!("a grid of {x} x {y} x {z} blocks"));
        }
        let limit = self.info().shared_limit;
        if shape.shared > limit {
            return Err(format!(
                "{} bytes of shared memory a block; the device has {limit}",
                shape.shared
            ));
        }
        Ok(())
    }
}
