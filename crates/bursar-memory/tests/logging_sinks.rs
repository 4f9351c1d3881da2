//! Logs that fail, block, panic and fill the disk: no result changes, and the count of what was dropped says so.

mod common;
mod logging_shared;

use bursar_core::{Build, Bytes, DeviceMemoryResource, Gate, Stack, leaf, tag};
use bursar_memory::{Amount, GlobalDeviceBudget, LogFormat, Logging, Statistics};
use bursar_sim::Sim;
use common::{Dice, context};
use logging_shared::{PATIENCE, Paper, closed, csv_rows, json_lines, number, tell};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// A writer made of a closure.
struct Each<F>(F);

impl<F: FnMut(&[u8]) -> io::Result<usize>> Write for Each<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.0)(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs a seeded program over a stack with little room; returns the outcome of each request, and what was counted.
fn program(logging: Option<Logging>) -> (Vec<String>, Amount, u64) {
    let context = context(Sim::immediate());
    let statistics = Statistics::default();
    let mut stack = Stack::new().observe(statistics.clone());
    if let Some(logging) = logging {
        stack = stack.observe(logging);
    }
    let memory = stack.layer(GlobalDeviceBudget::of(Bytes::mib(4))).over(leaf::Async).build(&context).expect("a stack");
    let stream = context.create_stream(0).expect("a stream");
    let (mut dice, mut live, mut answers) = (Dice::new(7), VecDeque::new(), Vec::new());
    for _ in 0..400 {
        match memory.allocate(dice.size(1 << 20), 256, stream, tag!("program")) {
            Ok(block) => {
                answers.push(format!("{} at {}", block.granted(), block.ptr()));
                live.push_back(block);
            }
            Err(error) => {
                answers.push(error.to_string());
                memory.deallocate(live.pop_front().expect("something holds the room"), stream).expect("its own");
            }
        }
    }
    live.into_iter().for_each(|block| memory.deallocate(block, stream).expect("its own"));
    (answers, statistics.counts().total, statistics.failed())
}

#[test]
fn g1_no_log_changes_a_result() {
    let expected = program(None);
    let failing = || Each(|_: &[u8]| Err(ErrorKind::BrokenPipe.into()));
    let gate = Gate::default();
    let shut = gate.clone();
    let blocking = Each(move |bytes: &[u8]| {
        shut.wait();
        Ok(bytes.len())
    });
    let logs = [
        Logging::builder().to_writer(io::sink()),
        Logging::builder().to_writer(failing()),
        Logging::builder().capacity(1).to_writer(failing()),
        Logging::builder().capacity(2).to_writer(blocking),
        Logging::builder().format(LogFormat::Csv).to_file("/dev/full"),
        Logging::builder().to_writer(Each(|_: &[u8]| -> io::Result<usize> { panic!("on purpose") })),
    ];
    let logs: Vec<_> = logs.into_iter().map(|log| log.expect("a log")).collect();
    for (at, log) in logs.iter().enumerate() {
        assert_eq!(program(Some(log.clone())), expected, "log {at}");
    }
    gate.open();
    let total = |log| {
        let summary = closed(log);
        summary.written + summary.dropped
    };
    let (all, some) = (total(&logs[0]), total(&logs[4]));
    assert!(all > some && some > 400, "JSON lines hold more than CSV");
    for log in [&logs[1], &logs[2], &logs[3], &logs[5]] {
        assert_eq!(total(log), all, "what was dropped and what was written is everything");
    }
}

#[test]
fn g1_a_failing_writer_drops_everything_and_says_so() {
    let logging = Logging::builder().to_writer(Each(|_: &[u8]| Err(ErrorKind::BrokenPipe.into()))).expect("a log");
    tell(&logging, 1000);
    assert!(logging.flush(PATIENCE), "what cannot be written is not waited for");
    assert_eq!((logging.written(), logging.dropped()), (0, 1000));
    let summary = closed(&logging);
    assert_eq!((summary.written, summary.dropped), (0, 1000));
    assert_eq!(summary.error.map(|error| error.kind()), Some(ErrorKind::BrokenPipe));
}

#[test]
fn g1_a_full_disk_drops_everything_and_says_so() {
    for compressed in [false, true] {
        let log = Logging::builder().format(LogFormat::Csv).compressed(compressed).to_file("/dev/full");
        let logging = log.expect("it can be opened");
        tell(&logging, 1000);
        let summary = closed(&logging);
        assert_eq!((summary.written, summary.dropped), (0, 1000));
        assert_eq!(summary.error.map(|error| error.kind()), Some(ErrorKind::StorageFull));
    }
}

#[test]
fn g1_a_log_that_was_full_for_a_while_has_a_gap_and_whole_records() {
    let (paper, full) = (Paper::default(), Arc::new(Mutex::new(true)));
    let (mut below, is_full) = (paper.clone(), full.clone());
    let writer = Each(move |bytes: &[u8]| match *is_full.lock().expect("no panic") {
        true => Err(ErrorKind::StorageFull.into()),
        // As little at a time as a writer may take.
        false => below.write(&bytes[..bytes.len().min(7)]),
    });
    let logging = Logging::builder().format(LogFormat::Csv).to_writer(writer).expect("a log");
    for round in 0..5 {
        *full.lock().expect("no panic") = round % 2 == 0;
        tell(&logging, 10);
        assert!(logging.flush(PATIENCE));
    }
    let summary = closed(&logging);
    assert_eq!((summary.written, summary.dropped), (20, 30));
    assert_eq!(csv_rows(&paper.text()).len(), 20, "the header came with what could first be written");
}

#[test]
fn g1_a_writer_that_fails_within_a_batch_is_not_written_to_again() {
    let paper = Paper::default();
    let (mut below, mut room) = (paper.clone(), 3000);
    let writer = Each(move |bytes: &[u8]| {
        let some = bytes.len().min(room);
        room -= some;
        if some == 0 {
            room = usize::MAX;
            return Err(ErrorKind::StorageFull.into());
        }
        below.write(&bytes[..some])
    });
    let logging = Logging::builder().to_writer(writer).expect("a log");
    tell(&logging, 5);
    assert!(logging.flush(PATIENCE));
    let sound = paper.text();
    tell(&logging, 100);
    assert!(logging.flush(PATIENCE));
    tell(&logging, 5);
    let summary = closed(&logging);
    assert_eq!((summary.written, summary.dropped), (5, 105));
    assert_eq!(paper.text().len(), 3000, "nothing stands behind the half of a record");
    assert!(paper.text().starts_with(&sound) && json_lines(&sound).len() == 5);
}

#[test]
fn g1_a_blocking_writer_drops_what_does_not_fit_and_never_holds_anybody_up() {
    let (paper, entered, gate) = (Paper::default(), Gate::default(), Gate::default());
    let (mut below, arrived, shut) = (paper.clone(), entered.clone(), gate.clone());
    let writer = Each(move |bytes: &[u8]| {
        arrived.open();
        shut.wait();
        below.write(bytes)
    });
    let logging = Logging::builder().capacity(4).to_writer(writer).expect("a log");
    tell(&logging, 1);
    entered.wait();
    tell(&logging, 10);
    assert_eq!((logging.written(), logging.dropped()), (0, 6), "one is being written, four wait");
    assert!(!logging.flush(Duration::from_millis(1)));
    let refused = logging.close(Duration::from_millis(1)).expect_err("it is still blocked");
    assert_eq!(refused.kind(), ErrorKind::TimedOut);

    gate.open();
    let summary = closed(&logging);
    assert_eq!((summary.written, summary.dropped), (5, 6));
    let sizes: Vec<_> = json_lines(&paper.text()).iter().map(|line| number(&line["asked"])).collect();
    assert_eq!(sizes, [1, 1, 2, 3, 4], "the oldest are kept, in order");
}

#[test]
fn g1_a_panicking_writer_drops_everything_and_says_so() {
    struct Bomb;
    impl Write for Bomb {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            panic!("on purpose")
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("on purpose, again")
        }
    }
    let logging = Logging::builder().to_writer(Bomb).expect("a log");
    tell(&logging, 10);
    assert!(logging.flush(PATIENCE));
    assert!(logging.last_error().is_some_and(|error| error.to_string().contains("panicked")));
    let summary = closed(&logging);
    assert_eq!((summary.written, summary.dropped), (0, 10));
    assert!(summary.error.is_some_and(|error| error.to_string().contains("dropped")));
}

