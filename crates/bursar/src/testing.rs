//! Support for tests: a race detector for programs that use streams, and [`with_budget`](fn@with_budget), by which tests share a device.
//!
//! [`races`] runs a closure with many seeds of the [simulated driver](bursar_sim); no GPU is needed. If memory is used
//! without the order that it needs, the result is the shortest schedule found that shows it: both operations with their
//! streams, bytes, tags and places in the source, the order that was missing, and the seed.
//!
//! ```
//! use bursar::prelude::*;
//! use bursar::testing::races;
//!
//! /// Production code: it names no simulator, and launches device code where there is hardware.
//! fn hand_over(gpu: &Gpu) -> bursar::Result<Vec<f32>> {
//!     let (producer, consumer) = (gpu.streams().lease()?, gpu.streams().lease()?);
//!     let mut batch = gpu.buffer::<f32>(1024, &producer, tag!("batch"))?;
//!     producer.submit(|work| {
//!         work.kernel("produce")
//!             .writes(&mut batch)
//!             .simulated(|memory, [batch]| memory.write(batch, &[1.0f32; 1024]))
//!             .launch(|stream, [batch]| device_code::produce(stream, batch))
//!     })?;
//!     Ok(consumer.submit(|work| work.read_back(&batch))?.wait()?)
//! }
//! # mod device_code { pub fn produce(_: bursar::driver::RawStream, _: bursar::memory::DevicePtr) -> bursar::Result<()> { Ok(()) } }
//!
//! // Every schedule is clean, whichever driver call fails.
//! races(|rig| Ok(hand_over(rig.gpu()).map(drop)?)).seeds(5).failing_each_call().expect_clean();
//! ```
//!
//! Where work is launched by hand and ordered by hand, an order that is missing is found:
//!
//! ```
//! use bursar::prelude::*;
//! use bursar::sim::Launch;
//! use bursar::testing::{Rig, races};
//!
//! /// A kernel on one stream writes what a kernel on another reads.
//! fn hand_over(rig: &Rig, ordered: bool) -> bursar::testing::Outcome {
//!     let (producer, consumer) = (rig.stream()?, rig.stream()?);
//!     let batch = rig.allocate(4096, producer, tag!("batch"))?;
//!     rig.launch(producer, Launch::new("produce").writes(batch.ptr(), 4096))?;
//!     if ordered {
//!         rig.context().order(producer, consumer)?;
//!     }
//!     rig.launch(consumer, Launch::new("consume").reads(batch.ptr(), 4096))?;
//!     rig.context().order(consumer, producer)?;
//!     rig.deallocate(batch, producer)?;
//!     Ok(())
//! }
//!
//! races(|rig| hand_over(rig, true)).seeds(50).expect_clean();
//!
//! let race = races(|rig| hand_over(rig, false)).seeds(50).check().unwrap_err();
//! let text = race.to_string();
//! assert!(text.contains("nothing orders stream 2's read after stream 1's write"), "{text}");
//! assert!(text.contains("BURSAR_SEED=0"), "{text}");
//! let found = race.hazard().expect("a hazard");
//! assert_eq!(found.hazard.tag, tag!("batch"));
//! assert!(found.hazard.second.location.is_some());
//! ```
//!
//! # What a run finds
//! - Every [hazard](bursar_sim::HazardKind) that the simulator knows. It derives them from the order of the calls, so most
//!   show with every seed; what depends on how far streams happen to have come shows with some.
//! - Memory that is still held once the closure has returned and its rig is gone, unless
//!   [`allow_leaks`](Races::allow_leaks) says that this is meant. The process's own workers for pinned memory are waited for
//!   until they have released what was given up; whoever makes others [flushes](crate::host::NumaWorkerPool::flush) them.
//! - An error or a panic of the closure. A hazard of the same run is reported instead, since it is likely the cause. So is
//!   one instead of a panic in a kernel, whose message is reported with it.
//! - With [`failing_each_call`](Races::failing_each_call), all of that where a driver call fails.
//!
//! The closure is called once a seed, each time with a [`Rig`] of its own; nothing is kept between runs, and a closure that
//! does the same each time and uses one thread does exactly the same again with the same seed.
//! `BURSAR_SEED=7` in the environment makes every [`check`](Races::check) run that seed alone.
//!
//! # Which places are known
//! Rust passes the place of a call along where the function is named, not through a `dyn` seam. So calls of
//! [`Gpu::buffer`](crate::Gpu::buffer), of [`DeviceBuffer`](crate::DeviceBuffer) and its slices, of
//! [`Work`](crate::Work), of the rig and of the rig's [driver](Rig::driver) have one. Calls of a
//! [`DeviceMemoryResource`](crate::memory::DeviceMemoryResource) or a [`DeviceContext`](crate::device::DeviceContext) have
//! none by themselves, nor has the end of a buffer that goes out of scope; [`Rig::here`] gives them one. A place that is not known
//! is reported as "an unknown place", with the place where the memory was allocated. A program over CUDA pays for this with
//! one branch on whether its driver listens, and nothing is recorded.

mod hazard_explanation;
mod injected_fault;
mod race;
mod rig;
mod search;
mod with_budget;

pub use hazard_explanation::HazardExplanation;
pub use injected_fault::InjectedFault;
pub use race::{Finding, Race};
pub use rig::{Outcome, Rig};
pub use search::{Races, SEED_VARIABLE, Verdict, races};
pub use with_budget::{with_budget, with_budget_within};
