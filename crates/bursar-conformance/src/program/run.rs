//! Runs a program on a driver.
//!
//! Every call below relies on the same promises, kept by the generator: streams and events belong to the runner and live
//! until its end, ranges lie in live blocks, each byte of host memory is used by one operation, and operations on the same
//! bytes are ordered.
#![allow(unsafe_code)]

use super::DriverProgram;
use super::host_memory::HostMemory;
use super::memory::{DriverMemory, Memory, ResourceMemory, status};
use super::model::add;
use super::op::{BlockRange, ImpossibleCall, Op};
use super::outcome::{CallResult, ProgramOutcome, read_backs};
use bursar_core::{
    DeviceId, DeviceMemoryResource, DevicePtr, Driver, DriverResult, Gate, HostFlags, HostFunction, RawEvent,
    RawStream, Status,
};
use bursar_sim::{Launch, Sim};
use std::sync::{Arc, Mutex, PoisonError};

const DEVICE: DeviceId = DeviceId(0);
const WORKS: &str = "the device works";

pub(super) fn on_driver(program: &DriverProgram, driver: &dyn Driver) -> ProgramOutcome {
    let memory = DriverMemory::new(driver, DEVICE, program.shape.streams);
    ProgramRunner::new(program, driver, None, memory).run()
}

pub(super) fn through_resource(
    program: &DriverProgram,
    memory: &dyn DeviceMemoryResource,
    sim: &Sim,
) -> ProgramOutcome {
    let memory = ResourceMemory::new(memory, program.shape.streams);
    ProgramRunner::new(program, sim, Some(sim), memory).run()
}

/// The numbers of the host functions that ran, by stream.
type HostFunctions = Arc<Mutex<Vec<Vec<u32>>>>;

/// A program and everything it runs on.
struct ProgramRunner<'a, M: Memory> {
    program: &'a DriverProgram,
    driver: &'a dyn Driver,
    /// The simulator, which runs kernels.
    sim: Option<&'a Sim>,
    memory: M,
    events: Vec<RawEvent>,
    blocks: Vec<Option<LiveBlock<M::Block>>>,
    gate: Gate,
    host_functions: HostFunctions,
    host: HostMemory<'a>,
}

struct LiveBlock<B> {
    block: B,
    bytes: u64,
    is_written: bool,
}

impl<'a, M: Memory> ProgramRunner<'a, M> {
    fn new(program: &'a DriverProgram, driver: &'a dyn Driver, sim: Option<&'a Sim>, memory: M) -> Self {
        let event = || driver.event_create(DEVICE).expect(WORKS);
        Self {
            program,
            driver,
            sim,
            events: (0..program.events).map(|_| event()).collect(),
            blocks: (0..program.blocks).map(|_| None).collect(),
            gate: Gate::default(),
            host_functions: Arc::new(Mutex::new(vec![Vec::new(); program.shape.streams])),
            host: HostMemory::new(program, driver, DEVICE),
            memory,
        }
    }

    fn run(mut self) -> ProgramOutcome {
        let program = self.program;
        let results = program.ops.iter().map(|op| CallResult::from_result(self.perform(op))).collect();
        self.synchronize_all();
        let outcome = ProgramOutcome {
            results,
            read_backs: read_backs(&program.ops, |offset, bytes| {
                // SAFETY: every stream has run dry.
                unsafe { self.host.read(offset, bytes) }
            }),
            blocks: self.final_blocks(),
            host_functions: self.host_functions.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        };
        self.end();
        outcome
    }

    fn perform(&mut self, op: &Op) -> Result<CallResult, Status> {
        match *op {
            Op::Allocate { block, bytes, stream, ordering } => {
                let allocated = self.memory.allocate(bytes, stream, ordering)?;
                self.blocks[block] = Some(LiveBlock { block: allocated, bytes, is_written: false });
                Ok(CallResult::Done)
            }
            Op::Free { block, stream } => match self.blocks[block].take() {
                Some(live) => self.memory.free(live.block, stream).map(|()| CallResult::Done),
                None => Ok(CallResult::Skipped),
            },
            Op::Host { number, stream } => self.host_function(number, stream, None),
            Op::Hold { number, stream } => {
                self.gate = Gate::default();
                self.host_function(number, stream, Some(self.gate.clone()))
            }
            Op::Open => {
                self.gate.open();
                Ok(CallResult::Done)
            }
            Op::Query { .. } | Op::QueryEvent { .. } => self.query(op),
            Op::Refused(refusal) => self.impossible_call(refusal),
            _ => match self.submit(op) {
                Some(expected) => expected.map(|()| CallResult::Done).map_err(status),
                None => Ok(CallResult::Skipped),
            },
        }
    }

