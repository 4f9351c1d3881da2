//! The blocks that one submission uses.

use super::{Access, TrackedBlock};
use crate::{DeviceContext, Result, Stream};
use std::sync::Arc;

/// What is being submitted to one stream: uses of any number of blocks that begin one after the other and end together,
/// when this is dropped.
///
/// A block that is declared several times counts with the strongest access, and each time the stream comes after whatever it
/// must come after by then. A submission that is leaked never ends: whoever waits for its stream will wait for it again.
///
/// ```
/// # use bursar_core::*;
/// # use std::sync::Arc;
/// # fn launch(_: RawStream, _: DevicePtr, _: DevicePtr) {}
/// # fn show(context: &Arc<DeviceContext>, from: &TrackedBlock, to: &TrackedBlock, stream: Stream) -> Result<()> {
/// let mut submission = Submission::new(context, stream);
/// submission.declare(from, Access::Read)?;
/// submission.declare(to, Access::Write)?;
/// launch(context.resolve(stream)?, from.ptr(), to.ptr());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a submission ends when this is dropped"]
pub struct Submission<'a> {
    context: &'a Arc<DeviceContext>,
    stream: Stream,
    /// Zero before the first use.
    number: u64,
}

impl<'a> Submission<'a> {
    /// Nothing is used yet.
    #[inline]
    pub const fn new(context: &'a Arc<DeviceContext>, stream: Stream) -> Self {
        Self { context, stream, number: 0 }
    }

    /// The stream.
    pub const fn stream(&self) -> Stream {
        self.stream
    }

    /// The device's context.
    pub const fn context(&self) -> &'a Arc<DeviceContext> {
        self.context
    }

    /// Begins a use of `block`, which lasts until the submission ends. See
    /// [`prepare_block_use`](DeviceContext::prepare_block_use) for what that does and when it is refused; whether the
    /// stream may be used at all is asked once.
    #[inline]
    pub fn declare(&mut self, block: &TrackedBlock, access: Access) -> Result<()> {
        let uses = block.uses(self.context)?;
        if self.number == 0 {
            self.number = self.context.begin_submission(self.stream)?;
        }
        uses.begin(self.stream, access, self.number)
    }
}

impl Drop for Submission<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.number > 0 {
            self.context.clocks().end(self.stream);
        }
    }
}
