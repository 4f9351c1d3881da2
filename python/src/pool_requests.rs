//! The way of a request from a raw handle of a stream to an address, and back.

use crate::failure::Failure;
use crate::pool::{Pool, current, epoch, forget_streams, opened, retrying};
use crate::pool_book::{Book, Held};
use crate::pool_device::PoolDevice;
use crate::pool_streams::{Entered, Life};
use crate::tags;
use bursar::sync::Latch;
use bursar::{DeviceId, Error, Stream};
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// A stream that a thread used, with what is known about it.
#[derive(Clone, Copy)]
struct Recent {
    epoch: u64,
    raw: u64,
    number: u32,
    device: Option<&'static PoolDevice>,
    stream: Option<Stream>,
}

/// The device and the stream of a request.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub(crate) device: &'static PoolDevice,
    pub(crate) stream: Stream,
    /// True if the stream has to be left, once what was asked for is free.
    pub(crate) is_guest: bool,
}

impl Found {
    pub(crate) const fn new(device: &'static PoolDevice, Entered { stream, is_guest }: Entered) -> Self {
        Self { device, stream, is_guest }
    }

    /// Allocates on the stream, and enters the block in a book.
    #[inline]
    pub(crate) fn allocate(self, book: &Latch<Book>, bytes: u64, raw: u64) -> Result<u64, Failure> {
        let Self { device, stream, is_guest } = self;
        let held = |block| Held { block, requested: bytes, raw, arena: 0, is_shared: is_guest };
        let entered = device.allocate(bytes, stream).and_then(|block| device.enter(book, held(block)));
        if entered.is_err() {
            self.leave();
        }
        entered
    }

    /// Leaves the stream of a request that was refused.
    #[cold]
    pub(crate) fn leave(self) {
        if self.is_guest {
            self.device.streams.leave(self.stream);
        }
    }
}

/// The number of streams that a thread remembers, each at the place that its handle and its device give it.
const RECENT_STREAMS: usize = 8;

const NONE: Recent = Recent { epoch: 0, raw: 0, number: 0, device: None, stream: None };

thread_local! {
    static RECENT: [Cell<Recent>; RECENT_STREAMS] = const { [const { Cell::new(NONE) }; RECENT_STREAMS] };
}

/// Returns the place of a stream among those that a thread remembers. Handles are addresses, or small numbers.
#[inline]
const fn place_of(number: u32, raw: u64) -> usize {
    (raw ^ (raw >> 4) ^ (raw >> 9) ^ number as u64) as usize % RECENT_STREAMS
}

/// Returns the device and the stream of a request, from what the thread remembers.
#[inline]
pub(crate) fn find(number: u32, raw: u64, life: Life) -> Result<Found, Failure> {
    let recent = RECENT.with(|recent| recent[place_of(number, raw)].get());
    if let (Some(device), Some(stream)) = (recent.device, recent.stream)
        && recent.raw == raw
        && recent.number == number
        && recent.epoch == epoch()
    {
        return Ok(Found { device, stream, is_guest: false });
    }
    find_slowly(number, raw, life)
}

#[cold]
#[inline(never)]
fn find_slowly(number: u32, raw: u64, life: Life) -> Result<Found, Failure> {
    let epoch = epoch();
    tags::refresh();
    let device = current().ok_or(Failure::Memory(Error::NoDevice))?.device(DeviceId(number))?;
    let found = Found::new(device, device.streams.enter(&device.context, raw, life.of(raw))?);
    if device.captures.load(Ordering::Acquire) > 0 {
        device.context.resolve(found.stream).inspect_err(|_| found.leave())?;
    }
    if !found.is_guest {
        let recent = Recent { epoch, raw, number, device: Some(device), stream: Some(found.stream) };
        RECENT.with(|streams| streams[place_of(number, raw)].set(recent));
    }
    Ok(found)
}

/// Allocates for PyTorch on a stream, by its raw handle, and returns the address.
#[inline]
pub(crate) fn allocate(bytes: u64, number: u32, raw: u64) -> Result<u64, Failure> {
    retrying(|| {
        let found = find(number, raw, Life::Lasting)?;
        found.allocate(&found.device.book, bytes, raw)
    })
}

/// Allocates for another library on a stream, by its raw handle, and returns the address.
#[inline]
pub(crate) fn allocate_other(bytes: u64, number: u32, raw: u64) -> Result<u64, Failure> {
    retrying(|| {
        let found = find(number, raw, Life::Ending)?;
        found.allocate(&found.device.others, bytes, raw)
    })
}

/// Frees the block of another library at an address, after the stream that it was allocated on; returns whether there is one.
#[inline]
pub(crate) fn free_other(ptr: u64, number: u32) -> bool {
    let Some(device) = opened(number) else { return false };
    let Some(held) = device.others.lock().take(ptr) else { return false };
    device.free(held);
    true
}

/// Ends the use of a stream that is about to be destroyed, on every device.
pub(crate) fn stream_ends(raw: u64) {
    Life::Ending.note(raw, false);
    let opened = current().into_iter().flat_map(Pool::opened);
    if opened.filter(|device| device.streams.end(raw)).count() > 0 {
        forget_streams();
    }
}
