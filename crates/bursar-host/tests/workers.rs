//! N1, N2, N4, N5: workers, their CPUs, the memory they create, and their end.

mod rig;

use bursar_core::{Bytes, DeviceContext, DeviceId, DriverError, NumaNode, Status};
use bursar_host::{Errno, HostError, IndexSet, NumaWorkerPool, PinnedKind, PinnedPool, StepOutcome};
use bursar_sim::Sim;
use rig::{Call, Latch, Rig, Tree};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Two nodes of two CPUs each; the simulated devices report the second.
fn on_two_nodes() -> Rig {
    let tree = Tree::with_cpus("0-3").node(0, "0-1", 64, "10").node(1, "2-3", 64, "21 10");
    let tree = tree.write("sys/devices/system/node/node0/distance", "10 21");
    Rig::on(tree.topology(), Sim::builder().seed(1).numa_node(1))
}

/// A waker that sends a message.
struct MessageWaker(Mutex<mpsc::Sender<()>>);

impl Wake for MessageWaker {
    fn wake(self: Arc<Self>) {
        // The receiver may be gone.
        let _ = self.0.lock().unwrap().send(());
    }
}

/// Runs a future with nothing but its waker.
fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    let (tell, told) = mpsc::channel();
    let waker = Waker::from(Arc::new(MessageWaker(Mutex::new(tell))));
    loop {
        match Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return result,
            Poll::Pending => told.recv_timeout(Duration::from_secs(60)).expect("to be woken"),
        }
    }
}

#[test]
fn n1_a_request_goes_to_the_worker_of_its_gpus_node() {
    let rig = on_two_nodes();
    *rig.system.pages_on.lock().unwrap() = Some(1);
    assert!(rig.system.calls.lock().unwrap().is_empty(), "no worker is started before it is needed");
    let buffer = rig.workers.pin(&rig.context, 1 << 20).wait().expect("room");
    let placement = buffer.placement();
    assert_eq!((placement.node, placement.memory_node), (NumaNode::new(1), NumaNode::new(1)));
    assert_eq!(placement.worker_pinned, StepOutcome::Done);
    assert_eq!(rig.system.ran_on.lock().unwrap()[..], ["2-3".parse::<IndexSet>().unwrap()]);
    assert_eq!(rig.system.bound_to.lock().unwrap()[..], [1]);
    assert_eq!(rig.system.threads_of(Call::Reserve), ["numa-worker-1"]);
    drop(rig.workers.pin(&rig.context, 1 << 20).wait().expect("room"));
    assert_eq!(rig.system.threads_of(Call::RunOn).len(), 1, "it is pinned once");
    let other = rig.charged().node(NumaNode::new(0));
    drop(rig.workers.pin_with(&rig.context, 4096, &other).wait().expect("room"));
    assert_eq!(rig.system.threads_of(Call::Reserve).last().map(String::as_str), Some("numa-worker-0"));
}

#[test]
fn n1_the_pci_address_decides_before_the_driver() {
    // Simulated devices have PCI domain 5e and report node 1; the machine reports node 0.
    let tree = Tree::with_cpus("0-3").node(0, "0-1", 64, "10").node(1, "2-3", 64, "21 10");
    let tree = tree.write("sys/devices/system/node/node0/distance", "10 21").gpu("005e:00:00.0", 0);
    let rig = Rig::on(tree.topology(), Sim::builder().seed(1).numa_node(1));
    assert_eq!(rig.workers.node_of(&rig.context), NumaNode::new(0));
    drop(rig.workers.pin(&rig.context, 4096).wait().expect("room"));
    assert_eq!(rig.system.threads_of(Call::Reserve), ["numa-worker-0"]);
}

#[test]
fn n1_an_unknown_node_has_a_worker_that_is_not_pinned_and_says_so() {
    let rig = Rig::new();
    let buffer = rig.workers.pin(&rig.context, 4096).wait().expect("room");
    let placement = buffer.placement();
    assert_eq!(placement.node, NumaNode::UNKNOWN);
    assert_eq!((placement.worker_pinned, placement.bound), (StepOutcome::NotAsked, StepOutcome::NotAsked));
    assert!(placement.to_string().starts_with("node unknown"), "{placement}");
    assert_eq!(rig.system.threads_of(Call::Reserve), ["numa-worker-any"]);
    assert!(rig.system.threads_of(Call::RunOn).is_empty());
}

