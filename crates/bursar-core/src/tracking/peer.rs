//! Copies between blocks of two contexts, ordered on both sides.
//!
//! The copy runs on the submission's stream. The other context tracks uses by its own streams only, so one of them, which
//! runs no work itself, stands there for the submission's: it begins the use of the block, the submission's stream waits
//! for it, and after the copy it waits for the submission's stream. Whoever uses or frees the block next comes after it.
//! Copies from a context and copies to it have a stream each, so that they run side by side.
#![allow(unsafe_code)]

use super::{BlockUse, Submission, TrackedBlock};
use crate::block::range;
use crate::stream::StreamHold;
use crate::{
    Access, DeviceContext, DevicePtr, DriverError, DriverResult, Error, PeerPtr, RawStream, Result, Status, Stream,
};
use std::sync::Arc;

/// The most bytes of host memory that a copy through the host takes.
const STAGING_MAX: u64 = 32 << 20;

/// A part of a block, and the context that the block is of.
#[derive(Clone, Copy, Debug)]
struct Side<'a> {
    context: &'a Arc<DeviceContext>,
    block: &'a TrackedBlock,
    ptr: DevicePtr,
    access: Access,
}

impl Side<'_> {
    fn peer_ptr(self) -> PeerPtr {
        PeerPtr { device: self.context.device(), ptr: self.ptr }
    }
}

impl Submission<'_> {
    /// Copies `bytes` from `src_offset` of a block of another context to `dst_offset` of one of this context's, of the
    /// same driver. Both blocks are ordered: the copy comes after their uses on streams of their own contexts, and
    /// later uses and frees come after the copy.
    ///
    /// Where the driver cannot copy between the two devices, the copy goes through the host and has run when this
    /// returns.
    ///
    /// ```
    /// # use bursar::Result;
    /// # use bursar::prelude::*;
    /// # use bursar::stream::Submission;
    /// # use std::sync::Arc;
    /// # fn show(here: &Arc<DeviceContext>, dst: &mut TrackedBlock, there: &Arc<DeviceContext>, src: &TrackedBlock, stream: Stream) -> Result<()> {
    /// Submission::new(here, stream).copy_from_peer(dst, 0, there, src, 0, 4096)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn copy_from_peer(
        &mut self,
        dst: &mut TrackedBlock,
        dst_offset: u64,
        peer: &Arc<DeviceContext>,
        src: &TrackedBlock,
        src_offset: u64,
        bytes: u64,
    ) -> Result<()> {
        if Arc::ptr_eq(peer, self.context()) {
            return self.copy(dst, dst_offset, src, src_offset, bytes);
        }
        let (to, from) = (range(dst.block(), dst_offset, bytes)?, range(src.block(), src_offset, bytes)?);
        let own = Side { context: self.context(), block: dst, ptr: to, access: Access::Write };
        self.copy_between(own, Side { context: peer, block: src, ptr: from, access: Access::Read }, bytes)
    }

    /// Copies `bytes` from `src_offset` of a block of this context to `dst_offset` of one of another context, as
    /// [`copy_from_peer`](Self::copy_from_peer) does in the other direction.
    pub fn copy_to_peer(
        &mut self,
        peer: &Arc<DeviceContext>,
        dst: &mut TrackedBlock,
        dst_offset: u64,
        src: &TrackedBlock,
        src_offset: u64,
        bytes: u64,
    ) -> Result<()> {
        if Arc::ptr_eq(peer, self.context()) {
            return self.copy(dst, dst_offset, src, src_offset, bytes);
        }
        let (to, from) = (range(dst.block(), dst_offset, bytes)?, range(src.block(), src_offset, bytes)?);
        let own = Side { context: self.context(), block: src, ptr: from, access: Access::Read };
        self.copy_between(own, Side { context: peer, block: dst, ptr: to, access: Access::Write }, bytes)
    }

    fn copy_between(&mut self, own: Side<'_>, other: Side<'_>, bytes: u64) -> Result<()> {
        let (here, there) = (own.context, other.context);
        if !std::ptr::addr_eq(Arc::as_ptr(here.driver()), Arc::as_ptr(there.driver())) {
            return Err(Error::InvalidValue { what: "the two devices are of different drivers" });
        }
        self.declare_own(own.block, own.access)?;
        let proxy = there.peer_stream(other.access)?;
        let using = BlockUse::begin(other.block.uses(there)?, proxy, other.access)?;
        if bytes == 0 {
            return Ok(());
        }
        let (held, held_proxy) = (here.hold(self.stream())?, there.hold(proxy)?);
        // SAFETY: both streams are live while they are held.
        unsafe { chain_across(there, held_proxy.raw(), here, held.raw()) }?;
        let (dst, src) = if own.access == Access::Write { (own, other) } else { (other, own) };
        match submit_copy(here, held.raw(), dst.peer_ptr(), src.peer_ptr(), bytes) {
            Err(error) if matches!(error.status, Status::NotSupported | Status::InvalidValue) => {
                let (to, from) = if own.access == Access::Write { (&held, &held_proxy) } else { (&held_proxy, &held) };
                copy_through_host((dst, to), (src, from), bytes)
            }
            copied => {
                // SAFETY: both streams are live while they are held.
                let ordered = unsafe { chain_across(here, held.raw(), there, held_proxy.raw()) };
                if ordered.is_err() {
                    // The other context must not free or use the block before the copy has run.
                    here.wait_for(held.raw()).map_err(|error| here.failed(error))?;
                }
                drop(using);
                copied.map_err(|error| here.failed(error))
            }
        }
    }
}

