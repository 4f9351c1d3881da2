//! Checks that a log which Bursar writes, read back and replayed, gives the statistics of the run it was written in.

use bursar_core::{
    AllocTag, Build, Bytes, CountingDriver, DeviceBlock, DeviceContext, DeviceId, DeviceMemoryResource, Holder, Stack,
    Stream, leaf,
};
use bursar_memory::{Counts, GlobalDeviceBudget, Logging, Statistics};
use bursar_sim::Sim;
use bursar_trace::{Event, EventKind, Replay, Summary, Trace, TraceFile};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

const LIMIT: Bytes = Bytes::mib(1);
const TAGS: [&str; 4] = ["weights", "activations", "a \"quoted, one\"", "κ"];

fn tag(number: u64) -> AllocTag {
    AllocTag::intern(TAGS[number as usize % TAGS.len()])
}

/// A run that is counted and logged in both forms.
struct LoggedRun {
    folder: PathBuf,
    logs: [Logging; 2],
    statistics: Statistics,
    context: Arc<DeviceContext>,
    memory: Arc<dyn DeviceMemoryResource>,
}

impl LoggedRun {
    fn start() -> Self {
        Self::start_with(LIMIT)
    }

    fn start_with(limit: Bytes) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("bursar-logs-{process}-{count}"));
        std::fs::create_dir(&folder).expect("a folder");
        let logs = ["log.csv", "log.jsonl"].map(|name| Logging::to_file(folder.join(name)).expect("a log"));
        let statistics = Statistics::default();
        let context = DeviceContext::open(Sim::immediate(), DeviceId(0)).expect("a device");
        let stack = Stack::new()
            .observe(statistics.clone())
            .observe(logs[0].clone())
            .observe(logs[1].clone())
            .layer(GlobalDeviceBudget::of(limit))
            .over(leaf::Async);
        let memory = Arc::new(stack.build(&context).expect("a stack"));
        Self { folder, logs, statistics, context, memory }
    }

    /// Closes the logs and returns the counts of the run until then.
    fn close(&self) -> Run {
        for log in &self.logs {
            let summary = log.close(Duration::from_secs(120)).expect("the writer does not block");
            assert_eq!(summary.dropped, 0);
        }
        let Self { statistics, .. } = self;
        Run {
            counts: statistics.counts(),
            tags: TAGS.map(|name| statistics.counts_of(AllocTag::intern(name))),
            failed: statistics.refused() + statistics.failed(),
        }
    }

    /// The traces of both logs, whole and in windows.
    fn traces(&self) -> Vec<TraceFile> {
        let paths = ["log.csv", "log.jsonl"].map(|name| self.folder.join(name));
        let open = |path, window| TraceFile::open_in_windows(path, window).expect("a trace");
        paths.iter().flat_map(|path| [open(path, usize::MAX), open(path, 16)]).collect()
    }
}

impl Drop for LoggedRun {
    fn drop(&mut self) {
        let _best_effort = std::fs::remove_dir_all(&self.folder);
    }
}

/// The counts of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    counts: Counts,
    tags: [Counts; 4],
    failed: u64,
}

impl Run {
    /// Returns the counts that a replay must have: failures are not replayed, and everything is freed in the end.
    fn replayed(mut self) -> Self {
        self.failed = 0;
        self.tags.iter_mut().chain([&mut self.counts]).for_each(|counts| counts.current = Default::default());
        self
    }
}

