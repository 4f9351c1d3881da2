//! Trials of programs: batches of seeds, on simulators or on hardware that the trials share.

use super::seeds;
use crate::CudaLibrary;
use bursar_core::{DeviceId, Driver};
use libtest_mimic::{Failed, Trial};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

const PROGRAMS_PER_TRIAL: u64 = 100;

/// Returns the seeds of `programs` programs, a range for each trial; or the one that is replayed.
pub fn batches(programs: u64) -> impl Iterator<Item = Range<u64>> {
    let all = seeds(0..programs);
    let starts = all.clone().step_by(PROGRAMS_PER_TRIAL as usize);
    starts.map(move |start| start..all.end.min(start + PROGRAMS_PER_TRIAL))
}

/// Returns a trial that runs the programs of `seeds` one after the other, until one fails.
pub fn trial(name: &str, mut seeds: Range<u64>, run: impl Fn(u64) -> Result<(), Failed> + Send + 'static) -> Trial {
    Trial::test(format!("{name}::{}_to_{}", seeds.start, seeds.end - 1), move || seeds.try_for_each(run))
}

/// A driver that runs one program at a time, because programs share its legacy default stream; or the reason why it is
/// absent.
///
/// ```
/// use bursar::sim::Sim;
/// use bursar_conformance::program::{SharedDriver, batches};
///
/// let sim = SharedDriver::open(Ok::<_, String>(Sim::immediate()));
/// let trials = batches(250).map(|seeds| sim.trial("nothing_is_wrong", seeds, |_, _| Ok(())));
/// assert!(trials.count() > 0);
/// ```
#[derive(Debug)]
pub struct SharedDriver<D> {
    driver: Arc<Mutex<Result<Arc<D>, String>>>,
    ignored: bool,
}

impl<D: Driver> SharedDriver<D> {
    /// Opens the first device for all programs: creating a primary context takes longer than running a program.
    pub fn open(loaded: Result<Arc<D>, impl fmt::Display>) -> Self {
        let opened = loaded.map_err(|absent| absent.to_string()).and_then(|driver| match driver.open(DeviceId(0)) {
            Ok(_) => Ok(driver),
            Err(failure) => Err(failure.to_string()),
        });
        let ignored = opened.is_err() && CudaLibrary::of_this_process().may_be_absent();
        Self { driver: Arc::new(Mutex::new(opened)), ignored }
    }

    /// Returns a trial of the programs of `seeds` on this driver; it is ignored if the driver is absent and not required.
    pub fn trial(
        &self,
        name: &str,
        seeds: Range<u64>,
        run: impl Fn(&Arc<D>, u64) -> Result<(), Failed> + Send + 'static,
    ) -> Trial {
        let driver = self.driver.clone();
        let on_driver = move |seed| match &*driver.lock().unwrap_or_else(PoisonError::into_inner) {
            Ok(driver) => run(driver, seed),
            Err(absent) => Err(Failed::from(absent)),
        };
        trial(name, seeds, on_driver).with_ignored_flag(self.ignored)
    }
}
