//! The choice of a device.

use super::DevicePool;
use crate::Gpu;
use bursar_core::{Admission, Bytes, Error, NumaNode, Result};
use std::cmp::Reverse;
use std::sync::atomic::Ordering::Relaxed;

impl DevicePool {
    /// Returns each device in turn, in the order of the pool, whichever threads ask.
    ///
    /// ```
    /// # use bursar::{DevicePool, Stack, leaf};
    /// # let gpus = DevicePool::open(bursar::sim::Sim::immediate(), &Stack::new().over(leaf::Async))?;
    /// let order: Vec<u32> = (0..5).map(|_| gpus.round_robin().id().0).collect();
    /// assert_eq!(order, [0, 1, 0, 1, 0]);
    /// # Ok::<(), bursar::Error>(())
    /// ```
    pub fn round_robin(&self) -> &Gpu {
        // The counter is an index and not a number of calls, which, taken modulo the length, would skip or repeat a
        // device where it wraps.
        let mut turn = self.turn.load(Relaxed);
        loop {
            let next = if turn + 1 < self.gpus.len() { turn + 1 } else { 0 };
            match self.turn.compare_exchange_weak(turn, next, Relaxed, Relaxed) {
                Ok(_) => return &self.gpus[turn],
                Err(current) => turn = current,
            }
        }
    }

    /// Returns the device that has the most memory free right now, whoever holds the rest; the first of several. One
    /// that cannot be asked is passed over; if none can, it is the first, whose next call reports why.
    pub fn most_free(&self) -> &Gpu {
        best(self.iter(), free).unwrap_or(&self.gpus[0])
    }

    /// Returns the device that has the most left for a newcomer, less what others have set aside; the first of several.
    /// One that cannot be asked is logged and passed over; if none can, the first one's failure is the error. The figure
    /// behind it may have changed by the time this returns: to have the memory,
    /// [reserve it](Self::reserve_on_best).
    pub fn most_available(&self, admission: &impl Admission) -> Result<&Gpu> {
        self.by_available(admission).map(|order| order[0])
    }

    /// Returns the devices that can be asked what they have left, those with the most first; the error of the first one
    /// where none can.
    fn by_available(&self, admission: &impl Admission) -> Result<Vec<&Gpu>> {
        let (mut order, mut unasked) = (Vec::with_capacity(self.gpus.len()), None);
        for gpu in self {
            match admission.available(gpu.context()) {
                Ok(available) => order.push((Reverse(available), gpu)),
                Err(error) => {
                    tracing::warn!(device = %gpu.id(), "a device is passed over: {error}");
                    unasked = unasked.or(Some(error));
                }
            }
        }
        order.sort_by_key(|(available, _)| *available);
        match unasked {
            Some(error) if order.is_empty() => Err(error),
            _ => Ok(order.into_iter().map(|(_, gpu)| gpu).collect()),
        }
    }

    /// Chooses the device that has the most left and sets `bytes` aside there, in one step: of several that choose at
    /// once, none gets what another has. A device that turns out to be taken is passed over for the next best, and one
    /// that cannot be asked is logged and passed over; ties go to the first. If none has room, the error is the best
    /// one's; if none can be asked, the first one's.
    ///
    /// ```
    /// use bursar::device::DeviceContext;
    /// use bursar::memory::Admission;
    /// use bursar::{Bytes, DeviceId, DevicePool, Error, Result, Stack, leaf};
    /// use std::sync::Arc;
    ///
    /// /// Whoever asks first gets the whole device.
    /// #[derive(Default)]
    /// struct Whole(std::sync::Mutex<Vec<DeviceId>>);
    ///
    /// impl Admission for Whole {
    ///     type Reservation = DeviceId;
    ///     fn available(&self, context: &Arc<DeviceContext>) -> Result<Bytes> {
    ///         let is_taken = self.0.lock().unwrap().contains(&context.device());
    ///         Ok(if is_taken { Bytes::ZERO } else { context.facts().total })
    ///     }
    ///     fn reserve(&self, context: &Arc<DeviceContext>, requested: Bytes) -> Result<DeviceId> {
    ///         let (remaining, limit) = (self.available(context)?, context.facts().total);
    ///         if requested > remaining {
    ///             return Err(Error::out_of_budget(requested, remaining, limit));
    ///         }
    ///         self.0.lock().unwrap().push(context.device());
    ///         Ok(context.device())
    ///     }
    /// }
    ///
    /// let (gpus, whole) = (DevicePool::open(bursar::sim::Sim::immediate(), &Stack::new().over(leaf::Async))?, Whole::default());
    /// assert_eq!(gpus.reserve_on_best(&whole, Bytes::gib(1))?.1, DeviceId(0));
    /// let (gpu, _second) = gpus.reserve_on_best(&whole, Bytes::gib(1))?;
    /// assert_eq!(gpu.id(), DeviceId(1));
    /// assert!(gpus.reserve_on_best(&whole, Bytes::gib(1)).unwrap_err().is_capacity());
    /// # Ok::<(), Error>(())
    /// ```
    pub fn reserve_on_best<A: Admission>(&self, admission: &A, bytes: Bytes) -> Result<(&Gpu, A::Reservation)> {
        let mut refused = None;
        for gpu in self.by_available(admission)? {
            match admission.reserve(gpu.context(), bytes) {
                Ok(reservation) => return Ok((gpu, reservation)),
                Err(error) => {
                    if !error.is_capacity() {
                        tracing::warn!(device = %gpu.id(), "a device is passed over: {error}");
                    }
                    refused = Some(more_useful(refused, error));
                }
            }
        }
        Err(refused.unwrap_or(Error::NoDevice))
    }

    /// Returns the device that has the most memory; the first of several.
    pub fn most_total(&self) -> &Gpu {
        best(self.iter(), |gpu| Some(gpu.facts().total)).unwrap_or(&self.gpus[0])
    }

    /// Returns the device on a NUMA node that has the most memory free; `None` if no device is known to be there.
    pub fn near(&self, node: NumaNode) -> Option<&Gpu> {
        node.index()?;
        let there = || self.iter().filter(|gpu| gpu.facts().numa_node == node);
        best(there(), free).or_else(|| there().next())
    }
}

/// Returns the more useful of two refusals: that there is no room before that a device is sick, and the earlier one.
fn more_useful(first: Option<Error>, second: Error) -> Error {
    match first {
        Some(first) if first.is_capacity() || !second.is_capacity() => first,
        _ => second,
    }
}

fn free(gpu: &Gpu) -> Option<Bytes> {
    gpu.memory_info().ok().map(|info| info.free)
}

/// Returns the first of the largest, among those that can be measured.
fn best<'a>(gpus: impl Iterator<Item = &'a Gpu>, measure: impl Fn(&Gpu) -> Option<Bytes>) -> Option<&'a Gpu> {
    let measured = gpus.filter_map(|gpu| Some((measure(gpu)?, gpu)));
    let largest = measured.reduce(|best, next| if next.0 > best.0 { next } else { best });
    largest.map(|(_, gpu)| gpu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bursar_core::{Stack, leaf};
    use bursar_sim::Sim;

    #[test]
    fn d4_round_robin_has_no_counter_that_could_wrap() {
        let sim = Sim::builder().immediate().devices(3, Bytes::gib(1)).build();
        let gpus = DevicePool::open(sim, &Stack::new().over(leaf::Async)).expect("usable devices");
        for call in 0..1000 {
            assert_eq!(gpus.turn.load(Relaxed), call % 3);
            assert_eq!(gpus.round_robin().id(), gpus.gpus[call % 3].id());
        }
    }
}
