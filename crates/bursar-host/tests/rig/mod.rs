//! What tests of pinned memory share: machines made of files, a kernel that refuses, a driver and an account that can be
//! interrupted, and what all of them still hold.
#![allow(dead_code, unused_imports, reason = "each test uses what it needs")]

mod files;
mod hooked;
mod probed;
mod purse;

use bursar_core::{Bytes, DeviceContext, DeviceId, Gate};
use bursar_host::{NumaWorkerPool, Topology};
use bursar_sim::{LeakKind, Sim};
pub(crate) use files::{Folder, Tree};
pub(crate) use hooked::Hooked;
pub(crate) use probed::{Call, Probed};
pub(crate) use purse::Purse;
use std::sync::Arc;

/// A gate that is opened when its test ends, however it does, so that nobody waits behind it for good. It is made after
/// the rig, and so goes before it.
#[derive(Default)]
pub(crate) struct Latch(pub(crate) Gate);

impl Drop for Latch {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// One simulated device, workers over a kernel that can be told to refuse, and an account.
pub(crate) struct Rig {
    pub(crate) sim: Arc<Sim>,
    pub(crate) driver: Arc<Hooked>,
    pub(crate) system: Arc<Probed>,
    pub(crate) purse: Arc<Purse>,
    pub(crate) context: Arc<DeviceContext>,
    pub(crate) workers: Arc<NumaWorkerPool>,
}

impl Rig {
    /// On a machine that reports nothing, with a device whose node nobody knows.
    pub(crate) fn new() -> Self {
        Self::on(Topology::default(), Sim::builder().seed(1))
    }

    /// On a machine of any kind, with devices of any kind.
    pub(crate) fn on(topology: Topology, sim: bursar_sim::SimBuilder) -> Self {
        let sim = sim.build();
        let driver = Hooked::new(sim.clone());
        let (system, purse) = (Probed::new(), Purse::of(Bytes::gib(1)));
        let context = DeviceContext::open(driver.clone(), DeviceId(0)).expect("a device");
        let workers = NumaWorkerPool::new(topology, system.clone());
        Self { sim, driver, system, purse, context, workers }
    }

    /// Options that charge the rig's account.
    pub(crate) fn charged(&self) -> bursar_host::PinnedOptions {
        bursar_host::PinnedOptions::default().account(self.purse.clone())
    }

    /// What the driver still has pinned.
    pub(crate) fn pinned(&self) -> u64 {
        let leaks = self.sim.leaks().leaks;
        leaks.iter().filter(|leak| leak.kind == LeakKind::PinnedMemory).map(|leak| leak.bytes.get()).sum()
    }

    /// Panics unless driver, kernel and account have everything back.
    #[track_caller]
    pub(crate) fn assert_nothing_is_held(&self) {
        assert_eq!((self.pinned(), self.system.mapped(), self.purse.charged()), (0, 0, 0), "pinned, mapped, charged");
    }
}
