//! The pool of this process: one stack for each device, which every library draws on.
//!
//! A request finds its device and its stream in memory of its thread (`pool_requests`), allocates, and enters the block in
//! the device's book (`pool_book`), from which a free takes it by its address. Nothing else is between a library and the
//! pool of the Rust library.
#![allow(unsafe_code)]

use crate::failure::Failure;
use crate::machine::Machine;
use crate::pool_counts;
use crate::pool_device::{PoolDevice, Standing, Terms};
use crate::pool_reserved::Reserved;
use bursar::observe::Observer;
use bursar::{Bytes, DeviceId, Error, Ledgers, Statistics};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The pool of this process.
#[derive(Debug)]
pub(crate) struct Pool {
    machine: Arc<Machine>,
    terms: Terms,
    ledgers: Ledgers,
    devices: Box<[OnceLock<PoolDevice>]>,
    standing: Arc<Standing>,
    /// Observers that were added, for devices that are not open yet.
    observers: Mutex<Vec<Arc<dyn Observer>>>,
}

/// The pool that calls use: null before the first of them. A pool is never dropped, because libraries give blocks back until
/// the process has ended.
static CURRENT: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());
/// One library at a time makes or replaces the pool.
static MAKING: Mutex<()> = Mutex::new(());
/// Counts what makes remembered streams invalid: another pool, the end of a stream, and of a tag's block on another thread.
static EPOCH: AtomicU64 = AtomicU64::new(1);
/// Set in a child that was forked: whatever the pool's other threads were doing, they are not here.
static IS_FORKED: AtomicBool = AtomicBool::new(false);
/// The process that has the pool.
static OPENER: AtomicU32 = AtomicU32::new(0);

/// Has the threads look their streams, and their tags, up again.
pub(crate) fn forget_streams() {
    EPOCH.fetch_add(1, Ordering::Release);
}

/// Returns a number that changes with whatever makes remembered streams invalid.
#[inline]
pub(crate) fn epoch() -> u64 {
    EPOCH.load(Ordering::Acquire)
}

/// Returns whether this process was forked from the one that has the pool.
#[inline]
pub(crate) fn is_forked() -> bool {
    IS_FORKED.load(Ordering::Relaxed)
}

/// Fails in a child that was forked from the process that has the pool.
pub(crate) fn check_not_forked() -> Result<(), Failure> {
    if is_forked() { Err(Failure::Forked { opener: OPENER.load(Ordering::Relaxed) }) } else { Ok(()) }
}

extern "C" fn note_fork() {
    IS_FORKED.store(true, Ordering::Relaxed);
}

/// Returns the pool of this process, if there is one.
#[inline]
pub(crate) fn current() -> Option<&'static Pool> {
    // SAFETY: null, or a pool that is never dropped.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// Returns the pool of this process, made on the usual terms where nobody made it.
pub(crate) fn current_or_default(
    machine: impl FnOnce() -> Result<Arc<Machine>, Failure>,
) -> Result<&'static Pool, Failure> {
    check_not_forked()?;
    match current() {
        Some(pool) => Ok(pool),
        None => install(machine()?, Terms::default()),
    }
}

/// Makes the pool of this process. One that exists is replaced, unless somebody has memory of it.
pub(crate) fn install(machine: Arc<Machine>, terms: Terms) -> Result<&'static Pool, Failure> {
    check_not_forked()?;
    let _one_at_a_time = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pool) = current() {
        pool.check_unused()?;
    }
    let (devices, standing) = (machine.devices().map(|_| OnceLock::new()).collect(), Arc::default());
    let pool = Pool { machine, terms, ledgers: Ledgers::default(), devices, standing, observers: Mutex::default() };
    // A limit or an account that cannot be had is an error now, and not at the first allocation.
    pool.terms.device.map(|device| pool.device(device).map(drop)).transpose()?;
    let before = current();
    before.map(Pool::close).transpose()?;
    pool.terms.account.iter().for_each(|account| account.join());
    before.into_iter().for_each(|pool| _ = pool.trim());
    if CURRENT.swap(Box::into_raw(Box::new(pool)), Ordering::AcqRel).is_null() {
        OPENER.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: the function only stores a flag, which a child may do.
        unsafe { libc::pthread_atfork(None, None, Some(note_fork)) };
    }
    // The one before is never dropped, and draws on its reservation no more. Its addresses go, now or with the block of a thread
    // that is taking memory of it or giving it back just now.
    before.into_iter().for_each(|pool| pool.standing.is_replaced.store(true, Ordering::SeqCst));
    before.into_iter().flat_map(Pool::opened).for_each(|device| _ = device.pages.retire());
    before.and_then(|pool| pool.terms.account.as_ref()).into_iter().for_each(|account| account.leave());
    forget_streams();
    current().ok_or(Failure::Memory(Error::NoDevice))
}

