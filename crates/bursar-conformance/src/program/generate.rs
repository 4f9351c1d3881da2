//! Generates a program from a seed.

use super::op::{AllocationOrder, BlockRange, HostOffset, ImpossibleCall, Op};
use super::order::{Epoch, Order};
use super::{DriverProgram, HostKind, MemorySource, ProgramShape, random};
use bursar_core::Pattern;
use bursar_sim::Random;

const EVENTS: usize = 5;
const LIVE_BLOCKS_MAX: usize = 8;

pub(super) fn program(seed: u64, shape: ProgramShape) -> DriverProgram {
    let mut random = random(seed);
    // Most programs are about order, for which small blocks do; a few are about size.
    let bytes_max = match random.below(16) {
        0 => 1 << 20,
        1..=3 => 64 << 10,
        _ => 4 << 10,
    };
    let mut generator = Generator {
        random,
        shape,
        bytes_max,
        order: Order::new(shape.streams, EVENTS),
        ops: Vec::new(),
        blocks: Vec::new(),
        host_functions: 0,
        held_ops: 0,
        pageable_bytes: 0,
        pinned_bytes: 0,
    };
    while generator.ops.len() < shape.operations {
        generator.step();
    }
    generator.open_gate();
    DriverProgram {
        seed,
        shape,
        ops: generator.ops,
        events: EVENTS,
        blocks: generator.blocks.len(),
        pageable_bytes: generator.pageable_bytes,
        pinned_bytes: generator.pinned_bytes,
    }
}

/// A block that was allocated, and the submissions that its next use must come after.
#[derive(Debug)]
struct Block {
    bytes: u64,
    is_live: bool,
    is_written: bool,
    /// The allocation, or the last write.
    last_write: Option<Epoch>,
    reads: Vec<Epoch>,
}

struct Generator {
    random: Random,
    shape: ProgramShape,
    bytes_max: u64,
    order: Order,
    ops: Vec<Op>,
    blocks: Vec<Block>,
    host_functions: u32,
    /// The number of operations until the gate that is shut is opened.
    held_ops: u32,
    pageable_bytes: usize,
    pinned_bytes: usize,
}

impl Generator {
    /// Adds some operations, or none if the chosen one is not possible.
    fn step(&mut self) {
        if self.order.is_held() {
            if self.held_ops == 0 {
                return self.open_gate();
            }
            self.held_ops -= 1;
        }
        let stream = self.stream();
        match self.random.below(100) {
            0..17 => self.allocate(stream),
            17..29 => self.free(stream),
            29..44 => self.fill(stream),
            44..51 => self.upload(stream),
            51..62 => self.copy(stream),
            62..69 => self.read_back(stream),
            69..75 => self.host_function(stream),
            75..78 => self.hold(stream),
            78..83 => self.record_or_wait(stream),
            83..91 => self.query(stream),
            91..94 => self.synchronize(stream),
            _ => match self.shape.memory {
                MemorySource::Driver => self.impossible_call(stream),
                MemorySource::Resource => self.add(stream),
            },
        }
    }

    fn stream(&mut self) -> usize {
        self.random.index(self.shape.streams)
    }

    fn event(&mut self) -> usize {
        self.random.index(EVENTS)
    }

    fn live(&self, has: impl Fn(&Block) -> bool) -> Vec<usize> {
        let blocks = self.blocks.iter().enumerate();
        let found = blocks.filter(|(_, block)| block.is_live && has(block));
        found.map(|(number, _)| number).collect()
    }

    /// Adds an allocation. Allocations and frees may wait for the device, so none is made while a gate is shut.
    fn allocate(&mut self, stream: usize) {
        if self.order.is_held() || self.live(|_| true).len() >= LIVE_BLOCKS_MAX {
            return;
        }
        self.resource_called();
        let ordering = match self.shape.memory {
            MemorySource::Driver if self.random.chance(4) => AllocationOrder::Device,
            _ => AllocationOrder::Stream,
        };
        let (block, bytes) = (self.blocks.len(), 1 + self.random.below(self.bytes_max));
        self.blocks.push(Block {
            bytes,
            is_live: true,
            is_written: false,
            last_write: (ordering == AllocationOrder::Stream).then(|| self.order.submit(stream)),
            reads: Vec::new(),
        });
        self.ops.push(Op::Allocate { block, bytes, stream, ordering });
    }

    fn free(&mut self, stream: usize) {
        let live = self.live(|_| true);
        let Some(block) = self.random.pick(&live).filter(|_| !self.order.is_held()) else {
            return;
        };
        self.order_after_all(block, stream);
        self.resource_called();
        self.order.submit(stream);
        self.blocks[block].is_live = false;
        self.ops.push(Op::Free { block, stream });
    }

