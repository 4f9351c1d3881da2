//! The usable devices of a driver.

mod selection;

use crate::{Gpu, GpuOptions, LeakReport};
use bursar_core::{Build, DeviceId, Driver, Error, Result};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// Devices of a driver, each with memory made by the same recipe. There is always at least one.
///
/// [`open`](Self::open) takes what works: a device that cannot be used is reported and [left out](Self::left_out).
/// [`with_devices`](Self::with_devices) takes the devices named, all of them or none.
///
/// ```
/// use bursar::sim::Sim;
/// use bursar::{DeviceId, DevicePool, Error, Stack, leaf};
///
/// let stack = Stack::new().over(leaf::Async);
/// let gpus = DevicePool::open(Sim::immediate(), &stack)?;
/// assert_eq!(gpus.len(), 2);
/// assert_eq!(gpus.round_robin().id(), DeviceId(0));
/// assert_eq!(gpus.round_robin().id(), DeviceId(1));
///
/// let one = DevicePool::with_devices(Sim::immediate(), &stack, &[DeviceId(1)])?;
/// assert_eq!(one.device_at(0)?.id(), DeviceId(1));
/// assert!(matches!(one.device(DeviceId(7)), Err(Error::InvalidDevice { .. })));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct DevicePool {
    gpus: Vec<Gpu>,
    /// The index of the device that `round_robin` returns next.
    turn: AtomicUsize,
    left_out: Vec<(DeviceId, Error)>,
}

impl DevicePool {
    /// Opens every usable device of `driver`, in the order of their ordinals. One that cannot be opened, or whose memory
    /// cannot be built, is logged and [left out](Self::left_out). If none is usable, the error says why for each:
    /// [`Error::DeviceUnusable`] where there is one device, [`Error::NoUsableDevice`] where there are several,
    /// [`Error::NoDevice`] where there is none.
    ///
    /// ```
    /// use bursar::sim::{Faults, Sim};
    /// use bursar::{DeviceId, DevicePool, Stack, leaf};
    ///
    /// let faults = Faults::new(Sim::immediate());
    /// faults.lose(DeviceId(1));
    /// let gpus = DevicePool::open(faults, &Stack::new().over(leaf::Async))?;
    /// for (device, cause) in gpus.left_out() {
    ///     println!("{device} is left out: {cause}");
    /// }
    /// assert_eq!((gpus.len(), gpus.left_out().len()), (1, 1));
    /// # Ok::<(), bursar::Error>(())
    /// ```
    pub fn open(driver: Arc<dyn Driver>, stack: &impl Build) -> Result<Self> {
        Gpu::options().open_all(driver, stack)
    }

    fn open_with(options: &GpuOptions, driver: Arc<dyn Driver>, stack: &impl Build) -> Result<Self> {
        let (mut gpus, mut left_out) = (Vec::new(), Vec::new());
        for device in (0..driver.device_count()).map(DeviceId) {
            match options.open(driver.clone(), device, stack) {
                Ok(gpu) => gpus.push(gpu),
                Err(error) => {
                    tracing::warn!(%device, "a device cannot be used and is left out: {error}");
                    left_out.push((device, error));
                }
            }
        }
        if gpus.is_empty() { Err(none_usable(left_out)) } else { Ok(Self::of(gpus, left_out)) }
    }

    /// Opens the devices named, in that order, each once: all of them, or none. The first that cannot be opened, or whose
    /// memory cannot be built, is the [error](Error::DeviceUnusable), with its cause, and nothing stays open.
    ///
    /// ```
    /// use bursar::driver::Status;
    /// use bursar::sim::{Faults, Sim};
    /// use bursar::{DeviceId, DevicePool, Error, Stack, leaf};
    ///
    /// let faults = Faults::new(Sim::immediate());
    /// faults.lose(DeviceId(1));
    /// let both = [DeviceId(0), DeviceId(1)];
    /// let refused = DevicePool::with_devices(faults, &Stack::new().over(leaf::Async), &both).unwrap_err();
    /// assert!(matches!(refused, Error::DeviceUnusable { device: DeviceId(1), .. }));
    /// assert_eq!(refused.driver_error().map(|error| error.status), Some(Status::DeviceLost));
    /// ```
    pub fn with_devices(driver: Arc<dyn Driver>, stack: &impl Build, devices: &[DeviceId]) -> Result<Self> {
        Gpu::options().open_devices(driver, stack, devices)
    }

    fn with_devices_and(
        options: &GpuOptions,
        driver: Arc<dyn Driver>,
        stack: &impl Build,
        devices: &[DeviceId],
    ) -> Result<Self> {
        let count = driver.device_count();
        if devices.is_empty() {
            return Err(Error::InvalidValue { what: "a pool of devices names at least one" });
        }
        if let Some(&device) = devices.iter().find(|device| device.0 >= count) {
            return Err(Error::InvalidDevice { device, count });
        }
        let mut seen = HashSet::new();
        if let Some(twice) = devices.iter().find(|device| !seen.insert(**device)) {
            return Err(Error::InvalidNumber { what: "a device is named twice", number: twice.0.into() });
        }
        let open = |&device| {
            let unusable = |error| Error::DeviceUnusable { device, cause: Box::new(error) };
            options.open(driver.clone(), device, stack).map_err(unusable)
        };
        let gpus: Result<Vec<_>> = devices.iter().map(open).collect();
        Ok(Self::of(gpus?, Vec::new()))
    }

