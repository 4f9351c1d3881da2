//! Questions to streams while another thread begins to capture them.
#![allow(unsafe_code)]

use super::{LEN, pooled, pooled_over};
use bursar_core::{
    DeviceContext, DeviceId, DevicePtr, Driver, DriverResult, Error, Note, Progress, RawEvent, RawStream, Result,
    Stream, StreamMisuse, driver_methods, tag,
};
use bursar_device::{DeviceBuffer, Gpu, StreamLease};
use bursar_sim::Sim;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

/// A driver that stops in the middle of the first question to one stream or to all of the device, as long as it takes another
/// thread to announce a capture of that stream, and a while longer, in which that thread would begin it.
#[derive(Debug)]
struct StoppingDriver {
    inner: Arc<dyn Driver>,
    watched: OnceLock<Watched>,
    is_over: AtomicBool,
    /// The captures that began while a question was under way.
    overlaps: AtomicU32,
    is_asking: AtomicBool,
}

#[derive(Debug)]
struct Watched {
    context: Arc<DeviceContext>,
    stream: Stream,
    raw: RawStream,
    captor: mpsc::SyncSender<()>,
}

impl StoppingDriver {
    /// Counts a stream that becomes part of a capture in the middle of a question.
    fn count_overlap(&self, stream: RawStream) {
        let is_watched = self.watched.get().is_some_and(|watched| watched.raw == stream);
        self.overlaps.fetch_add((is_watched && self.is_asking.load(SeqCst)).into(), SeqCst);
    }

    /// Asks a stream, or all of the device.
    fn ask<T>(&self, stream: Option<RawStream>, question: impl FnOnce() -> T) -> T {
        let is_watched = |watched: &&Watched| stream.is_none_or(|stream| watched.raw == stream);
        let Some(watched) = self.watched.get().filter(is_watched) else { return question() };
        if self.is_over.swap(true, SeqCst) {
            return question();
        }
        self.is_asking.store(true, SeqCst);
        watched.captor.send(()).expect("the captor waits");
        let has_begun = || self.overlaps.load(SeqCst) > 0;
        while !watched.context.is_captured_with(watched.stream, watched.stream) && !has_begun() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20));
        let answer = question();
        self.is_asking.store(false, SeqCst);
        answer
    }
}

/// Defines a method that forwards unchanged, as most do.
macro_rules! forwarded {
    (unsafe fn stream_query $($signature:tt)*) => {};
    (unsafe fn stream_synchronize $($signature:tt)*) => {};
    (unsafe fn event_record $($signature:tt)*) => {};
    (unsafe fn stream_wait $($signature:tt)*) => {};
    (unsafe fn copy_to_host $($signature:tt)*) => {};
    (unsafe fn note $($signature:tt)*) => {};
    (unsafe fn free $($signature:tt)*) => {};
    (unsafe fn capture_begin $($signature:tt)*) => {};
    ($($method:tt)*) => { bursar_core::forward_driver_method! { inner: $($method)* } };
}

// SAFETY: everything it returns comes from a driver that upholds the contract.
#[deny(clippy::missing_trait_methods)]
unsafe impl Driver for StoppingDriver {
    driver_methods!(forwarded);

    unsafe fn stream_query(&self, device: DeviceId, stream: RawStream) -> DriverResult<Progress> {
        // SAFETY: the caller's own promise.
        self.ask(Some(stream), || unsafe { self.inner.stream_query(device, stream) })
    }

    unsafe fn stream_synchronize(&self, device: DeviceId, stream: RawStream) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.ask(Some(stream), || unsafe { self.inner.stream_synchronize(device, stream) })
    }

    unsafe fn event_record(&self, device: DeviceId, event: RawEvent, stream: RawStream) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.ask(Some(stream), || unsafe { self.inner.event_record(device, event, stream) })
    }

    unsafe fn stream_wait(&self, device: DeviceId, stream: RawStream, event: RawEvent) -> DriverResult<()> {
        // Where nobody asks yet, this is a question; otherwise the stream joins a capture.
        self.count_overlap(stream);
        // SAFETY: the caller's own promise.
        self.ask(Some(stream), || unsafe { self.inner.stream_wait(device, stream, event) })
    }

    unsafe fn copy_to_host(
        &self,
        device: DeviceId,
        stream: RawStream,
        dst: *mut u8,
        src: DevicePtr,
        bytes: u64,
    ) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.ask(Some(stream), || unsafe { self.inner.copy_to_host(device, stream, dst, src, bytes) })
    }

    unsafe fn note(&self, device: DeviceId, note: Note) {
        // SAFETY: the caller's own promise.
        let tell = || unsafe { self.inner.note(device, note) };
        if let Note::Freed { stream, .. } = note { self.ask(Some(stream), tell) } else { tell() }
    }

    unsafe fn free(&self, device: DeviceId, ptr: DevicePtr) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.ask(None, || unsafe { self.inner.free(device, ptr) })
    }

    unsafe fn capture_begin(&self, device: DeviceId, stream: RawStream) -> DriverResult<()> {
        self.count_overlap(stream);
        // SAFETY: the caller's own promise.
        unsafe { self.inner.capture_begin(device, stream) }
    }
}

