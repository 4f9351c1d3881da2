//! Runs a program.
//!
//! Unless an unsafe call states another reason, its promise is what the program is about: a stream is live because an adopted
//! one is locked while it is used, and a range is valid and ordered because the use was declared before its address was
//! returned.
#![allow(unsafe_code)]

use super::slots::{Halves, ReadBacks, Slots, TrackedBuffer, wrong};
use super::step::{Fault, Method, Step, UseAction};
use super::{UseProgram, UseShape};
use bursar_core::{
    Access, AdoptedStream, DeviceId, DevicePtr, Driver, Pattern, RawStream, Result, Stack, Status, Stream, Transfer,
    leaf,
};
use bursar_device::{Gpu, Work};
use bursar_sim::Faults;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

const DEVICE: DeviceId = DeviceId(0);
const WORKS: &str = "the device works";

/// The outcome of a program.
///
/// ```
/// use bursar::sim::Sim;
/// use bursar_conformance::uses::{UseProgram, UseShape};
///
/// let ran = UseProgram::generate(1, UseShape::BARE).run(Sim::immediate());
/// assert!(ran.wrong.is_none() && ran.buffers > 10 && ran.reads > 10);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UseOutcome {
    /// A description of the first read that saw something else than it must.
    pub wrong: Option<String>,
    /// The number of buffers that were allocated.
    pub buffers: usize,
    /// The number of reads that were compared.
    pub reads: usize,
}

pub(super) fn run(program: &UseProgram, driver: Arc<dyn Driver>) -> UseOutcome {
    let faults = Faults::new(driver);
    let gpu = Gpu::open(faults.clone(), DEVICE, &Stack::new().over(leaf::Async)).expect(WORKS);
    let runner = UseRunner::new(program.shape, faults, gpu);
    let mut reads = Vec::new();
    std::thread::scope(|scope| {
        let spawned = program.threads.iter().map(|steps| scope.spawn(|| runner.perform_all(steps)));
        let threads: Vec<_> = spawned.collect();
        reads.extend(threads.into_iter().flat_map(|thread| thread.join().expect("no step panics")));
    });
    runner.end(reads)
}

/// A read whose values are waited for at the end, and the values that it must see.
type SubmittedRead = (Transfer<Vec<u32>>, Halves);

struct UseRunner {
    shape: UseShape,
    faults: Arc<Faults>,
    gpu: Gpu,
    streams: Vec<Stream>,
    adopted: Option<RwLock<ForeignStream>>,
    slots: Slots,
    read_backs: ReadBacks,
}

/// A stream that was not created by the context, and its adoption.
struct ForeignStream {
    adoption: Option<AdoptedStream>,
    raw: RawStream,
}

impl ForeignStream {
    fn new(gpu: &Gpu) -> Self {
        let raw = gpu.context().driver().stream_create(DEVICE, 0).expect(WORKS);
        // SAFETY: the stream is destroyed after its adoption is dropped, by `end`.
        let adoption = unsafe { gpu.context().adopt_stream(raw) }.expect("there is room");
        Self { adoption: Some(adoption), raw }
    }

    fn end(&mut self, gpu: &Gpu) {
        self.adoption = None;
        // SAFETY: made by `new`, and its adoption has ended.
        unsafe { gpu.context().driver().stream_destroy(DEVICE, self.raw) }.expect(WORKS);
    }
}

impl UseRunner {
    fn new(shape: UseShape, faults: Arc<Faults>, gpu: Gpu) -> Self {
        let own = || gpu.streams().acquire().expect("there is room");
        let default = std::iter::once(gpu.context().default_stream());
        let streams = default.chain(std::iter::repeat_with(own)).take(shape.streams).collect();
        let adopted = shape.adopts.then(|| RwLock::new(ForeignStream::new(&gpu)));
        let read_backs = ReadBacks::new(gpu.context(), shape.elements, shape.threads * shape.steps);
        let slots = Slots::new(shape.slots, shape.elements);
        Self { shape, faults, gpu, streams, adopted, slots, read_backs }
    }

    fn perform_all(&self, steps: &[Step]) -> Vec<SubmittedRead> {
        let mut reads = Vec::new();
        for step in steps {
            if let Some(Fault { call, is_result_lost }) = step.fault {
                match is_result_lost {
                    true => self.faults.lose_nth_result(call, 1, Status::InvalidValue),
                    false => self.faults.fail_next(call, Status::InvalidValue),
                }
            }
            self.perform(&step.action, &mut reads);
            if step.fault.is_some() {
                self.faults.heal();
            }
        }
        reads
    }

