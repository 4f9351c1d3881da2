//! T7: what cannot be waited for, because its stream is being captured, is refused and kept; the process goes on.
#![allow(unsafe_code)]

use super::{GPU0, LEN, Rig, SEEDS};
use bursar_core::{Driver, Error, HostElements, HostMemory, RawStream, Status, StreamMisuse, tag};
use bursar_device::{DeviceBuffer, StreamLease};
use bursar_sim::{Call, Sim};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Host memory that tells when it is freed.
#[derive(Debug)]
struct Watched {
    bytes: Vec<u8>,
    is_freed: Arc<AtomicBool>,
}

impl Watched {
    fn new(byte: u8) -> (Self, Arc<AtomicBool>) {
        let is_freed = Arc::new(AtomicBool::new(false));
        (Self { bytes: vec![byte; LEN], is_freed: is_freed.clone() }, is_freed)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.is_freed.store(true, SeqCst);
    }
}

// SAFETY: it is a vector's memory, which nobody changes.
unsafe impl HostMemory for Watched {
    fn host_ptr(&mut self) -> *mut u8 {
        self.bytes.host_ptr()
    }
    fn host_len(&self) -> usize {
        self.bytes.host_len()
    }
}

impl HostElements<u8> for Watched {}

impl Rig {
    fn capture(&self, lease: &StreamLease) -> RawStream {
        let raw = self.gpu.context().resolve(**lease).expect("its own");
        self.sim.begin_capture(GPU0, raw).expect("its own");
        raw
    }

    fn end_capture(&self, raw: RawStream) {
        self.sim.end_capture(GPU0, raw).expect("captured");
    }
}

fn is_captured(error: &Error) -> bool {
    matches!(error, Error::StreamMisuse { why: StreamMisuse::Capturing, .. })
}

#[test]
fn t7_a_wait_for_a_captured_stream_is_refused_and_the_transfer_comes_back() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b] = rig.leases();
        let mut buffer = rig.buffer(&a);
        let upload = b.submit(|work| work.copy_from_host(&mut buffer, vec![7; LEN])).expect("submitted");
        let raw = rig.capture(&b);
        assert!(is_captured(&upload.is_complete().expect_err("captured")));
        rig.faults.reset_counts();
        let refused = upload.wait().expect_err("captured");
        assert!(is_captured(&refused.error), "{refused}");
        assert_eq!(rig.faults.calls(Call::StreamSynchronize), 0, "which would invalidate the capture");
        rig.end_capture(raw);
        assert_eq!(refused.transfer.wait().expect("no longer captured"), [7; LEN]);
        assert_eq!(buffer.to_vec(), Ok(vec![7; LEN]));
        drop((buffer, a, b));
        rig.end(seed);
    }
}

#[test]
fn t7_memory_that_is_dropped_while_its_stream_is_captured_is_kept_until_the_copy_has_run() {
    for seed in 0..SEEDS {
        for has_trim in [true, false] {
            let rig = Rig::new(Sim::seeded(seed));
            let [a, b] = rig.leases();
            let mut buffer = rig.buffer(&a);
            let (memory, is_freed) = Watched::new(9);
            let upload = b.submit(|work| work.copy_from_host(&mut buffer, memory)).expect("submitted");
            let raw = rig.capture(&b);
            drop(upload);
            rig.gpu.context().trim();
            assert!(!is_freed.load(SeqCst), "seed {seed}");
            rig.end_capture(raw);
            if has_trim {
                rig.gpu.context().synchronize(*b).expect("no longer captured");
                rig.gpu.context().trim();
                assert!(is_freed.load(SeqCst), "seed {seed}");
            }
            assert_eq!(buffer.to_vec(), Ok(vec![9; LEN]));
            drop((buffer, a, b));
            rig.end(seed);
            assert!(is_freed.load(SeqCst), "seed {seed}: with the context at the latest");
        }
    }
}

#[test]
fn t7_a_buffer_whose_uses_cannot_be_ordered_or_waited_for_stays_a_buffer() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b] = rig.leases();
        let mut buffer = rig.buffer(&a);
        b.submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
        let raw = rig.capture(&b);
        let refused = buffer.into_block().expect_err("captured");
        assert!(is_captured(&refused.error), "{refused}");
        let buffer: DeviceBuffer<u8> = *refused.buffer;
        rig.end_capture(raw);
        let block = buffer.into_block().expect("no longer captured").expect("it holds memory");
        rig.gpu.memory().deallocate(block, *a).expect("its own");
        drop((a, b));
        rig.end(seed);
    }
}

