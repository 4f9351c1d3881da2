//! Fills of linear memory.

use crate::arguments::Host;
use crate::host_functions;
use crate::port::{self, StreamOn};
use crate::process::Process;
use crate::resolve::DefaultStream;
use crate::status::{CUresult, CallResult};
use crate::types::{CUdeviceptr, CUstream};
use bursar_core::Pattern;
use std::ffi::{c_uchar, c_uint, c_ushort};

/// Fills memory that devices reach: their own, and host memory that is pinned or managed.
fn fill(process: &Process, on: StreamOn, dst: CUdeviceptr, pattern: Pattern, count: u64) -> CallResult {
    let host = process.state().reached_at(dst);
    let Some((start, bytes)) = host else {
        return port::fill(process.sim(), on, dst, pattern, count);
    };
    let end = count.checked_mul(pattern.width()).and_then(|bytes| dst.checked_add(bytes));
    if end.is_none_or(|end| end > start + bytes) || !dst.is_multiple_of(pattern.width()) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    host_functions::fill_on_host(process, on, Host::unified(dst), pattern, count)
}

/// Declares the fills with values of one width, on a default stream and on one that is named.
macro_rules! fills {
    ($($fill:ident, $fill_async:ident: $type:ty = $pattern:path;)*) => { $(
        pub(crate) fn $fill(
            process: &Process,
            default: DefaultStream,
            dst: CUdeviceptr,
            value: $type,
            count: usize,
        ) -> CallResult {
            let on = process.default_stream(default)?.on;
            fill(process, on, dst, $pattern(value), count as u64)
        }

        pub(crate) fn $fill_async(
            process: &Process,
            default: DefaultStream,
            dst: CUdeviceptr,
            value: $type,
            count: usize,
            stream: CUstream,
        ) -> CallResult {
            let on = process.stream(default, stream)?.on;
            fill(process, on, dst, $pattern(value), count as u64)
        }
    )* };
}

/// Declares the fills of rows with values of one width.
macro_rules! row_fills {
    ($($fill:ident, $fill_async:ident: $type:ty = $pattern:path;)*) => { $(
        pub(crate) fn $fill(
            process: &Process,
            default: DefaultStream,
            dst: CUdeviceptr,
            pitch: usize,
            value: $type,
            width: usize,
            height: usize,
        ) -> CallResult {
            let on = process.default_stream(default)?.on;
            fill_rows(process, on, (dst, pitch as u64), $pattern(value), width as u64, height as u64)
        }

        #[allow(clippy::too_many_arguments, reason = "the parameters of CUDA's manual")]
        pub(crate) fn $fill_async(
            process: &Process,
            default: DefaultStream,
            dst: CUdeviceptr,
            pitch: usize,
            value: $type,
            width: usize,
            height: usize,
            stream: CUstream,
        ) -> CallResult {
            let on = process.stream(default, stream)?.on;
            fill_rows(process, on, (dst, pitch as u64), $pattern(value), width as u64, height as u64)
        }
    )* };
}

/// Fills the rows of pitched memory.
fn fill_rows(
    process: &Process,
    on: StreamOn,
    (dst, pitch): (CUdeviceptr, u64),
    pattern: Pattern,
    width: u64,
    height: u64,
) -> CallResult {
    let row = width.checked_mul(pattern.width());
    if height > 1 && row.is_none_or(|row| pitch < row) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if width == 0 {
        return Ok(());
    }
    for number in 0..height {
        let start = number.checked_mul(pitch).and_then(|offset| dst.checked_add(offset));
        fill(process, on, start.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?, pattern, width)?;
    }
    Ok(())
}

row_fills! {
    rows_d8, rows_d8_async: c_uchar = Pattern::U8;
    rows_d16, rows_d16_async: c_ushort = Pattern::U16;
    rows_d32, rows_d32_async: c_uint = Pattern::U32;
}

fills! {
    d8, d8_async: c_uchar = Pattern::U8;
    d16, d16_async: c_ushort = Pattern::U16;
    d32, d32_async: c_uint = Pattern::U32;
}
