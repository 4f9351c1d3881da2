//! The simulated device driver of Bursar: an oracle, not a mock.
//!
//! A [`Sim`] implements every call of [`Driver`](bursar_core::Driver). Addresses are numbers, bytes are real, and cost
//! only what is touched. There are two kinds:
//!
//! - [`Sim::seeded`]: streams advance only when someone queries, waits or steps, in an order that stream semantics allow
//!   and the seed chooses. Driven by one thread, a seed replays exactly.
//! - [`Sim::immediate`]: every operation completes at once, for benchmarks and demonstrations; no hazard is looked for.
//!   What waits behind a gate goes on with the first call after the gate has opened.
//!
//! [`Faults`] wraps either, or any other driver, and makes calls fail.
//!
//! Devices with a [name](SimBuilder::named) are the same in every process of this user that uses the name: what one process
//! holds of them is not free to the others, until it is freed or the process ends, however it ends.
//!
//! # What orders what
//! Work on one stream is in order. An event orders what was submitted before its record before what follows a wait for
//! it. The legacy default stream of a device waits for all blocking streams of that device and they for it; streams from
//! `stream_create` are not blocking. What the host learns to be complete (by synchronising, by a query that says so, by a
//! host function that has begun) is ordered before everything submitted later. Driver calls of different threads are
//! taken as ordered by their arrival: a race between threads that only their timing decides is not reported as such.
//!
//! # What is reported
//! A hazard is derived from these rules when the call is made, not from when the schedule happened to run it; so a
//! missing wait is found with every seed, with one exception. How far streams have come when someone queries is the
//! seed's choice, and a query that happens to say that something is complete teaches the host so: what follows is ordered
//! after it, and a wait that is missing there is missed with that seed. See [`HazardKind`] for the list. Memory is judged
//! by its address: one physical handle mapped at two addresses is two pieces of memory to the oracle, though it holds the
//! same bytes.
//!
//! # What the device does
//! - Fresh memory reads as a byte that the seed chooses; an allocation's contents end with its free.
//! - Addresses are given out again as early as stream order allows, because that is when mistakes show.
//! - Memory that was freed in stream order is held until the free has run. When an allocation does not fit but would
//!   after the frees that are pending, streams go on as far as they can by themselves, and then it is refused.
//! - Fills and copies that reach beyond an allocation, or beyond pages that are mapped and allowed, are refused as CUDA
//!   refuses them, and reported. An allocation reaches to the next multiple of 256 bytes. Kernels that reach memory which is
//!   not there, and uses of memory after its free, are reported and do nothing; the device is not lost by them. Where no
//!   hazard is looked for, a fill or copy of freed memory is refused as well.
//! - `free` and `host_unregister` wait for the whole device; unmapping, releasing and `host_free` do not wait.
//! - Copies from and to pinned memory touch it when they run. Copies from pageable memory read it when they are
//!   submitted; copies to pageable memory return when they have run.
//! - Host functions and kernels run on whichever thread makes a call that lets streams go on, in the midst of that call.
//!   A thread that holds a lock which its own host function wants therefore deadlocks, where on hardware it would not. A
//!   kernel that panics is a hazard; the panic of a host function is dropped.
//! - A device lost by [`Sim::lose_device`] runs nothing more and fails every call that asks something of it. What is
//!   known without asking, its facts and links, is still answered.
//! - Handles, pointers and sizes that make no sense are refused with the status CUDA has for it. An immediate simulator
//!   trusts the handles of streams and events while nothing is queued: that is what makes it fast.
//!
//! ```
//! use bursar_core::{DeviceId, Driver, Pattern};
//! use bursar_sim::{HazardKind, Sim};
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
//! # Ok::<(), bursar_core::DriverError>(())
//! ```

mod call_log;
mod faults;
mod hazard;
mod host_memory;
mod machine;
mod operation;
mod oracle;
mod random;
mod sim;

pub use call_log::{CallOutcome, CallRecord};
pub use faults::{Call, Faults, Stall};
pub use hazard::{Hazard, HazardKind};
pub use machine::KernelMemory;
pub use operation::{ByteRange, Executor, Operation};
pub use random::Random;
pub use sim::{DriverLeak, DriverLeakReport, HazardReport, Launch, LeakKind, Sim, SimBuilder};
