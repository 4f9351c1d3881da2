//! Stream-ordered pools, which cost what they have reserved.
#![allow(unsafe_code)]

use crate::driver::{self, Handle, read, write};
use crate::entry::SUCCESS;
use crate::hook::hook;
use crate::integer_map::IntegerMap;
use crate::share::Share;
use crate::stores::{self, Store};
use crate::{device, growth};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// Pools that are no business of the share: of other devices, of host memory, of other processes.
static FOREIGN: Mutex<Vec<usize>> = Mutex::new(Vec::new());
fn foreign() -> MutexGuard<'static, Vec<usize>> {
    FOREIGN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The allocations of pools that the program made, by address: such a pool can be destroyed before them.
#[derive(Debug, Default)]
struct MadePools {
    handles: Vec<usize>,
    /// The pool of each allocation, and its bytes.
    allocations: IntegerMap<(Store, u64)>,
    destroyed: u64,
}

static MADE: LazyLock<Mutex<MadePools>> = LazyLock::new(Mutex::default);
/// True once the program has made a pool.
static ANY_MADE: AtomicBool = AtomicBool::new(false);

fn made() -> MutexGuard<'static, MadePools> {
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frees memory that may be a pool's. With the last of a pool that was destroyed, its charge ends.
pub(crate) fn freeing(share: &Share, start: u64, call: impl FnOnce() -> c_int) -> c_int {
    if !ANY_MADE.load(Relaxed) {
        return call();
    }
    let taken_out = made().allocations.remove(&start);
    let status = call();
    let Some((store, bytes)) = taken_out else { return status };
    let mut made = made();
    if status != SUCCESS {
        made.allocations.insert(start, (store, bytes));
        return status;
    }
    let is_last = matches!(store, Store::Destroyed(_)) && !made.allocations.values().any(|(of, _)| *of == store);
    drop(made);
    if is_last {
        stores::end(share, store);
    }
    status
}

/// Destroys a pool, of which what is in use stays with the driver until it is freed. What it was to keep for allocations to come is
/// of no use any more, and cannot be asked for: so it keeps nothing.
fn destroy(share: &Share, pool: Handle, call: impl FnOnce() -> c_int) -> c_int {
    /// The attribute of a pool that says what it keeps when somebody synchronises.
    const KEPT: c_int = 4;
    let store = Store::Pool(pool);
    let is_in_use = made().allocations.values().any(|(of, _)| *of == store);
    let kept = is_in_use.then(|| driver::pool_attribute(pool, KEPT)).flatten().filter(|kept| *kept > 0);
    if is_in_use {
        let _ = kept.is_some() && driver::set_pool_attribute(pool, KEPT, 0);
        let _ = store.trim();
        let _ = stores::settle(share, store);
    }
    let status = call();
    if status != SUCCESS {
        let _ = kept.is_some_and(|kept| driver::set_pool_attribute(pool, KEPT, kept));
        return status;
    }
    let mut made = made();
    made.handles.retain(|known| *known != pool.0.addr());
    made.destroyed += 1;
    let rest = Store::Destroyed(made.destroyed);
    made.allocations.values_mut().filter(|(of, _)| *of == store).for_each(|(of, _)| *of = rest);
    drop(made);
    if is_in_use {
        stores::rename(store, rest);
    }
    stores::end(share, store);
    status
}

/// Returns the pool that `cuMemAllocAsync` uses, if it is the share's business.
fn current_pool(share: &Share) -> Option<Store> {
    if !device::is_current(share) {
        return None;
    }
    let device = device::of(share)?;
    pool_of_share(driver::beside_captures(|| driver::pool_of(device))?)
}

fn pool_of_share(pool: Handle) -> Option<Store> {
    (!foreign().contains(&pool.0.addr())).then_some(Store::Pool(pool))
}

/// The stream of a call, in the form that its default stream has.
#[derive(Clone, Copy)]
struct On {
    stream: *mut c_void,
    per_thread: bool,
}

fn legacy(stream: *mut c_void) -> On {
    On { stream, per_thread: false }
}

fn per_thread(stream: *mut c_void) -> On {
    On { stream, per_thread: true }
}

impl On {
    /// Returns whether the call becomes a part of a graph, which is charged when it is instantiated and launched.
    fn is_captured(self) -> bool {
        driver::is_capturing(self.stream, self.per_thread)
    }
}

fn allocate(
    share: &Share,
    pool: impl FnOnce() -> Option<Store>,
    ptr: *mut u64,
    bytes: usize,
    on: On,
    call: impl FnOnce() -> c_int,
) -> c_int {
    if on.is_captured() {
        return call();
    }
    let Some(pool) = pool() else { return call() };
    growth::look_if_near(share);
    let before = read(ptr);
    let status = stores::grow(share, pool, bytes as u64, call, || {
        driver::free_async(read(ptr), on.stream);
        write(ptr, before);
        pool.trim()
    });
    if status == SUCCESS && ANY_MADE.load(Relaxed) {
        remember(pool, read(ptr), bytes as u64);
    }
    status
}

