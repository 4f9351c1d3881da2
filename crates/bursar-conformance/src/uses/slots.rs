//! The buffers of a program, what must be in them, and what reads have brought back.
#![allow(unsafe_code)]

use bursar_core::{DeviceContext, HostFlags, Result, Stream, tag};
use bursar_device::{DeviceBuffer, Gpu};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What each half of a buffer must hold; none where a write may or may not have taken place.
pub(super) type Halves = [Option<u32>; 2];

/// A buffer, and what must be in it.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) buffer: DeviceBuffer<u32>,
    pub(super) halves: Halves,
}

/// Buffers that threads take turns with.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<RwLock<Option<Live>>>,
    elements: usize,
    pub(super) made: AtomicUsize,
}

impl Slots {
    pub(super) fn new(count: usize, elements: usize) -> Self {
        let slots = (0..count).map(|_| RwLock::new(None)).collect();
        Self { slots, elements, made: AtomicUsize::new(0) }
    }

    pub(super) fn read(&self, slot: usize) -> RwLockReadGuard<'_, Option<Live>> {
        self.slots[slot].read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self, slot: usize) -> RwLockWriteGuard<'_, Option<Live>> {
        self.slots[slot].write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The buffer of a slot, which it is given first if it is empty. It holds anything then.
    pub(super) fn fill<'s>(&self, slot: &'s mut Option<Live>, gpu: &Gpu, stream: Stream) -> Result<&'s mut Live> {
        if slot.is_none() {
            let buffer = gpu.buffer(self.elements, stream, tag!("slot"))?;
            self.made.fetch_add(1, Relaxed);
            *slot = Some(Live { buffer, halves: [None; 2] });
        }
        Ok(slot.as_mut().expect("it has just been given one"))
    }
}

/// Pinned memory, a piece for each read, and what must come to be in it.
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

    /// A piece for one read that must see `halves`: its number and where it begins.
    pub(super) fn piece(&self, halves: Halves) -> (usize, *mut u8) {
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(expected.len() < self.capacity, "there is a piece for every read");
        expected.push(halves);
        let number = expected.len() - 1;
        (number, self.base.wrapping_add(number * self.elements * 4))
    }

    /// The read of a piece may not have taken place.
    pub(super) fn expect_anything(&self, piece: usize) {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)[piece] = [None; 2];
    }

    pub(super) fn len(&self) -> usize {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The first read that saw something else than it must.
    ///
    /// # Safety
    /// Every stream has run dry.
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

/// How elements differ from what must be in them.
pub(super) fn wrong(seen: &[u32], halves: Halves) -> Option<String> {
    let (first, second) = seen.split_at(seen.len() / 2);
    [first, second].into_iter().zip(halves).find_map(|(seen, value)| {
        let value = value?;
        let at = seen.iter().position(|seen| *seen != value)?;
        Some(format!("{:#x} where {value:#x} was written, {at} elements into a half", seen[at]))
    })
}
