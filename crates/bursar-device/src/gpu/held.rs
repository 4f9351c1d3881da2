//! The memory that is held through a handle, and the handle's end.

use super::{Gpu, Shared};
use crate::live_blocks::UNCOUNTED_HANDLE;
use crate::{Leak, LeakReport, WaitingFree};
use bursar_core::{AllocTag, Bytes, Error, Generation, Holder, Holding};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The longest time to wait, when a device is closed, for frees that have not run.
pub(crate) const CLOSING_PATIENCE: Duration = Duration::from_secs(1);

impl Gpu {
    /// Returns what is held at this moment through this handle and its clones, by whom and, where that was
    /// [recorded](Self::record_sites), from where; `None` where nothing is held. What the handles under it
    /// hold is in their own reports.
    ///
    /// Frees that were refused, or that the driver failed, are tried again first, and frees that have not run are waited
    /// for, but no longer than `patience`. What is left of both is told apart from what the program holds; see [`Leak`].
    ///
    /// ```
    /// use bursar::driver::Status;
    /// use bursar::sim::{Call, Faults, Sim};
    /// use bursar::{DeviceId, Gpu, Stack, leaf, tag};
    /// use std::time::Duration;
    ///
    /// let faults = Faults::new(Sim::immediate());
    /// let gpu = Gpu::open(faults.clone(), DeviceId(0), &Stack::new().over(leaf::Direct))?;
    /// let buffer = gpu.buffer::<u8>(4096, gpu.context().default_stream(), tag!("batch"))?;
    /// faults.fail_next(Call::Free, Status::NotSupported);
    /// drop(buffer);
    /// assert_eq!(gpu.still_held(Duration::ZERO), None, "the free that failed is made now");
    /// # Ok::<(), bursar::Error>(())
    /// ```
    pub fn still_held(&self, patience: Duration) -> Option<Leak> {
        self.shared.still_held(patience)
    }

    /// Closes the handle. What is still held through it and its clones, by buffers that live on or by blocks that were
    /// lost, is the error, and is logged too. Frees that have not run are waited for, at most a second.
    ///
    /// Clones and handles [under](Self::under) it stay usable and keep the device open; the latter report what they
    /// hold when they are closed themselves.
    ///
    /// ```
    /// use bursar::sim::Sim;
    /// use bursar::{Bytes, DeviceId, Gpu, Quota, Stack, leaf, tag};
    ///
    /// let gpu = Gpu::open(Sim::immediate(), DeviceId(0), &Stack::new().over(leaf::Async))?;
    /// let tenant = gpu.under(&Quota::of(Bytes::gib(1)))?;
    /// let stream = gpu.streams().lease()?;
    /// let kept = tenant.buffer::<u8>(1000, &stream, tag!("kept"))?;
    ///
    /// gpu.close().expect("the tenant holds it");
    /// let report = tenant.close().unwrap_err();
    /// assert!(report.to_string().contains("kept: 1 KiB in 1 block"));
    /// # drop(kept);
    /// # Ok::<(), bursar::Error>(())
    /// ```
    pub fn close(self) -> Result<(), LeakReport> {
        match self.report_leak() {
            Some(leak) => Err(LeakReport { leaks: vec![leak] }),
            None => Ok(()),
        }
    }

    /// Returns what is [still held](Self::still_held) and logs it, once.
    pub(crate) fn report_leak(&self) -> Option<Leak> {
        let leak = self.still_held(CLOSING_PATIENCE);
        self.shared.log(leak.as_ref());
        leak
    }
}

impl Shared {
    /// Returns what is held once the frees that wait were tried again and those that are pending have run.
    fn still_held(&self, patience: Duration) -> Option<Leak> {
        self.frees.retry_within(patience);
        let failure = self.settle(patience).err();
        let held = self.held();
        (held > Bytes::ZERO).then(|| self.leak(held, failure))
    }

    /// Returns the bytes that are held through this handle.
    fn held(&self) -> Bytes {
        let all = self.counted.as_ref().map_or_else(|| self.memory.bytes_outstanding(), |own| own.bytes_outstanding());
        all.saturating_sub(self.under.bytes())
    }

    /// Has the memory make the frees that failed and wait for those that are pending. A failure that the device
    /// remembers is of an earlier call: it keeps nobody from trying again, and stays for the next call to report.
    fn settle(&self, patience: Duration) -> Result<(), Error> {
        if self.held() == Bytes::ZERO {
            return Ok(());
        }
        let remembered = self.context.fault().check();
        self.context.retry_remains();
        let settled = self.memory.reap_blocking(patience).map(drop);
        if let Err(Error::Driver(error)) = remembered {
            self.context.fault().record(error);
        }
        settled
    }

    fn leak(&self, held: Bytes, failure: Option<Error>) -> Leak {
        let mut waiting = self.frees.waiting(&self.memory);
        waiting.sort_by_key(|(_, free)| Reverse(free.bytes));
        let (generations, waiting): (HashSet<Generation>, Vec<WaitingFree>) = waiting.into_iter().unzip();
        let device = self.context.device();
        let all = self.counted.as_ref().map_or_else(|| self.context.sink().block_holders(device), |own| own.holders());
        let others = waiting.iter().map(|free| Holding { tag: free.tag, bytes: free.bytes, blocks: 1 });
        let holders = without(all, others.chain(self.under.holders()));
        let handle = self.counted.as_ref().map_or(UNCOUNTED_HANDLE, |own| own.number());
        let sites = self.live.sites(handle, &generations);
        Leak { waiting, failure, ..Leak::new(device, held, holders, sites) }
    }

    fn log(&self, leak: Option<&Leak>) {
        if let Some(leak) = leak
            && !self.has_reported.swap(true, Relaxed)
        {
            tracing::warn!(device = %leak.device, held = %leak.held, "memory is still held: {leak}");
        }
    }
}

/// Returns what is left of `all` without what others have.
fn without(all: Vec<Holding>, others: impl Iterator<Item = Holding>) -> Vec<Holding> {
    let mut less: HashMap<AllocTag, (Bytes, u64)> = HashMap::new();
    for Holding { tag, bytes, blocks } in others {
        let entry = less.entry(tag).or_default();
        *entry = (entry.0.saturating_add(bytes), entry.1 + blocks);
    }
    let rest = all.into_iter().map(|Holding { tag, bytes, blocks }| {
        let (fewer_bytes, fewer_blocks) = less.get(&tag).copied().unwrap_or_default();
        Holding { tag, bytes: bytes.saturating_sub(fewer_bytes), blocks: blocks.saturating_sub(fewer_blocks) }
    });
    rest.filter(|holding| holding.blocks > 0).collect()
}

impl Drop for Shared {
    /// Logs what is still held: with the last clone of the handle gone, the program can free it no more.
    fn drop(&mut self) {
        let leak = self.still_held(CLOSING_PATIENCE);
        self.log(leak.as_ref());
    }
}
