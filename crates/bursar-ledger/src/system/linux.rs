//! The system calls of Linux.
#![allow(unsafe_code)]

use super::{
    FileEvents, FileId, FileKind, FileMetadata, Kernel, LockKind, LockRange, Mapping, OpenMode, Process, Rounds, Watch,
};
use std::ffi::{CString, OsStr};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Once, OnceLock};
use std::thread;
use std::time::Duration;

/// The system this process runs on.
#[derive(Debug)]
pub(crate) struct Linux;

/// Turns the result of a call, which is -1 where it failed, into a `Result`.
fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn with_zero(name: &OsStr) -> io::Result<CString> {
    Ok(CString::new(name.as_bytes())?)
}

/// Lends a descriptor to the standard library, without closing it.
fn borrowed(file: RawFd) -> ManuallyDrop<File> {
    // SAFETY: the caller's descriptor is open, and what is made here is never dropped, so it stays the caller's to
    // close.
    ManuallyDrop::new(unsafe { File::from_raw_fd(file) })
}

fn metadata_from(stat: &libc::stat) -> FileMetadata {
    let kind = match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG => FileKind::File,
        libc::S_IFDIR => FileKind::Folder,
        libc::S_IFLNK => FileKind::Link,
        _ => FileKind::Other,
    };
    let file_id = FileId { device: stat.st_dev, inode: stat.st_ino };
    FileMetadata { kind, file_id, user: stat.st_uid, mode: stat.st_mode & 0o7777, size: stat.st_size.unsigned_abs() }
}

fn metadata_at(folder: RawFd, name: &OsStr) -> io::Result<FileMetadata> {
    let name = with_zero(name)?;
    // SAFETY: zeros are a `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the name ends with a zero and `stat` may be written; a descriptor that is not open is an error.
    checked(unsafe { libc::fstatat(folder, name.as_ptr(), &raw mut stat, libc::AT_SYMLINK_NOFOLLOW) })?;
    Ok(metadata_from(&stat))
}

fn open_at(folder: RawFd, name: &OsStr, mode: OpenMode) -> io::Result<RawFd> {
    let flags = match mode {
        OpenMode::Folder => libc::O_RDONLY | libc::O_DIRECTORY,
        OpenMode::Read => libc::O_RDONLY,
        OpenMode::Write => libc::O_RDWR,
    };
    // Opening a pipe in place of a file must not block, and a terminal must not become the controlling one.
    let flags = flags | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let name = with_zero(name)?;
    // SAFETY: the name ends with a zero; a descriptor that is not open is an error.
    checked(unsafe { libc::openat(folder, name.as_ptr(), flags) })
}

fn flock(lock: LockKind, range: LockRange) -> libc::flock {
    let kind = match lock {
        LockKind::Shared => libc::F_RDLCK,
        LockKind::Exclusive => libc::F_WRLCK,
    };
    libc::flock {
        l_type: kind as _,
        l_whence: libc::SEEK_SET as _,
        l_start: range.start,
        l_len: range.length,
        l_pid: 0,
    }
}

/// Returns the half of a word that a futex compares.
fn lower_half(word: &AtomicU64) -> *const u32 {
    let first = std::ptr::from_ref(word).cast::<u32>();
    if cfg!(target_endian = "big") { first.wrapping_add(1) } else { first }
}

impl Kernel for Linux {
    fn user(&self) -> u32 {
        bursar_linux::user_id()
    }

    fn pid(&self) -> u32 {
        std::process::id()
    }

    fn name(&self) -> String {
        let name = fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let name = name.trim();
        if name.is_empty() { "unknown".to_owned() } else { name.to_owned() }
    }

