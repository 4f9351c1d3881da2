//! Physical memory with a handle: `cuMemCreate`, and the mappings that keep it.
#![allow(unsafe_code)]

use crate::driver::read;
use crate::entry::SUCCESS;
use crate::hook::hook;
use crate::integer_map::IntegerMap;
use crate::share::Share;
use crate::{charge, device, refusal, steps};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_ulonglong, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// A piece of physical memory that is charged.
#[derive(Clone, Copy, Debug)]
struct Physical {
    bytes: u64,
    /// The handles that the program has of it.
    handles: u64,
    /// The places that it is mapped at, or is just being mapped at.
    mappings: u64,
}

/// A place that memory is mapped at.
#[derive(Clone, Copy, Debug)]
struct Mapped {
    bytes: u64,
    piece: u64,
}

/// The pieces of physical memory of this process. Each has a number of its own, since the driver uses the value of a handle again while
/// what it stood for is still mapped.
#[derive(Debug, Default)]
struct Pieces {
    next: u64,
    by_number: IntegerMap<Physical>,
    by_handle: IntegerMap<u64>,
    mapped: BTreeMap<u64, Mapped>,
}

static PIECES: LazyLock<Mutex<Pieces>> = LazyLock::new(Mutex::default);

fn pieces() -> MutexGuard<'static, Pieces> {
    PIECES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pieces {
    fn add(&mut self, handle: u64, bytes: u64) {
        self.next += 1;
        self.by_number.insert(self.next, Physical { bytes, handles: 1, mappings: 0 });
        self.by_handle.insert(handle, self.next);
    }

    /// Changes the counts of a piece, and returns the bytes to be given back if nothing holds it any more.
    fn change(&mut self, piece: u64, change: impl FnOnce(&mut Physical)) -> u64 {
        let Some(physical) = self.by_number.get_mut(&piece) else { return 0 };
        change(physical);
        let Physical { bytes, handles, mappings } = *physical;
        if handles + mappings > 0 {
            return 0;
        }
        self.by_number.remove(&piece);
        bytes
    }

    /// Takes out the handle if it is the last of its piece: the driver may give out its value again.
    fn take_last_handle(&mut self, handle: u64) -> Option<u64> {
        let piece = *self.by_handle.get(&handle)?;
        if self.by_number.get(&piece).is_none_or(|physical| physical.handles <= 1) {
            self.by_handle.remove(&handle);
        }
        Some(piece)
    }

    /// Takes out the mappings within a range of addresses.
    fn take_mappings(&mut self, start: u64, bytes: u64) -> Vec<(u64, Mapped)> {
        let within: Vec<u64> = self.mapped.range(start..start.saturating_add(bytes)).map(|(at, _)| *at).collect();
        within.into_iter().filter_map(|at| Some((at, self.mapped.remove(&at)?))).collect()
    }

    /// Returns the piece that is mapped at an address.
    fn at(&self, address: u64) -> Option<u64> {
        let (start, mapped) = self.mapped.range(..=address).next_back()?;
        (address - start < mapped.bytes).then_some(mapped.piece)
    }
}

fn create(share: &Share, handle: *const u64, bytes: u64, call: impl FnOnce() -> c_int) -> c_int {
    if !charge::all(share, bytes) {
        return refusal::refuse(share, bytes);
    }
    steps::passed(c"handle charged");
    let status = call();
    if status != SUCCESS {
        share.release(bytes);
        return refusal::failed(share, bytes, status);
    }
    steps::passed(c"handle taken");
    pieces().add(read(handle), bytes);
    steps::passed(c"handle entered");
    status
}

fn release(share: &Share, handle: u64, call: impl FnOnce() -> c_int) -> c_int {
    let taken_out = pieces().take_last_handle(handle);
    let status = call();
    let Some(piece) = taken_out else { return status };
    if status == SUCCESS {
        let ended = pieces().change(piece, |physical| physical.handles = physical.handles.saturating_sub(1));
        share.release(ended);
    } else {
        pieces().by_handle.insert(handle, piece);
    }
    steps::passed(c"handle released");
    status
}

