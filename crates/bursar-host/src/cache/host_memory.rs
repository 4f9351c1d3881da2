//! Pinned buffers as the source and target of asynchronous copies.
#![allow(unsafe_code)]

use super::PinnedBuffer;
use bursar_core::HostMemory;

// SAFETY: a buffer's piece is mapped for as long as the buffer lives, is its alone, and stays where it is when the buffer
// moves; both answers are fixed when the buffer is made.
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
