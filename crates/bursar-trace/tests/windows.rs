//! Checks that a trace read in windows is the same as the trace kept whole.

use bursar_core::{Build, Bytes, CountingDriver, DeviceContext, DeviceId, Holder, Stack, leaf};
use bursar_memory::GlobalDeviceBudget;
use bursar_sim::Sim;
use bursar_trace::{Event, Reason, Replay, ReplayError, TraceError, TraceFile, read};
use proptest::prelude::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A temporary file, removed when dropped.
struct TempFile(PathBuf);

impl TempFile {
    fn new(text: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("bursar-windows-{process}-{count}.log"));
        std::fs::write(&path, text).expect("a file");
        Self(path)
    }

    fn open(&self, window: usize) -> TraceFile {
        TraceFile::open_in_windows(&self.0, window).expect("a trace")
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _may_be_gone = std::fs::remove_file(&self.0);
    }
}

const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

/// Makes a log with one row per choice: most allocate a block or free a live one; some free an unknown address, fail, or
/// allocate where a block is live.
fn log(choices: &[(u8, u8, u16)]) -> String {
    let mut live: Vec<u64> = Vec::new();
    let mut text = HEADER.to_owned();
    for (row, &(choice, pick, bytes)) in choices.iter().enumerate() {
        let (thread, stream) = (pick % 3, pick % 5 % 3);
        let known = (!live.is_empty()).then(|| usize::from(pick) % live.len().max(1));
        let (action, pointer) = match (choice, known) {
            (0..90, Some(at)) => ("free", live.swap_remove(at)),
            (90..95, _) => ("free", 0xdead_0000 + row as u64),
            (95..100, _) => ("allocate failure", 0),
            (100..105, Some(at)) => ("allocate", live[at]),
            _ => {
                live.push(0x1000 * (row as u64 + 1));
                ("allocate", live[live.len() - 1])
            }
        };
        text += &format!("{thread},00:00:00.000000,{action},{pointer:#x},{},{stream}\n", 1 + u64::from(bytes));
    }
    text
}

/// Returns the steps of a watched pass, under a budget that refuses some allocations.
fn seen(file: &TraceFile) -> Vec<(u64, Event, Bytes, bool)> {
    let context = DeviceContext::open(Sim::immediate(), DeviceId(0)).expect("a device");
    let stack = Stack::new().layer(GlobalDeviceBudget::of(Bytes::kib(512))).over(leaf::Direct);
    let memory = stack.build(&context).expect("a stack");
    let mut seen = Vec::new();
    let watched = Replay::of(file, &context).expect("streams").watch(&memory, &mut |step| {
        seen.push((step.operation, step.event, step.live, step.block.is_some()));
    });
    watched.expect("a replay");
    assert_eq!(memory.bytes_outstanding(), Bytes::ZERO, "what the trace left live was freed");
    seen
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn windows_of_any_size_show_what_the_whole_trace_shows(
        choices in prop::collection::vec(any::<(u8, u8, u16)>(), 2..300),
        window in 1usize..100,
    ) {
        let temp = TempFile::new(&log(&choices));
        let Ok(trace) = read(&temp.0) else { return Err(TestCaseError::reject("nothing happens in it")) };
        let (windows, whole) = (temp.open(window), TraceFile::from(trace.clone()));
        prop_assert_eq!(windows.summary(), whole.summary());
        prop_assert_eq!(windows.streams(), whole.streams());
        let rows = trace.events.len() + trace.unknown_frees.len();
        prop_assert_eq!(windows.whole().is_none(), rows > window, "held whole only where it fits");
        let mut events = Vec::new();
        let kept = windows.each_window(|window| {
            events.extend_from_slice(window);
            Ok::<_, TraceError>(())
        });
        kept.expect("the same file");
        prop_assert_eq!(&events, &trace.events);
        prop_assert_eq!(seen(&windows), seen(&whole));
    }

    #[test]
    fn threads_that_hand_blocks_over_across_windows_do_all_of_it(
        choices in prop::collection::vec((0u8..250, any::<u8>(), any::<u16>()), 50..300),
        window in 1usize..100,
    ) {
        let temp = TempFile::new(&log(&choices));
        let file = temp.open(window);
        let driver = CountingDriver::new(Sim::immediate());
        let context = DeviceContext::open(driver.clone(), DeviceId(0)).expect("a device");
        let memory = Stack::new().over(leaf::Async).build(&context).expect("a stack");
        let cost = Replay::of(&file, &context).expect("streams").run(&memory, &driver).expect("a replay");
        prop_assert_eq!((cost.operations, cost.peak_live), (file.summary().operations, file.summary().peak_live));
        prop_assert_eq!((cost.refused, cost.hits), (0, 0), "each operation was done, and reached the driver");
        prop_assert_eq!(memory.bytes_outstanding(), Bytes::ZERO);
    }
}