/// The work of a thread that has another thread's stream asked.
type Question = fn(&Gpu, &StreamLease, DeviceBuffer<u8>) -> Result<()>;

/// The way in which a stream becomes part of a capture.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Captor {
    Begins,
    Joins,
}

/// Waits for all of the device, as it takes to order a stream that has ended while it was captured.
fn wait_for_device(context: &Arc<DeviceContext>) -> Result<()> {
    let (driver, device) = (context.driver(), context.device());
    let raw = driver.stream_create(device, 0).map_err(Error::Driver)?;
    // SAFETY: the stream outlives the adoption.
    let adopted = unsafe { context.adopt_stream(raw) }?;
    // SAFETY: it is alive, and not the default stream.
    unsafe { driver.capture_begin(device, raw) }.map_err(Error::Driver)?;
    drop(adopted);
    // SAFETY: as above.
    let graph = unsafe { driver.capture_end(device, raw) }.map_err(Error::Driver)?;
    // SAFETY: the graph came from this driver, and nobody else has it.
    unsafe { driver.graph_destroy(device, graph) }.map_err(Error::Driver)?;
    // SAFETY: it was made here, and its adoption has ended.
    unsafe { driver.stream_destroy(device, raw) }.map_err(Error::Driver)?;
    context.order_ended(Duration::MAX);
    context.fault().check()
}

/// Captures a stream while another thread has it asked about a buffer of it, which was used on the other's stream, too.
fn capture_while_asked(question: Question, captor_does: Captor, is_used_elsewhere: bool) {
    let sim = Sim::seeded(1);
    let (captor, may_begin) = mpsc::sync_channel(1);
    let driver = Arc::new(StoppingDriver {
        inner: sim.clone(),
        watched: OnceLock::new(),
        is_over: AtomicBool::new(false),
        overlaps: AtomicU32::new(0),
        is_asking: AtomicBool::new(false),
    });
    let gpu = pooled_over(driver.clone());
    let [stream, other, origin] = std::array::from_fn(|_| gpu.streams().lease().expect("room"));
    let mut used = gpu.zeros::<u8>(24 << 20, &stream, tag!("used")).expect("room");
    if is_used_elsewhere {
        gpu.submit(&other, |work| work.fill(&mut used, 1)).expect("used");
    }
    let raw = gpu.context().hold(*stream).expect("its own").raw();
    let watched = Watched { context: gpu.context().clone(), stream: *stream, raw, captor };
    assert!(driver.watched.set(watched).is_ok());
    std::thread::scope(|scope| {
        let (gpu, stream, origin) = (&gpu, &stream, if captor_does == Captor::Begins { &stream } else { &origin });
        let captured = scope.spawn(move || {
            may_begin.recv().expect("the stream is asked");
            gpu.capture(origin, |capture| -> Result<_> {
                capture.order(capture.stream(), stream)?;
                let mut buffer = capture.gpu().buffer::<u8>(LEN, stream, tag!("captured"))?;
                capture.gpu().submit(stream, |work| work.fill(&mut buffer, 7))?;
                Ok(buffer)
            })
        });
        let asked = question(gpu, &other, used);
        driver.watched.get().into_iter().for_each(|watched| watched.captor.try_send(()).unwrap_or_default());
        // What asks twice may come too late for the second question.
        let is_late = |error: &Error| matches!(error, Error::StreamMisuse { why: StreamMisuse::Capturing, .. });
        if let Err(error) = asked {
            assert!(is_used_elsewhere && is_late(&error), "the stream is not captured yet: {error}");
        }
        assert!(driver.is_over.load(SeqCst), "the stream was asked");
        let (graph, buffer) = captured.join().expect("no panic").expect("nothing ends the capture");
        graph.launch(stream).expect("launched");
        assert_eq!(buffer.to_vec().expect("read"), [7; LEN]);
    });
    assert_eq!(driver.overlaps.load(SeqCst), 0, "a capture began in the middle of a question");
    sim.assert_clean();
}

#[test]
fn z3_a_capture_does_not_begin_in_the_middle_of_a_question_to_its_stream() {
    let by_allocation: Question = |gpu, other, used| {
        drop(used);
        gpu.buffer::<u8>(56 << 20, other, tag!("much")).map(drop)
    };
    let by_free: Question = |_, other, mut used| used.free_on(other);
    let by_use: Question = |gpu, other, mut used| gpu.submit(other, |work| work.fill(&mut used, 1));
    let by_wait: Question = |gpu, _, used| {
        drop(used);
        gpu.memory().reap_blocking(Duration::MAX).map(drop)
    };
    let by_wait_for_all: Question = |gpu, _, _used| wait_for_device(gpu.context());
    let by_read: Question = |_, _, used| used.to_vec().map(drop);
    let by_synchronization: Question = |gpu, _, used| gpu.context().synchronize(used.stream());
    let by_drop: Question = |_, _, used| {
        drop(used);
        Ok(())
    };
    for captor in [Captor::Begins, Captor::Joins] {
        for question in [by_allocation, by_free, by_use, by_wait, by_read, by_synchronization, by_drop] {
            capture_while_asked(question, captor, false);
        }
        // The wait for the other stream is given to the one that is captured.
        for question in [by_read, by_drop] {
            capture_while_asked(question, captor, true);
        }
    }
    capture_while_asked(by_wait_for_all, Captor::Begins, false);
}

