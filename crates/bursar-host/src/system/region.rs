//! Mapped memory that unmaps itself.
#![allow(unsafe_code)]

use super::calls;
use crate::Errno;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The alignment of huge pages.
const HUGE: usize = 2 << 20;

/// A range of this process's addresses, mapped until it is dropped. A large one is aligned to huge pages.
///
/// ```
/// use bursar::host::{Machine, System};
///
/// let region = Machine::default().reserve(3 << 20)?;
/// assert_eq!(region.len(), 3 << 20);
/// assert_eq!(region.address() % (2 << 20), 0);
/// # Ok::<(), bursar::host::Errno>(())
/// ```
pub struct Region {
    start: NonNull<u8>,
    bytes: usize,
    mapped: Arc<AtomicUsize>,
}

// SAFETY: a region is addresses that nobody else has; it returns no reference to the memory there.
unsafe impl Send for Region {}
// SAFETY: as above; whatever it does through a shared reference may be done by several threads at once.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `bytes`, a multiple of pages, and counts them in `mapped` until they are unmapped.
    pub(super) fn map(bytes: usize, mapped: &Arc<AtomicUsize>) -> Result<Self, Errno> {
        let spare = if bytes >= HUGE { HUGE } else { 0 };
        let all = bytes.checked_add(spare).ok_or(Errno(libc::ENOMEM))?;
        let start = calls::map(all)?;
        let front = if spare > 0 { start.as_ptr().align_offset(HUGE).min(spare) } else { 0 };
        // SAFETY: at most the spare bytes further, inside the mapping.
        let begin = unsafe { start.add(front) };
        // SAFETY: inside the mapping or at its end.
        let end = unsafe { begin.add(bytes) };
        mapped.fetch_add(bytes, Ordering::Relaxed);
        for (from, len) in [(start, front), (end, spare - front)] {
            if len > 0 {
                // SAFETY: the margins of a mapping that nobody knows of yet. One that stays mapped is addresses without
                // memory.
                let _ = unsafe { calls::unmap(from, len) };
            }
        }
        Ok(Self { start: begin, bytes, mapped: mapped.clone() })
    }

    /// Returns its first address.
    pub fn address(&self) -> usize {
        self.start.as_ptr().addr()
    }

    /// Returns its size in bytes.
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Returns false: a region of no bytes cannot be mapped.
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Writes a zero to each page of a part. Only for memory that nobody has been given yet.
    pub(crate) fn touch(&self, part: Range<usize>) {
        for at in part.step_by(calls::page()).filter(|at| *at < self.bytes) {
            // SAFETY: inside the mapping.
            let byte = unsafe { self.start.add(at) };
            // SAFETY: mapped for writing, and nobody reads it meanwhile.
            unsafe { byte.write_volatile(0) };
        }
    }

    pub(crate) const fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, and all pieces of it are gone.
        match unsafe { calls::unmap(self.start, self.bytes) } {
            Ok(()) => drop(self.mapped.fetch_sub(self.bytes, Ordering::Relaxed)),
            Err(why) => tracing::error!(%why, bytes = self.bytes, "a region could not be unmapped and stays"),
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({:#x}, {} bytes)", self.address(), self.bytes)
    }
}
