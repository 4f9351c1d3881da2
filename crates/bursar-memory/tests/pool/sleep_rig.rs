//! A pool that pays from a purse and sleeps, over drivers and frame sources that may be broken.
#![allow(unsafe_code)]

use crate::common::{self, Purse};
use crate::rig::FRAME;
use bursar_conformance::sleep::{BrokenDriver, SleepDefect};
use bursar_core::leaf::DeviceFrames;
use bursar_core::{
    AdoptedStream, Bytes, DeviceBlock, DeviceContext, Driver, Error, Frame, FrameRelease, FrameSource, Holder, Layer,
    Pattern, RawStream, RefusedFrame, Result, SleepState, Sleeper, Stream, forward_holder,
};
use bursar_memory::{GlobalDeviceBudgetResource, OnAccount, PagePool};
use bursar_sim::{Faults, Launch, Sim, Stall};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// A part that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// The driver.
    Driver(SleepDefect),
    /// Frames are given back, and their charge is not.
    KeepsCharge,
}

type Budget = Arc<GlobalDeviceBudgetResource<DeviceFrames, OnAccount>>;

/// A source of frames whose charge stays when they are given back, if it is broken, and which refuses some of them.
#[derive(Debug)]
pub(crate) struct MaybeBroken {
    inner: Budget,
    keeps_charge: bool,
    refusals: Arc<AtomicU64>,
}

impl MaybeBroken {
    fn maybe_refuse(&self, frame: Frame) -> Result<Frame, RefusedFrame> {
        if self.refusals.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
            return Err(RefusedFrame { frame, error: Error::InvalidValue { what: "a frame that is refused" } });
        }
        Ok(frame)
    }
}

impl Holder for MaybeBroken {
    forward_holder!(self.inner);
}

impl FrameSource for MaybeBroken {
    fn frame_granularity(&self) -> Bytes {
        self.inner.frame_granularity()
    }
    fn granted_frame(&self, bytes: u64) -> Result<Bytes> {
        self.inner.granted_frame(bytes)
    }
    fn create_frame(&self, bytes: u64) -> Result<Frame> {
        self.inner.create_frame(bytes)
    }
    fn release_frame(&self, frame: Frame) -> Result<(), RefusedFrame> {
        let frame = self.maybe_refuse(frame)?;
        match self.keeps_charge {
            true => self.inner.release_frame_keeping_place(frame),
            false => self.inner.release_frame(frame),
        }
    }
    fn release(&self) -> Arc<dyn FrameRelease> {
        self.inner.release()
    }
    fn release_frame_keeping_place(&self, frame: Frame) -> Result<(), RefusedFrame> {
        self.inner.release_frame_keeping_place(self.maybe_refuse(frame)?)
    }
    fn take_place(&self, bytes: Bytes, patience: Duration) -> Result<()> {
        self.inner.take_place(bytes, patience)
    }
    fn give_up_place(&self, bytes: Bytes) {
        self.inner.give_up_place(bytes);
    }
    fn create_frame_in_place(&self, bytes: Bytes) -> Result<Frame> {
        self.inner.create_frame_in_place(bytes)
    }
}

pub(crate) struct SleepRig {
    pub(crate) sim: Arc<Sim>,
    pub(crate) faults: Arc<Faults>,
    pub(crate) context: Arc<DeviceContext>,
    /// The most that the purse holds.
    pub(crate) limit: Bytes,
    pub(crate) purse: Arc<Purse>,
    pub(crate) budget: Budget,
    /// The number of frames that are not taken back when they are given back next.
    pub(crate) refusals: Arc<AtomicU64>,
    pub(crate) pool: Arc<bursar_memory::PagePoolResource<MaybeBroken>>,
}

