//! Runs that are logged and counted again from their logs.

mod common;
mod logging_shared;

use bursar_core::{AllocTag, Build, Bytes, DeviceMemoryResource, Stack, leaf, tag};
use bursar_memory::{Amount, Counts, GlobalDeviceBudget, LogFormat, Logging, Statistics};
use bursar_sim::{Random, Sim};
use common::{RandomSize, context};
use logging_shared::{Paper, closed, csv_rows, json_lines, number};
use std::collections::HashMap;
use std::sync::mpsc;

/// One line of either form, as far as counting goes.
#[derive(Clone, Debug)]
struct Line {
    action: String,
    pointer: u64,
    granted: u64,
    tag: String,
    thread: u64,
    generation: u64,
}

fn of_json(paper: &Paper) -> Vec<Line> {
    let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
    let lines = json_lines(&paper.text()).into_iter().map(|line| Line {
        action: text(&line["action"]),
        pointer: number(&line["pointer"]),
        granted: number(&line["bytes"]),
        tag: text(&line["tag"]),
        thread: number(&line["thread"]),
        generation: number(&line["generation"]),
    });
    lines.collect()
}

fn of_csv(paper: &Paper) -> Vec<Line> {
    let decimal = |text: &str| text.parse().expect("a number");
    let lines = csv_rows(&paper.text()).into_iter().map(|row| Line {
        action: row[2].clone(),
        pointer: number(&row[3].as_str().into()),
        granted: decimal(&row[8]),
        tag: row[7].clone(),
        thread: decimal(&row[0]),
        generation: decimal(&row[9]),
    });
    lines.collect()
}

fn recounted<'a>(lines: impl IntoIterator<Item = &'a Line>) -> Counts {
    let mut counts = Counts::default();
    let Counts { current, peak, total } = &mut counts;
    for line in lines {
        match line.action.as_str() {
            "allocate" => {
                for amount in [&mut *current, &mut *total] {
                    *amount = Amount { bytes: Bytes(amount.bytes.get() + line.granted), count: amount.count + 1 };
                }
                *peak = Amount { bytes: peak.bytes.max(current.bytes), count: peak.count.max(current.count) };
            }
            "free" => {
                *current = Amount { bytes: Bytes(current.bytes.get() - line.granted), count: current.count - 1 };
            }
            _ => {}
        }
    }
    counts
}

fn with_action(lines: &[Line], action: &str) -> u64 {
    lines.iter().filter(|line| line.action == action).count() as u64
}

/// Two logs of the same run, one of each form.
fn logs() -> ([Paper; 2], [Logging; 2]) {
    let papers = [Paper::default(), Paper::default()];
    let log = |format, paper: &Paper| Logging::builder().format(format).capacity(1 << 18).to_writer(paper.clone());
    let logs = [log(LogFormat::JsonLines, &papers[0]), log(LogFormat::Csv, &papers[1])];
    (papers, logs.map(|log| log.expect("a log")))
}

#[test]
fn g1_a_log_counted_again_gives_the_same_statistics() {
    for seed in 0..4 {
        let (papers, logs) = logs();
        let statistics = Statistics::default();
        let context = context(Sim::immediate());
        let observed = Stack::new().observe(logs[0].clone()).observe(logs[1].clone()).observe(statistics.clone());
        let stack = observed.layer(GlobalDeviceBudget::of(Bytes::mib(16))).over(leaf::Async);
        let memory = stack.build(&context).expect("a stack");
        let stream = context.create_stream(0).expect("a stream");
        let tags = [tag!("one"), tag!("two"), tag!("three, with a comma")];
        let (mut random, mut live) = (Random::new(seed), Vec::new());
        for _ in 0..2000 {
            if live.is_empty() || random.below(5) < 3 {
                let tag = tags[random.below(3) as usize];
                live.extend(memory.allocate(random.size(2 << 20), 256, stream, tag));
            } else {
                let block = live.swap_remove(random.below(live.len() as u64) as usize);
                memory.deallocate(block, stream).expect("its own");
            }
        }
        logs.iter().for_each(|log| assert_eq!(closed(log).dropped, 0));

        let (json, csv) = (of_json(&papers[0]), of_csv(&papers[1]));
        let of = |lines: &[Line], tag: AllocTag| recounted(lines.iter().filter(|line| line.tag == tag.name()));
        for lines in [&json, &csv] {
            assert_eq!(recounted(lines), statistics.counts(), "seed {seed}");
            for tag in tags {
                assert_eq!(of(lines, tag), statistics.counts_of(tag), "seed {seed}, {tag}");
            }
        }
        assert!(statistics.refused() > 0, "the budget was full now and then");
        assert_eq!(statistics.failed(), 0, "and nothing else was wrong");
        assert_eq!(with_action(&csv, "allocate failure"), statistics.refused());
        assert_eq!(with_action(&json, "fail"), statistics.refused());
        assert_eq!(with_action(&json, "refuse"), statistics.refused());
        live.into_iter().for_each(|block| memory.deallocate(block, stream).expect("its own"));
    }
}

