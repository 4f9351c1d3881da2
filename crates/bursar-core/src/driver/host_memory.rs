//! Host memory that asynchronous copies read and write.
#![allow(unsafe_code)]

use bytemuck::Pod;

/// Host memory that stays where it is while its owner moves: a source or target of asynchronous copies.
///
/// ```
/// use bursar::memory::HostMemory;
///
/// let mut bytes = vec![1u8, 2, 3];
/// assert_eq!(bytes.host_len(), 3);
/// assert_eq!(bytes.host_ptr().cast_const(), bytes.as_ptr());
/// ```
///
/// # Safety
/// `host_ptr()` is valid for reads and writes of `host_len()` bytes. Both return the same, and the memory stays valid,
/// until the value is dropped or changed by its owner; moving the value does not move the memory.
pub unsafe trait HostMemory: Send + 'static {
    /// Returns the address of its first byte.
    fn host_ptr(&mut self) -> *mut u8;

    /// Returns the number of bytes.
    fn host_len(&self) -> usize;
}

// SAFETY: a vector's memory is on the heap and nothing here grows it; its elements are bytes whatever they are.
unsafe impl<T: Pod + Send> HostMemory for Vec<T> {
    fn host_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr().cast()
    }
    fn host_len(&self) -> usize {
        size_of_val(self.as_slice())
    }
}

// SAFETY: a boxed slice's memory is on the heap; its elements are bytes whatever they are.
unsafe impl<T: Pod + Send> HostMemory for Box<[T]> {
    fn host_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr().cast()
    }
    fn host_len(&self) -> usize {
        size_of_val::<[T]>(self)
    }
}

/// Host memory for elements of one type: a source or target of typed copies.
///
/// A vector or boxed slice holds elements of its own type. Memory that is plain bytes, as pinned buffers are, takes
/// elements of any type, as many as fill it exactly.
///
/// ```
/// use bursar::memory::HostElements;
///
/// fn bytes_of<T>(memory: &impl HostElements<T>) -> usize {
///     memory.host_len()
/// }
///
/// assert_eq!(bytes_of::<f32>(&vec![1.0, 2.0]), 8);
/// ```
pub trait HostElements<T>: HostMemory {}

impl<T: Pod + Send> HostElements<T> for Vec<T> {}

impl<T: Pod + Send> HostElements<T> for Box<[T]> {}
