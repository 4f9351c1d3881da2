//! Runs one pass through a trace, window by window.

use super::block_table::{BlockTable, Exchange, ThreadBlocks};
use super::plan::{Operation, Plan, Slot};
use bursar_core::{CountingDriver, DeviceBlock, DeviceMemoryResource, Error, Result, Stream};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The counts and times of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PassCounts {
    pub(super) refused: u64,
    /// The number of operations that reached the driver.
    pub(super) misses: u64,
    /// The time of those operations, each from its first driver call on.
    miss_time: Duration,
    /// The time of all operations, summed over all threads.
    elapsed: Duration,
}

impl PassCounts {
    fn absorb(&mut self, other: Self) {
        self.refused += other.refused;
        self.misses += other.misses;
        self.miss_time += other.miss_time;
        self.elapsed += other.elapsed;
    }

    /// Counts an operation that has just ended and made its first driver call at `first_call`.
    #[cold]
    fn count_miss(&mut self, first_call: Instant) {
        self.misses += 1;
        self.miss_time += first_call.elapsed();
    }

    /// Counts an allocation that was refused; returns any other error.
    #[cold]
    fn count_refusal(&mut self, error: Error) -> Result<()> {
        if !error.is_capacity() {
            return Err(error);
        }
        self.refused += 1;
        Ok(())
    }

    /// Returns the time of the operations that did not reach the driver, and of the others until they did.
    pub(super) fn hit_ns(&self) -> f64 {
        self.elapsed.saturating_sub(self.miss_time).as_nanos() as f64
    }
}

/// The result of an operation. The error is boxed so that the result fits into a register.
type StepResult = Result<(), Box<Error>>;

/// A pass, with the blocks that it carries from window to window.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    streams: &'a [Stream],
    memory: &'a dyn DeviceMemoryResource,
    /// The blocks that are live between two windows, in the order of allocation.
    carried: BTreeMap<u32, DeviceBlock>,
    pub(super) counts: PassCounts,
    /// Wall-clock time, without the time between windows.
    pub(super) elapsed: Duration,
}

impl<'a> Pass<'a> {
    pub(super) fn new(streams: &'a [Stream], memory: &'a dyn DeviceMemoryResource) -> Self {
        Self { streams, memory, carried: BTreeMap::new(), counts: PassCounts::default(), elapsed: Duration::ZERO }
    }

    /// Runs every operation of a window, each thread of the trace on a thread of its own, and adds the counts and times.
    pub(super) fn run(&mut self, plan: &Plan) -> Result<()> {
        self.with_table(plan, |pass, table| {
            let (counts, elapsed) = match pass.parts(plan) {
                None => {
                    let own = table.own.first_mut();
                    let counts = own.map_or(Ok(PassCounts::default()), |own| {
                        pass.run_thread(&plan.operations, own, &table.exchange)
                    });
                    let elapsed = counts.as_ref().map_or(Duration::ZERO, |counts| counts.elapsed);
                    (counts, elapsed)
                }
                Some(parts) => pass.run_threads(&parts, table),
            };
            pass.elapsed += elapsed;
            counts.map(|counts| pass.counts.absorb(counts))
        })
    }

    /// Makes the table that `plan` needs, calls `run` with it, and takes back the blocks that outlive the window.
    pub(super) fn with_table(
        &mut self,
        plan: &Plan,
        run: impl FnOnce(&mut Self, &mut BlockTable) -> Result<()>,
    ) -> Result<()> {
        let mut table = BlockTable::new(plan);
        for arriving in &plan.arriving {
            table.put(arriving, self.carried.remove(&arriving.block));
        }
        let outcome = run(self, &mut table);
        for leaving in &plan.leaving {
            if let Some(block) = table.take(leaving) {
                self.carried.insert(leaving.block, block);
            }
        }
        // Blocks are left only if the run ended early, or if a trace built by hand gives two blocks the same number.
        let freed = self.free(table.into_blocks());
        outcome.and(freed)
    }

    /// Frees the blocks that the trace never frees.
    pub(super) fn finish(&mut self) -> Result<()> {
        let carried = std::mem::take(&mut self.carried);
        let freed = self.free(carried.into_values());
        let reaped = self.memory.reap_blocking(Duration::MAX).map(drop);
        freed.and(reaped)
    }

