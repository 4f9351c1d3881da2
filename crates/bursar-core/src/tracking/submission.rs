//! Work that is submitted to one stream: launches of the caller's own, copies and fills, ordered by the blocks they
//! use.
//!
//! A [`TrackedBlock`] that is borrowed stays where it is until the work was submitted, and cannot be freed afterwards
//! before it has run, since the use is recorded. Host memory is moved into a [`Transfer`]. So whatever is done with
//! these in safe code, no work touches memory that is not there any more. A call that returns an error may have
//! submitted its work all the same; the use counts and host memory is waited for in any case.
#![allow(unsafe_code)]

use super::{RefusedTransfer, TrackedBlock, Transfer, Uses};
use crate::block::{OUTSIDE, range};
use crate::{
    Access, DeviceContext, DevicePtr, DriverResult, Error, HostFunction, HostMemory, Pattern, RawStream, Result,
    SimulatedKernel, Stream,
};
use std::sync::Arc;
use std::time::Duration;

/// Work that is being submitted to one stream: uses of any number of blocks that begin one after the other and end
/// together, when this is dropped.
///
/// A block that is used several times counts with the strongest access, and each time the stream comes after whatever
/// it must come after by then. A submission that is leaked never ends: whoever waits for its stream will wait for it
/// again.
///
/// ```
/// # use bursar::Result;
/// # use bursar::driver::{Pattern, RawStream};
/// # use bursar::memory::DevicePtr;
/// # use bursar::prelude::*;
/// # use bursar::stream::Submission;
/// # use std::sync::Arc;
/// # fn launch(_: RawStream, _: DevicePtr, _: DevicePtr) {}
/// # fn show(context: &Arc<DeviceContext>, from: &mut TrackedBlock, to: &TrackedBlock, stream: Stream) -> Result<()> {
/// let mut submission = Submission::new(context, stream);
/// submission.fill(from, 0, Pattern::U32(7), 1024)?;
/// submission.declare(from, Access::Read)?;
/// submission.declare(to, Access::Write)?;
/// launch(context.resolve(stream)?, from.ptr(), to.ptr());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a submission ends when this is dropped"]
pub struct Submission<'a> {
    context: &'a Arc<DeviceContext>,
    stream: Stream,
    /// The submission's number on its stream; zero before the first use.
    number: u64,
}

impl<'a> Submission<'a> {
    /// Makes a submission that uses nothing yet.
    #[inline]
    pub fn new(context: &'a Arc<DeviceContext>, stream: impl Into<Stream>) -> Self {
        Self { context, stream: stream.into(), number: 0 }
    }

    /// Returns the stream.
    pub const fn stream(&self) -> Stream {
        self.stream
    }