#[test]
fn t7_a_transfer_on_a_stream_that_ended_while_it_was_captured_is_waited_for_or_refused() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, other] = rig.leases();
        let mut buffer = rig.buffer(&a);
        let raw = rig.sim.stream_create(GPU0, 0).expect("room");
        // SAFETY: the stream outlives the adoption.
        let adopted = unsafe { rig.gpu.context().adopt_stream(raw) }.expect("room");
        let upload = rig.gpu.submit(adopted.stream(), |work| work.copy_from_host(&mut buffer, vec![3; LEN]));
        let upload = upload.expect("submitted");
        rig.sim.begin_capture(GPU0, raw).expect("its own");
        drop(adopted);
        let captured = rig.capture(&other);
        let refused = upload.wait().expect_err("the device cannot be waited for");
        rig.end_capture(captured);
        rig.sim.end_capture(GPU0, raw).expect("captured");
        assert_eq!(refused.transfer.wait().expect("the device can be waited for"), [3; LEN]);
        // SAFETY: it was made here and its adoption has ended.
        unsafe { rig.sim.stream_destroy(GPU0, raw) }.expect("alive");
        rig.gpu.context().fault().check().expect("a capture is no failure");
        drop((buffer, a, other));
        rig.end(seed);
    }
}

#[test]
fn t7_a_refused_copy_gives_its_memory_back_and_names_both_lengths() {
    let rig = Rig::new(Sim::seeded(1));
    let [a] = rig.leases();
    let mut numbers = rig.gpu.buffer::<u32>(4, &a, tag!("numbers")).expect("room");
    rig.faults.reset_counts();
    let refused = a.submit(|work| work.copy_from_host(&mut numbers, vec![1; 5])).expect_err("too long");
    assert_eq!(refused.error, Error::LengthMismatch { expected: 4, found: 5 });
    assert_eq!(refused.transfer.wait().expect("nothing was submitted"), [1; 5]);
    let refused = a.submit(|work| work.read_back_into(&numbers, vec![0; 3])).expect_err("too short").error;
    assert_eq!(refused, Error::LengthMismatch { expected: 4, found: 3 });
    assert_eq!(numbers.write_from_host(&[1; 3]), Err(Error::LengthMismatch { expected: 4, found: 3 }));
    assert_eq!(numbers.slice(3..5).map(drop), Err(Error::InvalidRange { start: 3, end: 5, len: 4 }));
    assert_eq!(rig.faults.total_calls(), 0);
    let (memory, is_freed) = Watched::new(1);
    let mut odd = rig.gpu.buffer::<[u8; 3]>(LEN / 3, &a, tag!("odd")).expect("room");
    let raw = rig.capture(&a);
    let mut bytes = rig.gpu.buffer::<u8>(0, rig.gpu.context().default_stream(), tag!("none")).expect("nothing");
    let refused = a.submit(|work| work.copy_from_host(&mut bytes, memory)).expect_err("too long");
    assert_eq!(refused.error, Error::LengthMismatch { expected: 0, found: LEN });
    drop(refused.transfer.wait().expect("nothing was submitted"));
    assert!(is_freed.load(SeqCst));
    let refused = a.submit(|work| work.copy_from_host(&mut odd, vec![[0; 3]; LEN / 3])).expect_err("captured");
    assert!(is_captured(&refused.error) && refused.transfer.wait().is_ok());
    rig.end_capture(raw);
    drop((numbers, odd, bytes, a));
    rig.end(1);
}

/// Another thread may begin to capture the stream while a copy that borrows its memory is waited for.
#[test]
fn t7_a_copy_of_borrowed_memory_outlasts_a_capture_that_begins_meanwhile() {
    const MORE_THAN_ARE_TRIED: u64 = 1100;
    let rig = Rig::new(Sim::seeded(1));
    let [a] = rig.leases();
    let mut buffer = rig.buffer(&a);
    for nth in 1..=MORE_THAN_ARE_TRIED {
        rig.faults.fail_nth(Call::StreamSynchronize, nth, Status::Capturing);
    }
    assert_eq!(buffer.write_from_host(&[4; LEN]), Ok(()));
    assert_eq!(rig.faults.calls(Call::StreamSynchronize), MORE_THAN_ARE_TRIED + 1);
    assert_eq!(buffer.to_vec(), Ok(vec![4; LEN]));
    drop((buffer, a));
    rig.end(1);
}
