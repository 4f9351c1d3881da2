//! The sources of a program's blocks and streams: the driver itself, or a resource.
#![allow(unsafe_code)]

use super::op::AllocationOrder;
use bursar_core::{
    DeviceBlock, DeviceContext, DeviceId, DeviceMemoryResource, DevicePtr, Driver, DriverError, Error, RawStream,
    Status, Stream, tag,
};

/// A source of blocks and streams on one device. A failure is the driver's status.
pub(super) trait Memory {
    type Block;

    fn streams(&self) -> &[RawStream];
    fn allocate(&self, bytes: u64, stream: usize, ordering: AllocationOrder) -> Result<Self::Block, Status>;
    fn free(&self, block: Self::Block, stream: usize) -> Result<(), Status>;
    fn ptr(block: &Self::Block) -> DevicePtr;
    /// Destroys the streams, after everything else.
    fn end(self);
}

pub(super) fn status(error: DriverError) -> Status {
    error.status
}

/// Blocks straight from the driver.
pub(super) struct DriverMemory<'a> {
    driver: &'a dyn Driver,
    device: DeviceId,
    streams: Vec<RawStream>,
}

impl<'a> DriverMemory<'a> {
    pub(super) fn new(driver: &'a dyn Driver, device: DeviceId, streams: usize) -> Self {
        driver.open(device).expect("the device works");
        let own = || driver.stream_create(device, 0).expect("the device works");
        let legacy = std::iter::once(RawStream::LEGACY);
        Self { driver, device, streams: legacy.chain(std::iter::repeat_with(own)).take(streams).collect() }
    }
}

impl Memory for DriverMemory<'_> {
    type Block = (DevicePtr, AllocationOrder);

    fn streams(&self) -> &[RawStream] {
        &self.streams
    }

    fn allocate(&self, bytes: u64, stream: usize, ordering: AllocationOrder) -> Result<Self::Block, Status> {
        let ptr = match ordering {
            AllocationOrder::Device => self.driver.allocate(self.device, bytes),
            // SAFETY: a stream of this device that lives until the end.
            AllocationOrder::Stream => unsafe { self.driver.allocate_async(self.device, self.streams[stream], bytes) },
        };
        Ok((ptr.map_err(status)?, ordering))
    }

    fn free(&self, (ptr, ordering): Self::Block, stream: usize) -> Result<(), Status> {
        let freed = match ordering {
            // SAFETY: allocated by this call's counterpart, and programs use no block that they have freed.
            AllocationOrder::Device => unsafe { self.driver.free(self.device, ptr) },
            // SAFETY: as above, on a stream that every use of the block is ordered before.
            AllocationOrder::Stream => unsafe { self.driver.free_async(self.device, self.streams[stream], ptr) },
        };
        freed.map_err(status)
    }

    fn ptr((ptr, _): &Self::Block) -> DevicePtr {
        *ptr
    }

    fn end(self) {
        for stream in &self.streams[1..] {
            // SAFETY: created by `new` and not used again.
            unsafe { self.driver.stream_destroy(self.device, *stream) }.expect("the device works");
        }
        // SAFETY: opened by `new`, and everything it gave out was returned.
        unsafe { self.driver.close(self.device) }.expect("opened by `new`");
    }
}

/// Blocks of a resource, on streams of its context.
pub(super) struct ResourceMemory<'a> {
    memory: &'a dyn DeviceMemoryResource,
    streams: Vec<Stream>,
    raw: Vec<RawStream>,
}

impl<'a> ResourceMemory<'a> {
    pub(super) fn new(memory: &'a dyn DeviceMemoryResource, streams: usize) -> Self {
        let context: &DeviceContext = memory.context();
        let own = || context.create_stream(0).expect("the device works");
        let default = std::iter::once(context.default_stream());
        let streams: Vec<Stream> = default.chain(std::iter::repeat_with(own)).take(streams).collect();
        let raw = streams.iter().map(|stream| context.resolve(*stream).expect("a stream of this context"));
        Self { memory, raw: raw.collect(), streams }
    }
}

impl Memory for ResourceMemory<'_> {
    type Block = DeviceBlock;

    fn streams(&self) -> &[RawStream] {
        &self.raw
    }

    fn allocate(&self, bytes: u64, stream: usize, _: AllocationOrder) -> Result<DeviceBlock, Status> {
        let block = self.memory.allocate(bytes, 256, self.streams[stream], tag!("program"));
        block.map_err(driver_status)
    }

    fn free(&self, block: DeviceBlock, stream: usize) -> Result<(), Status> {
        let freed = self.memory.deallocate(block, self.streams[stream]);
        freed.map_err(|refused| driver_status(refused.error))
    }

    fn ptr(block: &DeviceBlock) -> DevicePtr {
        block.ptr()
    }

    fn end(self) {}
}

/// Returns the driver's status; a resource itself refuses nothing that programs request.
fn driver_status(error: Error) -> Status {
    match error {
        Error::Driver(error) => error.status,
        Error::OutOfMemory { .. } => Status::OutOfMemory,
        other => panic!("a program's request was refused: {other}"),
    }
}
