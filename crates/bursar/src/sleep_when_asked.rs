//! Devices whose memory other processes may put to sleep.

use crate::Ledgers;
use bursar_core::{DeviceContext, Error, ExternalError, HostStore, Result, SleepRequestId, SleepState};
use bursar_device::{Gpu, SleepOptions};
use bursar_ledger::{Ledger, RemoteListener, RemoteReport, RemoteRequest};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The interval at which whoever waits to be awake looks whether the program itself woke the memory.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The readiness of a device's memory to be put to sleep by other processes: by `bursar sleep PID`, and by `bursar run` when it
/// is stopped. Dropping it ends that; what sleeps then is woken by the program alone.
///
/// Work belongs between [`awake`](Self::awake) and the end of what it returns: memory does not fall asleep meanwhile, and while it
/// sleeps, by whomever, whoever wants to be awake waits. Work outside of it is refused with [`Error::Asleep`] while memory sleeps,
/// and faults if it was not declared. The program's own [`Gpu::sleep`] does not wait for such work, since it may be a part of it.
///
/// A request to wake ends what requests to sleep began: tags that the program itself had put to sleep before sleep on. Where
/// nothing sleeps by request, everything wakes.
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
    _only: OnlyOne,
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

/// The devices whose memory is asked.
static ASKED: Mutex<Vec<Weak<DeviceContext>>> = Mutex::new(Vec::new());

/// The only one by whom the memory of a device is asked, until this is dropped: two would not know of each other's work.
struct OnlyOne {
    context: Weak<DeviceContext>,
}

impl OnlyOne {
    fn of(context: &Arc<DeviceContext>) -> Result<Self> {
        let context = Arc::downgrade(context);
        let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.iter().any(|other| other.ptr_eq(&context)) {
            let what = "this device is put to sleep when asked already: keep one `SleepWhenAsked` for all of its work";
            return Err(Error::InvalidValue { what });
        }
        asked.push(context.clone());
        Ok(Self { context })
    }
}

impl Drop for OnlyOne {
    fn drop(&mut self) {
        ASKED.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| !other.ptr_eq(&self.context));
    }
}

/// Memory that is asked to sleep and to wake.
struct AskedMemory {
    /// The ledger that it is asked through.
    ledger: Ledger,
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
#[error("{working} {} awake after {} ms", if *working == 1 { "stretch of work stays" } else { "stretches of work stay" }, waited.as_millis())]
struct StillWorking {
    working: usize,
    waited: Duration,
}

/// A request that was withdrawn before anything moved.
#[derive(Debug, thiserror::Error)]
#[error("nobody waits for it any more")]
struct NobodyWaits;

impl AskedMemory {
    fn state(&self) -> MutexGuard<'_, AwakeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether no work may begin: memory sleeps, or is about to.
    fn is_closed(&self, state: &mut AwakeState) -> bool {
        // The program itself may have woken it.
        state.is_closed &= state.is_moving || self.gpu.sleep_reading().state != SleepState::Awake;
        let sleeps = |state| matches!(state, SleepState::Moving | SleepState::Asleep);
        state.is_closed || self.gpu.context().sleepers().iter().any(|sleeper| sleeps(sleeper.sleep_reading().state))
    }

    fn enter(&self, state: &mut AwakeState) -> Option<AwakeGuard<'_>> {
        if self.is_closed(state) {
            return None;
        }
        state.working += 1;
        Some(AwakeGuard { asked: self })
    }

    fn open(&self) {
        self.state().is_closed = false;
        self.changed.notify_all();
    }

    /// Lets no more work begin, and waits for what is under way, for as long as whoever asked does.
    fn close(&self, patience: Duration) -> Result<()> {
        let began = Instant::now();
        loop {
            let mut state = self.state();
            state.is_closed = true;
            let left = patience.saturating_sub(began.elapsed());
            if state.working > 0 && !left.is_zero() {
                let woken = self.changed.wait_timeout(state, left.min(LOOK_EVERY));
                (state, _) = woken.unwrap_or_else(PoisonError::into_inner);
            }
            let working = state.working;
            drop(state);
            if self.ledger.is_request_withdrawn() {
                return Err(Error::External(ExternalError::new(NobodyWaits, false)));
            }
            let waited = began.elapsed();
            match working {
                0 => return Ok(()),
                _ if waited < patience => {}
                _ => return Err(Error::External(ExternalError::new(StillWorking { working, waited }, false))),
            }
        }
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

    fn sleep(&self, keep_place: bool, patience: Duration) -> Result<RemoteReport> {
        let began = Instant::now();
        if self.gpu.sleep_reading().state == SleepState::Asleep {
            if keep_place {
                self.gpu.sleep(&*self.store, &self.options.clone().patience(patience).keep_place())?;
            }
            return Ok(RemoteReport { was_so: true, ..RemoteReport::default() });
        }
        let slept = self.close(patience).and_then(|()| {
            let id = SleepRequestId::unique();
            let options = self.options.clone().id(id).patience(patience.saturating_sub(began.elapsed()));
            let slept = self.gpu.sleep(&*self.store, &if keep_place { options.keep_place() } else { options })?;
            self.gpu.context().enter_asked_sleep(id);
            Ok(slept)
        });
        if slept.is_err() {
            self.open();
        }
        slept.map(RemoteReport::from)
    }

    fn wake(&self, patience: Duration) -> Result<RemoteReport> {
        let was_so = self.gpu.sleep_reading().state == SleepState::Awake;
        let report = self.gpu.context().wake_asked(patience)?;
        self.open();
        Ok(RemoteReport { was_so, ..report.into() })
    }
}

impl SleepWhenAsked {
    /// Waits until the memory is awake, and keeps it awake until the result is dropped.
    pub fn awake(&self) -> AwakeGuard<'_> {
        let asked = &*self.asked;
        let mut state = asked.state();
        loop {
            if let Some(awake) = asked.enter(&mut state) {
                return awake;
            }
            // Looks once in a while, since the program may wake the memory by itself.
            (state, _) = asked.changed.wait_timeout(state, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Keeps the memory awake until the result is dropped; `None` where it sleeps, or is about to.
    pub fn try_awake(&self) -> Option<AwakeGuard<'_>> {
        self.asked.enter(&mut self.asked.state())
    }

    /// Returns whether the memory sleeps, by whomever, or is about to.
    pub fn is_asleep(&self) -> bool {
        self.asked.is_closed(&mut self.asked.state())
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
    /// A device has one of these at a time; another is refused with [`Error::InvalidValue`].
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
        let only = OnlyOne::of(gpu.context())?;
        let (gpu, store, state) = (gpu.clone(), Box::new(store), Mutex::default());
        let asked = Arc::new(AskedMemory { ledger, gpu, store, options, state, changed: Condvar::new() });
        let meets = asked.clone();
        let listener = asked.ledger.on_request(move |request| meets.meet(request));
        Ok(SleepWhenAsked { asked, _listener: listener, _only: only })
    }
}
