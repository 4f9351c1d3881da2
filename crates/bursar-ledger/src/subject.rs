//! The device, or host memory, that a ledger is for.

use bursar_core::{Bytes, DeviceFacts, DeviceUuid};

/// The device, or host memory, that a ledger is for.
///
/// ```
/// use bursar::Bytes;
/// use bursar::device::DeviceUuid;
/// use bursar::ledger::Subject;
///
/// let gpu = Subject { uuid: DeviceUuid([7; 16]), name: "Simulated".into(), total: Bytes::gib(80) };
/// assert_eq!(gpu.file_name(), "GPU-07070707-0707-0707-0707-070707070707.ledger");
/// assert_eq!(Subject::host(Bytes::gib(64)).file_name(), "HOST.ledger");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The UUID of the physical device.
    pub uuid: DeviceUuid,
    /// The name of the device.
    pub name: String,
    /// All of the device's memory.
    pub total: Bytes,
}

impl Subject {
    const HOST: DeviceUuid = DeviceUuid([0; 16]);

    /// Returns the subject for host memory.
    pub fn host(total: Bytes) -> Self {
        Self { uuid: Self::HOST, name: "host memory".to_owned(), total }
    }

    /// Returns the subject for a device, from the facts of its driver.
    pub fn device(facts: &DeviceFacts) -> Self {
        Self { uuid: facts.uuid, name: facts.name.clone(), total: facts.total }
    }

    /// Returns the file name of its ledger.
    pub fn file_name(&self) -> String {
        if self.uuid == Self::HOST { "HOST.ledger".to_owned() } else { format!("{}.ledger", self.uuid) }
    }
}
