//! Order between the streams of a device, waiting for one of them, and the events that both use.
#![allow(unsafe_code)]

use super::DeviceContext;
use crate::{
    DriverError, DriverResult, Error, Progress, RawEvent, RawStream, Result, STREAM_SLOTS, Status, Stream, StreamMisuse,
};
use std::io::Write as _;
use std::sync::PoisonError;
use std::time::Duration;

/// The number of times that a wait is tried which fails for no lasting reason, and the pause after each.
const WAIT_ATTEMPTS: u32 = 1000;
const WAIT_PAUSE: Duration = Duration::from_millis(1);

impl DeviceContext {
    /// Takes an event of the device, new or used before; [`return_event`](Self::return_event) returns it.
    pub fn take_event(&self) -> Result<RawEvent, DriverError> {
        let spare = self.events.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match spare {
            Some(event) => Ok(event),
            None => self.driver.event_create(self.device),
        }
    }

    /// Returns an event to the context, which uses it again.
    ///
    /// # Safety
    /// The event came from [`take_event`](Self::take_event) of this context, is returned once, and nobody queries it or
    /// waits for it afterwards.
    pub unsafe fn return_event(&self, event: RawEvent) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// Makes what is submitted to `then` from here on wait for what was submitted to `first` before, without blocking
    /// the caller. Where `first` is being [captured](crate::GraphMemory::capture), `then` becomes part of the same graph.
    ///
    /// ```
    /// # use bursar::Result;
    /// # use bursar::prelude::*;
    /// # fn show(context: &DeviceContext, produces: Stream, consumes: Stream) -> Result<()> {
    /// context.order(produces, consumes)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn order(&self, first: impl Into<Stream>, then: impl Into<Stream>) -> Result<()> {
        let (first, then) = (first.into(), then.into());
        if let Some(capture) = self.capture_of(first) {
            return self.order_captured(&capture, first, then);
        }
        self.order_outside(first, then)
    }

    /// Orders `then` after `first` as [`order`](Self::order) does, where neither is being captured.
    pub(crate) fn order_outside(&self, first: Stream, then: Stream) -> Result<()> {
        let (held_first, held_then) = (self.hold_for_question(first)?, self.hold_for_question(then)?);
        if first == then {
            return Ok(());
        }
        // SAFETY: the streams are live while they are held.
        unsafe { self.chain(held_first.raw(), held_then.raw()) }.map_err(|error| self.failed(error))
    }

    /// Orders `then` after `first` as [`order`](Self::order) does, or after the [heir](Self::heir_of) of `first` if its
    /// adoption has ended; as there, the caller holds no adopted stream. Where `first` is being captured that is refused: `then`
    /// is no part of the graph.
    ///
    /// ```
    /// # use bursar::Result;
    /// # use bursar::prelude::*;
    /// # fn show(context: &DeviceContext, block: &DeviceBlock, frees: Stream) -> Result<()> {
    /// context.order_after(block.stream(), frees)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn order_after(&self, first: impl Into<Stream>, then: impl Into<Stream>) -> Result<()> {
        let then = then.into();
        self.on_lasting(first.into(), |first| self.order_outside(first, then))
    }

    /// Makes what any stream of the context is given from here on wait for what was submitted to `first` before, without blocking the
    /// caller. One that is being captured does not; the first failure is returned, after all have been tried.
    ///
    /// ```
    /// # use bursar::Result;
    /// # use bursar::prelude::*;
    /// # fn show(context: &DeviceContext, copies: Stream) -> Result<()> {
    /// context.precede_all(copies)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn precede_all(&self, first: impl Into<Stream>) -> Result<(), DriverError> {
        let first = first.into();
        let Ok(held) = self.hold(first) else { return Ok(()) };
        // SAFETY: the stream is live while it is held.
        let event = unsafe { self.record_event(held.raw()) }?;
        let wait = |slot| -> Result<(), DriverError> {
            let Some(then) = self.hold_slot_for_question(slot)? else { return Ok(()) };
            // SAFETY: the stream is live while it is held, and the event was recorded above.
            unsafe { self.driver.stream_wait(self.device, then.raw(), event) }
        };
        let ordered = (0..STREAM_SLOTS).filter(|&slot| slot != first.slot()).map(wait).fold(Ok(()), Result::and);
        // SAFETY: taken by `record_event`; a wait that was submitted keeps what it waits for.
        unsafe { self.return_event(event) };
        ordered
    }

    /// Takes an event and records it on a stream; where that fails, the event is returned.
    ///
    /// # Safety
    /// `stream` is a live stream of this device.
    pub(crate) unsafe fn record_event(&self, stream: RawStream) -> Result<RawEvent, DriverError> {
        let event = self.take_event()?;
        // SAFETY: the caller's own promise, and the event is this context's.
        let recorded = unsafe { self.driver.event_record(self.device, event, stream) };
        recorded.map(|()| event).inspect_err(|_| {
            // SAFETY: taken above, and not recorded.
            unsafe { self.return_event(event) };
        })
    }

    /// Makes what is submitted to `then` from here on wait for what was submitted to `first` before.
    ///
    /// # Safety
    /// Both are live streams of this device.
    pub(crate) unsafe fn chain(&self, first: RawStream, then: RawStream) -> Result<(), DriverError> {
        // SAFETY: the caller's own promise.
        let event = unsafe { self.record_event(first) }?;
        // SAFETY: the caller's own promise, and the event is this context's.
        let ordered = unsafe { self.driver.stream_wait(self.device, then, event) };
        // SAFETY: taken by `record_event`; a wait that was submitted keeps what it waits for.
        unsafe { self.return_event(event) };
        ordered
    }

    /// Waits until everything submitted to the stream so far has run. Fails for a stream that is being captured into a graph.
    pub fn synchronize(&self, stream: impl Into<Stream>) -> Result<()> {
        let stream = stream.into();
        let held = self.hold_for_question(stream)?;
        let view = self.clocks.look(stream);
        // SAFETY: the stream is live while it is held.
        unsafe { self.driver.stream_synchronize(self.device, held.raw()) }.map_err(|error| self.failed(error))?;
        self.clocks.completed(stream, &view);
        Ok(())
    }

    /// Asks the driver whether everything submitted to the stream so far has run, and remembers that it has. Fails for a
    /// stream whose adoption has ended: there is [`has_run`](Self::has_run) for those.
    pub(crate) fn query(&self, stream: Stream) -> Result<Progress> {
        let held = self.hold_for_question(stream)?;
        let view = self.clocks.look(stream);
        // SAFETY: the stream is live while it is held.
        let progress = unsafe { self.driver.stream_query(self.device, held.raw()) };
        let progress = progress.map_err(|error| self.failed(error))?;
        if progress.is_complete() {
            self.clocks.completed(stream, &view);
        }
        Ok(progress)
    }

    /// Returns whether everything submitted so far to the stream or, if its adoption has ended, to its heir has run.
    /// Where `patience` is [`Duration::MAX`], waits until it has. Fails for a stream that is being captured into a
    /// graph.
    pub fn has_run(&self, stream: impl Into<Stream>, patience: Duration) -> Result<bool> {
        let stream = self.lasting(stream.into())?;
        match patience {
            Duration::MAX => self.synchronize(stream).map(|()| true),
            _ => self.query(stream).map(Progress::is_complete),
        }
    }

    /// Waits until nothing that was submitted to `stream` or, if its adoption has ended, to its heir is in flight. A
    /// stream that is being captured is not waited for, since that would invalidate the capture; for one that ended
    /// unordered, the whole device is.
    pub(crate) fn wait_until_idle(&self, stream: Stream) -> Result<(), WaitFailure> {
        let had_ended = self.has_ended(stream);
        if had_ended {
            self.wait_for_order(stream)?;
        }
        match self.wait_in_order(stream) {
            Err(failure) if failure.may_be_in_flight && !had_ended && self.has_ended(stream) => {
                self.wait_for_order(stream)?;
                self.wait_in_order(stream)
            }
            outcome => outcome,
        }
    }

    /// As [`wait_until_idle`](Self::wait_until_idle), but fails at once for a stream that ended unordered.
    pub(crate) fn wait_in_order(&self, stream: Stream) -> Result<(), WaitFailure> {
        let heir_of = |ended| self.heir_of(ended).map_err(|error| self.order_failure(error));
        if self.has_ended(stream) {
            return self.wait_for_stream(heir_of(stream)?);
        }
        match self.wait_for_stream(stream) {
            Err(failure) if failure.is_of_ended_stream() && self.has_ended(stream) => {
                self.wait_for_stream(heir_of(stream)?)
            }
            outcome => outcome,
        }
    }

    /// Waits until nothing that was submitted to the stream is in flight.
    fn wait_for_stream(&self, stream: Stream) -> Result<(), WaitFailure> {
        let held = self.hold_for_submitted_free(stream).map_err(WaitFailure::in_flight)?;
        let view = self.clocks.look(stream);
        self.try_to_wait_for(held.raw())?;
        self.clocks.completed(stream, &view);
        Ok(())
    }

    /// Waits until nothing is in flight on the stream, which the caller holds: a failure for no lasting reason is tried
    /// again for a while.
    fn try_to_wait_for(&self, raw: RawStream) -> Result<(), WaitFailure> {
        let mut first = None;
        for attempt in 0..WAIT_ATTEMPTS {
            // SAFETY: the caller holds the stream.
            match unsafe { self.driver.stream_synchronize(self.device, raw) } {
                Ok(()) => {
                    let outcome = first.map_or(Ok(()), |error| Err(self.failed(error)));
                    return outcome.map_err(|error| WaitFailure { error, may_be_in_flight: false });
                }
                Err(error) if is_final(error.status) || error.status == Status::Capturing => {
                    return Err(self.wait_failure(error));
                }
                Err(error) => first = first.or(Some(error)),
            }
            if attempt + 1 < WAIT_ATTEMPTS {
                std::thread::sleep(WAIT_PAUSE);
            }
        }
        Err(self.wait_failure(first.unwrap_or(DriverError::new(
            "stream_synchronize",
            self.device,
            Status::Unavailable,
        ))))
    }

    fn wait_failure(&self, error: DriverError) -> WaitFailure {
        WaitFailure { may_be_in_flight: !is_final(error.status), error: self.failed(error) }
    }

    /// Returns once nothing is in flight on the stream, which the caller holds, because it has run or because the
    /// device runs nothing any more. Somebody else may have begun to capture the stream meanwhile: then this lasts
    /// until the capture has ended.
    pub(crate) fn wait_for(&self, raw: RawStream) -> DriverResult<()> {
        self.wait_unless_stuck(raw).unwrap_or_else(|stuck| give_up(&stuck))
    }

    /// Waits as [`wait_for`](Self::wait_for) does, for one whose host memory can outlive the call. Fails where the stream
    /// cannot be waited for: what it was given may yet run.
    pub(crate) fn wait_unless_stuck(&self, raw: RawStream) -> Result<DriverResult<()>, DriverError> {
        let (mut outcome, mut attempts) = (Ok(()), 0);
        while attempts < WAIT_ATTEMPTS {
            // SAFETY: the caller holds the stream.
            match unsafe { self.driver.stream_synchronize(self.device, raw) } {
                Ok(()) => return Ok(outcome),
                Err(error) if is_final(error.status) => return Ok(Err(error)),
                Err(error) if error.status == Status::Capturing => self.wait_for_end_of_capture(raw),
                Err(error) => {
                    outcome = outcome.and(Err(error));
                    attempts += 1;
                    std::thread::sleep(WAIT_PAUSE);
                }
            }
        }
        outcome.map(Ok)
    }

    fn wait_for_end_of_capture(&self, raw: RawStream) {
        // SAFETY: the caller of `wait_for` holds the stream.
        while let Ok(true) = unsafe { self.driver.stream_is_capturing(self.device, raw) } {
            std::thread::sleep(WAIT_PAUSE);
        }
    }

    /// Returns once everything that an ended stream was given comes before what is submitted next, because it was put
    /// in order or because the device runs nothing any more. Fails at once while a stream is being captured, for as long
    /// as the device cannot be waited for.
    fn wait_for_order(&self, ended: Stream) -> Result<(), WaitFailure> {
        for _ in 0..WAIT_ATTEMPTS {
            let Err(error) = self.heir_of(ended) else { return Ok(()) };
            let failure = self.order_failure(error);
            if !failure.may_be_in_flight {
                return Err(failure);
            }
            match self.try_to_order_ended(Duration::MAX) {
                Err(error) if is_final(error.status) || error.status == Status::Capturing => {
                    return Err(self.wait_failure(error));
                }
                _ if self.order_error(ended).is_none() => return Ok(()),
                _ => std::thread::sleep(WAIT_PAUSE),
            }
        }
        self.order_error(ended).map_or(Ok(()), |error| Err(self.wait_failure(error)))
    }

    /// Returns the failure to wait for an ended stream that has no heir because of `error`.
    fn order_failure(&self, error: Error) -> WaitFailure {
        let lost = self.driver.last_error(self.device).filter(|error| is_final(error.status));
        match lost.or(error.driver_error()) {
            Some(error) => self.wait_failure(error),
            None => WaitFailure::in_flight(error),
        }
    }
}

/// A wait for a stream that failed.
#[derive(Debug)]
pub(crate) struct WaitFailure {
    pub(crate) error: Error,
    /// False where the device runs nothing any more, or the failure was of an attempt before the one that succeeded.
    pub(crate) may_be_in_flight: bool,
}

impl WaitFailure {
    const fn in_flight(error: Error) -> Self {
        Self { error, may_be_in_flight: true }
    }

    const fn is_of_ended_stream(&self) -> bool {
        matches!(self.error, Error::StreamMisuse { why: StreamMisuse::Ended, .. })
    }
}

/// Ends the process: the device may yet write to memory that is borrowed here, so neither returning nor unwinding is
/// sound.
fn give_up(stuck: &DriverError) -> ! {
    let _ = writeln!(std::io::stderr(), "bursar: a stream cannot be waited for: {stuck:?}");
    std::process::abort()
}

/// Returns whether a status means that nothing is in flight and nothing ever will be: the device is lost, the process
/// exits, or the driver refused the submission as well, because this is a host function.
fn is_final(status: Status) -> bool {
    const NOT_PERMITTED: i32 = 800;
    status.is_sticky() || status == Status::Unavailable || status.code() == NOT_PERMITTED
}
