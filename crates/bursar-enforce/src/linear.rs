//! Linear memory: `cuMemAlloc` and those like it.
#![allow(unsafe_code)]

use crate::driver::{self, Handle, read, write};
use crate::entry::SUCCESS;
use crate::granule::{self, Granule, PAGE};
use crate::hook::hook;
use crate::integer_map::IntegerMap;
use crate::share::Share;
use crate::{charge, device, pools, refusal, steps};
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// An allocation that is charged.
#[derive(Clone, Copy, Debug)]
struct Allocation {
    bytes: u64,
    context: Handle,
    charged: Charged,
}

// SAFETY: the handle of a context is compared and never followed.
unsafe impl Send for Allocation {}

/// The charge of an allocation.
#[derive(Clone, Copy, Debug)]
enum Charged {
    Bytes(u64),
    /// By the pages that it lies in; of those at its ends, others may have a part.
    Pages,
}

/// The linear allocations of this process.
#[derive(Debug, Default)]
struct Live {
    by_address: IntegerMap<Allocation>,
    /// The pages that allocations cover in part, with the number of allocations in them.
    shared_pages: IntegerMap<u32>,
}

static LIVE: LazyLock<Mutex<Live>> = LazyLock::new(Mutex::default);

fn live() -> MutexGuard<'static, Live> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Live {
    /// Enters an allocation by pages and returns the bytes of pages that nothing lay in before.
    fn add_pages(&mut self, start: u64, bytes: u64) -> u64 {
        let (whole, parts) = pages(start, bytes);
        let mut new = whole;
        for page in parts.into_iter().flatten() {
            let count = self.shared_pages.entry(page).or_default();
            *count += 1;
            new += u64::from(*count == 1) * PAGE;
        }
        new
    }

    /// Removes an allocation by pages and returns the bytes of pages that nothing lies in any more.
    fn remove_pages(&mut self, start: u64, bytes: u64) -> u64 {
        let (whole, parts) = pages(start, bytes);
        let mut gone = whole;
        for page in parts.into_iter().flatten() {
            let Some(count) = self.shared_pages.get_mut(&page) else { continue };
            *count -= 1;
            if *count == 0 {
                self.shared_pages.remove(&page);
                gone += PAGE;
            }
        }
        gone
    }

    /// Returns what is to be given back for an allocation that has ended.
    fn end(&mut self, start: u64, allocation: &Allocation) -> u64 {
        match allocation.charged {
            Charged::Bytes(bytes) => bytes,
            Charged::Pages => self.remove_pages(start, allocation.bytes),
        }
    }
}

/// Returns the bytes of the pages that an allocation has for itself, and the pages at its ends that it covers in part.
fn pages(start: u64, bytes: u64) -> (u64, [Option<u64>; 2]) {
    let end = start.saturating_add(bytes);
    let (first, last) = (start / PAGE, end.saturating_sub(1) / PAGE);
    let head = !start.is_multiple_of(PAGE) || (first == last && !end.is_multiple_of(PAGE));
    let tail = !end.is_multiple_of(PAGE) && first != last;
    let whole = (last - first + 1) - u64::from(head) - u64::from(tail);
    (whole * PAGE, [head.then_some(first), tail.then_some(last)])
}

/// A request for linear memory.
struct Request<'a> {
    bytes: u64,
    /// False for memory that the driver does not pack with other memory.
    is_packed: bool,
    call: &'a mut dyn FnMut() -> c_int,
    /// Writes back what was at the program's pointer before a call that is undone.
    restore: &'a dyn Fn(),
    /// Returns where the memory is and how much, after a call that went well.
    outcome: &'a dyn Fn() -> (u64, u64),
}

