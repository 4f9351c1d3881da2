//! Traces that are made or varied, and the streams on which a replay frees.

use bursar_core::{
    Action, Actions, Build, Bytes, DeviceContext, DeviceId, Holding, Observer, Record, Stack, Stream, leaf,
};
use bursar_sim::{Random, Sim};
use bursar_trace::{Event, EventKind, Format, FreeStream, Replay, Trace, TraceFamily, TraceGenerator};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Returns a short trace of each family.
fn families(seed: u64) -> Vec<Trace> {
    let rounds = |family| match family {
        TraceFamily::Server => 12,
        TraceFamily::Training => 9,
        _ => 300,
    };
    TraceFamily::ALL.map(|family| TraceGenerator::new(family).seed(seed).rounds(rounds(family)).generate()).into()
}

/// Returns the stream that allocates and the one that frees each block; fails if a block is not live when it is freed.
fn streams(trace: &Trace) -> HashMap<u32, (u16, u16)> {
    let (mut live, mut ended) = (HashMap::new(), HashMap::new());
    for Event { block, bytes, stream, kind, .. } in &trace.events {
        match kind {
            EventKind::Allocate => assert_eq!(live.insert(*block, (*stream, *bytes)), None, "{block}"),
            EventKind::Free => {
                let (own, allocated) = live.remove(block).expect("live until it is freed");
                assert_eq!(allocated, *bytes, "a free has the size of its allocation");
                ended.insert(*block, (own, *stream));
            }
            EventKind::Fail => {}
        }
    }
    ended
}

#[test]
fn every_family_frees_every_block_once_and_a_seed_decides_everything() {
    for seed in 0..20 {
        for (trace, again) in families(seed).into_iter().zip(families(seed)) {
            assert_eq!(trace, again, "seed {seed}");
            assert_eq!(streams(&trace).len(), trace.blocks as usize, "{}", trace.name);
            assert!(trace.strict().is_ok() && trace.peak_live() > Bytes::mib(1), "{}", trace.name);
            assert!(trace.events.iter().all(|event| usize::from(event.stream) < trace.streams.len()), "{}", trace.name);
        }
    }
    let first: HashSet<_> =
        (0..20).map(|seed| families(seed).iter().map(Trace::peak_live).collect::<Vec<_>>()).collect();
    assert_eq!(first.len(), 20, "each seed is another program");
}

#[test]
fn families_have_the_streams_and_rounds_they_were_given() {
    for family in TraceFamily::ALL {
        for count in [1, 2, 5] {
            let trace = TraceGenerator::new(family).streams(count).rounds(40).generate();
            let used: HashSet<u16> = trace.events.iter().map(|event| event.stream).collect();
            assert_eq!(trace.streams.len(), usize::from(count));
            let expected = if family == TraceFamily::Training { count.min(2) } else { count };
            assert_eq!(used.len(), usize::from(expected), "{}", trace.name);
            let is_foreign = streams(&trace).values().any(|(own, freeing)| own != freeing);
            assert_eq!(is_foreign, count > 1 && family != TraceFamily::Server, "{}", trace.name);
        }
    }
}

