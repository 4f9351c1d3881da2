//! Checks that replays run every operation of the trace, and count driver calls.

use bursar_core::leaf::Leaf;
use bursar_core::{
    AllocTag, Build, Bytes, CountingDriver, DeviceBlock, DeviceContext, DeviceId, DeviceMemoryResource, Driver, Error,
    Holder, Layer, Refused, Stack, Status, Stream, forward_holder, forward_memory_resource, leaf,
};
use bursar_memory::GlobalDeviceBudget;
use bursar_sim::{Call, Faults, Sim};
use bursar_trace::{Cost, Replay, ReplayError, Trace};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

fn replayed<L, F>(trace: &Trace, driver: Arc<dyn Driver>, stack: &Stack<L, F>) -> Cost
where
    F: Leaf,
    L: Layer<F::Source>,
    L::Output: DeviceMemoryResource,
{
    let driver = CountingDriver::new(driver);
    let context = DeviceContext::open(driver.clone(), DeviceId(0)).expect("a device");
    let memory = stack.build(&context).expect("a stack");
    let cost = Replay::new(trace, &context).expect("streams").run(&memory, &driver).expect("a replay");
    assert_eq!(memory.bytes_outstanding(), Bytes::ZERO, "what the trace left live was freed");
    cost
}

fn trace(rows: &[(u64, &str, u64, u64, u64)]) -> Trace {
    let mut log = "Thread,Time,Action,Pointer,Size,Stream\n".to_owned();
    for (thread, action, pointer, bytes, stream) in rows {
        writeln!(log, "{thread},00:00:00.000000,{action},{pointer:#x},{bytes},{stream}").expect("memory");
    }
    bursar_trace::read_from(log.as_bytes(), "made.csv").expect("a trace")
}

#[test]
fn a_real_trace_has_its_own_peak_on_every_stack_and_driver() {
    let trace = bursar_trace::bundled();
    for driver in [Sim::immediate(), Sim::seeded(3)] {
        let cost = replayed(&trace, driver.clone(), &Stack::new().over(leaf::Async));
        assert_eq!((cost.peak_live, cost.refused, cost.hits), (trace.peak_live(), 0, 0));
        assert!(cost.peak_reserved >= cost.peak_live);
        assert!(cost.driver_calls >= cost.operations, "each operation reaches the driver");
    }
    let cost = replayed(&trace, Sim::immediate(), &Stack::new().over(leaf::Direct));
    assert_eq!((cost.peak_live, cost.operations), (trace.peak_live(), trace.events.len() as u64));
    assert_eq!(cost.ns_per_hit, None);
}

#[test]
fn what_does_not_fit_is_refused_and_counted_and_its_free_is_left_out() {
    let trace = trace(&[
        (1, "allocate", 0x1000, 600 << 10, 0),
        (1, "allocate", 0x2000, 600 << 10, 0),
        (1, "free", 0x2000, 600 << 10, 0),
        (1, "free", 0x1000, 600 << 10, 0),
    ]);
    let stack = Stack::new().layer(GlobalDeviceBudget::of(Bytes::mib(1))).over(leaf::Direct);
    let cost = replayed(&trace, Sim::immediate(), &stack);
    assert_eq!((cost.refused, cost.peak_live), (1, Bytes::kib(600)));
}

#[test]
fn several_threads_keep_the_order_that_the_trace_needs() {
    let mut rows = Vec::new();
    for n in 0..2_000u64 {
        let (maker, taker) = (1 + n % 4, 1 + (n + 1) % 4);
        rows.push((maker, "allocate", 0x1000 * (n + 1), 256 * (1 + n % 7), maker));
        if n >= 8 {
            let earlier = n - 8;
            rows.push((taker, "free", 0x1000 * (earlier + 1), 0, taker));
        }
    }
    let trace = trace(&rows);
    assert_eq!((trace.threads.len(), trace.missing_frees.len()), (4, 8));
    let cost = replayed(&trace, Sim::immediate(), &Stack::new().over(leaf::Async));
    assert_eq!((cost.operations, cost.refused, cost.peak_live), (trace.events.len() as u64, 0, trace.peak_live()));
    assert_eq!(cost.hits, 0, "each operation was done, in turn: one that is left out reaches no driver");
}

