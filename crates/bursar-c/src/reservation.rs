//! Reservations: memory that is set aside before it is needed, at once or when its turn comes.
#![allow(unsafe_code)]

use crate::arguments::{self, Versioned};
use crate::device::bursar_device;
use crate::enter::{call, running_call};
use crate::handles::{CANCELLATIONS, Cancellation, DEVICES, Device, RESERVATIONS};
use crate::status::{CallResult, Failure, bursar_status};
use bursar::ledger::{Ledger, LedgerError, Priority, Reservation, ReserveFuture, ReserveOptions};
use bursar::memory::Admission as _;
use bursar::{Bytes, Error, Ledgers};
use std::ffi::c_char;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Memory that was set aside; `{0}` is null.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_reservation {
    /// The number of the handle.
    pub id: u64,
}

/// A way to give up reservations that wait; `{0}` is null.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_cancellation {
    /// The number of the handle.
    pub id: u64,
}

/// A time that never passes.
pub const BURSAR_FOREVER: u64 = u64::MAX;

/// The options of a reservation. Zeroes but for the size are the defaults, and so is a null pointer to it: at once or not at all.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_reserve_options {
    /// The size of this structure: `sizeof(bursar_reserve_options)`.
    pub struct_size: usize,
    /// The longest time to wait for its turn, in milliseconds: zero to wait for nothing, `BURSAR_FOREVER` without an end.
    pub timeout_ms: u64,
    /// The cancellation that gives it up while it waits; null for none.
    pub cancellation: bursar_cancellation,
    /// The label that `bursar ledger show` shows; null for none. Of a longer one the first 49 bytes are kept.
    pub label: *const c_char,
    /// The tenant that it is of, in up to 48 bytes; null for the one without a name.
    pub tenant: *const c_char,
    /// The priority where it waits, from 1 to 255: a higher one is served first. Zero for the usual one, which is 128.
    pub priority: u32,
    /// The part of what all may have together that stays free, in millionths: up to 1,000,000.
    pub keep_free_millionths: u32,
}

impl Default for bursar_reserve_options {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            timeout_ms: 0,
            cancellation: bursar_cancellation::default(),
            label: std::ptr::null(),
            tenant: std::ptr::null(),
            priority: 0,
            keep_free_millionths: 0,
        }
    }
}

// SAFETY: it has the layout of C and begins with its size, and its fields are integers and pointers.
unsafe impl Versioned for bursar_reserve_options {}

/// A reservation at one moment.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_reservation_reading {
    /// The size of this structure, set by the caller: `sizeof(bursar_reservation_reading)`.
    pub struct_size: usize,
    /// The bytes that were set aside.
    pub bytes: u64,
    /// The bytes that can still be charged.
    pub undrawn: u64,
    /// The bytes that stacks of this process hold of it.
    pub held: u64,
}

// SAFETY: it has the layout of C and begins with its size, and its fields are integers.
unsafe impl Versioned for bursar_reservation_reading {}

/// Sets memory of a device aside in its ledger, which all processes of this user share: at once, or when its turn comes within
/// the time of the options. A stack draws on it by `BURSAR_ACCOUNT_RESERVATION`.
///
/// Errors: `BURSAR_OUT_OF_BUDGET` or `BURSAR_WITHHELD` where there is no room at once, or never will be; `BURSAR_TIMED_OUT`, with
/// the numbers at that moment, or none where another process had the lock of the ledger; `BURSAR_CANCELLED`; `BURSAR_LEDGER`, also
/// where it has the lock and nothing is waited for; `BURSAR_FORKED`, `BURSAR_DRIVER_FAILED`; `BURSAR_INVALID_HANDLE`,
/// `BURSAR_INVALID_ARGUMENT`. `*out` is then null, and nothing waits any more.
/// Threads: any; while it waits, only the calling thread does.
/// Ownership: the caller closes `*out` with `bursar_reservation_close`.
///
/// # Safety
/// `options` is null or points to a `bursar_reserve_options`; `out` is null or points to a `bursar_reservation`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_reserve(
    device: bursar_device,
    bytes: u64,
    options: *const bursar_reserve_options,
    out: *mut bursar_reservation,
) -> bursar_status {
    call(|| {
        arguments::check_place(out, "out")?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, bursar_reservation::default()) };
        // SAFETY: the caller's own promise.
        let options = unsafe { arguments::options(options, "options") }?;
        // SAFETY: the caller's own promise.
        let label = unsafe { arguments::text(options.label, "label") }?;
        // SAFETY: the caller's own promise.
        let tenant = unsafe { arguments::tenant(options.tenant) }?;
        let device = DEVICES.keep(device.id)?;
        let cancellation = match options.cancellation.id {
            0 => None,
            id => Some(CANCELLATIONS.keep(id)?),
        };
        let (tenant, reserve) = (tenant.unwrap_or_default().to_owned(), reserve_options(&options, label)?);
        let request = Request { device, tenant, bytes: Bytes(bytes), options: reserve };
        let reservation = request.reserve(options.timeout_ms, cancellation.as_deref())?;
        let id = RESERVATIONS.insert(Arc::new(reservation))?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, bursar_reservation { id }) };
        Ok(())
    })
}

