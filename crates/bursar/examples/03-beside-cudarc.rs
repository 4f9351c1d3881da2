//! Beside cudarc: a program that has a `CudaContext`, a `CudaStream` and kernels of its own takes its memory from Bursar.
//!
//! Requires: CUDA
#![allow(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what happens")]

use bursar::cuda::Cuda;
use bursar::driver::RawStream;
use bursar::prelude::*;
use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use std::mem::ManuallyDrop;
use std::process::ExitCode;
use std::sync::Arc;

/// `saxpy(f32 a, const f32 *x, f32 *y, u32 n)`: `y[i] = a × x[i] + y[i]`.
const SAXPY: &str = include_str!("03-beside-cudarc.ptx");
const LEN: usize = 100_000;
const A: f32 = 2.0;

fn main() -> ExitCode {
    // cudarc panics where there is no driver to load, so Bursar is asked first.
    match Cuda::load().map_err(Into::into).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cuda: Arc<Cuda>) -> Result<(), Box<dyn std::error::Error>> {
    // What the program has already.
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let saxpy = context.load_module(Ptx::from_src(SAXPY))?.load_function("saxpy")?;

    // Both use the device's primary context, so that streams and addresses mean the same to either.
    let stack = Stack::new().layer(GlobalDeviceBudget::of(Bytes::mib(64))).over(leaf::Async);
    let gpu = Gpu::open(cuda, DeviceId(0), &stack)?;
    assert_eq!(gpu.raw_context().0, context.cu_ctx() as u64);

    // SAFETY: the stream was declared first, so it is destroyed after the adoption and all that is freed on it are gone.
    let adopted = unsafe { gpu.context().adopt_stream(RawStream(stream.cu_stream() as u64)) }?;

    let values: Vec<f32> = (0..LEN).map(|i| i as f32).collect();
    let x = gpu.buffer_from(&values, adopted.stream(), tag!("x"))?;
    let mut y = gpu.buffer::<f32>(LEN, adopted.stream(), tag!("y"))?;
    y.fill(1.0)?;

    // To a kernel, a buffer is its address, which borrows the buffer until the launch.
    let n = LEN as u32;
    let mut launch = stream.launch_builder(&saxpy);
    launch.arg(&A).arg(x.as_arg()).arg(y.as_arg_mut()).arg(&n);
    // SAFETY: these are the kernel's arguments. Both buffers have `n` values, and are allocated and freed in the order of
    // the stream that it runs on.
    unsafe { launch.launch(LaunchConfig::for_num_elems(n)) }?;

    let expected: Vec<f32> = values.iter().map(|x| A * x + 1.0).collect();
    assert_eq!(y.to_vec()?, expected, "as Bursar reads it");

    // cudarc's functions take a slice of its own. This one borrows the buffer, so it must never be dropped: that would
    // free what is not cudarc's. `leak` ends it and frees nothing.
    // SAFETY: `y` holds so many values, and outlives the slice.
    let slice = unsafe { stream.upgrade_device_ptr::<f32>(y.ptr().0, y.len()) };
    let slice = ManuallyDrop::new(slice);
    let seen = stream.clone_dtoh(&*slice)?;
    ManuallyDrop::into_inner(slice).leak();
    assert_eq!(seen, expected, "as cudarc reads it");

    let held = gpu.memory().bytes_outstanding();
    println!("{LEN} values through cudarc's kernel, in {held} of Bursar's memory");
    Ok(())
}
