//! Memory that the driver takes in its own time: that of stream-ordered pools and of graphs.
//!
//! What such a *store* costs is what it has reserved, which the driver tells; a free does not change that, and a synchronisation may.
//! A call that can make it grow is charged first for what it may take, and what the store has reserved afterwards is what stays
//! charged.
#![allow(unsafe_code)]

use crate::driver::{self, Device, Handle};
use crate::entry::SUCCESS;
use crate::share::Share;
use crate::{refusal, steps};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The multiple in which pools take memory from a device. One that takes it otherwise is charged for that when it has.
pub(crate) const PIECE: u64 = 32 << 20;
/// The pieces of a share that are room to spare.
const SPARE_PIECES: u64 = 32;

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
    /// The rest of a pool that was destroyed: it ends with its last allocation, and can no longer be asked.
    Destroyed(u64),
}

// SAFETY: the handle of a pool means the same in every thread.
unsafe impl Send for Store {}

impl Store {
    /// Returns what the store has taken from the device; none where the driver does not tell.
    fn reserved(self) -> Option<u64> {
        match self {
            Self::Pool(pool) => driver::pool_attribute(pool, POOL_RESERVED),
            Self::Graphs(device) => driver::graph_attribute(device, GRAPHS_RESERVED),
            Self::Destroyed(_) => None,
        }
    }

    fn used(self) -> Option<u64> {
        match self {
            Self::Pool(pool) => driver::pool_attribute(pool, POOL_USED),
            Self::Graphs(device) => driver::graph_attribute(device, GRAPHS_USED),
            Self::Destroyed(_) => None,
        }
    }

    pub(crate) fn trim(self) -> bool {
        match self {
            Self::Pool(pool) => driver::trim_pool(pool),
            Self::Graphs(device) => trimming_graphs(device, || driver::trim_graphs(device)),
            Self::Destroyed(_) => false,
        }
    }
}

/// Counts how often graph memory was trimmed.
static GRAPH_TRIMS: AtomicU64 = AtomicU64::new(0);

/// Returns how often graph memory was trimmed.
pub(crate) fn graph_trims() -> u64 {
    GRAPH_TRIMS.load(Relaxed)
}

/// Trims graph memory by `trim`, and takes note if that took any away.
pub(crate) fn trimming_graphs<T>(device: Device, trim: impl FnOnce() -> T) -> T {
    let reserved = || Store::Graphs(device).reserved();
    let before = reserved();
    let trimmed = trim();
    if before.zip(reserved()).is_none_or(|(before, after)| after < before) {
        GRAPH_TRIMS.fetch_add(1, Relaxed);
    }
    trimmed
}

/// The charge for a store.
#[derive(Clone, Copy, Debug)]
struct Charged {
    store: Store,
    /// Everything that is charged for it, calls that are under way included.
    bytes: u64,
    /// The part of it that was charged beforehand for calls that are under way.
    beforehand: u64,
    /// The least that stays charged for the sake of a call that is under way and counts on what the store has.
    needed: u64,
    /// Counts settlements, so that one that read an old figure is noticed.
    settled: u64,
}

static STORES: Mutex<Vec<Charged>> = Mutex::new(Vec::new());
/// True once there is a store.
static ANY: AtomicBool = AtomicBool::new(false);

fn stores() -> MutexGuard<'static, Vec<Charged>> {
    STORES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with<T>(store: Store, act: impl FnOnce(&mut Charged) -> T) -> T {
    let mut stores = stores();
    let at = stores.iter().position(|charged| charged.store == store).unwrap_or_else(|| {
        ANY.store(true, Relaxed);
        stores.push(Charged { store, bytes: 0, beforehand: 0, needed: 0, settled: 0 });
        stores.len() - 1
    });
    act(&mut stores[at])
}

/// Makes a call that uses `bytes` of a store, which may take more from the device for it. `undo` takes back a call that went well and
/// turned out to cost more than is left; where that cannot be done, the rest is charged as soon as there is room.
pub(crate) fn grow(
    share: &Share,
    store: Store,
    bytes: u64,
    call: impl FnOnce() -> c_int,
    undo: impl FnOnce() -> bool,
) -> c_int {
    let Some(Growth { charged, alone }) = charge_growth(share, store, bytes) else {
        return refusal::refuse(share, bytes);
    };
    with(store, |charge| {
        charge.bytes += charged;
        charge.beforehand += charged;
    });
    steps::passed(c"store charged");
    let status = call();
    steps::passed(c"store grown");
    with(store, |charge| {
        charge.beforehand = charge.beforehand.saturating_sub(charged);
        charge.needed = if alone.is_some() { 0 } else { charge.needed };
    });
    if status != SUCCESS && store.reserved().is_none() {
        take_back(share, store, charged);
        return refusal::failed(share, bytes, status);
    }
    if !settle(share, store) && status == SUCCESS && undo() {
        settle(share, store);
        return refusal::refuse(share, bytes);
    }
    if status == SUCCESS { status } else { refusal::failed(share, bytes, status) }
}

