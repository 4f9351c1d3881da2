//! Addresses in device memory and their alignment.

use std::fmt;

/// An address in device memory; never dereferenced on the host.
///
/// ```
/// use bursar::memory::DevicePtr;
///
/// assert_eq!(DevicePtr(0x200).offset(0x100), DevicePtr(0x300));
/// assert_eq!(DevicePtr(0x200).to_string(), "0x200");
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// Returns the address `bytes` further on.
    pub const fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

impl fmt::Display for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Every block is aligned to at least this many bytes.
pub const MIN_ALIGN: u64 = 256;
/// The largest alignment that can be requested, in bytes.
pub const MAX_ALIGN: u64 = 2 << 20;

/// The largest size of a request, 4 EiB: so much more than any device has that whatever is added for alignment and rounding is
/// counted without overflow, and larger ones are refused as sizes rather than for want of memory.
pub const MAX_SIZE: u64 = 1 << 62;

/// Returns whether a request may have this size: it is neither zero nor above [`MAX_SIZE`].
#[inline]
pub const fn is_size(bytes: u64) -> bool {
    bytes.wrapping_sub(1) < MAX_SIZE
}
