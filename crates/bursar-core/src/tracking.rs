//! Use tracking, which orders the streams that use a block.
//!
//! A [`TrackedBlock`] remembers which streams use it. A use is declared before its work is launched:
//! [`prepare_block_use`] submits the waits that the use needs, and the [`BlockUse`] it returns ends the use when it is
//! dropped, whatever happened in between; a [`Submission`] does the same for any number of blocks. A read comes after
//! the writes of other streams, a write after their reads too, and a free after everything. Work on the same stream
//! waits for nothing.
//!
//! # Invariants
//! **A use counts from its beginning on.** It is marked before its waits are submitted, so of two uses that meet, the
//! later sees the earlier, and nothing launched can be lost.
//!
//! **Events only between streams.** A block has one mark for each stream: the numbers of its last writing and last
//! reading submission. An event is recorded on the other stream when somebody must wait, and not if an earlier wait, or
//! what the host has seen, covers the number. So a block that stays on one stream costs no event.
//!
//! **Submissions are numbered when they begin and counted when they end.** While both agree, an event covers all of
//! them; while one is open, those known to be over before. So a use takes one lock and no list, and an open use is
//! never taken for a finished one.
//!
//! Tracking lives in this crate because a copy that is only submitted is sound because its use is declared: that
//! argument stands beside the unsafe call in `submission.rs`.
//!
//! [`prepare_block_use`]: DeviceContext::prepare_block_use
#![allow(unsafe_code)]

mod marks;
mod peer;
mod submission;
mod tracked;
mod transfer;

use crate::context::{CaptureOrder, CaptureOrigin, DeclaredUse, LaunchedMemory, WaitFailure};
use crate::stream::StreamHold;
use crate::{
    Access, Action, DeviceBlock, DeviceContext, Error, Generation, OwnerId, Record, Result, Stream, StreamMisuse,
};
use marks::{Marks, Need};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
pub use submission::Submission;
pub use tracked::{RefusedTracked, TrackedBlock};
pub use transfer::{RefusedTransfer, Transfer};

impl DeviceContext {
    /// Makes what is submitted to `stream` from here on come after the uses of `block` that `access` must come after.
    /// Returns the use, which lasts until it is [finished](Self::finish_block_use) or dropped.
    ///
    /// Launch in between. Another use that begins meanwhile comes after what was launched so far; what is launched
    /// after that is unordered with it, so renew the use ([`BlockUse::renew`]) where another one may have begun.
    ///
    /// An error means that nothing was declared: the stream or the block is not of this context, the memory cannot
    /// track ([`Error::Unsupported`]), a stream that would have to be waited for is being captured, or the driver
    /// failed.
    ///
    /// ```
    /// # use bursar::Result;
    /// # use bursar::driver::RawStream;
    /// # use bursar::memory::DevicePtr;
    /// # use bursar::prelude::*;
    /// # use std::sync::Arc;
    /// # fn launch(_: RawStream, _: DevicePtr) {}
    /// # fn show(context: &Arc<DeviceContext>, block: &TrackedBlock, stream: Stream) -> Result<()> {
    /// let reading = context.prepare_block_use(block, stream, Access::Read)?;
    /// launch(context.resolve(stream)?, block.ptr());
    /// context.finish_block_use(reading);
    /// # Ok(())
    /// # }
    /// ```
    pub fn prepare_block_use(
        self: &Arc<Self>,
        block: &TrackedBlock,
        stream: impl Into<Stream>,
        access: Access,
    ) -> Result<BlockUse> {
        let uses = block.uses(self)?;
        BlockUse::begin(uses, stream.into(), access)
    }

    /// Records a use whose work has been submitted. Dropping it does the same.
    pub fn finish_block_use(&self, done: BlockUse) {
        drop(done);
    }

    /// Records a use that was submitted to `stream` already and that its submitter ordered after the others, without
    /// any wait. One of a block that [sleeps](crate::Sleeper) is refused.
    pub fn record_block_use(
        self: &Arc<Self>,
        block: &TrackedBlock,
        stream: impl Into<Stream>,
        access: Access,
    ) -> Result<()> {
        let (uses, stream) = (block.uses(self)?, stream.into());
        let _held = self.hold(stream)?;
        let _using = self.use_awake_ranges([(block.block().ptr(), 1)])?;
        let number = self.clocks().pass(stream);
        uses.marks().mark(stream, access, number);
        uses.record(stream);
        Ok(())
    }

    /// Begins a submission to a stream that may be used and returns its number.
    #[inline]
    fn begin_submission(&self, stream: Stream) -> Result<u64> {
        self.check_submission(stream)?;
        Ok(self.clocks().begin(stream))
    }

    /// Reports the device's fault, and refuses a stream that may not be used.
    #[inline]
    fn check_submission(&self, stream: Stream) -> Result<()> {
        self.fault().check()?;
        self.check_use(stream)
    }

    /// Checks a stream as [`check_submission`](Self::check_submission) does, for work that is part of a graph where the
    /// stream is being captured through this context.
    #[inline]
    fn check_work(&self, stream: Stream) -> Result<()> {
        self.check_submission(stream).or_else(|error| self.capture_instead(stream, error).map(drop))
    }

