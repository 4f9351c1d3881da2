//! The state of shared devices, watched: who holds what, and since when.
//!
//! For a machine, a [`Sampler`] samples the [`State`]: every ledger and the driver, at one moment. A [`History`] keeps what
//! was sampled, bounded and thinned with age. `bursar serve` and `bursar top` are made of these.
//!
//! For people who scrape processes rather than machines, [`render`] and [`serve`] expose what this process's own pools and
//! limits hold, in one call.

mod process;

pub use process::{render, serve};

#[doc(inline)]
pub use bursar_metrics::{
    AccessToken, DeviceHistory, DeviceSample, DeviceState, DeviceView, Exposition, ExpositionFormat, Family, Figures,
    History, HistoryFile, HistoryFileError, HistoryQuery, HistoryView, HolderState, HttpStatus, LedgerState,
    MetricKind, MetricValue, Party, PartyKind, PartyView, ProcessState, QueuedState, ReadAccess, RefusalState, Request,
    RequestError, Response, Sampler, Server, ServerOptions, Share, State, TenantState, Thinning, TokenError,
    UnreadableLedger, UnreadableReason, UsageState, WaitBucket, WaitState,
};
