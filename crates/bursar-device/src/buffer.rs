//! Typed device memory that frees itself.

use crate::{DeviceSlice, DeviceSliceMut, Gpu};
use bursar_core::{AllocTag, Bytes, DeviceBlock, DevicePtr, Error, MIN_ALIGN, Result, Stream, TrackedBlock};
use bytemuck::Pod;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

/// Elements in the memory of one device, freed in stream order when this is dropped.
///
/// Reading, writing, filling and copying here are done when the call returns. They follow what the buffer's own stream
/// was given before, and what was [submitted](crate::Work) with the buffer to others. A length that does not match is
/// [`Error::InvalidValue`], and an error leaves no work behind.
///
/// Work on any stream uses the buffer through [`submit`](crate::StreamLease::submit), which orders it, and the free comes
/// after all of that. Whoever gives the [address](Self::ptr) to a kernel without saying so orders that kernel after the
/// allocation and before the free: both follow [`stream`](Self::stream), unless [`free_on`](Self::free_on) chooses another
/// one for the free. Where that is an adopted stream whose adoption has ended, the free follows a stream of our own. A free
/// that is refused, as by a stream being captured, is kept for [later](Gpu::stranded).
///
/// ```
/// use bursar_core::{Stack, leaf, tag};
/// use bursar_device::DevicePool;
/// use bursar_sim::Sim;
///
/// let gpus = DevicePool::open(Sim::immediate(), &Stack::new().over(leaf::Async))?;
/// let gpu = gpus.most_free();
/// let stream = gpu.streams().acquire()?;
///
/// let mut squares = gpu.buffer::<u32>(4, stream, tag!("squares"))?;
/// squares.write_from_host(&[0, 1, 4, 9])?;
/// let mut copy = gpu.buffer::<u32>(2, stream, tag!("copy"))?;
/// copy.copy_from(squares.slice(2..)?)?;
/// assert_eq!(copy.to_vec()?, [4, 9]);
/// # Ok::<(), bursar_core::Error>(())
/// ```
pub struct DeviceBuffer<T: Pod> {
    gpu: Gpu,
    /// None where there is nothing to hold.
    block: Option<TrackedBlock>,
    len: usize,
    tag: AllocTag,
    stream: Stream,
    freed_on: Stream,
    elements: PhantomData<T>,
}

impl<T: Pod> DeviceBuffer<T> {
    pub(crate) fn allocate(gpu: Gpu, len: usize, stream: Stream, tag: AllocTag) -> Result<Self> {
        let bytes =
            (len as u64).checked_mul(size_of::<T>() as u64).ok_or(Error::InvalidSize { requested: u64::MAX })?;
        let block = if bytes == 0 {
            gpu.context().check_stream(stream)?;
            None
        } else {
            let align = MIN_ALIGN.max(align_of::<T>() as u64);
            let block = gpu.memory().allocate(bytes, align, stream, tag)?;
            Some(TrackedBlock::new(&**gpu.memory(), block))
        };
        Ok(Self { gpu, block, len, tag, stream, freed_on: stream, elements: PhantomData })
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none; then it holds no memory either.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it begins, for those who launch kernels; zero where it holds no memory.
    pub fn ptr(&self) -> DevicePtr {
        self.block.as_ref().map_or(DevicePtr(0), TrackedBlock::ptr)
    }

    /// How many bytes its elements take.
    pub fn bytes(&self) -> Bytes {
        self.block().map_or(Bytes::ZERO, DeviceBlock::requested)
    }

    /// What it is for.
    pub fn tag(&self) -> AllocTag {
        self.tag
    }

    /// The stream it was allocated on.
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// The device it is on.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The token underneath, where it holds memory: what reports and layers want to know of it.
    pub fn block(&self) -> Option<&DeviceBlock> {
        self.block.as_ref().map(TrackedBlock::block)
    }

    /// Its uses, to declare others at the raw level ([`DeviceContext`](bursar_core::DeviceContext)), where it holds
    /// memory.
    pub fn tracked(&self) -> Option<&TrackedBlock> {
        self.block.as_ref()
    }

    /// Chooses the stream whose order the free follows: the one that uses the buffer last. The free comes after the
    /// allocation and after every use that was submitted in any case.
    pub fn free_on(&mut self, stream: impl Into<Stream>) -> Result<()> {
        let stream = stream.into();
        self.gpu.context().check_stream(stream)?;
        self.freed_on = stream;
        Ok(())
    }

    /// The token underneath, to be freed by `gpu.memory().deallocate` or lent across a raw boundary; none where there is
    /// nothing to hold. Its [`stream`](Self::stream) then comes after every use that was submitted.
    pub fn into_block(mut self) -> Option<DeviceBlock> {
        self.block.take().map(TrackedBlock::into_block)
    }

    /// Elements to read.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice<'_, T>> {
        DeviceSlice::from(self).slice(range)
    }

    /// Elements to write.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceSliceMut<'_, T>> {
        DeviceSliceMut::from(self).slice_mut(range)
    }

    /// Writes all of it; `src` has its length.
    #[track_caller]
    pub fn write_from_host(&mut self, src: &[T]) -> Result<()> {
        DeviceSliceMut::from(self).write_from_host(src)
    }

    /// Reads all of it; `dst` has its length.
    #[track_caller]
    pub fn read_to_host(&self, dst: &mut [T]) -> Result<()> {
        DeviceSlice::from(self).read_to_host(dst)
    }

    /// All of it, on the host.
    #[track_caller]
    pub fn to_vec(&self) -> Result<Vec<T>> {
        DeviceSlice::from(self).to_vec()
    }

    /// Makes every element `value`.
    #[track_caller]
    pub fn fill(&mut self, value: T) -> Result<()> {
        DeviceSliceMut::from(self).fill(value)
    }

    /// Copies all of `src`, a buffer or a slice of the same device and length.
    #[track_caller]
    pub fn copy_from<'a>(&mut self, src: impl Into<DeviceSlice<'a, T>>) -> Result<()> {
        DeviceSliceMut::from(self).copy_from(src)
    }
}

impl<'a, T: Pod> From<&'a DeviceBuffer<T>> for DeviceSlice<'a, T> {
    fn from(buffer: &'a DeviceBuffer<T>) -> Self {
        Self::whole(&buffer.gpu, buffer.block.as_ref(), buffer.len)
    }
}

impl<'a, T: Pod> From<&'a mut DeviceBuffer<T>> for DeviceSliceMut<'a, T> {
    fn from(buffer: &'a mut DeviceBuffer<T>) -> Self {
        Self::whole(&buffer.gpu, buffer.block.as_mut(), buffer.len)
    }
}

impl<T: Pod> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.gpu.give_back(block, self.freed_on);
        }
    }
}

impl<T: Pod> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("ptr", &self.ptr())
            .field("len", &self.len)
            .field("bytes", &self.bytes())
            .field("tag", &self.tag)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
