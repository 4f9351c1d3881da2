//! The driver in this process: whether it is initialised, the devices it has, and its state.
#![allow(unsafe_code)]

use crate::handle::{Handle, Kind, handle};
use crate::machine::{Machine, machine};
use crate::port::StreamOn;
use crate::progress;
use crate::state::{Context, State};
use crate::status::{CUresult, CallResult};
use crate::thread;
use crate::types::{CUcontext, CUdevice};
use crate::visible::visible;
use bursar_core::{DeviceFacts, DeviceId, Driver, RawStream};
use bursar_sim::Sim;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};

/// A device that is visible.
#[derive(Debug)]
pub(crate) struct VisibleDevice {
    pub(crate) id: DeviceId,
    pub(crate) facts: DeviceFacts,
    /// The handle of its primary context, whether or not it is active.
    pub(crate) primary: Handle,
    /// Locked while the primary context is retained, released or reset.
    changing_primary: Mutex<()>,
}

impl VisibleDevice {
    /// Locks the primary context against others who retain or release it: one that ends has ended before it is made again. Calls of the
    /// simulator that wait may be made meanwhile.
    pub(crate) fn changes_primary(&self) -> MutexGuard<'_, ()> {
        self.changing_primary.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) machine: &'static Machine,
    pub(crate) devices: Vec<VisibleDevice>,
    state: Mutex<State>,
}

/// The context that a call works in, and its device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Current {
    pub(crate) context: Handle,
    pub(crate) ordinal: usize,
    pub(crate) device: DeviceId,
}

static PROCESS: OnceLock<Process> = OnceLock::new();
/// Set in a process that was forked off one in which the driver was initialised: its devices are the parent's.
static IS_FORKED: AtomicBool = AtomicBool::new(false);
/// Set when the process exits.
static IS_SHUT_DOWN: AtomicBool = AtomicBool::new(false);

extern "C" fn forked() {
    IS_FORKED.store(true, Ordering::Relaxed);
}

extern "C" fn exiting() {
    if !IS_SHUT_DOWN.swap(true, Ordering::Relaxed)
        && !is_forked()
        && let Some(process) = PROCESS.get()
        && process.sim().leave()
        && let Some(hazards) = &process.machine.hazards
    {
        hazards.collect(process.sim());
    }
}

/// Initialises the driver. A second time changes nothing.
pub(crate) fn initialise() -> CallResult {
    check_usable()?;
    if PROCESS.get().is_some() {
        return Ok(());
    }
    let machine = machine()?;
    let facts: Vec<DeviceFacts> = (0..machine.sim.device_count())
        .map(|ordinal| machine.sim.facts(DeviceId(ordinal)))
        .collect::<Result<_, _>>()?;
    let value = std::env::var_os("CUDA_VISIBLE_DEVICES").map(|value| value.to_string_lossy().into_owned());
    let uuids: Vec<_> = facts.iter().map(|facts| facts.uuid).collect();
    let visible = visible(value.as_deref(), &uuids);
    if visible.is_empty() {
        return Err(CUresult::CUDA_ERROR_NO_DEVICE);
    }
    let device = |id: DeviceId| {
        let primary = handle(Kind::Context, u64::from(id.0));
        VisibleDevice { id, facts: facts[id.0 as usize].clone(), primary, changing_primary: Mutex::default() }
    };
    let devices: Vec<VisibleDevice> = visible.into_iter().map(device).collect();
    let mut state = State::starting_at(u64::from(machine.sim.device_count()));
    for (ordinal, device) in devices.iter().enumerate() {
        state.contexts.insert(device.primary, Context::primary(ordinal));
    }
    PROCESS.get_or_init(|| Process { machine, devices, state: Mutex::new(state) });
    start();
    Ok(())
}

/// Lets streams advance, and has this process told when it is forked and when it exits.
fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        if let Some(process) = PROCESS.get().filter(|process| process.sim().seed().is_some()) {
            progress::start(&process.machine.sim);
        }
        // SAFETY: the function only stores a flag, which may be done in a forked process.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        // SAFETY: the function may be called at exit, and when the library is unloaded, which comes to the same.
        unsafe { libc::atexit(exiting) };
    });
}

/// Returns whether this process was forked off one in which the driver was initialised. Other threads of that one may have
/// held locks, which nobody gives back here.
pub(crate) fn is_forked() -> bool {
    IS_FORKED.load(Ordering::Relaxed)
}

fn check_usable() -> CallResult {
    if is_forked() {
        return Err(CUresult::CUDA_ERROR_NOT_INITIALIZED);
    }
    if IS_SHUT_DOWN.load(Ordering::Relaxed) {
        return Err(CUresult::CUDA_ERROR_DEINITIALIZED);
    }
    Ok(())
}

/// Returns the driver in this process, once it is initialised.
pub(crate) fn initialised() -> CallResult<&'static Process> {
    check_usable()?;
    PROCESS.get().ok_or(CUresult::CUDA_ERROR_NOT_INITIALIZED)
}

impl Process {
    pub(crate) fn sim(&self) -> &Sim {
        &self.machine.sim
    }

    /// Locks the state. No call of the simulator that may wait is made meanwhile.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a device by its handle, which is its ordinal.
    pub(crate) fn device(&self, device: CUdevice) -> CallResult<&VisibleDevice> {
        let device = usize::try_from(device).ok().and_then(|ordinal| self.devices.get(ordinal));
        device.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// Returns the context that is current on this thread.
    pub(crate) fn current(&self) -> CallResult<Current> {
        let context = thread::current().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        let ordinal = self.state().context(context)?.ordinal;
        Ok(Current { context, ordinal, device: self.devices[ordinal].id })
    }

    /// Returns a context that a program names; null is the current one.
    pub(crate) fn context_or_current(&self, context: CUcontext) -> CallResult<Current> {
        if context.is_null() {
            return self.current();
        }
        let context = crate::handle::of(context);
        let ordinal = self.state().context(context)?.ordinal;
        Ok(Current { context, ordinal, device: self.devices[ordinal].id })
    }
}

impl Current {
    /// Returns the legacy default stream of the context.
    pub(crate) fn legacy(self) -> StreamOn {
        StreamOn { device: self.device, raw: RawStream::LEGACY }
    }
}
