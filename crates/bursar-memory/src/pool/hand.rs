//! What a thread used last: the way to a magazine without looking for it.
//!
//! Each thread remembers, for a few streams, which magazine of which pool it found there. An entry is only ever used by the
//! pool whose number it carries, while that pool is alive, and a number is never given twice; so what it points to is there.
#![allow(unsafe_code)]

use super::magazine::Magazine;
use bursar_core::{OwnerId, Stream};
use std::cell::Cell;
use std::ptr::NonNull;

/// What a thread has at hand for one stream of one pool.
#[repr(align(32))]
struct Entry {
    /// The stream's [name](Stream::name).
    stream: Cell<u64>,
    /// The pool's [key](key); zero where nothing is remembered.
    key: Cell<u64>,
    magazine: Cell<NonNull<Magazine>>,
}

/// The number of a pool, and how many alarms its context has given, signed by the pool.
#[inline(always)]
pub(super) const fn key(number: Number, alarms: u32) -> u64 {
    number.0 | alarms as u64
}

/// The number of a pool, which is not zero and no other's, where its key has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Number(u64);

impl Number {
    pub(super) fn of(owner: OwnerId) -> Self {
        Self(u64::from(owner.get()) << u32::BITS)
    }
}

/// How many streams a thread remembers.
const ENTRIES: usize = 8;

impl Entry {
    const fn empty() -> Self {
        Self { stream: Cell::new(0), key: Cell::new(0), magazine: Cell::new(NonNull::dangling()) }
    }
}

thread_local! {
    static REMEMBERED: [Entry; ENTRIES] = const { [const { Entry::empty() }; ENTRIES] };
}

/// The magazine that a pool's thread remembers for a stream.
///
/// # Safety
/// Every magazine remembered under a key with this number is of the pool that has it, and `'a` is within that pool's life.
#[inline(always)]
pub(super) unsafe fn remembered<'a>(key: u64, stream: Stream) -> Option<&'a Magazine> {
    REMEMBERED.with(|entries| {
        let entry = &entries[stream.slot() % ENTRIES];
        let found = entry.stream.get() == stream.name() && entry.key.get() == key;
        // SAFETY: set together with the number, from a reference into that pool, which the caller says is alive.
        found.then(|| unsafe { entry.magazine.get().as_ref() })
    })
}

/// Remembers a magazine of the pool that has this number, for a stream that the pool's context made.
pub(super) fn remember(key: u64, stream: Stream, magazine: &Magazine) {
    REMEMBERED.with(|entries| {
        let entry = &entries[stream.slot() % ENTRIES];
        entry.stream.set(stream.name());
        entry.key.set(key);
        entry.magazine.set(magazine.into());
    });
}

/// Forgets everything, at the thread's end.
pub(super) fn forget() {
    REMEMBERED.with(|entries| entries.iter().for_each(|entry| entry.key.set(0)));
}

/// On a simulator that does not listen: where one does, every request goes the long way, which asks everything anew.
#[cfg(test)]
mod tests {
    use crate::PagePool;
    use bursar_core::{
        Build, DeviceContext, DeviceId, DeviceMemoryResource, DriverError, Error, Stack, Status, Stream, StreamMisuse,
        leaf, tag,
    };
    use bursar_sim::Sim;
    use std::sync::Arc;

    type Memory = Arc<dyn DeviceMemoryResource>;

    fn open() -> (Arc<Sim>, Arc<DeviceContext>) {
        let sim = Sim::immediate();
        let context = DeviceContext::open(sim.clone(), DeviceId(0)).expect("a device");
        (sim, context)
    }

    fn pool(context: &Arc<DeviceContext>) -> Memory {
        let stack = Stack::new().layer(PagePool::default()).over(leaf::Frames);
        Arc::new(stack.build(context).expect("a pool"))
    }

    /// Allocates and frees, and answers where the block was.
    fn pair(memory: &Memory, stream: Stream) -> Result<u64, Error> {
        let block = memory.allocate(1024, 256, stream, tag!("pair"))?;
        let address = block.ptr().0;
        Ok(memory.deallocate(block, stream).map(|()| address)?)
    }

    #[test]
    fn r6_a_fault_is_reported_by_a_request_that_would_be_at_hand() {
        let (_, context) = open();
        let (memory, stream) = (pool(&context), context.create_stream(0).expect("a stream"));
        assert_eq!(pair(&memory, stream), pair(&memory, stream), "the second is at hand");
        let fault = DriverError::new("free", DeviceId(0), Status::InvalidValue);
        context.fault().record(fault);
        assert_eq!(pair(&memory, stream), Err(fault.into()));
        assert!(pair(&memory, stream).is_ok(), "it is reported once");
    }

    #[test]
    fn r5_a_stream_is_asked_about_from_when_its_handle_is_given_away() {
        let (sim, context) = open();
        let (memory, stream) = (pool(&context), context.create_stream(0).expect("a stream"));
        assert_eq!(pair(&memory, stream), pair(&memory, stream), "the second is at hand");
        let block = memory.allocate(1024, 256, stream, tag!("pair")).expect("at hand");
        let raw = context.resolve(stream).expect("live");
        sim.begin_capture(DeviceId(0), raw).expect("live");
        let captured = |error: &Error| matches!(error, Error::StreamMisuse { why: StreamMisuse::Capturing, .. });
        assert!(pair(&memory, stream).is_err_and(|error| captured(&error)));
        let refused = memory.deallocate(block, stream).expect_err("captured");
        assert!(captured(&refused.error));
        sim.end_capture(DeviceId(0), raw).expect("live");
        memory.deallocate(refused.block, stream).expect("no longer captured");
    }

    #[test]
    fn p7_what_one_pool_has_at_hand_is_not_given_out_by_another() {
        let (_, context) = open();
        let stream = context.create_stream(0).expect("a stream");
        let (one, other) = (pool(&context), pool(&context));
        let (first, second) = (pair(&one, stream), pair(&other, stream));
        assert_ne!(first, second);
        for _ in 0..3 {
            assert_eq!((pair(&one, stream), pair(&other, stream)), (first.clone(), second.clone()));
        }
    }

    #[test]
    fn p1_what_is_at_hand_for_one_stream_is_not_given_to_another() {
        let (_, context) = open();
        let memory = pool(&context);
        let streams: Vec<_> = (0..3 * super::ENTRIES).map(|_| context.create_stream(0).expect("a stream")).collect();
        let addresses = || streams.iter().map(|&stream| pair(&memory, stream).expect("memory")).collect::<Vec<_>>();
        let first = addresses();
        assert!((1..first.len()).all(|at| !first[..at].contains(&first[at])), "each has its own");
        assert_eq!(addresses(), first);
    }
}