/// Has a request try again that met the replacement of the pool, once that is over.
pub(crate) fn retrying<T>(mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    loop {
        match attempt() {
            Err(Failure::Replaced) => drop(MAKING.lock().unwrap_or_else(PoisonError::into_inner)),
            done => return done,
        }
    }
}

/// Returns an open device of the pool.
#[inline]
pub(crate) fn opened(number: u32) -> Option<&'static PoolDevice> {
    current()?.devices.get(number as usize)?.get()
}

impl Pool {
    /// Returns a device, with its stack built.
    pub(crate) fn device(&self, device: DeviceId) -> Result<&PoolDevice, Failure> {
        let count = self.machine.device_count();
        let slot = self.devices.get(device.0 as usize).ok_or(Error::InvalidDevice { device, count })?;
        if let Some(opened) = slot.get() {
            return Ok(opened);
        }
        if self.terms.device.is_some_and(|only| only != device) {
            return Err(Failure::OtherDevice { device, only: self.terms.device.unwrap_or(device) });
        }
        let opened = PoolDevice::open(&self.machine, device, &self.terms, &self.ledgers, self.standing.clone())?;
        for observer in &*self.observers() {
            opened.context.sink().subscribe(observer)?;
        }
        Ok(slot.get_or_init(|| opened))
    }

    /// Returns the devices that were used.
    pub(crate) fn opened(&self) -> impl Iterator<Item = &PoolDevice> {
        self.devices.iter().filter_map(OnceLock::get)
    }

    /// Returns the devices that were used, with their numbers.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (u32, &PoolDevice)> {
        (0..).zip(&self.devices).filter_map(|(number, device)| Some((number, device.get()?)))
    }

    /// Returns the counts of a device of its machine, if this pool or one before it was used on it.
    pub(crate) fn counts(&self, device: DeviceId) -> Option<(Statistics, Reserved)> {
        let context = self.machine.opened_context(device)?;
        pool_counts::find(context)
    }

    /// Returns the most that it may hold of a device, used or not, where it has a limit of its own.
    pub(crate) fn limit_of(&self, device: DeviceId) -> Option<Bytes> {
        match self.used(device) {
            Some(used) => used.own_limit(),
            None => self.terms.limit.filter(|_| self.terms.device.is_none_or(|only| only == device)),
        }
    }

    /// Returns its memory of a device, if it was used.
    pub(crate) fn used(&self, device: DeviceId) -> Option<&PoolDevice> {
        self.devices.get(device.0 as usize)?.get()
    }

    /// Returns its devices, used or not.
    pub(crate) fn devices(&self) -> impl Iterator<Item = DeviceId> {
        self.machine.devices()
    }

    /// Returns whether its devices are simulated.
    pub(crate) fn is_simulated(&self) -> bool {
        self.machine.kind() == "simulated"
    }

    /// Returns the device that is meant where none is named.
    pub(crate) fn default_device(&self) -> DeviceId {
        self.terms.device.unwrap_or_else(|| self.machine.default_device())
    }

    pub(crate) fn terms(&self) -> &Terms {
        &self.terms
    }

    fn observers(&self) -> MutexGuard<'_, Vec<Arc<dyn Observer>>> {
        self.observers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has an observer told of what happens on every device, those to come included.
    pub(crate) fn observe(&self, observer: Arc<dyn Observer>) -> Result<(), Failure> {
        let mut observers = self.observers();
        for device in self.opened() {
            device.context.sink().subscribe(&observer)?;
        }
        if observers.iter().all(|other| other.identity() != observer.identity()) {
            observers.push(observer);
        }
        Ok(())
    }

    /// Gives back to the driver what nobody uses, and returns how much that was.
    pub(crate) fn trim(&self) -> Bytes {
        self.opened().fold(Bytes::ZERO, |sum, device| sum.saturating_add(device.trim()))
    }

    fn check_unused(&self) -> Result<(), Failure> {
        let blocks = self.opened().map(PoolDevice::blocks).sum::<u64>();
        if blocks == 0 { Ok(()) } else { Err(Failure::PoolInUse { blocks }) }
    }

    /// Has nothing of it be handed out any more, unless something is outside.
    fn close(&self) -> Result<(), Failure> {
        let is_closing = &self.standing.is_closing;
        is_closing.store(true, Ordering::SeqCst);
        self.check_unused().inspect_err(|_| is_closing.store(false, Ordering::SeqCst))
    }
}