/// A driver that marks a stream once more each time that it is marked, as a thread that asks how far it is would do meanwhile.
#[derive(Debug)]
struct MarkingDriver(Arc<dyn Driver>);

macro_rules! forwarded_unmarked {
    (unsafe fn event_record $($signature:tt)*) => {};
    ($($method:tt)*) => { bursar_core::forward_driver_method! { 0: $($method)* } };
}

// SAFETY: everything it returns comes from a driver that upholds the contract.
#[deny(clippy::missing_trait_methods)]
unsafe impl Driver for MarkingDriver {
    driver_methods!(forwarded_unmarked);

    unsafe fn event_record(&self, device: DeviceId, event: RawEvent, stream: RawStream) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.0.event_record(device, event, stream) }?;
        let mark = self.0.event_create(device)?;
        // SAFETY: the event was made above, and the stream is live by the caller's own promise.
        unsafe { self.0.event_record(device, mark, stream) }?;
        // SAFETY: nobody waits for the event.
        unsafe { self.0.event_destroy(device, mark) }
    }
}

#[test]
fn z2_what_a_graph_leaves_goes_back_after_its_free_whoever_marks_the_stream_meanwhile() {
    for seed in 0..8 {
        let sim = Sim::seeded(seed);
        let gpu = pooled_over(Arc::new(MarkingDriver(sim.clone())));
        let [stream, other] = std::array::from_fn(|_| gpu.streams().lease().expect("room"));
        let captured = gpu.capture(&stream, |capture| -> Result<_> {
            let mut buffer = capture.gpu().buffer::<u8>(LEN, capture.stream(), tag!("output"))?;
            capture.gpu().submit(capture.stream(), |work| work.fill(&mut buffer, 7))?;
            Ok(buffer)
        });
        let (graph, buffer) = captured.expect("captured");
        graph.launch(&other).expect("launched");
        assert_eq!(buffer.to_vec().expect("read"), [7; LEN], "seed {seed}");
        drop((buffer, graph));
        sim.check().unwrap_or_else(|hazards| panic!("seed {seed}: {hazards}"));
    }
}

/// Captures a stream, joined by another, again and again, while a second thread has the buffers of both, which it uses on a
/// stream of its own where `uses`, and drops.
fn capture_while_dropped(seed: u64, uses: bool) {
    let sim = Sim::seeded(seed);
    let gpu = pooled(&sim);
    let [stream, side, other] = std::array::from_fn(|_| gpu.streams().lease().expect("room"));
    let (sender, buffers) = mpsc::channel::<DeviceBuffer<u32>>();
    std::thread::scope(|scope| {
        let (gpu, other) = (&gpu, &other);
        scope.spawn(move || {
            for mut buffer in buffers {
                if uses && let Err(error) = gpu.submit(other, |work| work.fill(&mut buffer, 2)) {
                    assert!(matches!(error, Error::StreamMisuse { why: StreamMisuse::Capturing, .. }), "{error}");
                }
            }
        });
        for _ in 0..40 {
            for (len, home) in (500..1100).step_by(100).zip([&stream, &side].into_iter().cycle()) {
                let mut buffer = gpu.buffer::<u32>(len, home, tag!("home")).expect("room");
                gpu.submit(home, |work| work.fill(&mut buffer, 1)).expect("its own");
                sender.send(buffer).expect("it is dropped there");
            }
            let captured = gpu.capture(&stream, |capture| -> Result<_> {
                let mut output = capture.gpu().buffer::<u32>(LEN, capture.stream(), tag!("output"))?;
                capture.gpu().submit(capture.stream(), |work| work.fill(&mut output, 1))?;
                capture.order(capture.stream(), &side)?;
                let mut scratch = capture.gpu().buffer::<u32>(LEN, &side, tag!("scratch"))?;
                capture.gpu().submit(&side, |work| work.fill(&mut scratch, 1))?;
                Ok(output)
            });
            drop(captured.unwrap_or_else(|error| panic!("seed {seed}: {error}")));
        }
        drop(sender);
    });
    sim.settle();
    assert_eq!(gpu.still_held(Duration::ZERO).map(|held| format!("{held:?}")), None, "seed {seed}");
    sim.check().unwrap_or_else(|hazards| panic!("seed {seed}: {hazards}"));
}

#[test]
fn z4_what_another_thread_uses_or_frees_while_captures_begin_and_end_spoils_none_and_loses_nothing() {
    for (seed, uses) in (0..24).flat_map(|seed| [(seed, false), (seed, true)]) {
        capture_while_dropped(seed, uses);
    }
}
