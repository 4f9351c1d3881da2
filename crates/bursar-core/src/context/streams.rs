//! The streams of a device: creating them, and holding one while it is used.
//!
//! **Only a stream whose raw handle others have can be captured into a graph**, so the driver is asked about captures
//! for those alone. Asking for the handle of a stream ([`resolve`](DeviceContext::resolve)) is what makes it one.
#![allow(unsafe_code)]

use super::DeviceContext;
use crate::stream::StreamHold;
use crate::{DriverError, Error, Progress, RawStream, Result, STREAM_SLOTS, Stream};
use std::sync::PoisonError;

impl DeviceContext {
    /// Returns the legacy default stream.
    pub fn default_stream(&self) -> Stream {
        self.streams.default_stream()
    }

    /// Creates a stream that lives as long as the context. A priority outside the range in the
    /// [facts](crate::DeviceFacts::stream_priorities) is refused, which the driver itself would take as the nearest in it.
    pub fn create_stream(&self, priority: i32) -> Result<Stream> {
        if !self.facts.stream_priorities.contains(&priority) {
            return Err(Error::InvalidValue { what: "the priority is outside the device's range" });
        }
        let raw = self.driver.stream_create(self.device, priority).map_err(Error::CreateFailed)?;
        let number = self.driver.stream_number(self.device, raw);
        self.streams.own(raw, number).inspect_err(|_| self.destroy_stream(raw))
    }

    /// Returns a stream as [`create_stream`](Self::create_stream) does: one of that priority that was
    /// [returned](Self::return_stream), or else a new one. For pools, which come and go while the context stays.
    ///
    /// ```
    /// # use bursar::Result;
    /// # use bursar::prelude::*;
    /// # fn show(context: &DeviceContext) -> Result<()> {
    /// let stream = context.take_stream(0)?;
    /// context.return_stream(stream, 0)?;
    /// assert_eq!(context.take_stream(0)?, stream);
    /// # Ok(())
    /// # }
    /// ```
    pub fn take_stream(&self, priority: i32) -> Result<Stream> {
        let spare = {
            let mut spare = self.spare_streams.lock().unwrap_or_else(PoisonError::into_inner);
            let at = spare.iter().position(|(_, of)| *of == priority);
            at.map(|at| spare.remove(at).0)
        };
        spare.map_or_else(|| self.create_stream(priority), Ok)
    }

