//! Tables of what handles stand for.
//!
//! A handle is a number: its kind, the slot of its kind's table, and the generation of that slot. The memory of slots is never
//! freed, so a number that is not a handle is looked up as safely as one that is: it is out of range, or its slot has another
//! generation. A slot whose generations are used up is not used again, so no number ever means two things.
//!
//! | phase of a slot | who may use its value |
//! | --- | --- |
//! | vacant | nobody; whoever took the slot out of the vacant ones fills it |
//! | live | every running call, shared |
//! | taken | the one thread that took it: it is being closed or freed, and may be put back |
//! | borrowed | the one thread that borrowed it, for a moment; others wait |
//!
//! A live value is ended only once no other call can be using it: [`take`](Table::take) makes the handle stale, and
//! [`settle`](Taken::settle) waits for the calls that run. Blocks are never shared: each use takes or borrows.
#![allow(unsafe_code)]

use crate::running::{self, RunningCall};
use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const CHUNK: usize = 4096;
const CHUNKS: usize = 4096;
/// The number of slots that a table can have.
pub(crate) const SLOTS: usize = CHUNK * CHUNKS;

const GENERATION_BITS: u32 = 32;
const KIND_SHIFT: u32 = 56;

/// The marks in a slot's state that are not the number of its handle. No kind has them.
const TAKEN: u64 = 1 << 63;
const BORROWED: u64 = 1 << 62;

/// A value in one of the phases above. Its state is the number of its handle while it is live; with a mark while it is taken or
/// borrowed; and without the kind, so that it is no handle's, while it is vacant.
#[repr(align(128))]
struct Slot<T> {
    state: AtomicU64,
    value: UnsafeCell<MaybeUninit<T>>,
}

impl<T> Slot<T> {
    /// Returns the place of the value, whether there is one or not.
    #[inline]
    const fn place(&self) -> *mut T {
        self.value.get().cast()
    }
}

type Chunk<T> = [Slot<T>; CHUNK];

/// The things of one kind.
pub(crate) struct Table<T> {
    kind: u8,
    chunks: [AtomicPtr<Chunk<T>>; CHUNKS],
    vacant: Mutex<Vacant>,
}

struct Vacant {
    /// Slots that were used before.
    indices: Vec<u32>,
    /// The first slot that never was.
    next: u32,
}

// SAFETY: values are reached by the protocol above, which gives each to one thread alone or to all of them shared.
unsafe impl<T: Send + Sync> Sync for Table<T> {}

/// Returns the slot in the number of a handle.
const fn index_of(id: u64) -> u32 {
    (id >> GENERATION_BITS) as u32 & (SLOTS as u32 - 1)
}

/// Returns the generation in the number of a handle, or in a state.
const fn generation_of(id: u64) -> u32 {
    id as u32
}

impl<T> Table<T> {
    /// Makes the table of a kind, which is not zero.
    pub(crate) const fn new(kind: u8) -> Self {
        assert!(kind != 0 && kind < 64, "a handle is never zero, and has no mark");
        let vacant = Mutex::new(Vacant { indices: Vec::new(), next: 0 });
        Self { kind, chunks: [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS], vacant }
    }

    #[inline]
    fn id(&self, index: u32, generation: u32) -> u64 {
        u64::from(self.kind) << KIND_SHIFT | u64::from(index) << GENERATION_BITS | u64::from(generation)
    }

    /// Finds the slot that a number names, if there is one; its state may be another.
    #[inline]
    fn find(&self, id: u64) -> Option<&Slot<T>> {
        let index = index_of(id) as usize;
        let chunk = self.chunks[index / CHUNK].load(Ordering::Acquire);
        if id >> KIND_SHIFT != u64::from(self.kind) || chunk.is_null() {
            return None;
        }
        // SAFETY: a chunk that was made is never freed.
        let chunk = unsafe { &*chunk };
        Some(&chunk[index % CHUNK])
    }

    /// Takes a slot out of the vacant ones; `None` if there are no more.
    pub(crate) fn vacant(&self) -> Option<u32> {
        let mut one = Vec::with_capacity(1);
        self.take_vacant(&mut one, 1);
        one.pop()
    }

    /// Moves vacant slots into `spare`, as many as there are up to a number.
    pub(crate) fn take_vacant(&self, spare: &mut Vec<u32>, most: usize) {
        let mut vacant = self.vacant.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..most {
            let index = match vacant.indices.pop() {
                Some(index) => index,
                None if (vacant.next as usize) < SLOTS => {
                    self.make_chunk(vacant.next as usize / CHUNK);
                    vacant.next += 1;
                    vacant.next - 1
                }
                None => return,
            };
            spare.push(index);
        }
    }

    /// Gives vacant slots back.
    pub(crate) fn return_vacant(&self, indices: impl Iterator<Item = u32>) {
        self.vacant.lock().unwrap_or_else(PoisonError::into_inner).indices.extend(indices);
    }