/// Replays a trace once, on one thread, under the same limit, and returns the counts.
fn watched(file: &TraceFile) -> Run {
    let statistics = Statistics::default();
    let context = DeviceContext::open(Sim::immediate(), DeviceId(0)).expect("a device");
    let stack = Stack::new().observe(statistics.clone()).layer(GlobalDeviceBudget::of(LIMIT)).over(leaf::Async);
    let memory = stack.build(&context).expect("a stack");
    Replay::of(file, &context).expect("streams").watch(&memory, &mut |_| {}).expect("a replay");
    Run {
        counts: statistics.counts(),
        tags: TAGS.map(|name| statistics.counts_of(AllocTag::intern(name))),
        failed: statistics.refused() + statistics.failed(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn g1_a_log_read_back_and_replayed_counts_the_same(
        steps in prop::collection::vec((any::<bool>(), any::<u16>(), 1u64..200_000), 1..200),
    ) {
        let logged = LoggedRun::start();
        let streams = [logged.context.default_stream(), logged.context.create_stream(0).expect("a stream")];
        let mut live: Vec<DeviceBlock> = Vec::new();
        let (mut asked, mut peak_asked) = (0, 0);
        for (frees, pick, bytes) in steps {
            let stream = streams[usize::from(pick) % 2];
            if frees && !live.is_empty() {
                let block = live.swap_remove(usize::from(pick) % live.len());
                asked -= block.requested().get();
                logged.memory.deallocate(block, stream).expect("it is ours");
            } else if let Ok(block) = logged.memory.allocate(bytes, 256, stream, tag(u64::from(pick))) {
                live.push(block);
                asked += bytes;
                peak_asked = peak_asked.max(asked);
            }
        }
        let run = logged.close();
        prop_assert_eq!(run.counts.current.count, live.len() as u64);
        if run.counts.total.count + run.failed > 0 {
            for file in logged.traces() {
                let Summary { operations, blocks, failures, peak_live, unknown_frees, missing_frees, threads, .. } =
                    *file.summary();
                prop_assert_eq!((u64::from(blocks), failures), (run.counts.total.count, run.failed));
                prop_assert_eq!((unknown_frees, missing_frees), (0, live.len() as u64));
                prop_assert_eq!(operations, 2 * u64::from(blocks) - missing_frees);
                prop_assert_eq!((peak_live, threads), (Bytes(peak_asked), 1));
                prop_assert_eq!(watched(&file), run.replayed());
            }
        }
        for block in live {
            logged.memory.deallocate(block, streams[0]).expect("it is ours");
        }
    }
}

#[test]
fn a_replay_that_is_logged_is_the_trace_again() {
    let trace = bursar_trace::bundled();
    let mut rows = trace.events.clone();
    // The bundled trace has one stream and no tags; this has three and four.
    for (position, event) in rows.iter_mut().enumerate() {
        event.stream = (position % 3) as u16;
        event.tag = tag(u64::from(event.block));
    }
    let trace = Trace { events: rows, streams: vec![0, 7, 9], ..trace };
    let logged = LoggedRun::start_with(Bytes::MAX);
    let replay = Replay::new(&trace, &logged.context).expect("streams");
    replay.watch(&*logged.memory, &mut |_| {}).expect("a replay");
    logged.close();
    for name in ["log.csv", "log.jsonl"] {
        let again = bursar_trace::read(logged.folder.join(name)).expect("a trace");
        assert_eq!((again.unknown_frees.len(), again.missing_frees.len()), (0, 0));
        let mut streams = HashMap::new();
        for (event, again) in trace.events.iter().zip(&again.events) {
            let tag = |event: &Event| (event.kind == EventKind::Allocate).then_some(event.tag);
            let what = |event: &Event| (event.kind, event.bytes, event.block, event.device, tag(event));
            assert_eq!(what(event), what(again));
            assert_eq!(*streams.entry(event.stream).or_insert(again.stream), again.stream, "{event:?}");
        }
        let distinct: HashSet<_> = streams.values().collect();
        assert_eq!((streams.len(), distinct.len()), (3, 3), "each stream has one of its own");
        assert_eq!(again.events.len(), trace.events.len() + trace.missing_frees.len());
    }
}

const THREADS: u64 = 8;
const ROUNDS: u64 = 5;
const BLOCKS: u64 = 20;

/// Runs one of eight threads: in each round it allocates blocks, sends them to the next thread, and frees the blocks that it
/// receives. No thread frees before all have allocated, so the peak does not depend on which is faster.
fn worker(
    number: u64,
    logged: &LoggedRun,
    stream: Stream,
    meet: &Barrier,
    (give, take): (mpsc::Sender<DeviceBlock>, mpsc::Receiver<DeviceBlock>),
) {
    for round in 0..ROUNDS {
        for block in 0..BLOCKS {
            let bytes = 1 + (number * 1009 + round * 617 + block * 97) % 5000;
            give.send(logged.memory.allocate(bytes, 1, stream, tag(block)).expect("it fits")).expect("a reader");
        }
        logged.memory.allocate(LIMIT.get() + 1, 1, stream, tag(round)).expect_err("it never fits");
        meet.wait();
        for _ in 0..BLOCKS {
            logged.memory.deallocate(take.recv().expect("a writer"), stream).expect("it is ours");
        }
        meet.wait();
    }
}

/// Returns the most bytes that are live at a time: those granted in the largest round.
fn most_granted(memory: &dyn DeviceMemoryResource) -> Bytes {
    let of_round = |round| {
        let sizes = (0..THREADS).flat_map(move |number| {
            (0..BLOCKS).map(move |block| 1 + (number * 1009 + round * 617 + block * 97) % 5000)
        });
        sizes.map(|bytes| memory.granted_size(bytes, 1).expect("a size").get()).sum()
    };
    Bytes((0..ROUNDS).map(of_round).max().expect("rounds"))
}

#[test]
fn g1_a_log_of_eight_threads_that_free_each_others_blocks_counts_the_same() {
    let logged = LoggedRun::start();
    let meet = Barrier::new(THREADS as usize);
    let (mut givers, takers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel()).unzip();
    givers.rotate_left(1);
    std::thread::scope(|scope| {
        for (number, ends) in givers.into_iter().zip(takers).enumerate() {
            let (logged, meet) = (&logged, &meet);
            let stream = logged.context.create_stream(0).expect("a stream");
            scope.spawn(move || worker(number as u64, logged, stream, meet, ends));
        }
    });
    let run = logged.close();
    let peak = most_granted(&*logged.memory);
    assert_eq!((run.counts.total.count, run.failed), (THREADS * ROUNDS * BLOCKS, THREADS * ROUNDS));
    for file in logged.traces() {
        let Summary { operations, blocks, failures, unknown_frees, missing_frees, threads, streams, .. } =
            *file.summary();
        assert_eq!((u64::from(blocks), operations), (run.counts.total.count, 2 * run.counts.total.count));
        assert_eq!((failures, unknown_frees, missing_frees), (run.failed, 0, 0));
        assert_eq!((threads, streams), (THREADS as usize, THREADS as usize));

        let replayed = watched(&file);
        assert_eq!((replayed.counts.peak.bytes, replayed.failed), (peak, 0));
        assert_eq!(replayed.counts.total, run.counts.total);
        assert_eq!(replayed.tags.map(|counts| counts.total), run.tags.map(|counts| counts.total));
        assert_eq!(in_threads(&file, blocks), [3 * run.counts.total.bytes.get(), 3 * run.counts.total.count]);
    }
}

/// Replays a trace on as many threads as it has, three times, and returns the total of granted bytes.
fn in_threads(file: &TraceFile, blocks: u32) -> [u64; 2] {
    let statistics = Statistics::default();
    let driver = CountingDriver::new(Sim::immediate());
    let context = DeviceContext::open(driver.clone(), DeviceId(0)).expect("a device");
    let memory = Stack::new().observe(statistics.clone()).over(leaf::Async).build(&context).expect("a stack");
    let cost = Replay::of(file, &context).expect("streams").run(&memory, &driver).expect("a replay");
    assert_eq!((cost.operations, cost.refused), (2 * u64::from(blocks), 0));
    assert_eq!(memory.bytes_outstanding(), Bytes::ZERO);
    let Counts { current, total, .. } = statistics.counts();
    assert_eq!(current.count, 0);
    [total.bytes.get(), total.count]
}
