//! The state of shared devices, watched: who holds what at one moment, over time, and for those who scrape.
//!
//! - [`State`] is everything that the ledgers and the driver say at one moment, made by a [`Sampler`]. A ledger that cannot
//!   be read is [`Unreadable`](DeviceState::Unreadable) there, with the reason, and never zeros.
//! - [`History`] is a bounded ring of samples, thinned with age.
//!
//! Watching changes nothing: ledgers are read from their files, without being opened.
//!
//! # Words
//! - *sample*: a device in a state, reduced to what history keeps of it.
//! - *party*: a process or a tenant, in history.
#![forbid(unsafe_code)]

mod history;
mod sampler;
mod state;

pub use history::{DeviceHistory, DeviceSample, Figures, History, Party, PartyKind, Share, Thinning};
pub use sampler::Sampler;
pub use state::{
    DeviceState, HolderState, LedgerState, ProcessState, QueuedState, ReasonCount, RefusalState, State, TenantState,
    UnreadableLedger, UnreadableReason, UsageState, WaitBucket, WaitState,
};
