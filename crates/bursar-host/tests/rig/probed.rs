//! The kernel, with a hook around each call.

use bursar_core::Bytes;
use bursar_host::{Errno, IndexSet, LockedMemory, Machine, MemoryLimit, Region, System};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Call {
    Limits,
    RunOn,
    RunsOn,
    Reserve,
    Bind,
    AdviseHuge,
    Populate,
    Locate,
}

/// Called before and after a call; an error refuses it.
type Hook = Arc<dyn Fn(Call, bool) -> Option<Errno> + Send + Sync>;

#[derive(Default)]
pub(crate) struct Probed {
    machine: Machine,
    hook: Mutex<Option<Hook>>,
    pub(crate) limits: Mutex<Vec<MemoryLimit>>,
    pub(crate) locked: Mutex<Option<LockedMemory>>,
    /// The CPUs and nodes that the kernel reports for threads and pages.
    pub(crate) runs_on: Mutex<Option<IndexSet>>,
    pub(crate) pages_on: Mutex<Option<i32>>,
    /// The calls, with the thread that made each.
    pub(crate) calls: Mutex<Vec<(Call, String)>>,
    pub(crate) bound_to: Mutex<Vec<u32>>,
    pub(crate) ran_on: Mutex<Vec<IndexSet>>,
}

impl Probed {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn mapped(&self) -> usize {
        self.machine.mapped()
    }

    /// Calls `hook` around each call.
    pub(crate) fn hook(&self, hook: impl Fn(Call, bool) -> Option<Errno> + Send + Sync + 'static) {
        *self.hook.lock().unwrap() = Some(Arc::new(hook));
    }

    /// Refuses every call of a kind.
    pub(crate) fn refuse(&self, refused: Call, why: Errno) {
        self.hook(move |call, is_over| (call == refused && !is_over).then_some(why));
    }

    pub(crate) fn unhook(&self) {
        *self.hook.lock().unwrap() = None;
    }

    /// Returns the names of the threads that made a kind of call.
    pub(crate) fn threads_of(&self, wanted: Call) -> Vec<String> {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|(call, _)| *call == wanted).map(|(_, thread)| thread.clone()).collect()
    }

    fn around<T>(&self, call: Call, make: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        self.calls.lock().unwrap().push((call, thread));
        let hook = self.hook.lock().unwrap().clone();
        let interrupt = |is_over| hook.as_ref().and_then(|hook| hook(call, is_over)).map_or(Ok(()), Err);
        interrupt(false)?;
        let result = make()?;
        interrupt(true)?;
        Ok(result)
    }
}

impl System for Probed {
    fn limits(&self) -> Vec<MemoryLimit> {
        // A limit cannot be refused; the hook only runs.
        let _ = self.around(Call::Limits, || Ok(()));
        self.limits.lock().unwrap().clone()
    }

    fn locked_memory(&self) -> LockedMemory {
        let usual = LockedMemory { limit: Bytes::MAX, locked: Bytes::ZERO, is_privileged: false };
        self.locked.lock().unwrap().unwrap_or(usual)
    }

    fn run_on(&self, cpus: &IndexSet) -> Result<(), Errno> {
        self.around(Call::RunOn, || {
            self.ran_on.lock().unwrap().push(cpus.clone());
            // The CPUs of a machine made of files need not exist here.
            let mut runs_on = self.runs_on.lock().unwrap();
            runs_on.get_or_insert_with(|| cpus.clone());
            Ok(())
        })
    }

    fn runs_on(&self) -> Result<IndexSet, Errno> {
        self.around(Call::RunsOn, || match &*self.runs_on.lock().unwrap() {
            Some(cpus) => Ok(cpus.clone()),
            None => self.machine.runs_on(),
        })
    }

    fn reserve(&self, bytes: usize) -> Result<Region, Errno> {
        self.around(Call::Reserve, || self.machine.reserve(bytes))
    }

    fn bind(&self, _: &Region, node: u32) -> Result<(), Errno> {
        self.around(Call::Bind, || {
            self.bound_to.lock().unwrap().push(node);
            Ok(())
        })
    }

    fn advise_huge(&self, region: &Region) -> Result<(), Errno> {
        self.around(Call::AdviseHuge, || self.machine.advise_huge(region))
    }

    fn populate(&self, region: &Region, part: Range<usize>) -> Result<(), Errno> {
        self.around(Call::Populate, || self.machine.populate(region, part))
    }

    fn locate(&self, addresses: &[usize]) -> Result<Vec<i32>, Errno> {
        self.around(Call::Locate, || match *self.pages_on.lock().unwrap() {
            Some(node) => Ok(vec![node; addresses.len()]),
            None => self.machine.locate(addresses),
        })
    }
}

impl fmt::Debug for Probed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probed").finish_non_exhaustive()
    }
}
