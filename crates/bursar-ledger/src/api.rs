//! The handles that programs use: ledgers, tenants, accounts, reservations and delegations, and the readings of a
//! ledger.

mod account;
mod available;
mod claims;
mod delegation;
mod ledger;
mod options;
mod publish;
mod reading;
mod reclaim;
mod remote;
mod reservation;
mod reserve;
mod reserve_future;
mod tenant;

pub use account::LedgerAccount;
pub use available::Availability;
pub use delegation::Delegation;
#[cfg(test)]
pub(crate) use delegation::from_token;
pub use ledger::Ledger;
pub use options::{Priority, ReserveOptions};
pub use publish::UsagePublisher;
pub use reading::{
    HolderReading, ProcessReading, Reading, RefusalReading, TenantReading, UsageReading, WaitingReading,
};
pub use reclaim::Reclaimer;
pub use remote::{RemoteCall, RemoteListener};
pub use reservation::Reservation;
pub use reserve_future::ReserveFuture;
pub use tenant::Tenant;