    /// Makes a chunk if there is none; called with the vacant slots locked.
    fn make_chunk(&self, number: usize) {
        if self.chunks[number].load(Ordering::Relaxed).is_null() {
            let layout = Layout::new::<Chunk<T>>();
            // SAFETY: a slot is not empty.
            let memory = unsafe { std::alloc::alloc_zeroed(layout) };
            if memory.is_null() {
                std::alloc::handle_alloc_error(layout);
            }
            // Zeroes are a vacant slot of generation zero.
            self.chunks[number].store(memory.cast(), Ordering::Release);
        }
    }

    fn slot(&self, index: u32) -> &Slot<T> {
        let chunk = self.chunks[index as usize / CHUNK].load(Ordering::Acquire);
        // SAFETY: an index that was taken out of the vacant ones lies in a chunk that was made, and stays.
        let chunk = unsafe { &*chunk };
        &chunk[index as usize % CHUNK]
    }

    /// Fills a slot that was taken out of the vacant ones. Returns the number of the handle.
    #[inline]
    pub(crate) fn fill(&self, index: u32, value: T) -> u64 {
        let slot = self.slot(index);
        let id = self.id(index, generation_of(slot.state.load(Ordering::Relaxed)) + 1);
        // SAFETY: the slot is vacant and nobody else's.
        unsafe { slot.place().write(value) };
        // Whoever has the number sees the value; nobody can be looking for it before.
        slot.state.store(id, Ordering::Release);
        id
    }

    /// Enters a value and returns the number of its handle; the value comes back if there is no room.
    pub(crate) fn insert(&self, value: T) -> Result<u64, T> {
        match self.vacant() {
            Some(index) => Ok(self.fill(index, value)),
            None => Err(value),
        }
    }

    /// Returns the live value of a handle, which stays while the call runs.
    #[inline]
    pub(crate) fn get<'c>(&self, id: u64, _call: &'c RunningCall) -> Option<&'c T> {
        let slot = self.find(id)?;
        if slot.state.load(Ordering::SeqCst) != id {
            return None;
        }
        // SAFETY: it was live when the call had begun already, so whoever ends it waits for the call.
        Some(unsafe { &*slot.place() })
    }

    /// Takes a live value: its handle is stale from now on, unless it is put back.
    #[inline]
    pub(crate) fn take(&self, id: u64) -> Option<Taken<'_, T>> {
        Some(Taken { slot: self.claim(id, TAKEN)?, id })
    }

    /// Borrows a live value for a moment, alone. Others who want it meanwhile wait.
    pub(crate) fn borrow(&self, id: u64) -> Option<Borrowed<'_, T>> {
        Some(Borrowed { slot: self.claim(id, BORROWED)?, id })
    }

    /// Marks a live value, so that it is this thread's alone.
    #[inline]
    fn claim(&self, id: u64, mark: u64) -> Option<&Slot<T>> {
        let slot = self.find(id)?;
        loop {
            match slot.state.compare_exchange(id, id | mark, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => return Some(slot),
                // Whoever borrowed it is about to put it back.
                Err(seen) if seen == id | BORROWED => std::thread::yield_now(),
                Err(_) => return None,
            }
        }
    }

    /// Calls `read` with every value that is live, borrowed. One that is taken is waited for: whoever has it may put it back.
    pub(crate) fn for_each_live(&self, mut read: impl FnMut(&T)) {
        let made = self.vacant.lock().unwrap_or_else(PoisonError::into_inner).next;
        for index in 0..made {
            let slot = self.slot(index);
            let id = self.id(index, generation_of(slot.state.load(Ordering::Acquire)));
            loop {
                if let Some(borrowed) = self.borrow(id) {
                    read(borrowed.value());
                    break;
                }
                let state = slot.state.load(Ordering::Acquire);
                if state != id && state != id | TAKEN {
                    break;
                }
                std::thread::yield_now();
            }
        }
    }
}

/// A value whose handle is stale: it is ended or put back.
#[must_use = "the slot of a value that is neither ended nor put back is lost"]
pub(crate) struct Taken<'a, T> {
    slot: &'a Slot<T>,
    id: u64,
}

impl<'a, T> Taken<'a, T> {
    /// Returns the value. Calls that ran when it was taken may use it too.
    #[inline]
    pub(crate) fn value(&self) -> &T {
        // SAFETY: it is there until it is ended; nobody changes it.
        unsafe { &*self.slot.place() }
    }

    /// Makes the handle live again.
    pub(crate) fn put_back(self) {
        self.slot.state.store(self.id, Ordering::SeqCst);
    }

    /// Puts another value in the place of one that was [moved out](Self::move_out).
    ///
    /// # Safety
    /// The value was moved out.
    pub(crate) unsafe fn move_in(&self, value: T) {
        // SAFETY: the slot is this thread's alone.
        unsafe { self.slot.place().write(value) };
    }

    /// Moves the value out.
    ///
    /// # Safety
    /// No other call uses the value: none can, as for blocks, or those that could were waited for. It is moved out once, and
    /// then the slot is vacated or gets another value.
    #[inline]
    pub(crate) unsafe fn move_out(&self) -> T {
        // SAFETY: it is there, and the caller's promise that nobody else uses it.
        unsafe { self.slot.place().read() }
    }

