//! Blocks that remember the streams that use them.

use super::{BlockUse, RefusedTransfer, Submission, Transfer, Uses};
use crate::{
    Access, DeviceBlock, DeviceContext, DeviceMemoryResource, DevicePtr, Error, HostMemory, Pattern, Refused, Result,
    Stream,
};
use bytemuck::Pod;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// A [`DeviceBlock`] together with its uses on streams, so that it is neither used nor freed too early.
///
/// As long as no use on another stream was declared, it belongs to the stream that it was allocated on: work that is
/// launched there with its address needs no declaration for the free, which follows that stream. A block is tracked as
/// a whole: uses of different parts of it are ordered like uses of the same part.
///
/// ```
/// # use bursar::Result;
/// # use bursar::driver::Pattern;
/// # use bursar::prelude::*;
/// # use bursar::stream::Submission;
/// # use std::sync::Arc;
/// # fn show(memory: &dyn DeviceMemoryResource, home: Stream, other: Stream) -> Result<()> {
/// let context = memory.context();
/// let mut block = TrackedBlock::new(memory, memory.allocate(4096, 256, home, tag!("batch"))?);
/// Submission::new(context, home).fill(&mut block, 0, Pattern::U32(7), 1024)?;
/// let copy = block.copy_to_host_async(context, 0, vec![0u32; 1024], other)?;
/// block.free(memory, home)?;
/// assert_eq!(copy.wait()?, [7; 1024]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping a block leaks its memory: give it back with `free`"]
pub struct TrackedBlock {
    block: DeviceBlock,
    /// The number of its allocation on its own stream.
    born: u64,
    can_track: bool,
    /// Made when the first use is declared.
    uses: OnceLock<Arc<Uses>>,
}

/// A free, or a conversion into the token alone, that was refused: the block comes back with the reason and its uses.
///
/// ```
/// # use bursar::Result;
/// # use bursar::error::StreamMisuse;
/// # use bursar::prelude::*;
/// # fn show(memory: &dyn DeviceMemoryResource, block: TrackedBlock, captured: Stream, stream: Stream) -> Result<()> {
/// let refused = block.free(memory, captured).unwrap_err();
/// assert!(matches!(refused.error, Error::StreamMisuse { .. }));
/// refused.block.free(memory, stream)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("the block was not given back: {error}")]
pub struct RefusedTracked {
    /// The block, as it was.
    pub block: Box<TrackedBlock>,
    /// The reason for the refusal.
    #[source]
    pub error: Error,
}

impl From<RefusedTracked> for Error {
    fn from(refused: RefusedTracked) -> Self {
        refused.error
    }
}

impl TrackedBlock {
    /// Tracks a block that `memory` just gave out.
    pub fn new(memory: &dyn DeviceMemoryResource, block: DeviceBlock) -> Self {
        let born = memory.context().clocks().pass(block.stream());
        Self { block, born, can_track: memory.tracks_use(), uses: OnceLock::new() }
    }

    /// Returns the token.
    #[inline]
    pub const fn block(&self) -> &DeviceBlock {
        &self.block
    }

    /// Returns the address of its first byte.
    #[inline]
    pub const fn ptr(&self) -> DevicePtr {
        self.block.ptr()
    }

    /// Returns its uses, to declare another one; an error where the block is of another context or cannot be tracked.
    #[inline]
    pub(super) fn uses(&self, context: &Arc<DeviceContext>) -> Result<&Arc<Uses>> {
        match self.uses.get() {
            Some(uses) if Arc::ptr_eq(&uses.context, context) => Ok(uses),
            _ => self.first_use(context),
        }
    }

    #[cold]
    fn first_use(&self, context: &Arc<DeviceContext>) -> Result<&Arc<Uses>> {
        context.check_own(self.block.stream())?;
        if !self.can_track {
            let (device, what) = (context.device(), "tracking the uses of this memory");
            return Err(Error::Unsupported { device, what });
        }
        Ok(self.uses.get_or_init(|| {
            let uses = Arc::new(Uses::new(context.clone(), &self.block, self.born));
            if let Some(memory) = context.launched_memory(self.block.owner()) {
                uses.follow_launches(&*memory);
            }
            uses
        }))
    }

    /// Returns its uses if one was declared, or if launches of graphs write to it, which nobody declares.
    fn known_uses(&self, context: &DeviceContext) -> Result<Option<&Arc<Uses>>> {
        if let Some(uses) = self.uses.get() {
            return Ok(Some(uses));
        }
        let memory = context.launched_memory(self.block.owner());
        memory.map(|memory| self.first_use(memory.context())).transpose()
    }

    /// Says that its owner gives it up, though its free may have to wait: a graph that uses it is not launched any more.
    pub fn give_up(&self) {
        self.set_given_up(true);
    }

    /// Says whether its owner gives it up, and returns whether he had done so before.
    fn set_given_up(&self, is_given_up: bool) -> bool {
        self.uses.get().is_some_and(|uses| uses.is_given_up.swap(is_given_up, Ordering::AcqRel))
    }

    /// Frees it in the order of `stream`, after every use on other streams that still matters.
    pub fn free(self, memory: &dyn DeviceMemoryResource, stream: impl Into<Stream>) -> Result<(), RefusedTracked> {
        let stream = stream.into();
        let known = self.known_uses(memory.context());
        let was_given_up = self.set_given_up(true);
        let ordered = known.and_then(|uses| uses.map_or(Ok(()), |uses| uses.end_all_before(stream)));
        let Self { block, born, can_track, uses } = self;
        let (block, error) = match ordered {
            Ok(()) => match memory.deallocate(block, stream) {
                Ok(()) => {
                    uses.get().inspect(|uses| uses.is_over.store(true, Ordering::Release));
                    return Ok(());
                }
                Err(Refused { block, error }) => (block, error),
            },
            Err(error) => (block, error),
        };
        let refused = Self { block, born, can_track, uses };
        refused.set_given_up(was_given_up);
        Err(RefusedTracked { block: Box::new(refused), error })
    }

