//! What a ledger is about.

use bursar_core::{Bytes, DeviceFacts, DeviceUuid};

/// What a ledger is about: a device, or the memory of the host.
///
/// ```
/// use bursar_core::{Bytes, DeviceUuid};
/// use bursar_ledger::Subject;
///
/// let gpu = Subject { uuid: DeviceUuid([7; 16]), name: "Simulated".into(), total: Bytes::gib(80) };
/// assert_eq!(gpu.file_name(), "GPU-07070707-0707-0707-0707-070707070707.ledger");
/// assert_eq!(Subject::host(Bytes::gib(64)).file_name(), "HOST.ledger");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The identity of the physical device.
    pub uuid: DeviceUuid,
    /// The name its maker gave it.
    pub name: String,
    /// All of its memory.
    pub total: Bytes,
}

impl Subject {
    const HOST: DeviceUuid = DeviceUuid([0; 16]);

    /// The memory of the host.
    pub fn host(total: Bytes) -> Self {
        Self { uuid: Self::HOST, name: "host memory".to_owned(), total }
    }

    /// A device, from what its driver knows of it.
    pub fn device(facts: &DeviceFacts) -> Self {
        Self { uuid: facts.uuid, name: facts.name.clone(), total: facts.total }
    }

    /// What its ledger is called.
    pub fn file_name(&self) -> String {
        if self.uuid == Self::HOST { "HOST.ledger".to_owned() } else { format!("{}.ledger", self.uuid) }
    }
}
