//! The schedule: nothing runs before the program queries or waits, the order is any that streams allow, and a seed repeats
//! it.
#![allow(unsafe_code)]

mod rig;

use bursar_core::{DeviceId, Driver, Gate, HostFunction, Progress, RawEvent, RawStream, Status};
use bursar_sim::{Executor, HazardKind, Launch, Sim};
use rig::{Rig, SEEDS};
use std::collections::BTreeSet;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

/// The order in which host functions ran.
#[derive(Clone, Default)]
struct Order(Arc<Mutex<Vec<u32>>>);

impl Order {
    fn mark(&self, rig: &Rig, stream: RawStream, number: u32) {
        let order = self.0.clone();
        rig.host(stream, move || order.lock().unwrap().push(number));
    }

    fn seen(&self) -> Vec<u32> {
        self.0.lock().unwrap().clone()
    }

    fn position(&self, number: u32) -> usize {
        self.seen().iter().position(|seen| *seen == number).expect("it ran")
    }
}

/// Runs a program of many calls over several streams. Returns what can be observed of it.
fn churn(seed: u64) -> (Vec<String>, Vec<Progress>, Vec<u8>) {
    let rig = Rig::seeded(seed);
    let streams: Vec<RawStream> = (0..3).map(|_| rig.stream()).collect();
    let (event, shared) = (rig.event(), rig.alloc(4096));
    let mut answers = Vec::new();
    for round in 0..40u64 {
        let stream = streams[(round * 7 % 3) as usize];
        let ptr = rig.alloc_on(stream, 256 * (1 + round % 5));
        rig.fill(stream, ptr, round as u8, 256);
        rig.record(event, stream);
        rig.wait(streams[0], event);
        rig.copy(streams[0], shared.offset(round * 16), ptr, 16);
        answers.push(rig.query(stream));
        answers.push(rig.query_event(event));
        rig.order(streams[0], stream);
        rig.free_on(stream, ptr);
    }
    rig.sync(streams[0]);
    rig.sim.assert_clean();
    let calls = rig.sim.calls().iter().map(ToString::to_string).collect();
    (calls, answers, rig.peek(shared, 4096))
}

#[test]
fn a_seed_replays_exactly() {
    for seed in SEEDS {
        assert!(churn(seed) == churn(seed), "seed {seed}");
    }
}

#[test]
fn seeds_differ_in_what_runs_when_and_agree_on_what_is_ordered() {
    let runs: Vec<_> = SEEDS.map(churn).collect();
    let logs: BTreeSet<_> = runs.iter().map(|(calls, ..)| calls).collect();
    assert!(logs.len() > runs.len() / 2, "only {} different schedules", logs.len());
    // Fresh memory differs from seed to seed, written bytes do not.
    let written = 40 * 16;
    assert!(runs.iter().all(|(.., bytes)| bytes[..written] == runs[0].2[..written]));
}

#[test]
fn nothing_runs_before_someone_asks() {
    let rig = Rig::seeded(0);
    let (a, order) = (rig.stream(), Order::default());
    order.mark(&rig, a, 1);
    rig.alloc(4096);
    rig.event();
    assert!(order.seen().is_empty());
    assert!(rig.sim.step());
    assert_eq!(order.seen(), [1]);
    assert!(!rig.sim.step(), "there is nothing left to run");
}

#[test]
fn independent_streams_run_in_every_order() {
    let orders: BTreeSet<Vec<u32>> = SEEDS
        .map(|seed| {
            let (rig, order) = (Rig::seeded(seed), Order::default());
            for number in 0..3 {
                order.mark(&rig, rig.stream(), number);
            }
            rig.sim.settle();
            order.seen()
        })
        .collect();
    assert_eq!(orders.len(), 6, "{orders:?}");
}

#[test]
fn one_stream_runs_in_order_whatever_happens_in_it() {
    for seed in SEEDS {
        let (rig, order) = (Rig::seeded(seed), Order::default());
        let a = rig.stream();
        for number in 0..10 {
            order.mark(&rig, a, number);
            if number == 4 {
                rig.host(a, || std::panic::resume_unwind(Box::new("caught and dropped")));
            }
        }
        rig.sync(a);
        assert_eq!(order.seen(), (0..10).collect::<Vec<_>>());
    }
}