fn map(share: &Share, start: u64, bytes: u64, handle: u64, call: impl FnOnce() -> c_int) -> c_int {
    let mut all = pieces();
    let piece = all.by_handle.get(&handle).copied();
    if let Some(piece) = piece {
        // Before the call: another thread may release the handle as soon as the memory is mapped.
        all.change(piece, |physical| physical.mappings += 1);
    }
    drop(all);
    steps::passed(c"handle mapping");
    let status = call();
    steps::passed(c"handle mapped");
    let Some(piece) = piece else { return status };
    let mut all = pieces();
    let ended = match status {
        SUCCESS => {
            all.mapped.insert(start, Mapped { bytes, piece });
            0
        }
        _ => all.change(piece, |physical| physical.mappings -= 1),
    };
    drop(all);
    share.release(ended);
    status
}

fn unmap(share: &Share, start: u64, bytes: u64, call: impl FnOnce() -> c_int) -> c_int {
    let taken_out = pieces().take_mappings(start, bytes);
    steps::passed(c"handle unmapping");
    let status = call();
    steps::passed(c"handle unmapped");
    let mut all = pieces();
    let mut ended = 0;
    for (at, mapped) in taken_out {
        if status == SUCCESS {
            ended += all.change(mapped.piece, |physical| physical.mappings -= 1);
        } else {
            all.mapped.insert(at, mapped);
        }
    }
    drop(all);
    share.release(ended);
    status
}

/// Counts one more handle of a piece that is charged.
fn add_handle(handle: u64, piece: Option<u64>) {
    let mut all = pieces();
    let Some(piece) = piece.or_else(|| all.by_handle.get(&handle).copied()) else { return };
    all.change(piece, |physical| physical.handles += 1);
    all.by_handle.insert(handle, piece);
}

hook! {
    take fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const c_void, flags: c_ulonglong) |real, share| {
        if device::has(share, properties) {
            create(share, handle, bytes as u64, || real(handle, bytes, properties, flags))
        } else {
            real(handle, bytes, properties, flags)
        }
    };

    pass fn cuMemRelease(handle: u64) |real, share| release(share, handle, || real(handle));

    pass fn cuMemMap(start: u64, bytes: usize, offset: usize, handle: u64, flags: c_ulonglong) |real, share| {
        map(share, start, bytes as u64, handle, || real(start, bytes, offset, handle, flags))
    };

    pass fn cuMemUnmap(start: u64, bytes: usize) |real, share| unmap(share, start, bytes as u64, || real(start, bytes));

    pass fn cuMemRetainAllocationHandle(handle: *mut u64, address: *mut c_void) |real, _share| {
        let status = real(handle, address);
        let piece = pieces().at(address.addr() as u64);
        if status == SUCCESS && piece.is_some() {
            add_handle(read(handle), piece);
        }
        status
    };

    // What another process made is paid by it. What this process made may come back under the handle that it has.
    pass fn cuMemImportFromShareableHandle(handle: *mut u64, shared: *mut c_void, kind: c_int) |real, _share| {
        let status = real(handle, shared, kind);
        if status == SUCCESS {
            add_handle(read(handle), None);
        }
        status
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e2_a_handle_is_charged_until_it_is_released_and_mapped_nowhere() {
        let mut pieces = Pieces::default();
        pieces.add(7, 100);
        let piece = pieces.take_last_handle(7).unwrap();
        assert_eq!(pieces.change(piece, |physical| physical.mappings += 2), 0);
        assert_eq!(pieces.change(piece, |physical| physical.handles -= 1), 0);
        pieces.add(7, 50);
        assert_ne!(pieces.take_last_handle(7), Some(piece), "the value of a handle is used again");
        assert_eq!(pieces.change(piece, |physical| physical.mappings -= 1), 0);
        assert_eq!(pieces.change(piece, |physical| physical.mappings -= 1), 100);
    }

    #[test]
    fn e2_an_address_leads_to_the_piece_that_is_mapped_there() {
        let mut pieces = Pieces::default();
        pieces.mapped.insert(1000, Mapped { bytes: 10, piece: 1 });
        pieces.mapped.insert(1010, Mapped { bytes: 10, piece: 2 });
        assert_eq!(
            [999, 1000, 1009, 1010, 1019, 1020].map(|at| pieces.at(at)),
            [None, Some(1), Some(1), Some(2), Some(2), None]
        );
        assert_eq!(pieces.take_mappings(1000, 20).len(), 2);
        assert!(pieces.mapped.is_empty());
    }
}
