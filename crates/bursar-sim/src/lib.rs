//! The simulated device driver of Bursar: an oracle, not a mock.
//!
//! A [`Sim`] implements every call of [`Driver`](bursar_core::Driver). Addresses are numbers; bytes are real, and only those
//! that are touched take memory. There are two kinds:
//!
//! - [`Sim::seeded`]: streams advance only when the program queries, waits or steps, in an order that stream semantics allow
//!   and the seed chooses. With one thread, a seed replays exactly.
//! - [`Sim::immediate`]: every operation completes at once, for benchmarks and demonstrations; hazards are not searched for.
//!   Work behind a gate runs with the first call after the gate has opened.
//!
//! [`Faults`] wraps either, or any other driver, and makes calls fail.
//!
//! Devices with a [name](SimBuilder::named) are the same devices in every process of this user that uses the name: memory
//! that one process holds is not free to the others until it is freed or the process ends, in whatever way.
//!
//! # Order
//! Work on one stream runs in order. An event orders everything submitted before it was recorded before everything after a
//! wait for it. The legacy default stream of a device waits for all blocking streams of that device, and they wait for it;
//! streams from `stream_create` are not blocking. Everything that the host learns to be complete (by synchronising, by a
//! query, by a host function that has begun) is ordered before everything submitted later. Driver calls of different threads
//! count as ordered by their arrival: a race between threads that only their timing decides is not reported.
//!
//! # Hazards
//! A hazard is derived from these rules when a call is made, not when its work happens to run; so a missing wait is found
//! with every seed, with one exception. How far streams have advanced at a query is the choice of the seed, and a query that
//! reports completion tells the host so: what follows is ordered after it, and a wait that is missing there is not found
//! with that seed. [`HazardKind`] lists the kinds. Memory is identified by its address: one physical handle mapped at two
//! addresses counts as two pieces of memory, though it holds the same bytes.
//!
//! # Device behaviour
//! - Fresh memory reads as a byte that the seed chooses; the contents of an allocation end with its free.
//! - Addresses are reused as early as stream order allows, because early reuse reveals mistakes.
//! - A [pool](SimPool) holds memory of its device in pieces of 32 MiB and keeps what is freed, until somebody waits for a
//!   stream or an event: then it gives back what is above its threshold.
//! - Memory freed in stream order is held until the free has run. When an allocation does not fit but would after the
//!   pending frees, streams advance as far as they can by themselves; only then is it refused.
//! - Fills and copies that reach beyond an allocation, or beyond pages that are mapped and accessible, are refused as CUDA
//!   refuses them, and reported. An allocation extends to the next multiple of 256 bytes. Kernels that reach missing memory,
//!   and uses of memory after its free, are reported and do nothing; the device is not lost. Where hazards are not searched
//!   for, a fill or copy of freed memory is refused as well.
//! - `free` and `host_unregister` wait for the whole device; unmapping, releasing and `host_free` do not wait.
//! - Copies from and to pinned memory access it when they run. Copies from pageable memory read it when they are submitted;
//!   copies to pageable memory return when they have run.
//! - Host functions and kernels run on whichever thread makes a call that lets streams advance, inside that call. So a
//!   thread deadlocks if it holds a lock that its own host function needs, where on hardware it would not. A kernel that
//!   panics is a hazard; the panic of a host function is dropped.
//! - A device lost by [`Sim::lose_device`] runs nothing more, and every call that needs it fails. Its facts and links are
//!   still known.
//! - Handles, pointers and sizes that make no sense are refused with CUDA's status for them. An immediate simulator trusts
//!   the handles of streams and events while nothing is queued, which is what makes it fast.
//!
//! # Structure
//! Each module uses only those above it:
//!
//! - `operation` and `hazard` are the values that are reported, `call_log` the log of driver calls, `random` the generator.
//! - `oracle` knows the order of everything submitted and finds hazards. It needs no memory and no schedule.
//! - `machine` is the state of the devices: their memory, the streams and their queues, and what other processes hold.
//! - `sim` is the driver over them: [`Sim`], its builder, and one file for each group of calls. `devices` parses what people
//!   write to describe the devices of one.
//! - `faults` wraps any driver and uses none of the rest.
//!
//! # Places in the program
//! `#[track_caller]` does not pass through a `dyn` call. So entry points that programs call directly begin with
//! [`DeviceContext::enter_call_site`](bursar_core::DeviceContext::enter_call_site), which does nothing unless the driver listens, and the
//! simulator uses that place where its own caller is unknown. The outermost place counts, because it is the program's. A
//! place that nobody gave is unknown, never a guess.
//!
//! ```
//! use bursar::DeviceId;
//! use bursar::driver::{Driver, Pattern};
//! use bursar::sim::{HazardKind, Sim};
//!
//! let (sim, device) = (Sim::seeded(7), DeviceId(0));
//! let (a, b) = (sim.stream_create(device, 0)?, sim.stream_create(device, 0)?);
//! let ptr = sim.allocate(device, 4096)?;
//! // SAFETY: breaking the driver's contract is what the simulator is for.
//! unsafe { sim.fill(device, a, ptr, Pattern::U8(1), 4096)? };
//! // SAFETY: as above: nothing orders this fill after the other.
//! unsafe { sim.fill(device, b, ptr, Pattern::U8(2), 4096)? };
//!
//! let hazards = sim.take_hazards();
//! assert_eq!(hazards[0].kind, HazardKind::Conflict);
//! println!("{}", hazards[0]);
//! # Ok::<(), bursar::driver::DriverError>(())
//! ```

mod call_log;
mod devices;
mod faults;
mod hazard;
mod host_memory;
mod machine;
mod operation;
mod oracle;
mod random;
mod sim;

pub use call_log::{CallOutcome, CallRecord};
pub use devices::{SIM_DEVICES_VARIABLE, SimDevices, SimDevicesError};
pub use faults::{Call, Faults, Stall};
pub use hazard::{Hazard, HazardKind};
pub use machine::KernelMemory;
pub use operation::{ByteRange, Executor, KernelPanic, Operation};
pub use random::Random;
pub use sim::{
    CaptureStatus, DriverLeak, DriverLeakReport, Launch, LeakKind, Sim, SimBuilder, SimPool, SimPoolUsage, SimReport,
};
