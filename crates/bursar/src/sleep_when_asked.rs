//! Devices whose memory other processes may put to sleep.

use crate::Ledgers;
use bursar_core::{Error, ExternalError, HostStore, Result, SleepState};
use bursar_device::{Gpu, SleepOptions, WakeOptions};
use bursar_ledger::{Ledger, RemoteListener, RemoteReport, RemoteRequest};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The interval at which whoever waits to be awake looks whether the program itself woke the memory.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The readiness of a device's memory to be put to sleep by other processes: by `bursar sleep PID`, and by `bursar run` when it
/// is stopped. Dropping it ends that; what sleeps then is woken by the program alone.
///
/// Work belongs between [`awake`](Self::awake) and the end of what it returns: memory does not fall asleep meanwhile, and while it
/// sleeps, whoever wants to be awake waits. Work outside of it is refused with [`Error::Asleep`] while memory sleeps, and faults
/// if it was not declared.
///
/// ```
/// use bursar::device::SleepOptions;
/// use bursar::ledger::{Ledger, RemoteRequest};
/// use bursar::prelude::*;
/// use std::time::Duration;
///
/// let ledgers = Ledgers::default();
/// let stack = Stack::new().layer(PagePool::default()).layer(ledgers.budget()).over(leaf::Frames);
/// let gpu = Gpu::open(bursar::sim::Sim::immediate(), DeviceId(0), &stack)?;
/// let sleeper = ledgers.sleep_when_asked(&gpu, PinnedPool::near(&gpu)?, SleepOptions::new())?;
///
/// let stream = gpu.streams().lease()?;
/// let weights = gpu.buffer_from(&[7u32; 1000], &stream, tag!("weights"))?;
/// {
///     let _awake = sleeper.awake(); // waits while the memory sleeps
///     assert_eq!(weights.to_vec()?[0], 7);
/// }
///
/// // Another process asks through its own handle of the ledger: here it is `bursar sleep PID`.
/// let patience = Duration::from_secs(10);
/// let call = ledgers.of(gpu.context())?.ask(std::process::id(), RemoteRequest::Sleep { keep_place: false, patience })?;
/// assert!(call.wait(patience).unwrap()?.moved > Bytes::ZERO);
/// assert!(sleeper.is_asleep() && sleeper.try_awake().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "memory is put to sleep by others only while this is kept"]
pub struct SleepWhenAsked {
    asked: Arc<AskedMemory>,
    _listener: RemoteListener,
    /// Keeps the ledger open.
    _ledger: Ledger,
}

/// A stretch of work during which memory does not fall asleep. It ends when this is dropped.
///
/// ```
/// use bursar::device::{AwakeGuard, SleepWhenAsked};
///
/// fn step(sleeper: &SleepWhenAsked) {
///     let _awake: AwakeGuard<'_> = sleeper.awake();
///     // Launch, and wait for what was launched without being declared.
/// }
/// ```
#[must_use = "memory may fall asleep once this is dropped"]
#[derive(Debug)]
pub struct AwakeGuard<'a> {
    asked: &'a AskedMemory,
}

/// Memory that is asked to sleep and to wake.
struct AskedMemory {
    gpu: Gpu,
    store: Box<dyn HostStore>,
    options: SleepOptions,
    state: Mutex<AwakeState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct AwakeState {
    /// The stretches of work under way.
    working: usize,
    /// Set from the moment that a request to sleep is met until the memory is awake again.
    is_closed: bool,
    /// Set while a request is being met.
    is_moving: bool,
}

/// Work that went on for longer than a request to sleep could wait.
#[derive(Debug, thiserror::Error)]
#[error("{working} stretches of work stay awake after {} ms", waited.as_millis())]
struct StillWorking {
    working: usize,
    waited: Duration,
}

impl AskedMemory {
    fn state(&self) -> MutexGuard<'_, AwakeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_awake(&self) -> bool {
        matches!(self.gpu.sleep_reading().state, SleepState::Awake | SleepState::Partly)
    }

    fn open(&self) {
        self.state().is_closed = false;
        self.changed.notify_all();
    }

    /// Lets no more work begin, and waits for what is under way.
    fn close(&self, patience: Duration) -> Result<()> {
        let began = Instant::now();
        let mut state = self.state();
        state.is_closed = true;
        while state.working > 0 {
            let waited = began.elapsed();
            if waited >= patience {
                let working = state.working;
                drop(state);
                self.open();
                return Err(Error::External(ExternalError::new(StillWorking { working, waited }, false)));
            }
            let (again, _) =
                self.changed.wait_timeout(state, patience - waited).unwrap_or_else(PoisonError::into_inner);
            state = again;
        }
        Ok(())
    }

