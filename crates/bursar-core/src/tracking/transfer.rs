//! Host memory that the device may still be reading or writing.

use crate::{DeviceContext, Error, HostMemory, Progress, Result, Stream};
use std::fmt;
use std::sync::Arc;

/// Host memory that was moved into an asynchronous copy, until the copy has run.
///
/// [`wait`](Self::wait) gives it back. It waits for everything that the copy's stream has been given by then; no event
/// is recorded for the copy alone. Dropping this without waiting waits too, since the device may still be using the
/// memory, and then frees it; leaking it leaks the memory, which is as safe.
///
/// ```
/// # use bursar_core::*;
/// # use std::sync::Arc;
/// # fn show(context: &Arc<DeviceContext>, block: &mut TrackedBlock, stream: Stream) -> Result<()> {
/// let copy = block.copy_from_host_async(context, 0, vec![1u8, 2, 3], stream)?;
/// assert_eq!(copy.wait()?, [1, 2, 3]);
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a transfer waits for it"]
pub struct Transfer<H: HostMemory> {
    context: Arc<DeviceContext>,
    stream: Stream,
    /// `None` once it was given back.
    memory: Option<H>,
}

impl<H: HostMemory> Transfer<H> {
    /// Makes a transfer that no copy was submitted for, because there was nothing to copy.
    pub fn of_nothing(context: &Arc<DeviceContext>, stream: Stream, memory: H) -> Self {
        Self { context: context.clone(), stream, memory: Some(memory) }
    }

    /// Returns the address of the memory.
    pub(super) fn host_ptr(&mut self) -> *mut u8 {
        self.memory.as_mut().map_or(std::ptr::null_mut(), H::host_ptr)
    }

    /// Returns the stream of the copy.
    pub const fn stream(&self) -> Stream {
        self.stream
    }

    /// Returns whether everything that the stream has been given has run, the copy included.
    pub fn is_complete(&self) -> Result<bool> {
        self.context.progress(self.stream).map(Progress::is_complete)
    }

    /// Waits for the copy and returns the memory. After an error the memory is dropped.
    pub fn wait(mut self) -> Result<H> {
        let waited = self.context.wait_until_idle(self.stream);
        match (waited, self.memory.take()) {
            (Ok(()), Some(memory)) => Ok(memory),
            (Err(error), _) => Err(error),
            (Ok(()), None) => Err(Error::InvalidValue { what: "the memory was given back already" }),
        }
    }
}

impl<H: HostMemory> Drop for Transfer<H> {
    fn drop(&mut self) {
        if self.memory.is_some()
            && let Err(Error::Driver(error)) = self.context.wait_until_idle(self.stream)
        {
            self.context.fault().record(error);
        }
    }
}

impl<H: HostMemory> fmt::Debug for Transfer<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("stream", &self.stream).finish_non_exhaustive()
    }
}