fn reserve_options(options: &bursar_reserve_options, label: Option<&str>) -> CallResult<ReserveOptions> {
    let priority = match u8::try_from(options.priority) {
        Ok(0) => Priority::NORMAL,
        Ok(priority) => Priority(priority),
        Err(_) => return Err(Failure::argument("priority", "is above 255")),
    };
    if options.keep_free_millionths > 1_000_000 {
        return Err(Failure::argument("keep_free_millionths", "is above 1,000,000"));
    }
    let made = ReserveOptions::new().priority(priority).keep_free_millionths(options.keep_free_millionths);
    Ok(made.label(label.unwrap_or_default()))
}

/// The longest that a request which ends now waits for the lock of a ledger that has yet to be opened.
const ENDS_WITHIN: Duration = Duration::from_millis(100);
/// The longest that one waits for it before it looks whether it was given up.
const LOOKS_EVERY: Duration = Duration::from_millis(20);
/// The time after which a ledger that cannot be opened because another process has its lock is an error.
const STUCK_AFTER: Duration = Duration::from_secs(5);
/// The time after which one that another process is making or moving is.
const IN_USE_AFTER: Duration = Duration::from_secs(1);

/// A request for a reservation. No step of it waits for the ledger's lock for longer than a moment: a stopped process that has the
/// lock delays neither a deadline nor a cancellation.
struct Request {
    device: Arc<Device>,
    tenant: String,
    bytes: Bytes,
    options: ReserveOptions,
}

impl Request {
    fn reserve(&self, timeout_ms: u64, cancellation: Option<&Cancellation>) -> CallResult<Reservation> {
        check_not_cancelled(cancellation)?;
        if timeout_ms == 0 {
            return Ok(self.at_once(&self.open(ENDS_WITHIN)?)?);
        }
        let deadline = Deadline::new(timeout_ms);
        let ledger = self.open_in_time(&deadline, cancellation)?;
        match self.at_once(&ledger) {
            Err(refused) if refused.is_capacity() || patience_with(&refused).is_some() => {
                self.in_turn(&ledger, &deadline, cancellation)
            }
            decided => Ok(decided?),
        }
    }

    fn open(&self, patience: Duration) -> bursar::Result<Ledger> {
        self.device.ledgers.of_within(&self.device.context, patience)
    }

