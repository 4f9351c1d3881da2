//! The way back of a block: into the thread's cache if there is room, or else into the free list of the stream.
//!
//! Owner, size and alignment of every block that comes back are checked, in release builds too. A free on another
//! stream than the block's own goes to limbo: its memory is nobody's before both streams have passed it or are waited
//! for. One of a stream that nothing could be ordered after is kept until there is an order, and the device's next
//! fallible call reports the failure.

use super::extent::Extent;
use super::free_lists::UnorderedFree;
use super::magazine::Magazine;
use super::runs::UNIT;
use super::{PagePoolResource, driver_calls};
use bursar_core::{Bytes, DeviceBlock, Error, FrameSource, Refused, Result, Stream};
use std::ops::Range;

impl<F: FrameSource> PagePoolResource<F> {
    /// Frees a block into the thread's recent magazine; whatever does not fit there ends in a call of the rest, in one
    /// place, so that those above know which of the two it was.
    #[inline(always)]
    pub(super) fn free_cached(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        let (at, bytes) = (block.ptr().0, block.granted().get());
        let is_usual = block.owner() == self.owner && block.stream() == stream && (at | bytes).is_multiple_of(UNIT);
        let magazine = if is_usual { self.recent_magazine(stream) } else { None };
        if let Some(magazine) = magazine
            && bytes.wrapping_sub(UNIT) < self.settings.longest_cached_bytes
            && let Some(entry) = magazine.vacant_entry(bytes / UNIT)
        {
            entry.fill(at / UNIT);
            magazine.count_released(bytes);
            return Ok(());
        }
        self.free_missed(block, stream, magazine)
    }

    /// Frees a block that the thread's recent magazine has no entry for, or with every check made where there is none. Owner and
    /// alignment of one with a magazine were found to be right.
    #[inline(never)]
    fn free_missed(&self, block: DeviceBlock, stream: Stream, magazine: Option<&Magazine>) -> Result<(), Refused> {
        let Some(magazine) = magazine else { return self.free_checked(block, stream) };
        if !self.is_inside(&block) {
            return Err(Refused { error: self.foreign(&block), block });
        }
        let Extent { at, len } = extent_of(&block);
        if len <= self.settings.longest_cached {
            self.exchange(magazine, stream.slot(), Extent { at, len });
        } else if !self.state.lists().free(stream.slot(), at, len) {
            return Err(already_free(block));
        }
        magazine.count_released(len * UNIT);
        Ok(())
    }

    /// Frees a block with every check made: on any stream, after an alarm, and where a driver listens.
    #[inline(never)]
    fn free_checked(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        let bytes = block.granted().get();
        let freed = match self.is_own(&block) {
            true => self.context.on_lasting(block.stream(), |home| self.free_of(home, &block, stream)),
            false => Err(self.foreign(&block)),
        };
        match freed {
            Ok(true) => self.state.current_thread().count_released(bytes),
            Ok(false) => return Err(already_free(block)),
            Err(error) => return self.free_unordered(block, stream, error),
        }
        Ok(())
    }

    /// Frees a block on a stream where it is of `home`: its own stream, or the heir of that. Returns `false` where it is
    /// free already. Both streams are held meanwhile, so that neither ends between the free and its entry.
    fn free_of(&self, home: Stream, block: &DeviceBlock, stream: Stream) -> Result<bool> {
        let (context, extent) = (&self.context, extent_of(block));
        if home == stream {
            let held = context.hold_for_noted_free(stream)?;
            driver_calls::note_free_on(context, block.ptr(), held.raw());
            if self.state.sleep.is_any() {
                return Ok(self.state.lists().free_while_asleep(home, stream, extent));
            }
            let thread = self.state.current_thread();
            return Ok(self.put_back(extent, stream, thread.magazine(stream.slot())));
        }
        let (held_home, held) = (context.hold_for_noted_free(home)?, context.hold_for_noted_free(stream)?);
        driver_calls::note_free_after(context, block.ptr(), held.raw(), held_home.raw());
        if self.state.sleep.is_any() {
            return Ok(self.state.lists().free_while_asleep(home, stream, extent));
        }
        Ok(self.state.lists().free_elsewhere(home, stream, extent.at, extent.len))
    }

    /// Keeps a block that the driver could not order after its own stream, until it can. Whatever else is wrong with a
    /// free is returned to its caller.
    #[cold]
    fn free_unordered(&self, block: DeviceBlock, stream: Stream, error: Error) -> Result<(), Refused> {
        let failed = self.context.failed_order(&error, stream).filter(|_| self.is_own(&block));
        let Some(failed) = failed else { return Err(Refused { block, error }) };
        self.context.fault().record(failed);
        let (Extent { at, len }, home) = (extent_of(&block), block.stream());
        self.state.lists().unordered.push(UnorderedFree {
            at,
            len,
            home,
            stream,
            unreported: Some(block.ptr()),
            is_vacated: false,
        });
        self.state.current_thread().count_released(len * UNIT);
        Ok(())
    }

    /// Puts what was a block of this pool into a magazine, or into the free lists; returns `false` where it is there
    /// already.
    #[inline]
    fn put_back(&self, extent: Extent, stream: Stream, magazine: Option<&Magazine>) -> bool {
        match magazine {
            Some(magazine) if extent.len <= self.settings.longest_cached => {
                if !magazine.put(extent) {
                    self.exchange(magazine, stream.slot(), extent);
                }
                true
            }
            _ => self.state.lists().free(stream.slot(), extent.at, extent.len),
        }
    }

    /// Puts a block into a full magazine in the place of another, which goes to the free lists; or, where that cannot
    /// be, itself.
    #[cold]
    fn exchange(&self, magazine: &Magazine, slot: usize, extent: Extent) {
        if let Some(Extent { at, len }) = magazine.exchange(extent) {
            self.state.lists().free_own(slot, at, len);
        }
    }

    /// Returns whether a block can be one of this pool's: made here, in one piece of its memory.
    #[inline]
    fn is_own(&self, block: &DeviceBlock) -> bool {
        let is_aligned = (block.ptr().0 | block.granted().get()).is_multiple_of(UNIT);
        block.owner() == self.owner && is_aligned && self.is_inside(block)
    }

    /// Returns whether a block lies where this pool has memory.
    #[inline]
    fn is_inside(&self, block: &DeviceBlock) -> bool {
        let Range { start, end } = self.addresses;
        // One comparison for both ends: what lies before the first wraps around.
        let is_inside = (block.ptr().0 / UNIT).wrapping_sub(start) < end.wrapping_sub(start) || start == end;
        is_inside && block.granted() > Bytes::ZERO
    }

    #[cold]
    fn foreign(&self, block: &DeviceBlock) -> Error {
        Error::ForeignBlock { device: self.context.device(), ptr: block.ptr() }
    }
}

/// Returns where a block of a pool lies, in units.
#[inline]
fn extent_of(block: &DeviceBlock) -> Extent {
    Extent { at: block.ptr().0 / UNIT, len: block.granted().get() / UNIT }
}

#[cold]
fn already_free(block: DeviceBlock) -> Refused {
    let error = Error::UseAfterFree { ptr: block.ptr(), generation: block.generation(), tag: block.tag() };
    Refused { block, error }
}