/// Charges a request, makes it and settles it.
fn allocate(share: &Share, request: Request<'_>) -> c_int {
    if !device::is_current(share) {
        return (request.call)();
    }
    let granule = granule::known(share);
    let unit = if let Granule::Multiple(multiple) = granule { multiple } else { PAGE };
    // What overflows when it is rounded, the driver refuses itself.
    let Some(charged) = request.bytes.checked_next_multiple_of(unit) else { return (request.call)() };
    if !charge::all(share, charged) {
        return refusal::refuse(share, request.bytes);
    }
    steps::passed(c"linear charged");
    let status = (request.call)();
    if status != SUCCESS {
        share.release(charged);
        return refusal::failed(share, request.bytes, status);
    }
    steps::passed(c"linear taken");
    let (start, bytes) = (request.outcome)();
    let context = driver::current_context().unwrap_or_default();
    let mut live = live();
    let (kind, actual) = match granule {
        // A small one may lie in a page that is paid for.
        Granule::Pages if request.is_packed => (Charged::Pages, live.add_pages(start, bytes)),
        _ => bytes
            .checked_next_multiple_of(unit)
            .map_or((Charged::Bytes(charged), charged), |bytes| (Charged::Bytes(bytes), bytes)),
    };
    live.by_address.insert(start, Allocation { bytes, context, charged: kind });
    drop(live);
    if !charge::settle(share, charged, actual) {
        (request.restore)();
        undo(share, start, charged, actual);
        return refusal::refuse(share, request.bytes);
    }
    steps::passed(c"linear entered");
    SUCCESS
}

/// Gives memory back that cost `actual`, of which only `charged` could be charged.
#[cold]
fn undo(share: &Share, start: u64, charged: u64, actual: u64) {
    let taken_out = live().by_address.remove(&start);
    driver::free(start);
    let ended = taken_out.map_or(actual, |allocation| live().end(start, &allocation));
    // Pages in which others lie by now stay charged.
    share.release(charged.saturating_sub(actual - ended.min(actual)));
}

/// Frees linear memory, or memory of a pool.
fn free(share: &Share, start: u64, call: impl FnOnce() -> c_int) -> c_int {
    // Once it is free, another thread may be given the same address: so the entry goes first.
    let taken_out = live().by_address.remove(&start);
    steps::passed(c"linear freeing");
    let status = if taken_out.is_some() { call() } else { pools::freeing(share, start, call) };
    match taken_out {
        Some(allocation) if status == SUCCESS => {
            let ended = live().end(start, &allocation);
            share.release(ended);
        }
        Some(allocation) => drop(live().by_address.insert(start, allocation)),
        None => pools::settle_all(share),
    }
    steps::passed(c"linear freed");
    status
}

/// The allocations of a context, taken out of the entries.
#[derive(Debug)]
pub(crate) struct OfContext(Vec<(u64, Allocation)>);

/// Takes out what was allocated in a context. Once that is gone, another thread may be given the same addresses.
pub(crate) fn take_out(context: Handle) -> OfContext {
    let mut live = live();
    let of_it = live.by_address.iter().filter(|(_, allocation)| allocation.context == context);
    let taken_out: Vec<(u64, Allocation)> = of_it.map(|(start, allocation)| (*start, *allocation)).collect();
    for (start, _) in &taken_out {
        live.by_address.remove(start);
    }
    OfContext(taken_out)
}

impl OfContext {
    /// Ends the charges: the context is gone.
    pub(crate) fn end(self, share: &Share) {
        let mut live = live();
        let bytes = self.0.iter().map(|(start, allocation)| live.end(*start, allocation)).sum();
        drop(live);
        share.release(bytes);
    }

    /// Enters everything again: the context is still there.
    pub(crate) fn put_back(self) {
        live().by_address.extend(self.0);
    }
}

/// Returns the bytes of rows as the driver pads them, which is found out when it is first needed.
fn rows(share: &Share, width: u64, height: u64) -> u64 {
    /// The multiple that is assumed while the driver does not tell.
    const USUAL: u64 = 512;
    static PITCH: AtomicU64 = AtomicU64::new(0);
    if PITCH.load(Relaxed) == 0 && device::is_current(share) && share.charge(PAGE) {
        PITCH.store(driver::pitch().unwrap_or(0), Relaxed);
        share.release(PAGE);
    }
    let pitch = Some(PITCH.load(Relaxed)).filter(|pitch| *pitch > 0).unwrap_or(USUAL);
    width.checked_next_multiple_of(pitch).unwrap_or(u64::MAX).saturating_mul(height)
}

