//! Statuses, and the error that a thread's last failure left.

use bursar::ledger::LedgerError;
use bursar::{Bytes, Error};
use std::any::Any;
use std::cell::RefCell;
use std::fmt;

/// The outcome of a call. `BURSAR_OK` is zero; every other value is a failure, of which `bursar_last_error` tells the rest.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub enum bursar_status {
    /// The call did what it says.
    BURSAR_OK = 0,
    /// A pointer is null, a structure has another size, a text is no UTF-8, or a number makes no sense.
    BURSAR_INVALID_ARGUMENT = 1,
    /// A handle is null, of another kind, closed or freed already, or was never given out.
    BURSAR_INVALID_HANDLE = 2,
    /// A limit, an account or a reservation has no room for the request.
    BURSAR_OUT_OF_BUDGET = 3,
    /// The device has no room for the request.
    BURSAR_OUT_OF_MEMORY = 4,
    /// Memory that the caller is guaranteed is lent to others, who did not give it back in time.
    BURSAR_WITHHELD = 5,
    /// A reservation was not granted before its time was over.
    BURSAR_TIMED_OUT = 6,
    /// A reservation was given up by its cancellation.
    BURSAR_CANCELLED = 7,
    /// The stream cannot be used for this: it is of another device, has ended, or is being captured into a graph.
    BURSAR_INVALID_STREAM = 8,
    /// Every stream that there may be is in use.
    BURSAR_TOO_MANY_STREAMS = 9,
    /// The memory still has blocks, so it stays open.
    BURSAR_STILL_HELD = 10,
    /// The driver that was asked for cannot be used.
    BURSAR_NO_DRIVER = 11,
    /// There is no such device, or it cannot be used.
    BURSAR_NO_DEVICE = 12,
    /// The device or the memory cannot do this, or was not asked to.
    BURSAR_UNSUPPORTED = 13,
    /// The ledger cannot be used.
    BURSAR_LEDGER = 14,
    /// This process was forked off one that had opened a driver. Only what it becomes by `exec` can use the library.
    BURSAR_FORKED = 15,
    /// A call of the driver failed; `driver_code` has its number.
    BURSAR_DRIVER_FAILED = 16,
    /// A defect of this library: the call panicked and may be half done.
    BURSAR_PANIC = 17,
    /// A failure that has no status of its own in this version.
    BURSAR_OTHER = 18,
    /// The memory sleeps, or is falling asleep or waking.
    BURSAR_ASLEEP = 19,
    /// Work that had to run first was still running when the time was over.
    BURSAR_STILL_IN_USE = 20,
}

use bursar_status::{
    BURSAR_ASLEEP, BURSAR_CANCELLED, BURSAR_DRIVER_FAILED, BURSAR_FORKED, BURSAR_INVALID_ARGUMENT,
    BURSAR_INVALID_HANDLE, BURSAR_INVALID_STREAM, BURSAR_LEDGER, BURSAR_NO_DEVICE, BURSAR_NO_DRIVER, BURSAR_OK,
    BURSAR_OTHER, BURSAR_OUT_OF_BUDGET, BURSAR_OUT_OF_MEMORY, BURSAR_PANIC, BURSAR_STILL_HELD, BURSAR_STILL_IN_USE,
    BURSAR_TIMED_OUT, BURSAR_TOO_MANY_STREAMS, BURSAR_UNSUPPORTED, BURSAR_WITHHELD,
};

/// Every status with its name in C.
pub(crate) const STATUSES: [(bursar_status, &std::ffi::CStr); 21] = [
    (BURSAR_OK, c"BURSAR_OK"),
    (BURSAR_INVALID_ARGUMENT, c"BURSAR_INVALID_ARGUMENT"),
    (BURSAR_INVALID_HANDLE, c"BURSAR_INVALID_HANDLE"),
    (BURSAR_OUT_OF_BUDGET, c"BURSAR_OUT_OF_BUDGET"),
    (BURSAR_OUT_OF_MEMORY, c"BURSAR_OUT_OF_MEMORY"),
    (BURSAR_WITHHELD, c"BURSAR_WITHHELD"),
    (BURSAR_TIMED_OUT, c"BURSAR_TIMED_OUT"),
    (BURSAR_CANCELLED, c"BURSAR_CANCELLED"),
    (BURSAR_INVALID_STREAM, c"BURSAR_INVALID_STREAM"),
    (BURSAR_TOO_MANY_STREAMS, c"BURSAR_TOO_MANY_STREAMS"),
    (BURSAR_STILL_HELD, c"BURSAR_STILL_HELD"),
    (BURSAR_NO_DRIVER, c"BURSAR_NO_DRIVER"),
    (BURSAR_NO_DEVICE, c"BURSAR_NO_DEVICE"),
    (BURSAR_UNSUPPORTED, c"BURSAR_UNSUPPORTED"),
    (BURSAR_LEDGER, c"BURSAR_LEDGER"),
    (BURSAR_FORKED, c"BURSAR_FORKED"),
    (BURSAR_DRIVER_FAILED, c"BURSAR_DRIVER_FAILED"),
    (BURSAR_PANIC, c"BURSAR_PANIC"),
    (BURSAR_OTHER, c"BURSAR_OTHER"),
    (BURSAR_ASLEEP, c"BURSAR_ASLEEP"),
    (BURSAR_STILL_IN_USE, c"BURSAR_STILL_IN_USE"),
];

