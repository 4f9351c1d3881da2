//! Holds, which keep a stream alive while it is used.

use crate::RawStream;
use std::sync::atomic::{AtomicU32, Ordering};

/// A stream that stays alive while this is held.
///
/// ```
/// # use bursar::Result;
/// # use bursar::driver::RawStream;
/// # use bursar::prelude::*;
/// # fn show(context: &DeviceContext, stream: Stream) -> Result<()> {
/// let held = context.hold_for_memory(stream)?;
/// assert_ne!(held.raw(), RawStream::PER_THREAD);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct StreamHold<'a> {
    pub(super) raw: RawStream,
    /// The count of its users, where the stream may end.
    pub(super) users: Option<&'a AtomicU32>,
}

impl StreamHold<'_> {
    /// Returns the driver's handle, for calls made while it is held. Others get it from
    /// [`DeviceContext::resolve`](crate::DeviceContext::resolve), after which the stream may be captured.
    #[inline]
    pub const fn raw(&self) -> RawStream {
        self.raw
    }
}

impl Drop for StreamHold<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(users) = self.users {
            users.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