#[test]
fn n1_a_node_that_cannot_be_pinned_to_goes_on_and_says_so() {
    let rig = on_two_nodes();
    rig.system.refuse(Call::RunOn, Errno(libc::EPERM));
    let buffer = rig.workers.pin(&rig.context, 4096).wait().expect("room");
    assert_eq!(buffer.placement().worker_pinned, StepOutcome::Refused(Errno(libc::EPERM)));
    assert!(buffer.placement().to_string().contains("pinning the worker: refused"), "{}", buffer.placement());

    let lying = on_two_nodes();
    *lying.system.runs_on.lock().unwrap() = Some("0".parse().unwrap());
    let buffer = lying.workers.pin(&lying.context, 4096).wait().expect("room");
    assert!(buffer.placement().worker_pinned.has_failed(), "the kernel is asked whether it did as it was told");

    let nowhere = Rig::on(Tree::with_cpus("0-3").topology(), Sim::builder().seed(1).numa_node(7));
    let buffer = nowhere.workers.pin(&nowhere.context, 4096).wait().expect("room");
    let placement = buffer.placement();
    assert_eq!((placement.worker_pinned, placement.bound), (StepOutcome::Absent, StepOutcome::Absent));
}

#[test]
fn n4_pages_are_asked_for_by_policy_and_verified_by_asking_the_kernel() {
    let rig = on_two_nodes();
    *rig.system.pages_on.lock().unwrap() = Some(0);
    let buffer = rig.workers.pin(&rig.context, 10 << 12).wait().expect("room");
    let placement = buffer.placement();
    assert_eq!((placement.bound, placement.verified), (StepOutcome::Done, StepOutcome::Done));
    assert_eq!((placement.pages_asked, placement.pages_on_node), (10, 0), "where they are, not where the thread ran");
    assert!(!placement.is_verified());
    *rig.system.pages_on.lock().unwrap() = Some(1);
    let buffer = rig.workers.pin(&rig.context, 10 << 12).wait().expect("room");
    assert!(buffer.placement().is_verified(), "{}", buffer.placement());
}

#[test]
fn n4_a_large_buffer_is_touched_in_parallel_on_the_workers_cpus() {
    let rig = on_two_nodes();
    let buffer = rig.workers.pin(&rig.context, 32 << 20).wait().expect("room");
    assert_eq!(buffer.placement().threads, 2, "as many as the node has CPUs");
    let mut touched = rig.system.threads_of(Call::Populate);
    touched.sort();
    assert_eq!(touched.len(), 8, "in parts, so that it can be given up between them");
    assert!(touched.iter().all(|thread| thread == "numa-worker-1" || thread.starts_with("numa-touch-")));
    let small = rig.workers.pin(&rig.context, 4 << 20).wait().expect("room");
    assert_eq!(small.placement().threads, 1, "no thread is started for little");
}

#[test]
fn n2_a_buffer_is_freed_in_whichever_thread_drops_it() {
    for kind in [PinnedKind::Registered, PinnedKind::DriverAllocated, PinnedKind::WriteCombined] {
        let rig = Rig::new();
        let mut buffer = rig.workers.pin_with(&rig.context, 5000, &rig.charged().kind(kind)).wait().expect("room");
        assert_eq!((buffer.len(), rig.pinned(), rig.account.charged()), (5000, 8192, 8192), "{kind:?}");
        buffer.fill(3);
        let workers = rig.workers.clone();
        std::thread::spawn(move || {
            assert!(buffer.iter().all(|byte| *byte == 3));
            drop(buffer);
        })
        .join()
        .expect("no panic");
        drop(workers);
        rig.assert_nothing_is_held();
    }
}

