//! Clause G5: each fault happens exactly as requested, and nothing else does.
#![allow(unsafe_code)]

use bursar_core::leaf::{Direct, Leaf};
use bursar_core::{
    AllocTag, Bytes, DeviceContext, DeviceId, DeviceMemoryResource, DevicePtr, Driver, DriverError, DriverResult,
    Error, HostFlags, HostFunction, Note, Pattern, PeerPtr, Progress, RawEvent, RawGraph, RawGraphExec, RawPages,
    RawStream, SimulatedKernel, Status,
};
use bursar_sim::{Call, Faults, Sim};
use std::cell::{Cell, UnsafeCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const GPU0: DeviceId = DeviceId(0);
const GPU1: DeviceId = DeviceId(1);
const BYTES: u64 = 512;

/// Returns two open devices without calls so far.
fn faults() -> Arc<Faults> {
    let faults = Faults::new(Sim::seeded(7));
    for device in [GPU0, GPU1] {
        faults.open(device).expect("a simulated device opens");
    }
    faults.reset_counts();
    faults
}

fn fallible() -> impl Iterator<Item = Call> {
    Call::ALL.iter().copied().filter(|call| call.can_fail())
}

fn error(call: Call, device: DeviceId, status: Status) -> DriverError {
    DriverError::new(call.name(), device, status)
}

/// Returns whether each of the next `count` calls failed. Events are used because a test can create any number of them.
fn failures(faults: &Faults, count: usize) -> Vec<bool> {
    (0..count).map(|_| faults.event_create(GPU0).is_err()).collect()
}

/// One object of each kind on the first device, and one more of each kind that a call destroys.
struct Rig {
    page: u64,
    streams: [RawStream; 2],
    events: [RawEvent; 2],
    memory: [DevicePtr; 4],
    async_memory: DevicePtr,
    ranges: [DevicePtr; 2],
    pages: [RawPages; 2],
    host: [*mut u8; 2],
    registered: Box<UnsafeCell<[u8; BYTES as usize]>>,
    graph: Cell<Option<RawGraph>>,
    exec: Cell<Option<RawGraphExec>>,
}

impl Rig {
    fn new(driver: &dyn Driver) -> DriverResult<Self> {
        let facts = driver.facts(GPU0)?;
        let page = facts.capabilities.page_granularity.expect("the simulator maps pages").get();
        let stream = || driver.stream_create(GPU0, 0);
        let event = || driver.event_create(GPU0);
        let memory = || driver.allocate(GPU0, BYTES);
        let range = || driver.address_reserve(GPU0, page, 0);
        let pages = || driver.pages_create(GPU0, page);
        let host = || driver.host_allocate(GPU0, BYTES as usize, HostFlags::default());
        let streams = [stream()?, stream()?];
        Ok(Self {
            page,
            streams,
            events: [event()?, event()?],
            memory: [memory()?, memory()?, memory()?, memory()?],
            // SAFETY: the stream is live.
            async_memory: unsafe { driver.allocate_async(GPU0, streams[0], BYTES) }?,
            ranges: [range()?, range()?],
            pages: [pages()?, pages()?],
            host: [host()?, host()?],
            registered: Box::new(UnsafeCell::new([0; BYTES as usize])),
            graph: Cell::new(None),
            exec: Cell::new(None),
        })
    }

    /// Returns the graph that was captured; a handle of none where that failed.
    fn graph(&self) -> RawGraph {
        self.graph.get().unwrap_or(RawGraph(0))
    }

    fn exec(&self) -> RawGraphExec {
        self.exec.get().unwrap_or(RawGraphExec(0))
    }

    /// Makes one call of a kind. In the order of [`Call::ALL`] each can be made once.
    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one promise covers every call")]
    fn invoke(&self, driver: &dyn Driver, call: Call) -> DriverResult<()> {
        let [stream, doomed_stream] = self.streams;
        let [event, doomed_event] = self.events;
        let [memory, other_memory, noted_memory, doomed_memory] = self.memory;
        let [range, doomed_range] = self.ranges;
        let [pages, doomed_pages] = self.pages;
        let [host, doomed_host] = self.host;
        let registered = self.registered.get().cast::<u8>();
        let (page, flags) = (self.page, HostFlags::default());
        let note = Note::Granted { ptr: noted_memory, bytes: BYTES, stream, tag: AllocTag::UNTAGGED };
        // SAFETY: the rig's handles are live, the doomed ones until the one call that destroys them; all work is on one
        // stream, and the host memory outlives it.
        unsafe {
            match call {
                Call::Describe => drop(driver.describe()),
                Call::DeviceCount => drop(driver.device_count()),
                Call::Facts => drop(driver.facts(GPU0)?),
                Call::Memory => drop(driver.memory(GPU0)?),
                Call::Links => drop(driver.links(GPU0)?),
                Call::Open => drop(driver.open(GPU0)?),
                Call::Close => driver.close(GPU0)?,
                Call::LastError => assert_eq!(driver.last_error(GPU0), None),
                Call::Listens => drop(driver.listens()),
                Call::Note => driver.note(GPU0, note),
                Call::Simulates => assert!(driver.simulates()),
                Call::Allocate => drop(driver.allocate(GPU0, BYTES)?),
                Call::Free => driver.free(GPU0, doomed_memory)?,
                Call::AllocateAsync => drop(driver.allocate_async(GPU0, stream, BYTES)?),
                Call::FreeAsync => driver.free_async(GPU0, stream, self.async_memory)?,
                Call::StreamCreate => drop(driver.stream_create(GPU0, 0)?),
                Call::StreamDestroy => driver.stream_destroy(GPU0, doomed_stream)?,
                Call::StreamQuery => drop(driver.stream_query(GPU0, stream)?),
                Call::StreamSynchronize => driver.stream_synchronize(GPU0, stream)?,
                Call::StreamWait => driver.stream_wait(GPU0, stream, event)?,
                Call::StreamIsCapturing => assert!(!driver.stream_is_capturing(GPU0, stream)?),
                Call::CaptureBegin => driver.capture_begin(GPU0, stream)?,
                Call::CaptureEnd => self.graph.set(Some(driver.capture_end(GPU0, stream)?)),
                Call::GraphInstantiate => self.exec.set(Some(driver.graph_instantiate(GPU0, self.graph())?)),
                Call::GraphDestroy => driver.graph_destroy(GPU0, self.graph())?,
                Call::GraphLaunch => driver.graph_launch(GPU0, self.exec(), stream)?,
                Call::GraphExecDestroy => driver.graph_exec_destroy(GPU0, self.exec())?,
                Call::EventCreate => drop(driver.event_create(GPU0)?),
                Call::EventDestroy => driver.event_destroy(GPU0, doomed_event)?,
                Call::EventRecord => driver.event_record(GPU0, event, stream)?,
                Call::EventQuery => drop(driver.event_query(GPU0, event)?),
                Call::EventSynchronize => driver.event_synchronize(GPU0, event)?,
                Call::AddressReserve => drop(driver.address_reserve(GPU0, page, 0)?),
                Call::AddressRelease => driver.address_release(GPU0, doomed_range, page)?,
                Call::PagesCreate => drop(driver.pages_create(GPU0, page)?),
                Call::PagesRelease => driver.pages_release(GPU0, doomed_pages)?,
                Call::PagesMap => driver.pages_map(GPU0, range, page, pages)?,
                Call::PagesAllow => driver.pages_allow(GPU0, range, page)?,
                Call::PagesUnmap => driver.pages_unmap(GPU0, range, page)?,
                Call::HostAllocate => drop(driver.host_allocate(GPU0, BYTES as usize, flags)?),
                Call::HostFree => driver.host_free(GPU0, doomed_host)?,
                Call::HostRegister => driver.host_register(GPU0, registered, BYTES as usize, flags)?,
                Call::HostUnregister => driver.host_unregister(GPU0, registered)?,
                Call::HostDevicePointer => drop(driver.host_device_pointer(GPU0, host)?),
                Call::CopyToDevice => driver.copy_to_device(GPU0, stream, memory, host, BYTES)?,
                Call::CopyToHost => driver.copy_to_host(GPU0, stream, host, memory, BYTES)?,
                Call::CopyOnDevice => driver.copy_on_device(GPU0, stream, other_memory, memory, BYTES)?,
                Call::CopyPeer => {
                    let peer = |ptr| PeerPtr { device: GPU0, ptr };
                    driver.copy_peer(GPU0, stream, peer(other_memory), peer(memory), BYTES)?
                }
                Call::Fill => driver.fill(GPU0, stream, memory, Pattern::U8(7), BYTES)?,
                Call::HostFunction => driver.host_function(GPU0, stream, HostFunction::new(|| ()))?,
                Call::Simulate => driver.simulate(GPU0, stream, SimulatedKernel::new("kernel"))?,
                other => panic!("{other} is new: call it here"),
            }
        }
        Ok(())
    }
}

#[test]
fn g5_every_call_is_forwarded_and_counted_as_its_kind() -> DriverResult<()> {
    let sim = Sim::seeded(7);
    let below = Faults::new(sim.clone());
    let faults = Faults::new(below.clone());
    below.open(GPU0)?;
    let rig = Rig::new(&*below)?;
    below.reset_counts();
    for (made, &call) in Call::ALL.iter().enumerate() {
        rig.invoke(&*faults, call)?;
        for counter in [&faults, &below] {
            let counts = Call::ALL.iter().map(|&call| counter.calls(call));
            assert!(counts.enumerate().all(|(at, count)| count == u64::from(at <= made)), "{call}: {counter:?}");
        }
    }
    assert_eq!(sim.take_hazards(), [], "the calls were forwarded as they were made");
    assert_eq!(faults.total_calls(), fallible().count() as u64);
    faults.reset_counts();
    assert_eq!((faults.total_calls(), faults.calls(Call::Note)), (0, 0));
    Ok(())
}

#[test]
fn g5_a_failed_call_does_not_reach_the_driver_and_says_which_it_was() -> DriverResult<()> {
    let below = faults();
    let rig = Rig::new(&*below)?;
    below.reset_counts();
    for call in fallible() {
        let faults = Faults::new(below.clone());
        faults.fail_always(call, Status::NotSupported);
        assert_eq!(rig.invoke(&*faults, call), Err(error(call, GPU0, Status::NotSupported)));
        assert_eq!(faults.calls(call), 1);
    }
    assert_eq!(below.total_calls(), 0);
    Ok(())
}

#[test]
fn g5_the_nth_call_of_a_kind_fails_once() {
    let faults = faults();
    assert_eq!(failures(&faults, 2), [false, false]);
    faults.fail_nth(Call::EventCreate, 3, Status::InvalidValue);
    assert!(faults.stream_create(GPU0, 0).is_ok());
    assert_eq!(failures(&faults, 6), [false, false, true, false, false, false]);
    faults.fail_next(Call::EventCreate, Status::InvalidValue);
    assert_eq!(failures(&faults, 2), [true, false]);
}

#[test]
fn g5_a_call_fails_always_until_the_driver_is_healed() {
    let faults = faults();
    faults.fail_always(Call::EventCreate, Status::InvalidValue);
    faults.fail_nth(Call::EventCreate, 5, Status::InvalidValue);
    assert_eq!(failures(&faults, 3), [true; 3]);
    faults.heal();
    assert_eq!(failures(&faults, 3), [false; 3]);
}

#[test]
fn g5_every_rule_sees_every_call_and_the_oldest_decides() {
    let faults = faults();
    faults.fail_nth(Call::EventCreate, 2, Status::InvalidValue);
    faults.fail_nth(Call::EventCreate, 2, Status::NotSupported);
    faults.fail_nth(Call::EventCreate, 3, Status::Unavailable);
    let statuses: Vec<_> = (0..4).map(|_| faults.event_create(GPU0).err().map(|error| error.status)).collect();
    let (second, third) = (Some(Status::InvalidValue), Some(Status::Unavailable));
    assert_eq!(statuses, [None, second, third, None]);
}

#[test]
fn g5_a_probability_replays_from_its_seed() {
    let run = |probability, seed| {
        let faults = faults();
        faults.fail_with_probability(Call::ALL, probability, Status::InvalidValue, seed);
        failures(&faults, 1000)
    };
    assert_eq!(run(0.25, 7), run(0.25, 7));
    assert_ne!(run(0.25, 7), run(0.25, 8));
    for seed in 0..8 {
        let failed = run(0.25, seed).into_iter().filter(|failed| *failed).count();
        assert!((180..320).contains(&failed), "{failed} of 1000 with seed {seed}");
    }
    assert_eq!(run(0.0, 7), [false; 1000]);
    assert_eq!(run(1.0, 7), [true; 1000]);
}

#[test]
fn g5_a_probability_is_drawn_for_its_own_calls_alone_and_shown_with_its_seed() {
    let run = |others: usize| {
        let faults = faults();
        faults.fail_with_probability(&[Call::EventCreate], 0.5, Status::InvalidValue, 0x5eed);
        (0..100)
            .map(|_| {
                assert!((0..others).all(|_| faults.memory(GPU0).is_ok()));
                faults.event_create(GPU0).is_err()
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(run(0), run(3));

    let faults = faults();
    faults.fail_with_probability(&[Call::EventCreate], 0.5, Status::InvalidValue, 0x5eed);
    assert!(format!("{faults:?}").contains(&format!("seed: {}", 0x5eed)));
}

#[test]
fn g5_memory_of_every_kind_runs_out_at_the_byte() -> DriverResult<()> {
    let faults = faults();
    let stream = faults.stream_create(GPU0, 0)?;
    let page = Bytes::mib(2).get();
    // SAFETY: the stream is live.
    let allocate_async = |bytes| unsafe { faults.allocate_async(GPU0, stream, bytes) };
    let refused = |call| Some(error(call, GPU0, Status::OutOfMemory));

    let first = faults.allocate(GPU0, page)?;
    faults.out_of_memory_at(Bytes(3 * page));
    let second = allocate_async(page - 1)?;
    assert_eq!(faults.pages_create(GPU0, page).map(drop), Ok(()));
    assert_eq!(faults.held(GPU0), Bytes(3 * page - 1));
    assert_eq!(faults.allocate(GPU0, 2).err(), refused(Call::Allocate));
    assert_eq!(allocate_async(2).err(), refused(Call::AllocateAsync));
    assert_eq!(faults.pages_create(GPU0, page).err(), refused(Call::PagesCreate));
    assert_eq!(faults.allocate(GPU0, u64::MAX).err(), refused(Call::Allocate));
    let last = faults.allocate(GPU0, 1)?;
    assert_eq!(faults.allocate(GPU0, 1).err(), refused(Call::Allocate));

    // SAFETY: allocated above, and freed once.
    unsafe { faults.free(GPU0, last)? };
    // SAFETY: allocated above on this stream, and freed once.
    unsafe { faults.free_async(GPU0, stream, second)? };
    let pages = faults.pages_create(GPU0, page)?;
    assert_eq!(faults.held(GPU0), Bytes(3 * page));
    // SAFETY: created above, and released once.
    unsafe { faults.pages_release(GPU0, pages)? };
    // SAFETY: allocated above, and freed once.
    unsafe { faults.free(GPU0, first)? };
    assert_eq!(faults.held(GPU0), Bytes(page));
    faults.heal();
    assert!(faults.allocate(GPU0, 4 * page).is_ok());
    Ok(())
}

#[test]
fn g5_memory_is_held_by_device_and_by_what_really_happened() -> DriverResult<()> {
    let below = faults();
    let faults = Faults::new(below.clone());
    faults.out_of_memory_at(Bytes::kib(1));
    let ptr = faults.allocate(GPU0, 1024)?;
    assert!(faults.allocate(GPU1, 1024).is_ok());

    for driver in [&faults, &below] {
        driver.fail_next(Call::Free, Status::InvalidValue);
        // SAFETY: allocated above; the free fails.
        assert!(unsafe { faults.free(GPU0, ptr) }.is_err());
        assert_eq!(faults.held(GPU0), Bytes::kib(1));
    }
    // SAFETY: allocated above, and the frees before this one failed.
    unsafe { faults.free(GPU0, ptr)? };
    for driver in [&faults, &below] {
        driver.fail_next(Call::Allocate, Status::InvalidValue);
        assert!(faults.allocate(GPU0, 1024).is_err());
        assert_eq!(faults.held(GPU0), Bytes::ZERO);
    }
    assert!(faults.allocate(GPU0, 1024).is_ok());
    Ok(())
}

#[test]
fn g5_threads_never_pass_the_memory_limit_together() {
    let faults = faults();
    faults.out_of_memory_at(Bytes(10 * BYTES));
    let granted: usize = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| (0..8).filter(|_| faults.allocate(GPU0, BYTES).is_ok()).count())).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    assert_eq!(granted, 10);
}

#[test]
fn g5_an_injected_out_of_memory_is_told_as_a_real_one() -> Result<(), Error> {
    let faults = faults();
    let context = DeviceContext::open(faults.clone(), GPU0)?;
    let memory = Direct.open(&context)?;
    faults.out_of_memory_at(Bytes(1000));
    let stream = context.default_stream();
    let block = memory.allocate(512, 256, stream, AllocTag::UNTAGGED)?;
    match memory.allocate(512, 256, stream, AllocTag::UNTAGGED) {
        Err(Error::OutOfMemory { requested, free, .. }) => assert_eq!((requested, free), (Bytes(512), Bytes(488))),
        other => panic!("{other:?}"),
    }
    memory.deallocate(block, stream)?;
    assert_eq!(faults.held(GPU0), Bytes::ZERO);
    Ok(())
}

#[test]
fn g5_a_lost_device_is_lost_for_good_and_alone() -> DriverResult<()> {
    let below = faults();
    let rig = Rig::new(&*below)?;
    let faults = Faults::new(below.clone());
    faults.lose(GPU0);
    below.reset_counts();
    for _ in 0..2 {
        for call in fallible() {
            assert_eq!(rig.invoke(&*faults, call), Err(error(call, GPU0, Status::DeviceLost)));
        }
        assert_eq!(faults.last_error(GPU0).map(|error| error.status), Some(Status::DeviceLost));
        faults.heal();
    }
    assert_eq!(below.total_calls(), 0);
    assert_eq!(faults.last_error(GPU1), None);
    assert!(faults.stream_create(GPU1, 0).is_ok());
    Ok(())
}

#[test]
fn g5_a_sticky_status_loses_the_device() {
    let faults = faults();
    faults.fail_next(Call::EventCreate, Status::IllegalAddress);
    let first = error(Call::EventCreate, GPU0, Status::IllegalAddress);
    assert_eq!(faults.last_error(GPU0), None);
    assert_eq!(faults.event_create(GPU0), Err(first));
    assert_eq!(faults.memory(GPU0), Err(error(Call::Memory, GPU0, Status::IllegalAddress)));
    faults.lose(GPU0);
    assert_eq!(faults.last_error(GPU0), Some(first));
    assert!(faults.memory(GPU1).is_ok());
}

#[test]
fn g5_work_whose_answer_is_lost_runs() -> DriverResult<()> {
    let faults = faults();
    let rig = Rig::new(&*faults)?;
    let ran = Arc::new(AtomicBool::new(false));
    let function = |ran: Arc<AtomicBool>| HostFunction::new(move || ran.store(true, Ordering::SeqCst));
    faults.lose_nth_result(Call::HostFunction, 1, Status::Unavailable);
    // SAFETY: the stream is live.
    let answer = unsafe { faults.host_function(GPU0, rig.streams[0], function(ran.clone())) };
    assert_eq!(answer, Err(error(Call::HostFunction, GPU0, Status::Unavailable)));
    // SAFETY: the stream is live.
    unsafe { faults.stream_synchronize(GPU0, rig.streams[0])? };
    assert!(ran.swap(false, Ordering::SeqCst));

    faults.fail_next(Call::HostFunction, Status::Unavailable);
    // SAFETY: the stream is live.
    assert!(unsafe { faults.host_function(GPU0, rig.streams[0], function(ran.clone())) }.is_err());
    // SAFETY: the stream is live.
    unsafe { faults.stream_synchronize(GPU0, rig.streams[0])? };
    assert!(!ran.load(Ordering::SeqCst));
    Ok(())
}

#[test]
fn g5_a_stalled_stream_stands_until_it_is_let_go() -> DriverResult<()> {
    let faults = faults();
    let [stalled, other] = [faults.stream_create(GPU0, 0)?, faults.stream_create(GPU0, 0)?];
    // SAFETY: both streams are live.
    let progress = |stream| unsafe { faults.stream_query(GPU0, stream) };
    // SAFETY: both streams are live.
    let finish = |stream| unsafe { faults.stream_synchronize(GPU0, stream) };
    for opened in [true, false] {
        // SAFETY: the stream is live.
        let stall = unsafe { faults.stall(GPU0, stalled)? };
        assert_eq!(progress(stalled)?, Progress::Pending);
        finish(other)?;
        assert_eq!((progress(stalled)?, stall.is_open()), (Progress::Pending, false));
        if opened {
            stall.open();
        } else {
            drop(stall);
        }
        finish(stalled)?;
        assert_eq!(progress(stalled)?, Progress::Complete);
    }
    assert_eq!(faults.calls(Call::HostFunction), 0);
    Ok(())
}

#[test]
fn g5_a_rule_that_could_never_fire_is_refused() {
    let refused = |rule: fn(&Faults)| {
        let faults = faults();
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| rule(&faults))).is_err()
    };
    assert!(refused(|faults| faults.fail_next(Call::Note, Status::InvalidValue)));
    assert!(refused(|faults| faults.fail_always(Call::Describe, Status::InvalidValue)));
    assert!(refused(|faults| faults.fail_nth(Call::Fill, 0, Status::InvalidValue)));
    assert!(refused(|faults| faults.lose_nth_result(Call::Allocate, 1, Status::InvalidValue)));
    assert!(refused(|faults| faults.fail_with_probability(&[], 0.5, Status::InvalidValue, 0)));
    assert!(refused(|faults| faults.fail_with_probability(Call::ALL, 1.5, Status::InvalidValue, 0)));
}

#[test]
fn g5_faults_describe_what_they_wrap() {
    let sim = Sim::seeded(7);
    assert_eq!(Faults::new(sim.clone()).describe(), format!("{}, with faults", sim.describe()));
}
