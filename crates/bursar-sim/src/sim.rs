//! The simulator: its public interface, and the path that every driver call takes.

mod active_call;
mod allocate;
mod builder;
mod copies;
mod driver;
mod graphs;
mod launch;
mod pages;
mod pools;
mod report;
mod share;
mod shortcuts;
mod sleep;
mod streams;

pub use builder::SimBuilder;
pub use graphs::CaptureStatus;
pub use launch::Launch;
pub use pools::{SimPool, SimPoolUsage};
pub use report::{DriverLeak, DriverLeakReport, LeakKind, SimReport};

use crate::call_log::{CallArguments, LoggedResult};
use crate::machine::{Heap, MachineState};
use crate::operation::{CallInfo, CallResult};
use crate::{CallOutcome, CallRecord, Hazard, KernelPanic};
use active_call::{ActiveCall, is_in_host_function};
use bursar_core::{
    Access, Bytes, CallSite, DeviceFacts, DeviceId, DevicePtr, DriverError, DriverResult, Link, RawStream, Status,
};
use std::fmt;
use std::panic::Location;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A simulated driver with devices of its own.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::driver::{Driver, Pattern};
/// use bursar::sim::Sim;
///
/// let (sim, device) = (Sim::seeded(42), DeviceId(0));
/// let (stream, ptr) = (sim.stream_create(device, 0)?, sim.allocate(device, 1024)?);
/// // SAFETY: the stream is live, and the range is the allocation's.
/// unsafe { sim.fill(device, stream, ptr, Pattern::U8(7), 1024)? };
/// assert_ne!(sim.peek(ptr, 1), [7], "nothing runs before someone asks");
/// // SAFETY: the stream is live.
/// unsafe { sim.stream_synchronize(device, stream)? };
/// assert_eq!(sim.peek(ptr, 1), [7]);
/// sim.assert_clean();
/// # Ok::<(), bursar::driver::DriverError>(())
/// ```
pub struct Sim {
    pub(crate) seed: Option<u64>,
    pub(crate) facts: Vec<DeviceFacts>,
    pub(crate) links: Vec<Vec<Link>>,
    /// The memory of each device; beside the state, so that an immediate simulator need not lock all of it.
    pub(crate) heaps: Vec<Arc<Mutex<Heap>>>,
    /// The number of reasons why an immediate simulator must not take shortcuts.
    pub(crate) shortcut_blockers: Arc<AtomicUsize>,
    pub(crate) state: Mutex<MachineState>,
    /// Notified when a host function has returned or a device is lost.
    pub(crate) changed: Condvar,
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim").field("seed", &self.seed).field("devices", &self.facts.len()).finish_non_exhaustive()
    }
}

impl Sim {
    /// Creates two devices of 80 GiB whose streams advance only when the program queries, waits or steps, in an order that
    /// the seed chooses. Every hazard is reported.
    pub fn seeded(seed: u64) -> Arc<Self> {
        Self::builder().seed(seed).build()
    }

    /// Creates two devices of 80 GiB on which every operation completes at once, for benchmarks and demonstrations. Hazards
    /// are not searched for.
    pub fn immediate() -> Arc<Self> {
        Self::builder().immediate().build()
    }

    /// Returns a builder for devices of another number, size or kind.
    pub fn builder() -> SimBuilder {
        SimBuilder::default()
    }

