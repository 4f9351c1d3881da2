//! One run through the operations of a trace.

use super::plan::{Operation, Plan, Slot};
use bursar_core::{Bytes, Counted, DeviceBlock, DeviceMemoryResource, Error, Result, Stream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where a watched pass stands after an operation.
///
/// ```
/// use bursar_core::Bytes;
/// use bursar_trace::Moment;
///
/// let moment = Moment { operation: 0, live: Bytes(512), block: None };
/// assert_eq!(moment.live, Bytes(512));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// The number of the operation, from 0.
    pub operation: u64,
    /// What is live after it, by what was asked for.
    pub live: Bytes,
    /// The block that was allocated; `None` after a free or a refusal.
    pub block: Option<&'a DeviceBlock>,
}

/// Someone who is told after each operation of a watched pass.
pub type Observe<'a> = dyn FnMut(&Moment<'_>) + 'a;

/// What one thread counted in a timed pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) refused: u64,
    /// Operations that reached the driver.
    pub(super) misses: u64,
    /// The time they took, from their first driver call on.
    missed: Duration,
    /// All of the time.
    elapsed: Duration,
}

impl Tally {
    fn absorb(&mut self, other: Self) {
        self.refused += other.refused;
        self.misses += other.misses;
        self.missed += other.missed;
        self.elapsed += other.elapsed;
    }

    /// The time that operations took which did not reach the driver, and others until they did.
    pub(super) fn hit_ns(&self) -> f64 {
        self.elapsed.saturating_sub(self.missed).as_nanos() as f64
    }
}

/// A block on its way from one thread to another.
#[derive(Debug, Default)]
enum Handover {
    #[default]
    Awaited,
    Ready(DeviceBlock),
    /// Its allocation was refused.
    Gone,
}

#[derive(Debug)]
pub(super) struct Pass<'a> {
    pub(super) plan: &'a Plan,
    pub(super) streams: &'a [Stream],
    pub(super) memory: &'a dyn DeviceMemoryResource,
}

/// What the threads of a pass share.
#[derive(Debug)]
struct Exchange {
    blocks: Vec<Mutex<Handover>>,
    /// A thread failed: nobody waits for it any more.
    over: AtomicBool,
}

/// What one thread keeps.
#[derive(Debug)]
struct Own {
    blocks: Vec<Option<DeviceBlock>>,
}

impl Own {
    fn new(slots: u32) -> Self {
        Self { blocks: (0..slots).map(|_| None).collect() }
    }
}