hook! {
    take fn cuMemAlloc_v2(ptr: *mut u64, bytes: usize) |real, share| {
        let before = read(ptr);
        allocate(share, Request {
            bytes: bytes as u64,
            is_packed: true,
            call: &mut || real(ptr, bytes),
            restore: &|| write(ptr, before),
            outcome: &|| (read(ptr), bytes as u64),
        })
    };

    take fn cuMemAlloc(ptr: *mut c_uint, bytes: c_uint) |real, share| {
        let before = read(ptr);
        allocate(share, Request {
            bytes: u64::from(bytes),
            is_packed: true,
            call: &mut || real(ptr, bytes),
            restore: &|| write(ptr, before),
            outcome: &|| (u64::from(read(ptr)), u64::from(bytes)),
        })
    };

    take fn cuMemAllocPitch_v2(ptr: *mut u64, pitch: *mut usize, width: usize, height: usize, element: c_uint) |real, share| {
        let before = read(ptr);
        allocate(share, Request {
            bytes: rows(share, width as u64, height as u64),
            is_packed: true,
            call: &mut || real(ptr, pitch, width, height, element),
            restore: &|| write(ptr, before),
            outcome: &|| (read(ptr), (read(pitch) as u64).saturating_mul(height as u64)),
        })
    };

    take fn cuMemAllocPitch(ptr: *mut c_uint, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint) |real, share| {
        let before = read(ptr);
        allocate(share, Request {
            bytes: rows(share, u64::from(width), u64::from(height)),
            is_packed: true,
            call: &mut || real(ptr, pitch, width, height, element),
            restore: &|| write(ptr, before),
            outcome: &|| (u64::from(read(ptr)), u64::from(read(pitch)) * u64::from(height)),
        })
    };

    take fn cuMemAllocManaged(ptr: *mut u64, bytes: usize, flags: c_uint) |real, share| {
        let before = read(ptr);
        allocate(share, Request {
            bytes: bytes as u64,
            is_packed: false,
            call: &mut || real(ptr, bytes, flags),
            restore: &|| write(ptr, before),
            outcome: &|| (read(ptr), bytes as u64),
        })
    };

    pass fn cuMemFree_v2(ptr: u64) |real, share| free(share, ptr, || real(ptr));

    pass fn cuMemFree(ptr: c_uint) |real, share| free(share, u64::from(ptr), || real(ptr));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e1_small_allocations_share_the_pages_they_lie_in() {
        let mut live = Live::default();
        assert_eq!(live.add_pages(0, 512), PAGE);
        assert_eq!(live.add_pages(512, 512), 0);
        assert_eq!(live.add_pages(PAGE, PAGE), PAGE, "a whole page is nobody else's");
        assert_eq!(live.add_pages(2 * PAGE, 3 * PAGE + 1), 4 * PAGE);
        assert_eq!(live.remove_pages(0, 512), 0);
        assert_eq!(live.remove_pages(512, 512), PAGE);
        assert_eq!(live.remove_pages(2 * PAGE, 3 * PAGE + 1), 4 * PAGE);
        assert_eq!(live.remove_pages(PAGE, PAGE), PAGE);
        assert!(live.shared_pages.is_empty());
    }

    #[test]
    fn e1_pages_of_an_allocation_are_counted_once_wherever_it_lies() {
        for (start, bytes, expected) in [
            (0, 1, 1),
            (PAGE - 1, 1, 1),
            (PAGE - 1, 2, 2),
            (1, PAGE, 2),
            (1, PAGE - 1, 1),
            (PAGE / 2, 3 * PAGE, 4),
            (0, 10 * PAGE, 10),
        ] {
            let (whole, parts) = pages(start, bytes);
            let count = whole / PAGE + parts.into_iter().flatten().count() as u64;
            assert_eq!(count, expected, "{bytes} bytes at {start}");
        }
    }
}
