//! Memory that cannot track: its buffers are refused before anything is submitted, and work as they did otherwise.

use super::{GPU0, LEN};
use bursar_core::{
    AllocTag, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, Error, Holder, Layer, Refused, Result, Stack,
    Stream, leaf, tag,
};
use bursar_device::Gpu;
use bursar_sim::{Faults, Sim};
use std::sync::Arc;
use std::time::Duration;

/// A layer that says of what is below that its uses cannot be tracked.
struct Blind;

#[derive(Debug)]
struct Untracked<R>(R);

impl<R: DeviceMemoryResource> Layer<R> for Blind {
    type Output = Untracked<R>;
    fn layer(&self, inner: R) -> Result<Untracked<R>> {
        Ok(Untracked(inner))
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> Holder for Untracked<R> {
    fn context(&self) -> &Arc<DeviceContext> {
        self.0.context()
    }
    fn bytes_outstanding(&self) -> Bytes {
        self.0.bytes_outstanding()
    }
    fn released_total(&self) -> u64 {
        self.0.released_total()
    }
    fn reap(&self) -> Result<Bytes> {
        self.0.reap()
    }
    fn reap_blocking(&self, patience: Duration) -> Result<Bytes> {
        self.0.reap_blocking(patience)
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> DeviceMemoryResource for Untracked<R> {
    fn granted_size(&self, bytes: u64, align: u64) -> Result<Bytes> {
        self.0.granted_size(bytes, align)
    }
    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        self.0.allocate(bytes, align, stream, tag)
    }
    fn deallocate(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        self.0.deallocate(block, stream)
    }
    fn tracks_use(&self) -> bool {
        false
    }
}

#[test]
fn t6_memory_that_cannot_track_refuses_before_anything_is_submitted() {
    let faults = Faults::new(Sim::seeded(1));
    let gpu = Gpu::open(faults.clone(), GPU0, &Stack::new().layer(Blind).over(leaf::Async)).expect("opens");
    let (a, b) = (gpu.streams().lease().expect("room"), gpu.streams().lease().expect("room"));
    let [mut buffer, mut other] = [(); 2].map(|()| gpu.buffer::<u8>(LEN, &a, tag!("untracked")).expect("room"));
    let refused = |result: Result<()>| matches!(result, Err(Error::Unsupported { device: GPU0, .. }));
    faults.reset_counts();
    for lease in [&a, &b] {
        assert!(refused(lease.submit(|work| work.read(&buffer).map(drop))));
        assert!(refused(lease.submit(|work| work.write(&mut buffer).map(drop))));
        assert!(refused(lease.submit(|work| work.fill(&mut buffer, 1))));
        assert!(refused(lease.submit(|work| work.copy(&buffer, &mut other))));
        assert!(refused(lease.submit(|work| work.read_back(&buffer).map(drop))));
        assert!(refused(lease.submit(|work| work.copy_from_host(&mut buffer, vec![1; LEN]).map(drop))));
        let tracked = buffer.tracked().expect("it holds memory");
        let access = bursar_core::Access::Read;
        assert!(refused(gpu.context().record_block_use(tracked, lease.stream(), access)));
        assert!(refused(gpu.context().prepare_block_use(tracked, lease.stream(), access).map(drop)));
    }
    assert_eq!(faults.total_calls(), 0);
    buffer.fill(3).expect("on its own stream, and waited for");
    assert_eq!(buffer.to_vec(), Ok(vec![3; LEN]));
}