impl Pass<'_> {
    /// Runs every operation, each thread of the trace on one of its own, and answers what was counted and how long it
    /// took by the clock on the wall. What the trace leaves live is freed after the clock has stopped.
    pub(super) fn run(&self) -> Result<(Tally, Duration)> {
        let exchange = self.exchange();
        let mut own: Vec<_> = self.plan.own_slots.iter().map(|&slots| Own::new(slots)).collect();
        let (outcome, elapsed) = match &mut own[..] {
            [] => (Ok(Tally::default()), Duration::ZERO),
            [only] => {
                let outcome = self.thread(&self.plan.operations, only, &exchange);
                let elapsed = outcome.as_ref().map_or(Duration::ZERO, |tally| tally.elapsed);
                (outcome, elapsed)
            }
            several => self.threads(several, &exchange),
        };
        let cleared = self.clear(own, exchange);
        outcome.and_then(|tally| cleared.map(|()| (tally, elapsed)))
    }

    fn exchange(&self) -> Exchange {
        Exchange {
            blocks: (0..self.plan.shared_slots).map(|_| Mutex::default()).collect(),
            over: AtomicBool::new(false),
        }
    }

    fn threads(&self, own: &mut [Own], exchange: &Exchange) -> (Result<Tally>, Duration) {
        let mut parts: Vec<Vec<Operation>> = own.iter().map(|_| Vec::new()).collect();
        for operation in &self.plan.operations {
            parts[usize::from(operation.thread)].push(*operation);
        }
        let start_line = std::sync::Barrier::new(own.len() + 1);
        std::thread::scope(|scope| {
            let runners = parts.iter().zip(own).map(|(operations, own)| {
                let start_line = &start_line;
                scope.spawn(move || {
                    start_line.wait();
                    self.thread(operations, own, exchange)
                })
            });
            let runners: Vec<_> = runners.collect();
            start_line.wait();
            let start = Instant::now();
            let mut sum = Ok(Tally::default());
            for runner in runners {
                let tally = runner.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                sum = sum.and_then(|mut sum: Tally| tally.map(|tally| (sum.absorb(tally), sum).1));
            }
            (sum, start.elapsed())
        })
    }

    /// One thread's part.
    fn thread(&self, operations: &[Operation], own: &mut Own, exchange: &Exchange) -> Result<Tally> {
        let mut tally = Tally::default();
        Counted::take_first_call();
        let start = Instant::now();
        for operation in operations {
            match self.step(operation, own, exchange) {
                Ok(granted) => tally.refused += u64::from(!granted),
                Err(error) => {
                    exchange.over.store(true, Ordering::Release);
                    return Err(error);
                }
            }
            if let Some(first_call) = Counted::take_first_call() {
                tally.misses += 1;
                tally.missed += first_call.elapsed();
            }
        }
        tally.elapsed = start.elapsed();
        Ok(tally)
    }

    /// One operation; `false` if an allocation was refused.
    #[inline]
    fn step(&self, operation: &Operation, own: &mut Own, exchange: &Exchange) -> Result<bool> {
        let stream = self.streams[usize::from(operation.stream)];
        if operation.is_free {
            let block = match operation.slot {
                Slot::Own(slot) => own.blocks[slot as usize].take(),
                Slot::Shared(slot) => exchange.receive(slot),
            };
            return match block {
                Some(block) => self.memory.deallocate(block, stream).map(|()| true).map_err(Error::from),
                None => Ok(true),
            };
        }
        let granted = self.memory.allocate(operation.bytes, 1, stream, operation.tag);
        let block = match granted {
            Ok(block) => Some(block),
            Err(refused) if refused.is_capacity() => None,
            Err(error) => return Err(error),
        };
        let was_granted = block.is_some();
        match operation.slot {
            Slot::Own(slot) => own.blocks[slot as usize] = block,
            Slot::Shared(slot) => exchange.hand_over(slot, block),
        }
        Ok(was_granted)
    }

    /// One pass by one thread, in the order of the trace, that tells `observe` after each operation.
    pub(super) fn watched(&self, observe: &mut Observe<'_>) -> Result<()> {
        let exchange = self.exchange();
        let mut own: Vec<_> = self.plan.own_slots.iter().map(|&slots| Own::new(slots)).collect();
        let mut live = Live::default();
        let mut outcome = Ok(());
        for (number, operation) in self.plan.operations.iter().enumerate() {
            let kept = &mut own[usize::from(operation.thread)];
            let was_held = exchange.holds(operation.slot, kept);
            if let Err(error) = self.step(operation, kept, &exchange) {
                outcome = Err(error);
                break;
            }
            let is_held = exchange.holds(operation.slot, kept);
            live.change(operation, was_held, is_held);
            let tell = |block: Option<&DeviceBlock>, observe: &mut Observe<'_>| {
                observe(&Moment { operation: number as u64, live: live.now(), block });
            };
            match operation.slot {
                Slot::Own(slot) => tell(kept.blocks[slot as usize].as_ref(), observe),
                Slot::Shared(slot) => exchange.look(slot, |block| tell(block, observe)),
            }
        }
        let cleared = self.clear(own, exchange);
        outcome.and(cleared)
    }

    /// Frees what the trace left live.
    fn clear(&self, own: Vec<Own>, exchange: Exchange) -> Result<()> {
        let own = own.into_iter().flat_map(|own| own.blocks).flatten();
        let shared = exchange.blocks.into_iter().filter_map(|block| {
            match block.into_inner().unwrap_or_else(PoisonError::into_inner) {
                Handover::Ready(block) => Some(block),
                Handover::Awaited | Handover::Gone => None,
            }
        });
        for block in own.chain(shared) {
            let stream = block.stream();
            self.memory.deallocate(block, stream)?;
        }
        self.memory.reap_blocking(Duration::MAX).map(drop)
    }
}

/// What is live in a watched pass, by what was asked for.
#[derive(Clone, Copy, Debug, Default)]
struct Live(u64);

impl Live {
    fn change(&mut self, operation: &Operation, was_held: bool, is_held: bool) {
        match (was_held, is_held) {
            (false, true) => self.0 += operation.bytes,
            (true, false) => self.0 -= operation.bytes,
            _ => {}
        }
    }

    fn now(self) -> Bytes {
        Bytes(self.0)
    }
}

impl Exchange {
    fn block(&self, slot: u32) -> std::sync::MutexGuard<'_, Handover> {
        self.blocks[slot as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hand_over(&self, slot: u32, block: Option<DeviceBlock>) {
        *self.block(slot) = block.map_or(Handover::Gone, Handover::Ready);
    }

    /// Waits for the block; `None` if its allocation was refused.
    fn receive(&self, slot: u32) -> Option<DeviceBlock> {
        loop {
            let found = std::mem::take(&mut *self.block(slot));
            match found {
                Handover::Ready(block) => return Some(block),
                Handover::Gone => return None,
                Handover::Awaited if self.over.load(Ordering::Acquire) => return None,
                Handover::Awaited => std::thread::yield_now(),
            }
        }
    }

    fn look(&self, slot: u32, f: impl FnOnce(Option<&DeviceBlock>)) {
        match &*self.block(slot) {
            Handover::Ready(block) => f(Some(block)),
            Handover::Awaited | Handover::Gone => f(None),
        }
    }

    fn holds(&self, slot: Slot, own: &Own) -> bool {
        match slot {
            Slot::Own(slot) => own.blocks[slot as usize].is_some(),
            Slot::Shared(slot) => matches!(&*self.block(slot), Handover::Ready(_)),
        }
    }
}
