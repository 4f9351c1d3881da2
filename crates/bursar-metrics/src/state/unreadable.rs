//! Ledgers that cannot be read, and why.

use bursar_ledger::LedgerError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::ErrorKind;

/// A device whose ledger cannot be read. Its figures are unknown.
///
/// ```
/// use bursar::metrics::{UnreadableLedger, UnreadableReason};
///
/// let ledger = UnreadableLedger { reason: UnreadableReason::OtherUser, ..UnreadableLedger::default() };
/// assert_eq!(serde_json::to_value(&ledger)?["reason"], "other_user");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadableLedger {
    /// The UUID of the device, or `HOST`; the name of the file where that is neither.
    pub uuid: String,
    /// The number of the device on the driver, if that has it.
    pub ordinal: Option<u32>,
    /// The name of the device, if the driver has it.
    pub name: Option<String>,
    /// All of its memory, if the driver has it.
    pub total: Option<u64>,
    /// The reason, as a stable word.
    pub reason: UnreadableReason,
    /// The error, with the file and what to do about it.
    pub error: String,
}

/// The reason that a ledger cannot be read.
///
/// ```
/// use bursar::metrics::UnreadableReason;
///
/// assert_eq!(UnreadableReason::OtherVersion.to_string(), "other_version");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum UnreadableReason {
    /// The file belongs to another user.
    OtherUser,
    /// Others may read or write the file, or its user may not; or this process may not enter its folder.
    Permissions,
    /// The file was made by another version of Bursar.
    OtherVersion,
    /// The file contradicts itself or is not whole.
    Corrupt,
    /// The file is something else than a ledger, or that of another device.
    Foreign,
    /// The file was moved or removed while programs use it.
    Moved,
    /// The driver does not answer for the device.
    Driver,
    /// The file could not be read for a reason of the system.
    #[default]
    System,
}

impl UnreadableReason {
    /// Returns the reason for an error of a ledger.
    pub(crate) fn of(error: &LedgerError) -> Self {
        match error {
            LedgerError::Owner { .. } => Self::OtherUser,
            LedgerError::Mode { .. } => Self::Permissions,
            LedgerError::Io { error, .. } if error.kind() == ErrorKind::PermissionDenied => Self::Permissions,
            LedgerError::Version { .. } => Self::OtherVersion,
            LedgerError::Corrupt { .. } | LedgerError::Truncated { .. } => Self::Corrupt,
            LedgerError::NotALedger { .. } | LedgerError::OtherDevice { .. } => Self::Foreign,
            LedgerError::InUse { .. } => Self::Moved,
            _ => Self::System,
        }
    }

    /// Returns the stable word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OtherUser => "other_user",
            Self::Permissions => "permissions",
            Self::OtherVersion => "other_version",
            Self::Corrupt => "corrupt",
            Self::Foreign => "foreign",
            Self::Moved => "moved",
            Self::Driver => "driver",
            Self::System => "system",
        }
    }
}

impl fmt::Display for UnreadableReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m1_a_folder_that_may_not_be_entered_is_one_of_permissions() {
        let reason = |number: i32| {
            let error = std::io::Error::from_raw_os_error(number);
            UnreadableReason::of(&LedgerError::Io { file: "GPU-1.ledger".into(), call: "open", error })
        };
        let (not_permitted, io, denied) = (1, 5, 13);
        assert_eq!([denied, not_permitted].map(reason), [UnreadableReason::Permissions; 2]);
        assert_eq!(reason(io), UnreadableReason::System);
    }
}
