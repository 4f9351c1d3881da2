//! One budget for everyone on a device: accounts across threads, tenants and processes.
//!
//! A [`Ledger`] is about one physical device. All processes of a user that open the ledger of the same device share it
//! through a small file, with no daemon; what they charge together never exceeds its limit, and what a process held is free
//! again when it has died, however it died. A [`Reservation`] sets memory aside before it is allocated. Both are
//! [`Account`](bursar_core::Account)s, so that a budget can charge them.
//!
//! ```
//! use bursar_core::{Account, Bytes};
//! use bursar_ledger::Ledger;
//!
//! # fn main() -> bursar_core::Result<()> {
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
//! # What it costs
//! A charge that an account has credit for, and every charge of a reservation, is one compare-and-swap on a word of the
//! file, with no lock and no system call. Credit is at most 64 MiB, or a 64th of the device, and is called in before
//! anyone is refused.
//!
//! # Life and death
//! Each process locks a byte of the file, and the kernel drops that lock with the process. Neither process numbers nor
//! clocks play a part. A process that is stopped lives. In a forked child every handle answers
//! [`Forked`](bursar_core::Error::Forked); a child made by the bare system call `clone`, which runs no handlers of the C
//! library, keeps its parent's charge until it ends as well. The file must not be cut short while in use: the kernel ends
//! processes that touch what is gone. While a ledger is in use, no other is opened or made under its path, even if it was
//! moved or removed: a folder shared by containers with roots of their own must not be moved, though.
//!
//! Who waits is woken when another process releases, and when one dies: the kernel says so through inotify. Where that
//! cannot be had, those who wait look for the dead every second. Nobody tells when a program outside Bursar gives memory
//! back, so those who wait on a measured ledger measure four times a second.

mod api;
mod attachment;
#[doc(hidden)]
pub mod book;
mod error;
#[doc(hidden)]
pub mod format;
#[cfg(test)]
mod model;
mod storage;
mod subject;
mod system;

pub use api::{
    Delegation, Ledger, LedgerAccount, Priority, ProcessReading, Reading, Reclaimer, Reservation, Reserving, Tenant,
    TenantReading, WaitingReading,
};
pub use error::LedgerError;
pub use subject::Subject;
