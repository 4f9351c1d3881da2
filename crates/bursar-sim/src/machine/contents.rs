//! The bytes of device memory.

use super::MachineState;
use super::device::{SPAN, addresses};
use super::sparse::{CHUNK, SparseBytes, Word};
use std::ops::Range;

impl MachineState {
    /// Returns the device whose address range contains `at`.
    pub(crate) fn device_of(&self, at: u64) -> Option<usize> {
        let index = (at / SPAN).checked_sub(1)? as usize;
        (index < self.devices.len()).then_some(index)
    }

    /// Returns whether a range lies in one allocation, or everywhere in pages that are mapped and accessible.
    pub(crate) fn is_memory(&self, range: &Range<u64>) -> bool {
        let Some(index) = self.device_of(range.start) else { return false };
        let device = &self.devices[index];
        if addresses(index).0.contains(&range.start) {
            return match self.oracle {
                Some(_) => device.space.contains(range),
                None => device.heap().contains(range),
            };
        }
        let mut next = range.start;
        while next < range.end {
            match device.mapping_at(next) {
                Some((start, mapping)) if mapping.is_allowed => next = start + mapping.bytes,
                _ => return false,
            }
        }
        true
    }

    /// Returns the memory behind an address, the offset in it, and the bytes from there to its end; `None` where there is no
    /// memory.
    fn locate(&mut self, at: u64) -> Option<(&mut SparseBytes, u64, u64)> {
        let index = self.device_of(at)?;
        let (allocations, _) = addresses(index);
        let device = &mut self.devices[index];
        if allocations.contains(&at) {
            let next = device.shared.range(at + 1..).next().map_or(allocations.end, |(start, _)| *start);
            return match device.shared.range_mut(..=at).next_back() {
                Some((start, (bytes, store))) if at < start + *bytes => Some((store, at - start, start + *bytes - at)),
                _ => Some((&mut device.store, at, next - at)),
            };
        }
        let (start, mapping) = device.mapping_at(at).filter(|(_, mapping)| mapping.is_allowed)?;
        let (offset, rest) = (at - start, start + mapping.bytes - at);
        let pages = self.pages.get_mut(&mapping.pages)?;
        Some((&mut pages.store, offset, rest))
    }

    /// Calls `visit` for each run of `at .. at + len` that lies in one piece of memory, with the offset of the run in it.
    /// Stops where there is no memory.
    fn each_run(&mut self, at: u64, len: u64, mut visit: impl FnMut(&mut SparseBytes, u64, Range<usize>)) {
        let mut done = 0;
        while done < len {
            let Some((store, offset, rest)) = self.locate(at + done) else {
                return;
            };
            let run = rest.min(len - done);
            visit(store, offset, done as usize..(done + run) as usize);
            done += run;
        }
    }

    pub(crate) fn read(&mut self, at: u64, into: &mut [u8]) {
        self.each_run(at, into.len() as u64, |store, offset, run| {
            store.read(offset, &mut into[run]);
        });
    }

    /// Makes frees on the device of `at` discard contents from now on.
    fn touched(&mut self, at: u64) {
        if let Some(index) = self.device_of(at)
            && !self.devices[index].is_touched
        {
            self.devices[index].is_touched = true;
            self.devices[index].heap().is_touched = true;
        }
    }

    pub(crate) fn write(&mut self, at: u64, from: &[u8]) {
        self.touched(at);
        self.each_run(at, from.len() as u64, |store, offset, run| store.write(offset, &from[run]));
    }

    pub(crate) fn fill(&mut self, at: u64, len: u64, word: Word) {
        self.touched(at);
        self.each_run(at, len, |store, offset, run| store.fill(offset, run.len() as u64, word));
    }

    /// Copies in steps. A step that repeats one word is copied as a fill.
    pub(crate) fn copy(&mut self, dst: u64, src: u64, len: u64) {
        const STEP: u64 = CHUNK;
        let mut buffer = Vec::new();
        let mut done = 0;
        while done < len {
            let at = src + done;
            let step = (STEP - at % STEP).min(len - done);
            let uniform = self.locate(at).and_then(|(store, offset, rest)| {
                (rest >= step && (dst + done) % 4 == at % 4).then(|| store.uniform(offset, step))?
            });
            match uniform {
                Some(word) => self.fill(dst + done, step, word),
                None => {
                    buffer.resize(step as usize, 0);
                    self.read(at, &mut buffer);
                    self.write(dst + done, &buffer);
                }
            }
            done += step;
        }
    }

    /// Returns the bytes of host memory that the contents of a device take.
    pub(crate) fn resident(&self, device: usize) -> u64 {
        let pages = self.pages.values().filter(|pages| pages.device == device);
        let allocations = self.devices.get(device).map_or(0, |device| device.store.resident());
        allocations + pages.map(|pages| pages.store.resident()).sum::<u64>()
    }
}