#[test]
fn synchronising_runs_what_it_must_and_others_by_chance() {
    let mut others = BTreeSet::new();
    for seed in SEEDS {
        let (rig, order) = (Rig::seeded(seed), Order::default());
        let (a, b) = (rig.stream(), rig.stream());
        order.mark(&rig, a, 1);
        order.mark(&rig, b, 2);
        rig.sync(a);
        assert!(order.seen().contains(&1));
        others.insert(order.seen().contains(&2));
    }
    assert_eq!(others.len(), 2, "stream b sometimes runs meanwhile and sometimes does not");
}

#[test]
fn queries_are_sometimes_early_and_always_right() {
    let mut answers = BTreeSet::new();
    for seed in SEEDS {
        let rig = Rig::seeded(seed);
        let (a, ptr) = (rig.stream(), rig.alloc(4096));
        rig.fill(a, ptr, 1, 8);
        let complete = rig.query(a).is_complete();
        assert_eq!(rig.peek(ptr, 1) == [1], complete);
        answers.insert(complete);
        while !rig.query(a).is_complete() {}
        assert_eq!(rig.peek(ptr, 1), [1]);
    }
    assert_eq!(answers.len(), 2);
}

#[test]
fn an_event_orders_streams_and_one_without_a_record_does_not() {
    let mut orders = BTreeSet::new();
    for seed in SEEDS {
        let (rig, order) = (Rig::seeded(seed), Order::default());
        let (a, b, c) = (rig.stream(), rig.stream(), rig.stream());
        let (recorded, empty) = (rig.event(), rig.event());
        order.mark(&rig, a, 1);
        rig.record(recorded, a);
        rig.wait(b, recorded);
        rig.wait(c, empty);
        // A thread that already waits goes on waiting.
        rig.destroy_event(recorded);
        rig.destroy(a);
        order.mark(&rig, b, 2);
        order.mark(&rig, c, 3);
        rig.sync(b);
        rig.sync(c);
        assert!(order.position(1) < order.position(2));
        orders.insert(order.position(3));
        assert_eq!(rig.query_event(empty), Progress::Complete);
    }
    assert_eq!(orders.len(), 3, "stream c ran at any time");
}

#[test]
fn synchronising_with_an_event_runs_its_past() {
    for seed in SEEDS {
        let (rig, order) = (Rig::seeded(seed), Order::default());
        let (a, event) = (rig.stream(), rig.event());
        order.mark(&rig, a, 1);
        rig.record(event, a);
        order.mark(&rig, a, 2);
        rig.sync_event(event);
        assert!(order.seen().starts_with(&[1]));
        assert!(rig.query_event(event).is_complete());
    }
}

#[test]
fn the_default_stream_takes_turns_with_blocking_streams_only() {
    let mut positions = BTreeSet::new();
    for seed in SEEDS {
        let (rig, order) = (Rig::seeded(seed), Order::default());
        let blocking = |rig: &Rig| rig.sim.create_blocking_stream(rig.device).unwrap();
        let (a, b, free) = (blocking(&rig), blocking(&rig), rig.stream());
        order.mark(&rig, free, 9);
        order.mark(&rig, a, 1);
        order.mark(&rig, b, 2);
        order.mark(&rig, RawStream::LEGACY, 3);
        order.mark(&rig, a, 4);
        order.mark(&rig, b, 5);
        order.mark(&rig, RawStream(0), 6);
        rig.sim.settle();
        let before = |first: u32, second: u32| order.position(first) < order.position(second);
        assert!(before(1, 3) && before(2, 3) && before(3, 4) && before(3, 5) && before(4, 6) && before(5, 6));
        positions.insert(order.position(9));
    }
    assert!(positions.len() > 4, "the stream that does not block ran anywhere: {positions:?}");
}

