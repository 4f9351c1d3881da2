//! Copies and fills that are only submitted: ordered by tracking, and waited for by nobody.
//!
//! A [`TrackedBlock`] that is borrowed stays where it is until the work was submitted, and cannot be freed afterwards
//! before it has run, since the use is recorded. Host memory is moved into a [`Transfer`]. So whatever is done with these in
//! safe code, no work touches memory that is not there any more. An answer that says an error may be that of work which was
//! submitted all the same; the use counts and host memory is waited for in any case.
#![allow(unsafe_code)]

use super::{Access, TrackedBlock, Transfer};
use crate::block::{OUTSIDE, range};
use crate::{DeviceContext, DriverResult, Error, HostMemory, Pattern, RawStream, Result, Stream};
use std::sync::Arc;

impl TrackedBlock {
    /// Repeats `pattern` `count` times, from `offset` bytes after the start on. The offset is a multiple of the pattern's
    /// width.
    pub fn fill_async(
        &mut self,
        context: &Arc<DeviceContext>,
        offset: u64,
        pattern: Pattern,
        count: u64,
        stream: Stream,
    ) -> Result<()> {
        let bytes = count.checked_mul(pattern.width()).ok_or(OUTSIDE)?;
        let dst = range(self.block(), offset, bytes)?;
        if !dst.0.is_multiple_of(pattern.width()) {
            return Err(Error::InvalidValue { what: "a fill begins at a multiple of its pattern's width" });
        }
        let _use = context.prepare_block_use(self, stream, Access::Write)?;
        context.submit_to(stream, |raw| {
            // SAFETY: `dst` is aligned and lies in a block that is borrowed; the use orders it, and the stream is live.
            unsafe { context.driver().fill(context.device(), raw, dst, pattern, count) }
        })
    }

    /// Repeats the bytes of `unit` `count` times, from `offset` bytes after the start on, which is a multiple of as many
    /// bytes as there are in `unit`. The first unit is made of fills and doubled on the device, so that no host memory is
    /// read later.
    pub fn fill_with_async(
        &mut self,
        context: &Arc<DeviceContext>,
        offset: u64,
        unit: &[u8],
        count: u64,
        stream: Stream,
    ) -> Result<()> {
        let width = unit.len() as u64;
        let bytes = count.checked_mul(width).ok_or(OUTSIDE)?;
        let dst = range(self.block(), offset, bytes)?;
        if bytes > 0 && !offset.is_multiple_of(width) {
            return Err(Error::InvalidValue { what: "a fill begins at a multiple of its unit's width" });
        }
        let _use = context.prepare_block_use(self, stream, Access::Write)?;
        if bytes == 0 {
            return Ok(());
        }
        context.submit_to(stream, |raw| {
            let (driver, device, mut at) = (context.driver(), context.device(), dst);
            for pattern in patterns(unit) {
                // SAFETY: `at` is aligned and lies in a block that is borrowed, with room for a unit; the use orders it,
                // and the stream is live.
                unsafe { driver.fill(device, raw, at, pattern, 1) }?;
                at = at.offset(pattern.width());
            }
            // SAFETY: as above; what is filled are `bytes` of the block.
            unsafe { context.repeat_first(raw, dst, width, bytes) }
        })
    }

    /// Copies `bytes` of another block of the device, from `src_offset` there to `offset` here.
    pub fn copy_from_async(
        &mut self,
        context: &Arc<DeviceContext>,
        offset: u64,
        src: &Self,
        src_offset: u64,
        bytes: u64,
        stream: Stream,
    ) -> Result<()> {
        let (dst, from) = (range(self.block(), offset, bytes)?, range(src.block(), src_offset, bytes)?);
        let _read = context.prepare_block_use(src, stream, Access::Read)?;
        let _write = context.prepare_block_use(self, stream, Access::Write)?;
        context.submit_to(stream, |raw| {
            // SAFETY: the ranges lie in different blocks, both borrowed; the uses order them, and the stream is live.
            unsafe { context.driver().copy_on_device(context.device(), raw, dst, from, bytes) }
        })
    }

    /// Copies all of `memory` to `offset` bytes after the start.
    pub fn copy_from_host_async<H: HostMemory>(
        &mut self,
        context: &Arc<DeviceContext>,
        offset: u64,
        memory: H,
        stream: Stream,
    ) -> Result<Transfer<H>> {
        let bytes = memory.host_len() as u64;
        let dst = range(self.block(), offset, bytes)?;
        let _use = context.prepare_block_use(self, stream, Access::Write)?;
        transfer(context, stream, memory, |raw, src| {
            // SAFETY: `dst` lies in a block that is borrowed, ordered by the use; `src` is kept by the transfer, which nobody
            // reads or writes until the copy has run. The stream is live.
            unsafe { context.driver().copy_to_device(context.device(), raw, dst, src, bytes) }
        })
    }

    /// Copies what is `offset` bytes after the start into all of `memory`. Into memory that is not pinned, the driver may
    /// wait for the copy before this returns.
    pub fn copy_to_host_async<H: HostMemory>(
        &self,
        context: &Arc<DeviceContext>,
        offset: u64,
        memory: H,
        stream: Stream,
    ) -> Result<Transfer<H>> {
        let bytes = memory.host_len() as u64;
        let src = range(self.block(), offset, bytes)?;
        let _use = context.prepare_block_use(self, stream, Access::Read)?;
        transfer(context, stream, memory, |raw, dst| {
            // SAFETY: `src` lies in a block that is borrowed, ordered by the use; `dst` is kept by the transfer, which nobody
            // reads or writes until the copy has run. The stream is live.
            unsafe { context.driver().copy_to_host(context.device(), raw, dst, src, bytes) }
        })
    }
}

/// Submits a copy of `memory`. If the driver answers with an error, the transfer is dropped, which waits for a copy that
/// may have been submitted all the same.
fn transfer<H: HostMemory>(
    context: &Arc<DeviceContext>,
    stream: Stream,
    memory: H,
    submit: impl FnOnce(RawStream, *mut u8) -> DriverResult<()>,
) -> Result<Transfer<H>> {
    let is_nothing = memory.host_len() == 0;
    let mut transfer = Transfer::of_nothing(context, stream, memory);
    if !is_nothing {
        let ptr = transfer.host_ptr();
        context.submit_to(stream, |raw| submit(raw, ptr))?;
    }
    Ok(transfer)
}

impl DeviceContext {
    fn submit_to(&self, stream: Stream, submit: impl FnOnce(RawStream) -> DriverResult<()>) -> Result<()> {
        let held = self.hold(stream)?;
        submit(held.raw()).map_err(|error| self.failed(error))
    }
}

/// The widest patterns that make up one unit, whose places are all multiples of the unit's width.
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
