//! Memory whose bytes several processes have in common, in a file.
//!
//! The memory counts for the process that made it, and for as long as that process holds it.

use super::Sim;
use crate::call_log::CallArguments;
use crate::machine::{Pages, SparseBytes};
use crate::operation::CallResult;
use bursar_core::{Bytes, DeviceId, DevicePtr, DriverResult, RawPages, Status};
use std::fs::File;

/// The bytes that are copied at a time.
const STEP: u64 = 1 << 20;

impl Sim {
    /// Creates physical memory whose bytes are those of a file, which has at least as many.
    ///
    /// ```
    /// use bursar::DeviceId;
    /// use bursar::sim::Sim;
    ///
    /// let path = std::env::temp_dir().join(format!("bursar-pages-{}", std::process::id()));
    /// let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path)?;
    /// file.set_len(2 << 20)?;
    /// let (owner, other) = (Sim::immediate(), Sim::immediate());
    /// owner.pages_create_in_file(DeviceId(0), 2 << 20, file.try_clone()?)?;
    /// other.pages_import(DeviceId(0), 2 << 20, file)?;
    /// assert!(other.holders(DeviceId(0))?.is_empty(), "the memory counts for its owner");
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn pages_create_in_file(&self, device: DeviceId, bytes: u64, file: File) -> DriverResult<RawPages> {
        let granularity = self.granularity(device);
        self.call("pages_create_in_file", device, CallArguments::default().of(bytes), |active| {
            let raw = active.pages_create(bytes, granularity.ok_or(Status::NotSupported)?)?;
            if let Some(pages) = active.pages.get_mut(&raw.0) {
                pages.store = SparseBytes::in_file(file);
            }
            Ok(raw)
        })
    }

    /// Returns physical memory of another process, whose bytes are those of a file. It counts there and not here.
    #[track_caller]
    pub fn pages_import(&self, device: DeviceId, bytes: u64, file: File) -> DriverResult<RawPages> {
        let granularity = self.granularity(device);
        self.call("pages_import", device, CallArguments::default().of(bytes), |active| {
            if bytes == 0 || !bytes.is_multiple_of(granularity.ok_or(Status::NotSupported)?) {
                return Err(Status::InvalidValue);
            }
            let (device, store) = (active.device(), SparseBytes::in_file(file));
            let pages = Pages { device, bytes, store, mappings: 0, is_released: false, is_counted: false };
            Ok(active.add_pages(pages))
        })
    }

    /// Moves the bytes of an allocation into a file, where other processes can have them too. `ptr` and `bytes` are those of
    /// the whole allocation.
    ///
    /// ```
    /// use bursar::DeviceId;
    /// use bursar::driver::Driver;
    /// use bursar::sim::Sim;
    ///
    /// let path = std::env::temp_dir().join(format!("bursar-allocation-{}", std::process::id()));
    /// let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path)?;
    /// let sim = Sim::immediate();
    /// let ptr = sim.allocate(DeviceId(0), 256)?;
    /// sim.share_allocation(DeviceId(0), ptr, 256, file)?;
    /// sim.poke(ptr, b"seen by others");
    /// assert!(std::fs::read(&path)?.starts_with(b"seen by others"));
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn share_allocation(&self, device: DeviceId, ptr: DevicePtr, bytes: u64, file: File) -> DriverResult<()> {
        let arguments = CallArguments::default().at(ptr.0).of(bytes);
        self.call("share_allocation", device, arguments, |active| -> CallResult<()> {
            let (index, end) = (active.device(), ptr.0.checked_add(bytes).ok_or(Status::InvalidValue)?);
            if active.device_of(ptr.0) != Some(index) || !active.is_memory(&(ptr.0..end)) {
                return Err(Status::InvalidValue);
            }
            let mut shared = SparseBytes::in_file(file);
            for at in (0..bytes).step_by(STEP as usize) {
                let mut buffer = vec![0; STEP.min(bytes - at) as usize];
                active.read(ptr.0 + at, &mut buffer);
                shared.write(at, &buffer);
            }
            active.devices[index].shared.insert(ptr.0, (bytes, shared));
            active.block_shortcuts();
            Ok(())
        })
    }

    fn granularity(&self, device: DeviceId) -> Option<u64> {
        self.facts.get(device.0 as usize)?.capabilities.page_granularity.map(Bytes::get)
    }
}
