//! The fixtures of the tests of pinned memory: machines made of files, a kernel that refuses, a driver and an account with
//! hooks, and a check that nothing leaked.
#![allow(dead_code, unused_imports, reason = "each test uses what it needs")]

mod account;
mod files;
mod hooked;
mod probed;

pub(crate) use account::TestAccount;
use bursar_core::{Bytes, DeviceContext, DeviceId, Gate};
use bursar_host::{NumaWorkerPool, Topology};
use bursar_sim::{LeakKind, Sim};
pub(crate) use files::{Folder, Tree};
pub(crate) use hooked::Hooked;
pub(crate) use probed::{Call, Probed};
use std::sync::Arc;

/// A gate that is opened when its test ends, however it does, so that nobody waits behind it for good. It is created after
/// the rig, and so dropped before it.
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
    pub(crate) account: Arc<TestAccount>,
    pub(crate) context: Arc<DeviceContext>,
    pub(crate) workers: Arc<NumaWorkerPool>,
}

impl Rig {
    /// Creates a rig on a machine without topology, with a device whose node is unknown.
    pub(crate) fn new() -> Self {
        Self::on(Topology::default(), Sim::builder().seed(1))
    }

    /// Creates a rig on a machine of any kind, with devices of any kind.
    pub(crate) fn on(topology: Topology, sim: bursar_sim::SimBuilder) -> Self {
        let sim = sim.build();
        let driver = Hooked::new(sim.clone());
        let (system, account) = (Probed::new(), TestAccount::of(Bytes::gib(1)));
        let context = DeviceContext::open(driver.clone(), DeviceId(0)).expect("a device");
        let workers = NumaWorkerPool::new(topology, system.clone());
        Self { sim, driver, system, account, context, workers }
    }

    /// Returns options that charge the account of the rig.
    pub(crate) fn charged(&self) -> bursar_host::PinnedOptions {
        bursar_host::PinnedOptions::default().account(self.account.clone())
    }

    /// Returns the memory that the driver still has pinned.
    pub(crate) fn pinned(&self) -> u64 {
        let leaks = self.sim.leaks().leaks;
        leaks.iter().filter(|leak| leak.kind == LeakKind::PinnedMemory).map(|leak| leak.bytes.get()).sum()
    }

    /// Panics unless driver, kernel and account have everything back.
    #[track_caller]
    pub(crate) fn assert_nothing_is_held(&self) {
        assert_eq!((self.pinned(), self.system.mapped(), self.account.charged()), (0, 0, 0), "pinned, mapped, charged");
    }
}