    fn of(gpus: Vec<Gpu>, left_out: Vec<(DeviceId, Error)>) -> Self {
        Self { gpus, turn: AtomicUsize::new(0), left_out }
    }

    /// Returns the devices that [`open`](Self::open) found to be unusable, each with its cause.
    pub fn left_out(&self) -> &[(DeviceId, Error)] {
        &self.left_out
    }

    /// Returns the device with an ordinal of the driver; [`Error::InvalidDevice`] if it is not in the pool, and the
    /// reason if it was left out.
    pub fn device(&self, ordinal: DeviceId) -> Result<&Gpu> {
        if let Some(gpu) = self.gpus.iter().find(|gpu| gpu.id() == ordinal) {
            return Ok(gpu);
        }
        let reason = self.left_out.iter().find(|(device, _)| *device == ordinal);
        let unknown = || Error::InvalidDevice { device: ordinal, count: self.gpus.len() as u32 };
        Err(reason.map_or_else(unknown, |(_, error)| error.clone()))
    }

    /// Returns the device at an index of the pool, from 0 on.
    pub fn device_at(&self, index: usize) -> Result<&Gpu> {
        let what = "the pool has no device at this index";
        self.gpus.get(index).ok_or(Error::InvalidNumber { what, number: index as u64 })
    }

    /// Returns the number of devices.
    pub fn len(&self) -> usize {
        self.gpus.len()
    }

    /// Returns whether there are no devices, which is never so.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// Records from now on where in the program each buffer was allocated, on every device; see
    /// [`Gpu::record_sites`].
    pub fn record_sites(&self) -> Result<()> {
        self.gpus.iter().try_for_each(Gpu::record_sites)
    }

    /// Closes the pool. What of its memory is still held, by buffers that live on or by blocks that were lost, is the
    /// error, and is logged too. Frees that have not run are waited for, at most a second for each device. A buffer
    /// that lives on keeps its device open and stays usable. What handles [under](Gpu::under) its devices hold is theirs
    /// to report.
    ///
    /// ```
    /// use bursar::sim::Sim;
    /// use bursar::{DevicePool, Stack, leaf, tag};
    ///
    /// let gpus = DevicePool::open(Sim::immediate(), &Stack::new().over(leaf::Async))?;
    /// gpus.record_sites()?;
    /// let gpu = gpus.device_at(0)?.clone();
    /// let stream = gpu.streams().acquire()?;
    /// let kept = gpu.buffer::<u8>(1000, stream, tag!("kept"))?;
    /// let report = gpus.close().unwrap_err();
    /// assert!(report.to_string().contains("kept: 1 KiB in 1 block"));
    /// # drop(kept);
    /// # Ok::<(), bursar::Error>(())
    /// ```
    pub fn close(self) -> Result<(), LeakReport> {
        let leaks: Vec<_> = self.gpus.iter().filter_map(Gpu::report_leak).collect();
        if leaks.is_empty() { Ok(()) } else { Err(LeakReport { leaks }) }
    }

    /// Returns the devices, in the order of the pool.
    pub fn iter(&self) -> std::slice::Iter<'_, Gpu> {
        self.gpus.iter()
    }
}

impl GpuOptions {
    /// Opens every usable device of `driver` with these options, as [`DevicePool::open`] does.
    ///
    /// ```
    /// use bursar::sim::Sim;
    /// use bursar::stream::StreamOptions;
    /// use bursar::{Gpu, Stack, leaf};
    ///
    /// let few = StreamOptions { max_streams: 2, ..StreamOptions::default() };
    /// let gpus = Gpu::options().streams(few).open_all(Sim::immediate(), &Stack::new().over(leaf::Async))?;
    /// assert!(gpus.iter().all(|gpu| gpu.streams().max_streams() == 2));
    /// # Ok::<(), bursar::Error>(())
    /// ```
    pub fn open_all(&self, driver: Arc<dyn Driver>, stack: &impl Build) -> Result<DevicePool> {
        DevicePool::open_with(self, driver, stack)
    }

    /// Opens the devices named with these options, all of them or none, as [`DevicePool::with_devices`] does.
    pub fn open_devices(
        &self,
        driver: Arc<dyn Driver>,
        stack: &impl Build,
        devices: &[DeviceId],
    ) -> Result<DevicePool> {
        DevicePool::with_devices_and(self, driver, stack, devices)
    }
}

/// Returns the error of a pool for which no device can be used.
fn none_usable(mut left_out: Vec<(DeviceId, Error)>) -> Error {
    match left_out.len() {
        0 => Error::NoDevice,
        1 => {
            let (device, cause) = left_out.remove(0);
            Error::DeviceUnusable { device, cause: Box::new(cause) }
        }
        _ => Error::NoUsableDevice { causes: left_out.into() },
    }
}

impl<'a> IntoIterator for &'a DevicePool {
    type Item = &'a Gpu;
    type IntoIter = std::slice::Iter<'a, Gpu>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
