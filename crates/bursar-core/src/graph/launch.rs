//! Graphs, and the order of their launches.
#![allow(unsafe_code)]

use super::memory::GraphMemory;
use crate::context::DeclaredUse;
use crate::{Access, DeviceContext, DriverResult, Holder, RawEvent, RawGraphExec, RawStream, Result, Stream};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The launches of the graphs of one memory, which come one after another.
#[derive(Debug, Default)]
pub(super) struct Launches {
    /// Locked while a graph is launched, driver calls included: two launches at once would use the same memory.
    turn: Mutex<Turn>,
    /// True where the memory's own stream has waited for something since the last launch.
    has_news: AtomicBool,
}

#[derive(Debug, Default)]
struct Turn {
    /// The last launch, which comes after the others; `None` where all of them have run or are waited for.
    last: Option<LastLaunch>,
}

/// A launch that whatever uses the memory next has to come after.
#[derive(Clone, Copy, Debug)]
struct LastLaunch {
    stream: Stream,
    /// The event after it; `None` where the driver failed to record one, and then to wait. It is tried again by whoever needs it.
    event: Option<RawEvent>,
}

impl LastLaunch {
    /// Makes a stream come after it. The caller holds no adopted stream.
    fn order_before(self, context: &DeviceContext, stream: Stream) -> Result<()> {
        match self.event {
            _ if self.stream == stream => Ok(()),
            Some(event) => {
                let held = context.hold_for_question(stream)?;
                // SAFETY: the stream is held, and the event is this memory's.
                let waits = unsafe { context.driver().stream_wait(context.device(), held.raw(), event) };
                waits.map_err(|error| context.failed(error))
            }
            None => context.order_after(self.stream, stream),
        }
    }

    /// Waits until it has run.
    fn wait(self, context: &DeviceContext) -> Result<()> {
        match self.event {
            // SAFETY: the event is this memory's.
            Some(event) => unsafe { context.driver().event_synchronize(context.device(), event) }
                .map_err(|error| context.failed(error)),
            None => context.has_run(self.stream, Duration::MAX).map(drop),
        }
    }
}

impl Launches {
    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that blocks were freed in the order of the memory's own stream, which the next launch comes after.
    pub(super) fn has_news(&self) {
        self.has_news.store(true, Ordering::Release);
    }

    /// Calls `act` between two launches, with the stream of the last one, and whether the memory's own stream has waited for
    /// something since.
    pub(super) fn in_turn<T>(&self, act: impl FnOnce(Option<Stream>, bool) -> T) -> T {
        let turn = self.turn();
        act(turn.last.map(|last| last.stream), self.has_news.load(Ordering::Acquire))
    }

    /// Submits a launch to a stream, after the launches before and what the memory's own stream waits for. It uses what `begin`
    /// returns, which is called when its turn has come.
    fn launch(
        &self,
        context: &DeviceContext,
        own: Stream,
        stream: Stream,
        begin: impl FnOnce() -> Result<Vec<Box<dyn Send>>>,
        submit: impl FnOnce(RawStream) -> DriverResult<()>,
    ) -> Result<()> {
        let failed = |error| context.failed(error);
        let mut turn = self.turn();
        let _using = begin()?;
        turn.last.map_or(Ok(()), |last| last.order_before(context, stream))?;
        let held = context.hold_for_question(stream)?;
        let event = match turn.last.and_then(|last| last.event) {
            Some(event) => event,
            None => context.take_event().map_err(failed)?,
        };
        let launched = self.catch_up(context, own, stream).and_then(|()| submit(held.raw()).map_err(failed));
        // Also after a failure: a call that fails may have submitted its work.
        // SAFETY: the stream is held, and the event is this memory's.
        let recorded = unsafe { context.driver().event_record(context.device(), event, held.raw()) };
        turn.last = Some(LastLaunch { stream, event: recorded.is_ok().then_some(event) });
        if recorded.is_err() {
            // The host waits instead, and then there is nothing to come after.
            if context.synchronize(stream).is_ok() {
                turn.last = None;
            }
            // SAFETY: taken above or by an earlier launch; nobody waits for it any more.
            unsafe { context.return_event(event) };
        }
        launched.and(recorded.map_err(failed))
    }

    /// Makes a stream come after what the memory's own stream has waited for since the last launch.
    fn catch_up(&self, context: &DeviceContext, own: Stream, stream: Stream) -> Result<()> {
        if self.has_news.swap(false, Ordering::AcqRel) {
            context.order_outside(own, stream).inspect_err(|_| self.has_news())?;
        }
        Ok(())
    }

    /// Waits for what the memory's own stream has waited for since the last launch, so that launches which nobody orders may
    /// use what was freed.
    pub(super) fn settle(&self, context: &DeviceContext, own: Stream) -> Result<()> {
        if self.has_news.swap(false, Ordering::AcqRel) {
            context.synchronize(own).inspect_err(|_| self.has_news())?;
        }
        Ok(())
    }

    /// Returns whether there is no launch to come after.
    pub(super) fn is_over(&self) -> bool {
        self.turn().last.is_none()
    }

