//! The program that `cargo xtask instructions` runs under callgrind: one kind of work through one stack of the command, on an
//! immediate simulated device.
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

/// The size of the blocks of the kind `pairs`: an allocation and its free.
const PAIR: Bytes = Bytes::kib(1);
const PAIRS: u64 = 10_000;

/// The kinds of work: pairs, and the bundled trace.
const KINDS: [&str; 2] = ["pairs", "replay"];

/// The stack of the pool that has no statistics, and whose type is known where it is used.
const BARE: &str = "bare";

/// A third kind, `lists`, is for the pool alone: the numbers of free blocks, no two of which are adjacent.
const FREE_BLOCKS: [usize; 2] = [1_000, 100_000];
/// The number of operations of the kind `lists`, half of them frees, on blocks of these sizes, too long for magazines.
const IN_THE_MIDDLE: u64 = 20_000;
const MIDDLING: std::ops::Range<u64> = 65 << 10..128 << 10;
/// The number of blocks in use that are exchanged for others.
const EXCHANGED: usize = 64;
const SEED: u64 = 7;

#[allow(clippy::print_stdout)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let units = match words[..] {
        [] => {
            for kind in KINDS {
                StackName::value_variants().iter().for_each(|stack| println!("{kind} {}", stack.as_str()));
            }
            println!("pairs {BARE}");
            FREE_BLOCKS.iter().for_each(|free| println!("lists {free}"));
            return Ok(());
        }
        ["pairs", BARE] => bare_pairs()?,
        ["pairs", stack] => pairs(StackName::from_str(stack, false)?)?,
        ["replay", stack] => replay(StackName::from_str(stack, false)?)?,
        ["lists", free] => lists(free.parse()?)?,
        _ => return Err(format!("no such measurement: {}", words.join(" ")).into()),
    };
    println!("{units}");
    Ok(())
}

fn open(stack: StackName) -> bursar::Result<(Arc<DeviceContext>, Arc<dyn DeviceMemoryResource>)> {
    let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
    let memory = stack.build(&context, None, Some(&Statistics::default()))?;
    Ok((context, memory))
}

fn pairs(stack: StackName) -> bursar::Result<u64> {
    let (context, memory) = open(stack)?;
    warm_pairs(&context, &*memory)
}

fn bare_pairs() -> bursar::Result<u64> {
    let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
    let stack = Stack::new().layer(PagePool::default()).layer(GlobalDeviceBudget::of(Bytes::gib(1)));
    warm_pairs(&context, &stack.over(leaf::Frames).build(&context)?)
}

fn warm_pairs(context: &DeviceContext, memory: &dyn DeviceMemoryResource) -> bursar::Result<u64> {
    let (stream, tag) = (context.create_stream(0)?, tag!("pairs"));
    for _ in 0..PAIRS / 10 {
        let block = memory.allocate(PAIR.get(), 256, stream, tag)?;
        memory.deallocate(block, stream)?;
    }
    measured_pairs(memory, stream, tag)?;
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

/// A random number generator with a fixed sequence (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    fn size(&mut self) -> u64 {
        MIDDLING.start + self.below((MIDDLING.end - MIDDLING.start) as usize) as u64
    }
}

/// Fills the pool and frees every other block in a random order, so that `free` blocks lie free with one in use between any
/// two; then exchanges a few of those in use, at random.
fn lists(free: usize) -> bursar::Result<u64> {
    let (context, memory) = open(StackName::Pool)?;
    let (stream, tag, mut random) = (context.create_stream(0)?, tag!("lists"), Random(SEED));
    let all: Vec<_> =
        (0..2 * free).map(|_| memory.allocate(random.size(), 256, stream, tag)).collect::<Result<_, _>>()?;
    let (mut used, mut freed) = (Vec::new(), Vec::new());
    for (place, block) in all.into_iter().enumerate() {
        if place % 2 == 0 { freed.push(block) } else { used.push(block) }
    }
    while !freed.is_empty() {
        let block = freed.swap_remove(random.below(freed.len()));
        memory.deallocate(block, stream)?;
    }
    let mut exchanged: Vec<_> = (0..EXCHANGED).map(|_| Some(used.swap_remove(random.below(used.len())))).collect();
    exchange(&*memory, &mut exchanged, &mut random, IN_THE_MIDDLE / 10)?;
    measured_lists(&*memory, &mut exchanged, &mut random)?;
    for block in used.into_iter().chain(exchanged.into_iter().flatten()) {
        memory.deallocate(block, stream)?;
    }
    Ok(IN_THE_MIDDLE)
}

#[inline(never)]
fn measured_lists(
    memory: &dyn DeviceMemoryResource,
    blocks: &mut [Option<DeviceBlock>],
    random: &mut Random,
) -> bursar::Result<()> {
    exchange(memory, blocks, random, IN_THE_MIDDLE)
}

#[inline(always)]
fn exchange(
    memory: &dyn DeviceMemoryResource,
    blocks: &mut [Option<DeviceBlock>],
    random: &mut Random,
    operations: u64,
) -> bursar::Result<()> {
    for _ in 0..operations / 2 {
        let place = random.below(blocks.len());
        if let Some(block) = blocks[place].take() {
            let (stream, tag) = (block.stream(), block.tag());
            memory.deallocate(block, stream)?;
            blocks[place] = Some(memory.allocate(random.size(), 256, stream, tag)?);
        }
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