/// Submits a copy between two ranges, which nothing else says to be valid: both lie in blocks that are borrowed while
/// their uses begin.
fn submit_copy(here: &DeviceContext, raw: RawStream, dst: PeerPtr, src: PeerPtr, bytes: u64) -> DriverResult<()> {
    let (driver, device) = (here.driver(), here.device());
    if dst.device == src.device {
        // SAFETY: the ranges lie in different blocks, both borrowed by the caller; their uses order them, and the stream
        // is held.
        return unsafe { driver.copy_on_device(device, raw, dst.ptr, src.ptr, bytes) };
    }
    // SAFETY: as above, and both devices are open while their contexts live.
    unsafe { driver.copy_peer(device, raw, dst, src, bytes) }
}

/// Copies through host memory, a part at a time, each on a stream that comes after the uses of its side. Nothing is in
/// flight when this returns.
fn copy_through_host(
    (dst, to): (Side<'_>, &StreamHold<'_>),
    (src, from): (Side<'_>, &StreamHold<'_>),
    bytes: u64,
) -> Result<()> {
    let mut staging = vec![0u8; bytes.min(STAGING_MAX) as usize];
    let mut done = 0;
    while done < bytes {
        let part = (bytes - done).min(staging.len() as u64);
        let context = src.context;
        // SAFETY: the range lies in a block that is borrowed, ordered by the use on the stream, which is held; the staging
        // memory is kept until the copy has run, below.
        let read = unsafe {
            let (driver, ptr) = (context.driver(), src.ptr.offset(done));
            driver.copy_to_host(context.device(), from.raw(), staging.as_mut_ptr(), ptr, part)
        };
        read.and(context.wait_for(from.raw())).map_err(|error| context.failed(error))?;
        let context = dst.context;
        // SAFETY: as above.
        let written = unsafe {
            let (driver, ptr) = (context.driver(), dst.ptr.offset(done));
            driver.copy_to_device(context.device(), to.raw(), ptr, staging.as_ptr(), part)
        };
        written.and(context.wait_for(to.raw())).map_err(|error| context.failed(error))?;
        done += part;
    }
    Ok(())
}

/// Makes what is submitted to `then` from here on wait for what was submitted to `first` before, where the two are
/// streams of different contexts of one driver.
///
/// # Safety
/// Both are live streams of their contexts.
unsafe fn chain_across(
    first_context: &DeviceContext,
    first: RawStream,
    then_context: &DeviceContext,
    then: RawStream,
) -> Result<()> {
    // SAFETY: the caller's own promise.
    let event = unsafe { first_context.record_event(first) }.map_err(|error| first_context.failed(error))?;
    // SAFETY: the caller's own promise; the event is of the same driver and was recorded just above.
    let ordered = unsafe { then_context.driver().stream_wait(then_context.device(), then, event) };
    // SAFETY: taken by `record_event`; a wait that was submitted keeps what it waits for.
    unsafe { first_context.return_event(event) };
    ordered.map_err(|error: DriverError| then_context.failed(error))
}

impl DeviceContext {
    /// Returns the stream of the context's own that stands for streams of other contexts where they access its blocks.
    fn peer_stream(&self, access: Access) -> Result<Stream> {
        let slot = &self.peer_streams()[usize::from(access == Access::Write)];
        match slot.get() {
            Some(&stream) => Ok(stream),
            None => self.create_stream(0).map(|made| *slot.get_or_init(|| made)),
        }
    }
}
