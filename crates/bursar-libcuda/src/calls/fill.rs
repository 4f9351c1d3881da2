//! Fills of linear memory.

use crate::port;
use crate::process::Process;
use crate::resolve::DefaultStream;
use crate::status::CallResult;
use crate::types::{CUdeviceptr, CUstream};
use bursar_core::Pattern;
use std::ffi::{c_uchar, c_uint, c_ushort};

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
            port::fill(process.sim(), on, dst, $pattern(value), count as u64)
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
            port::fill(process.sim(), on, dst, $pattern(value), count as u64)
        }
    )* };
}

fills! {
    d8, d8_async: c_uchar = Pattern::U8;
    d16, d16_async: c_ushort = Pattern::U16;
    d32, d32_async: c_uint = Pattern::U32;
}
