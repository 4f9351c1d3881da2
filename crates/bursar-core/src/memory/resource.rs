//! The traits that every memory resource, layer and pool implements.
//!
//! [`Holder`] is the common part of resources and frame sources, so that one budget serves both, and the two traits
//! stay small.
//!
//! **No default bodies.** The traits have none, and every implementation denies `clippy::missing_trait_methods`: a
//! forgotten method would silently bypass the memory below.
//!
//! **A free never fails for its caller** unless the block or stream does not belong there, and then the block comes
//! back. Failures of the driver are kept, counted and tried again, and the device's next fallible call reports them.

use crate::{AllocTag, Bytes, DeviceBlock, DeviceContext, Frame, Refused, RefusedFrame, Result, Stream, Survey};
use crate::{forward_holder, forward_memory_resource};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A holder of device memory that knows how much it holds: the common part of resources and frame sources.
///
/// No method has a default body: a layer that forgets one does not compile.
///
/// ```
/// # use bursar::prelude::*;
/// fn in_flight(holder: &dyn Holder, live: Bytes) -> Bytes {
///     holder.bytes_outstanding().saturating_sub(live)
/// }
/// ```
pub trait Holder: fmt::Debug + Send + Sync + 'static {
    /// Returns the device's context.
    fn context(&self) -> &Arc<DeviceContext>;

    /// Returns the bytes that are live, and those that were freed but may still be in use by work that has not run.
    fn bytes_outstanding(&self) -> Bytes;

    /// Returns all bytes that were ever granted and are free again, modulo 2⁶⁴. The total only grows.
    fn released_total(&self) -> u64;

    /// Finds out, without waiting, which frees have completed; returns how many bytes that was.
    fn reap(&self) -> Result<Bytes>;

    /// Waits, at most for `patience`, until what had been freed before the call has completed; returns how many bytes
    /// that was. [`Duration::MAX`] waits as long as it takes.
    fn reap_blocking(&self, patience: Duration) -> Result<Bytes>;

    /// Adds to a survey how the limits, pools and leaves stand, from here downwards; called when a request was refused.
    fn survey(&self, survey: &mut Survey);
}

/// A source of stream-ordered device memory.
///
/// ```
/// # use bursar::Result;
/// # use bursar::prelude::*;
/// fn round_trip(memory: &dyn DeviceMemoryResource, stream: Stream) -> Result<()> {
///     let expected = memory.granted_size(1000, 256)?;
///     let block = memory.allocate(1000, 256, stream, tag!("example"))?;
///     assert_eq!(block.granted(), expected);
///     Ok(memory.deallocate(block, stream)?)
/// }
/// ```
pub trait DeviceMemoryResource: Holder {
    /// Returns the bytes that a request will be granted: a pure function of the request, known beforehand. A block
    /// records the same number, so budgets and statistics never sample a counter around a call.
    fn granted_size(&self, bytes: u64, align: u64) -> Result<Bytes>;

    /// Allocates memory that work ordered after this point of `stream` may use, aligned to `align` or 256, whichever is
    /// larger.
    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock>;

    /// Frees a block once the work submitted to `stream` so far has run; every use on another stream must be ordered
    /// before that point. A block or stream that does not belong here comes back with the reason and nothing happens. A
    /// free that the driver fails is kept, counted and tried again, and the device's next fallible call reports it.
    fn deallocate(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused>;

    /// Returns whether uses of its blocks on several streams can be tracked.
    fn tracks_use(&self) -> bool;
}

/// A source of physical memory, which a pool maps where it needs it. Creating a frame is charged; mapping it is not.
///
/// ```
/// # use bursar::Result;
/// # use bursar::memory::{Frame, FrameSource};
/// # use bursar::prelude::*;
/// fn one_page(source: &dyn FrameSource) -> Result<Frame> {
///     source.create_frame(source.frame_granularity().get())
/// }
/// ```
pub trait FrameSource: Holder {
    /// Returns the size frames are rounded up to.
    fn frame_granularity(&self) -> Bytes;

    /// Returns the size that a frame of at least `bytes` will have, known beforehand.
    fn granted_frame(&self, bytes: u64) -> Result<Bytes>;

    /// Creates a frame of at least `bytes`. Whoever asks records a refusal in the device's sink, where a request of theirs
    /// fails for it as a whole.
    fn create_frame(&self, bytes: u64) -> Result<Frame>;

