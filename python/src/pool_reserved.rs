//! The layer that counts the frames of a pool: the memory that it holds of its device, with the peak, as PyTorch has it.

use bursar::memory::{Frame, FrameRelease, FrameSource, Holder, Layer, RefusedFrame, forward_holder};
use bursar::{Bytes, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The layer, and the handle that reads the counts. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reserved {
    counts: Arc<Mutex<ReservedCounts>>,
    /// The most that pools of the device have held at one time, which nobody sets back.
    highest: Arc<AtomicU64>,
}

/// The counts at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReservedCounts {
    /// The bytes that are held.
    pub(crate) current: u64,
    pub(crate) peak: u64,
    /// All bytes that were taken since the sums began.
    pub(crate) added: u64,
    /// All bytes that were given back since then.
    pub(crate) removed: u64,
    /// The frames that were made since then.
    pub(crate) frames_made: u64,
    /// The frames that were given back since then.
    pub(crate) frames_released: u64,
}

impl Reserved {
    /// Returns counts that begin with nothing, and know what the pools of the device before have held.
    pub(crate) fn after(&self) -> Self {
        Self { counts: Arc::default(), highest: self.highest.clone() }
    }

    /// Returns the most that pools of the device have held at one time.
    pub(crate) fn highest(&self) -> u64 {
        self.highest.load(Ordering::Relaxed)
    }

    pub(crate) fn counts(&self) -> ReservedCounts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn reset_peak(&self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.peak = counts.current;
    }

    pub(crate) fn reset_totals(&self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts = ReservedCounts { current: counts.current, peak: counts.peak, ..ReservedCounts::default() };
    }

    fn count_made(&self, bytes: u64) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.current += bytes;
        counts.added += bytes;
        counts.frames_made += 1;
        counts.peak = counts.peak.max(counts.current);
        self.highest.fetch_max(counts.current, Ordering::Relaxed);
    }

    fn count_released(&self, bytes: u64) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.current = counts.current.saturating_sub(bytes);
        counts.removed += bytes;
        counts.frames_released += 1;
    }
}

impl<S: FrameSource> Layer<S> for Reserved {
    type Output = ReservedFrames<S>;

    fn layer(&self, inner: S) -> Result<ReservedFrames<S>> {
        Ok(ReservedFrames { inner, reserved: self.clone() })
    }
}

/// A source of frames that are counted.
#[derive(Debug)]
pub(crate) struct ReservedFrames<S> {
    inner: S,
    reserved: Reserved,
}

#[deny(clippy::missing_trait_methods)]
impl<S: FrameSource> Holder for ReservedFrames<S> {
    forward_holder!(self.inner);
}

#[deny(clippy::missing_trait_methods)]
impl<S: FrameSource> FrameSource for ReservedFrames<S> {
    fn frame_granularity(&self) -> Bytes {
        self.inner.frame_granularity()
    }

    fn granted_frame(&self, bytes: u64) -> Result<Bytes> {
        self.inner.granted_frame(bytes)
    }

    fn create_frame(&self, bytes: u64) -> Result<Frame> {
        self.inner.create_frame(bytes).inspect(|frame| self.reserved.count_made(frame.bytes().get()))
    }

    fn release_frame(&self, frame: Frame) -> Result<(), RefusedFrame> {
        let bytes = frame.bytes().get();
        self.inner.release_frame(frame).inspect(|()| self.reserved.count_released(bytes))
    }

    /// Returns the way of the source below: a pool of this process is never gone.
    fn release(&self) -> Arc<dyn FrameRelease> {
        self.inner.release()
    }

    fn release_frame_keeping_place(&self, frame: Frame) -> Result<(), RefusedFrame> {
        let bytes = frame.bytes().get();
        self.inner.release_frame_keeping_place(frame).inspect(|()| self.reserved.count_released(bytes))
    }

    fn take_place(&self, bytes: Bytes, patience: Duration) -> Result<()> {
        self.inner.take_place(bytes, patience)
    }

    fn give_up_place(&self, bytes: Bytes) {
        self.inner.give_up_place(bytes);
    }

    fn create_frame_in_place(&self, bytes: Bytes) -> Result<Frame> {
        self.inner.create_frame_in_place(bytes).inspect(|frame| self.reserved.count_made(frame.bytes().get()))
    }
}
