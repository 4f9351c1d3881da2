//! Pools of stream-ordered memory, as programs see them.

use super::Sim;
use super::active_call::ActiveCall;
use crate::call_log::{CallArguments, CallOutcome, LoggedResult};
use crate::machine::{AllocationKind, Pool};
use crate::operation::CallResult;
use bursar_core::{Bytes, DeviceId, DevicePtr, DriverResult, RawStream};

/// A pool of stream-ordered memory of a simulated device.
///
/// ```
/// use bursar::driver::{Driver, RawStream};
/// use bursar::sim::Sim;
/// use bursar::{Bytes, DeviceId};
///
/// let (sim, device) = (Sim::immediate(), DeviceId(0));
/// let pool = sim.pool_create(device)?;
/// let ptr = sim.allocate_from_pool(device, RawStream::LEGACY, pool, 1000)?;
/// assert_eq!(sim.pool_usage(pool)?.reserved, Bytes::mib(32));
/// // SAFETY: allocated above, on the same stream.
/// unsafe { sim.free_async(device, RawStream::LEGACY, ptr)? };
/// // SAFETY: a device always has its default stream.
/// unsafe { sim.stream_synchronize(device, RawStream::LEGACY)? };
/// assert_eq!(sim.pool_usage(pool)?.reserved, Bytes::ZERO);
/// # Ok::<(), bursar::driver::DriverError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SimPool {
    device: DeviceId,
    raw: u64,
}

/// The memory of a pool, now and at most since the high-water marks were reset.
///
/// ```
/// let usage = bursar::sim::SimPoolUsage::default();
/// assert_eq!(usage.reserved, bursar::Bytes::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimPoolUsage {
    /// The memory that it holds of its device.
    pub reserved: Bytes,
    /// The most that it has held.
    pub reserved_high: Bytes,
    /// The memory of its allocations, and of those whose frees have not run.
    pub used: Bytes,
    /// The most that was used.
    pub used_high: Bytes,
    /// The memory that it keeps when somebody synchronises.
    pub threshold: Bytes,
}

impl Sim {
    /// Creates a pool, which holds nothing yet. It reserves memory of the device in multiples of 32 MiB, or of 2 MiB where
    /// the device has less, and gives back what it does not use when somebody waits for a stream or an event.
    #[track_caller]
    pub fn pool_create(&self, device: DeviceId) -> DriverResult<SimPool> {
        self.call("pool_create", device, CallArguments::default(), |active| {
            let index = active.device();
            Ok(SimPool { device, raw: active.create_pool(index) })
        })
    }

    /// Destroys a pool. It ends when its last allocation is freed.
    #[track_caller]
    pub fn pool_destroy(&self, pool: SimPool) -> DriverResult<()> {
        self.pool_call("pool_destroy", pool, |active| {
            active.pool(pool.raw)?.is_destroyed = true;
            active.end_pool_if_unused(pool.raw);
            Ok(())
        })
    }

    /// Allocates memory of a pool in stream order. [`free_async`](bursar_core::Driver::free_async) frees it.
    #[track_caller]
    pub fn allocate_from_pool(
        &self,
        device: DeviceId,
        stream: RawStream,
        pool: SimPool,
        bytes: u64,
    ) -> DriverResult<DevicePtr> {
        self.call("allocate_from_pool", device, CallArguments::on(stream).of(bytes), |active| {
            let index = active.device();
            if active.pool(pool.raw)?.device != index {
                return Err(bursar_core::Status::InvalidValue);
            }
            active.allocate_async(stream, bytes, Some(pool.raw))
        })
    }

    /// Frees memory of [`allocate`](bursar_core::Driver::allocate) at this point of a stream, which the CUDA driver lets
    /// programs do. [`free_async`](bursar_core::Driver::free_async) refuses that memory, because not every driver has this.
    ///
    /// ```
    /// use bursar::DeviceId;
    /// use bursar::driver::{Driver, RawStream};
    /// use bursar::sim::Sim;
    ///
    /// let (sim, device) = (Sim::immediate(), DeviceId(0));
    /// let ptr = sim.allocate(device, 1000)?;
    /// sim.free_direct_async(device, RawStream::LEGACY, ptr)?;
    /// let memory = sim.memory(device)?;
    /// assert_eq!(memory.free, memory.total);
    /// # Ok::<(), bursar::driver::DriverError>(())
    /// ```
    #[track_caller]
    pub fn free_direct_async(&self, device: DeviceId, stream: RawStream, ptr: DevicePtr) -> DriverResult<()> {
        self.call("free_direct_async", device, CallArguments::on(stream).at(ptr.0), |active| {
            active.free_async(stream, ptr, AllocationKind::Direct)
        })
    }

