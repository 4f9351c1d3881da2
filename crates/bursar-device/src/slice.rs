//! Parts of buffers, with the copies and fills that can be made of them.

use bursar_core::{
    DeviceContext, DevicePtr, DeviceRange, Error, HostElements, HostMemory, Pattern, RefusedTransfer, Result,
    Submission, TrackedBlock, Transfer,
};
use bytemuck::Pod;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

/// Consecutive elements of a [`DeviceBuffer`](crate::DeviceBuffer), to read.
///
/// ```
/// # use bursar::{DeviceId, Gpu, Stack, leaf, tag};
/// # let gpu = Gpu::open(bursar::sim::Sim::immediate(), DeviceId(0), &Stack::new().over(leaf::Async))?;
/// # let stream = gpu.streams().acquire()?;
/// let buffer = gpu.buffer_from(&[1u16, 2, 3, 4], stream, tag!("numbers"))?;
/// let middle = buffer.slice(1..3)?;
/// assert_eq!(middle.to_vec()?, [2, 3]);
/// assert!(buffer.slice(3..5).is_err());
/// # Ok::<(), bursar::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct DeviceSlice<'a, T: Pod> {
    context: &'a Arc<DeviceContext>,
    block: Option<&'a TrackedBlock>,
    elements: Elements<T>,
}

impl<'a, T: Pod> DeviceSlice<'a, T> {
    pub(crate) fn whole(context: &'a Arc<DeviceContext>, block: Option<&'a TrackedBlock>, len: usize) -> Self {
        let elements = Elements::whole(block.as_ref().map_or(DevicePtr(0), |block| block.ptr()), len);
        Self { context, block, elements }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.elements.len
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the address, for those who launch kernels; zero where there is no memory.
    pub fn ptr(&self) -> DevicePtr {
        self.elements.ptr
    }

    /// Returns the address as an argument of a kernel that reads the elements: a word that is borrowed from this. See
    /// [`DeviceBuffer::as_arg`](crate::DeviceBuffer::as_arg).
    pub const fn as_arg(&self) -> &u64 {
        &self.elements.ptr.0
    }

    /// Returns some of the elements.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let elements = self.elements.part(range)?;
        Ok(Self { elements, ..*self })
    }

    /// Reads all elements into `dst`, which has as many.
    #[track_caller]
    pub fn read_to_host(&self, dst: &mut [T]) -> Result<()> {
        let _call = self.context.enter_call_site();
        self.elements.expect_len(dst.len())?;
        let Some(block) = self.block else { return Ok(()) };
        block.copy_to_host(self.context, self.elements.offset(), bytemuck::cast_slice_mut(dst))
    }

    /// Copies all elements to the host.
    #[track_caller]
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let _call = self.context.enter_call_site();
        let Some(block) = self.block else { return Ok(vec![T::zeroed(); self.len()]) };
        block.copy_to_vec(self.context, self.elements.offset(), self.len())
    }

    /// Returns the bytes of the elements.
    pub(crate) fn range(&self) -> DeviceRange {
        DeviceRange { ptr: self.elements.ptr, bytes: self.elements.bytes() }
    }

    /// Returns the block whose uses are tracked: that of the whole buffer.
    pub(crate) fn tracked(&self) -> Option<&'a TrackedBlock> {
        self.block
    }

    /// Submits a copy of all of it into `memory`, which has room for exactly that.
    #[track_caller]
    pub(crate) fn submit_read_back<H: HostElements<T>>(
        &self,
        memory: H,
        submission: &mut Submission<'_>,
    ) -> Result<Transfer<H>, RefusedTransfer<H>> {
        let _call = self.context.enter_call_site();
        match self.elements.expect_room(&memory).map(|()| self.block) {
            Ok(Some(block)) => submission.copy_to_host(block, self.elements.offset(), memory),
            other => nothing_to_copy(submission, memory, other.map(drop)),
        }
    }
}

/// Consecutive elements of a [`DeviceBuffer`](crate::DeviceBuffer), to write.
///
/// ```
/// # use bursar::{DeviceId, Gpu, Stack, leaf, tag};
/// # let gpu = Gpu::open(bursar::sim::Sim::immediate(), DeviceId(0), &Stack::new().over(leaf::Async))?;
/// # let stream = gpu.streams().acquire()?;
/// let mut buffer = gpu.buffer_from(&[1u16, 2, 3, 4], stream, tag!("numbers"))?;
/// buffer.slice_mut(1..3)?.fill(9)?;
/// assert_eq!(buffer.to_vec()?, [1, 9, 9, 4]);
/// # Ok::<(), bursar::Error>(())
/// ```
pub struct DeviceSliceMut<'a, T: Pod> {
    context: &'a Arc<DeviceContext>,
    block: Option<&'a mut TrackedBlock>,
    elements: Elements<T>,
}

