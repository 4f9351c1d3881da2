//! G3: programs without bugs are never reported, whatever they do and however many threads do it.
#![allow(unsafe_code)]

mod common;

use bursar_core::{
    Build, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, Driver, Holder, Pattern, RawStream, Stack, Stream,
    leaf, tag,
};
use bursar_memory::Guard;
use bursar_sim::{Random, Sim};
use common::{RandomSize, context};
use std::time::Duration;

/// Random programs that write only what is theirs, on three streams that they order themselves, adopted ones included.
#[test]
fn g3_programs_without_bugs_are_never_reported() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let sim = Sim::seeded(seed);
        let context = context(sim.clone());
        let guard = Guard::default().quarantine(Bytes(random.below(200_000)));
        let memory = Stack::new().layer(guard.clone()).over(leaf::Async).build(&context).expect("a stack");
        let raw = sim.stream_create(context.device(), 0).expect("a stream of somebody else");
        // SAFETY: the stream is not destroyed before its adoption has ended.
        let mut adopted = Some(unsafe { context.adopt_stream(raw) }.expect("room"));
        let mut streams = vec![adopted.as_ref().expect("just made").stream()];
        streams.extend((0..2).map(|_| context.create_stream(0).expect("a stream")));
        let mut live: Vec<DeviceBlock> = Vec::new();
        for _ in 0..60 {
            match random.below(12) {
                0..=4 => {
                    let (stream, align) =
                        (streams[random.below(streams.len() as u64) as usize], 256 << random.below(4));
                    let bytes = random.size(60_000);
                    live.push(memory.allocate(bytes, align, stream, tag!("program")).expect("nothing is wrong"));
                }
                5..=6 if !live.is_empty() => {
                    let mut block = live.swap_remove(random.below(live.len() as u64) as usize);
                    let stream = streams[random.below(streams.len() as u64) as usize];
                    if live_stream(&context, block.stream()) {
                        let bytes = block.requested().get();
                        context.fill(&mut block, 0, Pattern::U8(0xdb), bytes, stream).expect("ordered and waited for");
                    }
                    live.push(block);
                }
                7..=9 if !live.is_empty() => {
                    let block = live.swap_remove(random.below(live.len() as u64) as usize);
                    let stream = streams[random.below(streams.len() as u64) as usize];
                    memory.deallocate(block, stream).expect("its own");
                }
                10 => assert_eq!(guard.check(), Ok(Vec::new()), "seed {seed}"),
                11 if random.below(8) == 0 && adopted.is_some() => {
                    streams.remove(0);
                    drop(adopted.take());
                }
                _ => drop(memory.reap().unwrap_or_else(|error| panic!("seed {seed}: {error}"))),
            }
        }
        for block in live {
            memory.deallocate(block, streams[streams.len() - 1]).expect("its own");
        }
        assert_eq!(guard.check(), Ok(Vec::new()), "seed {seed}");
        memory.reap_blocking(Duration::MAX).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(memory.bytes_outstanding(), Bytes::ZERO, "seed {seed}");
        drop((adopted, memory));
        destroy(&sim, &context, raw);
        drop(context);
        sim.assert_clean();
        assert!(sim.leaks().is_empty(), "seed {seed}: {}", sim.leaks());
    }
}

fn live_stream(context: &DeviceContext, stream: Stream) -> bool {
    context.check_stream(stream).is_ok()
}

fn destroy(sim: &Sim, context: &DeviceContext, raw: RawStream) {
    // SAFETY: made by the test, and its adoption has ended.
    unsafe { sim.stream_destroy(context.device(), raw) }.expect("the device works");
}

/// Threads that allocate and free while another checks: a look never meets a block that is gone.
#[test]
fn g3_a_check_may_run_beside_everything_else() {
    for seed in 0..8 {
        let sim = Sim::seeded(seed);
        let context = context(sim.clone());
        let guard = Guard::default().quarantine(Bytes::kib(64));
        let memory = Stack::new().layer(guard.clone()).over(leaf::Async).build(&context).expect("a stack");
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (memory, context) = (&memory, &context);
                scope.spawn(move || {
                    let stream = context.create_stream(0).expect("a stream");
                    let mut random = Random::new(seed * 8 + thread);
                    for _ in 0..100 {
                        let bytes = random.size(20_000);
                        let block = memory.allocate(bytes, 256, stream, tag!("busy")).expect("nothing is wrong");
                        memory.deallocate(block, stream).expect("its own");
                    }
                });
            }
            for _ in 0..20 {
                assert_eq!(guard.check(), Ok(Vec::new()));
            }
        });
        memory.reap_blocking(Duration::MAX).expect("nothing is wrong");
        assert_eq!(memory.bytes_outstanding(), Bytes::ZERO);
        sim.assert_clean();
    }
}
