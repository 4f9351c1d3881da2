//! Buffers of pinned memory, which release themselves.

use super::PieceCache;
use crate::Placement;
use crate::memory::{Piece, Slab};
use bursar_core::{DevicePtr, HasContext};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Pinned host memory with one owner: bytes that every device can access, on any thread.
///
/// Dropping it, on any thread, returns it to its [pool](crate::PinnedPool) or, if it has none, releases it to the driver,
/// the kernel and the account, which waits for the work of the device. Moved into an asynchronous copy, as
/// [`HostMemory`](bursar_core::HostMemory), it stays there until the copy has run. A program that passes its address to a
/// device in another way keeps the buffer until the device has finished with it, or returns it with
/// [`release_on`](crate::PinnedPool::release_on).
///
/// Fresh memory contains zeros; that of a pool contains what its last owner left.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::device::DeviceContext;
/// use bursar::host::NumaWorkerPool;
/// use bursar::sim::Sim;
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let mut buffer = NumaWorkerPool::global()?.pin(&context, 1000).wait()?;
/// buffer[..3].copy_from_slice(&[1, 2, 3]);
/// let sum = std::thread::spawn(move || buffer.iter().map(|byte| u32::from(*byte)).sum::<u32>());
/// assert_eq!(sum.join().unwrap(), 6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PinnedBuffer {
    /// None once it has been returned.
    piece: Option<Piece>,
    len: usize,
    /// The cache that it returns to, and its bin there.
    origin: Option<(Arc<PieceCache>, u32)>,
}

impl PinnedBuffer {
    /// Creates a buffer of the first `len` bytes of a slab, which it owns alone.
    pub(crate) fn alone(slab: Slab, len: usize) -> Self {
        let bytes = slab.len();
        Self { piece: slab.cut(bytes).next(), len, origin: None }
    }

    /// Creates a buffer of the first `len` bytes of a piece that returns to `cache`.
    #[inline]
    pub(crate) fn of_pool(piece: Piece, len: usize, cache: Arc<PieceCache>, bin: u32) -> Self {
        Self { piece: Some(piece), len, origin: Some((cache, bin)) }
    }

    /// Returns its size in bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns false: a buffer has at least one byte.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the placement of its memory.
    pub fn placement(&self) -> &Placement {
        const NOWHERE: &Placement = &Placement::unknown();
        self.piece.as_ref().map_or(NOWHERE, |piece| piece.slab().placement())
    }

    /// Returns the address at which a device reaches the memory, for kernels that read or write it across the bus. It is
    /// valid while the buffer lives; as with a copy, whoever writes on one side waits for the other.
    ///
    /// ```
    /// use bursar::DeviceId;
    /// use bursar::device::DeviceContext;
    /// use bursar::host::PinnedPool;
    /// use bursar::sim::Sim;
    ///
    /// let gpu = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
    /// let buffer = PinnedPool::near(&gpu)?.get(4096)?;
    /// let address = buffer.device_ptr(&gpu)?;
    /// assert!(address.0 != 0, "an argument for a kernel");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn device_ptr(&self, device: &impl HasContext) -> bursar_core::Result<DevicePtr> {
        let context = device.device_context();
        let start = self.piece().map_or(std::ptr::null_mut(), Piece::start);
        let address = context.driver().host_device_pointer(context.device(), start);
        address.map_err(|error| context.failed(error))
    }

    #[inline]
    pub(crate) const fn piece(&self) -> Option<&Piece> {
        self.piece.as_ref()
    }

    /// Returns its piece and its bin in `cache`. A buffer of another cache is returned as the error.
    pub(crate) fn into_piece_of(mut self, cache: &Arc<PieceCache>) -> Result<(Piece, u32), Self> {
        match (&self.origin, self.piece.take()) {
            (Some((origin, bin)), Some(piece)) if Arc::ptr_eq(origin, cache) => Ok((piece, *bin)),
            (_, piece) => {
                self.piece = piece;
                Err(self)
            }
        }
    }
}

impl Drop for PinnedBuffer {
    #[inline]
    fn drop(&mut self) {
        if let (Some(piece), Some((cache, bin))) = (self.piece.take(), self.origin.take()) {
            cache.put(piece, bin);
        }
    }
}

impl Deref for PinnedBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.piece.as_ref().map_or(&[], |piece| piece.bytes(self.len))
    }
}

impl DerefMut for PinnedBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.piece.as_mut().map_or(&mut [], |piece| piece.bytes_mut(self.len))
    }
}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBuffer").field("len", &self.len).field("piece", &self.piece).finish_non_exhaustive()
    }
}