    /// Returns the device's context.
    pub const fn context(&self) -> &'a Arc<DeviceContext> {
        self.context
    }

    /// Begins a use of `block` by what the caller launches next, which lasts until the submission ends. See
    /// [`prepare_block_use`](DeviceContext::prepare_block_use) for what that does and when it is refused; the stream is
    /// checked once for all declared uses.
    #[inline]
    pub fn declare(&mut self, block: &TrackedBlock, access: Access) -> Result<()> {
        let uses = block.uses(self.context)?;
        if self.number == 0 {
            match self.context.begin_submission(self.stream) {
                Ok(number) => self.number = number,
                Err(refused) => return self.declare_captured(uses, access, refused),
            }
        }
        uses.begin(self.stream, access, self.number)
    }

    /// Declares a use that becomes part of a graph, where the stream was refused because it is being captured.
    #[cold]
    fn declare_captured(&self, uses: &Arc<Uses>, access: Access, refused: Error) -> Result<()> {
        let capture = self.context.capture_instead(self.stream, refused)?;
        self.context.check_awake(uses.record.ptr)?;
        capture.declare(self.context, uses.clone(), self.stream, access)
    }

    /// Declares a use by the submission itself, of work that can be part of a graph.
    fn declare_work(&mut self, block: &TrackedBlock, access: Access) -> Result<()> {
        match self.declare_own(block, access) {
            Err(refused) => self.declare_captured(block.uses(self.context)?, access, refused),
            declared => declared,
        }
    }

    /// Checks that work may be submitted to the stream, or captured from it.
    pub fn check(&self) -> Result<()> {
        self.context.check_work(self.stream)
    }

    /// Begins a use of `block` by work that is submitted here: the device's fault and the stream are checked for each.
    pub(super) fn declare_own(&mut self, block: &TrackedBlock, access: Access) -> Result<()> {
        let uses = block.uses(self.context)?;
        if self.number == 0 {
            self.number = self.context.begin_submission(self.stream)?;
        } else {
            self.context.check_submission(self.stream)?;
        }
        uses.begin(self.stream, access, self.number)
    }

    /// Repeats `pattern` `count` times, from `offset` bytes after the start of `block` on. The offset is a multiple of
    /// the pattern's width.
    pub fn fill(&mut self, block: &mut TrackedBlock, offset: u64, pattern: Pattern, count: u64) -> Result<()> {
        let bytes = count.checked_mul(pattern.width()).ok_or(OUTSIDE)?;
        let dst = range(block.block(), offset, bytes)?;
        if !dst.0.is_multiple_of(pattern.width()) {
            return Err(Error::InvalidValue { what: "a fill begins at a multiple of its pattern's width" });
        }
        self.declare_work(block, Access::Write)?;
        self.submit(|context, raw| {
            // SAFETY: `dst` is aligned and lies in a block that is borrowed; the use orders it, and the stream is live.
            unsafe { context.driver().fill(context.device(), raw, dst, pattern, count) }
        })
    }

    /// Repeats the bytes of `unit` `count` times, from `offset` bytes after the start of `block` on, which is a
    /// multiple of as many bytes as there are in `unit`. The first unit is made of fills and doubled on the device, so
    /// that no host memory is read later.
    pub fn fill_with(&mut self, block: &mut TrackedBlock, offset: u64, unit: &[u8], count: u64) -> Result<()> {
        let width = unit.len() as u64;
        let bytes = count.checked_mul(width).ok_or(OUTSIDE)?;
        let dst = range(block.block(), offset, bytes)?;
        if bytes > 0 && !offset.is_multiple_of(width) {
            return Err(Error::InvalidValue { what: "a fill begins at a multiple of its unit's width" });
        }
        self.declare_work(block, Access::Write)?;
        if bytes == 0 {
            return Ok(());
        }
        self.submit(|context, raw| {
            let (driver, device, mut at) = (context.driver(), context.device(), dst);
            for pattern in patterns(unit) {
                // SAFETY: `at` is aligned and lies in a block that is borrowed, with room for a unit; the use orders
                // it, and the stream is live.
                unsafe { driver.fill(device, raw, at, pattern, 1) }?;
                at = at.offset(pattern.width());
            }
            // SAFETY: as above; the fill covers `bytes` of the block.
            unsafe { context.repeat_first(raw, dst, width, bytes) }
        })
    }

    /// Copies `bytes` from `src_offset` of one block of the device to `dst_offset` of another.
    pub fn copy(
        &mut self,
        dst: &mut TrackedBlock,
        dst_offset: u64,
        src: &TrackedBlock,
        src_offset: u64,
        bytes: u64,
    ) -> Result<()> {
        let (to, from) = (range(dst.block(), dst_offset, bytes)?, range(src.block(), src_offset, bytes)?);
        self.declare_work(src, Access::Read)?;
        self.declare_work(dst, Access::Write)?;
        self.submit(|context, raw| {
            // SAFETY: the ranges lie in different blocks, both borrowed; the uses order them, and the stream is live.
            unsafe { context.driver().copy_on_device(context.device(), raw, to, from, bytes) }
        })
    }

    /// Runs a kernel on a driver that [simulates](crate::Driver::simulates), which judges and runs it by the ranges it
    /// declares. Uses of the blocks that they lie in are [declared](Self::declare) before.
    pub fn simulate(&mut self, kernel: SimulatedKernel) -> Result<()> {
        self.context.check_work(self.stream)?;
        self.submit(|context, raw| {
            // SAFETY: the stream is live while it is held.
            unsafe { context.driver().simulate(context.device(), raw, kernel) }
        })
    }

    /// Runs host code once everything that the stream was given before has run; what the stream is given afterwards waits
    /// for it.
    ///
    /// ```
    /// # use bursar::Result;
    /// # use bursar::driver::{Gate, HostFunction};
    /// # use bursar::prelude::*;
    /// # use bursar::stream::Submission;
    /// # use std::sync::Arc;
    /// # fn show(context: &Arc<DeviceContext>, stream: Stream) -> Result<()> {
    /// let gate = Gate::default();
    /// Submission::new(context, stream).run_on_host(HostFunction::behind(gate.clone(), || ()))?;
    /// // Whatever the stream is given here waits.
    /// gate.open();
    /// # Ok(())
    /// # }
    /// ```
    pub fn run_on_host(&mut self, function: HostFunction) -> Result<()> {
        self.context.check_work(self.stream)?;
        self.submit(|context, raw| {
            // SAFETY: the stream is live while it is held.
            unsafe { context.driver().host_function(context.device(), raw, function) }
        })
    }

    /// Copies all of `memory` to `offset` bytes after the start of `dst`. A refusal gives the memory back.
    pub fn copy_from_host<H: HostMemory>(
        &mut self,
        dst: &mut TrackedBlock,
        offset: u64,
        memory: H,
    ) -> Result<Transfer<H>, RefusedTransfer<H>> {
        let bytes = memory.host_len() as u64;
        let dst_ptr = range(dst.block(), offset, bytes);
        let begun = dst_ptr.and_then(|ptr| self.declare_own(dst, Access::Write).map(|()| ptr));
        self.transfer(memory, begun, |context, raw, src, dst_ptr| {
            // SAFETY: `dst_ptr` lies in a block that is borrowed, ordered by the use; `src` is kept by the transfer,
            // which nobody reads or writes until the copy has run. The stream is live.
            unsafe { context.driver().copy_to_device(context.device(), raw, dst_ptr, src, bytes) }
        })
    }

    /// Copies what is `offset` bytes after the start of `src` into all of `memory`. Into memory that is not pinned, the
    /// driver may wait for the copy before this returns. A refusal gives the memory back.
    pub fn copy_to_host<H: HostMemory>(
        &mut self,
        src: &TrackedBlock,
        offset: u64,
        memory: H,
    ) -> Result<Transfer<H>, RefusedTransfer<H>> {
        let bytes = memory.host_len() as u64;
        let src_ptr = range(src.block(), offset, bytes);
        let begun = src_ptr.and_then(|ptr| self.declare_own(src, Access::Read).map(|()| ptr));
        self.transfer(memory, begun, |context, raw, dst, src_ptr| {
            // SAFETY: `src_ptr` lies in a block that is borrowed, ordered by the use; `dst` is kept by the transfer,
            // which nobody reads or writes until the copy has run. The stream is live.
            unsafe { context.driver().copy_to_host(context.device(), raw, dst, src_ptr, bytes) }
        })
    }

    /// Submits a copy of `memory` whose use has `begun`. If the driver returns an error, the copy may have been
    /// submitted all the same: it counts as in flight.
    fn transfer<H: HostMemory>(
        &self,
        memory: H,
        begun: Result<DevicePtr>,
        copy: impl FnOnce(&DeviceContext, RawStream, *mut u8, DevicePtr) -> DriverResult<()>,
    ) -> Result<Transfer<H>, RefusedTransfer<H>> {
        self.context.retry_remains();
        self.context.collect_transfers(Duration::ZERO);
        let is_empty = memory.host_len() == 0;
        let mut transfer = Transfer::of_nothing(self.context, self.stream, memory);
        let copied = begun.and_then(|ptr| {
            if is_empty {
                return Ok(());
            }
            let held = self.context.hold(self.stream)?;
            copy(self.context, held.raw(), transfer.begin(), ptr).map_err(|error| self.context.failed(error))
        });
        match copied {
            Ok(()) => Ok(transfer),
            Err(error) => Err(transfer.refused(error)),
        }
    }

    fn submit(&self, submit: impl FnOnce(&DeviceContext, RawStream) -> DriverResult<()>) -> Result<()> {
        let held = self.context.hold(self.stream)?;
        submit(self.context, held.raw()).map_err(|error| self.context.failed(error))
    }
}

