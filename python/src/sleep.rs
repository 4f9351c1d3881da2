//! The memory of the pool that sleeps, as Python sees it.

use crate::failure::Failure;
use crate::interruptible::until_signal;
use crate::pool;
use crate::pool_device::PoolDevice;
use bursar::Error;
use bursar::device::DeviceContext;
use bursar::host::PinnedPool;
use bursar::memory::{
    AllocTag, BlocksOf, DevicePtr, SleepReading, SleepReport, SleepRequest, TagRecord, TaggedBlocks, WakeReport,
    WakeRequest,
};
use bursar::sync::is_interrupted;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The pinned memory that contents go to, by the contexts of their devices: apart from what programs pin, of which little is
/// kept.
static STORES: Mutex<Option<HashMap<usize, Arc<PinnedPool>>>> = Mutex::new(None);

fn store_of(context: &Arc<DeviceContext>) -> Result<Arc<PinnedPool>, Error> {
    let mut stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
    let stores = stores.get_or_insert_default();
    if let Some(store) = stores.get(&Arc::as_ptr(context).addr()) {
        return Ok(store.clone());
    }
    let store = Arc::new(PinnedPool::near(context).map_err(Error::from)?);
    stores.insert(Arc::as_ptr(context).addr(), store.clone());
    Ok(store)
}

/// Gives back the pinned memory that contents went to and that nobody uses; returns how much that was.
pub(crate) fn trim_stores() -> u64 {
    let stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
    let trimmed = stores.iter().flat_map(HashMap::values).map(|store| store.trim(bursar::Bytes::ZERO).get());
    trimmed.sum()
}

/// The bytes that went back to the driver, were copied to the host, were given up and stay; and the seconds that it took.
type SleepFields = (u64, u64, u64, u64, f64);

/// The bytes that were taken from the driver and copied back, and the seconds that it took.
type WakeFields = (u64, u64, f64);

fn interned(names: &[String]) -> Vec<AllocTag> {
    names.iter().map(|name| AllocTag::intern(name)).collect()
}

fn patience(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// The time between two looks whether another thread is done with a move.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Moves the memory once no other thread does, in the time that there is.
fn once_still<T>(longest: Duration, attempt: impl Fn(Duration) -> Result<T, Error>) -> Result<T, Error> {
    let began = Instant::now();
    loop {
        let left = longest.saturating_sub(began.elapsed());
        match attempt(left) {
            Err(Error::Asleep { is_moving: true, .. }) if !left.is_zero() && !is_interrupted() => {
                std::thread::sleep(LOOK_EVERY);
            }
            moved => return moved,
        }
    }
}

/// Puts the memory of the pool to sleep: all of it, or the blocks of some tags.
#[pyfunction]
pub(crate) fn sleep(
    py: Python<'_>,
    tags: Vec<String>,
    discard: Vec<String>,
    discard_all: bool,
    keep_place: bool,
    timeout: f64,
) -> Result<SleepFields, Failure> {
    pool::check_not_forked()?;
    let (tags, discard) = (interned(&tags), interned(&discard));
    until_signal(py, || {
        let (mut report, mut asleep) = (SleepReport::default(), Vec::<(&PoolDevice, SleepRequest)>::new());
        for device in pool::current().into_iter().flat_map(pool::Pool::opened) {
            let (only, discard) = (tags.clone(), discard.clone());
            let request = SleepRequest {
                tagged: Some(TaggedBlocks { only, discard, record: Arc::new(Outside(device)) }),
                discard_all,
                keep_place,
                ..SleepRequest::default()
            };
            let sleep = |patience| device.sleep(&SleepRequest { patience, ..request.clone() });
            match once_still(patience(timeout), sleep) {
                Ok(slept) => report = report.and(slept),
                Err(error) => {
                    asleep.iter().for_each(|(device, request)| device.context.undo_sleep(request));
                    return Err(error.into());
                }
            }
            asleep.push((device, request));
        }
        let SleepReport { released, saved, discarded, kept, elapsed, .. } = report;
        Ok((released.get(), saved.get(), discarded.get(), kept.get(), elapsed.as_secs_f64()))
    })
}

/// Wakes the memory of the pool: all that sleeps, or the blocks of some tags that were put to sleep by themselves.
#[pyfunction]
pub(crate) fn wake(py: Python<'_>, tags: Vec<String>, timeout: f64) -> Result<WakeFields, Failure> {
    pool::check_not_forked()?;
    let tags = interned(&tags);
    until_signal(py, || {
        let mut report = WakeReport::default();
        for device in pool::current().into_iter().flat_map(pool::Pool::opened) {
            let woken = once_still(patience(timeout), |patience| {
                device.context.wake(&WakeRequest { only: tags.clone(), patience, ..WakeRequest::default() })
            })?;
            report = report.and(woken);
        }
        let WakeReport { taken, restored, elapsed } = report;
        Ok((taken.get(), restored.get(), elapsed.as_secs_f64()))
    })
}

/// Returns how the memory of the pool stands, and the bytes of the devices that waking takes and of the host that contents
/// lie in.
#[pyfunction]
pub(crate) fn sleep_state() -> Result<(String, u64, u64), Failure> {
    pool::check_not_forked()?;
    let devices = pool::current().into_iter().flat_map(pool::Pool::opened);
    let readings = devices.flat_map(|device| device.context.sleepers()).map(|sleeper| sleeper.sleep_reading());
    let SleepReading { state, asleep, on_host } = readings.reduce(SleepReading::and).unwrap_or_default();
    Ok((state.to_string(), asleep.get(), on_host.get()))
}

/// The blocks of a device that are outside, by tag.
#[derive(Debug)]
struct Outside(&'static PoolDevice);

impl TagRecord for Outside {
    fn hold(&self, look: &mut dyn FnMut(&BlocksOf<'_>)) {
        // Whoever frees a block takes it out first.
        let (book, others, buffers) = (self.0.book.lock(), self.0.others.lock(), self.0.buffers.lock());
        look(&|tag| {
            let mut blocks = book.ranges_of(tag);
            blocks.extend(others.ranges_of(tag));
            let own = buffers.iter().filter(|(_, (of, _))| *of == tag);
            blocks.extend(own.map(|(&ptr, &(_, bytes))| DevicePtr(ptr)..DevicePtr(ptr + bytes)));
            blocks
        });
    }
}

impl PoolDevice {
    /// Puts its pools to sleep.
    pub(crate) fn sleep(&self, request: &SleepRequest) -> Result<SleepReport, Error> {
        self.retry_refused();
        self.context.sleep(&*store_of(&self.context)?, request)
    }
}
