//! Which device to use.

use crate::{DevicePool, Gpu};
use bursar_core::{Bytes, NumaNode};
use std::sync::atomic::Ordering::Relaxed;

impl DevicePool {
    /// Each device in turn, in the order of the pool, whichever threads ask.
    ///
    /// ```
    /// # use bursar_core::{Stack, leaf};
    /// # use bursar_device::DevicePool;
    /// # let gpus = DevicePool::open(bursar_sim::Sim::immediate(), &Stack::new().over(leaf::Async))?;
    /// let order: Vec<u32> = (0..5).map(|_| gpus.round_robin().id().0).collect();
    /// assert_eq!(order, [0, 1, 0, 1, 0]);
    /// # Ok::<(), bursar_core::Error>(())
    /// ```
    pub fn round_robin(&self) -> &Gpu {
        // What is counted is places and not calls: a count of calls, taken modulo the length, would skip or repeat a
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

    /// The device that has the most memory free right now, whoever holds the rest; the first of several. One that cannot
    /// be asked is passed over; if none can, it is the first, whose next call says why.
    pub fn most_free(&self) -> &Gpu {
        best(self.iter(), free).unwrap_or(&self.gpus[0])
    }

    /// The device that has the most memory; the first of several.
    pub fn most_total(&self) -> &Gpu {
        best(self.iter(), |gpu| Some(gpu.facts().total)).unwrap_or(&self.gpus[0])
    }

    /// Of the devices on a NUMA node the one that has the most memory free; none if no device is known to be there.
    pub fn near(&self, node: NumaNode) -> Option<&Gpu> {
        node.index()?;
        let there = || self.iter().filter(|gpu| gpu.facts().numa_node == node);
        best(there(), free).or_else(|| there().next())
    }
}

fn free(gpu: &Gpu) -> Option<Bytes> {
    gpu.memory_info().ok().map(|info| info.free)
}

/// The first of the largest, among those that can be measured.
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