/// A charge for the growth of a store. Where it counts on what the store has, nobody else's does for so long.
struct Growth {
    charged: u64,
    alone: Option<MutexGuard<'static, ()>>,
}

/// Charges what a store may take from the device for `bytes`; none where there is no room.
fn charge_growth(share: &Share, store: Store, bytes: u64) -> Option<Growth> {
    /// Locked while a call is under way that counts on what a pool has and does not use: two would count on the same.
    static ALONE: Mutex<()> = Mutex::new(());
    let pieces = |bytes: u64| bytes.checked_next_multiple_of(PIECE);
    // With room to spare, nobody is refused because too much is charged for a moment, and one question to the driver is saved.
    let most = pieces(bytes)?;
    if share.at_hand() / SPARE_PIECES > most.max(PIECE) && share.charge(most) {
        return Some(Growth { charged: most, alone: None });
    }
    // The launch of a graph may wait for others.
    let alone = matches!(store, Store::Pool(_)).then(|| ALONE.lock().unwrap_or_else(PoisonError::into_inner));
    let need = |needed: u64| {
        if let Some(charge) = stores().iter_mut().find(|charge| charge.store == store && alone.is_some()) {
            charge.needed = needed;
        }
    };
    let try_to = || {
        let used = store.used();
        need(used.and_then(|used| pieces(used.checked_add(bytes)?)).unwrap_or(0));
        let unused = store.reserved().zip(used).map_or(0, |(reserved, used)| reserved.saturating_sub(used));
        pieces(bytes.saturating_sub(unused)).filter(|lacking| share.charge(*lacking))
    };
    settle_all(share);
    let charged = try_to().or_else(|| {
        need(0);
        reclaim(share);
        try_to()
    });
    if charged.is_none() {
        need(0);
    }
    charged.map(|charged| Growth { charged, alone })
}

/// Takes back what was charged for a call that failed on a store that the driver does not know.
fn take_back(share: &Share, store: Store, charged: u64) {
    let mut stores = stores();
    let Some(at) = stores.iter().position(|known| known.store == store) else { return };
    let freed = stores[at].bytes.min(charged);
    stores[at].bytes -= freed;
    if stores[at].bytes == 0 {
        stores.swap_remove(at);
    }
    drop(stores);
    share.release(freed);
}

/// Makes the charge for a store what it has reserved. Returns false where it has reserved more than is left of the share.
pub(crate) fn settle(share: &Share, store: Store) -> bool {
    loop {
        let before = with(store, |charge| charge.settled);
        let Some(reserved) = store.reserved() else { return true };
        let change = with(store, |charge| {
            if charge.settled != before {
                return None;
            }
            let target = (reserved + charge.beforehand).max(charge.needed.min(charge.bytes));
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
#[inline]
pub(crate) fn settle_all(share: &Share) {
    if ANY.load(Relaxed) {
        for_each(|store| {
            // What it has beyond the share is charged as soon as there is room.
            let _ = settle(share, store);
        });
    }
}

/// Calls `act` with every store, and nothing locked.
fn for_each(mut act: impl FnMut(Store)) {
    let mut next = 0;
    while let Some(store) = { stores().get(next).map(|charged| charged.store) } {
        act(store);
        next += 1;
    }
}

/// Has every store give back what it does not use. Returns whether there is any.
#[cold]
pub(crate) fn reclaim(share: &Share) -> bool {
    if !ANY.load(Relaxed) {
        return false;
    }
    for_each(|store| {
        let _ = store.trim();
    });
    settle_all(share);
    true
}

/// Ends the charge for a store that is gone.
pub(crate) fn end(share: &Share, store: Store) {
    let mut stores = stores();
    let ended = stores.iter().position(|charged| charged.store == store).map(|at| stores.swap_remove(at));
    drop(stores);
    share.release(ended.map_or(0, |charged| charged.bytes));
}

/// Ends the charges of stores that the driver no longer answers for, after the end of their context.
pub(crate) fn end_unknown(share: &Share) {
    let all: Vec<Store> = stores().iter().map(|charged| charged.store).collect();
    let unknown = all.into_iter().filter(|store| matches!(store, Store::Pool(_)) && store.reserved().is_none());
    unknown.for_each(|store| end(share, store));
    settle_all(share);
}

/// Gives back what is charged for a store beyond `most`.
pub(crate) fn shrink(share: &Share, store: Store, most: u64) {
    let mut stores = stores();
    let Some(charged) = stores.iter_mut().find(|charged| charged.store == store) else { return };
    let excess = charged.bytes.saturating_sub(most);
    charged.bytes -= excess;
    drop(stores);
    share.release(excess);
}

/// Goes on charging for what is left of a pool that was destroyed.
pub(crate) fn rename(store: Store, rest: Store) {
    if let Some(charged) = stores().iter_mut().find(|charged| charged.store == store) {
        charged.store = rest;
    }
}
