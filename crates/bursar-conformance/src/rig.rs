//! One stack on one device, with the calls that trials make.
#![allow(unsafe_code)]

use crate::rows::{SetCapturing, StackRow};
use bursar_core::{
    Bytes, DeviceBlock, DeviceContext, DeviceId, DeviceMemoryResource, Driver, Pattern, Result, Stream, tag,
};
use bursar_sim::{Faults, Stall};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// One stack, built on the first device of one driver, with fault injection between the two.
///
/// ```
/// use bursar::sim::Sim;
/// use bursar::{Stack, leaf};
/// use bursar_conformance::{StackKind, StackRig, StackRow};
///
/// let stack = StackRow::new("direct", StackKind::default(), || Stack::new().over(leaf::Direct));
/// let rig = StackRig::new(Sim::seeded(1), stack, 1, None)?;
/// let block = rig.allocate(1000);
/// rig.fill(&block, 7, block.stream());
/// assert_eq!(rig.read(&block, block.stream()), [7; 1000]);
/// rig.free(block);
/// # Ok::<(), bursar::Error>(())
/// ```
pub struct StackRig {
    /// The fault injection between the stack and the driver: fails calls and counts them.
    pub faults: Arc<Faults>,
    /// The device.
    pub context: Arc<DeviceContext>,
    /// The stack, built.
    pub memory: Arc<dyn DeviceMemoryResource>,
    /// The stack's row.
    pub stack: StackRow,
    /// A stream of the device.
    pub stream: Stream,
    /// The seed of this run.
    pub seed: u64,
    /// Begins and ends the capture of a stream, if the driver can.
    pub set_capturing: Option<SetCapturing>,
}

impl StackRig {
    /// Builds `stack` on the first device of `driver`.
    pub fn new(
        driver: Arc<dyn Driver>,
        stack: StackRow,
        seed: u64,
        set_capturing: Option<SetCapturing>,
    ) -> Result<Self> {
        let faults = Faults::new(driver);
        let context = DeviceContext::open(faults.clone(), DeviceId(0))?;
        let memory = stack.build(&context)?;
        let stream = context.create_stream(0)?;
        Ok(Self { faults, context, memory, stack, stream, seed, set_capturing })
    }

    /// Allocates a block on the rig's stream.
    pub fn allocate(&self, bytes: u64) -> DeviceBlock {
        self.allocate_on(bytes, self.stream)
    }

    /// Returns the largest request that is granted no more than `granted`.
    pub fn fitting(&self, granted: Bytes) -> u64 {
        let smallest = self.memory.granted_size(256, 256).expect("a legal request");
        granted.get() - (smallest.get() - 256)
    }

    /// Allocates a block on `stream`.
    pub fn allocate_on(&self, bytes: u64, stream: Stream) -> DeviceBlock {
        self.memory.allocate(bytes, 256, stream, tag!("conformance")).expect("there is room")
    }

    /// Frees a block on the stream it was allocated on.
    pub fn free(&self, block: DeviceBlock) {
        let stream = block.stream();
        self.free_on(block, stream);
    }

    /// Frees a block on `stream`.
    pub fn free_on(&self, block: DeviceBlock, stream: Stream) {
        self.memory.deallocate(block, stream).expect("the block and the stream belong here");
    }

    /// Waits until every free has completed.
    pub fn drain(&self) {
        self.memory.reap_blocking(Duration::MAX).expect("the device works");
    }

    /// Returns the outstanding bytes of the stack.
    pub fn outstanding(&self) -> Bytes {
        self.memory.bytes_outstanding()
    }

    /// Stalls a stream at this point until the returned value is dropped.
    pub fn stall(&self, stream: Stream) -> Stall {
        let raw = self.context.resolve(stream).expect("a stream of this device");
        // SAFETY: the table resolves live streams of this device only.
        unsafe { self.faults.stall(self.context.device(), raw) }.expect("the device works")
    }

    /// Fills the requested bytes of a block, in stream order.
    pub fn fill(&self, block: &DeviceBlock, value: u8, stream: Stream) {
        let raw = self.context.resolve(stream).expect("a stream of this device");
        let (driver, device) = (self.context.driver(), self.context.device());
        // SAFETY: the block is live and the trial orders its streams.
        let filled = unsafe { driver.fill(device, raw, block.ptr(), Pattern::U8(value), block.requested().get()) };
        filled.expect("the device works");
    }

    /// Reads the requested bytes of a block, in stream order, and waits for them.
    pub fn read(&self, block: &DeviceBlock, stream: Stream) -> Vec<u8> {
        let raw = self.context.resolve(stream).expect("a stream of this device");
        let mut bytes = vec![0; block.requested().get() as usize];
        let (driver, device, len) = (self.context.driver(), self.context.device(), bytes.len() as u64);
        // SAFETY: the block is live, the trial orders its streams, and the bytes outlive the copy, waited for below.
        let copied = unsafe { driver.copy_to_host(device, raw, bytes.as_mut_ptr(), block.ptr(), len) };
        copied.expect("the device works");
        self.context.synchronize(stream).expect("the device works");
        bytes
    }
}

impl fmt::Debug for StackRig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rig").field("stack", &self.stack).field("seed", &self.seed).finish_non_exhaustive()
    }
}