/// The reason why a call failed, behind a pointer so that success costs one word.
pub(crate) type CallResult<T = ()> = Result<T, Box<Failure>>;

/// The reason why a call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An argument makes no sense.
    Argument { name: &'static str, why: &'static str },
    /// A structure has another size than this version's.
    StructSize { name: &'static str, given: usize, expected: usize },
    /// A text has more bytes than there is room for.
    TooLong { name: &'static str, length: usize, max: usize },
    /// A handle is not a live one of its kind.
    Handle { kind: &'static str, id: u64 },
    /// Something else could not be done.
    Failed(Error),
    /// A reservation was not granted in time, for this reason.
    TimedOut { waited_ms: u64, refused: Error },
    /// A reservation was given up.
    Cancelled,
    /// Blocks of a stack are live.
    StillHeld { blocks: usize, bytes: Bytes },
    /// There is no room for another handle.
    TooManyHandles { kind: &'static str, max: usize },
    /// This process was forked off.
    Forked,
    /// The library panicked.
    Panicked { message: String },
}

impl Failure {
    pub(crate) fn argument(name: &'static str, why: &'static str) -> Box<Self> {
        Box::new(Self::Argument { name, why })
    }

    /// Returns the failure that is reported for a panic. Text is kept; a payload of another type may panic when it is
    /// dropped, and is not.
    #[cold]
    pub(crate) fn panicked(payload: Box<dyn Any + Send>) -> Box<Self> {
        let message = match payload.downcast::<&'static str>() {
            Ok(text) => (*text).to_owned(),
            Err(payload) => match payload.downcast::<String>() {
                Ok(text) => *text,
                Err(payload) => {
                    std::mem::forget(payload);
                    "something that is no text".to_owned()
                }
            },
        };
        Box::new(Self::Panicked { message })
    }

    /// Returns the error underneath, if it is one of the library's own.
    pub(crate) fn error(&self) -> Option<&Error> {
        match self {
            Self::Failed(error) | Self::TimedOut { refused: error, .. } => Some(error),
            _ => None,
        }
    }

    pub(crate) fn status(&self) -> bursar_status {
        match self {
            Self::Argument { .. } | Self::StructSize { .. } | Self::TooLong { .. } => BURSAR_INVALID_ARGUMENT,
            Self::Handle { .. } => BURSAR_INVALID_HANDLE,
            Self::Failed(error) => status_of(error),
            Self::TimedOut { .. } => BURSAR_TIMED_OUT,
            Self::Cancelled => BURSAR_CANCELLED,
            Self::StillHeld { .. } => BURSAR_STILL_HELD,
            Self::TooManyHandles { .. } => BURSAR_OTHER,
            Self::Forked => BURSAR_FORKED,
            Self::Panicked { .. } => BURSAR_PANIC,
        }
    }

    /// Returns the requested bytes, those that were available, and the limit, where the failure has such numbers.
    pub(crate) fn numbers(&self) -> (u64, u64, u64) {
        match self {
            Self::StructSize { given, expected, .. } => (*given as u64, 0, *expected as u64),
            Self::TooLong { length, max, .. } => (*length as u64, 0, *max as u64),
            Self::TooManyHandles { max, .. } => (0, 0, *max as u64),
            Self::StillHeld { bytes, .. } => (bytes.get(), 0, 0),
            _ => self.error().map_or((0, 0, 0), numbers_of),
        }
    }
}

fn status_of(error: &Error) -> bursar_status {
    match error {
        Error::OutOfBudget { .. } | Error::OutOfTurn { .. } => BURSAR_OUT_OF_BUDGET,
        Error::OutOfMemory { .. } => BURSAR_OUT_OF_MEMORY,
        Error::Withheld { .. } => BURSAR_WITHHELD,
        Error::InvalidSize { .. }
        | Error::InvalidAlignment { .. }
        | Error::InvalidNumber { .. }
        | Error::InvalidValue { .. }
        | Error::InvalidRange { .. }
        | Error::LengthMismatch { .. }
        | Error::SizeMismatch { .. } => BURSAR_INVALID_ARGUMENT,
        Error::UseAfterFree { .. } | Error::ForeignBlock { .. } => BURSAR_INVALID_HANDLE,
        Error::StreamMisuse { .. } => BURSAR_INVALID_STREAM,
        Error::Capacity { .. } => BURSAR_TOO_MANY_STREAMS,
        Error::NoDriver { .. } => BURSAR_NO_DRIVER,
        Error::NoDevice | Error::DeviceUnusable { .. } | Error::NoUsableDevice { .. } | Error::InvalidDevice { .. } => {
            BURSAR_NO_DEVICE
        }
        Error::Unsupported { .. } => BURSAR_UNSUPPORTED,
        Error::Account { .. } => BURSAR_LEDGER,
        Error::External(error) if error.downcast_ref::<LedgerError>().is_some() => BURSAR_LEDGER,
        Error::Forked => BURSAR_FORKED,
        Error::Asleep { .. } => BURSAR_ASLEEP,
        Error::StillInUse { .. } => BURSAR_STILL_IN_USE,
        Error::Driver(_) | Error::CreateFailed(_) => BURSAR_DRIVER_FAILED,
        _ => BURSAR_OTHER,
    }
}

fn numbers_of(error: &Error) -> (u64, u64, u64) {
    let asked = |whole: &Bytes| error.shortage().map_or(*whole, |shortage| shortage.requested).get();
    match error {
        Error::OutOfBudget { requested, remaining, limit, .. } => (asked(requested), remaining.get(), limit.get()),
        Error::OutOfTurn { requested, remaining, limit, .. } => (requested.get(), remaining.get(), limit.get()),
        Error::OutOfMemory { requested, free, total, .. } => (asked(requested), free.get(), total.get()),
        Error::Withheld { requested, remaining, .. } => (requested.get(), remaining.get(), 0),
        Error::InvalidSize { requested } => (*requested, 0, 0),
        Error::InvalidAlignment { align } => (*align, 0, bursar::memory::MAX_ALIGN),
        Error::InvalidNumber { number, .. } => (*number, 0, 0),
        Error::InvalidDevice { device, count } => (device.0.into(), 0, (*count).into()),
        Error::Capacity { max } => (0, 0, *max as u64),
        _ => (0, 0, 0),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Argument { name, why } => write!(f, "`{name}` {why}"),
            Self::StructSize { name, given, expected } => {
                write!(f, "`{name}` has a struct_size of {given}, where this version's is {expected}")
            }
            Self::TooLong { name, length, max } => write!(f, "`{name}` has {length} bytes, and {max} at most"),
            Self::Handle { kind, id: 0 } => write!(f, "the handle is null, where that of a {kind} is needed"),
            Self::Handle { kind, id } => {
                write!(f, "{id:#x} is no {kind}: it was closed or freed, is of another kind, or was never given out")
            }
            Self::Failed(error) => error.fmt(f),
            Self::TimedOut { waited_ms, refused } => write!(f, "not granted within {waited_ms} ms: {refused}"),
            Self::Cancelled => f.write_str("the reservation was given up before it was granted"),
            Self::StillHeld { blocks, bytes } => {
                let plural = if *blocks == 1 { " is" } else { "s are" };
                write!(f, "{blocks} block{plural} still allocated, with {bytes}; free them before closing")
            }
            Self::TooManyHandles { kind, max } => write!(f, "there are {max} of the kind {kind}, and no room for more"),
            Self::Forked => f.write_str("this process was forked off one that had opened a driver; use it after exec"),
            Self::Panicked { message } => write!(f, "a defect of this library: {message}"),
        }
    }
}

impl From<Error> for Box<Failure> {
    #[cold]
    fn from(error: Error) -> Self {
        Box::new(Failure::Failed(error))
    }
}

thread_local! {
    static LAST: RefCell<(Option<Box<Failure>>, Option<String>)> = const { RefCell::new((None, None)) };
}

/// Keeps a failure for `bursar_last_error`, and the explanation of a refusal for `bursar_last_refusal`. A thread whose last
/// destructors run keeps nothing.
#[cold]
pub(crate) fn keep(failure: Box<Failure>) -> bursar_status {
    let status = failure.status();
    let refusal = failure.error().filter(|error| error.is_capacity()).map(|error| format!("{error:#}"));
    let _ = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        last.0 = Some(failure);
        if refusal.is_some() {
            last.1 = refusal;
        }
    });
    status
}

/// Passes this thread's last failure to `read`, if there was one.
pub(crate) fn with_last_failure<T>(read: impl FnOnce(Option<&Failure>) -> T) -> Option<T> {
    LAST.try_with(|last| read(last.borrow().0.as_deref())).ok()
}

/// Passes the explanation of this thread's last refusal to `read`; it is empty if there was none.
pub(crate) fn with_last_refusal<T>(read: impl FnOnce(&str) -> T) -> Option<T> {
    LAST.try_with(|last| read(last.borrow().1.as_deref().unwrap_or_default())).ok()
}
