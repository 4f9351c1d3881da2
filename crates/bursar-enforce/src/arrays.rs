//! Arrays and mipmaps: memory in a layout of the driver's own, whose size no call says.
//!
//! What an array takes is what is free before less what is free after, where that lies between its elements and twice as much; other
//! programs change what is free too, and then the most is charged.
#![allow(unsafe_code)]

use crate::driver::{self, Handle, read, write};
use crate::entry::SUCCESS;
use crate::granule::{self, Granule, PAGE};
use crate::hook::hook;
use crate::integer_map::IntegerMap;
use crate::share::Share;
use crate::{charge, device, refusal, steps};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// The flags of arrays that take no memory of their own.
const SPARSE: c_uint = 0x40;
const DEFERRED: c_uint = 0x80;

/// `CUDA_ARRAY_DESCRIPTOR_v1`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Plane32 {
    width: c_uint,
    height: c_uint,
    format: c_int,
    channels: c_uint,
}

/// `CUDA_ARRAY_DESCRIPTOR_v2`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Plane {
    width: usize,
    height: usize,
    format: c_int,
    channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR_v1`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Solid32 {
    width: c_uint,
    height: c_uint,
    depth: c_uint,
    format: c_int,
    channels: c_uint,
    flags: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR_v2`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Solid {
    width: usize,
    height: usize,
    depth: usize,
    format: c_int,
    channels: c_uint,
    flags: c_uint,
}

impl Solid {
    fn of_plane(plane: Plane) -> Self {
        let Plane { width, height, format, channels } = plane;
        Self { width, height, format, channels, ..Self::default() }
    }

    /// Returns the bytes of the elements of `levels` levels, each half as long in every direction.
    fn bytes(&self, levels: u32) -> u64 {
        let element = element_bytes(self.format).saturating_mul(u64::from(self.channels.max(1)));
        let length = |whole: usize, level: u32| ((whole as u64) >> level.min(63)).max(1);
        let level = |level| {
            let plane = length(self.width, level).saturating_mul(length(self.height, level));
            plane.saturating_mul(length(self.depth, level)).saturating_mul(element)
        };
        let longest = self.width.max(self.height).max(self.depth).max(1);
        (0..levels.clamp(1, longest.ilog2() + 1)).map(level).fold(0, u64::saturating_add)
    }
}

/// Returns the bytes of one channel of an element; of formats that are not known, the most that there is.
const fn element_bytes(format: c_int) -> u64 {
    match format {
        1 | 8 => 1,
        2 | 9 | 0x10 => 2,
        _ => 4,
    }
}

/// The arrays and mipmaps that are charged.
static LIVE: LazyLock<Mutex<IntegerMap<(u64, usize)>>> = LazyLock::new(Mutex::default);

fn live() -> MutexGuard<'static, IntegerMap<(u64, usize)>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn create(
    share: &Share,
    array: *mut Handle,
    shape: &Solid,
    levels: u32,
    call: impl FnOnce() -> c_int,
    destroy: fn(Handle),
) -> c_int {
    let elements = shape.bytes(levels);
    let most = elements.checked_mul(2).and_then(|bytes| bytes.checked_next_multiple_of(PAGE));
    let Some(most) = most.filter(|_| device::is_current(share)) else { return call() };
    let least = match granule::known(share) {
        _ if shape.flags & (SPARSE | DEFERRED) != 0 => 0,
        Granule::Multiple(multiple) => elements.next_multiple_of(multiple),
        Granule::Pages => elements,
    };
    let Some(charged) = charge::between(share, least..=most) else { return refusal::refuse(share, elements) };
    let (was, before) = (read(array), driver::memory());
    steps::passed(c"array charged");
    let status = call();
    if status != SUCCESS {
        share.release(charged);
        return refusal::failed(share, elements, status);
    }
    steps::passed(c"array taken");
    let taken = before.zip(driver::memory()).map(|(before, after)| before.0.saturating_sub(after.0));
    let actual = taken.filter(|taken| (least..=most).contains(taken)).unwrap_or(most);
    if !charge::settle(share, charged, actual) {
        destroy(read(array));
        write(array, was);
        share.release(charged);
        return refusal::refuse(share, elements);
    }
    let context = driver::current_context().unwrap_or_default();
    live().insert(read(array).0.addr() as u64, (actual, context.0.addr()));
    status
}

fn destroy(share: &Share, array: Handle, call: impl FnOnce() -> c_int) -> c_int {
    let at = array.0.addr() as u64;
    let taken_out = live().remove(&at);
    let status = call();
    match taken_out {
        Some((bytes, _)) if status == SUCCESS => share.release(bytes),
        Some(entry) => drop(live().insert(at, entry)),
        None => {}
    }
    status
}

/// The arrays and mipmaps of a context, taken out of the entries.
#[derive(Debug)]
pub(crate) struct OfContext(Vec<(u64, (u64, usize))>);

/// Takes out what was made in a context. Once that is gone, another thread may be given the same handles.
pub(crate) fn take_out(context: Handle) -> OfContext {
    let mut taken_out = Vec::new();
    live().retain(|at, entry| {
        let stays = entry.1 != context.0.addr();
        if !stays {
            taken_out.push((*at, *entry));
        }
        stays
    });
    OfContext(taken_out)
}

impl OfContext {
    /// Ends the charges: the context is gone.
    pub(crate) fn end(self, share: &Share) {
        share.release(self.0.iter().map(|(_, (bytes, _))| bytes).sum());
    }

    /// Enters everything again: the context is still there.
    pub(crate) fn put_back(self) {
        live().extend(self.0);
    }
}

hook! {
    take fn cuArrayCreate(array: *mut Handle, shape: *const Plane32) |real, share| {
        let Plane32 { width, height, format, channels } = read(shape);
        let plane = Plane { width: width as usize, height: height as usize, format, channels };
        create(share, array, &Solid::of_plane(plane), 1, || real(array, shape), driver::destroy_array)
    };
    take fn cuArrayCreate_v2(array: *mut Handle, shape: *const Plane) |real, share| {
        create(share, array, &Solid::of_plane(read(shape)), 1, || real(array, shape), driver::destroy_array)
    };
    take fn cuArray3DCreate(array: *mut Handle, shape: *const Solid32) |real, share| {
        let Solid32 { width, height, depth, format, channels, flags } = read(shape);
        let (width, height, depth) = (width as usize, height as usize, depth as usize);
        let solid = Solid { width, height, depth, format, channels, flags };
        create(share, array, &solid, 1, || real(array, shape), driver::destroy_array)
    };
    take fn cuArray3DCreate_v2(array: *mut Handle, shape: *const Solid) |real, share| {
        create(share, array, &read(shape), 1, || real(array, shape), driver::destroy_array)
    };
    take fn cuMipmappedArrayCreate(array: *mut Handle, shape: *const Solid, levels: c_uint) |real, share| {
        create(share, array, &read(shape), levels, || real(array, shape, levels), driver::destroy_mipmap)
    };
    pass fn cuArrayDestroy(array: Handle) |real, share| destroy(share, array, || real(array));
    pass fn cuMipmappedArrayDestroy(array: Handle) |real, share| destroy(share, array, || real(array));
}

const _: () = assert!(size_of::<Solid>() == 40 && size_of::<*mut c_void>() == 8, "the layout of the driver's header");
