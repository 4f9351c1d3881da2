//! Questions to streams while another thread begins to capture them.
#![allow(unsafe_code)]

use super::{LEN, pooled_over};
use bursar_core::{
    DeviceContext, DeviceId, Driver, DriverResult, Progress, RawEvent, RawStream, Result, Stream, driver_methods, tag,
};
use bursar_device::{DeviceBuffer, Gpu, StreamLease};
use bursar_sim::Sim;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

/// A driver that stops in the middle of the first question to one stream, as long as it takes another thread to announce a
/// capture of that stream, and a while longer, in which that thread would begin it.
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
    fn ask<T>(&self, stream: RawStream, question: impl FnOnce() -> T) -> T {
        let Some(watched) = self.watched.get().filter(|watched| watched.raw == stream) else { return question() };
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
    (unsafe fn capture_begin $($signature:tt)*) => {};
    ($($method:tt)*) => { bursar_core::forward_driver_method! { inner: $($method)* } };
}

// SAFETY: everything it returns comes from a driver that upholds the contract.
#[deny(clippy::missing_trait_methods)]
unsafe impl Driver for StoppingDriver {
    driver_methods!(forwarded);

    unsafe fn stream_query(&self, device: DeviceId, stream: RawStream) -> DriverResult<Progress> {
        // SAFETY: the caller's own promise.
        self.ask(stream, || unsafe { self.inner.stream_query(device, stream) })
    }

    unsafe fn stream_synchronize(&self, device: DeviceId, stream: RawStream) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.ask(stream, || unsafe { self.inner.stream_synchronize(device, stream) })
    }

    unsafe fn event_record(&self, device: DeviceId, event: RawEvent, stream: RawStream) -> DriverResult<()> {
        // SAFETY: the caller's own promise.
        self.ask(stream, || unsafe { self.inner.event_record(device, event, stream) })
    }

    unsafe fn capture_begin(&self, device: DeviceId, stream: RawStream) -> DriverResult<()> {
        self.overlaps.fetch_add(self.is_asking.load(SeqCst).into(), SeqCst);
        // SAFETY: the caller's own promise.
        unsafe { self.inner.capture_begin(device, stream) }
    }
}

/// The work of a thread that has another thread's stream asked.
type Question = fn(&Gpu, &StreamLease, DeviceBuffer<u8>) -> Result<()>;

/// Captures a stream while another thread has it asked about a buffer of it.
fn capture_while_asked(question: Question) {
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
    let [stream, other] = std::array::from_fn(|_| gpu.streams().lease().expect("room"));
    let used = gpu.zeros::<u8>(24 << 20, &stream, tag!("used")).expect("room");
    let raw = gpu.context().hold(*stream).expect("its own").raw();
    let watched = Watched { context: gpu.context().clone(), stream: *stream, raw, captor };
    assert!(driver.watched.set(watched).is_ok());
    std::thread::scope(|scope| {
        let (gpu, stream) = (&gpu, &stream);
        let captured = scope.spawn(move || {
            may_begin.recv().expect("the stream is asked");
            gpu.capture(stream, |capture| -> Result<_> {
                let mut buffer = capture.gpu().buffer::<u8>(LEN, capture.stream(), tag!("captured"))?;
                capture.gpu().submit(capture.stream(), |work| work.fill(&mut buffer, 7))?;
                Ok(buffer)
            })
        });
        let asked = question(gpu, &other, used);
        driver.watched.get().into_iter().for_each(|watched| watched.captor.try_send(()).unwrap_or_default());
        asked.expect("the stream is not captured yet");
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
    for question in [by_allocation, by_free, by_use, by_wait] {
        capture_while_asked(question);
    }
}
