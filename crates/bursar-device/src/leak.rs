//! Reports of memory that is still held when a device is closed.

use bursar_core::{AllocTag, Bytes, DeviceId, Error, Holding, Stream};
use std::cmp::Reverse;
use std::fmt;
use std::panic::Location;

/// The memory that was allocated at one place in the program and is still held.
///
/// ```
/// use bursar::device::Site;
/// use bursar::{Bytes, tag};
///
/// let site = Site { location: None, tag: tag!("weights"), bytes: Bytes::mib(1), blocks: 2 };
/// assert_eq!(site.to_string(), "an unknown place: 1 MiB in 2 blocks for weights");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The place of the allocation; `None` where it was not made through a [`Gpu`](crate::Gpu) that recorded it.
    pub location: Option<&'static Location<'static>>,
    /// The tag of the allocations.
    pub tag: AllocTag,
    /// The bytes granted.
    pub bytes: Bytes,
    /// The number of blocks.
    pub blocks: u64,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { location, tag, bytes, blocks } = self;
        match location {
            Some(location) => write!(f, "{location}")?,
            None => f.write_str("an unknown place")?,
        }
        write!(f, ": {bytes} in {blocks} block{} for {tag}", if *blocks == 1 { "" } else { "s" })
    }
}

/// A block whose buffer is gone and whose free was refused: it waits to be tried again.
///
/// ```
/// use bursar::device::{DeviceContext, WaitingFree};
/// use bursar::error::StreamMisuse;
/// use bursar::sim::Sim;
/// use bursar::{Bytes, DeviceId, Error, tag};
///
/// let stream = DeviceContext::open(Sim::immediate(), DeviceId(0))?.create_stream(0)?;
/// let cause = Error::StreamMisuse { device: DeviceId(0), stream: stream.number(), why: StreamMisuse::Capturing };
/// let free = WaitingFree { tag: tag!("batch"), bytes: Bytes::mib(1), stream, cause };
/// assert_eq!(
///     free.to_string(),
///     "batch: 1 MiB waits to be freed: stream 1 cannot be used on gpu0: it is being captured into a graph"
/// );
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingFree {
    /// The tag of the allocation.
    pub tag: AllocTag,
    /// The bytes granted.
    pub bytes: Bytes,
    /// The stream whose order the free follows.
    pub stream: Stream,
    /// The last refusal.
    pub cause: Error,
}

impl fmt::Display for WaitingFree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tag, bytes, cause, .. } = self;
        write!(f, "{tag}: {bytes} waits to be freed: {cause}")
    }
}

/// The memory of one device that is held through one [`Gpu`](crate::Gpu) handle and its clones.
///
/// It tells apart what the program holds, which is in [`holders`](Self::holders) and [`sites`](Self::sites), what it has
/// dropped but could not be freed, which [waits](Self::waiting), and what it has freed but is not back yet, which is
/// [uncounted](Self::uncounted), with the [failure](Self::failure) of the driver where there was one.
///
/// ```
/// use bursar::device::Leak;
/// use bursar::{Bytes, DeviceId};
///
/// let leak = Leak::new(DeviceId(0), Bytes::mib(3), Vec::new(), Vec::new());
/// assert_eq!(leak.to_string(), "3 MiB on gpu0, and nobody counts who holds it");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leak {
    /// The device.
    pub device: DeviceId,
    /// All bytes that are held there.
    pub held: Bytes,
    /// The holders by tag, the largest first; empty where nobody counts.
    pub holders: Vec<Holding>,
    /// The places by tag, the largest first; empty where they were not recorded.
    pub sites: Vec<Site>,
    /// The frees that were refused and are no holder's any more, the largest first.
    pub waiting: Vec<WaitingFree>,
    /// The failure that kept freed memory from being given back, when that was last tried.
    pub failure: Option<Error>,
}

impl Leak {
    /// Makes a report from holders and places in any order.
    pub fn new(device: DeviceId, held: Bytes, mut holders: Vec<Holding>, mut sites: Vec<Site>) -> Self {
        holders.sort_by_key(|holding| Reverse(holding.bytes));
        sites.sort_by_key(|site| (Reverse(site.bytes), site.location));
        Self { device, held, holders, sites, waiting: Vec::new(), failure: None }
    }

    /// Returns the bytes of frees that were refused and wait.
    pub fn waiting_bytes(&self) -> Bytes {
        sum(self.waiting.iter().map(|free| free.bytes))
    }

    /// Returns the bytes that no holder accounts for and no free waits for: blocks from before counting began, and frees
    /// that have not run or that the driver failed.
    pub fn uncounted(&self) -> Bytes {
        let by_tag = sum(self.holders.iter().map(|holding| holding.bytes));
        self.held.saturating_sub(by_tag).saturating_sub(self.waiting_bytes())
    }
}

fn sum(sizes: impl Iterator<Item = Bytes>) -> Bytes {
    sizes.fold(Bytes::ZERO, Bytes::saturating_add)
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, held, holders, sites, waiting, failure } = self;
        write!(f, "{held} on {device}")?;
        if holders.is_empty() && sites.is_empty() && waiting.is_empty() && failure.is_none() {
            return f.write_str(", and nobody counts who holds it");
        }
        holders.iter().try_for_each(|holding| write!(f, "\n  {holding}"))?;
        waiting.iter().try_for_each(|free| write!(f, "\n  {free}"))?;
        if self.uncounted() > Bytes::ZERO {
            write!(f, "\n  {} that nobody counted", self.uncounted())?;
        }
        if let Some(failure) = failure {
            write!(f, "\n  freed memory could not be given back: {failure}")?;
        }
        sites.iter().try_for_each(|site| write!(f, "\n  at {site}"))
    }
}

/// The memory that was still held when a [`Gpu`](crate::Gpu) or a [`DevicePool`](crate::DevicePool) was closed.
///
/// ```
/// use bursar::device::{Leak, LeakReport};
/// use bursar::{Bytes, DeviceId};
///
/// let leak = Leak::new(DeviceId(1), Bytes::mib(3), Vec::new(), Vec::new());
/// let report = LeakReport { leaks: vec![leak] };
/// assert!(report.to_string().starts_with("memory is still held: 3 MiB on gpu1"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeakReport {
    /// One report for each device that something is held on.
    pub leaks: Vec<Leak>,
}

impl fmt::Display for LeakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory is still held: ")?;
        for (at, leak) in self.leaks.iter().enumerate() {
            let between = if at == 0 { "" } else { "\n" };
            write!(f, "{between}{leak}")?;
        }
        Ok(())
    }
}

impl std::error::Error for LeakReport {}