    /// Makes the memory's own stream come after every launch, or waits for them where the driver fails that. Where it fails that
    /// too, the last launch stays the one to come after, and this can be tried again.
    pub(super) fn end(&self, context: &DeviceContext, own: Stream) -> Result<()> {
        let mut turn = self.turn();
        let Some(last) = turn.last else { return Ok(()) };
        last.order_before(context, own).or_else(|_| last.wait(context))?;
        turn.last = None;
        if let Some(event) = last.event {
            // SAFETY: taken by an earlier launch; a wait that was submitted keeps what it waits for.
            unsafe { context.return_event(event) };
        }
        Ok(())
    }
}

impl GraphMemory {
    /// Says that a graph which uses this memory, and was captured by other means than [`capture`](Self::capture), has been
    /// launched on a stream: the memory stays until what the stream was given so far has run, and the next
    /// [launch](Graph::launch) comes after that.
    ///
    /// ```
    /// # use bursar::Result;
    /// # use bursar::prelude::*;
    /// # use bursar::graph::GraphMemory;
    /// # fn show(memory: &GraphMemory, stream: Stream) -> Result<()> {
    /// // … cuGraphLaunch(exec, stream) …
    /// memory.launched(stream)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn launched(&self, stream: impl Into<Stream>) -> Result<()> {
        self.context().order_outside(stream.into(), self.shared.own)?;
        self.shared.launches.has_news();
        Ok(())
    }
}

/// A graph that was captured into a [`GraphMemory`], which it keeps.
///
/// A launch is ordered like any other work: after what else was submitted with the buffers that it uses, before whatever uses
/// them next, and one after another with the launches of graphs in the same memory.
///
/// ```
/// # use bursar::{DeviceId, Gpu, Result, Stack, leaf, tag};
/// # let gpu = Gpu::open(bursar::sim::Sim::immediate(), DeviceId(0), &Stack::new().over(leaf::Async))?;
/// let stream = gpu.streams().lease()?;
/// let mut total = gpu.zeros::<u32>(1, &stream, tag!("total"))?;
/// let (graph, ()) = gpu.capture(&stream, |capture| -> Result<()> {
///     capture.gpu().submit(capture.stream(), |work| {
///         let count = |memory: &mut bursar::driver::SimulatedMemory<'_>, [total]: [_; 1]| {
///             let before: Vec<u32> = memory.read(total);
///             memory.write(total, &[before[0] + 1]);
///         };
///         work.kernel("count").writes(&mut total).simulated(count).launch(|_, _| Ok(()))
///     })
/// })?;
/// graph.launch(&stream)?;
/// graph.launch(&stream)?;
/// assert_eq!(total.to_vec()?, [2]);
/// # Ok::<(), bursar::Error>(())
/// ```
pub struct Graph {
    memory: GraphMemory,
    /// The number of its capture.
    number: u64,
    exec: RawGraphExec,
    uses: Vec<(Arc<dyn DeclaredUse>, Access)>,
}

impl Graph {
    pub(super) fn new(
        memory: GraphMemory,
        number: u64,
        exec: RawGraphExec,
        uses: Vec<(Arc<dyn DeclaredUse>, Access)>,
    ) -> Self {
        memory.shared.graphs.fetch_add(1, Ordering::AcqRel);
        Self { memory, number, exec, uses }
    }

    /// Returns the memory that it was captured into.
    pub const fn memory(&self) -> &GraphMemory {
        &self.memory
    }

    /// Returns the driver's handle, for other libraries. Whoever launches it by that orders the launch, and
    /// [says so](GraphMemory::launched).
    pub const fn raw(&self) -> RawGraphExec {
        self.exec
    }

    /// Launches it in the order of a stream, after everything else that was submitted with what it uses.
    ///
    /// Fails with [`UseAfterFree`](crate::Error::UseAfterFree) where a buffer that it was captured with was dropped, unless that was
    /// one of its own, allocated in its capture, and with [`Asleep`](crate::Error::Asleep) where one of them sleeps, or any of its memory.
    pub fn launch(&self, stream: impl Into<Stream>) -> Result<()> {
        let (shared, stream) = (&self.memory.shared, stream.into());
        let context = self.memory.context();
        context.fault().check()?;
        context.hold_for_memory(stream)?;
        let _awake = shared.use_awake()?;
        let mut using = Vec::with_capacity(self.uses.len());
        for (uses, access) in &self.uses {
            if !shared.is_of(self.number, &**uses) {
                uses.check_owned()?;
                using.push(uses.clone().begin_on(stream, *access)?);
                // A free that begins meanwhile either comes after the use or is seen here.
                uses.check_owned()?;
            } else if !uses.is_over() {
                using.push(uses.clone().begin_on(stream, *access)?);
            }
        }
        // They may be overwritten, so whoever reads them comes first.
        let write = |uses: Arc<dyn DeclaredUse>| uses.begin_on(stream, Access::Write);
        let begin = || shared.written_by(self.number).into_iter().map(write).collect();
        shared.launches.launch(context, shared.own, stream, begin, |raw| {
            // SAFETY: the graph lives as long as this, and its memory too. What else it uses is owned, which was checked,
            // and the uses order it; what was captured without being declared is promised by whoever captured it.
            unsafe { context.driver().graph_launch(context.device(), self.exec, raw) }
        })
    }
}

impl Drop for Graph {
    /// Destroys the graph; launches that were submitted still run, and its memory stays for as long.
    fn drop(&mut self) {
        self.memory.context().destroy_launched_graph(self.exec);
        self.memory.shared.graphs.fetch_sub(1, Ordering::AcqRel);
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("exec", &self.exec).field("memory", &self.memory).finish_non_exhaustive()
    }
}
