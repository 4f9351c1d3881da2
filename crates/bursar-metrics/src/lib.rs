//! The state of shared devices, watched: who holds what at one moment, over time, and for those who scrape.
//!
//! - [`State`] is everything that the ledgers and the driver say at one moment, made by a [`Sampler`]. A ledger that cannot
//!   be read is [`Unreadable`](DeviceState::Unreadable) there, with the reason, and never zeros.
//! - [`History`] is a bounded ring of samples, thinned with age; [`HistoryFile`] keeps it across restarts.
//! - [`Exposition`] writes the formats that scrapers read, of a machine by [`State::expose`].
//! - [`Server`] serves them over HTTP, with every request bounded.
//!
//! Watching changes nothing: ledgers are read from their files, without being opened.
//!
//! # Words
//! - *sample*: a device in a state, reduced to what history keeps of it.
//! - *party*: a process or a tenant, in history.
#![forbid(unsafe_code)]

mod exposition;
mod history;
mod http;
mod sampler;
mod state;

pub use exposition::{Exposition, ExpositionFormat, Family, MetricKind, MetricValue};
pub use history::{
    DeviceHistory, DeviceSample, DeviceView, Figures, History, HistoryFile, HistoryFileError, HistoryQuery,
    HistoryView, Party, PartyKind, PartyView, Share, Thinning,
};
pub use http::{
    AccessToken, HttpStatus, ReadAccess, Request, RequestError, Response, Server, ServerOptions, TokenError,
};
pub use sampler::Sampler;
pub use state::{
    DeviceState, HolderState, LedgerState, ProcessState, QueuedState, RefusalState, State, TenantState,
    UnreadableLedger, UnreadableReason, UsageState, WaitBucket, WaitState,
};
