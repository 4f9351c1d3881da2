//! Memory that requests in progress are about to take, which the kernel does not count yet.

use super::request::Checkpoint;
use crate::{HostError, PinStep, System};
use bursar_core::Bytes;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The time after which a request that waits for others looks whether it is still wanted.
const PAUSE: Duration = Duration::from_millis(10);

/// The memory of requests that have been allowed and has not all been put in place.
///
/// The kernel kills a process that takes more than there is, so what others are about to take counts as taken. While they
/// take it, it counts twice: a request that is too large by that alone waits until they are done.
#[derive(Debug, Default)]
pub(crate) struct UnplacedMemory {
    bytes: Mutex<Bytes>,
    changed: Condvar,
}

impl UnplacedMemory {
    fn bytes(&self) -> MutexGuard<'_, Bytes> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that the machine and its control groups have `requested` bytes left, and counts them until the result is
    /// dropped.
    pub(super) fn add(
        &self,
        requested: Bytes,
        system: &dyn System,
        checkpoint: &Checkpoint<'_>,
    ) -> Result<Unplaced<'_>, HostError> {
        let mut others = self.bytes();
        loop {
            match check_limits(system, requested, *others) {
                Ok(()) => break,
                Err(refused) if *others == Bytes::ZERO => return Err(refused),
                Err(_) => others = self.changed.wait_timeout(others, PAUSE).unwrap_or_else(PoisonError::into_inner).0,
            }
            checkpoint(PinStep::Charge)?;
        }
        *others = others.saturating_add(requested);
        Ok(Unplaced { of: self, bytes: requested })
    }
}

/// Memory that a request is about to take.
#[derive(Debug)]
pub(super) struct Unplaced<'a> {
    of: &'a UnplacedMemory,
    bytes: Bytes,
}

impl Drop for Unplaced<'_> {
    fn drop(&mut self) {
        let mut all = self.of.bytes();
        *all = all.saturating_sub(self.bytes);
        drop(all);
        self.of.changed.notify_all();
    }
}

/// Checks that the machine and its control groups have `requested` bytes left beside those that others are about to take.
pub(super) fn check_limits(system: &dyn System, requested: Bytes, others: Bytes) -> Result<(), HostError> {
    let wanted = requested.saturating_add(others);
    let Some(limit) = system.limits().into_iter().find(|limit| limit.available < wanted) else { return Ok(()) };
    let (available, all) = (limit.available, limit.limit);
    Err(match limit.group {
        Some(group) => HostError::ControlGroup { requested, available, limit: all, group },
        None => HostError::NoMemory { requested, available, total: all },
    })
}
