//! The calls that are running, so that whoever closes something can wait for those that may still use it.
//!
//! A thread that makes a call says so in a record of its own: it writes to no memory that other threads write to, and takes no
//! lock. Whoever closes a handle first makes it stale and then looks at the records; a call enters its record first and then
//! looks at the handle. All four are sequentially consistent, so one of the two sees the other: the call finds the handle
//! stale, or the closing thread waits for the call.
#![allow(unsafe_code)]

use crate::forks;
use bursar::memory::DeviceMemoryResource;
use bursar::stream::Stream;
use bursar::sync::ThreadIndex;
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// The most slots of blocks that a thread keeps for itself, and the number that it takes or gives away at a time.
pub(crate) const SPARE_MAX: usize = 256;
pub(crate) const SPARE_BATCH: usize = SPARE_MAX / 2;

/// The calls of one thread.
#[derive(Default)]
#[repr(align(128))]
struct Record {
    /// The number of beginnings and ends: odd while a call runs.
    calls: AtomicU64,
    /// The stack and the stream that the thread used last.
    recent: Cell<Option<Recent>>,
    /// Slots of blocks for the next allocations of the thread.
    spare: UnsafeCell<Vec<u32>>,
    /// True for a record that no thread has for itself.
    is_extra: bool,
}

/// A stack and a stream that were found by these handles, when so many things had been closed.
#[derive(Clone, Copy)]
pub(crate) struct Recent {
    pub(crate) closed: u64,
    pub(crate) stack: u64,
    pub(crate) stream: u64,
    pub(crate) memory: *const dyn DeviceMemoryResource,
    pub(crate) token: Stream,
}

// SAFETY: only the thread whose record it is, or who took it from the extra ones, touches `recent` and `spare`, and only during
// a call.
unsafe impl Sync for Record {}
// SAFETY: as above; the pointer in `recent` is to something that threads share.
unsafe impl Send for Record {}

const RECORDS: usize = 64;
const CHUNKS: usize = 1024;

/// The records of threads, by their numbers.
static BY_THREAD: [OnceLock<Box<[Record; RECORDS]>>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];

/// The records of calls without a number: those that a thread's last destructors make, calls inside others, and threads
/// beyond the last number.
static EXTRA: Mutex<Extra> = Mutex::new(Extra { all: Vec::new(), idle: Vec::new() });

struct Extra {
    all: Vec<&'static Record>,
    idle: Vec<&'static Record>,
}

fn extra() -> MutexGuard<'static, Extra> {
    EXTRA.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call that runs: what it finds under a handle stays until it ends.
pub(crate) struct RunningCall {
    record: &'static Record,
    /// It stays on its thread.
    _thread: PhantomData<*const ()>,
}

impl RunningCall {
    /// Begins a call.
    #[inline]
    pub(crate) fn begin() -> Self {
        match own_record() {
            Some(record) if record.calls.load(Ordering::Relaxed) % 2 == 0 => Self::enter(record),
            _ => Self::begin_extra(),
        }
    }

    #[cold]
    fn begin_extra() -> Self {
        let mut extra = extra();
        let record = extra.idle.pop().unwrap_or_else(|| {
            let record: &'static Record = Box::leak(Box::new(Record { is_extra: true, ..Record::default() }));
            extra.all.push(record);
            record
        });
        Self::enter(record)
    }

    #[inline]
    fn enter(record: &'static Record) -> Self {
        let calls = record.calls.load(Ordering::Relaxed);
        record.calls.swap(calls + 1, Ordering::SeqCst);
        Self { record, _thread: PhantomData }
    }

    /// Returns the stack and the stream that calls of this thread used last.
    #[inline]
    pub(crate) fn recent(&self) -> Option<Recent> {
        self.record.recent.get()
    }

    /// Remembers a stack and a stream for the next calls of this thread.
    pub(crate) fn remember(&self, recent: Recent) {
        self.record.recent.set(Some(recent));
    }

    /// Returns the slots of blocks that are kept for the calls of this thread.
    #[inline]
    pub(crate) fn spare(&mut self) -> &mut Vec<u32> {
        // SAFETY: the record is this call's alone until it ends, and this borrows the call.
        unsafe { &mut *self.record.spare.get() }
    }
}

impl RunningCall {
    #[cold]
    fn give_back(&self) {
        extra().idle.push(self.record);
    }
}

impl Drop for RunningCall {
    #[inline]
    fn drop(&mut self) {
        let calls = self.record.calls.load(Ordering::Relaxed);
        self.record.calls.store(calls + 1, Ordering::Release);
        if self.record.is_extra {
            self.give_back();
        }
    }
}

#[inline]
fn own_record() -> Option<&'static Record> {
    let index = ThreadIndex::current()?.get();
    let chunk = BY_THREAD.get(index / RECORDS)?;
    let records = match chunk.get() {
        Some(records) => records,
        None => first_record(chunk),
    };
    Some(&records[index % RECORDS])
}

#[cold]
fn first_record(chunk: &'static OnceLock<Box<[Record; RECORDS]>>) -> &'static [Record; RECORDS] {
    forks::watch();
    chunk.get_or_init(|| Box::new(std::array::from_fn(|_| Record::default())))
}

/// The number of times that something was closed, or tried to be.
static CLOSED: AtomicU64 = AtomicU64::new(0);

/// Returns how often something was closed. While that stays the same, what a call finds by a handle is what an earlier call
/// found by it: whoever closes it counts first and then waits for this call.
#[inline]
pub(crate) fn closed() -> u64 {
    CLOSED.load(Ordering::SeqCst)
}

/// Counts that something was closed, whose handle is stale by now, and waits until every call of another thread has ended that
/// was running. Called without a call of this thread's own, unless that is an outer one.
pub(crate) fn wait_for_others() {
    CLOSED.fetch_add(1, Ordering::SeqCst);
    let own = own_record().map(std::ptr::from_ref);
    let extra: Vec<&'static Record> = extra().all.clone();
    let of_threads = BY_THREAD.iter().filter_map(OnceLock::get).flat_map(|records| records.iter());
    for record in of_threads.chain(extra).filter(|&record| Some(std::ptr::from_ref(record)) != own) {
        wait_for(record);
    }
}

fn wait_for(record: &Record) {
    let seen = record.calls.load(Ordering::SeqCst);
    let mut looks = 0;
    while seen % 2 == 1 && record.calls.load(Ordering::Acquire) == seen {
        looks += 1;
        match looks {
            0..100 => std::hint::spin_loop(),
            100..200 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(100)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn y1_closing_waits_for_calls_that_run_and_for_no_others() {
        let (began, ended) = (std::sync::Barrier::new(2), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let call = RunningCall::begin();
                began.wait();
                std::thread::sleep(Duration::from_millis(20));
                ended.store(true, Ordering::SeqCst);
                drop(call);
            });
            began.wait();
            let _own = RunningCall::begin();
            wait_for_others();
            assert!(ended.load(Ordering::SeqCst));
        });
        wait_for_others();
    }

    #[test]
    fn y1_a_call_inside_another_has_a_record_of_its_own() {
        let mut outer = RunningCall::begin();
        outer.spare().push(7);
        let mut inner = RunningCall::begin();
        assert!(!inner.spare().contains(&7));
        drop(inner);
        assert_eq!(outer.spare().pop(), Some(7));
    }
}