    /// Opens the ledger, in steps between which a cancellation is seen.
    fn open_in_time(&self, deadline: &Deadline, cancellation: Option<&Cancellation>) -> CallResult<Ledger> {
        let began = Instant::now();
        loop {
            check_not_cancelled(cancellation)?;
            let refused = match self.open(LOOKS_EVERY) {
                Err(refused) if patience_with(&refused).is_some_and(|longest| began.elapsed() < longest) => refused,
                opened => return Ok(opened?),
            };
            if deadline.left() == Some(Duration::ZERO) {
                return Err(deadline.passed(refused));
            }
            // An error that comes at once is not asked for again at once.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn future(&self, ledger: &Ledger) -> ReserveFuture {
        ledger.reserve_async_for(&self.tenant, self.bytes, self.options.clone())
    }

    /// Reserves without waiting; what pools of this process only cache is given back before a refusal.
    fn at_once(&self, ledger: &Ledger) -> bursar::Result<Reservation> {
        match self.future(ledger).now() {
            Err(refused) if refused.is_capacity() && self.device.context.trim() > Bytes::ZERO => {
                self.future(ledger).now()
            }
            decided => decided,
        }
    }

    /// Waits for its turn. A refusal at the end is that of one more request, so that its numbers are of that moment.
    fn in_turn(
        &self,
        ledger: &Ledger,
        deadline: &Deadline,
        cancellation: Option<&Cancellation>,
    ) -> CallResult<Reservation> {
        let mut future = Box::pin(self.future(ledger));
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let _woken = Woken::by(cancellation);
        let mut has_trimmed = false;
        loop {
            check_not_cancelled(cancellation)?;
            if let Poll::Ready(decided) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Ok(decided?);
            }
            // The request at once may not have come as far as the pools.
            if !std::mem::replace(&mut has_trimmed, true) && self.device.context.trim() > Bytes::ZERO {
                continue;
            }
            match deadline.left() {
                None => std::thread::park(),
                Some(Duration::ZERO) => break,
                Some(left) => std::thread::park_timeout(left),
            }
        }
        drop(future);
        self.at_once(ledger).map_err(|refused| match refused.is_capacity() || patience_with(&refused).is_some() {
            true => deadline.passed(refused),
            false => refused.into(),
        })
    }
}

fn check_not_cancelled(cancellation: Option<&Cancellation>) -> CallResult {
    match cancellation.is_some_and(|cancellation| cancellation.is_cancelled.load(Ordering::SeqCst)) {
        true => Err(Box::new(Failure::Cancelled)),
        false => Ok(()),
    }
}

/// Returns how long a ledger is tried again whose lock another process has, or that another is making; none where that is of no use.
fn patience_with(error: &Error) -> Option<Duration> {
    let Error::External(error) = error else { return None };
    match error.downcast_ref()? {
        LedgerError::InUse { .. } => Some(IN_USE_AFTER),
        LedgerError::Stuck { .. } | LedgerError::Busy { .. } => Some(STUCK_AFTER),
        _ => None,
    }
}

/// The time that a request has.
struct Deadline {
    timeout_ms: u64,
    /// None where it has no end.
    ends: Option<Instant>,
}

impl Deadline {
    fn new(timeout_ms: u64) -> Self {
        let ends = match timeout_ms {
            BURSAR_FOREVER => None,
            timeout_ms => Instant::now().checked_add(Duration::from_millis(timeout_ms)),
        };
        Self { timeout_ms, ends }
    }

    fn left(&self) -> Option<Duration> {
        self.ends.map(|ends| ends.saturating_duration_since(Instant::now()))
    }

    fn passed(&self, refused: Error) -> Box<Failure> {
        Box::new(Failure::TimedOut { waited_ms: self.timeout_ms, refused })
    }
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The time during which a cancellation wakes this thread.
struct Woken<'a>(Option<&'a Cancellation>);

impl<'a> Woken<'a> {
    fn by(cancellation: Option<&'a Cancellation>) -> Self {
        if let Some(cancellation) = cancellation {
            cancellation.join();
        }
        Self(cancellation)
    }
}

impl Drop for Woken<'_> {
    fn drop(&mut self) {
        if let Some(cancellation) = self.0 {
            cancellation.leave();
        }
    }
}

/// Returns the share of a device that `bursar run`, or whoever else started this process, set aside for it. `*out` is null where
/// there is none.
///
/// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`; `BURSAR_LEDGER` if there is one and it cannot be used;
/// `BURSAR_FORKED`.
/// Threads: any.
/// Ownership: the caller closes `*out` with `bursar_reservation_close`.
///
/// # Safety
/// `out` is null or points to a `bursar_reservation`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_share(device: bursar_device, out: *mut bursar_reservation) -> bursar_status {
    call(|| {
        arguments::check_place(out, "out")?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, bursar_reservation::default()) };
        let device = DEVICES.keep(device.id)?;
        if let Some(share) = Ledgers::share(&device.context)? {
            let id = RESERVATIONS.insert(Arc::new(share))?;
            // SAFETY: it was checked.
            unsafe { arguments::write(out, bursar_reservation { id }) };
        }
        Ok(())
    })
}

