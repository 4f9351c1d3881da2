//! Devices whose memory is put to sleep by others, by the program itself, or by both.

use bursar::device::{SleepOptions, SleepWhenAsked, WakeOptions};
use bursar::ledger::{RemoteCall, RemoteError, RemoteRequest};
use bursar::memory::SleepState;
use bursar::prelude::*;
use std::time::{Duration, Instant};

/// The time after which a test fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(30);

const SLEEP: RemoteRequest = RemoteRequest::Sleep { keep_place: false, patience: Duration::from_secs(600) };

struct Rig {
    ledgers: Ledgers,
    gpu: Gpu,
    sleeper: SleepWhenAsked,
}

impl Rig {
    fn new() -> Self {
        let ledgers = Ledgers::default();
        let stack = Stack::new().layer(PagePool::default()).layer(ledgers.budget()).over(leaf::Frames);
        let gpu = Gpu::open(bursar::sim::Sim::immediate(), DeviceId(0), &stack).expect("a device");
        let sleeper = ledgers.sleep_when_asked(&gpu, pinned(&gpu), SleepOptions::new()).expect("a ledger");
        Self { ledgers, gpu, sleeper }
    }

    fn ask(&self, request: RemoteRequest) -> RemoteCall {
        let ledger = self.ledgers.of(self.gpu.context()).expect("a ledger");
        ledger.ask(std::process::id(), request).expect("it listens")
    }

    /// Checks that work can begin, or cannot, and that everybody says so.
    fn expect_asleep(&self, is_asleep: bool) {
        assert_eq!(self.sleeper.is_asleep(), is_asleep);
        assert_eq!(self.sleeper.try_awake().is_none(), is_asleep);
    }
}

fn pinned(gpu: &Gpu) -> PinnedPool {
    PinnedPool::near(gpu).expect("host memory")
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "never {what}");
        std::thread::yield_now();
    }
}

#[test]
fn z10_a_request_that_is_withdrawn_while_it_waits_for_work_does_not_happen() {
    let rig = Rig::new();
    let working = rig.sleeper.awake();
    let call = rig.ask(SLEEP);
    wait_until("about to sleep", || rig.sleeper.is_asleep());
    assert!(!call.withdraw().expect("works"), "it was taken");
    let ended = call.wait(PATIENCE).expect("nobody waits for the work");
    assert!(matches!(ended, Err(RemoteError::Withdrawn { .. })), "{ended:?}");
    drop(working);
    assert_eq!(rig.gpu.sleep_reading().state, SleepState::Awake);
    rig.expect_asleep(false);
}

#[test]
fn z10_work_waits_also_where_the_program_itself_sleeps_and_wakes() {
    let rig = Rig::new();
    let stream = rig.gpu.streams().lease().expect("room");
    let memory = rig.gpu.buffer_from(&[7u8; 5000], &stream, tag!("memory")).expect("room");
    let store = pinned(&rig.gpu);
    for round in 0..3 {
        rig.gpu.sleep(&store, &SleepOptions::new()).expect("asleep");
        rig.expect_asleep(true);
        if round == 1 {
            assert!(rig.ask(SLEEP).wait(PATIENCE).expect("it ends").expect("asleep").was_so);
            rig.expect_asleep(true);
        }
        if round == 2 {
            rig.ask(RemoteRequest::Wake { patience: PATIENCE }).wait(PATIENCE).expect("it ends").expect("awake");
        } else {
            rig.gpu.wake(&WakeOptions::new()).expect("awake");
        }
        rig.expect_asleep(false);
    }
    // Asked by another, woken by itself.
    rig.ask(SLEEP).wait(PATIENCE).expect("it ends").expect("asleep");
    rig.expect_asleep(true);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let _awake = rig.sleeper.awake();
            memory.to_vec()
        });
        rig.gpu.wake(&WakeOptions::new()).expect("awake");
        assert_eq!(waiting.join().expect("no panic").expect("awake"), [7; 5000]);
    });
    rig.expect_asleep(false);
}

#[test]
fn z8_a_place_is_taken_for_what_sleeps_already_when_others_ask_for_it() {
    let rig = Rig::new();
    let stream = rig.gpu.streams().lease().expect("room");
    let memory = rig.gpu.buffer_from(&[7u8; 3 << 20], &stream, tag!("memory")).expect("room");
    let held = || rig.ledgers.of(rig.gpu.context()).and_then(|ledger| Ok(ledger.reading()?)).expect("a ledger").held;
    let before = held();
    let report = |request| rig.ask(request).wait(PATIENCE).expect("it ends").expect("it works");
    report(SLEEP);
    assert_eq!(held(), Bytes::ZERO);
    let keep = RemoteRequest::Sleep { keep_place: true, patience: PATIENCE };
    for _ in 0..2 {
        assert!(report(keep).was_so);
        assert_eq!(held(), before);
    }
    report(RemoteRequest::Wake { patience: PATIENCE });
    assert_eq!((held(), memory.to_vec().expect("awake")), (before, vec![7; 3 << 20]));
}

/// Whoever asks knows nothing of the program's tags.
#[test]
fn z10_a_request_to_wake_leaves_asleep_what_the_program_itself_put_to_sleep() {
    let rig = Rig::new();
    rig.gpu.record_tags().expect("a pool");
    let stream = rig.gpu.streams().lease().expect("room");
    let buffer = |byte: u8, tag| rig.gpu.buffer_from(&vec![byte; 3 << 20], &stream, tag).expect("room");
    let (cache, weights) = (buffer(1, tag!("cache")), buffer(2, tag!("weights")));
    let sleep = |options: SleepOptions| rig.gpu.sleep(&pinned(&rig.gpu), &options).expect("asleep");
    let wake = || rig.ask(RemoteRequest::Wake { patience: PATIENCE }).wait(PATIENCE).expect("it ends").expect("awake");
    let is_awake = |buffer: &DeviceBuffer<u8>| !matches!(buffer.to_vec(), Err(Error::Asleep { .. }));
    sleep(SleepOptions::new().only(tag!("cache")));
    for _ in 0..2 {
        rig.ask(SLEEP).wait(PATIENCE).expect("it ends").expect("asleep");
        assert!(!is_awake(&weights), "asleep");
        assert!(!wake().was_so);
        assert!(is_awake(&weights) && !is_awake(&cache), "as it was before");
        rig.expect_asleep(false);
    }
    // What was asked for is over: nothing sleeps by request, so all of it wakes.
    wake();
    assert!(is_awake(&cache));
    // The program wakes what was asked for, and puts it to sleep again itself.
    rig.ask(SLEEP).wait(PATIENCE).expect("it ends").expect("asleep");
    rig.gpu.wake(&WakeOptions::new()).expect("awake");
    sleep(SleepOptions::new());
    wake();
    assert_eq!(
        (cache.to_vec().expect("awake"), weights.to_vec().expect("awake")),
        (vec![1; 3 << 20], vec![2; 3 << 20])
    );
}

/// Two would not know of each other's work.
#[test]
fn z10_a_device_is_asked_by_one_at_a_time() {
    let Rig { ledgers, gpu, sleeper } = Rig::new();
    let refused = ledgers.sleep_when_asked(&gpu, pinned(&gpu), SleepOptions::new()).expect_err("there is one");
    assert!(
        matches!(refused, Error::InvalidValue { .. }) && refused.to_string().contains("SleepWhenAsked"),
        "{refused}"
    );
    let other = Rig::new();
    drop(sleeper);
    let again = ledgers.sleep_when_asked(&gpu, pinned(&gpu), SleepOptions::new()).expect("the first is gone");
    drop((again, other));
}