    /// Returns the capture that a stream is part of, where the stream was refused for that.
    #[cold]
    fn capture_instead(&self, stream: Stream, refused: Error) -> Result<Arc<CaptureOrder>> {
        match refused {
            Error::StreamMisuse { why: StreamMisuse::Capturing, .. } => self.capture_of(stream).ok_or(refused),
            refused => Err(refused),
        }
    }
}

/// A use of a block that has begun: its stream comes after whatever it must. It ends when this is dropped, and counts
/// from its beginning on, so that it cannot be lost once something was launched. A use that is leaked never ends:
/// whoever waits for its stream will wait for it again.
///
/// ```
/// # use bursar::Result;
/// # use bursar::prelude::*;
/// # use std::sync::Arc;
/// # fn show(context: &Arc<DeviceContext>, block: &TrackedBlock, stream: Stream) -> Result<()> {
/// let mut using = context.prepare_block_use(block, stream, Access::Read)?;
/// using.renew(Access::Write)?;
/// assert_eq!((using.stream(), using.access()), (stream, Access::Write));
/// # Ok(())
/// # }
/// ```
#[must_use = "a use ends when this is dropped"]
pub struct BlockUse {
    uses: Arc<Uses>,
    stream: Stream,
    access: Access,
    number: u64,
}

impl BlockUse {
    fn begin(uses: &Arc<Uses>, stream: Stream, access: Access) -> Result<Self> {
        let number = uses.context.begin_submission(stream)?;
        // From here on the use ends in any case.
        let begun = Self { uses: uses.clone(), stream, access, number };
        uses.begin(stream, access, number)?;
        Ok(begun)
    }

    /// Returns the stream that uses the block.
    pub const fn stream(&self) -> Stream {
        self.stream
    }

    /// Returns the strongest access so far.
    pub const fn access(&self) -> Access {
        self.access
    }

    /// Makes what is submitted from here on come after whatever `access` must come after by now. The use goes on, with
    /// the stronger of the two accesses; after an error it is as it was.
    pub fn renew(&mut self, access: Access) -> Result<()> {
        self.uses.begin(self.stream, access, self.number)?;
        self.access = self.access.max(access);
        Ok(())
    }

    /// Ends a use whose work has run.
    fn end_complete(self) {
        self.uses.marks().retract(self.stream, self.access, self.number);
    }
}

impl Drop for BlockUse {
    fn drop(&mut self) {
        self.uses.context.clocks().end(self.stream);
    }
}

impl fmt::Debug for BlockUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockUse").field("stream", &self.stream).field("access", &self.access).finish_non_exhaustive()
    }
}

/// The uses of one block, shared by the block and the uses that have begun.
#[derive(Debug)]
struct Uses {
    context: Arc<DeviceContext>,
    /// The record that is sent to the sink for each use.
    record: Record<'static>,
    marks: Mutex<Marks>,
    owner: OwnerId,
    /// Set once it is known that the block was allocated in a capture.
    origin: OnceLock<CaptureOrigin>,
    /// True once its owner gave the block up, which may take a while: it is set before the marks are looked at for the last
    /// time, so that a use by somebody else is either seen there or sees it.
    is_given_up: AtomicBool,
    /// True once the block was freed, or its token given away.
    is_over: AtomicBool,
}