/// Says how much of a device's memory a newcomer could have now, whatever others hold or have set aside.
///
/// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`, `BURSAR_LEDGER`, `BURSAR_FORKED`, `BURSAR_DRIVER_FAILED`.
/// Threads: any.
/// Ownership: none.
///
/// # Safety
/// `out` is null or points to a `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_available(device: bursar_device, out: *mut u64) -> bursar_status {
    call(|| {
        arguments::check_place(out, "out")?;
        let device = DEVICES.keep(device.id)?;
        let available = device.ledgers.available(&device.context)?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, available.get()) };
        Ok(())
    })
}

/// Reads a reservation.
///
/// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`.
/// Threads: any.
/// Ownership: the structure is the caller's.
///
/// # Safety
/// `out` is null or points to a `bursar_reservation_reading`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_reservation_read(
    reservation: bursar_reservation,
    out: *mut bursar_reservation_reading,
) -> bursar_status {
    running_call(|running| {
        // SAFETY: the caller's own promise.
        unsafe { arguments::check_out(out, "out") }?;
        let reservation = RESERVATIONS.get(reservation.id, running)?;
        let read = bursar_reservation_reading {
            struct_size: size_of::<bursar_reservation_reading>(),
            bytes: reservation.bytes().get(),
            undrawn: reservation.undrawn().get(),
            held: reservation.held().get(),
        };
        // SAFETY: it was checked.
        unsafe { arguments::write(out, read) };
        Ok(())
    })
}

/// Closes a reservation. It ends when the last stack that draws on it is closed too, and what is undrawn then returns.
///
/// Errors: `BURSAR_INVALID_HANDLE`.
/// Threads: any; it waits for calls of other threads that are running.
/// Ownership: the handle is used up.
#[unsafe(no_mangle)]
pub extern "C" fn bursar_reservation_close(reservation: bursar_reservation) -> bursar_status {
    call(|| RESERVATIONS.close(reservation.id).map(drop))
}

/// Makes a cancellation, to be given to reservations that wait.
///
/// Errors: `BURSAR_INVALID_ARGUMENT`.
/// Threads: any.
/// Ownership: the caller closes `*out` with `bursar_cancellation_close`.
///
/// # Safety
/// `out` is null or points to a `bursar_cancellation`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_cancellation_create(out: *mut bursar_cancellation) -> bursar_status {
    call(|| {
        arguments::check_place(out, "out")?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, bursar_cancellation::default()) };
        let id = CANCELLATIONS.insert(Arc::default())?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, bursar_cancellation { id }) };
        Ok(())
    })
}

/// Gives up every reservation that waits with this cancellation, and every one that is asked for with it later: each returns
/// `BURSAR_CANCELLED`.
///
/// Errors: `BURSAR_INVALID_HANDLE`.
/// Threads: any.
/// Ownership: the handle stays the caller's.
#[unsafe(no_mangle)]
pub extern "C" fn bursar_cancel(cancellation: bursar_cancellation) -> bursar_status {
    call(|| {
        let cancellation = CANCELLATIONS.keep(cancellation.id)?;
        cancellation.is_cancelled.store(true, Ordering::SeqCst);
        cancellation.wake_all();
        Ok(())
    })
}

/// Closes a cancellation. Reservations that wait with it go on.
///
/// Errors: `BURSAR_INVALID_HANDLE`.
/// Threads: any; it waits for calls of other threads that are running.
/// Ownership: the handle is used up.
#[unsafe(no_mangle)]
pub extern "C" fn bursar_cancellation_close(cancellation: bursar_cancellation) -> bursar_status {
    call(|| CANCELLATIONS.close(cancellation.id).map(drop))
}