    /// Sets the most that a pool reserves; no limit by default. Allocations that need more are refused.
    ///
    /// ```
    /// use bursar::driver::RawStream;
    /// use bursar::sim::Sim;
    /// use bursar::{Bytes, DeviceId};
    ///
    /// let (sim, device) = (Sim::immediate(), DeviceId(0));
    /// let pool = sim.pool_create(device)?;
    /// sim.pool_set_limit(pool, Bytes::mib(4))?;
    /// assert!(sim.allocate_from_pool(device, RawStream::LEGACY, pool, 5 << 20).is_err());
    /// sim.allocate_from_pool(device, RawStream::LEGACY, pool, 3 << 20)?;
    /// assert_eq!(sim.pool_usage(pool)?.reserved, Bytes::mib(4));
    /// # Ok::<(), bursar::driver::DriverError>(())
    /// ```
    #[track_caller]
    pub fn pool_set_limit(&self, pool: SimPool, limit: Bytes) -> DriverResult<()> {
        self.pool_call("pool_set_limit", pool, |active| {
            active.pool(pool.raw)?.limit = limit.get();
            Ok(())
        })
    }

    /// Returns the memory of a pool.
    #[track_caller]
    pub fn pool_usage(&self, pool: SimPool) -> DriverResult<SimPoolUsage> {
        self.pool_call("pool_usage", pool, |active| active.pool(pool.raw).map(|pool| usage_of(pool)))
    }

    /// Resets the high-water marks of a pool to what it holds and uses now.
    #[track_caller]
    pub fn pool_reset_high(&self, pool: SimPool) -> DriverResult<()> {
        self.pool_call("pool_reset_high", pool, |active| {
            let pool = active.pool(pool.raw)?;
            (pool.reserved_high, pool.used_high) = (pool.reserved, pool.used);
            Ok(())
        })
    }

    /// Sets the memory that a pool keeps when somebody synchronises; none by default.
    #[track_caller]
    pub fn pool_set_threshold(&self, pool: SimPool, keep: Bytes) -> DriverResult<()> {
        self.pool_call("pool_set_threshold", pool, |active| {
            active.pool(pool.raw)?.threshold = keep.get();
            Ok(())
        })
    }

    /// Gives back what a pool has reserved and does not use, but for `keep`, in whole pieces.
    #[track_caller]
    pub fn pool_trim(&self, pool: SimPool, keep: Bytes) -> DriverResult<()> {
        self.pool_call("pool_trim", pool, |active| {
            active.pool(pool.raw)?;
            active.trim_pool(pool.raw, keep.get());
            Ok(())
        })
    }

    #[track_caller]
    fn pool_call<T: LoggedResult>(
        &self,
        name: &'static str,
        pool: SimPool,
        body: impl FnOnce(&mut ActiveCall<'_>) -> CallResult<T>,
    ) -> DriverResult<T> {
        self.call(name, pool.device, CallArguments::default(), body)
    }
}

impl LoggedResult for SimPool {
    fn outcome(&self) -> CallOutcome {
        CallOutcome::Value(self.raw)
    }
}

impl LoggedResult for SimPoolUsage {
    fn outcome(&self) -> CallOutcome {
        CallOutcome::Value(self.reserved.get())
    }
}

fn usage_of(pool: &Pool) -> SimPoolUsage {
    SimPoolUsage {
        reserved: Bytes(pool.reserved),
        reserved_high: Bytes(pool.reserved_high),
        used: Bytes(pool.used),
        used_high: Bytes(pool.used_high),
        threshold: Bytes(pool.threshold),
    }
}
