//! Typed device memory that frees itself.

use crate::{DeviceSlice, DeviceSliceMut, Gpu};
use bursar_core::{
    AllocTag, Bytes, DeviceBlock, DevicePtr, Error, MIN_ALIGN, RefusedTracked, Result, Stream, Submission, TrackedBlock,
};
use bytemuck::Pod;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::panic::Location;

/// A typed buffer in the memory of one device, freed in stream order when it is dropped.
///
/// Reading, writing, filling and copying here are done when the call returns. They follow what the buffer's own stream
/// was given before, and what was [submitted](crate::Work) with the buffer to others. A length that does not match is
/// [`Error::LengthMismatch`] with both, and an error leaves no work behind.
///
/// Work on any stream uses the buffer through [`submit`](crate::StreamLease::submit), which orders it, and the free
/// comes after all of that. Whoever gives the [address](Self::ptr) to a kernel without declaring it orders that kernel
/// after the allocation and before the free: both follow [`stream`](Self::stream), unless [`free_on`](Self::free_on)
/// chooses another one for the free. Where that is an adopted stream whose adoption has ended, the free follows a
/// stream of the context's own. A free that is refused, as by a stream being captured, is
/// [deferred](Gpu::deferred_frees).
///
/// ```
/// use bursar::sim::Sim;
/// use bursar::{DevicePool, Stack, leaf, tag};
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
/// # Ok::<(), bursar::Error>(())
/// ```
pub struct DeviceBuffer<T: Pod> {
    gpu: Gpu,
    /// `None` where there are no bytes to hold.
    block: Option<TrackedBlock>,
    /// The address, to be borrowed; zero where it holds no memory.
    ptr: DevicePtr,
    len: usize,
    tag: AllocTag,
    stream: Stream,
    freed_on: Stream,
    elements: PhantomData<T>,
}

