//! The use that a process makes of what it holds, and the times for which requests waited.

use serde::{Deserialize, Serialize};

/// The use that a process makes of what it holds, as it last published that.
///
/// ```
/// use bursar::metrics::UsageState;
///
/// let usage = UsageState { live: 3, cached: 1, ..UsageState::default() };
/// assert_eq!(serde_json::to_value(&usage)?["cached"], 1);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageState {
    /// The bytes of its live blocks.
    pub live: u64,
    /// The bytes that its pools hold and nobody uses.
    pub cached: u64,
    /// The most bytes that were live at a time.
    pub peak: u64,
    /// Its largest holders by tag, the largest first.
    pub holders: Vec<HolderState>,
    /// When it was published, in milliseconds since 1970.
    pub published_ms: u64,
}

/// The bytes that are live under one tag.
///
/// ```
/// let holder = bursar::metrics::HolderState { tag: "weights".into(), live: 12 << 30 };
/// assert_eq!(holder.tag, "weights");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderState {
    /// The tag.
    pub tag: String,
    /// The bytes of its live blocks.
    pub live: u64,
}

/// The times for which requests waited, as a histogram.
///
/// ```
/// use bursar::metrics::{WaitBucket, WaitState};
///
/// let buckets = vec![WaitBucket { le_seconds: 0.1, count: 2 }, WaitBucket { le_seconds: 1.0, count: 3 }];
/// let waits = WaitState { buckets, sum_seconds: 5.5, count: 4 };
/// assert_eq!(waits.count - waits.buckets[1].count, 1, "one waited for more than a second");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WaitState {
    /// The buckets, each with the requests of those before it.
    pub buckets: Vec<WaitBucket>,
    /// The times of all requests together, in seconds.
    pub sum_seconds: f64,
    /// The number of requests.
    pub count: u64,
}

/// The number of requests that waited at most so long.
///
/// ```
/// assert_eq!(bursar::metrics::WaitBucket { le_seconds: 0.1, count: 2 }.count, 2);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WaitBucket {
    /// The time, in seconds.
    pub le_seconds: f64,
    /// The number of requests that waited no longer.
    pub count: u64,
}
