//! Copies of two and three dimensions: row after row, between linear memory, arrays and the host.

use crate::arguments::{Host, HostSource, In};
use crate::calls::array::row;
use crate::calls::copy;
use crate::handle::of;
use crate::port::{self, StreamOn};
use crate::process::Process;
use crate::resolve::DefaultStream;
use crate::status::{CUresult, CallResult};
use crate::types::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUarray, CUdeviceptr, CUmemorytype, CUstream};

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// One side of a copy: where its first row begins, and how far rows and slices are apart.
#[derive(Clone, Copy, Debug)]
struct Side<H> {
    memory: Memory<H>,
    x: u64,
    y: u64,
    z: u64,
    pitch: u64,
    height: u64,
}

#[derive(Clone, Copy, Debug)]
enum Memory<H> {
    Host(H),
    Device(u64),
    Unified(u64),
}

impl<H> Side<H> {
    /// Returns the bytes from the start of the memory to a row of the copy.
    fn offset(&self, y: u64, z: u64) -> CallResult<u64> {
        let rows = (self.z + z).checked_mul(self.height).and_then(|rows| rows.checked_add(self.y + y));
        let bytes = rows.and_then(|rows| rows.checked_mul(self.pitch)).and_then(|bytes| bytes.checked_add(self.x));
        bytes.ok_or(INVALID)
    }
}

/// Returns the memory of one side, and how far apart its rows and slices are.
fn located<H>(
    process: &Process,
    kind: CUmemorytype,
    host: H,
    device: CUdeviceptr,
    array: CUarray,
    (pitch, height): (usize, usize),
) -> CallResult<(Memory<H>, u64, u64)> {
    let (pitch, height) = (pitch as u64, height as u64);
    match kind {
        CUmemorytype::CU_MEMORYTYPE_HOST => Ok((Memory::Host(host), pitch, height)),
        CUmemorytype::CU_MEMORYTYPE_DEVICE if !process.state().is_host_address(device) => {
            Ok((Memory::Device(device), pitch, height))
        }
        CUmemorytype::CU_MEMORYTYPE_DEVICE => Ok((Memory::Unified(device), pitch, height)),
        CUmemorytype::CU_MEMORYTYPE_UNIFIED => Ok((Memory::Unified(device), pitch, height)),
        CUmemorytype::CU_MEMORYTYPE_ARRAY => {
            let state = process.state();
            let array = state.arrays.get(&of(array)).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
            let (pitch, height) = (row(&array.descriptor)?, array.descriptor.Height.max(1) as u64);
            Ok((Memory::Device(array.at), pitch, height))
        }
        _ => Err(INVALID),
    }
}

/// Copies one row.
fn copy_row(
    process: &Process,
    on: StreamOn,
    to: (Memory<Host>, u64),
    from: (Memory<HostSource>, u64),
    bytes: u64,
) -> CallResult {
    let sim = process.sim();
    match (to, from) {
        ((Memory::Device(dst), x), (Memory::Device(src), y)) => port::copy_on_device(sim, on, dst + x, src + y, bytes),
        ((Memory::Device(dst), x), (Memory::Host(src), y)) => {
            port::copy_to_device(sim, on, dst + x, src.offset(y as usize), bytes)
        }
        ((Memory::Host(dst), x), (Memory::Device(src), y)) => {
            port::copy_to_host(sim, on, dst.offset(x as usize), src + y, bytes)
        }
        ((to, x), (from, y)) => {
            let dst = match to {
                Memory::Host(host) => host.address(),
                Memory::Device(at) | Memory::Unified(at) => at,
            };
            let src = match from {
                Memory::Host(host) => host.address(),
                Memory::Device(at) | Memory::Unified(at) => at,
            };
            copy::unified(process, on, dst + x, src + y, bytes).map(drop)
        }
    }
}

fn copy_all(process: &Process, on: StreamOn, copy: &CUDA_MEMCPY3D) -> CallResult {
    let (pitch, height) = (copy.srcPitch, copy.srcHeight);
    let (memory, pitch, height) =
        located(process, copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcArray, (pitch, height))?;
    let (x, y, z) = (copy.srcXInBytes as u64, copy.srcY as u64, copy.srcZ as u64);
    let from = Side { memory, x, y, z, pitch, height };
    let (pitch, height) = (copy.dstPitch, copy.dstHeight);
    let (memory, pitch, height) =
        located(process, copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstArray, (pitch, height))?;
    let (x, y, z) = (copy.dstXInBytes as u64, copy.dstY as u64, copy.dstZ as u64);
    let to = Side { memory, x, y, z, pitch, height };
    let (width, rows, slices) = (copy.WidthInBytes as u64, copy.Height as u64, copy.Depth as u64);
    let overlaps = |pitch: u64, height: u64| (rows > 1 && pitch < width) || (slices > 1 && height < rows);
    if copy.srcLOD != 0 || copy.dstLOD != 0 || overlaps(from.pitch, from.height) || overlaps(to.pitch, to.height) {
        return Err(INVALID);
    }
    for z in 0..slices {
        for y in 0..rows {
            copy_row(process, on, (to.memory, to.offset(y, z)?), (from.memory, from.offset(y, z)?), width)?;
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