#[test]
fn n2_a_buffer_outlives_the_workers_that_made_it() {
    let rig = Rig::new();
    let buffer = rig.workers.pin_with(&rig.context, 4096, &rig.charged()).wait().expect("room");
    let Rig { sim, driver: _driver, system, account, context, workers } = rig;
    drop(workers);
    assert_eq!(buffer[..4], [0; 4]);
    drop(buffer);
    assert_eq!((system.mapped(), account.charged()), (0, 0));
    drop(context);
    assert!(sim.leaks().is_empty(), "{}", sim.leaks());
}

#[test]
fn n2_what_a_driver_does_not_take_back_stays_counted_and_is_tried_again() {
    let rig = Rig::new();
    let buffer = rig.workers.pin_with(&rig.context, 4096, &rig.charged()).wait().expect("room");
    let refusal = DriverError::new("host_unregister", DeviceId(0), Status::Unavailable);
    rig.driver.hook(move |call, is_over| (call == "host_unregister" && !is_over).then_some(refusal));
    drop(buffer);
    assert_eq!((rig.system.mapped(), rig.account.charged()), (4096, 4096), "mapped while the driver has it");
    let next = rig.workers.pin_with(&rig.context, 4096, &rig.charged()).wait();
    assert_eq!(next.unwrap_err(), HostError::Device(refusal.into()), "the device's next call says so");
    rig.driver.unhook();
    assert_eq!(rig.workers.retry_stranded(), Bytes::ZERO);
    rig.assert_nothing_is_held();
}

#[test]
fn n5_a_request_can_be_awaited_with_nothing_but_a_waker() {
    let rig = Rig::new();
    let buffer = block_on(rig.workers.pin_with(&rig.context, 4096, &rig.charged())).expect("room");
    assert_eq!(buffer.len(), 4096);
    assert_eq!(block_on(rig.workers.pin(&rig.context, 0)).unwrap_err(), HostError::ZeroBytes);
    drop(buffer);
    rig.assert_nothing_is_held();
}

/// A waker that sends how many have the context at that moment.
struct HoldersWaker {
    context: Arc<DeviceContext>,
    tell: Mutex<mpsc::Sender<usize>>,
}

impl Wake for HoldersWaker {
    fn wake(self: Arc<Self>) {
        // The receiver may be gone.
        let _ = self.tell.lock().unwrap().send(Arc::strong_count(&self.context));
    }
}

/// Who has the result may be the last to use the device, and sees it closed when the buffer is dropped.
#[test]
fn n2_a_worker_holds_nothing_of_a_request_that_is_answered() {
    for outcome in ["met", "refused", "panicked", "closed"] {
        let rig = Rig::new();
        let (gate, first) = busy(&rig);
        let (tell, told) = mpsc::channel();
        let waker = Waker::from(Arc::new(HoldersWaker { context: rig.context.clone(), tell: Mutex::new(tell) }));
        drop(first);
        let before = Arc::strong_count(&rig.context) - 1;
        let mut request = rig.workers.pin_with(&rig.context, 4096, &rig.charged());
        assert!(Pin::new(&mut request).poll(&mut Context::from_waker(&waker)).is_pending());
        rig.driver.hook(move |call, is_over| {
            assert!(!(call == "host_register" && outcome == "panicked"), "the page burned");
            let refusal = DriverError::new("host_register", DeviceId(0), Status::OutOfMemory);
            (call == "host_register" && !is_over && outcome == "refused").then_some(refusal)
        });
        let closing = if outcome == "closed" { Some(std::thread::spawn(move || drop(rig.workers))) } else { None };
        // Workers that close refuse what waits while they are busy.
        let held = closing.is_some().then(|| told.recv().expect("to be woken"));
        gate.0.open();
        let held = held.unwrap_or_else(|| told.recv().expect("to be woken"));
        closing.into_iter().for_each(|closing| closing.join().expect("no panic"));
        let result = block_on(request);
        assert_eq!(result.is_ok(), outcome == "met", "{outcome}: {result:?}");
        let others = usize::from(matches!(outcome, "met" | "closed"));
        assert_eq!(
            held,
            before + others,
            "{outcome}: none but the memory that was made, or the request that is in hand"
        );
    }
}