#[test]
fn a_gate_holds_its_stream_and_no_other() {
    for rig in [Rig::seeded(1), Rig::of(Sim::immediate())] {
        let (a, b, gate, order) = (rig.stream(), rig.stream(), Gate::default(), Order::default());
        let seen = order.0.clone();
        rig.host_function(a, HostFunction::behind(gate.clone(), move || seen.lock().unwrap().push(1)));
        order.mark(&rig, a, 2);
        order.mark(&rig, b, 3);
        rig.sync(b);
        rig.sim.settle();
        assert_eq!(order.seen(), [3]);
        assert_eq!(rig.query(a), Progress::Pending);
        gate.open();
        rig.sync(a);
        assert_eq!(order.seen(), [3, 1, 2]);
    }
}

#[test]
fn whoever_waits_for_a_stream_behind_a_gate_goes_on_when_it_opens() {
    for rig in [Rig::seeded(1), Rig::of(Sim::immediate())] {
        let (a, b, gate, order) = (rig.stream(), rig.stream(), Gate::default(), Order::default());
        rig.host_function(a, HostFunction::behind(gate.clone(), || ()));
        order.mark(&rig, a, 1);
        rig.order(a, b);
        order.mark(&rig, b, 2);
        std::thread::scope(|scope| {
            scope.spawn(|| rig.sync(b));
            gate.open();
        });
        assert_eq!(order.seen(), [1, 2]);
    }
}

#[test]
fn whoever_waits_for_another_threads_host_function_sees_it_done() {
    for rig in [Rig::seeded(1), Rig::of(Sim::immediate())] {
        let a = rig.stream();
        let ((started, begin), (finish, end)) = (channel(), channel::<()>());
        let order = Order::default();
        let seen = order.0.clone();
        std::thread::scope(|scope| {
            let rig = &rig;
            scope.spawn(move || {
                rig.host(a, move || {
                    started.send(()).unwrap();
                    end.recv().unwrap();
                    seen.lock().unwrap().push(1);
                });
                rig.sync(a);
            });
            begin.recv().unwrap();
            assert_eq!(rig.query(a), Progress::Pending, "the lock is free while host code runs");
            let waiter = scope.spawn(|| {
                rig.sync(a);
                order.seen()
            });
            finish.send(()).unwrap();
            assert_eq!(waiter.join().unwrap(), [1]);
        });
    }
}

#[test]
fn many_threads_keep_their_streams_in_order() {
    for seed in 0..8 {
        let rig = Rig::seeded(seed);
        std::thread::scope(|scope| {
            for number in 0..4u8 {
                let rig = &rig;
                scope.spawn(move || {
                    let (stream, ptr) = (rig.stream(), rig.alloc(4096));
                    for round in 0..20 {
                        rig.fill(stream, ptr, number + round, 4096);
                        rig.host(stream, || ());
                        if round % 3 == 0 {
                            rig.query(stream);
                        }
                    }
                    rig.sync(stream);
                    assert_eq!(rig.peek(ptr, 4096), [number + 19; 4096]);
                });
            }
        });
        rig.sim.assert_clean();
    }
}

#[test]
fn kernels_see_and_change_memory_in_stream_order() {
    for seed in SEEDS {
        let rig = Rig::seeded(seed);
        let (a, b, ptr) = (rig.stream(), rig.stream(), rig.alloc(4096));
        rig.fill(a, ptr, 1, 1);
        for stream in [a, b, a, b] {
            rig.order(if stream == a { b } else { a }, stream);
            let double = Launch::new("double").writes(ptr, 1).body(move |memory| {
                let byte = memory.read(ptr, 1)[0];
                memory.write(ptr, &[byte * 2]);
            });
            rig.sim.launch(rig.device, stream, double).unwrap();
        }
        rig.sync(b);
        assert_eq!(rig.peek(ptr, 1), [16]);
        rig.sim.assert_clean();
    }
}

