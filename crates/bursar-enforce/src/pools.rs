//! Memory that the driver takes in its own time: stream-ordered pools, and the memory of graphs.
//!
//! What such a *store* costs is what it has reserved, which the driver tells; a free does not change that, and a synchronisation may.
//! A call that can make it grow is charged first for what it may take, and what the store has reserved afterwards is what stays
//! charged.
#![allow(unsafe_code)]

use crate::driver::{self, Device, Handle, read};
use crate::entry::SUCCESS;
use crate::granule::PAGE;
use crate::hook::hook;
use crate::share::Share;
use crate::{device, refusal, steps};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The attributes of a pool: what it has taken from the device, and what of that is in use.
const POOL_RESERVED: c_int = 5;
const POOL_USED: c_int = 7;
/// The attributes of a device's graph memory.
const GRAPHS_USED: c_int = 0;
const GRAPHS_RESERVED: c_int = 2;

/// Memory that the driver keeps for calls to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Pool(Handle),
    Graphs(Device),
}

// SAFETY: the handle of a pool means the same in every thread.
unsafe impl Send for Store {}

impl Store {
    /// Returns what the store has taken from the device; none where the driver does not tell.
    fn reserved(self) -> Option<u64> {
        match self {
            Self::Pool(pool) => driver::pool_attribute(pool, POOL_RESERVED),
            Self::Graphs(device) => driver::graph_attribute(device, GRAPHS_RESERVED),
        }
    }

    fn used(self) -> Option<u64> {
        match self {
            Self::Pool(pool) => driver::pool_attribute(pool, POOL_USED),
            Self::Graphs(device) => driver::graph_attribute(device, GRAPHS_USED),
        }
    }

    fn trim(self) -> bool {
        match self {
            Self::Pool(pool) => driver::trim_pool(pool),
            Self::Graphs(device) => driver::trim_graphs(device),
        }
    }
}

/// The charge for a store.
#[derive(Clone, Copy, Debug)]
struct Charged {
    store: Store,
    /// Everything that is charged for it, calls that are under way included.
    bytes: u64,
    /// The part of it that was charged beforehand for calls that are under way.
    beforehand: u64,
    /// Counts settlements, so that one that read an old figure is noticed.
    settled: u64,
}

static STORES: Mutex<Vec<Charged>> = Mutex::new(Vec::new());
/// Pools that are no business of the share: of other devices, of host memory, of other processes.
static FOREIGN: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// True once there is a store.
static ANY: AtomicBool = AtomicBool::new(false);

fn stores() -> MutexGuard<'static, Vec<Charged>> {
    STORES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn foreign() -> MutexGuard<'static, Vec<usize>> {
    FOREIGN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with<T>(store: Store, act: impl FnOnce(&mut Charged) -> T) -> T {
    let mut stores = stores();
    let at = stores.iter().position(|charged| charged.store == store).unwrap_or_else(|| {
        ANY.store(true, Relaxed);
        stores.push(Charged { store, bytes: 0, beforehand: 0, settled: 0 });
        stores.len() - 1
    });
    act(&mut stores[at])
}

/// Makes a call that may have `store` take up to `bytes` more from the device. `undo` takes back a call that went well and turned out
/// to cost more than is left; where that cannot be done, the rest is charged as soon as there is room.
pub(crate) fn grow(
    share: &Share,
    store: Store,
    bytes: u64,
    call: impl FnOnce() -> c_int,
    undo: impl FnOnce() -> bool,
) -> c_int {
    let Some(most) = bytes.checked_next_multiple_of(PAGE) else { return call() };
    let charged = match most {
        most if share.charge(most) => most,
        most => match charge_less(share, store, bytes, most) {
            Some(charged) => charged,
            None => return refusal::refuse(share, bytes),
        },
    };
    with(store, |charge| {
        charge.bytes += charged;
        charge.beforehand += charged;
    });
    steps::passed("store charged");
    let status = call();
    steps::passed("store grown");
    with(store, |charge| charge.beforehand -= charged);
    if !settle(share, store) && status == SUCCESS && undo() {
        settle(share, store);
        return refusal::refuse(share, bytes);
    }
    status
}

/// Charges what a call may cost where there is no room for the most: nothing, if the store has so much that is not in use.
#[cold]
fn charge_less(share: &Share, store: Store, bytes: u64, most: u64) -> Option<u64> {
    settle_all(share);
    let has =
        |store: Store| store.reserved().zip(store.used()).map_or(0, |(reserved, used)| reserved.saturating_sub(used));
    if has(store) >= bytes {
        return Some(0);
    }
    [most, bytes].into_iter().find(|bytes| share.charge(*bytes)).or_else(|| {
        reclaim(share);
        [most, bytes].into_iter().find(|bytes| share.charge(*bytes))
    })
}

/// Makes the charge for a store what it has reserved. Returns false where it has reserved more than is left of the share.
fn settle(share: &Share, store: Store) -> bool {
    loop {
        let before = with(store, |charge| charge.settled);
        let Some(reserved) = store.reserved() else { return true };
        let change = with(store, |charge| {
            if charge.settled != before {
                return None;
            }
            let target = reserved + charge.beforehand;
            if target > charge.bytes && !share.charge(target - charge.bytes) {
                return Some((0, false));
            }
            charge.settled += 1;
            let freed = charge.bytes.saturating_sub(target);
            charge.bytes = target;
            Some((freed, true))
        });
        if let Some((freed, is_settled)) = change {
            share.release(freed);
            return is_settled;
        }
    }
}

