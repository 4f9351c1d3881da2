//! The arguments of entry points that are pointers.
//!
//! A program that calls an entry point promises what CUDA's manual demands of its arguments. These types carry that promise
//! into the calls: they have the layout of a pointer, and this crate makes none but those of an address that a program
//! passed to a copy or a fill; so each was passed to the entry point whose declaration names it. Nulls are refused here, with the
//! driver's status for them.
#![allow(unsafe_code)]

use crate::status::{CUresult, CallResult};
use std::ffi::{CStr, c_char, c_int, c_void};

/// A place for a result: null, or valid for one value.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T: Copy> Out<T> {
    /// Refuses null.
    pub(crate) fn required(self) -> CallResult<Self> {
        if self.0.is_null() { Err(CUresult::CUDA_ERROR_INVALID_VALUE) } else { Ok(self) }
    }

    /// Stores the result. Null is refused.
    pub(crate) fn set(self, value: T) -> CallResult {
        self.required()?.set_if_wanted(value);
        Ok(())
    }

    /// Stores the result, unless the program passed null for it.
    pub(crate) fn set_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, so the program passed a place for one value. It need not be aligned for `T`: programs pass
            // bytes of their own for attributes of several types.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Returns the value that the program has stored there. Null is refused.
    pub(crate) fn get(self) -> CallResult<T> {
        let place = self.required()?;
        // SAFETY: not null, and the program has stored a value there, as the manual demands of places that are read too.
        Ok(unsafe { place.0.read_unaligned() })
    }
}

impl Out<c_void> {
    /// Returns the place as one for a value of the type that the program has there, which follows from another argument.
    pub(crate) fn typed<T>(self) -> Out<T> {
        Out(self.0.cast())
    }
}

impl<T: Copy> Out<T> {
    /// Returns the place with this index, which is below the count that the program passed. Null is refused.
    pub(crate) fn at(self, index: usize) -> CallResult<Self> {
        Ok(Self(self.required()?.0.wrapping_add(index)))
    }
}

/// A value that a program passes by its address: null, or valid for reads of as many values as the call says.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T: Copy> In<T> {
    /// Returns the value. Null is refused.
    pub(crate) fn get(self) -> CallResult<T> {
        self.at(0)
    }

    /// Returns the value with this index, which is below the count that the program passed. Null is refused.
    pub(crate) fn at(self, index: usize) -> CallResult<T> {
        if self.0.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the index is below the count.
        let value = unsafe { self.0.add(index) };
        // SAFETY: not null, so the program passed so many values.
        Ok(unsafe { value.read_unaligned() })
    }
}

impl In<c_void> {
    /// Returns the value as one of the type that the program has there, which follows from another argument.
    pub(crate) fn typed<T>(self) -> In<T> {
        In(self.0.cast())
    }
}

impl In<c_char> {
    /// Returns the text, ended by a zero. Null is refused.
    pub(crate) fn text(self) -> CallResult<&'static CStr> {
        if self.0.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so the program passed a text that is ended by a zero and lives as long as the call.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }
}

impl Out<c_char> {
    /// Stores a text, ended by a zero and cut to the length that the program passed for the place.
    pub(crate) fn set_text(self, text: &str, length: c_int) -> CallResult {
        let length = usize::try_from(length).ok().filter(|length| *length > 0);
        let kept = length.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)? - 1;
        let place = self.required()?;
        let bytes = text.bytes().take(kept).chain([0]);
        for (index, byte) in bytes.enumerate() {
            // SAFETY: the index is below the length of the place.
            let to = unsafe { place.0.add(index) };
            // SAFETY: as above.
            unsafe { to.write(byte as c_char) };
        }
        Ok(())
    }
}

/// Host memory that a call reads or writes: valid for as many bytes as the call says, for as long as the manual demands.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host(*mut c_void);

impl Host {
    /// Returns the memory `bytes` further on, which is still in what the program passed.
    pub(crate) fn offset(self, bytes: usize) -> Self {
        Self(self.0.wrapping_byte_add(bytes))
    }

    /// Returns the host memory at an address of the unified address space, which the program passed to a copy.
    pub(crate) fn unified(address: u64) -> Self {
        Self(std::ptr::with_exposed_provenance_mut(address as usize))
    }

    pub(crate) fn as_ptr(self) -> *mut u8 {
        self.0.cast()
    }

    pub(crate) fn address(self) -> u64 {
        self.0.addr() as u64
    }
}

// SAFETY: the memory is the program's, and the call to which it was passed says that other threads of the driver use it.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

/// Host memory that a call only reads.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostSource(*const c_void);

impl HostSource {
    /// Returns the host memory at an address of the unified address space, which the program passed to a copy.
    pub(crate) fn unified(address: u64) -> Self {
        Self(std::ptr::with_exposed_provenance(address as usize))
    }

    pub(crate) fn as_ptr(self) -> *const u8 {
        self.0.cast()
    }

    pub(crate) fn address(self) -> u64 {
        self.0.addr() as u64
    }
}

// SAFETY: as for `Host`.
unsafe impl Send for HostSource {}
// SAFETY: as above.
unsafe impl Sync for HostSource {}