    /// Frees all of `blocks`, and returns the first failure.
    fn free(&self, blocks: impl Iterator<Item = DeviceBlock>) -> Result<()> {
        let mut outcome = Ok(());
        for block in blocks {
            let stream = block.stream();
            outcome = outcome.and(self.memory.deallocate(block, stream).map_err(Error::from));
        }
        outcome
    }

    /// Returns the operations of each thread; `None` if there is only one.
    fn parts(&self, plan: &Plan) -> Option<Vec<Vec<Operation>>> {
        if plan.own_slots.len() < 2 {
            return None;
        }
        let mut parts = vec![Vec::new(); plan.own_slots.len()];
        for operation in &plan.operations {
            parts[usize::from(operation.thread)].push(*operation);
        }
        Some(parts)
    }

    fn run_threads(&self, parts: &[Vec<Operation>], table: &mut BlockTable) -> (Result<PassCounts>, Duration) {
        let BlockTable { own, exchange } = table;
        let exchange = &*exchange;
        let busy: Vec<_> = parts.iter().zip(own).filter(|(operations, _)| !operations.is_empty()).collect();
        let start_line = std::sync::Barrier::new(busy.len());
        std::thread::scope(|scope| {
            let runners = busy.into_iter().map(|(operations, own)| {
                let start_line = &start_line;
                scope.spawn(move || {
                    start_line.wait();
                    let start = Instant::now();
                    let counts = self.run_thread(operations, own, exchange);
                    (counts, start, Instant::now())
                })
            });
            let runners: Vec<_> = runners.collect();
            let mut sum = Ok(PassCounts::default());
            // From the start of the first to the end of the last, by their own clocks: this thread may be late for either.
            let mut span: Option<(Instant, Instant)> = None;
            for runner in runners {
                let (counts, start, end) = runner.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                span = Some(span.map_or((start, end), |(first, last)| (first.min(start), last.max(end))));
                sum = sum.and_then(|mut sum: PassCounts| counts.map(|counts| (sum.absorb(counts), sum).1));
            }
            (sum, span.map_or(Duration::ZERO, |(start, end)| end - start))
        })
    }

    /// Runs the operations of one thread. Whatever happens between two operations is part of every figure, so little does.
    fn run_thread(&self, operations: &[Operation], own: &mut ThreadBlocks, exchange: &Exchange) -> Result<PassCounts> {
        let mut counts = PassCounts::default();
        let _guard = exchange.end_on_panic();
        CountingDriver::take_first_call();
        let start = Instant::now();
        for operation in operations {
            if let Err(error) = self.step(operation, own, exchange) {
                counts.count_refusal(*error).inspect_err(|_| exchange.end())?;
            }
            if let Some(first_call) = CountingDriver::take_first_call() {
                counts.count_miss(first_call);
            }
        }
        counts.elapsed = start.elapsed();
        Ok(counts)
    }

    /// Runs one operation.
    #[inline(always)]
    pub(super) fn step(&self, operation: &Operation, own: &mut ThreadBlocks, exchange: &Exchange) -> StepResult {
        match operation.slot {
            Slot::Own(slot) => self.step_in(operation, own.slot(slot)),
            Slot::Shared(slot) => self.step_between(operation, slot, exchange),
        }
    }

    /// Runs an operation whose block is, or will be, in `slot`.
    #[inline(always)]
    fn step_in(&self, operation: &Operation, slot: &mut Option<DeviceBlock>) -> StepResult {
        let stream = self.streams[usize::from(operation.stream)];
        if !operation.is_free {
            return match self.memory.allocate(operation.bytes, 1, stream, operation.tag) {
                Ok(block) => {
                    *slot = Some(block);
                    Ok(())
                }
                Err(error) => Err(boxed(error)),
            };
        }
        match slot.take() {
            Some(block) => self.memory.deallocate(block, stream).map_err(boxed),
            None => Ok(()),
        }
    }

    /// Runs an operation on a block that one thread allocates and another frees. The one that frees it may have to wait.
    #[inline(never)]
    fn step_between(&self, operation: &Operation, slot: u32, exchange: &Exchange) -> StepResult {
        if operation.is_free {
            return self.step_in(operation, &mut exchange.receive(slot));
        }
        let mut block = None;
        let step = self.step_in(operation, &mut block);
        if step.as_ref().err().is_none_or(|error| error.is_capacity()) {
            exchange.hand_over(slot, block);
        }
        step
    }
}

#[cold]
fn boxed(error: impl Into<Error>) -> Box<Error> {
    Box::new(error.into())
}
