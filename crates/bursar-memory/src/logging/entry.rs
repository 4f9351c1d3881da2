//! One record as it waits to be written.

use super::timestamp::Timestamp;
use bursar_core::{Action, AllocTag, Bytes, DeviceId, DevicePtr, Error, Generation, QueryId, Record, StreamNumber};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A record with the time, thread and query of the call that made it. It has a fixed size and owns nothing on the heap
/// (but for the one kind of error that does, which no allocation makes), so that keeping one is a copy.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) timestamp: Timestamp,
    pub(super) thread: u64,
    pub(super) query: QueryId,
    pub(super) ptr: DevicePtr,
    pub(super) granted: Bytes,
    pub(super) asked: Bytes,
    pub(super) generation: Option<Generation>,
    pub(super) stream: Option<StreamNumber>,
    pub(super) device: DeviceId,
    pub(super) tag: AllocTag,
    pub(super) action: Action,
    pub(super) error: Option<Error>,
}

const _: () = assert!(size_of::<Entry>() <= 136, "a queue holds tens of thousands of them");

impl Entry {
    /// Makes an entry of a record, with the time and thread of this call.
    #[inline]
    pub(super) fn of(record: &Record<'_>) -> Self {
        Self {
            timestamp: Timestamp::now(),
            thread: thread_number(),
            query: QueryId::current(),
            ptr: record.ptr,
            granted: record.granted,
            asked: record.asked,
            generation: record.generation,
            stream: record.stream.map(|stream| stream.number()),
            device: record.device,
            tag: record.tag,
            action: record.action,
            error: record.error.cloned(),
        }
    }
}

/// Returns the current thread's number in logs: from 1, in the order in which threads were first heard of. Unlike a
/// [`ThreadIndex`](bursar_core::ThreadIndex) it is never given to another thread, since a log outlives its threads.
#[inline]
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    match NUMBER.get() {
        0 => {
            let number = NEXT.fetch_add(1, Relaxed);
            NUMBER.set(number);
            number
        }
        number => number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g1_a_thread_keeps_its_number_and_no_other_ever_has_it() {
        let mut seen = vec![thread_number()];
        for _ in 0..10 {
            let (first, second) = std::thread::spawn(|| (thread_number(), thread_number())).join().expect("no panic");
            assert_eq!(first, second);
            assert!(!seen.contains(&first), "{first} was another thread's");
            seen.push(first);
        }
        assert_eq!(thread_number(), seen[0]);
    }
}
