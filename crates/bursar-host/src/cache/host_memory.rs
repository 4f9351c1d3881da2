//! Pinned buffers as the source and target of asynchronous copies.
#![allow(unsafe_code)]

use super::{PinnedArray, PinnedBuffer};
use bursar_core::{HostElements, HostMemory};
use bytemuck::Pod;

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

impl<T: Pod> HostElements<T> for PinnedBuffer {}

// SAFETY: it has a buffer, for which this holds, and at most as many bytes; nothing shortens it while a copy has it.
unsafe impl<T: Pod + Send> HostMemory for PinnedArray<T> {
    fn host_ptr(&mut self) -> *mut u8 {
        self.buffer_mut().host_ptr()
    }

    fn host_len(&self) -> usize {
        self.bytes()
    }
}

impl<T: Pod + Send> HostElements<T> for PinnedArray<T> {}
