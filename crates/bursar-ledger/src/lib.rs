//! One budget for everyone on a device: accounts across threads, tenants and processes.
//!
//! A [`Ledger`] is about one physical device. All processes of a user that open the ledger of the same device share it
//! through a small file, with no daemon; what they charge together never exceeds its limit, and what a process held is free
//! again when it has died, however it died. A [`Reservation`] sets memory aside before it is allocated. Both are
//! [`Account`](bursar_core::Account)s, so that a budget can charge them.
//!
//! ```
//! use bursar::Bytes;
//! use bursar::ledger::Ledger;
//! use bursar::memory::Account;
//!
//! # fn main() -> bursar::Result<()> {
//! let ledger = Ledger::private(Bytes::gib(8));
//! let reservation = ledger.reserve(Bytes::gib(6))?;
//! assert!(ledger.reserve(Bytes::gib(3)).unwrap_err().is_capacity());
//!
//! reservation.charge(Bytes::gib(2))?;
//! assert_eq!((reservation.held(), reservation.undrawn()), (Bytes::gib(2), Bytes::gib(4)));
//! reservation.release(Bytes::gib(2));
//!
//! drop(reservation);
//! assert_eq!(ledger.available()?, Bytes::gib(8));
//! # Ok(())
//! # }
//! ```
//!
//! # Cost
//! A charge that an account has credit for, and every charge of a reservation, is one compare-and-swap on a word of the
//! file, with no lock and no system call. Credit is at most 64 MiB, or a 64th of the device, and is recalled before
//! anyone is refused.
//!
//! # Processes that die, stop and fork
//! Each process locks a byte of the file, and the kernel drops that lock with the process. Neither process ids nor clocks
//! play a part. A process that is stopped is alive. In a forked child every handle returns
//! [`Forked`](bursar_core::Error::Forked); a child made by the bare system call `clone`, which runs no handlers of the C
//! library, keeps its parent's charge until it ends as well. The file must not be truncated while in use: the kernel kills
//! processes that touch what is gone. While a ledger is in use, no other is opened or made under its path, even if it was
//! moved or removed; but a folder shared by containers with roots of their own must not be moved.
//!
//! A request that waits is woken when another process releases, and when one dies: the kernel reports that through
//! inotify. Where inotify is not available, those who wait look for dead processes every second. Nobody reports that a
//! program outside Bursar freed memory, so those who wait on a measured ledger measure four times a second.
//!
//! # Words
//! - *tenant*: a name under which processes hold memory together, with a *guarantee* it may always have and a *ceiling*.
//!   Bytes beyond its guarantee are *borrowed*.
//! - *account*: what a process holds for a tenant. *Credit* is what an account has charged in advance, so that its next
//!   charges need no lock.
//! - *reservation*: memory set aside before it is allocated. Charging it *draws* on it; the rest is *undrawn*. A
//!   *delegation* lets child processes draw on it by a *token*. Its *label* says what it is for. What it *keeps free* is a part
//!   of the whole that it is not granted without.
//! - *unmanaged*: what is used of the device outside the ledger.
//! - *slot*: the row of a process in the table of processes. *Node*: the row of a tenant, account or reservation.
//!   *Generation*: how often a row was used before, which tells its uses apart.
//! - *sealed*: stored so that a bit which changes by itself is noticed.
//! - *note*: a word written without the lock, to be applied by whoever has the lock next.
//!
//! # Layers
//! Each module uses only those below it, beside the errors, [`Subject`], [`RefusalReason`] and [`WaitHistogram`]:
//!
//! ```text
//!  api          handles for programs: Ledger, Tenant, LedgerAccount, Reservation, Delegation, readings
//!  attachment   a process's attachment to a ledger: waiting for the lock, wake-ups, callbacks, measuring
//!  storage      the file: found or made, checked, mapped, and no second one beside it
//!  book         the algorithms, behind the lock and without it         system    the operating system, real or simulated
//!  format       where every word is, and how a value is stored in it
//! ```
//!
//! `model` is a seeded model of many processes that runs all of this on a simulated system.

mod api;
mod attachment;
#[doc(hidden)]
pub mod book;
mod error;
#[doc(hidden)]
pub mod format;
#[cfg(test)]
mod model;
mod refusal;
mod remote;
mod storage;
mod subject;
mod system;
mod waits;

pub use api::{
    Availability, Delegation, HolderReading, Ledger, LedgerAccount, Priority, ProcessReading, Reading, Reclaimer,
    RefusalReading, RemoteCall, RemoteListener, Reservation, ReserveFuture, ReserveOptions, Tenant, TenantReading,
    UsagePublisher, UsageReading, WaitingReading,
};
pub use attachment::ProcessUsage;
pub use error::LedgerError;
pub use refusal::{RefusalCounts, RefusalReason};
pub use remote::{RemoteError, RemoteReport, RemoteRequest};
pub use subject::Subject;
pub use waits::WaitHistogram;
