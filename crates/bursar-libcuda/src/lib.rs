//! The simulated driver of Bursar behind CUDA's own C interface: a `libcuda.so.1` for machines without a GPU.
//!
//! Programs that talk to the driver, in whatever language, run on simulated devices: memory of every kind, streams, events,
//! copies and host functions behave as on hardware, status for status, and bytes are real. The same shared object has the
//! calls of NVML that report memory. Kernels do not run.
//!
//! # Using it
//! `cargo build --release -p bursar-libcuda` makes `target/release/libbursar_libcuda.so`. A program finds it under the names
//! of the driver and of NVML, as one library:
//!
//! ```text
//! mkdir -p libcuda
//! for name in libcuda.so.1 libcuda.so libnvidia-ml.so.1 libnvidia-ml.so; do
//!     ln -sf "$PWD/target/release/libbursar_libcuda.so" libcuda/$name
//! done
//! BURSAR_SIM_DEVICES=2x80GiB LD_LIBRARY_PATH=$PWD/libcuda ./program
//! ```
//!
//! | variable | meaning |
//! | --- | --- |
//! | `BURSAR_SIM_DEVICES` | the devices: `2x80GiB`, which is the default, or `2x80GiB@name` for devices that are the same in every process of this user |
//! | `BURSAR_SEED` | a number by which streams advance, in an order that CUDA allows; without it every operation completes at once |
//! | `BURSAR_HAZARDS` | a file to which hazards are appended, one line each; streams then advance by seed 0 unless another is set |
//! | `BURSAR_SIM_CONTEXT` | the memory that a context takes of its device, such as `500MiB`; none if it is not set |
//! | `CUDA_VISIBLE_DEVICES` | as the driver reads it; NVML knows all devices |
//!
//! # Memory
//! `cuMemGetInfo` and NVML go down by exactly what was taken, and at once:
//!
//! - Linear, pitched and managed memory, arrays and mipmaps are counted in multiples of 256 bytes, one by one. The driver
//!   carves small allocations out of pages of 2 MiB, whose count depends on what was allocated before; here each is exact,
//!   so that a limit can be tried at the byte, and an access beyond an allocation is found. Rows of pitched memory begin at
//!   multiples of 512 bytes. Managed memory counts at once, where hardware counts the pages that the device has touched.
//! - Physical memory is counted in pages of 2 MiB, until it is released as often as it was created and retained, and is mapped
//!   nowhere.
//! - Stream-ordered memory is counted by what its pool reserves: multiples of 32 MiB, or of 2 MiB where no more is left. A pool
//!   gives back what is above its release threshold when somebody waits for a stream or an event, and when it is trimmed.
//! - Graphs have no memory.
//!
//! A context takes streams, events, allocations and arrays with it when it ends. A process that dies gives back what it held,
//! however it dies. After a fork, the child has no driver: every call returns `CUDA_ERROR_NOT_INITIALIZED`, and NVML
//! is `NVML_ERROR_UNINITIALIZED` and cannot be initialised.
//! Calls from destructors and from functions that run at exit succeed, until those that were registered before `cuInit`: they
//! get `CUDA_ERROR_DEINITIALIZED`.
//!
//! # Between processes
//! Devices with a name are one device in every process. Physical memory is exported and imported by POSIX file descriptors,
//! and linear memory is opened by handles (`cuIpcGetMemHandle`) while its owner lives; the bytes are shared, and the memory
//! counts for its owner alone, for as long as the owner holds it, imported by itself or not. Other kinds of shareable handles, shared pools and events
//! between processes are `CUDA_ERROR_NOT_SUPPORTED` or absent.
//!
//! # Limits
//! - Device code is neither loaded nor launched: `CUDA_ERROR_NOT_SUPPORTED`, and one sentence on standard error.
//! - Graphs are captured, instantiated and launched; they are not built or looked into by hand, nor updated, and allocations
//!   in the order of a captured stream (`cuMemAllocAsync`) are refused. Calls that a capture forbids are refused as the driver
//!   refuses them, and spoil it.
//! - The CUDA runtime (`libcudart`) asks the driver for tables without documentation, which are not here: this is for
//!   programs of the driver's interface.
//! - Addresses belong to the device that was current when they were reserved; memory of another is not mapped there.
//!   Devices reach each other always.
//! - The contexts of a device have one legacy default stream in common, which is ordered with the blocking streams of all of
//!   them. Whoever waits for it waits for the work that was submitted to it, and for what that work waits for.
//! - A copy or a fill of rows that is refused for one of them has done those before it.
//! - Hazards are found by address: physical memory that is mapped twice is two pieces of memory. Fills of managed and pinned
//!   memory, and copies between two pieces of them, are done and not judged.
//! - Linear memory that another process opened by its handle is there in whole pages of 2 MiB: an access beyond the allocation
//!   is found by its owner alone.
//! - NVML without `cuInit` is not told about a fork: a child whose parent was in a call of NVML may wait for ever.
//! - `cuEventElapsedTime` measures from submission to submission.
//! - With a seed, an access to memory that was freed is accepted and reported as a hazard, because whether the free comes
//!   first is a question of order. Every stream that was ever created makes each call a little slower.
//!
//! # Structure
//! Each module uses only those above it:
//!
//! - `types` and `status` are the header; `arguments` are the pointers that programs pass, and `handle` the numbers that they
//!   get.
//! - `machine` is the simulator with its settings, `port` its calls, `hazards` the file, `memory_file` shared bytes.
//! - `state` knows whose everything is; `process` has it, `thread` is what a thread has of its own, `resolve` finds streams,
//!   `host_functions` runs code of programs, and `captures` forbids.
//! - `calls` are the calls, one file for each chapter of CUDA's manual; `nvml` are those of NVML.
//! - `enter` is the way into a call, `lookup` finds calls by name and version, and `table` has a line for every entry point,
//!   of which `define` makes the symbol and the rest.
//!
//! No lock is held while a call waits. Nothing unwinds out of a call: a panic is `CUDA_ERROR_UNKNOWN`.

mod arguments;
mod calls;
mod captures;
mod define;
mod enter;
mod handle;
mod hazards;
mod host_functions;
mod lookup;
mod machine;
mod memory_file;
mod message;
mod nvml;
mod port;
mod process;
mod progress;
mod resolve;
mod state;
mod status;
mod table;
mod thread;
mod types;
mod visible;

pub use lookup::EntryPoint;
pub use nvml::NvmlReturn;
pub use status::CUresult;
pub use table::entry_points;