/// Makes the charges for all stores what they have reserved.
pub(crate) fn settle_all(share: &Share) {
    if ANY.load(Relaxed) {
        let all: Vec<Store> = stores().iter().map(|charged| charged.store).collect();
        for store in all {
            // What it has beyond the share is charged as soon as there is room.
            let _ = settle(share, store);
        }
    }
}

/// Has every store give back what it does not use. Returns whether there is any.
#[cold]
pub(crate) fn reclaim(share: &Share) -> bool {
    if !ANY.load(Relaxed) {
        return false;
    }
    let all: Vec<Store> = stores().iter().map(|charged| charged.store).collect();
    for store in &all {
        let _ = store.trim();
    }
    settle_all(share);
    true
}

/// Ends the charge for a store that is gone.
fn end(share: &Share, store: Store) {
    let mut stores = stores();
    let ended = stores.iter().position(|charged| charged.store == store).map(|at| stores.swap_remove(at));
    drop(stores);
    share.release(ended.map_or(0, |charged| charged.bytes));
}

/// Ends the charges of stores that the driver no longer answers for, after the end of their context.
pub(crate) fn end_unknown(share: &Share) {
    let all: Vec<Store> = stores().iter().map(|charged| charged.store).collect();
    let unknown = all.into_iter().filter(|store| store.reserved().is_none());
    unknown.for_each(|store| end(share, store));
    settle_all(share);
}

/// Returns the pool that `cuMemAllocAsync` uses, if it is the share's business.
fn current_pool(share: &Share) -> Option<Store> {
    if !device::is_current(share) {
        return None;
    }
    pool_of_share(driver::pool_of(device::of(share)?)?)
}

fn pool_of_share(pool: Handle) -> Option<Store> {
    (!foreign().contains(&pool.0.addr())).then_some(Store::Pool(pool))
}

fn allocate(
    share: &Share,
    pool: Option<Store>,
    ptr: *const u64,
    bytes: usize,
    stream: *mut c_void,
    call: impl FnOnce() -> c_int,
) -> c_int {
    match pool {
        Some(pool) => grow(share, pool, bytes as u64, call, || {
            driver::free_async(read(ptr), stream);
            pool.trim()
        }),
        None => call(),
    }
}

fn free(share: &Share, ptr: u64, call: impl FnOnce() -> c_int) -> c_int {
    let _ = ptr;
    let status = call();
    settle_all(share);
    status
}

fn synchronize(share: &Share, call: impl FnOnce() -> c_int) -> c_int {
    let status = call();
    settle_all(share);
    status
}

/// The beginning of `CUmemPoolProps`, up to where the memory is to be.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Properties {
    kind: c_int,
    handle_types: c_int,
    location_kind: c_int,
    location: Device,
}

fn create(share: &Share, pool: *const Handle, properties: *const c_void, call: impl FnOnce() -> c_int) -> c_int {
    const DEVICE: c_int = 1;
    let Properties { location_kind, location, .. } = read(properties.cast::<Properties>());
    let status = call();
    if status == SUCCESS {
        let address = read(pool).0.addr();
        let mut foreign = foreign();
        foreign.retain(|known| *known != address);
        if location_kind != DEVICE || !device::is(share, location) {
            foreign.push(address);
        }
    }
    status
}

hook! {
    take fn cuMemAllocAsync(ptr: *mut u64, bytes: usize, stream: *mut c_void) |real, share| {
        allocate(share, current_pool(share), ptr, bytes, stream, || real(ptr, bytes, stream))
    };
    take fn cuMemAllocAsync_ptsz(ptr: *mut u64, bytes: usize, stream: *mut c_void) |real, share| {
        allocate(share, current_pool(share), ptr, bytes, stream, || real(ptr, bytes, stream))
    };
    take fn cuMemAllocFromPoolAsync(ptr: *mut u64, bytes: usize, pool: Handle, stream: *mut c_void) |real, share| {
        allocate(share, pool_of_share(pool), ptr, bytes, stream, || real(ptr, bytes, pool, stream))
    };
    take fn cuMemAllocFromPoolAsync_ptsz(ptr: *mut u64, bytes: usize, pool: Handle, stream: *mut c_void) |real, share| {
        allocate(share, pool_of_share(pool), ptr, bytes, stream, || real(ptr, bytes, pool, stream))
    };
    pass fn cuMemFreeAsync(ptr: u64, stream: *mut c_void) |real, share| free(share, ptr, || real(ptr, stream));
    pass fn cuMemFreeAsync_ptsz(ptr: u64, stream: *mut c_void) |real, share| free(share, ptr, || real(ptr, stream));

    pass fn cuMemPoolCreate(pool: *mut Handle, properties: *const c_void) |real, share| {
        create(share, pool, properties, || real(pool, properties))
    };
    pass fn cuMemPoolImportFromShareableHandle(
        pool: *mut Handle, shared: *mut c_void, kind: c_int, flags: u64
    ) |real, share| create(share, pool, std::ptr::null(), || real(pool, shared, kind, flags));
    pass fn cuMemPoolDestroy(pool: Handle) |real, share| {
        let status = real(pool);
        if status == SUCCESS {
            // What is still in use of it stays with the driver until it is freed, and nobody can ask for it any more.
            end(share, Store::Pool(pool));
        }
        status
    };
    pass fn cuMemPoolTrimTo(pool: Handle, keep: usize) |real, share| synchronize(share, || real(pool, keep));

    pass fn cuStreamSynchronize(stream: *mut c_void) |real, share| synchronize(share, || real(stream));
    pass fn cuStreamSynchronize_ptsz(stream: *mut c_void) |real, share| synchronize(share, || real(stream));
    pass fn cuEventSynchronize(event: *mut c_void) |real, share| synchronize(share, || real(event));
    pass fn cuCtxSynchronize() |real, share| synchronize(share, real);
}
