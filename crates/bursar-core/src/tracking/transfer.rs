//! Host memory that the device may still be reading or writing.

use crate::context::WaitFailure;
use crate::{DeviceContext, Error, HostMemory, Result, Stream};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Host memory that was moved into an asynchronous copy, until the copy has run.
///
/// [`wait`](Self::wait) gives it back. It waits for everything that the copy's stream has been given by then; no event
/// is recorded for the copy alone. Dropping this without waiting waits too, since the device may still be using the
/// memory, and then frees it; leaking it leaks the memory, which is as safe.
///
/// A stream that is being captured into a graph cannot be waited for. Then a wait is refused and gives the transfer
/// back, and memory whose transfer is dropped is kept by the device's context until the copy has run; so it is where the
/// stream's adoption ended meanwhile. It is freed with a later transfer, by a reap or a [`trim`](DeviceContext::trim) of the
/// device's memory, when the adoption ends, or with the last handle of the device or the context itself. See
/// [`collect_transfers`](DeviceContext::collect_transfers).
///
/// ```
/// # use bursar::Result;
/// # use bursar::prelude::*;
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
    is_in_flight: bool,
}

impl<H: HostMemory> Transfer<H> {
    /// Makes a transfer that no copy was submitted for, so that there is nothing to wait for.
    pub fn of_nothing(context: &Arc<DeviceContext>, stream: Stream, memory: H) -> Self {
        Self { context: context.clone(), stream, memory: Some(memory), is_in_flight: false }
    }

    /// Returns the address of the memory, which a copy may be using from now on.
    pub(super) fn begin(&mut self) -> *mut u8 {
        self.is_in_flight = true;
        self.memory.as_mut().map_or(std::ptr::null_mut(), H::host_ptr)
    }

    /// Returns the stream of the copy.
    pub const fn stream(&self) -> Stream {
        self.stream
    }

    /// Returns whether everything that the stream has been given has run, the copy included. Fails for a stream that is
    /// being captured into a graph.
    pub fn is_complete(&self) -> Result<bool> {
        if self.is_in_flight { self.context.has_run(self.stream, Duration::ZERO) } else { Ok(true) }
    }

    /// Waits for the copy and returns the memory; at once where nothing was submitted.
    ///
    /// After an error the transfer comes back: the memory may still be in use, because the stream is being captured or
    /// the driver fails to wait for it. If the device is lost, nothing is in flight any more and a second wait returns
    /// the memory, with contents that nobody can vouch for.
    pub fn wait(mut self) -> Result<H, RefusedTransfer<H>> {
        match self.wait_until_over(DeviceContext::wait_until_idle) {
            Ok(()) => match self.memory.take() {
                Some(memory) => Ok(memory),
                None => Err(self.refused(Error::InvalidValue { what: "the memory was given back already" })),
            },
            Err(error) => Err(self.refused(error)),
        }
    }

    /// Returns the transfer with the reason why its copy was not submitted, or not waited for.
    pub fn refused(self, error: Error) -> RefusedTransfer<H> {
        RefusedTransfer { transfer: Box::new(self), error }
    }

    fn wait_until_over(&mut self, wait: fn(&DeviceContext, Stream) -> Result<(), WaitFailure>) -> Result<()> {
        if !self.is_in_flight {
            return Ok(());
        }
        let waited = wait(&self.context, self.stream);
        self.is_in_flight = waited.as_ref().is_err_and(|failure| failure.may_be_in_flight);
        waited.map_err(|failure| failure.error)
    }
}

impl<H: HostMemory> Drop for Transfer<H> {
    fn drop(&mut self) {
        if self.memory.is_none() {
            return;
        }
        if let Err(Error::Driver(error)) = self.wait_until_over(DeviceContext::wait_in_order) {
            self.context.fault().record(error);
        }
        if let Some(memory) = self.memory.take_if(|_| self.is_in_flight) {
            self.context.keep_transfer(self.stream, Box::new(memory));
        }
    }
}

impl<H: HostMemory> fmt::Debug for Transfer<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("stream", &self.stream)
            .field("is_in_flight", &self.is_in_flight)
            .finish_non_exhaustive()
    }
}

/// A copy that was refused, or that could not be waited for: the transfer comes back with the reason, and gives back
/// its memory when it is [waited for](Transfer::wait), at once where nothing was submitted. Converting it into an
/// [`Error`], as `?` does, drops the transfer.
///
/// ```
/// # use bursar::Result;
/// # use bursar::prelude::*;
/// # use std::sync::Arc;
/// # fn show(context: &Arc<DeviceContext>, small: &mut TrackedBlock, stream: Stream) -> Result<()> {
/// let refused = small.copy_from_host_async(context, 0, vec![0u8; 1 << 20], stream).unwrap_err();
/// println!("{}", refused.error);
/// let memory = refused.transfer.wait()?;
/// assert_eq!(memory.len(), 1 << 20);
/// # Ok(())
/// # }
/// ```
pub struct RefusedTransfer<H: HostMemory> {
    /// The transfer, with the memory.
    pub transfer: Box<Transfer<H>>,
    /// The reason for the refusal.
    pub error: Error,
}

impl<H: HostMemory> fmt::Display for RefusedTransfer<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<H: HostMemory> fmt::Debug for RefusedTransfer<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefusedTransfer").field("error", &self.error).field("transfer", &self.transfer).finish()
    }
}

impl<H: HostMemory> std::error::Error for RefusedTransfer<H> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<H: HostMemory> From<RefusedTransfer<H>> for Error {
    fn from(refused: RefusedTransfer<H>) -> Self {
        refused.error
    }
}