    /// Waits for the calls that may use the value. Whoever begins one now finds the handle stale.
    pub(crate) fn settle(self) -> Settled<'a, T> {
        running::wait_for_others();
        Settled { taken: self }
    }

    /// Makes the slot vacant, after the value was moved out. Returns its index for the next value, unless its generations are
    /// used up.
    #[inline]
    pub(crate) fn vacate(self) -> Option<u32> {
        self.slot.state.store(u64::from(generation_of(self.id)), Ordering::Release);
        (generation_of(self.id) < u32::MAX).then_some(index_of(self.id))
    }
}

/// A value that was taken and that no other call uses.
#[must_use = "the slot of a value that is neither ended nor put back is lost"]
pub(crate) struct Settled<'a, T> {
    taken: Taken<'a, T>,
}

impl<T> Settled<'_, T> {
    pub(crate) fn value(&self) -> &T {
        self.taken.value()
    }

    /// Makes the handle live again.
    pub(crate) fn put_back(self) {
        self.taken.put_back();
    }

    /// Takes the value out. Returns it, and the slot's index as [`vacate`](Taken::vacate) does.
    pub(crate) fn end(self) -> (T, Option<u32>) {
        // SAFETY: those who could use the value were waited for, and nobody finds it any more.
        let value = unsafe { self.taken.move_out() };
        (value, self.taken.vacate())
    }
}

/// A value that this thread alone uses for a moment.
pub(crate) struct Borrowed<'a, T> {
    slot: &'a Slot<T>,
    id: u64,
}

impl<T> Borrowed<'_, T> {
    pub(crate) fn value(&self) -> &T {
        // SAFETY: it is there while it is borrowed.
        unsafe { &*self.slot.place() }
    }

    pub(crate) fn value_mut(&mut self) -> &mut T {
        // SAFETY: it is there while it is borrowed, and nobody else uses it.
        unsafe { &mut *self.slot.place() }
    }
}

impl<T> Drop for Borrowed<'_, T> {
    fn drop(&mut self) {
        self.slot.state.store(self.id, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    /// Says when it is dropped.
    struct Flagged<'a>(&'a AtomicBool);

    impl Drop for Flagged<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn y1_a_value_is_not_ended_while_a_call_has_it() {
        static DROPPED: AtomicBool = AtomicBool::new(false);
        static TABLE: Table<Flagged<'static>> = Table::new(9);
        let (id, began) = (TABLE.insert(Flagged(&DROPPED)).ok().expect("room"), Barrier::new(2));
        std::thread::scope(|scope| {
            let user = scope.spawn(|| {
                let call = RunningCall::begin();
                let value = TABLE.get(id, &call).expect("it is live");
                began.wait();
                std::thread::sleep(Duration::from_millis(20));
                value.0.load(Ordering::SeqCst)
            });
            began.wait();
            let settled = TABLE.take(id).expect("it is live").settle();
            drop(settled.end());
            assert!(DROPPED.load(Ordering::SeqCst));
            assert!(!user.join().expect("no panic"), "it was dropped under a call");
        });
        assert!(TABLE.get(id, &RunningCall::begin()).is_none() && TABLE.take(id).is_none());
    }

    #[test]
    fn y1_a_slot_whose_generations_are_used_up_is_not_used_again() {
        static TABLE: Table<u8> = Table::new(9);
        let first = TABLE.insert(1).expect("room");
        let last = TABLE.id(0, u32::MAX);
        TABLE.slot(0).state.store(last, Ordering::SeqCst);
        let end = |id| TABLE.take(id).expect("it is live").settle().end();
        assert_eq!(end(last), (1, None), "its index is kept from the next ones");
        let next = TABLE.insert(2).expect("room");
        assert!(next != first && next >> GENERATION_BITS != first >> GENERATION_BITS, "{next:#x} after {first:#x}");
        assert_eq!(end(next), (2, Some(1)));
    }

    #[test]
    fn y1_a_value_that_is_taken_and_put_back_is_among_the_live_ones() {
        static TABLE: Table<u64> = Table::new(9);
        let id = TABLE.insert(7).expect("room");
        let taken = TABLE.take(id).expect("it is live");
        let (mut seen, begins) = (0, Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begins.wait();
                TABLE.for_each_live(|value| seen += value);
            });
            begins.wait();
            std::thread::sleep(Duration::from_millis(20));
            taken.put_back();
        });
        assert_eq!(seen, 7);
    }

    #[test]
    fn y1_who_finds_a_value_borrowed_waits_for_it() {
        static TABLE: Table<u64> = Table::new(9);
        let id = TABLE.insert(0).expect("room");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| *TABLE.borrow(id).expect("it stays").value_mut() += 1));
            }
        });
        assert_eq!(TABLE.take(id).expect("it is live").settle().end().0, 4000);
        let (mut seen, again) = (Vec::new(), [7, 8].map(|value| TABLE.insert(value).expect("room")));
        TABLE.take(again[0]).expect("it is live").put_back();
        TABLE.for_each_live(|value| seen.push(*value));
        assert_eq!(seen, [7, 8]);
    }
}