#[test]
fn g1_what_is_recorded_after_the_end_is_dropped_and_counted() {
    let paper = Paper::default();
    let logging = Logging::builder().capacity(8).to_writer(paper.clone()).expect("a log");
    tell(&logging, 3);
    closed(&logging);
    tell(&logging, 100);
    let again = closed(&logging);
    assert_eq!((again.written, again.dropped), (3, 100));
    assert!(logging.flush(Duration::ZERO), "nothing is left to wait for");
    assert_eq!(json_lines(&paper.text()).len(), 3);
}

#[test]
fn g1_everything_is_counted_once_while_threads_record_and_the_log_is_closed() {
    const THREADS: u64 = 4;
    const EACH: u64 = 5000;
    let paper = Paper::default();
    let logging = Logging::builder().capacity(64).to_writer(paper.clone()).expect("a log");
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| tell(&logging, EACH));
        }
        closed(&logging);
    });
    let summary = closed(&logging);
    assert_eq!(summary.written + summary.dropped, THREADS * EACH);
    assert_eq!(json_lines(&paper.text()).len() as u64, summary.written);
}

#[test]
fn g1_the_last_handle_closes_the_log() {
    let paper = Paper::default();
    let (mut below, (alive, gone)) = (paper.clone(), mpsc::channel::<()>());
    let writer = Each(move |bytes: &[u8]| {
        let _ours = &alive;
        below.write(bytes)
    });
    let logging = Logging::builder().to_writer(writer).expect("a log");
    let other = logging.clone();
    tell(&logging, 10);
    drop(logging);
    tell(&other, 10);
    drop(other);
    let ended = gone.recv_timeout(PATIENCE).expect_err("nobody sends");
    assert_eq!(ended, mpsc::RecvTimeoutError::Disconnected, "the writer is dropped at the end");
    assert_eq!(json_lines(&paper.text()).len(), 20);
}
