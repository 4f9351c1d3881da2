//! Frees of blocks that graphs have, in the order of a capture and outside.
#![allow(unsafe_code)]

use super::memory::GraphMemory;
use crate::context::CaptureOrder;
use crate::{Bytes, DeviceBlock, Error, Holder as _, Note, Progress, RawStream, Refused, Result, Stream};

impl GraphMemory {
    /// Frees a block after what several streams were given so far: its own, and others that used it. Where all of them are
    /// part of the capture that it was allocated in, it is reused there by what comes after all of these frees, and
    /// otherwise from the next capture on. A stream that is being captured into another graph is refused.
    ///
    /// ```
    /// # use bursar::Result;
    /// # use bursar::prelude::*;
    /// # use bursar::graph::GraphMemory;
    /// # fn show(memory: &GraphMemory, stream: Stream, side: Stream) -> Result<()> {
    /// let capture = memory.capture_of(stream)?;
    /// capture.enter(side)?;
    /// let block = memory.allocate(4096, 256, stream, tag!("shared"))?;
    /// // … work on both streams …
    /// memory.deallocate_after(block, &[stream, side])?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn deallocate_after(&self, block: DeviceBlock, streams: &[Stream]) -> Result<(), Refused> {
        match self.free(&block, streams) {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused { block, error }),
        }
    }

    /// Says that no graph is captured into this memory or launched with it any more: what is in no block goes back to the
    /// memory below, and the rest as its blocks are freed. Returns how much went back at once. Launches that were
    /// [reported](Self::launched) are waited for on the device.
    ///
    /// Refused while a [`Graph`](crate::Graph) lives or is being captured; a memory that is dropped does the same.
    ///
    /// ```
    /// # use bursar::Result;
    /// # use bursar::prelude::*;
    /// # use bursar::graph::GraphMemory;
    /// # fn show(memory: &GraphMemory, stream: Stream, output: DeviceBlock) -> Result<()> {
    /// // … cuGraphExecDestroy(exec) …
    /// memory.launched(stream)?;
    /// memory.release()?;
    /// memory.deallocate(output, stream)?; // and with it the last of the memory
    /// assert_eq!(memory.held(), Bytes::ZERO);
    /// # Ok(())
    /// # }
    /// ```
    pub fn release(&self) -> Result<Bytes> {
        self.shared.release()?;
        Ok(self.shared.give_back_unused())
    }

    /// Frees a block in the order of the capture that it was allocated in.
    fn free_captured(&self, capture: &CaptureOrder, block: &DeviceBlock, streams: &[Stream]) -> Result<()> {
        let context = self.context();
        let home = context.hold(block.stream())?;
        for &stream in streams {
            let held = context.hold(stream)?;
            // SAFETY: the range is this memory's, which takes it back; the streams are held.
            unsafe { context.note(Note::Freed { ptr: block.ptr(), stream: held.raw(), home: home.raw() }) };
        }
        let points = capture.free_points(streams, block.stream());
        let (at, bytes) = (block.ptr().0, block.granted().get());
        let mut state = self.shared.state();
        state.forget(at, &self.shared.count);
        state.arena.put(at..at + bytes, points);
        Ok(())
    }

    /// Frees a block in the order of streams that are not captured: whatever is launched next comes after that. Those of the
    /// capture that it was allocated in end with its graph.
    fn free_outside(&self, block: &DeviceBlock, streams: &[Stream], capture: Option<&CaptureOrder>) -> Result<()> {
        let (context, own) = (self.context(), self.shared.own);
        let outside = || streams.iter().filter(|stream| capture.is_none_or(|capture| !capture.contains(**stream)));
        outside().try_for_each(|&stream| context.check_stream(stream))?;
        let freed_on = |raw| Note::Freed { ptr: block.ptr(), stream: raw, home: raw };
        match *streams {
            [only] if outside().next().is_some() => self.note_between(only, freed_on)?,
            [captured] => {
                let held = context.hold(captured)?;
                // SAFETY: the range is this memory's, which takes it back; the stream is held.
                unsafe { context.note(freed_on(held.raw())) };
            }
            _ => {
                let order =
                    |&stream: &Stream| context.order_outside(stream, own).or_else(|error| self.has_run(stream, error));
                outside().try_for_each(order)?;
                self.shared.note_on_own(freed_on);
            }
        }
        self.shared.launches.has_news();
        let (at, bytes) = (block.ptr().0, block.granted().get());
        let mut state = self.shared.state();
        state.forget(at, &self.shared.count);
        if state.capture.is_some() {
            state.freed_outside.push((at, bytes));
        } else {
            state.arena.put(at..at + bytes, Vec::new());
        }
        let is_released = state.is_released;
        drop(state);
        if is_released {
            self.shared.give_back_unused();
        }
        Ok(())
    }

    /// Returns an error to order the memory's own stream after another, unless that has run: then there is nothing to come after.
    #[cold]
    fn has_run(&self, stream: Stream, error: Error) -> Result<()> {
        match self.context().query(stream) {
            Ok(Progress::Complete) => Ok(()),
            _ => Err(error),
        }
    }

    /// Makes the memory's own stream come after another, with a note there, which whoever launches on that stream follows.
    fn note_between(&self, stream: Stream, note: impl FnOnce(RawStream) -> Note) -> Result<()> {
        let (context, own) = (self.context(), self.shared.own);
        let (held, held_own) = (context.hold_for_question(stream)?, context.hold_for_question(own)?);
        // SAFETY: the streams are live while they are held.
        let order = || unsafe { context.chain(held.raw(), held_own.raw()) };
        if let Err(error) = order() {
            self.has_run(stream, context.failed(error))?;
            self.shared.note_on_own(note);
            return Ok(());
        }
        if context.listens() {
            // SAFETY: the range is this memory's, which takes it back; the stream is held.
            unsafe { context.note(note(held.raw())) };
            // A note can be taken back by nobody, so it comes after what may fail, and another thread may have marked the stream
            // before it. The work on both is in order already.
            let _only_for_the_note = order();
        }
        Ok(())
    }

    /// Frees a block after what streams were given so far.
    pub(super) fn free(&self, block: &DeviceBlock, streams: &[Stream]) -> Result<()> {
        let live = self.shared.state().live.get(&block.ptr().0).copied();
        let live = match live {
            Some(live) if block.owner() == self.shared.owner => live,
            _ => return Err(Error::ForeignBlock { device: self.context().device(), ptr: block.ptr() }),
        };
        let current = self.shared.state().capture.clone().filter(|capture| capture.number() == live.origin.capture);
        match current {
            Some(capture) if streams.iter().all(|stream| self.capture_with(*stream).is_ok()) => {
                self.free_captured(&capture, block, streams)
            }
            current => self.free_outside(block, streams, current.as_deref()),
        }
    }
}
