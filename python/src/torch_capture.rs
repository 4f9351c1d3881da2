//! Memory that is allocated while a stream is captured into a graph.
//!
//! A graph uses the same addresses in every replay, so what is allocated in a capture comes from a [`GraphMemory`], one for
//! each of PyTorch's pools of graphs: nobody else has it before PyTorch releases that. PyTorch makes the captures, says when
//! they begin and end, and which streams are part of them; of their order we know nothing, so what is freed on a stream is
//! reused on the same one, or by a later capture. Replays are PyTorch's too: a memory goes back after everything that
//! streams were given until then. Where PyTorch uses one of its pools without capturing, memory is ordinary memory.
//!
//! Nothing is asked of the driver that would end a capture: on a thread that calls us the mode of captures is relaxed
//! meanwhile, and other streams are asked about only where they are not captured.
#![allow(unsafe_code)]

use crate::failure::Failure;
use crate::pool_book::Held;
use crate::pool_device::{self, ALIGN, PoolDevice};
use crate::torch_filter::CaptureFilter;
use bursar::error::StreamMisuse;
use bursar::graph::{ForeignCapture, GraphMemory};
use bursar::memory::{DeviceBlock, DeviceMemoryResource as _, Refused};
use bursar::{Error, Stream};
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
struct Announced {
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
    /// The capture under way.
    capture: Option<Arc<ForeignCapture>>,
    memory: GraphMemory,
}

/// A block whose free was refused, because a stream that it was used on is captured into another graph.
#[derive(Debug)]
struct Unfreed {
    device: u32,
    arena: u32,
    block: DeviceBlock,
    streams: Vec<Stream>,
}