#[test]
fn a_failure_of_one_thread_ends_the_others_and_everything_is_given_back() {
    let made = (1..=8u64).map(|n| (1, "allocate", 0x1000 * n, 512, 1));
    let taken = (2..=8u64).map(|n| (2, "free", 0x1000 * n, 512, 2));
    let kept = [(1, "free", 0x1000, 512, 1)];
    let trace = trace(&made.chain(taken).chain(kept).collect::<Vec<_>>());
    for nth in 1..=8 {
        let faults = Faults::new(Sim::immediate());
        let driver = CountingDriver::new(faults.clone());
        let context = DeviceContext::open(driver.clone(), DeviceId(0)).expect("a device");
        let memory = Arc::new(Stack::new().over(leaf::Async).build(&context).expect("a stack"));
        let replay = Replay::new(&trace, &context).expect("streams");
        faults.fail_nth(Call::AllocateAsync, nth, Status::InvalidValue);
        // The first thread has a block that it would free in the end; the second waits for blocks that never come. It runs
        // on a thread of its own, so that a wait without end is a failure here.
        let (tell, told) = mpsc::channel();
        let run_memory = memory.clone();
        std::thread::spawn(move || tell.send(replay.run(&*run_memory, &driver)));
        let outcome = told.recv_timeout(Duration::from_secs(120)).expect("nobody waits for ever");
        assert!(matches!(outcome, Err(ReplayError::Memory(Error::Driver(_)))), "{outcome:?}");
        assert_eq!((memory.bytes_outstanding(), faults.held(DeviceId(0))), (Bytes::ZERO, Bytes::ZERO));
    }
}

#[test]
fn a_refused_allocation_is_not_waited_for_by_the_thread_that_would_free_it() {
    let trace = trace(&[
        (1, "allocate", 0x1000, 2 << 20, 1),
        (1, "allocate", 0x2000, 600 << 10, 1),
        (2, "free", 0x1000, 2 << 20, 2),
        (2, "free", 0x2000, 600 << 10, 2),
    ]);
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let stack = Stack::new().layer(GlobalDeviceBudget::of(Bytes::mib(1))).over(leaf::Async);
        tell.send(replayed(&trace, Sim::immediate(), &stack))
    });
    let cost = told.recv_timeout(Duration::from_secs(120)).expect("nobody waits for ever");
    assert_eq!((cost.refused, cost.peak_live), (1, Bytes::kib(600)));
}

#[test]
fn watching_sees_every_operation_in_order_with_its_block() {
    let trace = bursar_trace::bundled();
    let context = DeviceContext::open(Sim::immediate(), DeviceId(0)).expect("a device");
    let memory = Stack::new().over(leaf::Async).build(&context).expect("a stack");
    let replay = Replay::new(&trace, &context).expect("streams");
    let (mut seen, mut blocks, mut peak) = (0, 0, Bytes::ZERO);
    replay
        .watch(&memory, &mut |step| {
            assert_eq!((step.operation, step.event), (seen, trace.events[seen as usize]));
            seen += 1;
            blocks += u32::from(step.block.is_some());
            peak = peak.max(step.live);
        })
        .expect("a replay");
    assert_eq!((seen, blocks, peak), (replay.operations(), trace.blocks, trace.peak_live()));
}

/// A resource that panics.
#[derive(Debug)]
struct PanickingResource(Arc<DeviceContext>);

impl Holder for PanickingResource {
    fn context(&self) -> &Arc<DeviceContext> {
        &self.0
    }
    fn bytes_outstanding(&self) -> Bytes {
        Bytes::ZERO
    }
    fn released_total(&self) -> u64 {
        0
    }
    fn reap(&self) -> bursar_core::Result<Bytes> {
        Ok(Bytes::ZERO)
    }
    fn reap_blocking(&self, _: Duration) -> bursar_core::Result<Bytes> {
        Ok(Bytes::ZERO)
    }
    fn survey(&self, _: &mut bursar_core::Survey) {}
}

impl DeviceMemoryResource for PanickingResource {
    fn granted_size(&self, bytes: u64, _: u64) -> bursar_core::Result<Bytes> {
        Ok(Bytes(bytes))
    }
    fn allocate(&self, _: u64, _: u64, _: Stream, _: AllocTag) -> bursar_core::Result<DeviceBlock> {
        panic!("a bug")
    }
    fn deallocate(&self, _: DeviceBlock, _: Stream) -> Result<(), Refused> {
        Ok(())
    }
    fn tracks_use(&self) -> bool {
        true
    }
}

