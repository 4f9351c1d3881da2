//! Records of what happens to a device's memory.

use crate::{AllocTag, Bytes, DeviceBlock, DeviceId, DevicePtr, Error, Generation, Stream};
use std::fmt;

/// A kind of event.
///
/// ```
/// use bursar::observe::Action;
///
/// assert_eq!(Action::Refuse.to_string(), "refuse");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Action {
    /// A stack granted a block. With an error, it refused the free of one, which had been recorded already, and the
    /// block is still there.
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
/// use bursar::observe::{Action, Actions};
///
/// let some = Actions::of(&[Action::Allocate, Action::Free]);
/// assert!(some.contains(Action::Free) && !some.contains(Action::Use));
/// assert!(Actions::ALL.contains(Action::Use));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Actions(pub(super) u32);

impl Actions {
    /// All actions.
    pub const ALL: Self = Self(u32::MAX);

    /// Makes a set of the actions listed.
    pub const fn of(actions: &[Action]) -> Self {
        let (mut set, mut at) = (0, 0);
        while at < actions.len() {
            set |= 1 << actions[at] as u8;
            at += 1;
        }
        Self(set)
    }

    /// Returns the actions that are not in `others`.
    pub(super) const fn except(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// Returns whether `action` is in the set.
    #[inline]
    pub const fn contains(self, action: Action) -> bool {
        self.0 & (1 << action as u8) != 0
    }
}

/// A record of one event. Time and thread are those of the call that delivers it: an observer that wants them reads
/// them there, so that nobody else pays for a clock.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::observe::{Action, Record};
///
/// let record = Record::new(Action::Reap, DeviceId(0));
/// assert!(record.error.is_none());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The kind of event.
    pub action: Action,
    /// The device it happened on.
    pub device: DeviceId,
    /// The stream it was ordered on, where one was named.
    pub stream: Option<Stream>,
    /// The tag of the memory.
    pub tag: AllocTag,
    /// The address of the memory, where there is any.
    pub ptr: DevicePtr,
    /// The bytes that were granted, freed or found complete.
    pub granted: Bytes,
    /// The requested bytes.
    pub asked: Bytes,
    /// The generation of the block, where there is one.
    pub generation: Option<Generation>,
    /// The error, where there is one.
    pub error: Option<&'a Error>,
}

impl Record<'_> {
    /// Makes a record with nothing but the action and the device.
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

    /// Makes a record of a block on a stream.
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
