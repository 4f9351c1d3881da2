//! A pool over a budget on a simulated device, with faults to inject.
#![allow(unsafe_code)]

use crate::common;
use crate::hooked::Hooked;
use bursar_core::leaf::DeviceFrames;
use bursar_core::{
    Bytes, DeviceBlock, DeviceContext, DeviceId, DeviceMemoryResource, Driver, Layer, Pattern, RawStream, Result,
    Stream, tag,
};
use bursar_memory::{GlobalDeviceBudgetResource, PagePool, PagePoolResource};
use bursar_sim::{Faults, Launch, Sim, Stall};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The bytes of one frame, where the pool is small.
pub(crate) const FRAME: u64 = 2 << 20;

/// A pool of which every frame is the smallest.
pub(crate) fn small() -> PagePool {
    PagePool::default().largest_frame(Bytes(FRAME))
}

pub(crate) type Budget = Arc<GlobalDeviceBudgetResource<DeviceFrames>>;

pub(crate) struct Rig {
    pub(crate) sim: Arc<Sim>,
    pub(crate) faults: Arc<Faults>,
    pub(crate) context: Arc<DeviceContext>,
    pub(crate) budget: Budget,
    pub(crate) pool: Arc<PagePoolResource<Budget>>,
}

impl Rig {
    /// A pool that may hold `frames` frames of the smallest size.
    pub(crate) fn new(sim: Arc<Sim>, frames: u64, recipe: &PagePool) -> Self {
        let faults = Faults::new(sim.clone());
        Self::over(faults.clone(), sim, faults, frames, recipe)
    }

    /// A pool with a hook before every driver call.
    pub(crate) fn hooked(seed: u64, frames: u64, recipe: &PagePool) -> (Self, Arc<Hooked>) {
        let sim = Sim::seeded(seed);
        let faults = Faults::new(sim.clone());
        let hooked = Hooked::new(faults.clone());
        (Self::over(hooked.clone(), sim, faults, frames, recipe), hooked)
    }

    /// A pool on any driver that ends in these.
    pub(crate) fn over(
        driver: Arc<dyn Driver>,
        sim: Arc<Sim>,
        faults: Arc<Faults>,
        frames: u64,
        recipe: &PagePool,
    ) -> Self {
        let context = common::context(driver);
        let budget =
            Arc::new(GlobalDeviceBudgetResource::new(DeviceFrames::new(context.clone()), Bytes(frames * FRAME)));
        let pool = recipe.layer(budget.clone()).expect("addresses are plenty");
        Self { sim, faults, context, budget, pool }
    }

    pub(crate) fn stream(&self) -> Stream {
        self.context.create_stream(0).expect("a stream")
    }

    pub(crate) fn try_allocate(&self, bytes: u64, stream: Stream) -> Result<DeviceBlock> {
        self.pool.allocate(bytes, 256, stream, tag!("pool"))
    }

    #[track_caller]
    pub(crate) fn allocate(&self, bytes: u64, stream: Stream) -> DeviceBlock {
        self.try_allocate(bytes, stream).expect("there is room")
    }

    /// Frees a block on its own stream.
    #[track_caller]
    pub(crate) fn free(&self, block: DeviceBlock) {
        let stream = block.stream();
        self.free_on(block, stream);
    }

    #[track_caller]
    pub(crate) fn free_on(&self, block: DeviceBlock, stream: Stream) {
        self.pool.deallocate(block, stream).expect("the block and the stream belong here");
    }

    /// The driver's handle, for one call made at once: nobody else is given it, so that the stream stays the context's own.
    pub(crate) fn raw(&self, stream: Stream) -> RawStream {
        self.context.hold(stream).expect("a live stream").raw()
    }

    /// Submits a write of all that was asked for.
    pub(crate) fn fill(&self, block: &DeviceBlock, value: u8, stream: Stream) {
        let (device, raw, bytes) = (self.context.device(), self.raw(stream), block.requested().get());
        // SAFETY: the block is live, and the simulator reports what is not ordered.
        unsafe { self.sim.fill(device, raw, block.ptr(), Pattern::U8(value), bytes) }.expect("the device works");
    }

    /// Submits a kernel that writes all that was asked for, without any bytes being written.
    pub(crate) fn touch(&self, block: &DeviceBlock, stream: Stream) {
        let touch = Launch::new("touch").writes(block.ptr(), block.requested().get());
        self.sim.launch(self.context.device(), self.raw(stream), touch).expect("the device works");
    }

    /// Submits a kernel that reads the first bytes of a block: other bytes than these are a hazard.
    pub(crate) fn expect(&self, block: &DeviceBlock, value: u8, stream: Stream) {
        let (ptr, bytes) = (block.ptr(), block.requested().get().min(64));
        let look = Launch::new("expect").reads(ptr, bytes).body(move |memory| {
            assert!(memory.read(ptr, bytes as usize).iter().all(|&byte| byte == value), "other bytes than {value}");
        });
        self.sim.launch(self.context.device(), self.raw(stream), look).expect("the device works");
    }

    pub(crate) fn stall(&self, stream: Stream) -> Stall {
        // SAFETY: the stream is live.
        unsafe { self.faults.stall(self.context.device(), self.raw(stream)) }.expect("the device works")
    }

    /// Returns what the driver could give out.
    pub(crate) fn driver_free(&self) -> Bytes {
        self.sim.memory(DeviceId(0)).expect("the device works").free
    }

    /// Returns what is held of the driver, by its own count.
    pub(crate) fn driver_held(&self) -> Bytes {
        self.faults.held(self.context.device())
    }

    /// Ends everything: nothing was wrong, and nothing is left.
    #[track_caller]
    pub(crate) fn finish(self) {
        let Self { sim, context, budget, pool, faults } = self;
        let ends = Arc::downgrade(&faults);
        drop((pool, budget, context, faults));
        // A thread that is just ending has the pool's state while it gives back its cache, and a device's context lets
        // its driver go last.
        let start = Instant::now();
        while ends.strong_count() > 0 && start.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
        }
        sim.assert_clean();
        assert!(sim.leaks().is_empty(), "{}", sim.leaks());
    }
}
