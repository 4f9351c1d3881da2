//! Order between the streams of a device, waiting for one of them, and the events that both use.
#![allow(unsafe_code)]

use super::DeviceContext;
use crate::{DriverError, DriverResult, Error, Progress, RawEvent, RawStream, Result, Status, Stream};
use std::io::Write as _;
use std::sync::PoisonError;
use std::time::Duration;

/// The number of times that a wait is tried which fails for no lasting reason, and the pause after each.
const WAIT_ATTEMPTS: u32 = 1000;
const WAIT_PAUSE: Duration = Duration::from_millis(1);

impl DeviceContext {
    /// Takes an event of the device, new or used before; it goes back with [`give_event`](Self::give_event).
    pub fn take_event(&self) -> Result<RawEvent, DriverError> {
        let spare = self.events.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match spare {
            Some(event) => Ok(event),
            None => self.driver.event_create(self.device),
        }
    }

    /// Takes an event back that nobody will query or wait for again.
    ///
    /// # Safety
    /// The event came from [`take_event`](Self::take_event) of this context, and is given back once.
    pub unsafe fn give_event(&self, event: RawEvent) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// Makes what is submitted to `then` from here on wait for what was submitted to `first` before, without blocking
    /// the caller.
    ///
    /// ```
    /// # use bursar_core::*;
    /// # fn show(context: &DeviceContext, produces: Stream, consumes: Stream) -> Result<()> {
    /// context.order(produces, consumes)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn order(&self, first: Stream, then: Stream) -> Result<()> {
        let (held_first, held_then) = (self.hold_for_memory(first)?, self.hold_for_memory(then)?);
        if first == then {
            return Ok(());
        }
        // SAFETY: the streams are live while they are held.
        unsafe { self.chain(held_first.raw(), held_then.raw()) }.map_err(|error| self.failed(error))
    }

    /// Orders `then` after `first` as [`order`](Self::order) does, or after the [heir](Self::heir_of) of `first` if its
    /// adoption has ended; as there, the caller holds no adopted stream.
    ///
    /// ```
    /// # use bursar_core::*;
    /// # fn show(context: &DeviceContext, block: &DeviceBlock, frees: Stream) -> Result<()> {
    /// context.order_after(block.stream(), frees)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn order_after(&self, first: Stream, then: Stream) -> Result<()> {
        self.on_lasting(first, |first| self.order(first, then))
    }

    /// Makes what is submitted to `then` from here on wait for what was submitted to `first` before.
    ///
    /// # Safety
    /// Both are live streams of this device.
    pub(crate) unsafe fn chain(&self, first: RawStream, then: RawStream) -> Result<(), DriverError> {
        let event = self.take_event()?;
        // SAFETY: the caller's own promise, and the event is this context's.
        let recorded = unsafe { self.driver.event_record(self.device, event, first) };
        let ordered = recorded.and_then(|()| {
            // SAFETY: as above.
            unsafe { self.driver.stream_wait(self.device, then, event) }
        });
        // SAFETY: taken above; a wait that was submitted keeps what it waits for.
        unsafe { self.give_event(event) };
        ordered
    }

    /// Waits until everything submitted to the stream so far has run.
    pub fn synchronize(&self, stream: Stream) -> Result<()> {
        let held = self.hold(stream)?;
        let view = self.clocks.look(stream);
        // SAFETY: the stream is live while it is held.
        unsafe { self.driver.stream_synchronize(self.device, held.raw()) }.map_err(|error| self.failed(error))?;
        self.clocks.completed(stream, &view);
        Ok(())
    }

    /// Returns whether everything submitted to the stream so far has run.
    pub(crate) fn query(&self, stream: Stream) -> Result<Progress> {
        let held = self.hold(stream)?;
        let view = self.clocks.look(stream);
        // SAFETY: the stream is live while it is held.
        let progress = unsafe { self.driver.stream_query(self.device, held.raw()) };
        let progress = progress.map_err(|error| self.failed(error))?;
        if progress.is_complete() {
            self.clocks.completed(stream, &view);
        }
        Ok(progress)
    }

    /// Returns whether everything submitted to the stream so far has run; its adoption may have ended. Where `patience`
    /// is [`Duration::MAX`], waits until it has.
    pub fn has_run(&self, stream: Stream, patience: Duration) -> Result<bool> {
        let stream = self.lasting(stream)?;
        self.check_use(stream)?;
        match patience {
            Duration::MAX => self.synchronize(stream).map(|()| true),
            _ => self.query(stream).map(Progress::is_complete),
        }
    }

    /// Returns once nothing that `stream` or, if its adoption has ended, its heir was given is in flight. An error
    /// means that it may not have run as it should.
    pub(crate) fn drain(&self, stream: Stream) -> Result<()> {
        if self.has_ended(stream) {
            self.wait_for_order(stream)?;
        }
        self.on_lasting(stream, |stream| self.wait_for_stream(stream))
    }

    /// Returns whether everything submitted so far to `stream` or, if its adoption has ended, to its heir has run.
    pub(crate) fn progress(&self, stream: Stream) -> Result<Progress> {
        self.on_lasting(stream, |stream| self.query(stream))
    }

    /// Returns once nothing that the stream was given is in flight.
    fn wait_for_stream(&self, stream: Stream) -> Result<()> {
        let held = self.hold(stream)?;
        let view = self.clocks.look(stream);
        self.wait_for(held.raw()).map_err(|error| self.failed(error))?;
        self.clocks.completed(stream, &view);
        Ok(())
    }

    /// Returns once nothing is in flight on the stream, which the caller holds, because it has run or because the
    /// device runs nothing any more.
    pub(super) fn wait_for(&self, raw: RawStream) -> DriverResult<()> {
        let mut outcome = Ok(());
        for _ in 0..WAIT_ATTEMPTS {
            // SAFETY: the caller holds the stream.
            match unsafe { self.driver.stream_synchronize(self.device, raw) } {
                Ok(()) => return outcome,
                Err(error) if is_final(error.status) => return Err(error),
                Err(error) => outcome = outcome.and(Err(error)),
            }
            std::thread::sleep(WAIT_PAUSE);
        }
        give_up(outcome)
    }

    /// Returns once everything that an ended stream was given comes before what is submitted next, because it was put
    /// in order or because the device runs nothing any more.
    fn wait_for_order(&self, ended: Stream) -> Result<()> {
        for _ in 0..WAIT_ATTEMPTS {
            if self.heir_of(ended).is_ok() {
                return Ok(());
            }
            self.order_ended(Duration::MAX);
            let Some(error) = self.unordered(ended) else { return Ok(()) };
            if let Some(lost) = self.driver.last_error(self.device).filter(|error| is_final(error.status)) {
                return Err(Error::Driver(lost));
            }
            if is_final(error.status) {
                return Err(Error::Driver(error));
            }
            std::thread::sleep(WAIT_PAUSE);
        }
        give_up(self.unordered(ended).map_or(Ok(()), Err))
    }
}

/// Ends the process: the device may yet write to memory that is borrowed here, so neither returning nor unwinding is
/// sound.
fn give_up(outcome: DriverResult<()>) -> ! {
    let _ = writeln!(std::io::stderr(), "bursar: a stream cannot be waited for: {outcome:?}");
    std::process::abort()
}

/// Returns whether a status means that nothing is in flight and nothing ever will be: the device is lost, the process
/// exits, or the driver refused the submission as well, because this is a host function.
fn is_final(status: Status) -> bool {
    const NOT_PERMITTED: i32 = 800;
    status.is_sticky() || status == Status::Unavailable || status.code() == NOT_PERMITTED
}