    /// Accounts for the waits and events that a resource may submit to any stream.
    fn resource_called(&mut self) {
        if self.shape.memory == MemorySource::Resource {
            self.order.others_submitted();
        }
    }

    /// Returns a range to write: all of the block, if it was never written.
    fn target(&mut self) -> Option<BlockRange> {
        let live = self.live(|_| true);
        let block = self.random.pick(&live)?;
        Some(match self.blocks[block].is_written {
            true => self.range(block),
            false => self.whole(block),
        })
    }

    /// Returns a range to read.
    fn source(&mut self) -> Option<BlockRange> {
        let written = self.live(|block| block.is_written);
        let block = self.random.pick(&written)?;
        Some(self.range(block))
    }

    fn whole(&self, block: usize) -> BlockRange {
        let bytes = self.blocks[block].bytes;
        BlockRange { block, at: 0, bytes }
    }

    /// Returns any range of a block, now and then all of it or an empty one.
    fn range(&mut self, block: usize) -> BlockRange {
        let whole = self.whole(block);
        let at = self.random.below(whole.bytes);
        match self.random.below(16) {
            0 => whole,
            1 => BlockRange { block, at, bytes: 0 },
            _ => BlockRange { block, at, bytes: 1 + self.random.below(whole.bytes - at) },
        }
    }

    fn fill(&mut self, stream: usize) {
        let Some(range) = self.target() else { return };
        let is_divided = |width| range.at.is_multiple_of(width) && range.bytes.is_multiple_of(width);
        let value = self.random.next_u64();
        let pattern = match self.random.below(3) {
            0 if is_divided(4) => Pattern::U32(value as u32),
            0 | 1 if is_divided(2) => Pattern::U16(value as u16),
            _ => Pattern::U8(value as u8),
        };
        self.submit(Op::Fill { range, pattern, stream }, stream, None, Some(range));
    }

    fn upload(&mut self, stream: usize) {
        let Some(range) = self.target() else { return };
        let from = self.host_offset(range.bytes);
        self.submit(Op::Upload { range, from, stream }, stream, None, Some(range));
    }

    fn read_back(&mut self, stream: usize) {
        let Some(range) = self.source() else { return };
        let to = self.host_offset(range.bytes);
        self.submit(Op::ReadBack { range, to, stream }, stream, Some(range), None);
        // A driver does not wait for an empty copy.
        if to.host == HostKind::Pageable && range.bytes > 0 {
            self.order.host_saw(stream);
        }
    }

    /// Returns host memory for one copy. Copies of pageable memory may wait, so none is made while a gate is shut.
    fn host_offset(&mut self, bytes: u64) -> HostOffset {
        let (host, used) = match self.order.is_held() || self.random.chance(2) {
            true => (HostKind::Pinned, &mut self.pinned_bytes),
            false => (HostKind::Pageable, &mut self.pageable_bytes),
        };
        let at = *used;
        *used += bytes as usize;
        HostOffset { host, at }
    }

    fn copy(&mut self, stream: usize) {
        if let Some((to, from)) = self.pair() {
            self.submit(Op::Copy { to, from, stream }, stream, Some(from), Some(to));
        }
    }

    fn add(&mut self, stream: usize) {
        let Some((to, from)) = self.pair() else { return };
        if self.blocks[to.block].is_written {
            self.submit(Op::Add { to, from, stream }, stream, Some(from), Some(to));
        }
    }

    /// Returns two ranges of one size that do not overlap.
    fn pair(&mut self) -> Option<(BlockRange, BlockRange)> {
        let (to, from) = (self.target()?, self.source()?);
        let (to, from) = match to.block == from.block {
            true => halves(self.whole(to.block)),
            false => (to, from),
        };
        let bytes = to.bytes.min(from.bytes);
        let is_first_write = !self.blocks[to.block].is_written;
        (!is_first_write || bytes == to.bytes).then_some((BlockRange { bytes, ..to }, BlockRange { bytes, ..from }))
    }

    /// Adds an operation that reads and writes blocks, after the operations that order it.
    fn submit(&mut self, op: Op, stream: usize, reads: Option<BlockRange>, writes: Option<BlockRange>) {
        let before = reads.and_then(|range| self.blocks[range.block].last_write);
        before.into_iter().for_each(|epoch| self.order_after(epoch, stream));
        writes.into_iter().for_each(|range| self.order_after_all(range.block, stream));
        let epoch = self.order.submit(stream);
        self.ops.push(op);
        if let Some(range) = reads {
            self.blocks[range.block].reads.push(epoch);
        }
        if let Some(range) = writes {
            let block = &mut self.blocks[range.block];
            block.last_write = Some(epoch);
            block.reads.clear();
            block.is_written = true;
        }
    }