#[test]
fn pageable_memory_is_read_at_once_and_written_before_the_call_returns() {
    for seed in SEEDS {
        let rig = Rig::seeded(seed);
        let (a, ptr) = (rig.stream(), rig.alloc(4096));
        let mut host = [1u8, 2, 3];
        rig.upload(a, ptr, host.as_ptr(), 3);
        host.fill(9);
        let mut back = [0u8; 3];
        rig.download(a, back.as_mut_ptr(), ptr, 3);
        assert_eq!(back, [1, 2, 3]);
        rig.sim.assert_clean();
    }
}

#[test]
fn freeing_and_unregistering_wait_for_the_device() {
    for seed in SEEDS {
        let (rig, order) = (Rig::seeded(seed), Order::default());
        let (a, ptr) = (rig.stream(), rig.alloc(4096));
        order.mark(&rig, a, 1);
        rig.free(ptr);
        assert_eq!(order.seen(), [1]);
        order.mark(&rig, a, 2);
        let mut memory = vec![0; 4096];
        rig.register(&mut memory).unwrap();
        rig.host_unregister(memory.as_mut_ptr());
        assert_eq!(order.seen(), [1, 2]);
    }
}

#[test]
fn a_captured_stream_takes_no_work() {
    for rig in [Rig::seeded(1), Rig::of(Sim::immediate())] {
        let a = rig.stream();
        rig.sim.begin_capture(rig.device, a).unwrap();
        assert!(rig.is_capturing(a));
        // SAFETY: the simulator checks it.
        let refused = unsafe { rig.sim.allocate_async(rig.device, a, 64) }.unwrap_err();
        assert_eq!(refused.status, Status::Capturing);
        rig.sim.end_capture(rig.device, a).unwrap();
        assert!(!rig.is_capturing(a));
        rig.alloc_on(a, 64);
    }
}

#[test]
fn a_lost_device_fails_every_call_and_the_other_goes_on() {
    for rig in [Rig::seeded(1), Rig::of(Sim::immediate())] {
        let (a, order, other) = (rig.stream(), Order::default(), rig.on(1));
        let gate = Gate::default();
        rig.host_function(a, HostFunction::behind(gate.clone(), || ()));
        order.mark(&rig, a, 1);
        let (b, event) = (other.stream(), rig.event());
        rig.record(event, a);
        other.wait(b, event);
        rig.sim.lose_device(rig.device);
        gate.open();
        rig.sim.settle();
        other.sync(b);
        assert!(order.seen().is_empty(), "what had not run never runs");
        let lost = Some(Status::DeviceLost);
        assert_eq!(rig.sim.memory(rig.device).err().map(|error| error.status), lost);
        assert_eq!(rig.sim.allocate(rig.device, 1).err().map(|error| error.status), lost);
        // SAFETY: the simulator checks it.
        let query = unsafe { rig.sim.stream_query(rig.device, a) };
        assert_eq!(query.err().map(|error| error.status), lost);
        assert_eq!(rig.sim.last_error(rig.device).map(|error| error.status), lost);
        assert_eq!(other.sim.last_error(other.device), None);
        other.free(other.alloc(1));
    }
}

#[test]
fn handles_that_are_dead_foreign_or_nobodys_are_refused() {
    let rig = Rig::seeded(1);
    let (dead, foreign) = (rig.stream(), rig.on(1).stream());
    rig.destroy(dead);
    for handle in [dead, foreign, RawStream(999), RawStream::PER_THREAD] {
        // SAFETY: the simulator checks it.
        let refused = unsafe { rig.sim.stream_query(rig.device, handle) }.unwrap_err();
        assert_eq!((refused.call, refused.status), ("stream_query", Status::InvalidHandle));
    }
    // SAFETY: the simulator checks it.
    let refused = unsafe { rig.sim.event_query(rig.device, RawEvent(5)) }.unwrap_err();
    assert_eq!(refused.status, Status::InvalidHandle);
    // SAFETY: the simulator checks it.
    let refused = unsafe { rig.sim.stream_destroy(rig.device, RawStream::LEGACY) }.unwrap_err();
    assert_eq!(refused.status, Status::InvalidHandle);
    let refused = rig.sim.event_create(DeviceId(2)).unwrap_err();
    assert_eq!(refused.status, Status::InvalidDevice);
    assert_eq!(rig.sim.stream_create(rig.device, 1).unwrap_err().status, Status::InvalidValue);
}

