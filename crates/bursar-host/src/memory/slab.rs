//! Slabs of pinned memory, and the pieces that they are cut into.
#![allow(unsafe_code)]

use super::{Charge, Placement};
use crate::{PinnedKind, Region};
use bursar_core::{Bytes, DeviceContext, DriverError, HostFlags};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Pinned memory that every device can access. Dropping it releases it: to the driver first, which waits for the work of the
/// device if the memory was registered, then to the kernel, then to the account.
pub(crate) struct Slab {
    /// None once it has been released.
    backing: Option<Backing>,
    start: NonNull<u8>,
    bytes: usize,
    placement: Placement,
    stranded: Arc<StrandedSlabs>,
}

/// The resources behind a slab, released in the order of the fields.
struct Backing {
    context: Arc<DeviceContext>,
    start: NonNull<u8>,
    /// The registered region; none where the driver allocated the memory itself.
    region: Option<Region>,
    charge: Charge,
}

// SAFETY: a slab is memory that nobody else has; only its pieces give access to it.
unsafe impl Send for Slab {}
// SAFETY: nothing is read or written through a shared slab.
unsafe impl Sync for Slab {}
// SAFETY: as for a slab.
unsafe impl Send for Backing {}

impl Slab {
    /// Pins a region. On failure the region and the charge are released.
    pub(crate) fn register(
        context: &Arc<DeviceContext>,
        region: Region,
        charge: Charge,
        stranded: &Arc<StrandedSlabs>,
    ) -> Result<Self, DriverError> {
        let (start, bytes, device) = (region.start(), region.len(), context.device());
        // SAFETY: the region is mapped, and stays so in `Backing` until it has been unregistered.
        unsafe { context.driver().host_register(device, start.as_ptr(), bytes, HostFlags::default()) }?;
        Ok(Self::new(context, start, bytes, Some(region), charge, stranded))
    }

    /// Lets the driver allocate pinned memory itself. On failure the charge is released.
    pub(crate) fn allocate(
        context: &Arc<DeviceContext>,
        bytes: usize,
        kind: PinnedKind,
        charge: Charge,
        stranded: &Arc<StrandedSlabs>,
    ) -> Result<Self, DriverError> {
        let flags = HostFlags { write_combined: kind == PinnedKind::WriteCombined };
        let start = context.driver().host_allocate(context.device(), bytes, flags)?;
        let out_of_memory = || DriverError::new("host_allocate", context.device(), bursar_core::Status::OutOfMemory);
        let start = NonNull::new(start).ok_or_else(out_of_memory)?;
        Ok(Self::new(context, start, bytes, None, charge, stranded))
    }

    fn new(
        context: &Arc<DeviceContext>,
        start: NonNull<u8>,
        bytes: usize,
        region: Option<Region>,
        charge: Charge,
        stranded: &Arc<StrandedSlabs>,
    ) -> Self {
        let backing = Some(Backing { context: context.clone(), start, region, charge });
        Self { backing, start, bytes, placement: Placement::unknown(), stranded: stranded.clone() }
    }

