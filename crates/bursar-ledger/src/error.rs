//! The errors of a ledger: each names the file and a remedy.

use bursar_core::{Bytes, DeviceUuid, Error, ExternalError};
use std::io;
use std::path::{Path, PathBuf};

/// The error of a ledger that cannot be used.
///
/// ```
/// use bursar::ledger::LedgerError;
///
/// let error = LedgerError::Truncated { file: "HOST.ledger".into(), size: 12, expected: 524_288 };
/// assert!(error.to_string().starts_with("HOST.ledger has 12 bytes where a ledger has 524288"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The folder of ledgers cannot be used.
    #[error("ledgers cannot be kept in {}: {why}; set BURSAR_LEDGER_DIR to a folder of yours that nobody else can write to", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The reason.
        why: Box<str>,
    },
    /// The file belongs to another user.
    #[error("{} belongs to user {owner} and this process runs as {user}; set BURSAR_LEDGER_DIR to a folder of your own", file.display())]
    Owner {
        /// The file.
        file: PathBuf,
        /// The user it belongs to.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// Others may read or write the file, or its user may not.
    #[error("{} has mode {mode:03o} where a ledger has 600, so that its user and nobody else gets in; check who wrote to it, then `chmod 600` it or remove it", file.display())]
    Mode {
        /// The file.
        file: PathBuf,
        /// The mode of the file.
        mode: u32,
    },
    /// The file is shorter or longer than a ledger.
    #[error("{} has {size} bytes where a ledger has {expected}; end the programs that use it and remove it", file.display())]
    Truncated {
        /// The file.
        file: PathBuf,
        /// The size of the file, in bytes.
        size: u64,
        /// The size of every ledger file.
        expected: u64,
    },
    /// The file is something else.
    #[error("{} is not a ledger; move it away or set BURSAR_LEDGER_DIR to another folder", file.display())]
    NotALedger {
        /// The file.
        file: PathBuf,
    },
    /// The file was made by another version.
    #[error("{} was made by another version of Bursar (format {found}, this one uses {ours}); end the programs that use it and remove it, or use that version", file.display())]
    Version {
        /// The file.
        file: PathBuf,
        /// The format of the file.
        found: u64,
        /// The format of this version.
        ours: u64,
    },
    /// The file contradicts itself.
    #[error("{} is damaged ({what}); end the programs that use it and remove it", file.display())]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// The contradiction, or the word that is damaged.
        what: Box<str>,
    },
    /// The file is the ledger of another device than it was opened for.
    #[error("{} is about {found} with {total}, and not about {wanted} with {expected}; end the programs that use it and remove it", file.display())]
    OtherDevice {
        /// The file.
        file: PathBuf,
        /// The device of the file.
        found: DeviceUuid,
        /// The memory of that device.
        total: Bytes,
        /// The device that the ledger was opened for.
        wanted: DeviceUuid,
        /// The memory of that device.
        expected: Bytes,
    },
    /// The file system cannot be written to.
    #[error("{} is on a file system that cannot be written to; set BURSAR_LEDGER_DIR to a folder that can", file.display())]
    ReadOnly {
        /// The file.
        file: PathBuf,
    },
    /// The file system has no room.
    #[error("there is no room for {}; free some space there, or set BURSAR_LEDGER_DIR to a folder with room", file.display())]
    Full {
        /// The file.
        file: PathBuf,
    },
    /// This process, or the whole system, has too many files open.
    #[error("{} cannot be opened, since too many files are open already; close some, or raise the limit (`ulimit -n`)", file.display())]
    TooManyFiles {
        /// The file.
        file: PathBuf,
    },
    /// The file was removed while this process used it.
    #[error("{} was removed or replaced while in use, so its limit cannot be kept; put it back, or end this program and start it again", file.display())]
    Deleted {
        /// The file.
        file: PathBuf,
    },
    /// The file or its folder was moved or removed, and programs still use it.
    #[error("{} was moved or removed while {} still use{} it; move it back, or end {} before another is used", file.display(), users(pids), if pids.len() == 1 { "s" } else { "" }, if pids.len() == 1 { "it" } else { "them" })]
    InUse {
        /// The file.
        file: PathBuf,
        /// The processes, where they are visible from here.
        pids: Vec<u32>,
    },
    /// A living process keeps the lock, most likely because it is stopped.
    #[error("{name} (pid {pid}) has had the lock of {} for too long; continue it (`kill -CONT {pid}`) or end it", file.display())]
    Stuck {
        /// The file.
        file: PathBuf,
        /// The id of the process in its own namespace.
        pid: u32,
        /// The name of the process.
        name: String,
    },
    /// Others had the lock, one after the other, until the caller's deadline had passed.
    #[error("{} was locked by others until the deadline had passed; try again, or allow for more time", file.display())]
    Busy {
        /// The file.
        file: PathBuf,
    },
    /// A table of the ledger is full.
    #[error("the ledger {} has no room for more {what} (at most {max})", file.display())]
    TableFull {
        /// The file.
        file: PathBuf,
        /// The kind of rows that the table has.
        what: &'static str,
        /// The number of rows.
        max: usize,
    },
    /// The ledger was cleared, and the account or reservation of this handle with it.
    #[error("the ledger {} was cleared by force; open the account anew", file.display())]
    Cleared {
        /// The file.
        file: PathBuf,
    },
    /// The ledger cannot be cleared, because somebody uses it.
    #[error("{} is in use: {}; end them, or clear it by force", file.display(), processes.join(", "))]
    Held {
        /// The file.
        file: PathBuf,
        /// The processes, with what they hold.
        processes: Vec<String>,
    },
    /// A tenant cannot have such a name.
    #[error("{name:?} cannot be the name of a tenant: {why}")]
    TenantName {
        /// The name.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// A tenant cannot have such limits.
    #[error("tenant {tenant:?} cannot be guaranteed {guarantee} with a ceiling of {ceiling}: {why}")]
    Tenant {
        /// The name of the tenant.
        tenant: String,
        /// The guarantee that was asked for.
        guarantee: Bytes,
        /// The ceiling that was asked for.
        ceiling: Bytes,
        /// The reason.
        why: &'static str,
    },
    /// A token that names no reservation.
    #[error("the reservation token {token:?} cannot be used: {why}")]
    Token {
        /// The token.
        token: String,
        /// The reason.
        why: Box<str>,
    },
    /// This process was forked from the one that opened the ledger.
    #[error("this process was forked from the one that opened the ledger; open it anew after exec")]
    Forked,
    /// A call to the system failed.
    #[error("{call} failed for {}: {error}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The name of the call.
        call: &'static str,
        /// The error of the call.
        #[source]
        error: io::Error,
    },
}

fn users(pids: &[u32]) -> String {
    match pids {
        [] => "this process, or some that cannot be seen from here,".to_owned(),
        [pid] => format!("process {pid}"),
        pids => format!("processes {}", pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")),
    }
}

impl LedgerError {
    /// Returns the error for a call to the system that failed.
    pub(crate) fn io(file: &Path, call: &'static str, error: io::Error) -> Self {
        let file = file.to_owned();
        match error.raw_os_error() {
            Some(libc::EROFS) => Self::ReadOnly { file },
            Some(libc::ENOSPC | libc::EDQUOT) => Self::Full { file },
            Some(libc::EMFILE | libc::ENFILE) => Self::TooManyFiles { file },
            _ => Self::Io { file, call, error },
        }
    }
}

impl LedgerError {
    /// Returns whether the lock was not available, so that another try may succeed.
    pub(crate) const fn is_lock_unavailable(&self) -> bool {
        matches!(self, Self::Stuck { .. } | Self::Busy { .. })
    }

    /// Returns whether the system found no such file.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }
}

impl From<LedgerError> for Error {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::Forked => Self::Forked,
            other => Self::External(ExternalError::new(other, false)),
        }
    }
}
