//! The state of shared devices, watched: who holds what, and since when.
//!
//! A [`Sampler`] samples the [`State`] of a machine: every ledger and the driver, at one moment. A [`History`] keeps what
//! was sampled, bounded and thinned with age. `bursar serve` and `bursar top` are made of these.

#[doc(inline)]
pub use bursar_metrics::{
    DeviceHistory, DeviceSample, DeviceState, Figures, History, HolderState, LedgerState, Party, PartyKind,
    ProcessState, QueuedState, ReasonCount, RefusalState, Sampler, Share, State, TenantState, Thinning,
    UnreadableLedger, UnreadableReason, UsageState, WaitBucket, WaitState,
};
