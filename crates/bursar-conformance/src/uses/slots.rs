//! The buffers of a program with their expected contents, and the values that reads have returned.
#![allow(unsafe_code)]

use bursar_core::{DeviceContext, HostFlags, Result, Stream, tag};
use bursar_device::{DeviceBuffer, Gpu};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The value that each half of a buffer must hold; `None` if a write may or may not have taken place.
pub(super) type Halves = [Option<u32>; 2];

/// A buffer and its expected contents.
#[derive(Debug)]
pub(super) struct TrackedBuffer {
    pub(super) buffer: DeviceBuffer<u32>,
    pub(super) halves: Halves,
}

/// The buffers, each of which one thread writes or several threads read at a time.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<RwLock<Option<TrackedBuffer>>>,
    elements: usize,
    pub(super) made: AtomicUsize,
}

impl Slots {
    pub(super) fn new(count: usize, elements: usize) -> Self {
        let slots = (0..count).map(|_| RwLock::new(None)).collect();
        Self { slots, elements, made: AtomicUsize::new(0) }
    }

    pub(super) fn read(&self, slot: usize) -> RwLockReadGuard<'_, Option<TrackedBuffer>> {
        self.slots[slot].read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self, slot: usize) -> RwLockWriteGuard<'_, Option<TrackedBuffer>> {
        self.slots[slot].write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the buffer of a slot. An empty slot is given a new buffer first, which may hold anything.
    pub(super) fn fill<'s>(
        &self,
        slot: &'s mut Option<TrackedBuffer>,
        gpu: &Gpu,
        stream: Stream,
    ) -> Result<&'s mut TrackedBuffer> {
        if slot.is_none() {
            let buffer = gpu.buffer(self.elements, stream, tag!("slot"))?;
            self.made.fetch_add(1, Relaxed);
            *slot = Some(TrackedBuffer { buffer, halves: [None; 2] });
        }
        Ok(slot.as_mut().expect("filled above"))
    }
}

/// Pinned memory, a piece for each read, with the values that each read must see.
#[derive(Debug)]
pub(super) struct ReadBacks {
    context: Arc<DeviceContext>,
    base: *mut u8,
    elements: usize,
    capacity: usize,
    expected: Mutex<Vec<Halves>>,
}

// SAFETY: pieces are given out once each, and the memory is read when nothing is in flight.
unsafe impl Sync for ReadBacks {}

impl ReadBacks {
    pub(super) fn new(context: &Arc<DeviceContext>, elements: usize, capacity: usize) -> Self {
        let bytes = elements * 4 * capacity;
        let base = context.driver().host_allocate(context.device(), bytes, HostFlags::default());
        let base = base.expect("there is host memory");
        Self { context: context.clone(), base, elements, capacity, expected: Mutex::default() }
    }

    /// Returns a piece for one read that must see `halves`: its number and its address.
    pub(super) fn piece(&self, halves: Halves) -> (usize, *mut u8) {
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(expected.len() < self.capacity, "there is a piece for every read");
        expected.push(halves);
        let number = expected.len() - 1;
        (number, self.base.wrapping_add(number * self.elements * 4))
    }

    /// Accepts anything in a piece whose read may not have taken place.
    pub(super) fn expect_anything(&self, piece: usize) {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)[piece] = [None; 2];
    }

    pub(super) fn len(&self) -> usize {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Describes the first read that saw something else than it must.
    ///
    /// # Safety
    /// Every stream is idle.
    pub(super) unsafe fn wrong(&self) -> Option<String> {
        let expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.elements * expected.len();
        // SAFETY: the memory is all of these pieces, pinned memory is aligned to a page, and nothing writes it any more.
        let seen = unsafe { std::slice::from_raw_parts(self.base.cast::<u32>(), all) };
        let mut reads = seen.chunks_exact(self.elements).zip(&*expected).enumerate();
        reads.find_map(|(nth, (seen, halves))| wrong(seen, *halves).map(|wrong| format!("read {nth}: {wrong}")))
    }
}

impl Drop for ReadBacks {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`; programs wait for every stream before they end.
        unsafe { self.context.driver().host_free(self.context.device(), self.base) }.expect("the device works");
    }
}

/// Describes the first element that differs from the expected contents.
pub(super) fn wrong(seen: &[u32], halves: Halves) -> Option<String> {
    let (first, second) = seen.split_at(seen.len() / 2);
    [first, second].into_iter().zip(halves).find_map(|(seen, value)| {
        let value = value?;
        let at = seen.iter().position(|seen| *seen != value)?;
        Some(format!("{:#x} where {value:#x} was written, {at} elements into a half", seen[at]))
    })
}
