//! Records of what happens to a device's memory.

use crate::{AllocTag, Bytes, DeviceBlock, DeviceId, DevicePtr, Error, Generation, Stream};
use std::fmt;

/// What happened.
///
/// ```
/// use bursar_core::Action;
///
/// assert_eq!(Action::Refuse.to_string(), "refuse");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Action {
    /// A stack granted a block. With an error, it did not: it refused the free of one, which had been told already, and
    /// the block is still there.
    Allocate,
    /// A stack took a block back.
    Free,
    /// A limit had no room for a request.
    Refuse,
    /// A stack could not grant a request, whatever the reason.
    Fail,
    /// Frees were found to have completed.
    Reap,
    /// A pool took more memory from below.
    Grow,
    /// A pool moved free memory to where it was needed.
    Remap,
    /// A pool gave memory back.
    Trim,
    /// Work that uses a block was submitted.
    Use,
}

impl Action {
    pub(super) const ALL: [(Self, &'static str); 9] = [
        (Self::Allocate, "allocate"),
        (Self::Free, "free"),
        (Self::Refuse, "refuse"),
        (Self::Fail, "fail"),
        (Self::Reap, "reap"),
        (Self::Grow, "grow"),
        (Self::Remap, "remap"),
        (Self::Trim, "trim"),
        (Self::Use, "use"),
    ];
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

/// A set of actions.
///
/// ```
/// use bursar_core::{Action, Actions};
///
/// let some = Actions::of(&[Action::Allocate, Action::Free]);
/// assert!(some.contains(Action::Free) && !some.contains(Action::Use));
/// assert!(Actions::ALL.contains(Action::Use));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Actions(pub(super) u32);

impl Actions {
    /// All of them.
    pub const ALL: Self = Self(u32::MAX);

    /// The actions listed.
    pub const fn of(actions: &[Action]) -> Self {
        let (mut set, mut at) = (0, 0);
        while at < actions.len() {
            set |= 1 << actions[at] as u8;
            at += 1;
        }
        Self(set)
    }

    /// Those that are not among `others`.
    pub(super) const fn except(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// Whether `action` is among them.
    #[inline]
    pub const fn contains(self, action: Action) -> bool {
        self.0 & (1 << action as u8) != 0
    }
}

/// One thing that happened. Time and thread are those of the call that delivers it: an observer that wants them reads
/// them there, so that nobody else pays for a clock.
///
/// ```
/// use bursar_core::{Action, DeviceId, Record};
///
/// let record = Record::new(Action::Reap, DeviceId(0));
/// assert!(record.error.is_none());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// What happened.
    pub action: Action,
    /// The device it happened on.
    pub device: DeviceId,
    /// The stream it was ordered on, where one was named.
    pub stream: Option<Stream>,
    /// What the memory is for.
    pub tag: AllocTag,
    /// Where the memory begins, where there is any.
    pub ptr: DevicePtr,
    /// What was granted, freed or found complete.
    pub granted: Bytes,
    /// What was asked for.
    pub asked: Bytes,
    /// Which life of the address it is, where there is a block.
    pub generation: Option<Generation>,
    /// Why it went wrong, if it did.
    pub error: Option<&'a Error>,
}

impl Record<'_> {
    /// A record with nothing but what happened and where.
    #[inline]
    pub const fn new(action: Action, device: DeviceId) -> Self {
        Self {
            action,
            device,
            stream: None,
            tag: AllocTag::UNTAGGED,
            ptr: DevicePtr(0),
            granted: Bytes::ZERO,
            asked: Bytes::ZERO,
            generation: None,
            error: None,
        }
    }

    /// What happened to a block on a stream.
    #[inline]
    pub(super) const fn of(block: &DeviceBlock, action: Action, stream: Stream) -> Self {
        Self {
            stream: Some(stream),
            tag: block.tag(),
            ptr: block.ptr(),
            granted: block.granted(),
            asked: block.requested(),
            generation: Some(block.generation()),
            ..Self::new(action, block.device())
        }
    }
}