impl Uses {
    fn new(context: Arc<DeviceContext>, block: &DeviceBlock, born: u64) -> Self {
        let record = Record {
            tag: block.tag(),
            ptr: block.ptr(),
            granted: block.granted(),
            asked: block.requested(),
            generation: Some(block.generation()),
            ..Record::new(Action::Use, block.device())
        };
        let (marks, owner) = (Mutex::new(Marks::born(block.stream(), born)), block.owner());
        let (is_given_up, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { context, record, marks, owner, origin: OnceLock::new(), is_given_up, is_over }
    }

    /// Has whatever else writes to a block of a memory that graphs are launched with count as uses of it: launches from now on,
    /// the last before, which comes after the others, and what was there before and was freed.
    fn follow_launches(self: &Arc<Self>, memory: &dyn LaunchedMemory) {
        let first = memory.first_use(self.record.ptr, self.clone());
        if let Some(origin) = first.origin {
            self.origin.get_or_init(|| origin);
        }
        for stream in first.after.into_iter().flatten() {
            let number = self.context.clocks().pass(stream);
            self.marks().mark(stream, Access::Write, number);
        }
    }

    #[inline]
    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a use by a submission to a stream that may be used: marks it, then submits the waits for what it must
    /// come after.
    #[inline]
    fn begin(&self, stream: Stream, access: Access, number: u64) -> Result<()> {
        self.context.check_awake(self.record.ptr)?;
        let only = self.marks().mark_only(stream, access, number);
        match only {
            Some(true) => self.record(stream),
            Some(false) => {}
            None => return self.begin_among_others(stream, access, number),
        }
        Ok(())
    }

    #[cold]
    fn begin_among_others(&self, stream: Stream, access: Access, number: u64) -> Result<()> {
        let context = &*self.context;
        let held = context.hold_for_question(stream)?;
        let mut marks = self.marks();
        let needs = marks.needs(stream, access, context.clocks(), |stream| context.has_ended(stream));
        let is_news = marks.mark(stream, access, number);
        drop(marks);
        let ordered = self.wait_for_all(needs, stream, held);
        let mut marks = self.marks();
        match (&ordered, access) {
            (Ok(_held), Access::Write) => {
                marks.forget_seen(stream, context.clocks(), |stream| context.has_ended(stream))
            }
            (Ok(_), Access::Read) => {}
            (Err(_), _) if is_news => marks.retract(stream, access, number),
            (Err(_), _) => {}
        }
        drop(marks);
        if is_news && ordered.is_ok() {
            self.record(stream);
        }
        ordered.map(drop)
    }

    #[inline]
    fn record(&self, stream: Stream) {
        if self.context.sink().wants(Action::Use) {
            self.emit_record(stream);
        }
    }

    #[cold]
    fn emit_record(&self, stream: Stream) {
        self.context.sink().emit(&Record { stream: Some(stream), ..self.record });
    }

    /// Makes what is submitted to `stream` from here on come after every use: in the capture that the block was allocated in,
    /// where the stream is part of that, or else outside.
    fn end_all_before(&self, stream: Stream) -> Result<()> {
        match self.capture_with(stream) {
            Some(capture) => capture.end_uses(&self.context, self, stream, Access::Write),
            None => self.end_all_outside(stream),
        }
    }

    /// Returns the capture that the block was allocated in, where it is under way and a stream is part of it.
    fn capture_with(&self, stream: Stream) -> Option<Arc<CaptureOrder>> {
        let origin = self.origin()?;
        self.context.capture_of(stream).filter(|capture| capture.number() == origin.capture)
    }

    /// Makes what is submitted to `stream` from here on come after every use that was not captured, and after every launch.
    fn end_all_outside(&self, stream: Stream) -> Result<()> {
        let context = &*self.context;
        let mut marks = self.marks();
        if marks.stay_on(stream) {
            return Ok(());
        }
        let needs = marks.needs(stream, Access::Write, context.clocks(), |stream| context.has_ended(stream));
        drop(marks);
        let held = context.hold_for_question(stream)?;
        self.wait_for_all(needs, stream, held).map(drop)
    }

    /// Waits until no use is in flight; an error means that one may be. What went wrong otherwise is reported by the
    /// device's next fallible call.
    fn wait_on_host(&self) -> Result<()> {
        let streams = self.marks().streams();
        for stream in streams {
            match self.context.wait_until_idle(stream) {
                Err(failure) if failure.may_be_in_flight => return Err(failure.error),
                Err(WaitFailure { error: Error::Driver(error), .. }) => self.context.fault().record(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn wait_for_all<'a>(
        &'a self,
        mut needs: Vec<Need>,
        stream: Stream,
        mut held: StreamHold<'a>,
    ) -> Result<StreamHold<'a>> {
        let clocks = self.context.clocks();
        while let Some(need) = Need::take_latest(&mut needs, clocks) {
            if self.context.has_ended(need.stream) || !need.is_met(stream, clocks) {
                held = self.wait_for(need.stream, stream, held)?;
            }
        }
        Ok(held)
    }

    /// Makes `stream` wait for what `first` was given so far, or, if that has ended, for its heir.
    fn wait_for<'a>(&'a self, first: Stream, stream: Stream, held: StreamHold<'a>) -> Result<StreamHold<'a>> {
        let context = &*self.context;
        let (first, first_held, held) = match context.hold_for_question(first) {
            Err(Error::StreamMisuse { why: StreamMisuse::Ended, .. }) => {
                drop(held);
                let heir = context.heir_of(first)?;
                let number = context.clocks().pass(heir);
                self.marks().inherit(first, heir, number);
                (heir, context.hold_for_question(heir)?, context.hold_for_question(stream)?)
            }
            held_first => (first, held_first?, held),
        };
        if first == stream {
            return Ok(held);
        }
        let view = context.clocks().look(first);
        // SAFETY: the streams are live while they are held.
        unsafe { context.chain(first_held.raw(), held.raw()) }.map_err(|error| context.failed(error))?;
        context.clocks().waited(stream, first, &view);
        Ok(held)
    }
}

impl DeclaredUse for Uses {
    fn generation(&self) -> Generation {
        self.record.generation.unwrap_or_else(Generation::next)
    }

    fn owner(&self) -> OwnerId {
        self.owner
    }

    fn origin(&self) -> Option<CaptureOrigin> {
        self.origin.get().copied()
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn check_owned(&self) -> Result<()> {
        match self.is_given_up.load(Ordering::Acquire) {
            false => Ok(()),
            true => {
                let Record { ptr, tag, .. } = self.record;
                Err(Error::UseAfterFree { ptr, generation: self.generation(), tag })
            }
        }
    }

    fn begin_on(self: Arc<Self>, stream: Stream, access: Access) -> Result<Box<dyn Send>> {
        BlockUse::begin(&self, stream, access).map(|using| Box::new(using) as Box<dyn Send>)
    }
}
