//! Memory that is allocated while a stream is captured into a graph.
//!
//! A graph uses the same addresses in every replay, so what is allocated in a capture comes from an *arena* of the graph's
//! pool: blocks that were freed in a capture are used again on the same stream of captures into that arena, and by nobody
//! else until PyTorch releases it. Blocks of an arena are taken from the process's pool on a stream of our own, which is
//! waited for, because a capture cannot wait for what is outside it. Nothing is asked of the driver that would end a
//! capture: on a thread that calls us the mode of captures is relaxed meanwhile, and other streams are asked about only
//! where they are not captured.
#![allow(unsafe_code)]

use crate::failure::Failure;
use crate::pool::PoolDevice;
use crate::pool_book::Held;
use crate::torch_filter::CaptureFilter;
use bursar::memory::DeviceBlock;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The name of a pool of PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct PoolId {
    pub(crate) first: u64,
    pub(crate) second: u64,
}

/// A capture that was announced.
#[derive(Clone, Debug)]
struct Capture {
    device: u32,
    id: PoolId,
    filter: Arc<CaptureFilter>,
}

/// The memory of one pool of graphs.
#[derive(Debug)]
struct Arena {
    number: u32,
    /// The captures and pools that need it.
    references: usize,
    /// The blocks of it that are outside.
    outside: usize,
    /// Blocks that are free, with the raw handles of the streams that they were freed on.
    free: Vec<(u64, DeviceBlock)>,
}

