//! Host memory of transfers that were dropped while their copies could not be waited for.
//!
//! Such memory may keep the context alive, as pinned memory does, so the context's end cannot be what frees it. Those
//! who might be the last to use the device do: a reap or a trim of its memory, the next transfer, the end of an adopted
//! stream, and the end of its pool of streams, which handles and leases share.

use super::DeviceContext;
use crate::Stream;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The number of attempts when the context is dropped, since a failure may be temporary.
const LAST_TRIES: u32 = 3;

/// The host memory of one dropped transfer, leaked where the context ends and the copy is not known to have run.
struct DroppedTransfer {
    stream: Stream,
    memory: ManuallyDrop<Box<dyn Send>>,
}

/// The dropped transfers of one context.
#[derive(Default)]
pub(super) struct DroppedTransfers {
    all: Mutex<Vec<DroppedTransfer>>,
    /// True if one was left since all were last freed.
    has_any: AtomicBool,
}

impl DroppedTransfers {
    fn all(&self) -> MutexGuard<'_, Vec<DroppedTransfer>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, transfers: impl IntoIterator<Item = DroppedTransfer>) {
        let mut all = self.all();
        all.extend(transfers);
        self.has_any.store(!all.is_empty(), Relaxed);
    }
}

impl DeviceContext {
    /// Keeps the memory of a transfer on `stream` until its copy has run.
    pub(crate) fn keep_transfer(&self, stream: Stream, memory: Box<dyn Send>) {
        self.dropped_transfers.add([DroppedTransfer { stream, memory: ManuallyDrop::new(memory) }]);
    }

    /// Frees the host memory of [transfers](crate::Transfer) that were dropped while they could not be waited for, where
    /// their copies have run by now. Where `patience` is [`Duration::MAX`], the copies are waited for, but for those on
    /// streams that are being captured into a graph; otherwise nothing is waited for. It costs one load where there are
    /// none.
    ///
    /// Reaps, trims and the ends of handles call this.
    ///
    /// ```
    /// # use bursar::prelude::*;
    /// # use std::time::Duration;
    /// # fn show(context: &DeviceContext) {
    /// context.collect_transfers(Duration::ZERO);
    /// # }
    /// ```
    pub fn collect_transfers(&self, patience: Duration) {
        if self.dropped_transfers.has_any.load(Relaxed) {
            self.order_ended(patience);
            self.collect_transfers_where(patience, |_| true);
        }
    }

    /// Waits for the copies of dropped transfers on a stream whose adoption has ended, unless it ended unordered.
    pub(super) fn collect_transfers_of(&self, ended: Stream) {
        if self.dropped_transfers.has_any.load(Relaxed) {
            self.collect_transfers_where(Duration::MAX, |stream| stream == ended);
        }
    }

    /// Frees all that can be freed, when the context is dropped.
    pub(super) fn collect_last_transfers(&self) {
        (0..LAST_TRIES).for_each(|_| self.collect_transfers(Duration::MAX));
    }

    fn collect_transfers_where(&self, patience: Duration, is_wanted: impl Fn(Stream) -> bool) {
        let wanted: Vec<_> = self.dropped_transfers.all().extract_if(.., |one| is_wanted(one.stream)).collect();
        let (over, left): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|one| self.has_copied(one.stream, patience));
        self.dropped_transfers.add(left);
        over.into_iter().for_each(|one| drop(ManuallyDrop::into_inner(one.memory)));
    }

    fn has_copied(&self, stream: Stream, patience: Duration) -> bool {
        match patience {
            Duration::MAX => self.wait_in_order(stream).map_or_else(|failure| !failure.may_be_in_flight, |()| true),
            _ => matches!(self.has_run(stream, Duration::ZERO), Ok(true)),
        }
    }
}

impl fmt::Debug for DroppedTransfers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DroppedTransfers").field("count", &self.all().len()).finish()
    }
}
