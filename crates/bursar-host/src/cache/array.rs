//! Pinned memory as elements of one type.

use super::PinnedBuffer;
use bytemuck::Pod;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// The alignment of every pinned buffer: that of a cache line.
const ALIGN: usize = 64;

/// A [`PinnedBuffer`] as elements of one type, made by [`PinnedBuffer::typed`].
///
/// It is a slice of its elements, and can be moved into a typed asynchronous copy, which gives it back. It has as many
/// elements as the bytes have room for, or fewer after [`truncate`](Self::truncate), for a batch that does not fill it.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::device::DeviceContext;
/// use bursar::host::NumaWorkerPool;
/// use bursar::sim::Sim;
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let mut numbers = NumaWorkerPool::global()?.pin(&context, 1002).wait()?.typed::<f32>();
/// assert_eq!(numbers.len(), 250, "as many as there is room for");
/// numbers.truncate(3);
/// numbers.copy_from_slice(&[1.0, 2.0, 3.0]);
/// assert_eq!(numbers.iter().sum::<f32>(), 6.0);
/// assert_eq!(numbers.into_buffer().len(), 1002);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PinnedArray<T: Pod> {
    buffer: PinnedBuffer,
    len: usize,
    elements: PhantomData<T>,
}

impl PinnedBuffer {
    /// Returns the buffer as elements of one type, as many as it has room for. Types of no size, and those aligned to
    /// more than 64 bytes, do not compile.
    pub fn typed<T: Pod>(self) -> PinnedArray<T> {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= ALIGN, "an element has a size, and fits a line") };
        let len = self.len() / size_of::<T>();
        PinnedArray { buffer: self, len, elements: PhantomData }
    }
}

impl<T: Pod> PinnedArray<T> {
    /// Shortens it to its first `len` elements; does nothing where there are no more than that.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Returns the whole buffer.
    pub fn into_buffer(self) -> PinnedBuffer {
        self.buffer
    }

    /// Returns the number of bytes that its elements take.
    pub(crate) const fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    pub(crate) const fn buffer_mut(&mut self) -> &mut PinnedBuffer {
        &mut self.buffer
    }
}

impl<T: Pod> Deref for PinnedArray<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.buffer[..self.bytes()])
    }
}

impl<T: Pod> DerefMut for PinnedArray<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let bytes = self.bytes();
        bytemuck::cast_slice_mut(&mut self.buffer[..bytes])
    }
}

impl<T: Pod> fmt::Debug for PinnedArray<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedArray").field("len", &self.len).field("buffer", &self.buffer).finish_non_exhaustive()
    }
}
