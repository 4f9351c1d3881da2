//! What `cargo xtask instructions` runs under callgrind: one kind of work through one stack of the command, on an immediate
//! simulated device.
//!
//! Without arguments it lists the measurements, one a line; given one of them (`pairs async`), it runs it and prints how many
//! units of work the measured functions did.

#[allow(dead_code, reason = "the command uses more of it")]
#[path = "../src/stacks.rs"]
mod stacks;

use bursar::prelude::*;
use bursar::sim::Sim;
use bursar::trace::{Event, EventKind};
use clap::ValueEnum;
use stacks::StackName;
use std::sync::Arc;

/// Allocations of this size and their frees are one kind of work.
const PAIR: Bytes = Bytes::kib(1);
const PAIRS: u64 = 10_000;

/// The other kind of work is the bundled trace.
const KINDS: [&str; 2] = ["pairs", "replay"];

#[allow(clippy::print_stdout)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let units = match words[..] {
        [] => {
            for kind in KINDS {
                StackName::value_variants().iter().for_each(|stack| println!("{kind} {}", stack.as_str()));
            }
            return Ok(());
        }
        ["pairs", stack] => pairs(StackName::from_str(stack, false)?)?,
        ["replay", stack] => replay(StackName::from_str(stack, false)?)?,
        _ => return Err(format!("no such measurement: {}", words.join(" ")).into()),
    };
    println!("{units}");
    Ok(())
}

fn open(stack: StackName) -> bursar::Result<(Arc<DeviceContext>, Arc<dyn DeviceMemoryResource>)> {
    let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
    let memory = stack.build(&context, None, &Statistics::default())?;
    Ok((context, memory))
}

fn pairs(stack: StackName) -> bursar::Result<u64> {
    let (context, memory) = open(stack)?;
    let (stream, tag) = (context.create_stream(0)?, tag!("pairs"));
    for _ in 0..PAIRS / 10 {
        let block = memory.allocate(PAIR.get(), 256, stream, tag)?;
        memory.deallocate(block, stream)?;
    }
    measured_pairs(&*memory, stream, tag)?;
    Ok(PAIRS)
}

#[inline(never)]
fn measured_pairs(memory: &dyn DeviceMemoryResource, stream: Stream, tag: AllocTag) -> bursar::Result<()> {
    for _ in 0..PAIRS {
        let block = memory.allocate(PAIR.get(), 256, stream, tag)?;
        memory.deallocate(block, stream)?;
    }
    Ok(())
}

fn replay(stack: StackName) -> bursar::Result<u64> {
    let (context, memory) = open(stack)?;
    let trace = bursar::trace::bundled();
    let streams = trace.streams.iter().map(|_| context.create_stream(0)).collect::<bursar::Result<Vec<_>>>()?;
    let mut blocks: Vec<Option<DeviceBlock>> = (0..trace.blocks).map(|_| None).collect();
    for event in &trace.events {
        step(&*memory, &streams, &mut blocks, event)?;
    }
    for block in blocks.iter_mut().filter_map(Option::take) {
        let stream = block.stream();
        memory.deallocate(block, stream)?;
    }
    measured_replay(&*memory, &streams, &mut blocks, &trace.events)?;
    Ok(trace.events.len() as u64)
}

#[inline(never)]
fn measured_replay(
    memory: &dyn DeviceMemoryResource,
    streams: &[Stream],
    blocks: &mut [Option<DeviceBlock>],
    events: &[Event],
) -> bursar::Result<()> {
    for event in events {
        step(memory, streams, blocks, event)?;
    }
    Ok(())
}

#[inline(always)]
fn step(
    memory: &dyn DeviceMemoryResource,
    streams: &[Stream],
    blocks: &mut [Option<DeviceBlock>],
    event: &Event,
) -> bursar::Result<()> {
    let stream = streams[usize::from(event.stream)];
    match event.kind {
        EventKind::Allocate => {
            blocks[event.block as usize] = Some(memory.allocate(event.bytes, 1, stream, event.tag)?);
        }
        EventKind::Free => {
            if let Some(block) = blocks[event.block as usize].take() {
                memory.deallocate(block, stream)?;
            }
        }
        EventKind::Fail => {}
    }
    Ok(())
}
