//! Arrays and mipmapped arrays. Their memory lies row after row.

use crate::arguments::{In, Out};
use crate::handle::{Handle, Kind, of, pointer};
use crate::port;
use crate::process::Process;
use crate::state::{Array, MipmappedArray};
use crate::status::{CUresult, CallResult};
use crate::types::{CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUarray_format, CUmipmappedArray};
use bursar_core::Driver;
use std::ffi::c_uint;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Returns the bytes of one element of an array.
fn element(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> CallResult<u64> {
    let channel = match descriptor.Format {
        CUarray_format::CU_AD_FORMAT_UNSIGNED_INT8 | CUarray_format::CU_AD_FORMAT_SIGNED_INT8 => 1,
        CUarray_format::CU_AD_FORMAT_UNSIGNED_INT16
        | CUarray_format::CU_AD_FORMAT_SIGNED_INT16
        | CUarray_format::CU_AD_FORMAT_HALF => 2,
        CUarray_format::CU_AD_FORMAT_UNSIGNED_INT32
        | CUarray_format::CU_AD_FORMAT_SIGNED_INT32
        | CUarray_format::CU_AD_FORMAT_FLOAT => 4,
        _ => return Err(INVALID),
    };
    match descriptor.NumChannels {
        channels @ (1 | 2 | 4) => Ok(channel * u64::from(channels)),
        _ => Err(INVALID),
    }
}

/// Returns the bytes of one row of an array.
pub(crate) fn row(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> CallResult<u64> {
    let width = (descriptor.Width as u64).checked_mul(element(descriptor)?);
    width.filter(|bytes| *bytes > 0).ok_or(INVALID)
}

/// Returns the bytes of an array.
fn size(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> CallResult<u64> {
    let rows = (descriptor.Height.max(1) as u64).checked_mul(descriptor.Depth.max(1) as u64);
    let bytes = rows.and_then(|rows| row(descriptor).map(|row| row.checked_mul(rows)).transpose());
    bytes.unwrap_or(Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY))
}

/// Returns one level of a mipmapped array: each is half as wide, high and deep as the one before.
fn level(descriptor: &CUDA_ARRAY3D_DESCRIPTOR, level: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    let halved = |length: usize| if length == 0 { 0 } else { (length >> level).max(1) };
    let (width, height, depth) = (descriptor.Width, descriptor.Height, descriptor.Depth);
    CUDA_ARRAY3D_DESCRIPTOR { Width: halved(width), Height: halved(height), Depth: halved(depth), ..*descriptor }
}

/// Makes an array in the current context.
fn make(process: &Process, descriptor: CUDA_ARRAY3D_DESCRIPTOR) -> CallResult<Handle> {
    let current = process.current()?;
    let at = process.sim().allocate(current.device, size(&descriptor)?)?.0;
    let mut state = process.state();
    let handle = state.new_handle(Kind::Array);
    let (device, context) = (current.device, current.context);
    state.arrays.insert(handle, Array { descriptor, device, context, at, level_of: None });
    Ok(handle)
}

pub(crate) fn create_3d(process: &Process, array: Out<CUarray>, descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>) -> CallResult {
    process.current()?;
    process.check_captures()?;
    array.required()?;
    array.set(pointer(make(process, descriptor.get()?)?))
}

pub(crate) fn create(process: &Process, array: Out<CUarray>, descriptor: In<CUDA_ARRAY_DESCRIPTOR>) -> CallResult {
    process.current()?;
    process.check_captures()?;
    array.required()?;
    let flat = descriptor.get()?;
    let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
        Width: flat.Width,
        Height: flat.Height,
        Depth: 0,
        Format: flat.Format,
        NumChannels: flat.NumChannels,
        Flags: 0,
    };
    array.set(pointer(make(process, descriptor)?))
}

pub(crate) fn destroy(process: &Process, array: CUarray) -> CallResult {
    let mut state = process.state();
    let found = state.arrays.get(&of(array)).copied().ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    if found.level_of.is_some() {
        // A level ends with the mipmapped array that it is part of.
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    state.arrays.remove(&of(array));
    drop(state);
    port::free(process.sim(), found.device, found.at)
}

fn described(process: &Process, array: CUarray) -> CallResult<CUDA_ARRAY3D_DESCRIPTOR> {
    let state = process.state();
    state.arrays.get(&of(array)).map(|array| array.descriptor).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

pub(crate) fn get_descriptor(process: &Process, descriptor: Out<CUDA_ARRAY_DESCRIPTOR>, array: CUarray) -> CallResult {
    descriptor.required()?;
    let found = described(process, array)?;
    descriptor.set(CUDA_ARRAY_DESCRIPTOR {
        Width: found.Width,
        Height: found.Height,
        Format: found.Format,
        NumChannels: found.NumChannels,
    })
}

pub(crate) fn get_descriptor_3d(
    process: &Process,
    descriptor: Out<CUDA_ARRAY3D_DESCRIPTOR>,
    array: CUarray,
) -> CallResult {
    descriptor.required()?;
    descriptor.set(described(process, array)?)
}

pub(crate) fn create_mipmapped(
    process: &Process,
    array: Out<CUmipmappedArray>,
    descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>,
    levels: c_uint,
) -> CallResult {
    let current = process.current()?;
    process.check_captures()?;
    array.required()?;
    let descriptor = descriptor.get()?;
    row(&descriptor)?;
    let longest = descriptor.Width.max(descriptor.Height).max(descriptor.Depth);
    let levels = levels.min(longest.ilog2() + 1);
    if levels == 0 {
        return Err(INVALID);
    }
    let sizes: Vec<u64> = (0..levels).map(|number| size(&level(&descriptor, number))).collect::<CallResult<_>>()?;
    let bytes = sizes.iter().try_fold(0u64, |sum, bytes| sum.checked_add(*bytes));
    let bytes = bytes.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let at = process.sim().allocate(current.device, bytes)?.0;
    let mut state = process.state();
    let handle = state.new_handle(Kind::MipmappedArray);
    let (device, context) = (current.device, current.context);
    state.mipmapped_arrays.insert(handle, MipmappedArray { descriptor, levels, device, context, at });
    drop(state);
    array.set(pointer(handle))
}

/// Returns a level of a mipmapped array: the same array every time.
pub(crate) fn get_level(
    process: &Process,
    array: Out<CUarray>,
    mipmapped: CUmipmappedArray,
    number: c_uint,
) -> CallResult {
    array.required()?;
    let mut state = process.state();
    let whole = state.mipmapped_arrays.get(&of(mipmapped)).copied().ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    if number >= whole.levels {
        return Err(INVALID);
    }
    let level_of = Some((of(mipmapped), number));
    if let Some((handle, _)) = state.arrays.iter().find(|(_, array)| array.level_of == level_of) {
        return array.set(pointer(*handle));
    }
    let before = (0..number).map(|number| size(&level(&whole.descriptor, number))).sum::<CallResult<u64>>()?;
    let (descriptor, at) = (level(&whole.descriptor, number), whole.at + before);
    let handle = state.new_handle(Kind::Array);
    let (device, context) = (whole.device, whole.context);
    state.arrays.insert(handle, Array { descriptor, device, context, at, level_of });
    array.set(pointer(handle))
}

pub(crate) fn destroy_mipmapped(process: &Process, mipmapped: CUmipmappedArray) -> CallResult {
    let mut state = process.state();
    let found = state.mipmapped_arrays.remove(&of(mipmapped)).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    state.arrays.retain(|_, array| array.level_of.is_none_or(|(whole, _)| whole != of(mipmapped)));
    drop(state);
    port::free(process.sim(), found.device, found.at)
}