    /// Calls the driver with one operation on streams; `None` if its block was never allocated.
    fn submit(&mut self, op: &Op) -> Option<DriverResult<()>> {
        let driver = self.driver;
        Some(match *op {
            Op::Fill { range, pattern, stream } => {
                let (to, stream) = (self.written(range)?, self.stream(stream));
                // SAFETY: see the head of this file; the generator aligns parts to their patterns.
                unsafe { driver.fill(DEVICE, stream, to, pattern, range.bytes / pattern.width()) }
            }
            Op::Upload { range, from, stream } => {
                let (to, from, stream) = (self.written(range)?, self.host.at(from), self.stream(stream));
                // SAFETY: see the head of this file.
                unsafe { driver.copy_to_device(DEVICE, stream, to, from, range.bytes) }
            }
            Op::ReadBack { range, to, stream } => {
                let (from, to, stream) = (self.at(range)?, self.host.at(to), self.stream(stream));
                // SAFETY: see the head of this file.
                unsafe { driver.copy_to_host(DEVICE, stream, to, from, range.bytes) }
            }
            Op::Copy { to, from, stream } => {
                let (bytes, from, to) = (to.bytes, self.at(from)?, self.written(to)?);
                // SAFETY: see the head of this file; the parts do not overlap.
                unsafe { driver.copy_on_device(DEVICE, self.stream(stream), to, from, bytes) }
            }
            Op::Add { to, from, stream } => {
                let (bytes, from, to) = (to.bytes, self.at(from)?, self.written(to)?);
                let sim = self.sim.expect("only programs for a simulator have kernels");
                sim.launch(DEVICE, self.stream(stream), kernel(to, from, bytes))
            }
            Op::Record { event, stream } => {
                // SAFETY: see the head of this file.
                unsafe { driver.event_record(DEVICE, self.events[event], self.stream(stream)) }
            }
            Op::Wait { event, stream } => {
                // SAFETY: see the head of this file.
                unsafe { driver.stream_wait(DEVICE, self.stream(stream), self.events[event]) }
            }
            Op::Synchronize { stream } => {
                // SAFETY: see the head of this file.
                unsafe { driver.stream_synchronize(DEVICE, self.stream(stream)) }
            }
            Op::SynchronizeEvent { event } => {
                // SAFETY: see the head of this file.
                unsafe { driver.event_synchronize(DEVICE, self.events[event]) }
            }
            _ => unreachable!("{op} is not submitted to a stream"),
        })
    }

    fn query(&self, op: &Op) -> Result<CallResult, Status> {
        let (found, expected) = match *op {
            Op::Query { stream, expected } => {
                // SAFETY: see the head of this file.
                (unsafe { self.driver.stream_query(DEVICE, self.stream(stream)) }, expected)
            }
            Op::QueryEvent { event, expected } => {
                // SAFETY: see the head of this file.
                (unsafe { self.driver.event_query(DEVICE, self.events[event]) }, expected)
            }
            _ => unreachable!("{op} is no query"),
        };
        Ok(CallResult::query(found.map_err(status)?, expected))
    }

    fn host_function(&self, number: u32, stream: usize, gate: Option<Gate>) -> Result<CallResult, Status> {
        let ran = self.host_functions.clone();
        let run = move || ran.lock().unwrap_or_else(PoisonError::into_inner)[stream].push(number);
        let function = match gate {
            Some(gate) => HostFunction::behind(gate, run),
            None => HostFunction::new(run),
        };
        // SAFETY: see the head of this file.
        let submitted = unsafe { self.driver.host_function(DEVICE, self.stream(stream), function) };
        submitted.map(|()| CallResult::Done).map_err(status)
    }