/// Remembers an allocation of a pool that the program made.
fn remember(pool: Store, start: u64, bytes: u64) {
    let mut made = made();
    if matches!(pool, Store::Pool(pool) if made.handles.contains(&pool.0.addr())) {
        made.allocations.insert(start, (pool, bytes));
    }
}

fn free(share: &Share, start: u64, on: On, call: impl FnOnce() -> c_int) -> c_int {
    if !ANY_MADE.load(Relaxed) || on.is_captured() {
        return call();
    }
    freeing(share, start, call)
}

fn synchronize(share: &Share, call: impl FnOnce() -> c_int) -> c_int {
    let status = call();
    settle_all(share);
    status
}

/// Makes the charges for all pools and graphs what they have reserved.
pub(crate) fn settle_all(share: &Share) {
    stores::settle_all(share);
    if ANY_MADE.load(Relaxed) {
        settle_destroyed(share);
    }
}

/// Makes the charges for what is left of destroyed pools what their allocations keep: a piece each, or as many as it lies in.
fn settle_destroyed(share: &Share) {
    let made = made();
    let mut rests: Vec<(Store, u64)> = Vec::new();
    for (store, bytes) in made.allocations.values().filter(|(store, _)| matches!(store, Store::Destroyed(_))) {
        let kept = bytes.next_multiple_of(stores::PIECE);
        match rests.iter_mut().find(|(known, _)| known == store) {
            Some((_, sum)) => *sum += kept,
            None => rests.push((*store, kept)),
        }
    }
    drop(made);
    rests.into_iter().for_each(|(store, most)| stores::shrink(share, store, most));
}

fn create(share: &Share, pool: *const Handle, properties: *const c_void, call: impl FnOnce() -> c_int) -> c_int {
    let status = call();
    if status == SUCCESS {
        let address = read(pool).0.addr();
        let mut foreign = foreign();
        foreign.retain(|known| *known != address);
        if device::has(share, properties) {
            made().handles.push(address);
            ANY_MADE.store(true, Relaxed);
        } else {
            foreign.push(address);
        }
    }
    status
}

hook! {
    take fn cuMemAllocAsync(ptr: *mut u64, bytes: usize, stream: *mut c_void) |real, share| {
        allocate(share, || current_pool(share), ptr, bytes, legacy(stream), || real(ptr, bytes, stream))
    };
    take fn cuMemAllocAsync_ptsz(ptr: *mut u64, bytes: usize, stream: *mut c_void) |real, share| {
        allocate(share, || current_pool(share), ptr, bytes, per_thread(stream), || real(ptr, bytes, stream))
    };
    take fn cuMemAllocFromPoolAsync(ptr: *mut u64, bytes: usize, pool: Handle, stream: *mut c_void) |real, share| {
        allocate(share, || pool_of_share(pool), ptr, bytes, legacy(stream), || real(ptr, bytes, pool, stream))
    };
    take fn cuMemAllocFromPoolAsync_ptsz(ptr: *mut u64, bytes: usize, pool: Handle, stream: *mut c_void) |real, share| {
        allocate(share, || pool_of_share(pool), ptr, bytes, per_thread(stream), || real(ptr, bytes, pool, stream))
    };
    pass fn cuMemFreeAsync(ptr: u64, stream: *mut c_void) |real, share| free(share, ptr, legacy(stream), || real(ptr, stream));
    pass fn cuMemFreeAsync_ptsz(ptr: u64, stream: *mut c_void) |real, share| free(share, ptr, per_thread(stream), || real(ptr, stream));

    pass fn cuMemPoolCreate(pool: *mut Handle, properties: *const c_void) |real, share| {
        create(share, pool, properties, || real(pool, properties))
    };
    pass fn cuMemPoolImportFromShareableHandle(
        pool: *mut Handle, shared: *mut c_void, kind: c_int, flags: u64
    ) |real, share| create(share, pool, std::ptr::null(), || real(pool, shared, kind, flags));
    pass fn cuMemPoolDestroy(pool: Handle) |real, share| destroy(share, pool, || real(pool));
    pass fn cuMemPoolTrimTo(pool: Handle, keep: usize) |real, share| synchronize(share, || real(pool, keep));

    // Pools shrink when somebody synchronises, and E2 has a charge end then. Where no pool is in use, this is two loads.
    pass fn cuStreamSynchronize(stream: *mut c_void) |real, share| synchronize(share, || real(stream));
    pass fn cuStreamSynchronize_ptsz(stream: *mut c_void) |real, share| synchronize(share, || real(stream));
    pass fn cuEventSynchronize(event: *mut c_void) |real, share| synchronize(share, || real(event));
    pass fn cuCtxSynchronize() |real, share| synchronize(share, real);
}
