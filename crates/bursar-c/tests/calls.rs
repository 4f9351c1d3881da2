//! Y1 under sequences of calls that nobody would write: handles are taken at random from all that were ever given out, those of
//! other kinds, closed ones and garbage included. One thread is compared with a model, call by call; several close what others
//! use.
//!
//! `BURSAR_C_SEEDS=10000` makes so many sequences, and `BURSAR_C_SEED=N` one of them.

#[path = "calls/model.rs"]
mod model;
#[path = "calls/wrapped.rs"]
mod wrapped;

use bursar::sim::Random;
use bursar_c::bursar_status::{
    self, BURSAR_INVALID_ARGUMENT, BURSAR_INVALID_HANDLE, BURSAR_INVALID_STREAM, BURSAR_OK, BURSAR_OUT_OF_BUDGET,
    BURSAR_OUT_OF_MEMORY, BURSAR_STILL_HELD,
};
use model::Model;
use std::sync::Mutex;
use wrapped::Handle;

/// The device memory of each simulated device.
const TOTAL: u64 = 1 << 30;
const DEVICES: u32 = 2;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

#[test]
fn y1_random_calls_with_random_handles_do_what_they_say_or_nothing() {
    let seeds = match number("BURSAR_C_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BURSAR_C_SEEDS").unwrap_or(200),
    };
    for seed in seeds {
        let ran = std::panic::catch_unwind(|| {
            let mut model = Model::new(seed);
            (0..150).for_each(|_| model.step());
            model.end();
        });
        assert!(ran.is_ok(), "repeat it with BURSAR_C_SEED={seed}");
    }
}

/// Everything that was given out to several threads.
struct Shared {
    known: Mutex<Vec<Handle>>,
}

impl Shared {
    fn add(&self, (status, handle): (bursar_status, Handle)) -> bursar_status {
        if status == BURSAR_OK {
            self.known.lock().expect("no panic").push(handle);
        }
        status
    }

    /// Picks a handle of a kind that was given out lately.
    fn pick(&self, kind: fn(&Handle) -> bool, random: &mut Random) -> Handle {
        let known = self.known.lock().expect("no panic");
        let late = known.iter().rev().filter(|handle| kind(handle)).nth(random.index(6));
        late.copied().unwrap_or(Handle::Garbage(random.next_u64()))
    }

    fn step(&self, random: &mut Random) -> bursar_status {
        let (device, stack) = (self.pick(is_device, random), self.pick(is_stack, random));
        let (stream, block) = (self.pick(is_stream, random), self.pick(is_block, random));
        match random.below(40) {
            0 | 1 => self.add(wrapped::open_stack(device, 0, None)),
            2..5 => self.add(wrapped::create_stream(device)),
            5 => wrapped::close(self.pick(|handle| !is_device(handle), random)),
            6 | 7 => wrapped::close(stream),
            8 => wrapped::close(stack),
            9 => wrapped::trim(stack),
            10 => self.add(wrapped::reserve(device, 1 + random.below(1 << 20))),
            11..14 => wrapped::record_use(block, stream, 0),
            14..26 => self.add(wrapped::allocate(stack, 1 + random.below(1 << 16), stream)),
            _ => wrapped::free(block, stream),
        }
    }

    /// Closes everything, whatever was closed already.
    fn end(self) {
        let known = self.known.into_inner().expect("no panic");
        let devices = known.iter().copied().filter(is_device);
        let streams: Vec<Handle> = devices.map(|device| wrapped::create_stream(device).1).collect();
        for block in known.iter().copied().filter(is_block) {
            for &stream in &streams {
                wrapped::free(block, stream);
            }
            assert_eq!(wrapped::free(block, streams[0]), BURSAR_INVALID_HANDLE, "it is freed by now");
        }
        for handle in known.into_iter().chain(streams).filter(|handle| !is_block(handle)) {
            let status = wrapped::close(handle);
            assert!(matches!(status, BURSAR_OK | BURSAR_INVALID_HANDLE), "{status:?}: {}", wrapped::last_message());
        }
    }
}

const fn is_device(handle: &Handle) -> bool {
    matches!(handle, Handle::Device(_))
}
const fn is_stack(handle: &Handle) -> bool {
    matches!(handle, Handle::Stack(_))
}
const fn is_stream(handle: &Handle) -> bool {
    matches!(handle, Handle::Stream(_))
}
const fn is_block(handle: &Handle) -> bool {
    matches!(handle, Handle::Block(..))
}

/// The statuses that calls may return while others close what they use.
const EXPECTED: [bursar_status; 7] = [
    BURSAR_OK,
    BURSAR_INVALID_HANDLE,
    BURSAR_INVALID_ARGUMENT,
    BURSAR_INVALID_STREAM,
    BURSAR_STILL_HELD,
    BURSAR_OUT_OF_BUDGET,
    BURSAR_OUT_OF_MEMORY,
];

#[test]
fn y1_what_some_threads_close_while_others_use_it_is_used_or_refused() {
    let driver = wrapped::open_driver(&format!("{DEVICES}x{TOTAL}"));
    let devices = (0..DEVICES).map(|ordinal| wrapped::open_device(driver, ordinal).1);
    let shared = Shared { known: Mutex::new(devices.collect()) };
    let steps = 40 * number("BURSAR_C_SEEDS").unwrap_or(200);
    let run = &|seed| {
        let (mut random, mut outcomes) = (Random::new(seed), [0; EXPECTED.len()]);
        for _ in 0..steps {
            let status = shared.step(&mut random);
            let outcome = EXPECTED.iter().position(|&expected| expected == status);
            outcomes[outcome.unwrap_or_else(|| panic!("{status:?}: {}", wrapped::last_message()))] += 1;
        }
        outcomes
    };
    let outcomes: Vec<[u32; EXPECTED.len()]> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|seed| scope.spawn(move || run(seed))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let [fine, stale, ..] = outcomes.into_iter().reduce(|a, b| std::array::from_fn(|at| a[at] + b[at])).expect("four");
    assert!(fine > 100 && stale > 100, "{fine} calls did something, and {stale} came too late");
    shared.end();
    for ordinal in 0..DEVICES {
        assert_eq!(wrapped::free_memory(driver, ordinal), TOTAL, "of device {ordinal}");
    }
    assert_eq!(wrapped::close(driver), BURSAR_OK);
}