impl<'a, T: Pod> DeviceSliceMut<'a, T> {
    pub(crate) fn whole(context: &'a Arc<DeviceContext>, block: Option<&'a mut TrackedBlock>, len: usize) -> Self {
        let elements = Elements::whole(block.as_ref().map_or(DevicePtr(0), |block| block.ptr()), len);
        Self { context, block, elements }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.elements.len
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the address, for those who launch kernels; zero where there is no memory.
    pub fn ptr(&self) -> DevicePtr {
        self.elements.ptr
    }

    /// Returns the address as an argument of a kernel that writes the elements: a word for which this stays borrowed
    /// mutably. See [`DeviceBuffer::as_arg_mut`](crate::DeviceBuffer::as_arg_mut).
    pub const fn as_arg_mut(&mut self) -> &u64 {
        &self.elements.ptr.0
    }

    /// Returns the same elements, to read.
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice { context: self.context, block: self.block.as_deref(), elements: self.elements }
    }

    /// Returns some of the elements, to write.
    pub fn slice_mut(self, range: impl RangeBounds<usize>) -> Result<Self> {
        let elements = self.elements.part(range)?;
        Ok(Self { elements, ..self })
    }

    /// Writes all elements from `src`, which has as many.
    #[track_caller]
    pub fn write_from_host(&mut self, src: &[T]) -> Result<()> {
        let _call = self.context.enter_call_site();
        self.elements.expect_len(src.len())?;
        let Some(block) = self.block.as_deref_mut() else {
            return Ok(());
        };
        block.copy_from_host(self.context, self.elements.offset(), bytemuck::cast_slice(src))
    }

    /// Sets every element to `value`.
    #[track_caller]
    pub fn fill(&mut self, value: T) -> Result<()> {
        let _call = self.context.enter_call_site();
        let Some(block) = self.block.as_deref_mut() else {
            return Ok(());
        };
        let (context, offset) = (self.context, self.elements.offset());
        let (unit, count) = (bytemuck::bytes_of(&value), self.elements.len as u64);
        match pattern_of(unit) {
            Some((pattern, repeats)) => block.fill(context, offset, pattern, count * repeats),
            None => block.fill_with(context, offset, unit, count),
        }
    }

    /// Copies all of `src`, a buffer or a slice of the same device and length.
    #[track_caller]
    pub fn copy_from<'b>(&mut self, src: impl Into<DeviceSlice<'b, T>>) -> Result<()> {
        let _call = self.context.enter_call_site();
        let src = src.into();
        self.elements.expect_len(src.len())?;
        let (Some(block), Some(from)) = (self.block.as_deref_mut(), src.block) else {
            return Ok(());
        };
        let (dst_offset, src_offset) = (self.elements.offset(), src.elements.offset());
        block.copy_from(self.context, dst_offset, from, src_offset, self.elements.bytes())
    }

    /// Submits a fill of all of it.
    #[track_caller]
    pub(crate) fn submit_fill(self, value: T, submission: &mut Submission<'_>) -> Result<()> {
        let _call = self.context.enter_call_site();
        let Some(block) = self.block else { return submission.check() };
        let (offset, unit, count) = (self.elements.offset(), bytemuck::bytes_of(&value), self.elements.len as u64);
        match pattern_of(unit) {
            Some((pattern, repeats)) => submission.fill(block, offset, pattern, count * repeats),
            None => submission.fill_with(block, offset, unit, count),
        }
    }

    /// Submits a copy of all of `src`, which has its length.
    #[track_caller]
    pub(crate) fn submit_copy_from(self, src: DeviceSlice<'_, T>, submission: &mut Submission<'_>) -> Result<()> {
        let _call = self.context.enter_call_site();
        self.elements.expect_len(src.len())?;
        let (Some(block), Some(from)) = (self.block, src.block) else { return submission.check() };
        let (dst_offset, src_offset) = (self.elements.offset(), src.elements.offset());
        submission.copy(block, dst_offset, from, src_offset, self.elements.bytes())
    }

    /// Submits a copy of all of `src`, which has its length, where one of the two may be of another context.
    #[track_caller]
    pub(crate) fn submit_copy_peer(self, src: DeviceSlice<'_, T>, submission: &mut Submission<'_>) -> Result<()> {
        let _call = self.context.enter_call_site();
        self.elements.expect_len(src.len())?;
        let (Some(dst), Some(from)) = (self.block, src.block) else { return check_stream(submission) };
        let (dst_offset, src_offset, bytes) = (self.elements.offset(), src.elements.offset(), self.elements.bytes());
        if Arc::ptr_eq(src.context, submission.context()) {
            submission.copy_to_peer(self.context, dst, dst_offset, from, src_offset, bytes)
        } else {
            submission.copy_from_peer(dst, dst_offset, src.context, from, src_offset, bytes)
        }
    }

    /// Submits a copy of `memory`, which has its size.
    #[track_caller]
    pub(crate) fn submit_copy_from_host<H: HostElements<T>>(
        self,
        memory: H,
        submission: &mut Submission<'_>,
    ) -> Result<Transfer<H>, RefusedTransfer<H>> {
        let _call = self.context.enter_call_site();
        match self.elements.expect_room(&memory).map(|()| self.block) {
            Ok(Some(block)) => submission.copy_from_host(block, self.elements.offset(), memory),
            other => nothing_to_copy(submission, memory, other.map(drop)),
        }
    }
}