    /// Calls `with` with a stream that does not end meanwhile.
    fn on<T>(&self, stream: usize, with: impl FnOnce(Stream) -> T) -> T {
        match &self.adopted {
            Some(adopted) if stream + 1 == self.shape.streams => {
                let adopted = adopted.read().unwrap_or_else(PoisonError::into_inner);
                with(adopted.adoption.as_ref().expect("it is replaced at once").stream())
            }
            _ => with(self.streams[stream]),
        }
    }

    fn perform(&self, action: &UseAction, reads: &mut Vec<SubmittedRead>) {
        match *action {
            UseAction::Write { slot, stream, value, method } => self.change(slot, stream, |live, stream| {
                self.write(live, stream, value, method)?;
                Ok([Some(value); 2])
            }),
            UseAction::Update { slot, stream, value, second } => self.change(slot, stream, |live, stream| {
                self.update(live, stream, value, second)?;
                let [first, other] = live.halves;
                Ok(if second { [first, Some(value)] } else { [Some(value), other] })
            }),
            UseAction::Copy { from, to, stream, method } => {
                self.on(stream, |stream| self.copy(from, to, stream, method))
            }
            UseAction::Read { slot, stream, method } => {
                self.on(stream, |stream| self.read(slot, stream, method, reads))
            }
            UseAction::Overlap { slot, writer, reader, value, reader_first } => self.on(reader, |reader| {
                self.change(slot, writer, |live, writer| {
                    self.overlap(live, writer, reader, value, reader_first)?;
                    Ok([Some(value); 2])
                });
            }),
            UseAction::Drop { slot, on } => {
                let Some(mut live) = self.slots.write(slot).take() else { return };
                if let Some(stream) = on {
                    // If that fails, the buffer is freed on its own stream.
                    let _chosen = self.on(stream, |stream| live.buffer.free_on(stream));
                }
            }
            UseAction::Synchronize { stream } => {
                // A failure is an injected fault, and nothing has happened then.
                let _waited = self.on(stream, |stream| self.gpu.context().synchronize(stream));
            }
            UseAction::End => {
                let adopted = self.adopted.as_ref().expect("only programs that adopt have this");
                let mut adopted = adopted.write().unwrap_or_else(PoisonError::into_inner);
                adopted.end(&self.gpu);
                *adopted = ForeignStream::new(&self.gpu);
            }
        }
    }

    /// Changes a buffer, after which it must hold what `change` returns, or anything if that fails.
    fn change(&self, slot: usize, stream: usize, change: impl FnOnce(&mut TrackedBuffer, Stream) -> Result<Halves>) {
        self.on(stream, |stream| {
            let mut slot = self.slots.write(slot);
            if let Ok(live) = self.slots.fill(&mut slot, &self.gpu, stream) {
                live.halves = change(live, stream).unwrap_or_default();
            }
        });
    }

    fn write(&self, live: &mut TrackedBuffer, stream: Stream, value: u32, method: Method) -> Result<()> {
        let count = self.shape.elements as u64;
        match method {
            Method::Launched => self.gpu.submit(stream, |work| {
                let ptr = work.write(&mut live.buffer)?;
                self.fill(work, ptr, value, count)
            }),
            Method::Submitted => self.gpu.submit(stream, |work| work.fill(&mut live.buffer, value)),
            Method::Waited => live.buffer.fill(value),
        }
    }

    fn update(&self, live: &mut TrackedBuffer, stream: Stream, value: u32, second: bool) -> Result<()> {
        let half = self.shape.elements / 2;
        let range = if second { half..2 * half } else { 0..half };
        self.gpu.submit(stream, |work| {
            let ptr = work.update(live.buffer.slice_mut(range)?)?;
            self.fill(work, ptr, value, half as u64)
        })
    }

    fn fill(&self, work: &Work<'_>, ptr: DevicePtr, value: u32, count: u64) -> Result<()> {
        // SAFETY: see the head of this file.
        Ok(unsafe { self.faults.fill(DEVICE, work.raw_stream()?, ptr, Pattern::U32(value), count) }?)
    }

    fn copy(&self, from: usize, to: usize, stream: Stream, method: Method) {
        // Locked in the order of their numbers, and after the stream, as everywhere: so no two threads wait for each other.
        let (source, mut target);
        if from < to {
            source = self.slots.read(from);
            target = self.slots.write(to);
        } else {
            target = self.slots.write(to);
            source = self.slots.read(from);
        }
        let Some(source) = &*source else { return };
        let Ok(live) = self.slots.fill(&mut target, &self.gpu, stream) else { return };
        let copied: Result<()> = match method {
            Method::Launched => self.gpu.submit(stream, |work| {
                let (src, dst) = (work.read(&source.buffer)?, work.write(&mut live.buffer)?);
                let (raw, bytes) = (work.raw_stream()?, self.shape.elements as u64 * 4);
                // SAFETY: see the head of this file.
                Ok(unsafe { self.faults.copy_on_device(DEVICE, raw, dst, src, bytes) }?)
            }),
            Method::Submitted => self.gpu.submit(stream, |work| work.copy(&source.buffer, &mut live.buffer)),
            Method::Waited => live.buffer.copy_from(&source.buffer),
        };
        live.halves = if copied.is_ok() { source.halves } else { [None; 2] };
    }

