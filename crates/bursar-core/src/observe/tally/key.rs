//! The devices and tags that are counted apart.

use crate::{AllocTag, DeviceId};

/// The number of tags and devices that each shard has counts for from the start: the near ones.
pub(super) const NEAR_TAGS: usize = 64;
pub(super) const NEAR_DEVICES: usize = 8;
/// The number of tags that are counted apart; those beyond share the last key.
pub(super) const TAGS: usize = NEAR_TAGS * NEAR_TAGS;
/// The number of devices that are counted apart; those beyond share the last key.
pub(super) const DEVICES: usize = NEAR_DEVICES * NEAR_DEVICES;

/// The device and tag under which a block is counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) device: usize,
    pub(super) tag: usize,
}

impl Key {
    /// Makes the key of a device and a tag, whether or not they are counted apart.
    #[inline]
    pub(super) const fn of(device: DeviceId, tag: AllocTag) -> Self {
        Self { device: device.0 as usize, tag: tag.index() }
    }

    /// Returns the key if every shard has counts for it from the start.
    #[inline]
    pub(super) fn near(self) -> Option<Self> {
        (self.device < NEAR_DEVICES && self.tag < NEAR_TAGS).then_some(self)
    }

    /// Returns its index among the near keys.
    #[inline]
    pub(super) const fn index(self) -> usize {
        self.device * NEAR_TAGS + self.tag
    }

    /// Returns the key that it is counted under: its own, or the one that keys beyond the bounds share.
    pub(super) fn bounded(self) -> Self {
        Self { device: self.device.min(DEVICES - 1), tag: self.tag.min(TAGS - 1) }
    }
}
