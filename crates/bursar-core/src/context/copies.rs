//! Copies and fills that have run when the call returns.
//!
//! A borrowed [`DeviceBlock`] proves that its range is live and, borrowed mutably, that nobody else touches it. Work is
//! submitted to the stream named, after whatever the block's own stream was given before, and waited for: so neither
//! host memory nor a block has to outlive the call, and nothing is in flight after it. After an error the contents of
//! the range are undefined, but no work touches it any more.
#![allow(unsafe_code)]

use super::DeviceContext;
use crate::block::{OUTSIDE, range};
use crate::{DeviceBlock, DevicePtr, DriverResult, Error, Pattern, RawStream, Result, Stream};
use bytemuck::Pod;

impl DeviceContext {
    /// Writes `src` into the block, `offset` bytes from its start.
    ///
    /// ```
    /// # use bursar::Result;
    /// # use bursar::prelude::*;
    /// # fn show(context: &DeviceContext, block: &mut DeviceBlock, stream: Stream) -> Result<()> {
    /// context.copy_from_host(block, 4, &[1, 2, 3], stream)?;
    /// let mut bytes = [0; 3];
    /// context.copy_to_host(block, 4, &mut bytes, stream)?;
    /// assert_eq!(bytes, [1, 2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn copy_from_host(
        &self,
        block: &mut DeviceBlock,
        offset: u64,
        src: &[u8],
        stream: impl Into<Stream>,
    ) -> Result<()> {
        let bytes = src.len() as u64;
        let dst = range(block, offset, bytes)?;
        let _using = self.use_awake([block.ptr()])?;
        self.run([block.stream()], bytes, stream.into(), |raw| {
            // SAFETY: `dst` lies in a block that is borrowed mutably until this has run, as `src` is borrowed; `run`
            // passes a live stream that is ordered after the block's own.
            unsafe { self.driver().copy_to_device(self.device(), raw, dst, src.as_ptr(), bytes) }
        })
    }

    /// Reads the bytes `offset` bytes from the start of the block into `dst`.
    pub fn copy_to_host(
        &self,
        block: &DeviceBlock,
        offset: u64,
        dst: &mut [u8],
        stream: impl Into<Stream>,
    ) -> Result<()> {
        let bytes = dst.len() as u64;
        let src = range(block, offset, bytes)?;
        let _using = self.use_awake([block.ptr()])?;
        self.run([block.stream()], bytes, stream.into(), |raw| {
            // SAFETY: `src` lies in a block that is borrowed until this has run, as `dst` is borrowed mutably; `run`
            // passes a live stream that is ordered after the block's own.
            unsafe { self.driver().copy_to_host(self.device(), raw, dst.as_mut_ptr(), src, bytes) }
        })
    }

    /// Reads `len` elements `offset` bytes from the start of the block. Where the stream cannot be waited for, their memory is
    /// leaked, since the copy may yet run: whoever frees the block comes after it.
    pub(crate) fn copy_to_vec<T: Pod>(
        &self,
        block: &DeviceBlock,
        offset: u64,
        len: usize,
        stream: Stream,
    ) -> Result<Vec<T>> {
        let mut values = vec![T::zeroed(); len];
        let dst: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        let (dst, bytes) = (dst.as_mut_ptr(), dst.len() as u64);
        let src = range(block, offset, bytes)?;
        let _using = self.use_awake([block.ptr()])?;
        let mut is_stuck = false;
        let copied = self.run_until(
            [block.stream()],
            bytes,
            stream,
            // SAFETY: `src` lies in a block that is borrowed until this has run, and whose free comes after it where it
            // cannot be waited for; `dst` is this call's own, and is leaked then. `run_until` passes a live stream that is
            // ordered after the block's own.
            |raw| unsafe { self.driver().copy_to_host(self.device(), raw, dst, src, bytes) },
            |raw| {
                let waited = self.wait_unless_stuck(raw);
                is_stuck = waited.is_err();
                waited.unwrap_or_else(Err)
            },
        );
        if is_stuck {
            std::mem::forget(std::mem::take(&mut values));
        }
        copied.map(|()| values)
    }

    /// Copies `bytes` from one block of this device to another.
    pub fn copy_blocks(
        &self,
        dst: &mut DeviceBlock,
        dst_offset: u64,
        src: &DeviceBlock,
        src_offset: u64,
        bytes: u64,
        stream: impl Into<Stream>,
    ) -> Result<()> {
        let (to, from) = (range(dst, dst_offset, bytes)?, range(src, src_offset, bytes)?);
        let _using = self.use_awake([dst.ptr(), src.ptr()])?;
        self.run([dst.stream(), src.stream()], bytes, stream.into(), |raw| {
            // SAFETY: the ranges lie in different blocks, which never overlap, borrowed until this has run; `run`
            // passes a live stream that is ordered after the blocks' own.
            unsafe { self.driver().copy_on_device(self.device(), raw, to, from, bytes) }
        })
    }

    /// Repeats `pattern` `count` times, from `offset` bytes after the start of the block on. The offset is a multiple
    /// of the pattern's width.
    pub fn fill(
        &self,
        block: &mut DeviceBlock,
        offset: u64,
        pattern: Pattern,
        count: u64,
        stream: impl Into<Stream>,
    ) -> Result<()> {
        let bytes = count.checked_mul(pattern.width()).ok_or(OUTSIDE)?;
        let dst = range(block, offset, bytes)?;
        if !dst.0.is_multiple_of(pattern.width()) {
            return Err(Error::InvalidValue { what: "a fill begins at a multiple of its pattern's width" });
        }
        let _using = self.use_awake([block.ptr()])?;
        self.run([block.stream()], bytes, stream.into(), |raw| {
            // SAFETY: `dst` is aligned to the pattern and lies in a block that is borrowed mutably until this has run;
            // `run` passes a live stream that is ordered after the block's own.
            unsafe { self.driver().fill(self.device(), raw, dst, pattern, count) }
        })
    }

    /// Repeats the bytes of `unit`, of any length, `count` times, from `offset` bytes after the start of the block on.
    /// The unit is written once and doubled on the device.
    pub fn fill_with(
        &self,
        block: &mut DeviceBlock,
        offset: u64,
        unit: &[u8],
        count: u64,
        stream: impl Into<Stream>,
    ) -> Result<()> {
        let width = unit.len() as u64;
        let bytes = count.checked_mul(width).ok_or(OUTSIDE)?;
        let dst = range(block, offset, bytes)?;
        let _using = self.use_awake([block.ptr()])?;
        self.run([block.stream()], bytes, stream.into(), |raw| {
            // SAFETY: `dst` lies in a block that is borrowed mutably until this has run, as `unit` is borrowed, and has
            // room for one unit because there are bytes to fill; `run` passes a live stream that is ordered after the
            // block's own.
            unsafe { self.driver().copy_to_device(self.device(), raw, dst, unit.as_ptr(), width) }?;
            // SAFETY: as above; what is filled are `bytes` of the block.
            unsafe { self.repeat_first(raw, dst, width, bytes) }
        })
    }

    /// Repeats the first `width` bytes at `dst` until there are `bytes`: each copy is as long as all before it.
    ///
    /// # Safety
    /// As for [`Driver::copy_on_device`](crate::Driver::copy_on_device), for copies within the `bytes` at `dst`.
    pub(crate) unsafe fn repeat_first(
        &self,
        raw: RawStream,
        dst: DevicePtr,
        width: u64,
        bytes: u64,
    ) -> DriverResult<()> {
        let mut filled = width;
        while filled < bytes {
            let more = filled.min(bytes - filled);
            // SAFETY: the caller's promise; what is copied ends where the copy begins.
            unsafe { self.driver().copy_on_device(self.device(), raw, dst.offset(filled), dst, more) }?;
            filled += more;
        }
        Ok(())
    }

    /// Submits work on blocks whose own streams are `homes` and waits for it.
    fn run<const N: usize>(
        &self,
        homes: [Stream; N],
        bytes: u64,
        stream: Stream,
        submit: impl FnOnce(RawStream) -> DriverResult<()>,
    ) -> Result<()> {
        self.run_until(homes, bytes, stream, submit, |raw| self.wait_for(raw))
    }

    /// Runs as [`run`](Self::run) does, waiting by `wait`.
    fn run_until<const N: usize>(
        &self,
        homes: [Stream; N],
        bytes: u64,
        stream: Stream,
        submit: impl FnOnce(RawStream) -> DriverResult<()>,
        wait: impl FnOnce(RawStream) -> DriverResult<()>,
    ) -> Result<()> {
        self.fault().check()?;
        let held = self.hold_for_question(stream)?;
        for home in homes.into_iter().filter(|home| *home != stream) {
            self.order_outside(home, stream)?;
        }
        if bytes == 0 {
            return Ok(());
        }
        let submitted = submit(held.raw());
        let view = self.clocks().look(stream);
        let waited = wait(held.raw()).inspect(|()| self.clocks().completed(stream, &view));
        submitted.and(waited).map_err(|error| self.failed(error))
    }
}