#[derive(Debug, Default)]
struct State {
    captures: Vec<Capture>,
    arenas: HashMap<(u32, PoolId), Arena>,
    made: u32,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn with_state<T>(act: impl FnOnce(&mut State) -> T) -> T {
    let mut state: MutexGuard<'_, Option<State>> = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    act(state.get_or_insert_default())
}

/// Begins to direct what `filter` applies to into an arena.
pub(crate) fn begin(device: &PoolDevice, number: u32, id: PoolId, filter: CaptureFilter) -> Result<(), Failure> {
    with_state(|state| {
        state.arena(number, id).references += 1;
        state.captures.push(Capture { device: number, id, filter: Arc::new(filter) });
    });
    device.captures.fetch_add(1, Ordering::AcqRel);
    // The stream that blocks are taken on is made before the capture begins.
    device.streams.own(&device.context)?;
    Ok(device.streams.expose(&device.context)?)
}

/// Ends that.
pub(crate) fn end(device: &PoolDevice, number: u32, id: PoolId) -> Result<(), Failure> {
    let ended = with_state(|state| {
        let at = state.captures.iter().rposition(|capture| (capture.device, capture.id) == (number, id))?;
        Some(state.captures.remove(at))
    });
    if ended.is_some() && device.captures.fetch_sub(1, Ordering::AcqRel) == 1 {
        device.streams.conceal(&device.context)?;
        device.retry_refused();
    }
    Ok(())
}

/// Lets go of an arena: what is free of it goes back to the pool with the last reference, and the rest when it is freed.
pub(crate) fn release(device: &PoolDevice, number: u32, id: PoolId) {
    let blocks = with_state(|state| {
        let Some(arena) = state.arenas.get_mut(&(number, id)) else { return Vec::new() };
        arena.references = arena.references.saturating_sub(1);
        if arena.references > 0 {
            return Vec::new();
        }
        let free = std::mem::take(&mut arena.free);
        if arena.outside == 0 {
            state.arenas.remove(&(number, id));
        }
        free.into_iter().map(|(_, block)| block).collect()
    });
    give_back(device, blocks);
}

/// Gives blocks of an arena back to the pool, after everything that streams were given: a graph that uses them may have been
/// launched on any.
fn give_back(device: &PoolDevice, blocks: Vec<DeviceBlock>) {
    let _relaxed = Relaxed::enter();
    for block in blocks {
        device.free_after(block, device.streams.all());
    }
}

/// Allocates for a stream while captures are under way; `None` where the stream is not part of one.
///
/// It calls PyTorch, which may throw.
pub(crate) fn allocate(device: &PoolDevice, number: u32, bytes: u64, raw: u64) -> Option<Result<u64, Failure>> {
    let captures: Vec<_> =
        with_state(|state| state.captures.iter().rev().filter(|capture| capture.device == number).cloned().collect());
    let id = captures.iter().find(|capture| capture.filter.applies_to(raw))?.id;
    drop(captures);
    let (arena, spare) = with_state(|state| {
        let arena = state.arena(number, id);
        arena.outside += 1;
        (arena.number, arena.take(bytes, raw))
    });
    let block = match spare.map_or_else(|| take_from_pool(device, bytes), Ok) {
        Ok(block) => block,
        Err(failure) => {
            with_state(|state| state.arena(number, id).outside -= 1);
            return Some(Err(failure));
        }
    };
    Some(Ok(device.hand_out(Held { block, requested: bytes, raw, arena, is_shared: false })))
}

/// Takes a block from the pool that every stream may use at once.
fn take_from_pool(device: &PoolDevice, bytes: u64) -> Result<DeviceBlock, Failure> {
    let _relaxed = Relaxed::enter();
    let stream = device.streams.own(&device.context)?;
    let block = device.allocate(bytes, stream)?;
    match device.context.synchronize(stream) {
        Ok(()) => Ok(block),
        Err(error) => {
            device.free_after(block, Vec::new());
            Err(error.into())
        }
    }
}

/// Takes back a block of an arena.
pub(crate) fn free(device: &PoolDevice, number: u32, held: Held) {
    let Held { block, raw, arena, is_shared, .. } = held;
    let uses = if is_shared { device.book.lock().take_uses(block.ptr().0) } else { Vec::new() };
    let leftover = with_state(|state| {
        let found = state.arenas.iter_mut().find(|((of, _), other)| *of == number && other.number == arena);
        let Some((&key, arena)) = found else { return Some(block) };
        arena.outside -= 1;
        if arena.references > 0 {
            // What other streams of the capture use too is used again by none of them.
            arena.free.push((if uses.is_empty() { raw } else { u64::MAX }, block));
            return None;
        }
        if arena.outside == 0 {
            state.arenas.remove(&key);
        }
        Some(block)
    });
    give_back(device, leftover.into_iter().collect());
}

impl State {
    fn arena(&mut self, number: u32, id: PoolId) -> &mut Arena {
        let made = &mut self.made;
        self.arenas.entry((number, id)).or_insert_with(|| {
            *made += 1;
            Arena { number: *made, references: 0, outside: 0, free: Vec::new() }
        })
    }
}

impl Arena {
    /// Takes the smallest free block of a stream that a request fits in and that is at most a quarter longer.
    fn take(&mut self, bytes: u64, raw: u64) -> Option<DeviceBlock> {
        let fits = |block: &DeviceBlock| (bytes..=bytes + bytes / 4 + 512).contains(&block.granted().get());
        let candidates = self.free.iter().enumerate().filter(|(_, (of, block))| *of == raw && fits(block));
        let (at, _) = candidates.min_by_key(|(_, (_, block))| block.granted())?;
        Some(self.free.swap_remove(at).1)
    }
}

type ExchangeMode = unsafe extern "C" fn(*mut c_uint) -> c_int;

/// The mode in which calls that a capture of another thread forbids are allowed.
const RELAXED: c_uint = 2;

/// This thread's mode of captures, relaxed until this is dropped.
#[derive(Debug)]
pub(crate) struct Relaxed {
    before: Option<c_uint>,
}

impl Relaxed {
    pub(crate) fn enter() -> Self {
        let mut mode = RELAXED;
        Self { before: Self::exchange(&mut mode).then_some(mode) }
    }

    /// Exchanges the thread's mode with `mode`, where there is a driver that has captures.
    fn exchange(mode: &mut c_uint) -> bool {
        static EXCHANGE: OnceLock<Option<ExchangeMode>> = OnceLock::new();
        let find = || {
            // SAFETY: the name ends with a zero; a driver that is not there is not loaded.
            let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW) };
            if driver.is_null() {
                return None;
            }
            // SAFETY: the driver was opened and stays, and the name ends with a zero.
            let found = unsafe { libc::dlsym(driver, c"cuThreadExchangeStreamCaptureMode".as_ptr()) };
            // SAFETY: the driver's function has this parameter.
            (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut libc::c_void, ExchangeMode>(found) })
        };
        // SAFETY: the driver writes the mode there was.
        EXCHANGE.get_or_init(find).is_some_and(|exchange| unsafe { exchange(mode) } == 0)
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            Self::exchange(&mut mode);
        }
    }
}