    fn read(&self, slot: usize, stream: Stream, method: Method, reads: &mut Vec<SubmittedRead>) {
        let slot = self.slots.read(slot);
        let Some(TrackedBuffer { buffer, halves }) = &*slot else { return };
        match method {
            Method::Launched => {
                // A read that fails may bring nothing back.
                let _read = self.gpu.submit(stream, |work| -> Result<()> {
                    let (ptr, raw) = (work.read(buffer)?, work.raw_stream()?);
                    self.download(raw, ptr, *halves)
                });
            }
            Method::Submitted => {
                let submitted = self.gpu.submit(stream, |work| work.read_back(buffer));
                reads.extend(submitted.ok().map(|transfer| (transfer, *halves)));
            }
            Method::Waited => {
                let found = buffer.to_vec().ok().and_then(|values| wrong(&values, *halves));
                assert_eq!(found, None, "a read that was waited for");
            }
        }
    }

    /// Copies a buffer that must hold `halves` to a piece of pinned memory of its own.
    fn download(&self, raw: RawStream, ptr: DevicePtr, halves: Halves) -> Result<()> {
        let (piece, to) = self.read_backs.piece(halves);
        // SAFETY: see the head of this file; the piece is used by this copy alone, and lives until every stream is idle.
        let copied = unsafe { self.faults.copy_to_host(DEVICE, raw, to, ptr, self.shape.elements as u64 * 4) };
        copied.map_err(|error| {
            self.read_backs.expect_anything(piece);
            error.into()
        })
    }

    fn overlap(
        &self,
        live: &mut TrackedBuffer,
        writer: Stream,
        reader: Stream,
        value: u32,
        reader_first: bool,
    ) -> Result<()> {
        let (context, block) = (self.gpu.context(), live.buffer.tracked().expect("it holds memory"));
        let (writes_on, reads_on) = (context.resolve(writer)?, context.resolve(reader)?);
        let writing = context.prepare_block_use(block, writer, Access::Write)?;
        let (ptr, count) = (block.ptr(), self.shape.elements as u64);
        // SAFETY: see the head of this file.
        unsafe { self.faults.fill(DEVICE, writes_on, ptr, Pattern::U32(value), count) }?;
        let reading = context.prepare_block_use(block, reader, Access::Read)?;
        self.download(reads_on, ptr, [Some(value); 2])?;
        let [first, second] = if reader_first { [reading, writing] } else { [writing, reading] };
        context.finish_block_use(first);
        context.finish_block_use(second);
        Ok(())
    }

    /// Waits for everything, compares what was read, and returns everything to the driver.
    fn end(self, submitted: Vec<SubmittedRead>) -> UseOutcome {
        let Self { gpu, streams, adopted, slots, read_backs, .. } = self;
        let buffers = slots.made.load(Relaxed);
        drop(slots);
        if let Some(mut adopted) = adopted.map(|adopted| adopted.into_inner().unwrap_or_else(PoisonError::into_inner)) {
            gpu.context()
                .synchronize(adopted.adoption.as_ref().expect("it is replaced at once").stream())
                .expect(WORKS);
            adopted.end(&gpu);
        }
        let reads = read_backs.len() + submitted.len();
        let differs = |(transfer, halves): SubmittedRead| wrong(&transfer.wait().expect(WORKS), halves);
        let of_submitted = submitted.into_iter().find_map(differs);
        streams.iter().for_each(|stream| gpu.context().synchronize(*stream).expect(WORKS));
        // The work of streams that have ended was ordered before the heir, so waiting for the heir waits for all of it.
        gpu.context().heir().and_then(|heir| gpu.context().synchronize(heir)).expect(WORKS);
        // SAFETY: every stream is idle.
        let wrong = unsafe { read_backs.wrong() }.or(of_submitted);
        // A failure that the context recorded is reported once, here.
        let _reported = gpu.memory().reap();
        gpu.memory().reap_blocking(Duration::MAX).expect(WORKS);
        drop(read_backs);
        UseOutcome { wrong, buffers, reads }
    }
}
