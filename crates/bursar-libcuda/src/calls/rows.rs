//! Copies of two and three dimensions: row after row, between linear memory, arrays and the host.

use crate::arguments::In;
use crate::calls::array::row;
use crate::calls::copy::{Side, between};
use crate::handle::of;
use crate::port::StreamOn;
use crate::process::Process;
use crate::resolve::DefaultStream;
use crate::status::{CUresult, CallResult};
use crate::types::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUarray, CUdeviceptr, CUmemorytype, CUstream};

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// The rows of one side of a copy: the memory they are in, where the first begins, and how far they are apart.
#[derive(Clone, Copy, Debug)]
struct Rows {
    memory: Side,
    x: u64,
    y: u64,
    z: u64,
    pitch: u64,
    height: u64,
}

impl Rows {
    /// Returns where a row of the copy begins.
    fn row(&self, y: u64, z: u64) -> CallResult<Side> {
        let before = self.z.checked_add(z).and_then(|slices| slices.checked_mul(self.height));
        let rows = before.and_then(|rows| rows.checked_add(self.y)?.checked_add(y));
        let bytes = rows.and_then(|rows| rows.checked_mul(self.pitch)).and_then(|bytes| bytes.checked_add(self.x));
        self.memory.offset(bytes.ok_or(INVALID)?)
    }
}

/// Returns the memory of one side, and how far apart its rows and slices are.
fn located(
    process: &Process,
    kind: CUmemorytype,
    host: u64,
    device: CUdeviceptr,
    array: CUarray,
    (pitch, height): (usize, usize),
) -> CallResult<(Side, u64, u64)> {
    let (pitch, height) = (pitch as u64, height as u64);
    match kind {
        CUmemorytype::CU_MEMORYTYPE_HOST if host == 0 => Err(INVALID),
        CUmemorytype::CU_MEMORYTYPE_HOST => Ok((Side::Host(host), pitch, height)),
        CUmemorytype::CU_MEMORYTYPE_DEVICE => Ok((Side::Device(device), pitch, height)),
        CUmemorytype::CU_MEMORYTYPE_UNIFIED if device == 0 => Err(INVALID),
        CUmemorytype::CU_MEMORYTYPE_UNIFIED => Ok((Side::Unified(device), pitch, height)),
        CUmemorytype::CU_MEMORYTYPE_ARRAY => {
            let state = process.state();
            let array = state.arrays.get(&of(array)).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
            let (pitch, height) = (row(&array.descriptor)?, array.descriptor.Height.max(1) as u64);
            Ok((Side::Device(array.at), pitch, height))
        }
        _ => Err(INVALID),
    }
}

fn copy_all(process: &Process, on: StreamOn, copy: &CUDA_MEMCPY3D) -> CallResult {
    let (pitch, height) = (copy.srcPitch, copy.srcHeight);
    let (memory, pitch, height) =
        located(process, copy.srcMemoryType, copy.srcHost.address(), copy.srcDevice, copy.srcArray, (pitch, height))?;
    let (x, y, z) = (copy.srcXInBytes as u64, copy.srcY as u64, copy.srcZ as u64);
    let from = Rows { memory, x, y, z, pitch, height };
    let (pitch, height) = (copy.dstPitch, copy.dstHeight);
    let (memory, pitch, height) =
        located(process, copy.dstMemoryType, copy.dstHost.address(), copy.dstDevice, copy.dstArray, (pitch, height))?;
    let (x, y, z) = (copy.dstXInBytes as u64, copy.dstY as u64, copy.dstZ as u64);
    let to = Rows { memory, x, y, z, pitch, height };
    let (width, rows, slices) = (copy.WidthInBytes as u64, copy.Height as u64, copy.Depth as u64);
    let overlaps =
        |pitch: u64, height: u64| ((rows > 1 || slices > 1) && pitch < width) || (slices > 1 && height < rows);
    if copy.srcLOD != 0 || copy.dstLOD != 0 || overlaps(from.pitch, from.height) || overlaps(to.pitch, to.height) {
        return Err(INVALID);
    }
    if width == 0 || rows == 0 {
        return Ok(());
    }
    for z in 0..slices {
        for y in 0..rows {
            between(process, on, to.row(y, z)?, from.row(y, z)?, width)?;
        }
    }
    Ok(())
}

/// Returns a copy of two dimensions as one of three.
fn deepened(flat: &CUDA_MEMCPY2D) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcXInBytes: flat.srcXInBytes,
        srcY: flat.srcY,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: flat.srcMemoryType,
        srcHost: flat.srcHost,
        srcDevice: flat.srcDevice,
        srcArray: flat.srcArray,
        reserved0: std::ptr::null_mut(),
        srcPitch: flat.srcPitch,
        srcHeight: 0,
        dstXInBytes: flat.dstXInBytes,
        dstY: flat.dstY,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: flat.dstMemoryType,
        dstHost: flat.dstHost,
        dstDevice: flat.dstDevice,
        dstArray: flat.dstArray,
        reserved1: std::ptr::null_mut(),
        dstPitch: flat.dstPitch,
        dstHeight: 0,
        WidthInBytes: flat.WidthInBytes,
        Height: flat.Height,
        Depth: 1,
    }
}

fn wait_for(process: &Process, default: DefaultStream, copy: &CUDA_MEMCPY3D) -> CallResult {
    let on = process.default_stream(default)?.on;
    copy_all(process, on, copy)?;
    process.wait(on)
}

pub(crate) fn copy_2d(process: &Process, default: DefaultStream, copy: In<CUDA_MEMCPY2D>) -> CallResult {
    process.current()?;
    wait_for(process, default, &deepened(&copy.get()?))
}

pub(crate) fn copy_2d_async(
    process: &Process,
    default: DefaultStream,
    copy: In<CUDA_MEMCPY2D>,
    stream: CUstream,
) -> CallResult {
    let on = process.stream(default, stream)?.on;
    copy_all(process, on, &deepened(&copy.get()?))
}

pub(crate) fn copy_3d(process: &Process, default: DefaultStream, copy: In<CUDA_MEMCPY3D>) -> CallResult {
    process.current()?;
    wait_for(process, default, &copy.get()?)
}

pub(crate) fn copy_3d_async(
    process: &Process,
    default: DefaultStream,
    copy: In<CUDA_MEMCPY3D>,
    stream: CUstream,
) -> CallResult {
    let on = process.stream(default, stream)?.on;
    copy_all(process, on, &copy.get()?)
}
