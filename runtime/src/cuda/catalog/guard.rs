//! Output buffers with canaries on both sides.

use bytemuck::Pod;

use crate::cuda::gpu::{Buffer, Gpu, GpuError, View};

/// Bytes of canary before and after.
const MARGIN: usize = 256;
const CANARY: u8 = 0xA5;

/// A buffer whose surroundings are watched.
#[derive(Debug)]
pub struct Guarded<T> {
    whole: Buffer<u8>,
    view: View<T>,
}

impl<T: Pod> Guarded<T> {
    /// Room for `len` elements.
    ///
    /// # Errors
    /// Device errors.
    pub fn new(gpu: &Gpu, len: usize) -> Result<Self, GpuError> {
        let bytes = len * size_of::<T>();
        let whole = gpu.alloc::<u8>(bytes + 2 * MARGIN)?;
        gpu.fill(whole.view(), CANARY)?;
        let view = whole.part(MARGIN..MARGIN + bytes)?.cast()?;
        Ok(Self { whole, view })
    }

    /// The elements.
    #[must_use]
    pub const fn view(&self) -> View<T> {
        self.view
    }

    /// The elements as another type.
    ///
    /// # Errors
    /// [`GpuError::Range`] where the bytes are not whole elements.
    pub fn cast<U: Pod>(&self) -> Result<View<U>, GpuError> {
        self.view.cast()
    }

    /// Fills the elements with NaN bits (0xff).
    ///
    /// # Errors
    /// Device errors.
    pub fn poison(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.fill(gpu, 0xff)
    }

    /// Fills the elements with one byte.
    ///
    /// # Errors
    /// Device errors.
    pub fn fill(&self, gpu: &Gpu, byte: u8) -> Result<(), GpuError> {
        gpu.fill(self.view, byte)
    }

    /// Are the canaries alive?
    ///
    /// # Errors
    /// Device errors.
    pub fn intact(&self, gpu: &Gpu) -> Result<bool, GpuError> {
        self.snapshot(gpu).map(|(_, intact)| intact)
    }

    /// Bytes of the elements, and whether the canaries are alive.
    ///
    /// # Errors
    /// Device errors.
    pub fn snapshot(&self, gpu: &Gpu) -> Result<(Vec<u8>, bool), GpuError> {
        let mut bytes = gpu.read(self.whole.view())?;
        let after = bytes.split_off(bytes.len() - MARGIN);
        let inner = bytes.split_off(MARGIN);
        Ok((inner, bytes.iter().chain(&after).all(|&byte| byte == CANARY)))
    }

    /// The elements' bytes and one more: a planted write past the end.
    #[cfg(test)]
    pub(super) fn one_past(&self) -> View<u8> {
        self.whole.part(MARGIN..self.whole.len() - MARGIN + 1).unwrap()
    }
}