#[test]
fn n2_what_is_given_up_is_released_once_the_workers_are_flushed() {
    let rig = Rig::new();
    let before = Arc::strong_count(&rig.context);
    for round in 0..100 {
        rig.system.unhook();
        let (gate, first) = busy(&rig);
        let pool = PinnedPool::new(&rig.workers, &rig.context, rig.charged());
        let priming = pool.prime(1 << 20, 4);
        drop((first, rig.workers.pin(&rig.context, 4096), priming));
        gate.0.open();
        if round % 2 == 0 {
            drop(pool.get(1 << 20).expect("room"));
        }
        drop(pool);
        rig.workers.flush();
        assert_eq!(Arc::strong_count(&rig.context), before, "round {round}");
        rig.assert_nothing_is_held();
    }
}

/// Holds the worker in its first request until the returned gate is opened.
fn busy(rig: &Rig) -> (Latch, bursar_host::PinRequest) {
    let gate = Latch::default();
    let (wait, (enter, entered)) = (gate.0.clone(), mpsc::channel());
    rig.system.hook(move |call, is_over| {
        if call == Call::Reserve && !is_over && !wait.is_open() {
            enter.send(()).expect("the test listens");
            wait.wait();
        }
        None
    });
    let first = rig.workers.pin_with(&rig.context, 4096, &rig.charged());
    entered.recv().expect("the worker is busy");
    (gate, first)
}

#[test]
fn n5_a_deadline_includes_the_queue_and_wakes_who_waits() {
    let rig = Rig::new();
    let (gate, first) = busy(&rig);
    let soon = rig.charged().patience(Duration::from_millis(20));
    let waited = rig.workers.pin_with(&rig.context, 8192, &soon).wait();
    let expected = HostError::Deadline { requested: Bytes(8192), patience: Duration::from_millis(20), at: None };
    assert_eq!(waited.unwrap_err(), expected, "while the worker is busy with another");
    let polled = block_on(rig.workers.pin_with(&rig.context, 8192, &soon));
    assert_eq!(polled.unwrap_err(), expected);
    let unasked = rig.workers.pin_with(&rig.context, 8192, &rig.charged().patience(Duration::ZERO));
    gate.0.open();
    drop(first.wait().expect("room"));
    drop(rig.workers.pin(&rig.context, 4096).wait().expect("room"));
    assert_eq!(rig.system.threads_of(Call::Reserve).len(), 2, "what came too late was not started, whoever asks");
    assert!(matches!(unasked.wait(), Err(HostError::Deadline { .. })));
    rig.assert_nothing_is_held();
}

#[test]
fn n5_a_deadline_that_passes_in_the_midst_gives_everything_back() {
    let rig = Rig::new();
    let gate = Latch::default();
    let wait = gate.0.clone();
    rig.system.hook(move |call, _| {
        if call == Call::AdviseHuge {
            wait.wait();
        }
        None
    });
    let soon = rig.charged().patience(Duration::from_millis(20));
    let late = rig.workers.pin_with(&rig.context, 4096, &soon).wait();
    assert!(matches!(late, Err(HostError::Deadline { .. })));
    gate.0.open();
    drop(rig.workers.pin(&rig.context, 4096).wait().expect("room"));
    assert_eq!(rig.system.threads_of(Call::Populate).len(), 1, "the late one went no further");
    rig.assert_nothing_is_held();
}

#[test]
fn n5_a_worker_that_panics_is_replaced_and_its_request_fails_with_the_cause() {
    let rig = Rig::new();
    let threads: Arc<Mutex<Vec<_>>> = Arc::default();
    let (seen, left) = (threads.clone(), AtomicU32::new(2));
    rig.system.hook(move |call, is_over| {
        if call == Call::Populate && is_over {
            seen.lock().unwrap().push(std::thread::current().id());
            let panics = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            assert!(!panics, "the page burned");
        }
        None
    });
    let requests: Vec<_> = (0..4).map(|_| rig.workers.pin_with(&rig.context, 4096, &rig.charged())).collect();
    let results: Vec<_> = requests.into_iter().map(|request| request.wait()).collect();
    for failed in &results[..2] {
        let Err(HostError::WorkerPanicked { node: NumaNode::UNKNOWN, message }) = failed else { panic!("{failed:?}") };
        assert_eq!(message, "the page burned");
    }
    assert!(results[2..].iter().all(Result::is_ok), "those who waited behind it are met: {results:?}");
    let threads = threads.lock().unwrap();
    assert!(threads[0] != threads[1] && threads[1] != threads[2] && threads[2] == threads[3], "{threads:?}");
    assert!(rig.system.threads_of(Call::Populate).iter().all(|thread| thread == "numa-worker-any"));
    drop(results);
    rig.assert_nothing_is_held();
}

