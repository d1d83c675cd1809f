//! Device memory and pinned host memory.

use std::marker::PhantomData;
use std::ops::Range;
use std::rc::Rc;

use bytemuck::Pod;

use super::driver::{Block, Driver};
use super::launch::Arg;
use super::{Gpu, GpuError};

/// Device memory for `len` elements; contents undefined until written.
pub struct Buffer<T> {
    driver: Rc<dyn Driver>,
    address: u64,
    len: usize,
    kind: PhantomData<T>,
}

impl<T> std::fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({:#x}, {})", self.address, self.len)
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        self.driver.free(self.address);
    }
}

/// Part of a buffer: address and length that go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View<T> {
    address: u64,
    len: usize,
    kind: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    pub(super) fn new(driver: &Rc<dyn Driver>, len: usize) -> Result<Self, GpuError> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(GpuError::Memory {
            wanted: usize::MAX,
            free: 0,
            remedy: "use a smaller shape",
        })?;
        let address = driver.alloc(bytes.max(16))?;
        Ok(Self { driver: Rc::clone(driver), address, len, kind: PhantomData })
    }

    /// Elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// No elements?
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The whole of it.
    #[must_use]
    pub const fn view(&self) -> View<T> {
        View { address: self.address, len: self.len, kind: PhantomData }
    }

    /// A part.
    ///
    /// # Errors
    /// [`GpuError::Range`].
    pub fn part(&self, range: Range<usize>) -> Result<View<T>, GpuError> {
        self.view().part(range)
    }
}

impl<T: Pod> View<T> {
    /// Elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// No elements?
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Device address.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// A part.
    ///
    /// # Errors
    /// [`GpuError::Range`].
    pub fn part(&self, range: Range<usize>) -> Result<Self, GpuError> {
        if range.start > range.end || range.end > self.len {
            return Err(GpuError::Range { start: range.start, end: range.end, len: self.len });
        }
        let address = self.address + (range.start * size_of::<T>()) as u64;
        Ok(Self { address, len: range.end - range.start, kind: PhantomData })
    }

    /// An argument that needs `len` elements at least.
    ///
    /// # Errors
    /// [`GpuError::Range`].
    pub fn arg(&self, len: usize) -> Result<Arg, GpuError> {
        if len > self.len {
            return Err(GpuError::Range { start: 0, end: len, len: self.len });
        }
        Ok(Arg::pointer(self.address))
    }

    /// The same bytes as elements of another type.
    ///
    /// # Errors
    /// [`GpuError::Range`] where the bytes are not whole elements.
    pub fn cast<U: Pod>(&self) -> Result<View<U>, GpuError> {
        let bytes = self.len * size_of::<T>();
        if !bytes.is_multiple_of(size_of::<U>()) {
            return Err(GpuError::Range { start: 0, end: bytes, len: bytes / size_of::<U>() });
        }
        Ok(View { address: self.address, len: bytes / size_of::<U>(), kind: PhantomData })
    }
}

/// Pinned host memory: copies run from and to it while the host goes on.
pub struct Pinned<T> {
    driver: Rc<dyn Driver>,
    address: *mut T,
    len: usize,
}

impl<T> std::fmt::Debug for Pinned<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pinned({})", self.len)
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        self.driver.free_pinned(self.address.cast(), (self.len * size_of::<T>()).max(16));
    }
}

impl<T: Pod> Pinned<T> {
    pub(super) fn new(driver: &Rc<dyn Driver>, len: usize) -> Result<Self, GpuError> {
        let bytes = (len * size_of::<T>()).max(16);
        let address = driver.alloc_pinned(bytes)?.cast::<T>();
        // SAFETY: `bytes` bytes were just allocated; zeros are a value of any Pod type.
        #[expect(unsafe_code, reason = "pinned memory comes as an address")]
        unsafe {
            address.cast::<u8>().write_bytes(0, bytes);
        }
        Ok(Self { driver: Rc::clone(driver), address, len })
    }

    /// Elements. Meaningful once the copy that fills them has ended.
    #[must_use]
    pub fn slice(&self) -> &[T] {
        // SAFETY: `len` elements were allocated, zeroed, and live as long as self.
        #[expect(unsafe_code, reason = "pinned memory comes as an address")]
        unsafe {
            std::slice::from_raw_parts(self.address, self.len)
        }
    }

    /// Elements to write. No queued copy may be reading them.
    pub fn slice_mut(&mut self) -> &mut [T] {
        // SAFETY: as `slice`, and self is borrowed alone.
        #[expect(unsafe_code, reason = "pinned memory comes as an address")]
        unsafe {
            std::slice::from_raw_parts_mut(self.address, self.len)
        }
    }

