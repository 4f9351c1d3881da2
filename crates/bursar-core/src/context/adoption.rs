//! Streams that somebody else made, for as long as they are used here.
#![allow(unsafe_code)]

use super::DeviceContext;
use crate::{RawStream, Result, Stream};
use std::sync::Arc;

/// A foreign stream that may be used here until this is dropped. Whatever takes a [`Stream`] takes a borrowed adoption.
///
/// ```
/// # use bursar::Result;
/// # use bursar::driver::RawStream;
/// # use bursar::prelude::*;
/// # use std::sync::Arc;
/// # fn show(context: &Arc<DeviceContext>, raw: RawStream) -> Result<()> {
/// // SAFETY: `raw` outlives the adoption.
/// let adopted = unsafe { context.adopt_stream(raw)? };
/// assert_eq!(context.resolve(&adopted)?, raw);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AdoptedStream {
    context: Arc<DeviceContext>,
    stream: Stream,
}

impl AdoptedStream {
    /// Returns the stream's token.
    pub const fn stream(&self) -> Stream {
        self.stream
    }
}

impl From<&AdoptedStream> for Stream {
    fn from(adopted: &AdoptedStream) -> Self {
        adopted.stream
    }
}

impl DeviceContext {
    /// Lets a stream that somebody else made be used here, until the adoption is dropped. A raw handle of zero, like
    /// [`RawStream::LEGACY`], is the legacy default stream; [`RawStream::PER_THREAD`] is refused.
    ///
    /// Drop the adoption before the stream is destroyed: that is when everything freed on it is put in order, so that
    /// its memory stays reusable. Dropping it waits for calls that use the stream to return, and for the copies of
    /// transfers that were dropped while the stream was being captured.
    ///
    /// # Safety
    /// `raw` is a live stream of this device until the adoption has been dropped.
    pub unsafe fn adopt_stream(self: &Arc<Self>, raw: RawStream) -> Result<AdoptedStream> {
        let stream = self.streams.adopt(raw, self.driver.stream_number(self.device, raw))?;
        Ok(AdoptedStream { context: self.clone(), stream })
    }

    /// Lets a stream that somebody else made be used here for good, as if the context had made it: memory is ordered on it
    /// without asking the driver whether it is being captured into a graph. A raw handle of zero, like
    /// [`RawStream::LEGACY`], is the legacy default stream; [`RawStream::PER_THREAD`] is refused.
    ///
    /// Whoever begins a capture says so first, by [`resolve`](Self::resolve) on each such stream of the device, and
    /// afterwards calls this again: in between, the driver is asked.
    ///
    /// ```
    /// # use bursar::Result;
    /// # use bursar::driver::RawStream;
    /// # use bursar::prelude::*;
    /// # use std::sync::Arc;
    /// # fn show(context: &Arc<DeviceContext>, raw: RawStream) -> Result<()> {
    /// // SAFETY: its library never destroys `raw`, and its captures are announced.
    /// let stream = unsafe { context.enter_lasting_stream(raw)? };
    /// assert_eq!(context.resolve(stream)?, raw); // a capture may begin
    /// // SAFETY: as above, and the capture has ended.
    /// assert_eq!(unsafe { context.enter_lasting_stream(raw)? }, stream);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// `raw` is a live stream of this device for as long as the context lives. From this call until the next
    /// [`resolve`](Self::resolve) of the stream, and for the legacy default stream of any stream that blocks on it, it is
    /// not being captured into a graph.
    pub unsafe fn enter_lasting_stream(&self, raw: RawStream) -> Result<Stream> {
        self.streams.enter_lasting(raw, self.driver.stream_number(self.device, raw))
    }
}

impl Drop for AdoptedStream {
    fn drop(&mut self) {
        if let Some(raw) = self.context.streams.release(self.stream) {
            self.context.inherit(self.stream, raw);
            for member in self.context.members() {
                member.stream_ends(self.stream, raw);
            }
            self.context.clocks.forget(self.stream);
            self.context.streams.vacate(self.stream);
            self.context.collect_transfers_of(self.stream);
        }
    }
}
