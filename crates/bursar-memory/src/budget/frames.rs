//! Frames under a budget, and their way back.

use super::{ChargePolicy, GlobalDeviceBudgetResource};
use bursar_core::{Bytes, DeviceContext, Frame, FrameRelease, FrameSource, Holder, RefusedFrame, Result};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

#[deny(clippy::missing_trait_methods)]
impl<R: FrameSource, P: ChargePolicy> FrameSource for GlobalDeviceBudgetResource<R, P> {
    fn frame_granularity(&self) -> Bytes {
        self.inner.frame_granularity()
    }

    fn granted_frame(&self, bytes: u64) -> Result<Bytes> {
        self.inner.granted_frame(bytes)
    }

    /// Charges a frame and makes it. A refusal is not recorded here: it is for whoever asked for frames to say whether
    /// a request of theirs failed for want of one.
    fn create_frame(&self, bytes: u64) -> Result<Frame> {
        let granted = self.inner.granted_frame(bytes)?;
        self.admit(granted)?;
        self.conclude(granted, self.inner.create_frame(bytes))
    }

    fn release_frame(&self, frame: Frame) -> Result<(), RefusedFrame> {
        let outcome = self.inner.release_frame(frame);
        self.pay_back();
        outcome
    }

    fn release(&self) -> Arc<dyn FrameRelease> {
        let (below, inner) = (self.inner.release(), Arc::downgrade(&self.inner));
        Arc::new(ChargedRelease { below, inner, policy: self.policy.clone() })
    }

    fn release_frame_keeping_place(&self, frame: Frame) -> Result<(), RefusedFrame> {
        let bytes = frame.bytes();
        self.policy.keep_place(bytes);
        let outcome = self.inner.release_frame_keeping_place(frame);
        if outcome.is_err() {
            self.policy.take_back_place(bytes);
        }
        // Others may have released as much meanwhile, and found it claimed for the place.
        self.pay_back();
        outcome
    }

    fn take_place(&self, bytes: Bytes, patience: Duration) -> Result<()> {
        self.policy.take_place(&*self.inner, bytes, patience)?;
        self.inner.take_place(bytes, patience).inspect_err(|_| self.policy.give_up_place(bytes))
    }

    fn give_up_place(&self, bytes: Bytes) {
        self.inner.give_up_place(bytes);
        self.policy.give_up_place(bytes);
    }

    /// Makes a frame that is charged already.
    fn create_frame_in_place(&self, bytes: Bytes) -> Result<Frame> {
        self.inner.create_frame_in_place(bytes)
    }
}

/// The way back for frames that stay charged until they are released, also when the budget is gone.
struct ChargedRelease<R, P> {
    below: Arc<dyn FrameRelease>,
    inner: Weak<R>,
    policy: Arc<P>,
}

impl<R, P> fmt::Debug for ChargedRelease<R, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChargedRelease").field("below", &self.below).finish_non_exhaustive()
    }
}

impl<R: Holder, P: ChargePolicy> FrameRelease for ChargedRelease<R, P> {
    fn release(&self, context: &DeviceContext, frame: Frame) -> Result<(), RefusedFrame> {
        let outcome = self.below.release(context, frame);
        if let Some(inner) = self.inner.upgrade() {
            self.policy.pay_back(&*inner);
        }
        outcome
    }
}