#[derive(Debug, Default)]
struct State {
    captures: Vec<Announced>,
    arenas: HashMap<(u32, PoolId), Arena>,
    /// The devices and memories that PyTorch has released while blocks of them are outside.
    released: Vec<(u32, Arena)>,
    /// Those of them that are still to be given back, because a capture was under way.
    unreleased: Vec<(u32, GraphMemory)>,
    unfreed: Vec<Unfreed>,
    made: u32,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn with_state<T>(act: impl FnOnce(&mut State) -> T) -> T {
    let mut state: MutexGuard<'_, Option<State>> = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    act(state.get_or_insert_default())
}

/// Begins to direct what `filter` applies to into an arena.
pub(crate) fn begin(device: &PoolDevice, number: u32, id: PoolId, filter: CaptureFilter) -> Result<(), Failure> {
    let _relaxed = Relaxed::enter();
    end_failed(device, number)?;
    let known = with_state(|state| state.arenas.get(&(number, id)).map(|arena| arena.memory.clone()));
    // The stream that memory is taken on is made before the capture begins.
    let memory = known.map_or_else(|| GraphMemory::new(device.memory.clone()), Ok)?;
    let (memory, is_captured) = with_state(|state| {
        let State { arenas, made, .. } = state;
        let arena = arenas.entry((number, id)).or_insert_with(|| {
            *made += 1;
            Arena { number: *made, references: 0, outside: 0, capture: None, memory }
        });
        (arena.memory.clone(), arena.capture.is_some())
    });
    let capture = if is_captured { None } else { Some(Arc::new(memory.capture_of_any()?)) };
    with_state(|state| {
        if let Some(arena) = state.arenas.get_mut(&(number, id)) {
            arena.capture = arena.capture.take().or(capture);
            arena.references += 1;
        }
        state.captures.push(Announced { device: number, id, filter: Arc::new(filter) });
    });
    device.captures.fetch_add(1, Ordering::AcqRel);
    Ok(device.streams.expose(&device.context)?)
}

/// Ends the captures that have failed: PyTorch announces no end of those, and captures the same stream again.
fn end_failed(device: &PoolDevice, number: u32) -> Result<(), Failure> {
    let under_way: Vec<_> = with_state(|state| {
        let State { captures, arenas, .. } = state;
        // Of two that were announced for one memory, the later may not have begun.
        let is_one = |key: &(u32, PoolId)| captures.iter().filter(|of| (of.device, of.id) == *key).count() == 1;
        let on_device = arenas.iter().filter(|(key, _)| key.0 == number && is_one(key));
        on_device.filter_map(|((_, id), arena)| Some((*id, arena.capture.clone()?))).collect()
    });
    for (id, capture) in under_way {
        if capture.is_over()? {
            drop(capture);
            end(device, number, id)?;
        }
    }
    Ok(())
}

/// Fails if a stream of the pool is captured, once what failed is known to be over.
pub(crate) fn check_none_is_captured(device: &PoolDevice, number: u32) -> Result<(), Failure> {
    end_failed(device, number)?;
    Ok(device.streams.all().into_iter().try_for_each(|stream| device.context.check_stream(stream))?)
}

/// Ends that.
pub(crate) fn end(device: &PoolDevice, number: u32, id: PoolId) -> Result<(), Failure> {
    let is_same = |capture: &Announced| (capture.device, capture.id) == (number, id);
    let ended = with_state(|state| {
        let at = state.captures.iter().rposition(is_same)?;
        let ended = state.captures.remove(at);
        let is_last = !state.captures.iter().any(is_same);
        let arena = state.arenas.get_mut(&(number, id)).filter(|_| is_last);
        Some((ended, arena.and_then(|arena| arena.capture.take())))
    });
    if ended.is_some() && device.captures.fetch_sub(1, Ordering::AcqRel) == 1 {
        device.streams.conceal(&device.context)?;
        device.retry_refused();
        catch_up(device, number);
    }
    Ok(())
}

/// Does what a capture was in the way of.
fn catch_up(device: &PoolDevice, number: u32) {
    let (unreleased, unfreed) = with_state(|state| {
        let unreleased: Vec<_> = state.unreleased.extract_if(.., |(of, _)| *of == number).collect();
        let unfreed: Vec<_> = state.unfreed.extract_if(.., |unfreed| unfreed.device == number).collect();
        (unreleased, unfreed)
    });
    unreleased.into_iter().for_each(|(_, memory)| give_back(device, number, memory));
    unfreed.into_iter().for_each(free_after);
}

/// Lets go of an arena: with the last reference what is in no block goes back to the pool, and the rest when it is freed.
pub(crate) fn release(device: &PoolDevice, number: u32, id: PoolId) {
    let memory = with_state(|state| {
        let arena = state.arenas.get_mut(&(number, id))?;
        arena.references = arena.references.saturating_sub(1);
        let arena = if arena.references == 0 { state.arenas.remove(&(number, id))? } else { return None };
        let memory = arena.memory.clone();
        if arena.outside > 0 {
            state.released.push((number, arena));
        }
        Some(memory)
    });
    if let Some(memory) = memory {
        give_back(device, number, memory);
    }
}

/// Gives the memory of graphs back, after everything that streams were given: a graph that uses it may have been launched on
/// any. It waits for the end of captures.
fn give_back(device: &PoolDevice, number: u32, memory: GraphMemory) {
    let _relaxed = Relaxed::enter();
    let is_captured = device.captures.load(Ordering::Acquire) > 0;
    let ordered = || device.streams.all().into_iter().try_for_each(|stream| memory.launched(stream));
    if is_captured || ordered().and_then(|()| memory.release()).is_err() {
        with_state(|state| state.unreleased.push((number, memory)));
    }
}

/// Has the memory of graphs come after a launch on a stream that memory is not known to be used on.
pub(crate) fn launched(number: u32, id: PoolId, stream: Stream) -> Result<(), Failure> {
    let memory = with_state(|state| state.arenas.get(&(number, id)).map(|arena| arena.memory.clone()));
    Ok(memory.map_or(Ok(()), |memory| memory.launched(stream))?)
}

/// Allocates for a stream while captures are under way; `None` where the stream is not part of one.
///
/// It calls PyTorch, which may throw.
pub(crate) fn allocate(
    device: &PoolDevice,
    number: u32,
    bytes: u64,
    raw: u64,
    stream: Stream,
) -> Option<Result<u64, Failure>> {
    let captures: Vec<_> =
        with_state(|state| state.captures.iter().rev().filter(|capture| capture.device == number).cloned().collect());
    let id = captures.iter().find(|capture| capture.filter.applies_to(raw))?.id;
    drop(captures);
    match device.context.check_stream(stream) {
        Ok(()) => None,
        Err(Error::StreamMisuse { why: StreamMisuse::Capturing, .. }) => {
            Some(allocate_in(device, number, id, bytes, raw, stream))
        }
        Err(error) => Some(Err(error.into())),
    }
}

fn allocate_in(
    device: &PoolDevice,
    number: u32,
    id: PoolId,
    bytes: u64,
    raw: u64,
    stream: Stream,
) -> Result<u64, Failure> {
    let entered = with_state(|state| {
        let arena = state.arenas.get_mut(&(number, id))?;
        let capture = arena.capture.as_ref()?;
        Some(capture.enter(stream).map(|()| {
            arena.outside += 1;
            (arena.number, arena.memory.clone())
        }))
    });
    let not_announced = Error::InvalidValue { what: "no capture into this pool was announced" };
    let (arena, memory) = entered.unwrap_or(Err(not_announced))?;
    let _relaxed = Relaxed::enter();
    match memory.allocate(bytes, ALIGN, stream, pool_device::tag()) {
        Ok(block) => Ok(device.hand_out(Held { block, requested: bytes, raw, arena, is_shared: false })),
        Err(error) => {
            forget_one(number, arena);
            Err(device.explain(error, bytes))
        }
    }
}

/// Takes back a block of an arena.
pub(crate) fn free(device: &PoolDevice, number: u32, held: Held) {
    let Held { block, arena, is_shared, .. } = held;
    let uses = if is_shared { device.book.lock().take_uses(block.ptr().0) } else { Vec::new() };
    let home = block.stream();
    let streams: Vec<_> = uses.iter().copied().filter(|&used| used != home).chain([home]).collect();
    free_after(Unfreed { device: number, arena, block, streams });
    uses.into_iter().chain([home]).for_each(|stream| device.streams.leave(stream));
}

fn free_after(Unfreed { device, arena, block, streams }: Unfreed) {
    let Some(memory) = with_state(|state| state.arena(device, arena).map(|arena| arena.memory.clone())) else { return };
    let _relaxed = Relaxed::enter();
    match memory.deallocate_after(block, &streams) {
        Ok(()) => forget_one(device, arena),
        Err(Refused { block, .. }) => {
            with_state(|state| state.unfreed.push(Unfreed { device, arena, block, streams }));
        }
    }
}

/// Counts one block less of an arena, which ends with the last of them once PyTorch has released it.
fn forget_one(device: u32, arena: u32) {
    let ended = with_state(|state| {
        state.arena(device, arena)?.outside -= 1;
        let is_over = |(of, other): &mut (u32, Arena)| *of == device && other.number == arena && other.outside == 0;
        Some(state.released.extract_if(.., is_over).collect::<Vec<_>>())
    });
    drop(ended);
}

impl State {
    /// Returns the arena with a number.
    fn arena(&mut self, device: u32, number: u32) -> Option<&mut Arena> {
        let Self { arenas, released, .. } = self;
        let held = arenas.iter_mut().map(|((of, _), arena)| (*of, arena));
        let all = held.chain(released.iter_mut().map(|(of, arena)| (*of, arena)));
        all.into_iter().find(|(of, arena)| *of == device && arena.number == number).map(|(_, arena)| arena)
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