    /// Orders the next submission to `stream` after every use of a block.
    fn order_after_all(&mut self, block: usize, stream: usize) {
        let block = &self.blocks[block];
        let uses: Vec<Epoch> = block.reads.iter().copied().chain(block.last_write).collect();
        uses.into_iter().for_each(|epoch| self.order_after(epoch, stream));
    }

    /// Orders the next submission to `stream` after `epoch`, in one of the possible ways. The host does not wait while a gate
    /// is shut.
    fn order_after(&mut self, epoch: Epoch, stream: usize) {
        if self.order.is_ordered(epoch, stream) {
            return;
        }
        let recorded = self.order.events_after(epoch);
        let event = self.event();
        match self.random.below(8) {
            0 if !self.order.is_held() => self.synchronize_stream(epoch.stream()),
            1 if !self.order.is_held() => {
                self.record(event, epoch.stream());
                self.synchronize_event(event);
            }
            2..5 if !recorded.is_empty() => self.wait(recorded[event % recorded.len()], stream),
            _ => {
                self.record(event, epoch.stream());
                self.wait(event, stream);
            }
        }
    }

    fn record(&mut self, event: usize, stream: usize) {
        self.order.record(event, stream);
        self.ops.push(Op::Record { event, stream });
    }

    fn wait(&mut self, event: usize, stream: usize) {
        self.order.wait(event, stream);
        self.ops.push(Op::Wait { event, stream });
    }

    fn synchronize_stream(&mut self, stream: usize) {
        self.order.synchronize(stream);
        self.ops.push(Op::Synchronize { stream });
    }

    fn synchronize_event(&mut self, event: usize) {
        self.order.synchronize_event(event);
        self.ops.push(Op::SynchronizeEvent { event });
    }

    /// Adds a record or a wait that no operation needs, which must do no harm; also waits for events never recorded.
    fn record_or_wait(&mut self, stream: usize) {
        let event = self.event();
        match self.random.chance(2) {
            true => self.record(event, stream),
            false => self.wait(event, stream),
        }
    }

    fn synchronize(&mut self, stream: usize) {
        if self.order.is_held() {
            return;
        }
        match self.random.below(4) {
            0 => {
                let event = self.event();
                self.synchronize_event(event);
            }
            1 => {
                self.synchronize_stream(stream);
                self.synchronize_stream(stream);
            }
            _ => self.synchronize_stream(stream),
        }
    }

    fn query(&mut self, stream: usize) {
        let event = self.event();
        self.ops.push(match self.random.chance(2) {
            true => Op::Query { stream, expected: self.order.stream_progress(stream) },
            false => Op::QueryEvent { event, expected: self.order.event_progress(event) },
        });
    }

    /// Adds a host function. Drivers may run those of all streams on one thread, so none is submitted while a gate is shut.
    fn host_function(&mut self, stream: usize) {
        if !self.order.is_held() {
            self.order.submit(stream);
            let number = self.next_host_function();
            self.ops.push(Op::Host { number, stream });
        }
    }

    fn next_host_function(&mut self) -> u32 {
        self.host_functions += 1;
        self.host_functions
    }

    /// Holds a stream for a while, and queries the stream and an event on it.
    fn hold(&mut self, stream: usize) {
        if self.order.is_held() {
            return;
        }
        self.order.hold(stream);
        self.held_ops = 2 + self.random.below(6) as u32;
        let (number, event) = (self.next_host_function(), self.event());
        self.ops.push(Op::Hold { number, stream });
        self.ops.push(Op::Query { stream, expected: self.order.stream_progress(stream) });
        if self.random.chance(2) {
            self.record(event, stream);
            self.ops.push(Op::QueryEvent { event, expected: self.order.event_progress(event) });
        }
    }

    fn open_gate(&mut self) {
        if self.order.is_held() {
            self.order.open();
            self.ops.push(Op::Open);
        }
    }

    /// Adds a call that must be refused. Requests for too much may make a driver wait for memory that it could free, so none
    /// is made while a gate is shut.
    fn impossible_call(&mut self, stream: usize) {
        if !self.order.is_held() {
            let refusal = ImpossibleCall::pick(&mut self.random, stream);
            self.ops.push(Op::Refused(refusal));
        }
    }
}

/// Returns the two halves of a range, without the middle byte of an odd one.
fn halves(whole: BlockRange) -> (BlockRange, BlockRange) {
    let bytes = whole.bytes / 2;
    let second = BlockRange { at: whole.bytes - bytes, bytes, ..whole };
    (BlockRange { bytes, ..whole }, second)
}
