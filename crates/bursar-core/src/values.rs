//! Plain values that every other module speaks of: sizes, addresses, tags, generations and devices.

mod access;
mod address;
mod bytes;
mod device;
mod generation;
mod tag;

pub use access::Access;
pub use address::{DevicePtr, MAX_ALIGN, MAX_SIZE, MIN_ALIGN, is_size};
pub use bytes::{Bytes, ParseBytesError};
pub use device::{
    Capabilities, DeviceFacts, DeviceId, DeviceUuid, Link, LinkKind, MemoryInfo, NumaNode, ParseUuidError, PciAddress,
};
pub use generation::Generation;
pub use tag::AllocTag;