impl<T: Pod> DeviceBuffer<T> {
    fn allocate(gpu: Gpu, len: usize, stream: Stream, tag: AllocTag) -> Result<Self> {
        let bytes =
            (len as u64).checked_mul(size_of::<T>() as u64).ok_or(Error::InvalidSize { requested: u64::MAX })?;
        let block = if bytes == 0 {
            // Nothing is ordered on the stream, so one that is being captured will do.
            gpu.context().hold(stream)?;
            None
        } else {
            let align = MIN_ALIGN.max(align_of::<T>() as u64);
            let block = gpu.memory().allocate(bytes, align, stream, tag)?;
            Some(TrackedBlock::new(&**gpu.memory(), block))
        };
        let ptr = block.as_ref().map_or(DevicePtr(0), TrackedBlock::ptr);
        Ok(Self { gpu, block, ptr, len, tag, stream, freed_on: stream, elements: PhantomData })
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements; then it holds no memory either.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address, for those who launch kernels; zero where it holds no memory.
    pub const fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Returns the address as an argument of a kernel that reads the buffer: a word that is borrowed from the buffer,
    /// so that an argument list that holds it cannot outlive the memory. Libraries that take arguments by reference,
    /// as cudarc's `.arg` does, keep that borrow until the launch.
    ///
    /// ```
    /// # use bursar::{DeviceId, Gpu, Stack, leaf, tag};
    /// # let gpu = Gpu::open(bursar::sim::Sim::immediate(), DeviceId(0), &Stack::new().over(leaf::Async))?;
    /// # let stream = gpu.streams().acquire()?;
    /// let x = gpu.zeros::<f32>(1024, stream, tag!("x"))?;
    /// let mut y = gpu.zeros::<f32>(1024, stream, tag!("y"))?;
    /// let arguments = [x.as_arg(), y.as_arg_mut()];
    /// assert_eq!(*arguments[0], x.ptr().0);
    /// # Ok::<(), bursar::Error>(())
    /// ```
    ///
    /// ```compile_fail,E0505
    /// # fn show(x: bursar::DeviceBuffer<f32>) {
    /// let argument = x.as_arg();
    /// drop(x);
    /// println!("{argument}");
    /// # }
    /// ```
    pub const fn as_arg(&self) -> &u64 {
        &self.ptr.0
    }

    /// Returns the address as an argument of a kernel that writes the buffer: as [`as_arg`](Self::as_arg), with the
    /// buffer borrowed mutably, so that no other argument of the list can be the same buffer.
    pub const fn as_arg_mut(&mut self) -> &u64 {
        &self.ptr.0
    }

    /// Returns the number of bytes that the elements take.
    pub fn bytes(&self) -> Bytes {
        self.block().map_or(Bytes::ZERO, DeviceBlock::requested)
    }

    /// Returns the tag it was allocated with.
    pub fn tag(&self) -> AllocTag {
        self.tag
    }

    /// Returns the stream it was allocated on.
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// Returns the device it is on.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Returns the token underneath, where it holds memory.
    pub fn block(&self) -> Option<&DeviceBlock> {
        self.block.as_ref().map(TrackedBlock::block)
    }

    /// Returns the tracked block underneath, where it holds memory, to declare uses of it at the raw level
    /// ([`DeviceContext`](bursar_core::DeviceContext)).
    pub fn tracked(&self) -> Option<&TrackedBlock> {
        self.block.as_ref()
    }

    /// Chooses the stream whose order the free follows: the one that uses the buffer last. The free comes after the
    /// allocation and after every use that was submitted in any case. A stream that is being captured into a graph is refused,
    /// unless that of the buffer is part of the same capture.
    pub fn free_on(&mut self, stream: impl Into<Stream>) -> Result<()> {
        let (stream, context) = (stream.into(), self.gpu.context());
        if self.block.is_some() && !context.is_captured_with(self.stream, stream) {
            context.check_stream(stream)?;
        } else {
            drop(context.hold(stream)?);
        }
        self.freed_on = stream;
        Ok(())
    }

    /// Returns the token underneath, to be freed by `gpu.memory().deallocate` or lent across a raw boundary; `None`
    /// where it holds no memory. Its [`stream`](Self::stream) then comes after every use that was submitted.
    ///
    /// Where no such order can be made, because a stream that uses the buffer is being captured into a graph or the
    /// driver fails, the buffer comes back as it was.
    pub fn into_block(mut self) -> Result<Option<DeviceBlock>, RefusedIntoBlock<T>> {
        let context = self.gpu.context();
        match self.block.take().map(|block| block.into_block(context)).transpose() {
            Ok(block) => Ok(block),
            Err(RefusedTracked { block, error }) => {
                self.block = Some(*block);
                Err(RefusedIntoBlock { buffer: Box::new(self), error })
            }
        }
    }

    /// Returns some of the elements, to read.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice<'_, T>> {
        DeviceSlice::from(self).slice(range)
    }

    /// Returns some of the elements, to write.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceSliceMut<'_, T>> {
        DeviceSliceMut::from(self).slice_mut(range)
    }

    /// Writes all elements from `src`, which has as many.
    #[track_caller]
    pub fn write_from_host(&mut self, src: &[T]) -> Result<()> {
        DeviceSliceMut::from(self).write_from_host(src)
    }

    /// Reads all elements into `dst`, which has as many.
    #[track_caller]
    pub fn read_to_host(&self, dst: &mut [T]) -> Result<()> {
        DeviceSlice::from(self).read_to_host(dst)
    }

    /// Copies all elements to the host.
    #[track_caller]
    pub fn to_vec(&self) -> Result<Vec<T>> {
        DeviceSlice::from(self).to_vec()
    }

    /// Sets every element to `value`.
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

/// A [`DeviceBuffer::into_block`] that was refused: the buffer comes back with the reason. Converting this into an
/// [`Error`], as `?` does, drops the buffer, which frees it in stream order.
///
/// ```
/// use bursar::DeviceBuffer;
/// use bursar::device::RefusedIntoBlock;
/// use bursar::memory::DeviceBlock;
///
/// fn lend(buffer: DeviceBuffer<u8>) -> Result<Option<DeviceBlock>, DeviceBuffer<u8>> {
///     buffer.into_block().map_err(|RefusedIntoBlock { buffer, .. }| *buffer)
/// }
/// ```
pub struct RefusedIntoBlock<T: Pod> {
    /// The buffer, as it was.
    pub buffer: Box<DeviceBuffer<T>>,
    /// The reason for the refusal.
    pub error: Error,
}

