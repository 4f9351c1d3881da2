//! Pinned buffers as the source and target of asynchronous copies.
#![allow(unsafe_code)]

use super::PinnedBuffer;
use bursar_core::HostMemory;

// SAFETY: the piece of a buffer is mapped for as long as the buffer lives, belongs to it alone, and stays in place when the
// buffer moves; address and length are fixed when the buffer is created.
unsafe impl HostMemory for PinnedBuffer {
    #[inline]
    fn host_ptr(&mut self) -> *mut u8 {
        self.piece().map_or(std::ptr::null_mut(), |piece| piece.start())
    }

    #[inline]
    fn host_len(&self) -> usize {
        self.len()
    }
}