    fn lock_timeout(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn sleep(&self, time: Duration) {
        thread::sleep(time);
    }

    fn spawn(&self, mut rounds: Rounds) -> bool {
        let run = move || while rounds() {};
        thread::Builder::new().name("bursar-ledger".to_owned()).spawn(run).is_ok()
    }

    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        fs::canonicalize(path)
    }

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(path)
    }

    fn metadata_of(&self, path: &Path) -> io::Result<FileMetadata> {
        metadata_at(libc::AT_FDCWD, path.as_os_str())
    }

    fn metadata_in(&self, folder: RawFd, name: &OsStr) -> io::Result<FileMetadata> {
        metadata_at(folder, name)
    }

    fn metadata(&self, file: RawFd) -> io::Result<FileMetadata> {
        // SAFETY: zeros are a `stat`.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` may be written; a descriptor that is not open is an error.
        checked(unsafe { libc::fstat(file, &raw mut stat) })?;
        Ok(metadata_from(&stat))
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<RawFd> {
        open_at(libc::AT_FDCWD, path.as_os_str(), mode)
    }

    fn open_in(&self, folder: RawFd, name: &OsStr, mode: OpenMode) -> io::Result<RawFd> {
        open_at(folder, name, mode)
    }

    fn close(&self, file: RawFd) {
        // SAFETY: the caller has removed it from its table, so it is open, belongs to nobody else and is closed once.
        unsafe { libc::close(file) };
    }

    fn read_at(&self, file: RawFd, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        borrowed(file).read_exact_at(bytes, offset)
    }

    fn make_file(&self, folder: RawFd, name: &OsStr, contents: &[u8]) -> io::Result<()> {
        let name = with_zero(name)?;
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: the name ends with a zero; a descriptor that is not open is an error.
        let file = checked(unsafe { libc::openat(folder, name.as_ptr(), flags, 0o600) })?;
        // SAFETY: just opened, and owned by nobody else.
        let mut file = File::from(unsafe { OwnedFd::from_raw_fd(file) });
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        let length = libc::off_t::try_from(contents.len()).map_err(io::Error::other)?;
        // Allocated, so that writing to a mapping of it cannot fail.
        // SAFETY: the descriptor is open for as long as `file` lives.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
            0 => file.write_all(contents),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    fn link(&self, folder: RawFd, name: &OsStr, to: &OsStr) -> io::Result<()> {
        let (name, to) = (with_zero(name)?, with_zero(to)?);
        // SAFETY: both names end with a zero; a descriptor that is not open is an error.
        checked(unsafe { libc::linkat(folder, name.as_ptr(), folder, to.as_ptr(), 0) }).map(drop)
    }

    fn unlink(&self, folder: RawFd, name: &OsStr) -> io::Result<()> {
        let name = with_zero(name)?;
        // SAFETY: the name ends with a zero; a descriptor that is not open is an error.
        checked(unsafe { libc::unlinkat(folder, name.as_ptr(), 0) }).map(drop)
    }

    fn try_lock(&self, file: RawFd, lock: LockKind, range: LockRange) -> io::Result<bool> {
        let lock = flock(lock, range);
        // SAFETY: `lock` is a whole `flock`, which the call only reads; a descriptor that is not open is an error.
        match checked(unsafe { libc::fcntl(file, libc::F_OFD_SETLK, &raw const lock) }) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn is_locked(&self, file: RawFd, lock: LockKind, range: LockRange) -> io::Result<bool> {
        let mut lock = flock(lock, range);
        // SAFETY: `lock` is a whole `flock` that the call may write; a descriptor that is not open is an error.
        checked(unsafe { libc::fcntl(file, libc::F_OFD_GETLK, &raw mut lock) })?;
        Ok(i32::from(lock.l_type) != libc::F_UNLCK)
    }

    fn try_lock_file(&self, file: RawFd) -> io::Result<bool> {
        // SAFETY: takes a descriptor and flags; a descriptor that is not open is an error.
        match checked(unsafe { libc::flock(file, libc::LOCK_EX | libc::LOCK_NB) }) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn lock_holders(&self, range: LockRange) -> Vec<u32> {
        let mut found = Vec::new();
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let files = fs::read_dir(process.path().join("fdinfo")).into_iter().flatten().flatten();
            let mut texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
            if pid != std::process::id() && texts.any(|text| text.lines().any(|line| is_lock_within(line, range))) {
                found.push(pid);
            }
        }
        found.sort_unstable();
        found
    }

    fn map(&self, file: RawFd, words: usize) -> io::Result<Mapping> {
        Mapping::of_file(file, words)
    }

    fn wait(&self, word: &AtomicU64, value: u64, timeout: Option<Duration>) {
        let timeout = timeout.map(|timeout| libc::timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the word lives while it is borrowed, and the timeout is null or outlives the call.
        unsafe { libc::syscall(libc::SYS_futex, lower_half(word), libc::FUTEX_WAIT, value as u32, timeout) };
    }

    fn wake(&self, word: &AtomicU64, most: u32) {
        let most = i32::try_from(most).unwrap_or(i32::MAX);
        // SAFETY: the word lives while it is borrowed; the system only takes its address.
        unsafe { libc::syscall(libc::SYS_futex, lower_half(word), libc::FUTEX_WAKE, most) };
    }

    fn watch(&self, path: &Path) -> io::Result<Arc<dyn Watch>> {
        Ok(Arc::new(Inotify::new(path)?))
    }
}

/// Returns whether a line of a descriptor's fdinfo in /proc describes a lock of its description within `range`. Such a
/// line ends with the first and the last byte.
fn is_lock_within(line: &str, range: LockRange) -> bool {
    let mut words = line.split_ascii_whitespace().rev();
    let (last, first) = (words.next(), words.next());
    let number = |word: Option<&str>| word.and_then(|word| word.parse::<i64>().ok());
    let inside = |at: i64| at >= range.start && at - range.start < range.length;
    line.starts_with("lock:")
        && line.contains("OFDLCK")
        && number(first).is_some_and(inside)
        && number(last).is_some_and(inside)
}

/// Registers handlers that make a fork wait while a descriptor is being opened or closed, and that close all of them in
/// the child.
pub(crate) fn install_fork_handlers() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers live as long as the program, and run where a fork may run them: they take a lock before,
        // and after it close descriptors, store to words and give the lock back.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    });
}

/// The type of the function by which a library that charges this program for its driver calls is told of accounts.
type AccountOpened = unsafe extern "C" fn(*const u8);

/// Tells the library that is preloaded to keep this program inside its share, if there is one, that the program has an account of its own
/// with the ledger of a device: from now on it charges itself for what it takes through Bursar.
pub(crate) fn announce_account(uuid: &[u8; 16]) {
    static OPENED: OnceLock<Option<AccountOpened>> = OnceLock::new();
    let opened = OPENED.get_or_init(|| {
        // SAFETY: a look-up of a name in the objects that everybody searches.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"bursar_enforce_account_opened".as_ptr()) };
        // SAFETY: the library exports a function of this type under that name, and nobody else has such a name.
        (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut libc::c_void, AccountOpened>(found) })
    });
    if let Some(opened) = opened {
        // SAFETY: the function reads the 16 bytes of a UUID.
        unsafe { opened(uuid.as_ptr()) };
    }
}

extern "C" fn before_fork() {
    Process::this().before_fork();
}

extern "C" fn in_parent() {
    Process::this().after_fork();
}

extern "C" fn in_child() {
    Process::this().in_forked_child();
}

/// A watch on one file, by inotify.
#[derive(Debug)]
struct Inotify {
    file: OwnedFd,
    number: i32,
}

impl Inotify {
    fn new(path: &Path) -> io::Result<Self> {
        let path = with_zero(path.as_os_str())?;
        // SAFETY: takes flags only.
        let file = checked(unsafe { libc::inotify_init1(libc::IN_CLOEXEC) })?;
        // SAFETY: just opened, and owned by nobody else.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        let events = libc::IN_CLOSE_WRITE | libc::IN_ATTRIB | libc::IN_MOVE_SELF | libc::IN_DELETE_SELF;
        // SAFETY: the descriptor is open and the path ends with a zero.
        let number = checked(unsafe { libc::inotify_add_watch(file.as_raw_fd(), path.as_ptr(), events) })?;
        Ok(Self { file, number })
    }
}

impl Watch for Inotify {
    fn read(&self) -> io::Result<FileEvents> {
        const HEAD: usize = size_of::<libc::inotify_event>();
        let mut buffer = [0u8; 4096];
        // SAFETY: the buffer has the length that is passed.
        let read = unsafe { libc::read(self.file.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
        let Ok(read) = usize::try_from(read) else {
            let error = io::Error::last_os_error();
            let interrupted = error.kind() == io::ErrorKind::Interrupted;
            return if interrupted { Ok(FileEvents::default()) } else { Err(error) };
        };
        let (mut events, mut rest) = (FileEvents::default(), &buffer[..read]);
        while rest.len() >= HEAD {
            let word = |at: usize| u32::from_ne_bytes(rest[at..at + 4].try_into().unwrap_or_default());
            // Four words as inotify(7) has them: the watch, the mask, a cookie and the length of a name.
            let (mask, name) = (word(4), word(12) as usize);
            events.closed |= mask & (libc::IN_CLOSE_WRITE | libc::IN_Q_OVERFLOW) != 0;
            events.renamed |= mask & (libc::IN_ATTRIB | libc::IN_MOVE_SELF | libc::IN_DELETE_SELF) != 0;
            events.over |= mask & libc::IN_IGNORED != 0;
            rest = rest.get(HEAD + name..).unwrap_or_default();
        }
        Ok(events)
    }

    fn end(&self) {
        // SAFETY: the descriptor is open; for a watch that has ended already the call fails and does nothing.
        unsafe { libc::inotify_rm_watch(self.file.as_raw_fd(), self.number) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_in_proc_are_recognised_by_their_bytes() {
        let range = LockRange { start: 100, length: 10 };
        let line = |first, last| format!("lock:\t1: OFDLCK ADVISORY  READ -1 00:1b:2 {first} {last}");
        assert!(is_lock_within(&line("100", "109"), range));
        for (first, last) in [("99", "99"), ("110", "110"), ("0", "EOF"), ("105", "EOF")] {
            assert!(!is_lock_within(&line(first, last), range), "{first} {last}");
        }
        assert!(!is_lock_within("pos:\t100 109", range));
    }
}
