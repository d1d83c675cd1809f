//! The noise generator of a sequence, in device memory.

use crate::cuda::gpu::{Buffer, Gpu, GpuError, View};
use crate::select::NoiseGenerator;

/// MT19937 of one sequence. Its state goes on from one compaction to the next.
#[derive(Debug)]
pub struct DeviceNoise {
    state: Buffer<u32>,
}

impl DeviceNoise {
    /// Words of the state: 624 and the index of the next one.
    pub const WORDS: usize = 625;

    /// A copy of `noise`.
    ///
    /// # Errors
    /// Device errors.
    pub fn new(gpu: &Gpu, noise: &NoiseGenerator) -> Result<Self, GpuError> {
        Ok(Self { state: gpu.upload(&noise.words())? })
    }

    /// Takes up the state of `noise`.
    ///
    /// # Errors
    /// Device errors.
    pub fn reset(&self, gpu: &Gpu, noise: &NoiseGenerator) -> Result<(), GpuError> {
        gpu.write(self.state.view(), &noise.words())
    }

    /// The generator as it stands now; the host waits.
    ///
    /// # Errors
    /// Device errors; [`GpuError::Unsupported`] where the memory holds no such state.
    pub fn read(&self, gpu: &Gpu) -> Result<NoiseGenerator, GpuError> {
        let words = gpu.read(self.state.view())?;
        NoiseGenerator::from_words(&words)
            .ok_or_else(|| GpuError::unsupported("the noise generator's memory was overwritten"))
    }

    /// Its memory.
    pub(in crate::cuda) const fn state(&self) -> View<u32> {
        self.state.view()
    }
}
