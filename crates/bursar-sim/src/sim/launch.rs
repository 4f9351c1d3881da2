//! Simulated kernels, which declare the bytes that they touch.

use super::active_call::ActiveCall;
use crate::machine::{KernelBody, KernelMemory, Work};
use crate::operation::CallResult;
use crate::oracle::RangeAccess;
use bursar_core::{Access, DevicePtr, RawStream, SimulatedKernel, Status};
use std::fmt;
use std::sync::{Arc, Mutex};

/// A simulated kernel: its name, the ranges it touches, and optionally code that runs on them.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::driver::Driver;
/// use bursar::sim::{Launch, Sim};
///
/// let (sim, device) = (Sim::seeded(1), DeviceId(0));
/// let (stream, ptr) = (sim.stream_create(device, 0)?, sim.allocate(device, 256)?);
/// let double = Launch::new("double")
///     .writes(ptr, 1)
///     .body(move |memory| {
///         let byte = memory.read(ptr, 1)[0];
///         memory.write(ptr, &[byte * 2]);
///     });
/// sim.poke(ptr, &[21]);
/// sim.launch(device, stream, double)?;
/// sim.settle();
/// assert_eq!(sim.peek(ptr, 1), [42]);
/// # Ok::<(), bursar::driver::DriverError>(())
/// ```
pub struct Launch {
    pub(crate) name: &'static str,
    touches: Vec<(DevicePtr, u64, Access)>,
    host: Vec<(u64, u64, Access)>,
    body: Option<KernelBody>,
}

impl Launch {
    /// Creates a kernel that touches nothing.
    pub fn new(name: &'static str) -> Self {
        Self { name, touches: Vec::new(), host: Vec::new(), body: None }
    }

    /// Returns the kernel that a program declared for whichever driver it runs on.
    pub(crate) fn declared(mut kernel: SimulatedKernel) -> Self {
        let touches = kernel.accesses().iter().map(|(range, access)| (range.ptr, range.bytes, *access)).collect();
        let launch = Self { touches, ..Self::new(kernel.name()) };
        if kernel.has_body() { launch.body(move |memory| kernel.run(memory)) } else { launch }
    }

    /// Declares that the kernel reads this range.
    #[must_use]
    pub fn reads(mut self, ptr: DevicePtr, bytes: u64) -> Self {
        self.touches.push((ptr, bytes, Access::Read));
        self
    }

    /// Declares that the kernel writes this range, and may read it.
    #[must_use]
    pub fn writes(mut self, ptr: DevicePtr, bytes: u64) -> Self {
        self.touches.push((ptr, bytes, Access::Write));
        self
    }

    /// Declares that the kernel reads this pinned host memory. It is checked against [declared](crate::Sim::touch_host)
    /// accesses only, not against undeclared writes, which are found for copies.
    #[must_use]
    pub fn reads_host(mut self, ptr: *const u8, bytes: u64) -> Self {
        self.host.push((ptr.addr() as u64, bytes, Access::Read));
        self
    }

    /// Declares that the kernel writes this pinned host memory, which is checked as for [`reads_host`](Self::reads_host).
    #[must_use]
    pub fn writes_host(mut self, ptr: *const u8, bytes: u64) -> Self {
        self.host.push((ptr.addr() as u64, bytes, Access::Write));
        self
    }

    /// Sets the code of the kernel. It must not call the driver, and touches only the declared ranges. A panic is reported
    /// as a hazard and has no other effect; an immediate simulator drops it. In a graph it runs once for each launch.
    #[must_use]
    pub fn body(mut self, body: impl FnMut(&mut KernelMemory<'_>) + Send + 'static) -> Self {
        self.body = Some(Arc::new(Mutex::new(body)));
        self
    }
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch").field("name", &self.name).field("touches", &self.touches).finish_non_exhaustive()
    }
}

impl ActiveCall<'_> {
    pub(crate) fn launch(&mut self, stream: RawStream, launch: Launch) -> CallResult<()> {
        let call = self.call;
        let stream = self.work_stream(call.device, stream)?;
        let mut touches = Vec::new();
        for (ptr, bytes, access) in launch.touches {
            let end = ptr.0.checked_add(bytes).ok_or(Status::InvalidValue)?;
            let range = ptr.0..end;
            touches.push(RangeAccess { range, access });
        }
        let mut host = Vec::new();
        for (at, bytes, access) in launch.host {
            let end = at.checked_add(bytes).ok_or(Status::InvalidValue)?;
            self.pinned.around(at, bytes).ok_or(Status::InvalidValue)?;
            host.push(RangeAccess { range: at..end, access });
        }
        let work = launch.body.map_or(Work::Nothing, Work::Kernel);
        let Some(work) = self.capture_work(call, stream, &touches, &host, work)? else { return Ok(()) };
        let epoch = self.submit(call, stream, &[], &touches, work);
        let op = call.operation(self.streams[stream].executor);
        if let Some(oracle) = &mut self.oracle {
            host.iter().for_each(|touch| oracle.check_host_access(touch, touch.by(op), epoch));
        }
        Ok(())
    }
}