    /// Returns the seed; an immediate simulator has none.
    pub fn seed(&self) -> Option<u64> {
        self.seed
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, MachineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one driver call: checks the device, logs the call, runs `body`. In an immediate simulator, streams that can
    /// advance do so first and afterwards.
    #[track_caller]
    pub(crate) fn call<T: LoggedResult>(
        &self,
        name: &'static str,
        device: DeviceId,
        arguments: CallArguments,
        body: impl FnOnce(&mut ActiveCall<'_>) -> CallResult<T>,
    ) -> DriverResult<T> {
        let mut state = self.lock();
        let is_seeded = self.seed.is_some();
        let (number, location) = if is_seeded {
            let executor = arguments.stream.map(|stream| state.executor_of(device, stream));
            let location = location_of(Location::caller());
            (state.log.begin(name, device, executor, arguments.from(location)), location)
        } else {
            (0, None)
        };
        let call = CallInfo { name, number, device: device.0 as usize, location };
        let mut active = ActiveCall::new(self, state, call);
        let result = self.admit(&mut active).and_then(|()| {
            let result = body(&mut active);
            if !is_seeded {
                active.settle();
            }
            result
        });
        if is_seeded {
            let outcome = result.as_ref().map_or_else(|status| CallOutcome::Failed(*status), T::outcome);
            active.log.end(number, outcome);
        }
        result.map_err(|status| DriverError::new(name, device, status))
    }

    fn admit(&self, active: &mut ActiveCall<'_>) -> CallResult<()> {
        let call = active.call;
        let device = active.devices.get(call.device).ok_or(Status::InvalidDevice)?;
        if device.is_lost {
            return Err(Status::DeviceLost);
        }
        if is_in_host_function() {
            active.report_call_from_host_function(call);
            return Err(NOT_PERMITTED);
        }
        if self.seed.is_none() {
            active.settle();
        }
        Ok(())
    }

    /// Runs one operation that can run, chosen by the seed. Returns false if none can.
    pub fn step(&self) -> bool {
        self.start().step()
    }

    /// Runs everything that can run. Work behind a closed gate stays queued.
    pub fn settle(&self) {
        self.start().settle();
    }

    fn start(&self) -> ActiveCall<'_> {
        let call = CallInfo { name: "step", number: 0, device: 0, location: None };
        ActiveCall::new(self, self.lock(), call)
    }

    /// Returns the hazards found so far.
    pub fn hazards(&self) -> Vec<Hazard> {
        self.lock().oracle.as_ref().map_or(Vec::new(), |oracle| oracle.hazards.clone())
    }

    /// Returns the hazards found since the last call, and forgets them.
    pub fn take_hazards(&self) -> Vec<Hazard> {
        let mut state = self.lock();
        state.oracle.as_mut().map_or(Vec::new(), |oracle| {
            oracle.omitted = 0;
            std::mem::take(&mut oracle.hazards)
        })
    }

    /// Returns the kernels that panicked, with their messages. Each is a hazard too.
    pub fn kernel_panics(&self) -> Vec<KernelPanic> {
        self.lock().kernel_panics.clone()
    }

    /// Checks that no hazard was found. Returns a report of all of them otherwise.
    pub fn check(&self) -> Result<(), Box<SimReport>> {
        let state = self.lock();
        let Some(oracle) = state.oracle.as_ref().filter(|oracle| !oracle.hazards.is_empty()) else {
            return Ok(());
        };
        Err(Box::new(SimReport {
            seed: self.seed,
            hazards: oracle.hazards.clone(),
            omitted: oracle.omitted,
            calls: state.log.records(),
        }))
    }

    /// Panics with the whole report if a hazard was found.
    #[track_caller]
    pub fn assert_clean(&self) {
        if let Err(report) = self.check() {
            panic!("{report}");
        }
    }

    /// Returns the last driver calls, and the moments at which their work ran. Only a seeded simulator keeps them.
    pub fn calls(&self) -> Vec<CallRecord> {
        self.lock().log.records()
    }

    /// Returns the number of driver calls of a seeded simulator. An immediate one does not count.
    pub fn call_count(&self) -> u64 {
        self.lock().log.count()
    }

    /// Returns the bytes at an address as they are now, whatever has not run yet, and zeros where there is no memory. This
    /// is not an access. At most 64 MiB are read at a time.
    pub fn peek(&self, ptr: DevicePtr, bytes: usize) -> Vec<u8> {
        let mut into = vec![0; bytes.min(64 << 20)];
        self.lock().read(ptr.0, &mut into);
        into
    }

    /// Writes bytes at an address at once. This is not an access.
    pub fn poke(&self, ptr: DevicePtr, bytes: &[u8]) {
        self.lock().write(ptr.0, bytes);
    }

    /// Returns the memory that each process holds of a device, by process id. Without a [name](SimBuilder::named), this
    /// process alone knows the device.
    ///
    /// ```
    /// use bursar::driver::Driver;
    /// use bursar::{Bytes, DeviceId};
    ///
    /// let sim = bursar::sim::Sim::immediate();
    /// sim.allocate(DeviceId(0), 1 << 20)?;
    /// assert_eq!(sim.holders(DeviceId(0))?, [(std::process::id(), Bytes::mib(1))]);
    /// # Ok::<(), bursar::driver::DriverError>(())
    /// ```
    pub fn holders(&self, device: DeviceId) -> DriverResult<Vec<(u32, Bytes)>> {
        let state = self.lock();
        let index = device.0 as usize;
        let held = if index < state.devices.len() { state.holders(index) } else { Err(Status::InvalidDevice) };
        let held = held.map_err(|status| DriverError::new("holders", device, status))?;
        Ok(held.into_iter().map(|(process, bytes)| (process, Bytes(bytes))).collect())
    }

    /// Gives back what this simulator holds of devices with a name, as the end of the process would, and leaves no file
    /// behind. For the exit of a process, after which nothing is called: it does not wait, and returns false where another
    /// thread is inside a call.
    ///
    /// ```
    /// use bursar::driver::Driver;
    /// use bursar::sim::Sim;
    /// use bursar::{Bytes, DeviceId};
    ///
    /// # let folder = std::env::temp_dir().join(format!("bursar-sim-leave-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// let builder = Sim::builder().device(Bytes::gib(1)).named("left");
    /// # let builder = builder.shared_in(&folder);
    /// let (here, there) = (builder.clone().build(), builder.build());
    /// here.allocate(DeviceId(0), 1 << 20)?;
    /// assert!(here.leave());
    /// assert_eq!(there.memory(DeviceId(0))?.free, Bytes::gib(1));
    /// # std::fs::remove_dir(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn leave(&self) -> bool {
        let left = self.state.try_lock().map(|mut state| state.share.take());
        left.is_ok()
    }