    pub(super) const fn address(&self) -> *mut T {
        self.address
    }

    /// Elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// No elements?
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Gpu {
    /// Memory for `len` elements, contents undefined.
    ///
    /// # Errors
    /// [`GpuError::Memory`] and driver errors.
    pub fn alloc<T: Pod>(&self, len: usize) -> Result<Buffer<T>, GpuError> {
        Buffer::new(&self.driver, len)
    }

    /// Memory filled from the host.
    ///
    /// # Errors
    /// As [`Gpu::alloc`].
    pub fn upload<T: Pod>(&self, values: &[T]) -> Result<Buffer<T>, GpuError> {
        let buffer = self.alloc(values.len())?;
        self.write(buffer.view(), values)?;
        Ok(buffer)
    }

    /// Memory of zeros.
    ///
    /// # Errors
    /// As [`Gpu::alloc`].
    pub fn zeros<T: Pod>(&self, len: usize) -> Result<Buffer<T>, GpuError> {
        let buffer = self.alloc(len)?;
        self.fill(buffer.view(), 0)?;
        Ok(buffer)
    }

    /// Pinned host memory of zeros.
    ///
    /// # Errors
    /// Driver errors.
    pub fn pinned<T: Pod>(&self, len: usize) -> Result<Pinned<T>, GpuError> {
        Pinned::new(&self.driver, len)
    }

    /// Host to device; the host waits.
    ///
    /// # Errors
    /// [`GpuError::Range`] and driver errors.
    pub fn write<T: Pod>(&self, to: View<T>, from: &[T]) -> Result<(), GpuError> {
        to.arg(from.len())?;
        let bytes: &[u8] = bytemuck::cast_slice(from);
        self.driver.write(to.address(), bytes.as_ptr(), bytes.len())?;
        self.driver.synchronize()
    }

    /// Device to host; the host waits.
    ///
    /// # Errors
    /// Driver errors.
    pub fn read<T: Pod>(&self, from: View<T>) -> Result<Vec<T>, GpuError> {
        let mut values = vec![T::zeroed(); from.len()];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        self.driver.read(from.address(), bytes.as_mut_ptr(), bytes.len())?;
        self.driver.synchronize()?;
        Ok(values)
    }

    /// Pinned memory to device, queued.
    ///
    /// # Errors
    /// [`GpuError::Range`] and driver errors.
    pub fn queue_write<T: Pod>(&self, to: View<T>, from: &Pinned<T>) -> Result<(), GpuError> {
        to.arg(from.len())?;
        self.driver.write(to.address(), from.address().cast(), from.len() * size_of::<T>())
    }

    /// Device to pinned memory, queued; there after [`Gpu::synchronize`].
    ///
    /// # Errors
    /// [`GpuError::Range`] and driver errors.
    pub fn queue_read<T: Pod>(&self, from: View<T>, to: &mut Pinned<T>) -> Result<(), GpuError> {
        if from.len() > to.len() {
            return Err(GpuError::Range { start: 0, end: from.len(), len: to.len() });
        }
        self.driver.read(from.address(), to.address().cast(), from.len() * size_of::<T>())
    }

    /// `height` pieces of `width` bytes, `pitch` bytes apart in `from`, to pinned memory from byte `at` on, beside what is queued later;
    /// there after [`Gpu::wait_beside`].
    ///
    /// # Errors
    /// [`GpuError::Range`] and driver errors.
    pub fn read_beside(
        &self,
        from: View<u8>,
        [width, height, pitch]: [usize; 3],
        to: &mut Pinned<u8>,
        at: usize,
    ) -> Result<(), GpuError> {
        if height == 0 || width == 0 {
            return Ok(());
        }
        from.arg((height - 1) * pitch + width)?;
        let end = at + width * height;
        if width > pitch || end > to.len() {
            return Err(GpuError::Range { start: at, end, len: to.len() });
        }
        let block = Block { from: from.address(), width, height, pitch };
        self.driver.read_beside(&block, to.address().wrapping_add(at))
    }

    /// Device to device, queued.
    ///
    /// # Errors
    /// [`GpuError::Range`] and driver errors.
    pub fn copy<T: Pod>(&self, from: View<T>, to: View<T>) -> Result<(), GpuError> {
        to.arg(from.len())?;
        self.driver.copy(from.address(), to.address(), from.len() * size_of::<T>())
    }

    /// Sets every byte, queued.
    ///
    /// # Errors
    /// Driver errors.
    pub fn fill<T: Pod>(&self, to: View<T>, byte: u8) -> Result<(), GpuError> {
        self.driver.fill(to.address(), byte, to.len() * size_of::<T>())
    }
}
