//! The handles that programs use.

mod account;
mod available;
mod delegation;
mod ledger;
mod reading;
mod reclaim;
mod reservation;
mod reserve;
mod reserve_future;
mod tenant;

pub use account::LedgerAccount;
pub use delegation::Delegation;
#[cfg(test)]
pub(crate) use delegation::drawn_by;
pub use ledger::Ledger;
pub use reading::{ProcessReading, Reading, TenantReading, WaitingReading};
pub use reclaim::Reclaimer;
pub use reservation::Reservation;
pub use reserve::Priority;
pub use reserve_future::Reserving;
pub use tenant::Tenant;