/// Makes a log of twenty blocks. The free of one of them, in a later window, has a wrong address.
fn with_a_wrong_free() -> String {
    let allocate = (1..=20u64).map(|n| format!("1,0,allocate,{n:#x}000,64,0\n"));
    let free = (1..=20u64).map(|n| format!("1,0,free,{:#x}000,64,0\n", if n == 15 { 99 } else { n }));
    HEADER.to_owned() + &allocate.chain(free).collect::<String>()
}

#[test]
fn strictness_names_the_line_in_whichever_window_it_is() {
    let temp = TempFile::new(&with_a_wrong_free());
    let error = temp.open(4).summary().strict().expect_err("a wrong free");
    assert_eq!(error.position.map(|position| position.0), Some(36));
    assert!(matches!(error.reason, Reason::UnknownFree { pointer: 0x63000, count: 1 }), "{error}");

    let unfreed = with_a_wrong_free().replace("1,0,free,0x63000,64,0\n", "").replace("1,0,free,0x12000,64,0\n", "");
    let error = TempFile::new(&unfreed).open(4).summary().strict().expect_err("a missing free");
    assert_eq!(error.position.map(|position| position.0), Some(16));
    assert!(matches!(error.reason, Reason::MissingFree { pointer: 0xf000, bytes: 64, count: 2 }), "{error}");
}

#[test]
fn what_is_wrong_in_a_later_window_is_told_on_opening() {
    let temp = TempFile::new(&(with_a_wrong_free() + "1,0,allocate,0x1000,many,0\n"));
    let error = TraceFile::open_in_windows(&temp.0, 4).expect_err("a bad row");
    assert_eq!(error.position.map(|position| position.0), Some(42), "{error}");
}

#[test]
fn a_file_that_changed_ends_the_replay_and_everything_is_given_back() {
    let text = with_a_wrong_free();
    let without = |line: &str| text.replacen(line, "", 1);
    let changes = [
        ("an event less", without("1,0,allocate,0x14000,64,0\n")),
        ("a free of nothing less", without("1,0,free,0x63000,64,0\n")),
        ("another thread", text.replace("1,0,free,0x14000", "2,0,free,0x14000")),
        ("another stream", text.replace("0x14000,64,0\n", "0x14000,64,7\n")),
        ("another size", text.replace("0x14000,64,0\n", "0x14000,65,0\n")),
        ("damage", text.replace("0x14000,64,0\n", "0x14000,many,0\n")),
        ("nothing left", String::new()),
    ];
    for (what, changed) in changes {
        let temp = TempFile::new(&text);
        let file = temp.open(4);
        let context = DeviceContext::open(Sim::immediate(), DeviceId(0)).expect("a device");
        let memory = Stack::new().over(leaf::Async).build(&context).expect("a stack");
        let replay = Replay::of(&file, &context).expect("streams");
        std::fs::write(&temp.0, &changed).expect("a file");
        let error = replay.watch(&memory, &mut |_| {}).expect_err(what);
        let expected = match &error {
            ReplayError::Trace(error) => match (what, &error.reason) {
                ("damage", Reason::Field { .. }) | ("nothing left", Reason::Empty) => true,
                (_, Reason::Changed) => !matches!(what, "damage" | "nothing left"),
                _ => false,
            },
            ReplayError::Memory(_) => false,
        };
        assert!(expected, "{what}: {error}");
        assert!(error.to_string().starts_with(&temp.0.display().to_string()), "{error}");
        assert_eq!(memory.bytes_outstanding(), Bytes::ZERO, "{what}");
    }
}

#[test]
fn a_snapshot_is_held_whole_however_small_the_window() {
    let path = format!("{}/tests/fixtures/snapshot-4.pickle.gz", env!("CARGO_MANIFEST_DIR"));
    let file = TraceFile::open_in_windows(&path, 1).expect("a trace");
    assert_eq!(file.whole(), Some(&read(&path).expect("a trace")));
}

/// A pipe can be read once only.
#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_read_twice_is_held_whole() {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
    let text = with_a_wrong_free();
    let write = std::thread::spawn(move || writer.write_all(text.as_bytes()));
    let file = TraceFile::open_in_windows(path, 4).expect("a trace");
    write.join().expect("no panic").expect("a reader");
    assert_eq!(file.whole().map(|trace| trace.events.len()), Some(39));
}