    /// Returns the token alone, once the stream that it was allocated on, or the heir of that if its adoption has
    /// ended, comes after every use. Where the driver fails to make that order, the uses are waited for; and where that
    /// cannot be done either, as for a stream that is being captured into a graph, the block comes back.
    pub fn into_block(self, context: &DeviceContext) -> Result<DeviceBlock, RefusedTracked> {
        let (known, home) = (self.known_uses(context), self.block.stream());
        let was_given_up = self.set_given_up(true);
        let ordered = known.and_then(|uses| {
            let Some(uses) = uses else { return Ok(()) };
            let ordered = uses.context.on_lasting(home, |home| uses.end_all_before(home));
            ordered.or_else(|error| match uses.capture_with(home) {
                Some(_) => Err(error),
                None => uses.wait_on_host(),
            })
        });
        if let Err(error) = ordered {
            self.set_given_up(was_given_up);
            return Err(RefusedTracked { block: Box::new(self), error });
        }
        self.uses.get().inspect(|uses| uses.is_over.store(true, Ordering::Release));
        Ok(self.block)
    }

    /// Runs work that waits for its completion, on the block's own stream, in order with uses on others.
    fn waited<T>(
        &mut self,
        context: &DeviceContext,
        access: Access,
        run: impl FnOnce(&mut DeviceBlock, Stream) -> Result<T>,
    ) -> Result<T> {
        let home = self.block.stream();
        let using = begun(self, context, home, access)?;
        let result = run(&mut self.block, home);
        ended(using, result.is_ok());
        result
    }

    /// Copies as [`DeviceContext::copy_from_host`] does, on the block's own stream and after its uses on others.
    pub fn copy_from_host(&mut self, context: &DeviceContext, offset: u64, src: &[u8]) -> Result<()> {
        self.waited(context, Access::Write, |block, home| context.copy_from_host(block, offset, src, home))
    }

    /// Copies as [`DeviceContext::copy_to_host`] does, on the block's own stream and after writes on others.
    pub fn copy_to_host(&self, context: &DeviceContext, offset: u64, dst: &mut [u8]) -> Result<()> {
        let home = self.block.stream();
        let using = begun(self, context, home, Access::Read)?;
        let result = context.copy_to_host(&self.block, offset, dst, home);
        ended(using, result.is_ok());
        result
    }

    /// Reads `len` elements as [`copy_to_host`](Self::copy_to_host) does. Where the stream cannot be waited for, their memory is
    /// leaked, since the copy may yet run.
    pub fn copy_to_vec<T: Pod>(&self, context: &DeviceContext, offset: u64, len: usize) -> Result<Vec<T>> {
        let home = self.block.stream();
        let using = begun(self, context, home, Access::Read)?;
        let result = context.copy_to_vec(&self.block, offset, len, home);
        ended(using, result.is_ok());
        result
    }

    /// Copies as [`DeviceContext::copy_blocks`] does, on this block's own stream and after the uses of both on others.
    pub fn copy_from(
        &mut self,
        context: &DeviceContext,
        offset: u64,
        src: &Self,
        src_offset: u64,
        bytes: u64,
    ) -> Result<()> {
        let reading = begun(src, context, self.block.stream(), Access::Read)?;
        let result = self.waited(context, Access::Write, |block, home| {
            context.copy_blocks(block, offset, &src.block, src_offset, bytes, home)
        });
        ended(reading, result.is_ok());
        result
    }

    /// Fills as [`DeviceContext::fill`] does, on the block's own stream and after its uses on others.
    pub fn fill(&mut self, context: &DeviceContext, offset: u64, pattern: Pattern, count: u64) -> Result<()> {
        self.waited(context, Access::Write, |block, home| context.fill(block, offset, pattern, count, home))
    }

    /// Fills as [`DeviceContext::fill_with`] does, on the block's own stream and after its uses on others.
    pub fn fill_with(&mut self, context: &DeviceContext, offset: u64, unit: &[u8], count: u64) -> Result<()> {
        self.waited(context, Access::Write, |block, home| context.fill_with(block, offset, unit, count, home))
    }

    /// Submits [`Submission::copy_from_host`] by itself.
    pub fn copy_from_host_async<H: HostMemory>(
        &mut self,
        context: &Arc<DeviceContext>,
        offset: u64,
        memory: H,
        stream: impl Into<Stream>,
    ) -> Result<Transfer<H>, RefusedTransfer<H>> {
        Submission::new(context, stream).copy_from_host(self, offset, memory)
    }

    /// Submits [`Submission::copy_to_host`] by itself.
    pub fn copy_to_host_async<H: HostMemory>(
        &self,
        context: &Arc<DeviceContext>,
        offset: u64,
        memory: H,
        stream: impl Into<Stream>,
    ) -> Result<Transfer<H>, RefusedTransfer<H>> {
        Submission::new(context, stream).copy_to_host(self, offset, memory)
    }
}

/// Begins a use of a block if one was declared before, or launches write to it; otherwise the block never left its own
/// stream, which such work follows.
fn begun(block: &TrackedBlock, context: &DeviceContext, stream: Stream, access: Access) -> Result<Option<BlockUse>> {
    block.known_uses(context)?.map(|uses| BlockUse::begin(uses, stream, access)).transpose()
}

fn ended(using: Option<BlockUse>, has_run: bool) {
    match using {
        Some(using) if has_run => using.end_complete(),
        using => drop(using),
    }
}
