//! Running a program on a driver.
//!
//! Every call below relies on the same promises, kept by the generator: streams and events are the machine's own and live
//! until its end, parts lie in live blocks, each place in host memory is used by one operation, and whatever touches the
//! same bytes is ordered.
#![allow(unsafe_code)]

use super::Program;
use super::host::HostMemory;
use super::memory::{DriverMemory, Memory, ResourceMemory, status};
use super::model::add;
use super::op::{Op, Part, Refusal};
use super::outcome::{Answer, Outcome, read_backs};
use bursar_core::{
    DeviceId, DeviceMemoryResource, DevicePtr, Driver, DriverResult, Gate, HostFlags, HostFunction, RawEvent,
    RawStream, Status,
};
use bursar_sim::{Launch, Sim};
use std::sync::{Arc, Mutex, PoisonError};

const DEVICE: DeviceId = DeviceId(0);
const WORKS: &str = "the device works";

pub(super) fn on_driver(program: &Program, driver: &dyn Driver) -> Outcome {
    let memory = DriverMemory::new(driver, DEVICE, program.shape.streams);
    Machine::new(program, driver, None, memory).run()
}

pub(super) fn through_resource(program: &Program, memory: &dyn DeviceMemoryResource, sim: &Sim) -> Outcome {
    let memory = ResourceMemory::new(memory, program.shape.streams);
    Machine::new(program, sim, Some(sim), memory).run()
}

/// The numbers of the host functions that ran, by stream.
type HostFunctions = Arc<Mutex<Vec<Vec<u32>>>>;

/// A program and everything it runs on.
struct Machine<'a, M: Memory> {
    program: &'a Program,
    driver: &'a dyn Driver,
    /// Who runs kernels, where somebody can.
    sim: Option<&'a Sim>,
    memory: M,
    events: Vec<RawEvent>,
    blocks: Vec<Option<Slot<M::Block>>>,
    gate: Gate,
    host_functions: HostFunctions,
    host: HostMemory<'a>,
}

struct Slot<B> {
    block: B,
    bytes: u64,
    is_written: bool,
}