    /// Returns a stream of the usual priority as [`take_stream`](Self::take_stream) does, but only one that has run everything it was given: for
    /// whoever waits for what he gives it, and for nothing else.
    ///
    /// ```
    /// # use bursar::Result;
    /// # use bursar::prelude::*;
    /// # fn show(context: &DeviceContext) -> Result<()> {
    /// let stream = context.take_idle_stream()?;
    /// context.synchronize(stream)?;
    /// context.take_back_stream(stream, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn take_idle_stream(&self) -> Result<Stream> {
        let spare = || self.spare_streams.lock().unwrap_or_else(PoisonError::into_inner);
        let usual: Vec<_> = spare().extract_if(.., |(_, priority)| *priority == 0).collect();
        let mut busy = usual.into_iter();
        // One that cannot be asked, or is being captured, may be busy for all that is known.
        let mut passed = Vec::new();
        let idle = busy.by_ref().find_map(|(stream, priority)| match self.query(stream) {
            Ok(Progress::Complete) => Some(stream),
            _ => {
                passed.push((stream, priority));
                None
            }
        });
        spare().extend(passed.into_iter().chain(busy));
        idle.map_or_else(|| self.create_stream(0), Ok)
    }

    /// Returns a stream that the context made with `priority` to it, for whoever [takes](Self::take_stream) one next:
    /// their work follows what the stream was given before. A stream of another context, and one that was adopted, is
    /// refused.
    pub fn return_stream(&self, stream: impl Into<Stream>, priority: i32) -> Result<()> {
        let stream = stream.into();
        self.check_own(stream)?;
        if stream.is_adopted() || stream.is_default() {
            return Err(Error::InvalidValue { what: "only a stream that the context created can be returned to it" });
        }
        self.spare_streams.lock().unwrap_or_else(PoisonError::into_inner).push((stream, priority));
        Ok(())
    }

    /// Takes back a stream that was [taken](Self::take_stream) with `priority`, from whoever cannot fail any more. Only a
    /// stream of another context or an adopted one is refused, which a taken one is not; it would be left to the context.
    pub fn take_back_stream(&self, stream: Stream, priority: i32) {
        let returned = self.return_stream(stream, priority);
        debug_assert!(returned.is_ok(), "{stream:?} was not taken from this context: {returned:?}");
    }

    /// Returns the driver's handle of a stream of this context, for the driver and other libraries. Whoever has it can
    /// capture the stream into a graph, so from now on the driver is asked about that at each allocation and free.
    pub fn resolve(&self, stream: impl Into<Stream>) -> Result<RawStream> {
        let stream = stream.into();
        let raw = self.expose_for_good(stream)?;
        self.fault.alarm();
        Ok(raw)
    }

    /// Keeps a stream of this context alive while it is used.
    #[inline]
    pub fn hold(&self, stream: impl Into<Stream>) -> Result<StreamHold<'_>> {
        self.streams.hold(stream.into())
    }

    /// Keeps a stream alive that memory may be ordered on: one of this context, not being captured.
    #[inline]
    pub fn hold_for_memory(&self, stream: impl Into<Stream>) -> Result<StreamHold<'_>> {
        let stream = stream.into();
        let held = self.hold(stream)?;
        if self.streams.is_exposed(stream) {
            self.check_not_captured(stream, &held)?;
        }
        Ok(held)
    }

    /// Holds a stream that is asked, waited for or given something on behalf of another: as
    /// [`hold_for_memory`](Self::hold_for_memory) does, and a [capture](crate::GraphMemory::capture) of it does not begin
    /// before the hold is over. Whoever has one begins no capture.
    ///
    /// ```
    /// # use bursar::Result;
    /// # use bursar::prelude::*;
    /// # use bursar::stream::StreamProgress;
    /// # fn show(context: &DeviceContext, stream: Stream, given: u64) -> Result<()> {
    /// let held = context.hold_for_question(stream)?;
    /// let passed = StreamProgress::default().ask(context, Some(&held), given)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn hold_for_question(&self, stream: impl Into<Stream>) -> Result<StreamHold<'_>> {
        let stream = stream.into();
        let held = self.streams.hold_counted(stream)?;
        if self.streams.is_exposed_slot(stream.slot()) {
            self.check_not_captured(stream, &held)?;
        }
        Ok(held)
    }

    /// Holds a stream for a free that the driver is given in its order, as [`hold_for_question`](Self::hold_for_question) does.
    /// Where the driver fails even to say whether the stream is being captured, the free itself meets the same failure.
    pub(crate) fn hold_for_submitted_free(&self, stream: Stream) -> Result<StreamHold<'_>> {
        match self.hold_for_question(stream) {
            Err(Error::Driver(_)) => self.hold(stream),
            other => other,
        }
    }

    fn check_not_captured(&self, stream: Stream, held: &StreamHold<'_>) -> Result<()> {
        match self.is_captured(stream.slot(), held) {
            Ok(false) => Ok(()),
            Ok(true) => Err(self.captured(stream)),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Returns whether an exposed stream, which the caller holds, is being captured into a graph or about to be.
    pub(super) fn is_captured(&self, slot: usize, held: &StreamHold<'_>) -> Result<bool, DriverError> {
        if self.is_captured_here(slot) {
            return Ok(true);
        }
        // SAFETY: the stream is live while it is held.
        unsafe { self.driver.stream_is_capturing(self.device, held.raw()) }
    }

    /// Holds a stream for a free, as [`hold_for_memory`](Self::hold_for_memory) does. Where the driver fails even to
    /// say whether the stream is being captured, the free itself meets the same failure and is kept.
    pub fn hold_for_free(&self, stream: impl Into<Stream>) -> Result<StreamHold<'_>> {
        let stream = stream.into();
        match self.hold_for_memory(stream) {
            Err(Error::Driver(_)) => self.hold(stream),
            other => other,
        }
    }

    /// Holds a stream for a free that is [noted](Self::note) in its order, as [`hold_for_free`](Self::hold_for_free) does. Where the
    /// driver listens, the note is given on behalf of whoever frees, and a capture of the stream does not begin before it.
    pub fn hold_for_noted_free(&self, stream: impl Into<Stream>) -> Result<StreamHold<'_>> {
        let stream = stream.into();
        if self.listens { self.hold_for_submitted_free(stream) } else { self.hold_for_free(stream) }
    }

    /// Keeps the stream that is in a slot of the table now alive while it is used, if there is one.
    pub fn hold_slot(&self, slot: usize) -> Option<StreamHold<'_>> {
        self.streams.hold_slot(slot)
    }

    /// Holds the stream that is in a slot of the table now, as [`hold_for_question`](Self::hold_for_question) does, unless it is being
    /// captured into a graph, when nothing may be asked of it.
    pub fn hold_slot_for_question(&self, slot: usize) -> Result<Option<StreamHold<'_>>, DriverError> {
        let Some(held) = self.streams.hold_slot_counted(slot) else { return Ok(None) };
        let is_captured = self.streams.is_exposed_slot(slot) && self.is_captured(slot, &held)?;
        Ok((!is_captured).then_some(held))
    }

    /// Checks that memory may be ordered on a stream: one of this context, not being captured into a graph.
    pub fn check_stream(&self, stream: impl Into<Stream>) -> Result<()> {
        self.hold_for_memory(stream).map(drop)
    }

    /// Checks a stream as [`check_stream`](Self::check_stream) does, at once where the context made it and nobody else
    /// has its handle.
    #[inline]
    pub(crate) fn check_use(&self, stream: Stream) -> Result<()> {
        if self.streams.is_private(stream) { Ok(()) } else { self.check_stream(stream) }
    }

    /// Returns the driver's handle of a stream that memory may be ordered on without further questions: one that this
    /// context made, so that it stays, and whose handle nobody else has, so that it is not being captured. For all
    /// others there is [`hold_for_memory`](Self::hold_for_memory). The result stays right while there are no more
    /// [`alarms`](Self::alarms).
    pub fn own_stream(&self, stream: impl Into<Stream>) -> Option<RawStream> {
        self.streams.private_handle(stream.into())
    }

    /// Returns how often there was a reason to check again: a fault was remembered, or the handle of a stream given to
    /// others. Whoever reads it before a check need not check again while it stays the same.
    #[inline]
    pub fn alarms(&self) -> u32 {
        self.fault.alarms()
    }

    /// Makes everybody check again who relies on [`alarms`](Self::alarms).
    pub fn raise_alarm(&self) {
        self.fault.alarm();
    }

    /// Returns whether a stream is of this context; it may have ended.
    #[inline]
    pub(crate) fn is_own(&self, stream: Stream) -> bool {
        self.streams.is_own(stream)
    }

    /// Refuses a stream of another context.
    #[inline]
    pub(crate) fn check_own(&self, stream: Stream) -> Result<()> {
        self.streams.check_own(stream)
    }

    /// Returns whether any stream of the table is being captured into a graph.
    pub(super) fn is_capturing_any(&self) -> Result<bool, DriverError> {
        for slot in 0..STREAM_SLOTS {
            if let Some(held) = self.hold_slot(slot)
                && self.streams.is_exposed_slot(slot)
                && self.is_captured(slot, &held)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
