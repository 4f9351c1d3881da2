//! Steps at which a test ends the process. Without the feature `steps` there is nothing here.

/// Notes that a call has come as far as `step`.
#[cfg(not(feature = "steps"))]
#[inline(always)]
pub(crate) const fn passed(_: &str) {}

/// Ends the process at the step whose number is in `BURSAR_ENFORCE_ABORT_AT`, counted from 0.
#[cfg(feature = "steps")]
pub(crate) fn passed(_: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static AT: OnceLock<Option<u64>> = OnceLock::new();
    static PASSED: AtomicU64 = AtomicU64::new(0);
    let at = AT.get_or_init(|| std::env::var("BURSAR_ENFORCE_ABORT_AT").ok()?.parse().ok());
    if *at == Some(PASSED.fetch_add(1, Relaxed)) {
        std::process::abort();
    }
}