    /// Makes a call that must be refused. What a driver grants nevertheless is leaked: the run has failed.
    fn impossible_call(&self, refusal: ImpossibleCall) -> Result<CallResult, Status> {
        let driver = self.driver;
        let given = match refusal {
            ImpossibleCall::Allocate { bytes } => driver.allocate(DEVICE, bytes).map(drop),
            ImpossibleCall::AllocateOnNoDevice => driver.allocate(DeviceId(driver.device_count()), 256).map(drop),
            ImpossibleCall::HostAllocate { bytes } => {
                driver.host_allocate(DEVICE, bytes, HostFlags::default()).map(drop)
            }
            ImpossibleCall::PagesCreate { bytes } => driver.pages_create(DEVICE, bytes).map(drop),
            ImpossibleCall::AddressReserve { bytes } => driver.address_reserve(DEVICE, bytes, 0).map(drop),
            ImpossibleCall::AllocateAsync { bytes, stream } => {
                // SAFETY: see the head of this file.
                unsafe { driver.allocate_async(DEVICE, self.stream(stream), bytes) }.map(drop)
            }
        };
        given.map(|()| CallResult::Done).map_err(status)
    }

    fn stream(&self, number: usize) -> RawStream {
        self.memory.streams()[number]
    }

    /// Returns the address of a range.
    fn at(&self, range: BlockRange) -> Option<DevicePtr> {
        let live = self.blocks[range.block].as_ref()?;
        Some(M::ptr(&live.block).offset(range.at))
    }

    /// Returns the address of a range, and marks its block as written.
    fn written(&mut self, range: BlockRange) -> Option<DevicePtr> {
        self.blocks[range.block].as_mut()?.is_written = true;
        self.at(range)
    }

    fn synchronize_all(&self) {
        for stream in self.memory.streams() {
            // SAFETY: see the head of this file.
            unsafe { self.driver.stream_synchronize(DEVICE, *stream) }.expect(WORKS);
        }
    }

    /// Returns the contents of every block that is live and was written, once nothing is in flight.
    fn final_blocks(&self) -> Vec<(usize, Vec<u8>)> {
        let live = self.blocks.iter().enumerate();
        let written = live.filter_map(|(number, live)| Some((number, live.as_ref().filter(|live| live.is_written)?)));
        written.map(|(number, live)| (number, self.contents(live))).collect()
    }

    fn contents(&self, live: &LiveBlock<M::Block>) -> Vec<u8> {
        let (mut bytes, stream) = (vec![0; live.bytes as usize], self.stream(0));
        let from = M::ptr(&live.block);
        // SAFETY: the block is live and nothing is in flight; `bytes` outlives the copy, waited for below.
        unsafe { self.driver.copy_to_host(DEVICE, stream, bytes.as_mut_ptr(), from, live.bytes) }.expect(WORKS);
        // SAFETY: see the head of this file.
        unsafe { self.driver.stream_synchronize(DEVICE, stream) }.expect(WORKS);
        bytes
    }

    /// Returns everything to the driver.
    fn end(mut self) {
        for (number, live) in self.blocks.drain(..).enumerate() {
            let stream = number % self.program.shape.streams;
            live.map_or(Ok(()), |live| self.memory.free(live.block, stream)).expect(WORKS);
        }
        self.synchronize_all();
        for event in self.events {
            // SAFETY: created by `new`, and nobody waits for it.
            unsafe { self.driver.event_destroy(DEVICE, event) }.expect(WORKS);
        }
        drop(self.host);
        self.memory.end();
    }
}

/// Adds each byte at `from` to the one at `to`.
fn kernel(to: DevicePtr, from: DevicePtr, bytes: u64) -> Launch {
    Launch::new("add").reads(from, bytes).writes(to, bytes).body(move |memory| {
        let mut sum = memory.read(to, bytes as usize);
        add(&mut sum, &memory.read(from, bytes as usize));
        memory.write(to, &sum);
    })
}