    fn meet(&self, request: RemoteRequest) -> Result<RemoteReport> {
        self.state().is_moving = true;
        let met = match request {
            RemoteRequest::Sleep { keep_place, patience } => self.sleep(keep_place, patience),
            RemoteRequest::Wake { patience } => self.wake(patience),
        };
        self.state().is_moving = false;
        met
    }

    /// Lets work begin again if the program itself woke the memory.
    fn open_if_woken(&self) {
        let is_awake = self.gpu.sleep_reading().state == SleepState::Awake;
        let mut state = self.state();
        if is_awake && !state.is_moving {
            state.is_closed = false;
            drop(state);
            self.changed.notify_all();
        }
    }

    fn sleep(&self, keep_place: bool, patience: Duration) -> Result<RemoteReport> {
        let began = Instant::now();
        if self.gpu.sleep_reading().state == SleepState::Asleep {
            return Ok(RemoteReport { was_so: true, ..RemoteReport::default() });
        }
        self.close(patience)?;
        let options = self.options.clone().patience(patience.saturating_sub(began.elapsed()));
        let options = if keep_place { options.keep_place() } else { options };
        match self.gpu.sleep(&*self.store, &options) {
            Ok(slept) => Ok(slept.into()),
            Err(error) => {
                if self.is_awake() {
                    self.open();
                }
                Err(error)
            }
        }
    }

    fn wake(&self, patience: Duration) -> Result<RemoteReport> {
        let was_so = self.gpu.sleep_reading().state == SleepState::Awake;
        let woken = self.gpu.wake(&WakeOptions::new().patience(patience))?;
        self.open();
        Ok(RemoteReport { was_so, ..woken.into() })
    }
}

impl SleepWhenAsked {
    /// Waits until the memory is awake, and keeps it awake until the result is dropped.
    pub fn awake(&self) -> AwakeGuard<'_> {
        let asked = &*self.asked;
        loop {
            if let Some(awake) = self.try_awake() {
                return awake;
            }
            let state = asked.state();
            if state.is_closed {
                // Looks once in a while, since the program may have woken the memory by itself.
                drop(asked.changed.wait_timeout(state, LOOK_EVERY));
                asked.open_if_woken();
            }
        }
    }

    /// Keeps the memory awake until the result is dropped; `None` where it sleeps, or is about to.
    pub fn try_awake(&self) -> Option<AwakeGuard<'_>> {
        let mut state = self.asked.state();
        if state.is_closed {
            return None;
        }
        state.working += 1;
        Some(AwakeGuard { asked: &self.asked })
    }

    /// Returns whether the memory sleeps, or is about to.
    pub fn is_asleep(&self) -> bool {
        self.asked.state().is_closed
    }
}

impl Drop for AwakeGuard<'_> {
    fn drop(&mut self) {
        self.asked.state().working -= 1;
        self.asked.changed.notify_all();
    }
}

impl fmt::Debug for AskedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AskedMemory").field("gpu", &self.gpu).field("state", &*self.state()).finish_non_exhaustive()
    }
}

impl fmt::Debug for SleepWhenAsked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SleepWhenAsked").field("asked", &self.asked).finish_non_exhaustive()
    }
}

impl Ledgers {
    /// Has the memory of a device's pools sleep and wake when another process asks for it through the ledger: with `options`,
    /// and contents in memory that `store` lends. The device stays open until the result is dropped.
    ///
    /// `bursar sleep PID` and `bursar wake PID` ask so, and `bursar run --sleep-when-stopped`.
    pub fn sleep_when_asked(
        &self,
        gpu: &Gpu,
        store: impl HostStore + 'static,
        options: SleepOptions,
    ) -> Result<SleepWhenAsked> {
        // Opened beside the budget's, which may be that of a share: what the device uses is published there.
        let ledger = Ledger::for_device(gpu.context())?;
        let (gpu, store) = (gpu.clone(), Box::new(store));
        let asked = Arc::new(AskedMemory { gpu, store, options, state: Mutex::default(), changed: Condvar::new() });
        let meets = asked.clone();
        let listener = ledger.on_request(move |request| meets.meet(request));
        Ok(SleepWhenAsked { asked, _listener: listener, _ledger: ledger })
    }
}