const THREADS: u64 = 4;
const LARGEST: u64 = 1 << 16;

#[test]
fn g1_a_log_of_many_threads_keeps_the_order_of_each_address() {
    let (papers, logs) = logs();
    let statistics = Statistics::default();
    let context = context(Sim::immediate());
    let observed = Stack::new().observe(logs[0].clone()).observe(logs[1].clone()).observe(statistics.clone());
    let memory = observed.over(leaf::Async).build(&context).expect("a stack");
    let stream = context.create_stream(0).expect("a stream");
    std::thread::scope(|scope| {
        // Each thread frees half of its blocks itself and hands the others to the next thread.
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel()).unzip();
        for (at, received) in receivers.into_iter().enumerate() {
            let (memory, next) = (&memory, senders[(at + 1) % senders.len()].clone());
            scope.spawn(move || {
                let mut random = Random::new(at as u64 + 1);
                for _ in 0..4000 {
                    let block = memory.allocate(random.size(LARGEST), 256, stream, tag!("many")).expect("room");
                    match random.below(2) {
                        0 => memory.deallocate(block, stream).expect("its own"),
                        _ => next.send(block).expect("the receiver lives as long as its senders"),
                    }
                    received.try_iter().for_each(|block| memory.deallocate(block, stream).expect("its own"));
                }
                drop(next);
                received.iter().for_each(|block| memory.deallocate(block, stream).expect("its own"));
            });
        }
        drop(senders);
    });
    logs.iter().for_each(|log| assert_eq!(closed(log).dropped, 0));

    for lines in [of_json(&papers[0]), of_csv(&papers[1])] {
        let mut lives = HashMap::<u64, Vec<&Line>>::new();
        for line in lines.iter().filter(|line| line.pointer != 0) {
            lives.entry(line.pointer).or_default().push(line);
        }
        for (pointer, lives) in &lives {
            for life in lives.chunks(2) {
                let [allocated, freed] = life else { panic!("{pointer:#x} was not freed: {life:?}") };
                assert_eq!((allocated.action.as_str(), freed.action.as_str()), ("allocate", "free"), "{pointer:#x}");
                assert_eq!((allocated.generation, allocated.granted), (freed.generation, freed.granted));
            }
        }
        assert!(lives.values().any(|lives| lives.len() > 2), "addresses were used again");
        let handed = lives.values().flat_map(|lives| lives.chunks(2)).filter(|life| life[0].thread != life[1].thread);
        assert!(handed.count() > 0, "blocks were freed by other threads");

        let (again, counts) = (recounted(&lines), statistics.counts());
        assert_eq!((again.current, again.total), (counts.current, counts.total));
        // While threads run at the same time, each observer sees them in an order of its own: by one operation a thread,
        // and the slack that the statistics allow themselves.
        let apart = again.peak.bytes.get().abs_diff(counts.peak.bytes.get());
        assert!(apart <= THREADS * (LARGEST + (1 << 20)), "{} and {}", again.peak, counts.peak);
    }
}
