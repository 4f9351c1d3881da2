//! Memory that cannot track uses: submissions of its buffers are refused before anything is queued, and all else works.

use super::{GPU0, LEN};
use bursar_core::{
    DeviceMemoryResource, Error, Holder, Layer, Result, Stack, forward_holder, forward_memory_resource, leaf, tag,
};
use bursar_device::Gpu;
use bursar_sim::{Faults, Sim};

/// A layer that reports that uses of the memory below cannot be tracked.
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
    forward_holder!(self.0);
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> DeviceMemoryResource for Untracked<R> {
    forward_memory_resource!(self.0; granted_size, allocate, deallocate);
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
        assert!(refused(
            lease.submit(|work| work.copy_from_host(&mut buffer, vec![1; LEN]).map(drop).map_err(Error::from))
        ));
        let tracked = buffer.tracked().expect("it holds memory");
        let access = bursar_core::Access::Read;
        assert!(refused(gpu.context().record_block_use(tracked, lease.stream(), access)));
        assert!(refused(gpu.context().prepare_block_use(tracked, lease.stream(), access).map(drop)));
    }
    assert_eq!(faults.total_calls(), 0);
    buffer.fill(3).expect("on its own stream, and waited for");
    assert_eq!(buffer.to_vec(), Ok(vec![3; LEN]));
}
