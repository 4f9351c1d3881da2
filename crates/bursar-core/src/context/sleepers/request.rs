//! Requests to sleep and to wake, and who knows the blocks that they mean.
//!
//! The blocks of a tag come and go while a request is on its way. Which of them are meant is decided where a pool says that
//! they sleep, with the record of tags held: what was freed before is no part of it, and what is freed later is freed asleep.

use crate::{AllocTag, Bytes, DevicePtr};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The identity of a request to sleep, by which [it alone is woken](WakeRequest::slept_by) or [undone](super::Sleeper::undo_sleep).
///
/// ```
/// use bursar::memory::SleepRequestId;
///
/// assert_ne!(SleepRequestId::unique(), SleepRequestId::unique());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SleepRequestId(u64);

impl SleepRequestId {
    /// Makes one that no other request of the process has.
    #[must_use]
    pub fn unique() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Relaxed) + 1)
    }
}

/// A request to a [`Sleeper`](super::Sleeper): which of its memory sleeps, and what becomes of the contents.
///
/// ```
/// use bursar::memory::SleepRequest;
/// use std::time::Duration;
///
/// let request = SleepRequest { patience: Duration::from_secs(1), ..SleepRequest::default() };
/// assert!(request.only.is_none(), "everything sleeps");
/// ```
#[derive(Clone, Debug)]
pub struct SleepRequest {
    /// The identity of this request: the same for all sleepers that are put to sleep together, and another each time.
    pub id: SleepRequestId,
    /// The blocks that sleep, by the tags by which they are woken; `None` where everything does. They are those of whoever asks, who
    /// frees none of them before the answer.
    pub only: Option<Vec<(AllocTag, Vec<Range<DevicePtr>>)>>,
    /// The blocks whose contents are given up, unless they sleep already: of whoever asks, too.
    pub discard: Vec<Range<DevicePtr>>,
    /// The tags whose blocks are meant beside those, whoever has them and frees them meanwhile.
    pub tagged: Option<TaggedBlocks>,
    /// Set where all contents are given up but those of what sleeps already.
    pub discard_all: bool,
    /// Set where the limits keep what was charged, so that waking is not refused; what sleeps already without its place takes one.
    pub keep_place: bool,
    /// The longest time to wait for uses and streams.
    pub patience: Duration,
    /// The length of the pieces of host memory that contents are packed into.
    pub piece: Bytes,
}

impl Default for SleepRequest {
    fn default() -> Self {
        Self {
            id: SleepRequestId::unique(),
            only: None,
            discard: Vec::new(),
            tagged: None,
            discard_all: false,
            keep_place: false,
            patience: Duration::from_secs(60),
            piece: Bytes::mib(64),
        }
    }
}

impl SleepRequest {
    /// Returns the tags that are to sleep; `None` where everything is.
    #[must_use]
    pub fn tags(&self) -> Option<Vec<AllocTag>> {
        let looked_up = self.tagged.as_ref().map_or(&[][..], |tagged| &tagged.only);
        let is_whole = self.only.is_none() && looked_up.is_empty();
        let given = self.only.iter().flatten().map(|(tag, _)| *tag);
        (!is_whole).then(|| given.chain(looked_up.iter().copied()).collect())
    }

    /// Calls `decide` with the blocks that are meant: those that sleep by tag, `None` where everything does, and those whose
    /// contents are given up. None of them is freed before it returns.
    ///
    /// ```
    /// use bursar::memory::SleepRequest;
    ///
    /// SleepRequest::default().decide(&mut |only, discard| assert!(only.is_none() && discard.is_empty()));
    /// ```
    pub fn decide(&self, decide: &mut SleepDecision<'_>) {
        let Some(TaggedBlocks { only, discard, record }) = &self.tagged else {
            return decide(self.only.as_deref(), &self.discard);
        };
        record.hold(&mut |blocks_of| {
            let of_tag = |&tag: &AllocTag| (tag, blocks_of(tag));
            let mut sleeping = self.only.clone();
            if !only.is_empty() {
                sleeping.get_or_insert_default().extend(only.iter().map(of_tag));
            }
            let given_up = discard.iter().flat_map(|&tag| blocks_of(tag));
            let given_up: Vec<_> = self.discard.iter().cloned().chain(given_up).collect();
            decide(sleeping.as_deref(), &given_up);
        });
    }
}

/// A function that decides what sleeps: of the blocks that sleep by tag, and of those whose contents are given up.
pub type SleepDecision<'a> = dyn FnMut(Option<&[(AllocTag, Vec<Range<DevicePtr>>)]>, &[Range<DevicePtr>]) + 'a;

/// Tags whose blocks a [`SleepRequest`] means, as they are in the moment in which it is decided what sleeps.
///
/// ```
/// # use bursar::memory::{TagRecord, TaggedBlocks};
/// # use bursar::tag;
/// # use std::sync::Arc;
/// # fn show(record: Arc<dyn TagRecord>) {
/// let tagged = TaggedBlocks { only: vec![tag!("weights")], discard: Vec::new(), record };
/// # let _ = tagged;
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TaggedBlocks {
    /// The tags whose blocks sleep; where these are none, and the request names none, everything does.
    pub only: Vec<AllocTag>,
    /// The tags whose contents are given up.
    pub discard: Vec<AllocTag>,
    /// The record of which blocks are of which tag.
    pub record: Arc<dyn TagRecord>,
}

/// A function that returns the blocks of a tag.
pub type BlocksOf<'a> = dyn Fn(AllocTag) -> Vec<Range<DevicePtr>> + 'a;

/// A record of which blocks are of which tag. A block is in it only while it is its user's: it is entered once it was granted,
/// and taken out before it is freed.
///
/// ```
/// use bursar::memory::{AllocTag, BlocksOf, DevicePtr, TagRecord};
/// use std::collections::BTreeMap;
/// use std::sync::Mutex;
///
/// #[derive(Debug, Default)]
/// struct Book(Mutex<BTreeMap<u64, (u64, AllocTag)>>);
///
/// impl TagRecord for Book {
///     fn hold(&self, look: &mut dyn FnMut(&BlocksOf<'_>)) {
///         let blocks = self.0.lock().unwrap();
///         look(&|tag| {
///             let own = blocks.iter().filter(|(_, (_, of))| *of == tag);
///             own.map(|(&at, &(bytes, _))| DevicePtr(at)..DevicePtr(at + bytes)).collect()
///         });
///     }
/// }
/// ```
pub trait TagRecord: fmt::Debug + Send + Sync {
    /// Calls `look` once, and lets no block be taken out meanwhile: so what it is told of stays what it was until whoever looks has
    /// said that it sleeps, and a free comes after that. `look` takes locks of pools, which must not be held here.
    fn hold(&self, look: &mut dyn FnMut(&BlocksOf<'_>));
}

/// A request to a [`Sleeper`](super::Sleeper) to wake.
///
/// ```
/// use bursar::memory::WakeRequest;
///
/// assert!(WakeRequest::default().only.is_empty(), "everything wakes");
/// ```
#[derive(Clone, Debug, Default)]
pub struct WakeRequest {
    /// The tags whose blocks wake, which were put to sleep by themselves; none where everything does.
    pub only: Vec<AllocTag>,
    /// The request to sleep of which everything wakes, and nothing that others put to sleep before or since; then tags mean nothing.
    pub slept_by: Option<SleepRequestId>,
    /// The longest time to wait until the limits have room: not at all by default.
    pub patience: Duration,
}
