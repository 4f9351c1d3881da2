//! The model of one thread's calls: which handles are live, what they were made on, and so which status each call returns.

use super::wrapped::{self, Handle};
use super::{DEVICES, TOTAL};
use bursar::sim::Random;
use bursar_c::bursar_status::{
    self, BURSAR_INVALID_ARGUMENT, BURSAR_INVALID_HANDLE, BURSAR_INVALID_STREAM, BURSAR_NO_DEVICE, BURSAR_OK,
    BURSAR_OUT_OF_BUDGET, BURSAR_OUT_OF_MEMORY, BURSAR_STILL_HELD,
};
use std::collections::HashMap;

/// A live handle: the device's handle that it was made on, or its own for one; the ordinal of the device; and for a block its
/// stack and its size.
#[derive(Clone, Copy, Debug)]
struct Live {
    device: u64,
    ordinal: u32,
    stack: u64,
    bytes: u64,
}

pub(crate) struct Model {
    random: Random,
    driver: Handle,
    /// Everything that was ever given out, and some garbage.
    known: Vec<Handle>,
    live: HashMap<u64, Live>,
}

impl Model {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let driver = wrapped::open_driver(&format!("{DEVICES}x{TOTAL}"));
        let garbage = [0, 1, u64::MAX, random.next_u64()].map(Handle::Garbage);
        Self { random, driver, known: garbage.into_iter().chain([driver]).collect(), live: HashMap::new() }
    }

    /// Returns any handle, or, half of the time, a late one of the kind that is wanted.
    fn pick(&mut self, wanted: fn(&Handle) -> bool) -> Handle {
        let any = self.known[self.random.index(self.known.len())];
        if self.random.chance(4) {
            return any;
        }
        let nth = self.random.index(4);
        self.known.iter().rev().filter(|handle| wanted(handle)).nth(nth).copied().unwrap_or(any)
    }

    /// Returns what is live of a handle of this kind.
    fn live(&self, handle: Handle, kind: fn(&Handle) -> bool) -> Option<Live> {
        self.live.get(&handle.id()).copied().filter(|_| kind(&handle))
    }

    /// Enters a handle that was given out, which no other ever had the number of.
    fn enter(&mut self, handle: Handle, live: Live) {
        let is_new = self.known.iter().all(|known| known.id() != handle.id());
        assert!(is_new, "{handle:?} was given out before");
        self.known.push(handle);
        self.live.insert(handle.id(), live);
    }

    fn expect(status: bursar_status, expected: &[bursar_status], what: impl std::fmt::Debug) {
        assert!(expected.contains(&status), "{what:?}: {status:?} ({}), not {expected:?}", wrapped::last_message());
    }

    pub(crate) fn step(&mut self) {
        match self.random.below(20) {
            0 => self.open_device(),
            1 => self.open_stack(),
            2 | 3 => self.make_stream(),
            4 => self.reserve(),
            5 => self.close(),
            6 => self.count(),
            7 => self.trim(),
            8..11 => self.record_use(),
            11..16 => self.allocate(),
            _ => self.free(),
        }
    }

    fn open_device(&mut self) {
        let (driver, ordinal) = (self.pick(is_driver), self.random.below(3) as u32);
        let (status, device) = wrapped::open_device(driver, ordinal);
        let expected = match driver.id() == self.driver.id() {
            false => BURSAR_INVALID_HANDLE,
            true if ordinal >= DEVICES => BURSAR_NO_DEVICE,
            true => BURSAR_OK,
        };
        Self::expect(status, &[expected], (driver, ordinal));
        self.entered(status, device, Live { device: device.id(), ordinal, stack: 0, bytes: 0 });
    }

    /// Enters a handle if it was given out, and checks that it is null if not.
    fn entered(&mut self, status: bursar_status, handle: Handle, live: Live) {
        if status == BURSAR_OK {
            self.enter(handle, live);
        } else {
            assert_eq!(handle.id(), 0, "a call that fails gives out a null");
        }
    }

    fn open_stack(&mut self) {
        let device = self.pick(is_device);
        let reservation = self.random.chance(3).then(|| self.pick(is_reservation));
        let limit = self.random.below(2) * (TOTAL / 4);
        let (status, stack) = wrapped::open_stack(device, limit, reservation);
        let on = self.live(device, is_device);
        let reserved = reservation.map(|reservation| self.live(reservation, is_reservation));
        let expected = match (on, reserved) {
            (None, _) | (_, Some(None)) => BURSAR_INVALID_HANDLE,
            (Some(on), Some(Some(reserved))) if on.ordinal != reserved.ordinal => BURSAR_INVALID_ARGUMENT,
            _ => BURSAR_OK,
        };
        Self::expect(status, &[expected], (device, reservation));
        self.entered(status, stack, on.unwrap_or(NOTHING));
    }

    fn make_stream(&mut self) {
        let device = self.pick(is_device);
        let make = if self.random.chance(4) { wrapped::adopt_default } else { wrapped::create_stream };
        let (status, stream) = make(device);
        let on = self.live(device, is_device);
        Self::expect(status, &[if on.is_some() { BURSAR_OK } else { BURSAR_INVALID_HANDLE }], device);
        self.entered(status, stream, on.unwrap_or(NOTHING));
    }

    fn reserve(&mut self) {
        let (device, bytes) = (self.pick(is_device), 1 + self.random.below(TOTAL / 2));
        let (status, reservation) = wrapped::reserve(device, bytes);
        let on = self.live(device, is_device);
        let granted: &[bursar_status] = &[BURSAR_OK, BURSAR_OUT_OF_BUDGET];
        Self::expect(status, if on.is_some() { granted } else { &[BURSAR_INVALID_HANDLE] }, device);
        self.entered(status, reservation, on.unwrap_or(NOTHING));
    }

    fn close(&mut self) {
        let handle = self.pick(|_| true);
        if is_driver(&handle) || is_block(&handle) {
            return;
        }
        let status = wrapped::close(handle);
        let has_blocks = self.live.values().any(|live| live.bytes > 0 && live.stack == handle.id());
        let expected = match self.live.contains_key(&handle.id()) {
            true if has_blocks => BURSAR_STILL_HELD,
            true => BURSAR_OK,
            false => BURSAR_INVALID_HANDLE,
        };
        Self::expect(status, &[expected], handle);
        if status == BURSAR_OK {
            self.live.remove(&handle.id());
        }
    }

    /// Compares the number of blocks with the device's own count.
    fn count(&mut self) {
        let device = self.pick(is_device);
        let (status, blocks) = wrapped::counted_blocks(device);
        let on = self.live(device, is_device);
        Self::expect(status, &[if on.is_some() { BURSAR_OK } else { BURSAR_INVALID_HANDLE }], device);
        let live = self.live.values().filter(|live| live.bytes > 0 && live.device == device.id()).count();
        assert!(on.is_none() || blocks == live as u64, "{device:?} counts {blocks} blocks, where {live} are live");
    }

    fn trim(&mut self) {
        let stack = self.pick(is_stack);
        let is_live = self.live(stack, is_stack).is_some();
        Self::expect(wrapped::trim(stack), &[if is_live { BURSAR_OK } else { BURSAR_INVALID_HANDLE }], stack);
    }

    fn allocate(&mut self) {
        let (stack, stream) = (self.pick(is_stack), self.pick(is_stream));
        let bytes = if self.random.chance(20) { 0 } else { self.random.below(TOTAL / 8) + 1 };
        let (status, block) = wrapped::allocate(stack, bytes, stream);
        let (of_stack, of_stream) = (self.live(stack, is_stack), self.live(stream, is_stream));
        let expected: &[bursar_status] = match (of_stack, of_stream) {
            (None, _) | (_, None) => &[BURSAR_INVALID_HANDLE],
            _ if bytes == 0 => &[BURSAR_INVALID_ARGUMENT, BURSAR_INVALID_STREAM],
            (Some(a), Some(b)) if a.device != b.device => &[BURSAR_INVALID_STREAM],
            _ => &[BURSAR_OK, BURSAR_OUT_OF_BUDGET, BURSAR_OUT_OF_MEMORY],
        };
        Self::expect(status, expected, (stack, stream, bytes));
        let on = of_stack.unwrap_or(NOTHING);
        if let (BURSAR_OK, Handle::Block(_, address)) = (status, block) {
            self.assert_apart(on.ordinal, address, bytes);
        }
        self.entered(status, block, Live { stack: stack.id(), bytes, ..on });
    }

    /// Asserts that memory overlaps no block of the same physical device.
    fn assert_apart(&self, ordinal: u32, address: u64, bytes: u64) {
        for handle in &self.known {
            if let (Handle::Block(id, other), Some(live)) = (handle, self.live.get(&handle.id())) {
                let apart = address + bytes <= *other || other + live.bytes <= address;
                assert!(apart || live.ordinal != ordinal, "{address:#x} lies in the block {id:#x}");
            }
        }
    }

    fn free(&mut self) {
        let (block, stream) = (self.pick(is_block), self.pick(is_stream));
        let status = wrapped::free(block, stream);
        Self::expect(status, &[self.use_of_block(block, stream)], (block, stream));
        if status == BURSAR_OK {
            self.live.remove(&block.id());
        }
    }

    fn record_use(&mut self) {
        let (block, stream, access) = (self.pick(is_block), self.pick(is_stream), self.random.below(3) as u32);
        let status = wrapped::record_use(block, stream, access);
        let expected = if access > 1 { BURSAR_INVALID_ARGUMENT } else { self.use_of_block(block, stream) };
        Self::expect(status, &[expected], (block, stream, access));
    }

    /// Returns the status of a call about a block and a stream.
    fn use_of_block(&self, block: Handle, stream: Handle) -> bursar_status {
        match (self.live(block, is_block), self.live(stream, is_stream)) {
            (Some(block), Some(stream)) if block.device == stream.device => BURSAR_OK,
            (Some(_), Some(_)) => BURSAR_INVALID_STREAM,
            _ => BURSAR_INVALID_HANDLE,
        }
    }

    /// Closes everything, and asserts that the devices have all of their memory back.
    pub(crate) fn end(mut self) {
        for block in self.known.clone().into_iter().filter(is_block) {
            let Some(live) = self.live(block, is_block) else { continue };
            let of_device =
                |handle: &&Handle| self.live(**handle, is_stream).is_some_and(|on| on.device == live.device);
            let stream = self.known.iter().find(of_device).copied();
            let stream = stream.or_else(|| Some(wrapped::create_stream(Handle::Device(live.device)).1));
            match stream {
                Some(stream) if stream.id() != 0 => assert_eq!(wrapped::free(block, stream), BURSAR_OK),
                // Neither its device nor a stream of it is open: it cannot be freed, and its stack stays.
                _ => continue,
            }
            self.live.remove(&block.id());
        }
        let lost: Vec<Live> = self.live.values().copied().filter(|live| live.bytes > 0).collect();
        for handle in self.known.clone().into_iter().filter(|handle| !is_driver(handle) && !is_block(handle)) {
            if self.live.contains_key(&handle.id()) {
                let expected = match lost.iter().any(|live| live.stack == handle.id()) {
                    true => BURSAR_STILL_HELD,
                    false => BURSAR_OK,
                };
                assert_eq!(wrapped::close(handle), expected, "{handle:?}: {}", wrapped::last_message());
            }
        }
        for ordinal in (0..DEVICES).filter(|&ordinal| lost.iter().all(|live| live.ordinal != ordinal)) {
            assert_eq!(wrapped::free_memory(self.driver, ordinal), TOTAL, "of device {ordinal}");
        }
        assert_eq!(wrapped::close(self.driver), BURSAR_OK);
    }
}

const NOTHING: Live = Live { device: 0, ordinal: 0, stack: 0, bytes: 0 };

const fn is_driver(handle: &Handle) -> bool {
    matches!(handle, Handle::Driver(_))
}
const fn is_device(handle: &Handle) -> bool {
    matches!(handle, Handle::Device(_))
}
const fn is_stack(handle: &Handle) -> bool {
    matches!(handle, Handle::Stack(_))
}
const fn is_stream(handle: &Handle) -> bool {
    matches!(handle, Handle::Stream(_))
}
const fn is_block(handle: &Handle) -> bool {
    matches!(handle, Handle::Block(..))
}
const fn is_reservation(handle: &Handle) -> bool {
    matches!(handle, Handle::Reservation(_))
}