#[test]
fn a_panic_of_one_thread_is_passed_on_and_nobody_waits_for_it() {
    let trace = trace(&[(1, "allocate", 0x1000, 512, 1), (2, "free", 0x1000, 512, 2)]);
    let driver = CountingDriver::new(Sim::immediate());
    let context = DeviceContext::open(driver.clone(), DeviceId(0)).expect("a device");
    let replay = Replay::new(&trace, &context).expect("streams");
    let (tell, told) = mpsc::channel::<()>();
    let runner = std::thread::spawn(move || {
        let _dropped_at_the_end = tell;
        replay.run(&PanickingResource(context), &driver).map(drop)
    });
    let ended = told.recv_timeout(Duration::from_secs(120));
    assert_eq!(ended, Err(mpsc::RecvTimeoutError::Disconnected), "nobody waits for ever");
    let panic = runner.join().expect_err("the bug comes through");
    assert_eq!(panic.downcast_ref(), Some(&"a bug"));
}

/// A stack in which a thread that allocates `LATE` bytes first waits until the one that allocated `EARLY` bytes sleeps.
#[cfg(target_os = "linux")]
#[derive(Debug)]
struct SleepProbe<M> {
    inner: M,
    /// The thread that allocated `EARLY` bytes, as the kernel names it.
    early: Mutex<Option<PathBuf>>,
}

#[cfg(target_os = "linux")]
impl<M> SleepProbe<M> {
    const EARLY: u64 = 100;
    const LATE: u64 = 200;

    /// Returns whether that thread is asleep, and its numbers of context switches.
    fn sleeper(&self) -> Option<(bool, String)> {
        let thread = self.early.lock().expect("no panic").clone()?;
        let status = std::fs::read_to_string(Path::new("/proc").join(thread).join("status")).expect("a thread");
        let is_asleep = status.lines().any(|line| line.starts_with("State:") && line.contains("(sleeping)"));
        let switches = status.lines().filter(|line| line.contains("ctxt_switches")).collect();
        Some((is_asleep, switches))
    }

    /// Waits until that thread sleeps and has no context switch for 20 ms.
    fn wait_for_sleep(&self) {
        let give_up = Instant::now() + Duration::from_secs(20);
        while Instant::now() < give_up {
            let before = self.sleeper();
            std::thread::sleep(Duration::from_millis(20));
            if before.as_ref().is_some_and(|(is_asleep, _)| *is_asleep) && before == self.sleeper() {
                return;
            }
        }
        panic!("the thread that waits for a block never sleeps: {:?}", self.sleeper());
    }
}

#[cfg(target_os = "linux")]
impl<M: DeviceMemoryResource> Holder for SleepProbe<M> {
    forward_holder!(self.inner);
}

#[cfg(target_os = "linux")]
impl<M: DeviceMemoryResource> DeviceMemoryResource for SleepProbe<M> {
    forward_memory_resource!(self.inner; granted_size, deallocate, tracks_use);
    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> bursar_core::Result<DeviceBlock> {
        let thread = std::fs::read_link("/proc/thread-self").expect("Linux says");
        let mut early = self.early.lock().expect("no panic");
        match bytes {
            Self::EARLY => *early = Some(thread),
            // A watched pass runs on one thread, which must not wait for itself.
            Self::LATE if early.as_ref() != Some(&thread) => {
                drop(early);
                self.wait_for_sleep();
                *self.early.lock().expect("no panic") = None;
            }
            _ => {}
        }
        self.inner.allocate(bytes, align, stream, tag)
    }
}

/// A thread that waits for a block sleeps and leaves the CPU to others: beside a busy program, a thread that only yields would
/// be scheduled again and again, each time after all others had their share.
#[cfg(target_os = "linux")]
#[test]
fn a_thread_that_waits_for_a_block_sleeps() {
    let trace = trace(&[
        (2, "allocate", 0x1000, 100, 2),
        (1, "allocate", 0x2000, 200, 1),
        (2, "free", 0x2000, 200, 2),
        (2, "free", 0x1000, 100, 2),
    ]);
    let driver = CountingDriver::new(Sim::immediate());
    let context = DeviceContext::open(driver.clone(), DeviceId(0)).expect("a device");
    let inner = Stack::new().over(leaf::Async).build(&context).expect("a stack");
    let memory = SleepProbe { inner, early: Mutex::default() };
    let cost = Replay::new(&trace, &context).expect("streams").run(&memory, &driver).expect("a replay");
    assert_eq!((cost.operations, cost.refused, memory.bytes_outstanding()), (4, 0, Bytes::ZERO));
}