impl<'a, M: Memory> Machine<'a, M> {
    fn new(program: &'a Program, driver: &'a dyn Driver, sim: Option<&'a Sim>, memory: M) -> Self {
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

    fn run(mut self) -> Outcome {
        let program = self.program;
        let answers = program.ops.iter().map(|op| Answer::of(self.perform(op))).collect();
        self.synchronize_all();
        let outcome = Outcome {
            answers,
            read_backs: read_backs(&program.ops, |place, bytes| {
                // SAFETY: every stream has run dry.
                unsafe { self.host.read(place, bytes) }
            }),
            blocks: self.final_blocks(),
            host_functions: self.host_functions.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        };
        self.end();
        outcome
    }

    fn perform(&mut self, op: &Op) -> Result<Answer, Status> {
        match *op {
            Op::Allocate { block, bytes, stream, ordering } => {
                let allocated = self.memory.allocate(bytes, stream, ordering)?;
                self.blocks[block] = Some(Slot { block: allocated, bytes, is_written: false });
                Ok(Answer::Done)
            }
            Op::Free { block, stream } => match self.blocks[block].take() {
                Some(slot) => self.memory.free(slot.block, stream).map(|()| Answer::Done),
                None => Ok(Answer::Skipped),
            },
            Op::Host { number, stream } => self.host_function(number, stream, None),
            Op::Hold { number, stream } => {
                self.gate = Gate::default();
                self.host_function(number, stream, Some(self.gate.clone()))
            }
            Op::Open => {
                self.gate.open();
                Ok(Answer::Done)
            }
            Op::Query { .. } | Op::QueryEvent { .. } => self.query(op),
            Op::Refused(refusal) => self.refused(refusal),
            _ => match self.submit(op) {
                Some(answer) => answer.map(|()| Answer::Done).map_err(status),
                None => Ok(Answer::Skipped),
            },
        }
    }

    /// Calls the driver with one operation on streams; `None` where its block was never allocated.
    fn submit(&mut self, op: &Op) -> Option<DriverResult<()>> {
        let driver = self.driver;
        Some(match *op {
            Op::Fill { part, pattern, stream } => {
                let (to, stream) = (self.written(part)?, self.stream(stream));
                // SAFETY: see the head of this file; the generator aligns parts to their patterns.
                unsafe { driver.fill(DEVICE, stream, to, pattern, part.bytes / pattern.width()) }
            }
            Op::Upload { part, from, stream } => {
                let (to, from, stream) = (self.written(part)?, self.host.at(from), self.stream(stream));
                // SAFETY: see the head of this file.
                unsafe { driver.copy_to_device(DEVICE, stream, to, from, part.bytes) }
            }
            Op::ReadBack { part, to, stream } => {
                let (from, to, stream) = (self.at(part)?, self.host.at(to), self.stream(stream));
                // SAFETY: see the head of this file.
                unsafe { driver.copy_to_host(DEVICE, stream, to, from, part.bytes) }
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
            _ => unreachable!("{op} is no work of a stream"),
        })
    }

    fn query(&self, op: &Op) -> Result<Answer, Status> {
        let (said, expected) = match *op {
            Op::Query { stream, answer } => {
                // SAFETY: see the head of this file.
                (unsafe { self.driver.stream_query(DEVICE, self.stream(stream)) }, answer)
            }
            Op::QueryEvent { event, answer } => {
                // SAFETY: see the head of this file.
                (unsafe { self.driver.event_query(DEVICE, self.events[event]) }, answer)
            }
            _ => unreachable!("{op} is no query"),
        };
        Ok(Answer::query(said.map_err(status)?, expected))
    }

    fn host_function(&self, number: u32, stream: usize, gate: Option<Gate>) -> Result<Answer, Status> {
        let ran = self.host_functions.clone();
        let run = move || ran.lock().unwrap_or_else(PoisonError::into_inner)[stream].push(number);
        let function = match gate {
            Some(gate) => HostFunction::behind(gate, run),
            None => HostFunction::new(run),
        };
        // SAFETY: see the head of this file.
        let submitted = unsafe { self.driver.host_function(DEVICE, self.stream(stream), function) };
        submitted.map(|()| Answer::Done).map_err(status)
    }

    /// Asks for what cannot be had. What is given nevertheless is lost: the run has failed.
    fn refused(&self, refusal: Refusal) -> Result<Answer, Status> {
        let driver = self.driver;
        let given = match refusal {
            Refusal::Allocate { bytes } => driver.allocate(DEVICE, bytes).map(drop),
            Refusal::AllocateOnNoDevice => driver.allocate(DeviceId(driver.device_count()), 256).map(drop),
            Refusal::HostAllocate { bytes } => driver.host_allocate(DEVICE, bytes, HostFlags::default()).map(drop),
            Refusal::PagesCreate { bytes } => driver.pages_create(DEVICE, bytes).map(drop),
            Refusal::AddressReserve { bytes } => driver.address_reserve(DEVICE, bytes, 0).map(drop),
            Refusal::AllocateAsync { bytes, stream } => {
                // SAFETY: see the head of this file.
                unsafe { driver.allocate_async(DEVICE, self.stream(stream), bytes) }.map(drop)
            }
        };
        given.map(|()| Answer::Done).map_err(status)
    }

    fn stream(&self, number: usize) -> RawStream {
        self.memory.streams()[number]
    }

    /// Where a part begins.
    fn at(&self, part: Part) -> Option<DevicePtr> {
        let slot = self.blocks[part.block].as_ref()?;
        Some(M::ptr(&slot.block).offset(part.at))
    }

    /// Where a part begins that is written now.
    fn written(&mut self, part: Part) -> Option<DevicePtr> {
        self.blocks[part.block].as_mut()?.is_written = true;
        self.at(part)
    }

    fn synchronize_all(&self) {
        for stream in self.memory.streams() {
            // SAFETY: see the head of this file.
            unsafe { self.driver.stream_synchronize(DEVICE, *stream) }.expect(WORKS);
        }
    }

    /// What is in every block that is live and was written, once nothing is in flight.
    fn final_blocks(&self) -> Vec<(usize, Vec<u8>)> {
        let slots = self.blocks.iter().enumerate();
        let written = slots.filter_map(|(number, slot)| Some((number, slot.as_ref().filter(|slot| slot.is_written)?)));
        written.map(|(number, slot)| (number, self.contents(slot))).collect()
    }

    fn contents(&self, slot: &Slot<M::Block>) -> Vec<u8> {
        let (mut bytes, stream) = (vec![0; slot.bytes as usize], self.stream(0));
        let from = M::ptr(&slot.block);
        // SAFETY: the block is live and nothing is in flight; `bytes` outlives the copy, waited for below.
        unsafe { self.driver.copy_to_host(DEVICE, stream, bytes.as_mut_ptr(), from, slot.bytes) }.expect(WORKS);
        // SAFETY: see the head of this file.
        unsafe { self.driver.stream_synchronize(DEVICE, stream) }.expect(WORKS);
        bytes
    }

    /// Gives everything back.
    fn end(mut self) {
        for (number, slot) in self.blocks.drain(..).enumerate() {
            let stream = number % self.program.shape.streams;
            slot.map_or(Ok(()), |slot| self.memory.free(slot.block, stream)).expect(WORKS);
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
