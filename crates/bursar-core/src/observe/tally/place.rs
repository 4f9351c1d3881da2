//! Which devices and tags are told apart.

use crate::{AllocTag, DeviceId};

/// How many tags and devices each thread has a place for from the start.
pub(super) const NEAR_TAGS: usize = 64;
pub(super) const NEAR_DEVICES: usize = 8;
/// How many tags are told apart; those beyond share the last place.
pub(super) const TAGS: usize = NEAR_TAGS * NEAR_TAGS;
/// How many devices are told apart; those beyond share the last place.
pub(super) const DEVICES: usize = NEAR_DEVICES * NEAR_DEVICES;

/// Where something is counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) device: usize,
    pub(super) tag: usize,
}

impl Place {
    /// Of a device and a tag, whether or not they are told apart.
    #[inline]
    pub(super) const fn of(device: DeviceId, tag: AllocTag) -> Self {
        Self { device: device.0 as usize, tag: tag.index() }
    }

    /// This, if every thread has a place for it from the start.
    #[inline]
    pub(super) fn near(self) -> Option<Self> {
        (self.device < NEAR_DEVICES && self.tag < NEAR_TAGS).then_some(self)
    }

    /// Which of those that are near it is.
    #[inline]
    pub(super) const fn index(self) -> usize {
        self.device * NEAR_TAGS + self.tag
    }

    /// The one that what is not told apart shares.
    pub(super) fn bounded(self) -> Self {
        Self { device: self.device.min(DEVICES - 1), tag: self.tag.min(TAGS - 1) }
    }
}
