//! What can be wrong with a ledger: each case names the file and what helps.

use bursar_core::{Bytes, DeviceUuid, Error};
use std::io;
use std::path::{Path, PathBuf};

/// Why a ledger cannot be used.
///
/// ```
/// use bursar_ledger::LedgerError;
///
/// let error = LedgerError::Truncated { file: "HOST.ledger".into(), size: 12, expected: 262_144 };
/// assert!(error.to_string().starts_with("HOST.ledger has 12 bytes where a ledger has 262144"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The folder of ledgers cannot be used.
    #[error("ledgers cannot be kept in {}: {why}; set BURSAR_LEDGER_DIR to a folder of yours that nobody else can write to", folder.display())]
    Folder {
        /// Which folder.
        folder: PathBuf,
        /// What is wrong with it.
        why: Box<str>,
    },
    /// The file belongs to another user.
    #[error("{} belongs to user {owner} and this process runs as {user}; set BURSAR_LEDGER_DIR to a folder of your own", file.display())]
    Owner {
        /// Which file.
        file: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who asks.
        user: u32,
    },
    /// Others may read or write the file, or its user may not.
    #[error("{} has mode {mode:03o} where a ledger has 600, so that its user and nobody else gets in; check who wrote to it, then `chmod 600` it or remove it", file.display())]
    Mode {
        /// Which file.
        file: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file is shorter or longer than a ledger.
    #[error("{} has {size} bytes where a ledger has {expected}; end the programs that use it and remove it", file.display())]
    Truncated {
        /// Which file.
        file: PathBuf,
        /// Its size.
        size: u64,
        /// What it should be.
        expected: u64,
    },
    /// The file is something else.
    #[error("{} is not a ledger; move it away or set BURSAR_LEDGER_DIR to another folder", file.display())]
    NotALedger {
        /// Which file.
        file: PathBuf,
    },
    /// The file was made by another version.
    #[error("{} was made by another version of Bursar (format {found}, this one uses {ours}); end the programs that use it and remove it, or use that version", file.display())]
    Version {
        /// Which file.
        file: PathBuf,
        /// Its format.
        found: u64,
        /// The format of this version.
        ours: u64,
    },
    /// The file contradicts itself.
    #[error("{} is damaged ({what}); end the programs that use it and remove it", file.display())]
    Corrupt {
        /// Which file.
        file: PathBuf,
        /// What does not agree.
        what: Box<str>,
    },
    /// The file is about something else than it was opened for.
    #[error("{} is about {found} with {total}, and not about {wanted} with {expected}; end the programs that use it and remove it", file.display())]
    OtherDevice {
        /// Which file.
        file: PathBuf,
        /// What it is about.
        found: DeviceUuid,
        /// How much that has.
        total: Bytes,
        /// What was asked for.
        wanted: DeviceUuid,
        /// How much that has.
        expected: Bytes,
    },
    /// The file system cannot be written to.
    #[error("{} is on a file system that cannot be written to; set BURSAR_LEDGER_DIR to a folder that can", file.display())]
    ReadOnly {
        /// Which file.
        file: PathBuf,
    },
    /// The file system has no room.
    #[error("there is no room for {}; free some space there, or set BURSAR_LEDGER_DIR to a folder with room", file.display())]
    Full {
        /// Which file.
        file: PathBuf,
    },
    /// This process, or the whole system, has too many files open.
    #[error("{} cannot be opened, since too many files are open already; close some, or raise the limit (`ulimit -n`)", file.display())]
    TooManyFiles {
        /// Which file.
        file: PathBuf,
    },
    /// The file was removed while this process used it.
    #[error("{} was removed or replaced while in use, so nobody can be held to it; put it back, or end this program and start it again", file.display())]
    Deleted {
        /// Which file.
        file: PathBuf,
    },
    /// The file, or its folder, was moved or removed, and programs still use what it was.
    #[error("{} was moved or removed while {} still use{} it; move it back, or end {} before another is used", file.display(), users(pids), if pids.len() == 1 { "s" } else { "" }, if pids.len() == 1 { "it" } else { "them" })]
    InUse {
        /// Which file.
        file: PathBuf,
        /// The processes, where they can be seen from here.
        pids: Vec<u32>,
    },
    /// A living process keeps the lock, most likely because it is stopped.
    #[error("{name} (pid {pid}) has had the lock of {} for too long; continue it (`kill -CONT {pid}`) or end it", file.display())]
    Stuck {
        /// Which file.
        file: PathBuf,
        /// The process, as it sees itself.
        pid: u32,
        /// What it is called.
        name: String,
    },
    /// Others had the lock, one after the other, until the caller's deadline had passed.
    #[error("{} was locked by others until the deadline had passed; try again, or allow for more time", file.display())]
    Busy {
        /// Which file.
        file: PathBuf,
    },
    /// A table of the ledger is full.
    #[error("the ledger {} has no room for more {what} (at most {max})", file.display())]
    TableFull {
        /// Which file.
        file: PathBuf,
        /// Of what there are too many.
        what: &'static str,
        /// How many there may be.
        max: usize,
    },
    /// The ledger was cleared, and with it what this handle meant.
    #[error("the ledger {} was cleared by force; open the account anew", file.display())]
    Cleared {
        /// Which file.
        file: PathBuf,
    },
    /// Somebody holds something.
    #[error("{} is in use: {}; end them, or clear it by force", file.display(), holders.join(", "))]
    Held {
        /// Which file.
        file: PathBuf,
        /// Who, and how much.
        holders: Vec<String>,
    },
    /// A tenant cannot be set up like that.
    #[error("tenant {tenant:?} cannot be guaranteed {guarantee} with a ceiling of {ceiling}: {why}")]
    Tenant {
        /// Which tenant.
        tenant: String,
        /// What it should always have.
        guarantee: Bytes,
        /// What it should have at most.
        ceiling: Bytes,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A token of a reservation that means nothing here.
    #[error("the reservation token {token:?} cannot be used: {why}")]
    Token {
        /// The token.
        token: String,
        /// What is wrong with it.
        why: Box<str>,
    },
    /// The process was forked: what the parent opened stays the parent's.
    #[error("this process was forked from the one that opened the ledger; open it anew after exec")]
    Forked,
    /// The system failed us.
    #[error("{call} failed for {}: {error}", file.display())]
    Io {
        /// Which file.
        file: PathBuf,
        /// What was tried.
        call: &'static str,
        /// What the system answered.
        #[source]
        error: io::Error,
    },
}

fn users(pids: &[u32]) -> String {
    match pids {
        [] => "processes that cannot be seen from here".to_owned(),
        [pid] => format!("process {pid}"),
        pids => format!("processes {}", pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")),
    }
}

impl LedgerError {
    /// What the system answered, as the case it is.
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
    /// Returns whether the lock could not be had, so that another try may succeed.
    pub(crate) const fn is_lock_unavailable(&self) -> bool {
        matches!(self, Self::Stuck { .. } | Self::Busy { .. })
    }

    /// Returns whether the system found nothing where it looked.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }
}

impl From<LedgerError> for Error {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::Forked => Self::Forked,
            other => Self::Account { why: other.to_string().into() },
        }
    }
}