impl SleepRig {
    pub(crate) fn new(seed: u64, frames: u64, recipe: &PagePool, defect: Option<Defect>) -> Self {
        let sim = Sim::builder().seed(seed).devices(1, Bytes::gib(1)).build();
        let faults = Faults::new(sim.clone());
        let driver: Arc<dyn Driver> = match defect {
            None | Some(Defect::KeepsCharge) => faults.clone(),
            Some(Defect::Driver(defect)) => BrokenDriver::new(faults.clone(), defect),
        };
        let (context, limit) = (common::context(driver), Bytes(frames * FRAME));
        let purse = Purse::of(limit);
        let frames = DeviceFrames::new(context.clone());
        let budget = Arc::new(GlobalDeviceBudgetResource::charged_to(frames, purse.clone()).expect("room"));
        let (keeps_charge, refusals) = (defect == Some(Defect::KeepsCharge), Arc::<AtomicU64>::default());
        let source = MaybeBroken { inner: budget.clone(), keeps_charge, refusals: refusals.clone() };
        let pool = recipe.layer(source).expect("addresses are plenty");
        Self { sim, faults, context, limit, purse, budget, refusals, pool }
    }

    pub(crate) fn stream(&self) -> Stream {
        self.context.create_stream(0).expect("a stream")
    }

    /// Adopts a stream of somebody else.
    pub(crate) fn adopt(&self) -> (AdoptedStream, RawStream) {
        let raw = self.sim.stream_create(self.context.device(), 0).expect("a stream of somebody else");
        // SAFETY: the stream is destroyed by `end`, after its adoption has ended.
        (unsafe { self.context.adopt_stream(raw) }.expect("room"), raw)
    }

    /// Ends an adoption, and the stream.
    pub(crate) fn end(&self, (adopted, raw): (AdoptedStream, RawStream)) {
        drop(adopted);
        // SAFETY: made by `adopt`, and its adoption has ended.
        unsafe { self.sim.stream_destroy(self.context.device(), raw) }.expect("the device works");
    }

    fn raw(&self, stream: Stream) -> RawStream {
        self.context.hold(stream).expect("a live stream").raw()
    }

    /// Submits a write of all that was asked for.
    pub(crate) fn fill(&self, block: &DeviceBlock, value: u8, stream: Stream) {
        let (device, raw, bytes) = (self.context.device(), self.raw(stream), block.requested().get());
        // SAFETY: the block is live, and the simulator reports what is not ordered.
        unsafe { self.sim.fill(device, raw, block.ptr(), Pattern::U8(value), bytes) }.expect("the device works");
    }

    /// Submits a kernel that reads the first and last bytes of a block: other bytes than these are a hazard.
    pub(crate) fn expect(&self, block: &DeviceBlock, value: u8, stream: Stream) {
        let bytes = block.requested().get().min(64);
        let (first, last) = (block.ptr(), block.ptr().offset(block.requested().get() - bytes));
        let look = Launch::new("expect").reads(first, bytes).reads(last, bytes).body(move |memory| {
            for ptr in [first, last] {
                assert!(memory.read(ptr, bytes as usize).iter().all(|&byte| byte == value), "other bytes than {value}");
            }
        });
        self.sim.launch(self.context.device(), self.raw(stream), look).expect("the device works");
    }

    pub(crate) fn stall(&self, stream: Stream) -> Stall {
        // SAFETY: the stream is live.
        unsafe { self.faults.stall(self.context.device(), self.raw(stream)) }.expect("the device works")
    }

    pub(crate) fn state(&self) -> SleepState {
        self.pool.sleep_reading().state
    }

    /// Asserts that the purse, the pool and the driver agree on what is held.
    #[track_caller]
    pub(crate) fn assert_charged(&self, places: Bytes) {
        let held = self.faults.held(self.context.device());
        assert_eq!(self.pool.held(), held, "the pool and the driver");
        assert_eq!(self.purse.held(), held.saturating_add(places), "the purse and the driver");
        assert_eq!(self.budget.charged_bytes(), self.purse.held(), "the budget and the purse");
    }

    /// Ends everything: nothing was wrong, and nothing is left.
    #[track_caller]
    pub(crate) fn finish(self) {
        let Self { sim, faults, context, purse, budget, pool, .. } = self;
        drop((pool, budget));
        assert_eq!(purse.held(), Bytes::ZERO, "nothing stays charged");
        drop((context, faults));
        sim.assert_clean();
        assert!(sim.leaks().is_empty(), "{}", sim.leaks());
    }
}