/// A waker that panics.
struct PanickingWaker;

impl Wake for PanickingWaker {
    fn wake(self: Arc<Self>) {
        panic!("the task fell");
    }
}

#[test]
fn n5_a_task_that_panics_when_it_is_woken_costs_no_other_its_worker() {
    let rig = Rig::new();
    let (gate, first) = busy(&rig);
    let mut request = rig.workers.pin_with(&rig.context, 4096, &rig.charged());
    let waker = Waker::from(Arc::new(PanickingWaker));
    assert!(Pin::new(&mut request).poll(&mut Context::from_waker(&waker)).is_pending());
    gate.0.open();
    let next = rig.workers.pin_with(&rig.context, 4096, &rig.charged());
    drop((first.wait().expect("room"), next.wait().expect("room"), block_on(request).expect("room")));
    rig.workers.flush();
    rig.assert_nothing_is_held();
}

#[test]
fn n5_a_helper_that_panics_fails_its_request_alone() {
    let rig = on_two_nodes();
    let latch = Latch::default();
    let fallen = latch.0.clone();
    rig.system.hook(move |call, _| {
        if call == Call::Populate && std::thread::current().name().is_some_and(|name| name.starts_with("numa-touch")) {
            fallen.open();
            panic!("the helper fell");
        }
        if call == Call::Populate {
            // The worker leaves a part for the helper.
            fallen.wait();
        }
        None
    });
    let failed = rig.workers.pin_with(&rig.context, 32 << 20, &rig.charged()).wait();
    assert!(matches!(failed, Err(HostError::WorkerPanicked { .. })), "{failed:?}");
    rig.system.unhook();
    drop(rig.workers.pin_with(&rig.context, 32 << 20, &rig.charged()).wait().expect("room"));
    rig.assert_nothing_is_held();
}

#[test]
fn n5_dropping_the_pool_closes_and_joins_every_worker() {
    let rig = Rig::new();
    let (gate, first) = busy(&rig);
    let waiting = rig.workers.pin_with(&rig.context, 4096, &rig.charged());
    let Rig { workers, system, account, .. } = rig;
    let weak = Arc::downgrade(&workers);
    let closing = std::thread::spawn(move || drop(workers));
    assert_eq!(waiting.wait().unwrap_err(), HostError::Closed, "refused while the worker is busy");
    assert!(!closing.is_finished(), "the worker is waited for");
    gate.0.open();
    closing.join().expect("no panic");
    assert_eq!(first.wait().unwrap_err(), HostError::Closed, "the one in hand went no further");
    assert!(weak.upgrade().is_none());
    assert_eq!((system.mapped(), account.charged()), (0, 0));
    assert_eq!(Arc::strong_count(&system), 1, "no thread is left that has it");
}

#[test]
fn n1_one_pool_a_process() {
    let first = NumaWorkerPool::global().expect("the kernel makes sense");
    let second = std::thread::spawn(NumaWorkerPool::global).join().expect("no panic").expect("the same");
    assert!(Arc::ptr_eq(first, second));
}

#[test]
fn n2_threads_that_ask_at_once_get_memory_of_their_own() {
    let rig = Rig::new();
    std::thread::scope(|scope| {
        for mark in 1..=4u8 {
            let rig = &rig;
            scope.spawn(move || {
                let options = rig.charged();
                for _ in 0..50 {
                    let mut buffer = rig.workers.pin_with(&rig.context, 5000, &options).wait().expect("room");
                    buffer.fill(mark);
                    std::thread::yield_now();
                    assert!(buffer.iter().all(|byte| *byte == mark));
                }
            });
        }
    });
    rig.assert_nothing_is_held();
}