#[test]
fn an_immediate_simulator_is_done_when_the_call_returns() {
    let (rig, order) = (Rig::of(Sim::immediate()), Order::default());
    let (a, ptr) = (rig.stream(), rig.alloc(4096));
    order.mark(&rig, a, 1);
    assert_eq!(order.seen(), [1]);
    rig.fill(a, ptr, 7, 4096);
    assert_eq!(rig.peek(ptr, 4096), [7; 4096]);
    let event = rig.event();
    rig.record(event, a);
    assert!(rig.query_event(event).is_complete() && rig.query(a).is_complete());
}

#[test]
fn an_immediate_simulator_keeps_stream_order_behind_a_gate() {
    let rig = Rig::of(Sim::immediate());
    let (a, b, gate, event) = (rig.stream(), rig.stream(), Gate::default(), rig.event());
    let (ptr, other) = (rig.alloc_on(a, 4096), rig.alloc(4096));
    rig.fill(a, ptr, 1, 4096);
    rig.host_function(a, HostFunction::behind(gate.clone(), || ()));
    rig.fill(a, ptr, 2, 4096);
    rig.record(event, a);
    rig.wait(b, event);
    rig.copy(b, other, ptr, 4096);
    rig.free_on(b, ptr);
    let held = rig.used();
    assert_eq!((rig.peek(ptr, 1), rig.query_event(event)), (vec![1], Progress::Pending));
    gate.open();
    rig.sync(b);
    assert_eq!(rig.peek(other, 4096), [2; 4096]);
    assert_eq!(rig.used(), held - 4096);
}

#[test]
fn a_kernel_that_panics_is_reported_and_disturbs_nobody() {
    for seed in SEEDS {
        let rig = Rig::seeded(seed);
        let (a, b, ptr) = (rig.stream(), rig.stream(), rig.alloc(64));
        let mut target = [0; 64];
        rig.fill(a, ptr, 7, 64);
        let kernel = Launch::new("broken").body(|_| std::panic::resume_unwind(Box::new("caught")));
        rig.sim.launch(rig.device, b, kernel).unwrap();
        // Pageable memory: this waits, and meanwhile the other stream may advance.
        rig.download(a, target.as_mut_ptr(), ptr, 64);
        assert_eq!(target, [7; 64]);
        rig.sync(b);
        let hazard = rig.only_hazard();
        assert_eq!(hazard.kind, HazardKind::KernelPanicked);
        assert_eq!((hazard.second.what, hazard.second.executor), ("broken", Executor::Stream(2)));
        assert!(hazard.to_string().contains("broken on stream 2"), "{hazard}");
        rig.fill(b, ptr, 8, 64);
        rig.sync(b);
        assert_eq!(rig.peek(ptr, 1), [8]);
    }
    let rig = Rig::of(Sim::immediate());
    let kernel = Launch::new("broken").body(|_| std::panic::resume_unwind(Box::new("caught")));
    rig.sim.launch(rig.device, RawStream::LEGACY, kernel).unwrap();
}

#[test]
fn whoever_waits_behind_a_gate_notices_that_the_device_is_lost() {
    for sim in [Sim::seeded(1), Sim::immediate()] {
        let rig = Rig::of(sim);
        let (a, gate) = (rig.stream(), Gate::default());
        rig.host_function(a, HostFunction::behind(gate.clone(), || ()));
        let sim = rig.sim.clone();
        let waiter = std::thread::spawn(move || {
            // SAFETY: the stream is live.
            unsafe { sim.stream_synchronize(DeviceId(0), a) }
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        rig.sim.lose_device(rig.device);
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !waiter.is_finished() && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        let noticed = waiter.is_finished();
        gate.open();
        assert!(noticed, "it waits for a gate whose stream is gone");
        assert_eq!(waiter.join().unwrap().map_err(|error| error.status), Err(Status::DeviceLost));
    }
}