/// Checks the stream of work that touches no memory, as other work does.
fn check_stream(submission: &Submission<'_>) -> Result<()> {
    submission.context().check_stream(submission.stream())
}

/// Returns the transfer of a copy that has nothing to copy, or of one that is refused.
fn nothing_to_copy<H: HostMemory>(
    submission: &Submission<'_>,
    memory: H,
    checked: Result<()>,
) -> Result<Transfer<H>, RefusedTransfer<H>> {
    let transfer = Transfer::of_nothing(submission.context(), submission.stream(), memory);
    match checked.and_then(|()| check_stream(submission)) {
        Ok(()) => Ok(transfer),
        Err(error) => Err(transfer.refused(error)),
    }
}

/// A range of the elements of a buffer.
#[derive(Clone, Copy)]
struct Elements<T> {
    /// The address of the first; zero where there is no memory.
    ptr: DevicePtr,
    start: usize,
    len: usize,
    kind: PhantomData<T>,
}

impl<T: Pod> Elements<T> {
    const fn whole(ptr: DevicePtr, len: usize) -> Self {
        Self { ptr, start: 0, len, kind: PhantomData }
    }

    fn offset(self) -> u64 {
        self.start as u64 * size_of::<T>() as u64
    }

    fn bytes(self) -> u64 {
        self.len as u64 * size_of::<T>() as u64
    }

    fn part(self, range: impl RangeBounds<usize>) -> Result<Self> {
        let start = match range.start_bound() {
            Bound::Included(&at) => at,
            Bound::Excluded(&at) => at.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&at) => at.saturating_add(1),
            Bound::Excluded(&at) => at,
            Bound::Unbounded => self.len,
        };
        if start > end || end > self.len {
            return Err(Error::InvalidRange { start, end, len: self.len });
        }
        let ptr = self.ptr.offset(start as u64 * size_of::<T>() as u64);
        Ok(Self { ptr, start: self.start + start, len: end - start, kind: PhantomData })
    }

    fn expect_len(self, len: usize) -> Result<()> {
        if self.len == len {
            return Ok(());
        }
        Err(Error::LengthMismatch { expected: self.len, found: len })
    }

    /// Checks that host memory has exactly the bytes of these elements.
    fn expect_room(self, memory: &impl HostMemory) -> Result<()> {
        let (expected, found) = (self.len * size_of::<T>(), memory.host_len());
        match found.checked_div(size_of::<T>()) {
            _ if expected == found => Ok(()),
            Some(elements) if elements * size_of::<T>() == found => self.expect_len(elements),
            _ => Err(Error::SizeMismatch { expected, found }),
        }
    }
}

/// Returns the narrowest pattern that repeats to `unit`, if the driver has one, and how often it does.
fn pattern_of(unit: &[u8]) -> Option<(Pattern, u64)> {
    let pattern = match *unit {
        [a, ref rest @ ..] if rest.iter().all(|byte| *byte == a) => Some(Pattern::U8(a)),
        [a, b, ..] if repeats(unit, [a, b]) => Some(Pattern::U16(u16::from_ne_bytes([a, b]))),
        [a, b, c, d, ..] if repeats(unit, [a, b, c, d]) => Some(Pattern::U32(u32::from_ne_bytes([a, b, c, d]))),
        _ => None,
    };
    pattern.map(|pattern| (pattern, unit.len() as u64 / pattern.width()))
}

fn repeats<const N: usize>(unit: &[u8], part: [u8; N]) -> bool {
    let (parts, rest) = unit.as_chunks::<N>();
    rest.is_empty() && parts.iter().all(|other| *other == part)
}

macro_rules! shown {
    ($name:ident) => {
        impl<T: Pod> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("ptr", &self.ptr())
                    .field("len", &self.len())
                    .finish_non_exhaustive()
            }
        }
    };
}

shown!(DeviceSlice);
shown!(DeviceSliceMut);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fill_uses_the_narrowest_pattern_there_is() {
        for (unit, expected) in [
            (&[7u8; 16][..], Some(Pattern::U8(7))),
            (&[7, 7, 7], Some(Pattern::U8(7))),
            (&[1, 2, 1, 2], Some(Pattern::U16(u16::from_ne_bytes([1, 2])))),
            (&[1, 2, 3, 4, 1, 2, 3, 4], Some(Pattern::U32(u32::from_ne_bytes([1, 2, 3, 4])))),
            (&[1, 2, 1], None),
            (&[1, 2, 1, 2, 1, 3], None),
            (&[1, 2, 3, 4, 1, 2], None),
            (&[1, 2, 3, 4, 5, 6, 7, 8], None),
            (&[], None),
        ] {
            assert_eq!(pattern_of(unit).map(|(pattern, _)| pattern), expected, "{unit:?}");
        }
    }
}
