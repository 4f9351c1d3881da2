//! Checks that traces are read back as they were written: Trace → CSV, JSON lines, PyTorch snapshot → Trace.

use bursar_core::AllocTag;
use bursar_trace::{
    Event, EventKind, EventOrigin, FilePosition, Format, Trace, TraceBuilder, TraceLayout, bundled, convert, read,
    read_from, write, write_csv, write_jsonl, write_torch_snapshot,
};
use proptest::prelude::*;

/// A step of a recording, with its thread, stream and device.
#[derive(Clone, Debug)]
struct Step {
    thread: u64,
    stream: u64,
    device: u64,
    operation: Operation,
}

#[derive(Clone, Debug)]
enum Operation {
    Allocate(u64, &'static str),
    Free(prop::sample::Index),
    Fail(u64, &'static str),
}

const TAGS: [&str; 8] = ["untagged", "weights", "kv, cache", "say \"hi\"", " spaced ", "naïve/é", "a", "'=1"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![1u64..5000, Just(1), 1u64..(1 << 40)];
    let tag = prop::sample::select(&TAGS[..]);
    let operation = prop_oneof![
        3 => (bytes, tag.clone()).prop_map(|(bytes, tag)| Operation::Allocate(bytes, tag)),
        2 => any::<prop::sample::Index>().prop_map(Operation::Free),
        1 => (0..u64::MAX / 2, tag).prop_map(|(bytes, tag)| Operation::Fail(bytes, tag)),
    ];
    let names = prop_oneof![0u64..4, any::<u64>()];
    let step = (names.clone(), names, 0u64..3, operation);
    prop::collection::vec(
        step.prop_map(|(thread, stream, device, operation)| Step { thread, stream, device, operation }),
        1..80,
    )
}

fn build(steps: &[Step]) -> Trace {
    let mut builder = TraceBuilder::new("made up", Format::Csv);
    let mut live = Vec::new();
    for (number, step) in (1..).zip(steps) {
        let origin = EventOrigin {
            position: FilePosition(number),
            thread: step.thread,
            stream: step.stream,
            device: step.device,
        };
        let done = match &step.operation {
            Operation::Allocate(bytes, tag) => {
                live.push((number << 9, step.device));
                builder.allocate(origin, number << 9, *bytes, AllocTag::intern(tag))
            }
            Operation::Free(_) if live.is_empty() => Ok(()),
            Operation::Free(which) => {
                let (pointer, device) = live.swap_remove(which.index(live.len()));
                builder.free(EventOrigin { device, ..origin }, pointer, 0)
            }
            Operation::Fail(bytes, tag) => builder.fail(origin, *bytes, AllocTag::intern(tag)),
        };
        done.expect("within every limit");
    }
    builder.finish()
}

/// Returns the parts of a trace that every format keeps.
fn essence(trace: &Trace) -> (&[Event], &[u64], &[u64], u32, usize) {
    (&trace.events, &trace.threads, &trace.streams, trace.blocks, trace.missing_frees.len())
}

fn through(write: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>, name: &str) -> Trace {
    let mut bytes = Vec::new();
    write(&mut bytes).expect("memory");
    read_from(&bytes[..], name).expect("what we wrote")
}

proptest! {
    #[test]
    fn csv_and_json_lines_keep_everything(steps in steps()) {
        let trace = build(&steps);
        prop_assume!(!trace.events.is_empty());
        let csv = through(|to| write_csv(&trace, to), "csv");
        prop_assert_eq!(essence(&csv), essence(&trace));
        let json = through(|to| write_jsonl(&csv, to), "json");
        prop_assert_eq!(essence(&json), essence(&trace));
    }

    #[test]
    fn a_snapshot_keeps_all_but_the_threads(steps in steps()) {
        let steps: Vec<_> = steps.into_iter().map(|step| Step { thread: 0, ..step }).collect();
        let trace = build(&steps);
        prop_assume!(!trace.events.is_empty());
        let torch = through(|to| write_torch_snapshot(&trace, to), "torch");
        prop_assert_eq!(essence(&torch), essence(&trace));
    }

    /// Live blocks never overlap, and each lies in a segment of its device.
    #[test]
    fn a_layout_is_one_that_memory_could_have(steps in steps()) {
        let trace = build(&steps);
        let layout = TraceLayout::best_fit(&trace).expect("it fits");
        let mut live = std::collections::BTreeMap::new();
        for event in &trace.events {
            let Some(&address) = layout.addresses.get(event.block as usize) else { continue };
            if event.kind == EventKind::Free {
                prop_assert!(live.remove(&address).is_some());
                continue;
            }
            let end = address + event.bytes;
            let inside = |s: &&bursar_trace::Segment| s.device == event.device && s.address <= address && end <= s.address + s.bytes;
            prop_assert!(layout.segments.iter().find(inside).is_some());
            let before = live.range(..end).next_back().map_or(0, |(_, &before_end)| before_end);
            prop_assert!(before <= address);
            live.insert(address, end);
        }
    }
}

#[test]
fn files_are_converted_in_a_ring_and_gzipped_where_the_name_says_so() {
    let folder = std::env::temp_dir().join(format!("bursar-convert-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let trace = bundled();
    write(&trace, folder.join("0.csv.gz")).expect("written");
    for (number, extension) in ["jsonl", "pickle.gz", "csv", "jsonl.gz", "pkl", "csv.gz"].iter().enumerate() {
        let mut files = std::fs::read_dir(&folder).expect("a folder").filter_map(|entry| Some(entry.ok()?.path()));
        let is_last = |path: &std::path::PathBuf| path.display().to_string().contains(&format!("/{number}."));
        let from = files.find(is_last).expect("the last one");
        let to = folder.join(format!("{}.{extension}", number + 1));
        convert(&from, &to).expect("converted");
        let packed = std::fs::read(&to).expect("a file").starts_with(b"\x1f\x8b");
        assert_eq!(packed, extension.ends_with("gz"));
        let read = read(&to).expect("what we wrote");
        assert_eq!(read.events, trace.events, "{extension}");
        assert_eq!(read.missing_frees.len(), trace.missing_frees.len());
    }
    std::fs::remove_dir_all(&folder).expect("our own folder");
}

#[test]
fn a_trace_put_together_wrongly_is_an_error_and_not_a_panic() {
    let good = bundled();
    let event = good.events[0];
    for wrong in [
        Event { block: 7, ..event },
        Event { thread: 1, ..event },
        Event { stream: 1, ..event },
        Event { bytes: u64::MAX, ..event },
    ] {
        let trace = Trace { events: vec![wrong], blocks: 1, ..good.clone() };
        let (csv, json) = (write_csv(&trace, std::io::sink()), write_jsonl(&trace, std::io::sink()));
        let torch = write_torch_snapshot(&trace, std::io::sink());
        assert!(csv.is_err() && json.is_err() && torch.is_err(), "{wrong:?}");
    }
    let full = |space: usize| {
        let mut space = vec![0; space];
        write_csv(&good, &mut space[..]).expect_err("no room").kind()
    };
    assert_eq!(full(1000), std::io::ErrorKind::WriteZero);
}

/// A file that cannot be written leaves what was there before, and nothing beside it.
#[test]
fn a_trace_that_cannot_be_written_replaces_nothing() {
    let folder = std::env::temp_dir().join(format!("bursar-replace-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (good, event) = (bundled(), bundled().events[0]);
    let wrong = Trace { events: vec![event, Event { block: 7, ..event }], blocks: 1, ..good.clone() };
    for name in ["run.csv", "run.jsonl.gz", "run.pickle"] {
        let path = folder.join(name);
        assert!(write(&wrong, &path).is_err() && !path.exists(), "{name}: half a file is none");
        write(&good, &path).expect("written");
        let before = std::fs::read(&path).expect("a file");
        assert!(write(&wrong, &path).is_err(), "{name}");
        assert_eq!(std::fs::read(&path).expect("a file"), before, "{name}");
        write(&good, &path).expect("written over");
        assert_eq!(read(&path).expect("a trace").events, good.events);
    }
    assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 3, "nothing is left beside them");
    std::fs::remove_dir_all(&folder).expect("our own folder");
}