    /// Returns the host memory that the contents of a device take: what was touched, in chunks of 64 KiB.
    pub fn resident_bytes(&self, device: DeviceId) -> u64 {
        self.lock().resident(device.0 as usize)
    }

    /// Submits a simulated kernel to a stream.
    #[track_caller]
    pub fn launch(&self, device: DeviceId, stream: RawStream, launch: Launch) -> DriverResult<()> {
        self.call(launch.name, device, CallArguments::on(stream), |active| active.launch(stream, launch))
    }

    /// Declares that the host touches pinned memory now, so that this is checked against the copies in flight.
    #[track_caller]
    pub fn touch_host(&self, ptr: *const u8, bytes: usize, access: Access) {
        let at = ptr.addr() as u64;
        let arguments = CallArguments::default().of(bytes as u64);
        // Only an address that overflows is refused, and then there is nothing to check.
        let _ = self.call("touch_host", DeviceId(0), arguments, |active| active.touch_host(at, bytes as u64, access));
    }

    /// Creates a stream that synchronises with the legacy default stream, as other libraries' streams may.
    #[track_caller]
    pub fn create_blocking_stream(&self, device: DeviceId) -> DriverResult<RawStream> {
        self.call("create_blocking_stream", device, CallArguments::default(), |active| {
            let device = active.device();
            Ok(active.create_stream(device, true))
        })
    }

    /// Begins to capture a stream into a graph, as another library may: [`Driver::capture_begin`](bursar_core::Driver::capture_begin)
    /// for tests.
    #[track_caller]
    pub fn begin_capture(&self, device: DeviceId, stream: RawStream) -> DriverResult<()> {
        self.call("begin_capture", device, CallArguments::on(stream), |active| active.capture_begin(stream))
    }

    /// Ends the capture of a stream and forgets its graph. Fails if something was done meanwhile that no capture can have.
    #[track_caller]
    pub fn end_capture(&self, device: DeviceId, stream: RawStream) -> DriverResult<()> {
        self.call("end_capture", device, CallArguments::on(stream), |active| {
            let graph = active.capture_end(stream)?;
            active.graph_destroy(graph)
        })
    }

    /// Invalidates the capture that a stream is part of, as a call does that no capture can have. Returns whether there is one.
    pub fn invalidate_capture(&self, device: DeviceId, stream: RawStream) -> bool {
        let mut state = self.lock();
        let Ok(stream) = state.stream(device.0 as usize, stream) else { return false };
        state.spoil_capture(stream);
        state.is_capturing(stream)
    }

    /// Returns whether a stream is part of a capture, and whether that can still become a graph.
    pub fn capture_status(&self, device: DeviceId, stream: RawStream) -> DriverResult<CaptureStatus> {
        let mut state = self.lock();
        let found = state.stream(device.0 as usize, stream);
        let stream = found.map_err(|status| DriverError::new("capture_status", device, status))?;
        let number = state.streams[stream].capture.unwrap_or(0);
        Ok(match state.valid_capture(stream) {
            Ok(None) => CaptureStatus::None,
            Ok(Some(_)) => CaptureStatus::Active(number),
            Err(_) => CaptureStatus::Invalidated,
        })
    }

    /// Loses a device: its queued work never runs, and every call that needs the device fails from now on.
    pub fn lose_device(&self, device: DeviceId) {
        let mut state = self.lock();
        let index = device.0 as usize;
        if index >= state.devices.len() || state.devices[index].is_lost {
            return;
        }
        state.devices[index].is_lost = true;
        state.block_shortcuts();
        let dropped = state.take_queues(index);
        drop(state);
        self.changed.notify_all();
        drop(dropped);
    }
}

/// Returns the place in the program that made a call. It is known exactly where the caller has the simulator itself. Through
/// a `dyn Driver` the caller is the driver's own method, and the place that an entry point of a layer above gave is used.
fn location_of(call: &'static Location<'static>) -> Option<&'static Location<'static>> {
    if call.file() == driver::FILE { CallSite::current() } else { Some(call) }
}

/// The status that CUDA returns for a call from a host function.
const NOT_PERMITTED: Status = Status::Other { code: 800, name: "CUDA_ERROR_NOT_PERMITTED", sticky: false };