impl Drop for Submission<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.number > 0 {
            self.context.clocks().end(self.stream);
        }
    }
}

/// Returns the widest patterns that make up one unit, which lies at a multiple of its own width.
fn patterns(unit: &[u8]) -> impl Iterator<Item = Pattern> {
    let width = match unit.len() {
        len if len.is_multiple_of(4) => 4,
        len if len.is_multiple_of(2) => 2,
        _ => 1,
    };
    unit.chunks_exact(width).map(|part| match *part {
        [a, b, c, d] => Pattern::U32(u32::from_ne_bytes([a, b, c, d])),
        [a, b] => Pattern::U16(u16::from_ne_bytes([a, b])),
        _ => Pattern::U8(part[0]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_made_of_the_widest_patterns_there_are() {
        let of = |unit: &[u8]| patterns(unit).collect::<Vec<_>>();
        assert_eq!(of(&[1, 2, 3]), [Pattern::U8(1), Pattern::U8(2), Pattern::U8(3)]);
        assert_eq!(of(&[1, 0, 2, 0, 3, 0]).len(), 3);
        let words = [7u32.to_ne_bytes(), 9u32.to_ne_bytes()].concat();
        assert_eq!(of(&words), [Pattern::U32(7), Pattern::U32(9)]);
    }
}
