//! The device that the share is of, among those that the program sees.

use crate::driver::{self, Device};
use crate::share::Share;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

/// The place of the share's device among those that the driver shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It is the only device.
    Only(Device),
    /// It is one of several.
    Among(Device),
    /// It is not there.
    Absent,
}

/// Returns the place of the share's device; none while the driver does not tell, since it is not initialised.
fn place(share: &Share) -> Option<Place> {
    static PLACE: OnceLock<Place> = OnceLock::new();
    if let Some(place) = PLACE.get() {
        return Some(*place);
    }
    let count = driver::device_count()?;
    let uuid = share.uuid().0;
    let is_it = |device: &Device| driver::device_uuid(*device) == Some(uuid);
    let found = (0..count).filter_map(driver::device_at).find(is_it);
    let place = match found {
        Some(device) if count == 1 => Place::Only(device),
        Some(device) => Place::Among(device),
        None => Place::Absent,
    };
    Some(*PLACE.get_or_init(|| place))
}

/// Returns the share's device; none where it is not there.
pub(crate) fn of(share: &Share) -> Option<Device> {
    match place(share)? {
        Place::Only(device) | Place::Among(device) => Some(device),
        Place::Absent => None,
    }
}

/// Returns whether `device` is the share's.
pub(crate) fn is(share: &Share, device: Device) -> bool {
    of(share) == Some(device)
}

/// The beginning of `CUmemAllocationProp` and of `CUmemPoolProps`, up to where the memory is to be.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Properties {
    kind: c_int,
    handle_types: c_int,
    location_kind: c_int,
    location: Device,
}

/// Returns whether memory with these properties, of a handle or of a pool, is the share's device's.
pub(crate) fn has(share: &Share, properties: *const c_void) -> bool {
    const DEVICE: c_int = 1;
    let Properties { location_kind, location, .. } = driver::read(properties.cast::<Properties>());
    location_kind == DEVICE && is(share, location)
}

/// Returns whether the current context is one of the share's device.
#[inline]
pub(crate) fn is_current(share: &Share) -> bool {
    match place(share) {
        Some(Place::Only(_)) => true,
        Some(Place::Among(device)) => driver::current_device() == Some(device),
        Some(Place::Absent) | None => false,
    }
}