#[test]
fn a_generator_is_read_as_it_is_written_and_what_it_is_not_is_said() {
    let mut random = Random::new(5);
    for _ in 0..200 {
        let family = random.pick(&TraceFamily::ALL).expect("some");
        let generator = TraceGenerator::new(family).seed(random.next_u64()).streams(random.below(300) as u16);
        let generator = generator.rounds(random.below(1 << 21) as u32);
        assert_eq!(generator.to_string().parse(), Ok(generator));
    }
    for (text, said) in [
        ("waiter", "no family of traces is called \"waiter\": server, pipeline"),
        ("", "no family of traces is called \"\""),
        ("mix,", "\"\" is no option"),
        ("mix,seed", "\"seed\" is no option"),
        ("mix,layers=3", "seed=N, streams=N or rounds=N"),
        ("mix,seed=-1", "\"seed=-1\" needs a whole number"),
        ("mix,streams=0", "\"streams=0\" needs a whole number from 1 to 256"),
        ("training,rounds=10001", "from 1 to 10000"),
    ] {
        let error = text.parse::<TraceGenerator>().expect_err(text).to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
    assert_eq!("mix,seed=0".parse(), Ok(TraceGenerator::new(TraceFamily::Mix).seed(0)));
}

#[test]
fn a_dealt_trace_differs_in_its_streams_alone() {
    for trace in families(3).into_iter().chain([bursar_trace::bundled()]) {
        for (count, frees) in [(1, FreeStream::Next), (4, FreeStream::Own), (4, FreeStream::Next)] {
            let dealt = trace.dealt(count, frees);
            for (block, (own, freeing)) in streams(&dealt) {
                let next = if frees == FreeStream::Next { (own + 1) % count } else { own };
                assert_eq!((own, freeing), ((block % u32::from(count)) as u16, next));
            }
            let plain =
                |trace: &Trace| trace.events.iter().map(|event| Event { stream: 0, ..*event }).collect::<Vec<_>>();
            assert_eq!(plain(&dealt), plain(&trace));
            assert_eq!((dealt.blocks, &dealt.missing_frees), (trace.blocks, &trace.missing_frees));
        }
    }
}

#[test]
fn a_varied_trace_differs_in_its_sizes_alone_and_within_the_bounds() {
    let trace = bursar_trace::bundled();
    for (part, least, most) in
        [(0.1, 0.9, 1.1), (0.0, 1.0, 1.0), (1.0, 0.0, 2.0), (7.0, 0.0, 2.0), (f64::NAN, 1.0, 1.0)]
    {
        let varied = trace.jittered(part, 11);
        streams(&varied);
        for (event, before) in varied.events.iter().zip(&trace.events) {
            assert_eq!(Event { bytes: 0, ..*event }, Event { bytes: 0, ..*before });
            let (bytes, before) = (event.bytes as f64, before.bytes as f64);
            assert!(
                event.bytes > 0 && bytes >= before * least - 1.0 && bytes <= before * most + 1.0,
                "{part}: {event:?}"
            );
        }
    }
    assert_ne!(trace.jittered(0.1, 11), trace.jittered(0.1, 12));
}

#[test]
fn records_keep_streams_blocks_and_sizes() {
    for trace in families(7) {
        let trace = trace.dealt(3, FreeStream::Next);
        let mut records = Vec::new();
        bursar_trace::write_records(&trace, &mut records).expect("memory");
        let read = bursar_trace::read_from(&records[..], "made.bin").expect("records");
        let plain =
            |trace: &Trace| trace.events.iter().map(|e| (e.kind, e.block, e.bytes, e.stream)).collect::<Vec<_>>();
        assert_eq!((read.format, plain(&read)), (Format::Records, plain(&trace)));
        let cut = bursar_trace::read_from(&records[..records.len() - 5], "cut.bin").expect_err("cut");
        let last = trace.events.len();
        assert_eq!(
            cut.to_string(),
            format!("cut.bin: record {last}: the file ends in the middle of a record of 16 bytes")
        );
    }
    assert_eq!(Format::of_path(Path::new("run.bin.gz")), Some(Format::Records));
    let mut several = families(1).remove(0);
    several.events[1].device = 1;
    let refused = bursar_trace::write_records(&several, Vec::new()).expect_err("no place for a device");
    assert!(refused.to_string().contains("has several"), "{refused}");
}

/// Keeps the streams that blocks are allocated and freed on.
#[derive(Debug, Default)]
struct Streams(Mutex<Vec<(Action, Option<Stream>)>>);

impl Observer for Streams {
    fn interest(&self) -> Actions {
        Actions::of(&[Action::Allocate, Action::Free])
    }

    fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn holders(&self, _: DeviceId) -> Option<Vec<Holding>> {
        None
    }

    fn record(&self, record: &Record<'_>) {
        self.0.lock().expect("no panic").push((record.action, record.stream));
    }
}

#[test]
fn a_replay_frees_each_block_on_the_stream_that_the_trace_names() {
    let trace = TraceGenerator::new(TraceFamily::Pipeline).rounds(20).generate();
    assert!(streams(&trace).values().any(|(own, freeing)| own != freeing));
    let mut log = Vec::new();
    bursar_trace::write_csv(&trace, &mut log).expect("memory");
    let read = bursar_trace::read_from(&log[..], "pipeline.csv").expect("a log");
    let context = DeviceContext::open(Sim::immediate(), DeviceId(0)).expect("a device");
    let seen = Arc::new(Streams::default());
    context.sink().subscribe(&(seen.clone() as Arc<dyn Observer>)).expect("room");
    let memory = Stack::new().over(leaf::Async).build(&context).expect("a stack");
    Replay::new(&read, &context).expect("streams").watch(&memory, &mut |_| ()).expect("a replay");
    let seen = seen.0.lock().expect("no panic");
    // The streams of the device in the order in which the trace comes to them.
    let mut numbers: HashMap<Option<Stream>, u16> = HashMap::new();
    let mut expected = HashMap::new();
    for ((action, stream), event) in seen.iter().zip(&trace.events) {
        let is_free = *action == Action::Free;
        assert_eq!(is_free, event.kind == EventKind::Free);
        assert_eq!(*numbers.entry(*stream).or_insert(event.stream), event.stream);
        expected.insert(event.stream, *stream);
    }
    assert_eq!((seen.len(), expected.len()), (trace.events.len(), 4));
}
