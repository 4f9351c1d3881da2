//! How far a stream has come.
#![allow(unsafe_code)]

use bursar_core::{DeviceContext, Error, RawEvent, Result, Stream, StreamMisuse};
use std::fmt;
use std::sync::Arc;

/// A point of a stream that it may not have passed yet.
pub(crate) struct StreamMarker {
    context: Arc<DeviceContext>,
    event: RawEvent,
}

impl StreamMarker {
    /// Marks where the stream is now: after everything it was given so far.
    pub(crate) fn record(context: &Arc<DeviceContext>, stream: Stream) -> Result<Self> {
        with_heir(context, stream, |stream| {
            let held = context.hold_for_memory(stream)?;
            let event = context.take_event().map_err(|error| context.failed(error))?;
            let marker = Self { context: context.clone(), event };
            // SAFETY: the stream is held, and the event is ours; both are of this device.
            let recorded = unsafe { context.driver().event_record(context.device(), event, held.raw()) };
            recorded.map_err(|error| context.failed(error)).map(|()| marker)
        })
    }

    /// Whether the stream has passed it.
    pub(crate) fn is_passed(&self) -> Result<bool> {
        // SAFETY: the event is ours until it is given back.
        let progress = unsafe { self.context.driver().event_query(self.context.device(), self.event) };
        progress.map(|progress| progress.is_complete()).map_err(|error| self.context.failed(error))
    }
}

impl Drop for StreamMarker {
    fn drop(&mut self) {
        // SAFETY: taken from this context in `record`, and given back once.
        unsafe { self.context.give_event(self.event) };
    }
}

impl fmt::Debug for StreamMarker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passing").field("event", &self.event).finish_non_exhaustive()
    }
}

/// Whether the stream has run everything it was given.
pub(crate) fn is_idle(context: &DeviceContext, stream: Stream) -> Result<bool> {
    with_heir(context, stream, |stream| {
        let held = context.hold_for_memory(stream)?;
        // SAFETY: the stream is live while it is held.
        let progress = unsafe { context.driver().stream_query(context.device(), held.raw()) };
        progress.map(|progress| progress.is_complete()).map_err(|error| context.failed(error))
    })
}

/// Asks about a stream, or, if its adoption has ended, about the one that comes after everything it was given.
fn with_heir<T>(context: &DeviceContext, stream: Stream, ask: impl Fn(Stream) -> Result<T>) -> Result<T> {
    match ask(stream) {
        Err(Error::StreamMisuse { why: StreamMisuse::Ended, .. }) => ask(context.heir_of(stream)?),
        answer => answer,
    }
}