    /// Sets its placement.
    pub(crate) fn placed(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    pub(crate) const fn placement(&self) -> &Placement {
        &self.placement
    }

    pub(crate) const fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn address(&self) -> usize {
        self.start.as_ptr().addr()
    }

    /// Cuts it into pieces of `each` bytes, which together keep it alive. A remainder stays unused.
    pub(crate) fn cut(self, each: usize) -> impl Iterator<Item = Piece> + use<> {
        let count = self.bytes.checked_div(each).unwrap_or(0);
        let slab = Arc::new(self);
        (0..count).map(move |index| {
            // SAFETY: `count` pieces of `each` bytes are no more than the slab has.
            let start = unsafe { slab.start.add(index * each) };
            Piece { start, bytes: each, slab: slab.clone() }
        })
    }
}

impl Backing {
    /// Unpins the memory.
    fn unpin(&self) -> Result<(), DriverError> {
        let (driver, device, start) = (self.context.driver(), self.context.device(), self.start.as_ptr());
        match self.region {
            // SAFETY: registered once, when the slab was created; unregistered successfully only once, since it is dropped
            // then.
            Some(_) => unsafe { driver.host_unregister(device, start) },
            // SAFETY: allocated by this driver for the slab, and freed successfully only once; its pieces are gone, and each
            // was kept until the device had finished with it.
            None => unsafe { driver.host_free(device, start) },
        }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if let Some(backing) = self.backing.take()
            && let Err(error) = backing.unpin()
        {
            backing.context.fault().record(error);
            self.stranded.state().backing.push(backing);
        }
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slab({:#x}, {} bytes)", self.address(), self.bytes)
    }
}

/// The slabs that a driver failed to release: mapped and charged until it does.
#[derive(Default)]
pub(crate) struct StrandedSlabs {
    state: Mutex<StrandedState>,
    /// Notified when a thread has tried to release them.
    tried: Condvar,
}

#[derive(Default)]
struct StrandedState {
    backing: Vec<Backing>,
    /// True while a thread has taken them out to release them.
    is_retrying: bool,
}

impl StrandedSlabs {
    fn state(&self) -> MutexGuard<'_, StrandedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries to release each once more, unless another thread does so.
    pub(crate) fn try_retry(&self) {
        let state = self.state();
        if !state.is_retrying {
            self.retry_taken(state);
        }
    }

    /// Tries to release each once more, those included that another thread is trying to release. Returns the bytes that remain.
    pub(crate) fn retry(&self) -> Bytes {
        let mut state = self.state();
        while state.is_retrying {
            state = self.tried.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        self.retry_taken(state);
        let state = self.state();
        state.backing.iter().fold(Bytes::ZERO, |sum, backing| sum.saturating_add(backing.charge.bytes()))
    }

    /// Takes all of them out, and puts back what is not released.
    fn retry_taken(&self, mut state: MutexGuard<'_, StrandedState>) {
        if state.backing.is_empty() {
            return;
        }
        state.is_retrying = true;
        let mut retry = Retry { stranded: self, left: Vec::new() };
        let all = std::mem::take(&mut state.backing);
        drop(state);
        for backing in all {
            if backing.unpin().is_err() {
                retry.left.push(backing);
            }
        }
    }
}

/// A retry under way, which is over when this is dropped, also where a driver panics.
struct Retry<'a> {
    stranded: &'a StrandedSlabs,
    left: Vec<Backing>,
}

impl Drop for Retry<'_> {
    fn drop(&mut self) {
        let mut state = self.stranded.state();
        state.backing.append(&mut self.left);
        state.is_retrying = false;
        drop(state);
        self.stranded.tried.notify_all();
    }
}

impl fmt::Debug for StrandedSlabs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stranded").field("slabs", &self.state().backing.len()).finish()
    }
}

/// A part of a slab with one owner; the slab lives until all of its pieces are gone.
pub(crate) struct Piece {
    start: NonNull<u8>,
    bytes: usize,
    slab: Arc<Slab>,
}

// SAFETY: a piece is memory that only its owner has, on whichever thread.
unsafe impl Send for Piece {}
// SAFETY: a shared piece can only be read.
unsafe impl Sync for Piece {}

impl Piece {
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) const fn slab(&self) -> &Arc<Slab> {
        &self.slab
    }

    #[inline]
    pub(crate) const fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns its first `len` bytes, or all of them if there are fewer.
    #[inline]
    pub(crate) fn bytes(&self, len: usize) -> &[u8] {
        // SAFETY: the memory of the slab is mapped and initialised by the kernel, lives as long as the piece, and this part
        // of it belongs to the piece alone.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), len.min(self.bytes)) }
    }

    /// Returns its first `len` bytes, or all of them if there are fewer, for writing.
    #[inline]
    pub(crate) fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        // SAFETY: as for `bytes`, and the piece is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), len.min(self.bytes)) }
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({:p}, {} bytes)", self.start, self.bytes)
    }
}
