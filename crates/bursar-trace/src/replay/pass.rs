//! One run through a trace, window by window.

use super::plan::{Operation, Plan, Slot};
use super::table::{Exchange, Own, Table};
use bursar_core::{CountingDriver, DeviceBlock, DeviceMemoryResource, Error, Result, Stream};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What was counted in a timed pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) refused: u64,
    /// Operations that reached the driver.
    pub(super) misses: u64,
    /// The time they took, from their first driver call on.
    missed: Duration,
    /// All of the time, of all threads.
    elapsed: Duration,
}

impl Tally {
    fn absorb(&mut self, other: Self) {
        self.refused += other.refused;
        self.misses += other.misses;
        self.missed += other.missed;
        self.elapsed += other.elapsed;
    }

    /// Counts an operation that has just ended and made its first driver call at `first_call`.
    #[cold]
    fn miss(&mut self, first_call: Instant) {
        self.misses += 1;
        self.missed += first_call.elapsed();
    }

    /// Counts an allocation that was refused; any other error comes back.
    #[cold]
    fn refuse(&mut self, error: Error) -> Result<()> {
        if !error.is_capacity() {
            return Err(error);
        }
        self.refused += 1;
        Ok(())
    }

    /// The time that operations took which did not reach the driver, and others until they did.
    pub(super) fn hit_ns(&self) -> f64 {
        self.elapsed.saturating_sub(self.missed).as_nanos() as f64
    }
}

/// What came of an operation. The error is boxed so that the answer is in a register.
type Step = Result<(), Box<Error>>;

/// A pass and what it carries from window to window.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    streams: &'a [Stream],
    memory: &'a dyn DeviceMemoryResource,
    /// What is live between two windows, in the order of allocation.
    carried: BTreeMap<u32, DeviceBlock>,
    pub(super) tally: Tally,
    /// By the clock on the wall, which stands still between windows.
    pub(super) elapsed: Duration,
}

impl<'a> Pass<'a> {
    pub(super) fn new(streams: &'a [Stream], memory: &'a dyn DeviceMemoryResource) -> Self {
        Self { streams, memory, carried: BTreeMap::new(), tally: Tally::default(), elapsed: Duration::ZERO }
    }

    /// Runs every operation of a window, each thread of the trace on one of its own, and adds what was counted and how
    /// long it took.
    pub(super) fn run(&mut self, plan: &Plan) -> Result<()> {
        self.with_table(plan, |pass, table| {
            let (tally, elapsed) = match pass.parts(plan) {
                None => {
                    let own = table.own.first_mut();
                    let tally =
                        own.map_or(Ok(Tally::default()), |own| pass.thread(&plan.operations, own, &table.exchange));
                    let elapsed = tally.as_ref().map_or(Duration::ZERO, |tally| tally.elapsed);
                    (tally, elapsed)
                }
                Some(parts) => pass.threads(&parts, table),
            };
            pass.elapsed += elapsed;
            tally.map(|tally| pass.tally.absorb(tally))
        })
    }

    /// Lays out what `plan` needs, lets `run` use it, and takes back what outlives the window.
    pub(super) fn with_table(
        &mut self,
        plan: &Plan,
        run: impl FnOnce(&mut Self, &mut Table) -> Result<()>,
    ) -> Result<()> {
        let mut table = Table::new(plan);
        for arriving in &plan.arriving {
            table.put(arriving, self.carried.remove(&arriving.block));
        }
        let outcome = run(self, &mut table);
        for leaving in &plan.leaving {
            if let Some(block) = table.take(leaving) {
                self.carried.insert(leaving.block, block);
            }
        }
        // Something is left only where the run ended early, or where a trace made by hand numbers two blocks alike.
        let freed = self.free(table.into_blocks());
        outcome.and(freed)
    }

    /// Frees what the trace left live.
    pub(super) fn finish(&mut self) -> Result<()> {
        let carried = std::mem::take(&mut self.carried);
        let freed = self.free(carried.into_values());
        let reaped = self.memory.reap_blocking(Duration::MAX).map(drop);
        freed.and(reaped)
    }

    /// Frees them all, and answers the first failure.
    fn free(&self, blocks: impl Iterator<Item = DeviceBlock>) -> Result<()> {
        let mut outcome = Ok(());
        for block in blocks {
            let stream = block.stream();
            outcome = outcome.and(self.memory.deallocate(block, stream).map_err(Error::from));
        }
        outcome
    }

    /// What each thread does; `None` where there is one thread, which does everything.
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

    fn threads(&self, parts: &[Vec<Operation>], table: &mut Table) -> (Result<Tally>, Duration) {
        let Table { own, exchange } = table;
        let exchange = &*exchange;
        let busy: Vec<_> = parts.iter().zip(own).filter(|(operations, _)| !operations.is_empty()).collect();
        let start_line = std::sync::Barrier::new(busy.len());
        std::thread::scope(|scope| {
            let runners = busy.into_iter().map(|(operations, own)| {
                let start_line = &start_line;
                scope.spawn(move || {
                    start_line.wait();
                    let start = Instant::now();
                    let tally = self.thread(operations, own, exchange);
                    (tally, start, Instant::now())
                })
            });
            let runners: Vec<_> = runners.collect();
            let mut sum = Ok(Tally::default());
            // From when the first began until the last was done: this thread may be late for either.
            let mut span: Option<(Instant, Instant)> = None;
            for runner in runners {
                let (tally, start, end) = runner.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                span = Some(span.map_or((start, end), |(first, last)| (first.min(start), last.max(end))));
                sum = sum.and_then(|mut sum: Tally| tally.map(|tally| (sum.absorb(tally), sum).1));
            }
            (sum, span.map_or(Duration::ZERO, |(start, end)| end - start))
        })
    }

    /// One thread's part. What it does between two operations is in every figure, so there is little of it.
    fn thread(&self, operations: &[Operation], own: &mut Own, exchange: &Exchange) -> Result<Tally> {
        let mut tally = Tally::default();
        let _ended = exchange.ended_by_panic();
        CountingDriver::take_first_call();
        let start = Instant::now();
        for operation in operations {
            if let Err(error) = self.step(operation, own, exchange) {
                tally.refuse(*error).inspect_err(|_| exchange.end())?;
            }
            if let Some(first_call) = CountingDriver::take_first_call() {
                tally.miss(first_call);
            }
        }
        tally.elapsed = start.elapsed();
        Ok(tally)
    }

    /// One operation.
    #[inline(always)]
    pub(super) fn step(&self, operation: &Operation, own: &mut Own, exchange: &Exchange) -> Step {
        match operation.slot {
            Slot::Own(slot) => self.step_in(operation, own.place(slot)),
            Slot::Shared(slot) => self.step_between(operation, slot, exchange),
        }
    }

    /// An operation whose block is, or will be, in `place`.
    #[inline(always)]
    fn step_in(&self, operation: &Operation, place: &mut Option<DeviceBlock>) -> Step {
        let stream = self.streams[usize::from(operation.stream)];
        if !operation.is_free {
            return match self.memory.allocate(operation.bytes, 1, stream, operation.tag) {
                Ok(block) => {
                    *place = Some(block);
                    Ok(())
                }
                Err(error) => Err(boxed(error)),
            };
        }
        match place.take() {
            Some(block) => self.memory.deallocate(block, stream).map_err(boxed),
            None => Ok(()),
        }
    }

    /// An operation on a block that one thread allocates and another frees, for which the one may have to wait.
    #[inline(never)]
    fn step_between(&self, operation: &Operation, slot: u32, exchange: &Exchange) -> Step {
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