impl<T: Pod> fmt::Display for RefusedIntoBlock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<T: Pod> fmt::Debug for RefusedIntoBlock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefusedIntoBlock").field("error", &self.error).field("buffer", &self.buffer).finish()
    }
}

impl<T: Pod> std::error::Error for RefusedIntoBlock<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<T: Pod> From<RefusedIntoBlock<T>> for Error {
    fn from(refused: RefusedIntoBlock<T>) -> Self {
        refused.error
    }
}

impl Gpu {
    /// Allocates a buffer of `len` elements that work ordered after this point of `stream` may use. Its contents are
    /// undefined until it is written; one of no elements takes no memory. Where there is no room, the
    /// [explanation](Error::shortage) of the error says who has it.
    #[track_caller]
    pub fn buffer<T: Pod>(&self, len: usize, stream: impl Into<Stream>, tag: AllocTag) -> Result<DeviceBuffer<T>> {
        let _call = self.context().enter_call_site();
        self.retry_frees();
        let _site = self.enter_site(Location::caller());
        DeviceBuffer::allocate(self.clone(), len, stream.into(), tag).map_err(|error| {
            let requested = (len as u64).saturating_mul(size_of::<T>() as u64);
            self.explain(error, Bytes(requested))
        })
    }

    /// Allocates a buffer whose `len` elements are zero for work that is ordered after this point of `stream`. The host
    /// waits for nothing, unless the memory cannot [track](bursar_core::DeviceMemoryResource::tracks_use) its uses.
    ///
    /// ```
    /// # use bursar::{DeviceId, Gpu, Stack, leaf, tag};
    /// # let gpu = Gpu::open(bursar::sim::Sim::seeded(1), DeviceId(0), &Stack::new().over(leaf::Async))?;
    /// let stream = gpu.streams().lease()?;
    /// let sums = gpu.zeros::<f64>(3, &stream, tag!("sums"))?;
    /// assert_eq!(sums.to_vec()?, [0.0; 3]);
    /// # Ok::<(), bursar::Error>(())
    /// ```
    #[track_caller]
    pub fn zeros<T: Pod>(&self, len: usize, stream: impl Into<Stream>, tag: AllocTag) -> Result<DeviceBuffer<T>> {
        let _call = self.context().enter_call_site();
        let stream = stream.into();
        let mut buffer = self.buffer(len, stream, tag)?;
        let mut submission = Submission::new(self.context(), stream);
        match DeviceSliceMut::from(&mut buffer).submit_fill(T::zeroed(), &mut submission) {
            Err(Error::Unsupported { .. }) => buffer.fill(T::zeroed())?,
            filled => filled?,
        }
        Ok(buffer)
    }

    /// Allocates a buffer that holds a copy of `values`.
    #[track_caller]
    pub fn buffer_from<T: Pod>(
        &self,
        values: &[T],
        stream: impl Into<Stream>,
        tag: AllocTag,
    ) -> Result<DeviceBuffer<T>> {
        let mut buffer = self.buffer(values.len(), stream, tag)?;
        buffer.write_from_host(values)?;
        Ok(buffer)
    }
}

impl<'a, T: Pod> From<&'a DeviceBuffer<T>> for DeviceSlice<'a, T> {
    fn from(buffer: &'a DeviceBuffer<T>) -> Self {
        Self::whole(buffer.gpu.context(), buffer.block.as_ref(), buffer.len)
    }
}

impl<'a, T: Pod> From<&'a mut DeviceBuffer<T>> for DeviceSliceMut<'a, T> {
    fn from(buffer: &'a mut DeviceBuffer<T>) -> Self {
        Self::whole(buffer.gpu.context(), buffer.block.as_mut(), buffer.len)
    }
}

impl<T: Pod> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.gpu.free(block, self.freed_on);
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
