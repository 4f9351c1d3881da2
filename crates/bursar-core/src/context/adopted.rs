//! Streams that somebody else made.

use crate::{DeviceContext, Stream};
use std::sync::Arc;

/// A foreign stream that may be used here until this is dropped.
///
/// ```
/// # use bursar_core::*;
/// # use std::sync::Arc;
/// # fn show(context: &Arc<DeviceContext>, raw: RawStream) -> Result<()> {
/// // SAFETY: `raw` outlives the adoption.
/// let adopted = unsafe { context.adopt_stream(raw)? };
/// assert_eq!(context.resolve(adopted.stream())?, raw);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AdoptedStream {
    context: Arc<DeviceContext>,
    stream: Stream,
}

impl AdoptedStream {
    pub(super) const fn new(context: Arc<DeviceContext>, stream: Stream) -> Self {
        Self { context, stream }
    }

    /// The stream.
    pub const fn stream(&self) -> Stream {
        self.stream
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
        }
    }
}