    /// Gives a frame back to the driver; it must be mapped nowhere. A frame of another source comes back with the
    /// reason.
    fn release_frame(&self, frame: Frame) -> Result<(), RefusedFrame>;

    /// Returns a way to give frames back after the source is gone, for those that could not be unmapped before.
    fn release(&self) -> Arc<dyn FrameRelease>;

    /// Gives a frame back as [`release_frame`](Self::release_frame) does, and keeps its place with the limits on the way: as
    /// much stays charged, and a frame that is made [in its place](Self::create_frame_in_place) is not refused by them. One
    /// that the driver does not take comes back with the reason, charged as before and without a place.
    fn release_frame_keeping_place(&self, frame: Frame) -> Result<(), RefusedFrame>;

    /// Takes a place of `bytes`, all or nothing, waiting for it in the queue of an account at most for `patience`.
    fn take_place(&self, bytes: Bytes, patience: Duration) -> Result<()>;

    /// Gives up `bytes` of a place in which no frame was made.
    fn give_up_place(&self, bytes: Bytes);

    /// Creates a frame of exactly `bytes` in a place that was [kept](Self::release_frame_keeping_place) or [taken](Self::take_place). Where
    /// that fails, the place is still there.
    fn create_frame_in_place(&self, bytes: Bytes) -> Result<Frame>;
}

/// A way to give frames of one source back to the driver, also when that source is gone; see [`FrameSource::release`].
/// It keeps no context alive.
///
/// ```
/// # use bursar::Result;
/// # use bursar::memory::FrameSource;
/// # use bursar::prelude::*;
/// # fn show(source: Box<dyn FrameSource>) -> Result<()> {
/// let (frame, release, context) = (source.create_frame(1)?, source.release(), source.context().clone());
/// drop(source);
/// release.release(&context, frame).map_err(|refused| refused.error)?;
/// # Ok(())
/// # }
/// ```
pub trait FrameRelease: fmt::Debug + Send + Sync {
    /// Gives a frame back, which must be mapped nowhere, and counts it in its source's total. One that the driver does
    /// not take, and one of another source, comes back with the reason.
    fn release(&self, context: &DeviceContext, frame: Frame) -> Result<(), RefusedFrame>;
}

/// Lets a pointer to memory, erased or not, be used wherever memory is: as what a layer wraps, too.
macro_rules! forward_pointer {
    ($($pointer:ident),+) => {$(
        #[deny(clippy::missing_trait_methods)]
        impl<R: Holder + ?Sized> Holder for $pointer<R> {
            forward_holder!(**self);
        }

        #[deny(clippy::missing_trait_methods)]
        impl<R: DeviceMemoryResource + ?Sized> DeviceMemoryResource for $pointer<R> {
            forward_memory_resource!(**self; granted_size, #[inline(always)] allocate, #[inline(always)] deallocate, tracks_use);
        }

        #[deny(clippy::missing_trait_methods)]
        impl<R: FrameSource + ?Sized> FrameSource for $pointer<R> {
            fn frame_granularity(&self) -> Bytes {
                (**self).frame_granularity()
            }
            fn granted_frame(&self, bytes: u64) -> Result<Bytes> {
                (**self).granted_frame(bytes)
            }
            fn create_frame(&self, bytes: u64) -> Result<Frame> {
                (**self).create_frame(bytes)
            }
            fn release_frame(&self, frame: Frame) -> Result<(), RefusedFrame> {
                (**self).release_frame(frame)
            }
            fn release(&self) -> Arc<dyn FrameRelease> {
                (**self).release()
            }
            fn release_frame_keeping_place(&self, frame: Frame) -> Result<(), RefusedFrame> {
                (**self).release_frame_keeping_place(frame)
            }
            fn take_place(&self, bytes: Bytes, patience: Duration) -> Result<()> {
                (**self).take_place(bytes, patience)
            }
            fn give_up_place(&self, bytes: Bytes) {
                (**self).give_up_place(bytes);
            }
            fn create_frame_in_place(&self, bytes: Bytes) -> Result<Frame> {
                (**self).create_frame_in_place(bytes)
            }
        }
    )+};
}

forward_pointer!(Arc, Box);
