//! The end of a pool, and what is left of one that could not give everything back.

use super::PagePoolResource;
use super::giving::Release;
use super::hands;
use super::runs::UNIT;
use super::shelf::Shelf;
use bursar_core::{Bytes, DeviceContext, Error, Frame, FrameRelease, FrameSource, Remains};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

impl<F: FrameSource> Drop for PagePoolResource<F> {
    fn drop(&mut self) {
        let (shelf, addresses) = (self.shelf.clone(), self.addresses.clone());
        let mut estate = Estate { shelf, addresses, release: self.source.release() };
        estate.wind_up(&self.context, Duration::MAX, &|frame| self.source.release_frame(frame));
        self.context.leave(estate);
    }
}

/// The frames of a pool that is gone, and its addresses.
struct Estate {
    shelf: Arc<Shelf>,
    /// In units; none once they were given back.
    addresses: Range<u64>,
    release: Arc<dyn FrameRelease>,
}

impl Estate {
    /// Gives back what nobody uses any more, waiting for that as far as `patience` goes; returns how much went. The frames
    /// of blocks that are still out stay, and the addresses with them.
    fn wind_up(&mut self, context: &DeviceContext, patience: Duration, release: Release<'_>) -> Bytes {
        if let Err(Error::Driver(error)) = self.shelf.wait_for_pending(context, patience) {
            context.fault().record(error);
        }
        let given = self.shelf.give_back(context, 0, release);
        let (events, is_empty) = {
            let mut middle = self.shelf.middle();
            (middle.take_events(), middle.ground.held() == 0)
        };
        events.into_iter().for_each(|event| hands::give_back(context, event));
        let Range { start, end } = self.addresses;
        if is_empty && start < end {
            match hands::release_addresses(context, start, end - start) {
                Ok(()) => self.addresses = 0..0,
                Err(error) => context.fault().record(error),
            }
        }
        given
    }
}

impl Remains for Estate {
    fn give_back(&mut self, context: &DeviceContext, patience: Duration) -> Bytes {
        let release = self.release.clone();
        self.wind_up(context, patience, &move |frame: Frame| release.release(context, frame))
    }

    fn bytes(&self) -> Bytes {
        Bytes(self.shelf.middle().ground.held() * UNIT)
    }

    /// Whether nothing can ever come back: what blocks hold that are still out cannot.
    fn is_empty(&self) -> bool {
        let middle = self.shelf.middle();
        !middle.has_leftovers() && (middle.ground.held() > 0 || self.addresses.is_empty())
    }
}

impl fmt::Debug for Estate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Estate").field("shelf", &self.shelf).finish_non_exhaustive()
    }
}
