//! The system this process runs on.
#![allow(unsafe_code)]

use super::{Facts, FileKind, Identity, Kernel, Lock, Mapping, News, Opening, Process, Range, Rounds, Watch};
use std::ffi::{CString, OsStr};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Once};
use std::thread;
use std::time::Duration;

/// Linux, as this process sees it.
#[derive(Debug)]
pub(crate) struct Linux;

/// Turns a result that is -1 for a failure into one.
fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn with_zero(name: &OsStr) -> io::Result<CString> {
    Ok(CString::new(name.as_bytes())?)
}

/// Lends a descriptor to the standard library, without closing it.
fn borrowed(file: RawFd) -> ManuallyDrop<File> {
    // SAFETY: the caller's descriptor is open, and what is made here is never dropped, so it stays the caller's to close.
    ManuallyDrop::new(unsafe { File::from_raw_fd(file) })
}

fn facts_from(stat: &libc::stat) -> Facts {
    let kind = match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG => FileKind::File,
        libc::S_IFDIR => FileKind::Folder,
        libc::S_IFLNK => FileKind::Link,
        _ => FileKind::Other,
    };
    let identity = Identity { device: stat.st_dev, inode: stat.st_ino };
    Facts { kind, identity, user: stat.st_uid, mode: stat.st_mode & 0o7777, size: stat.st_size.unsigned_abs() }
}

fn facts_at(folder: RawFd, name: &OsStr) -> io::Result<Facts> {
    let name = with_zero(name)?;
    // SAFETY: zeros are a `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the name ends with a zero and `stat` may be written; a descriptor that is not open is an error.
    checked(unsafe { libc::fstatat(folder, name.as_ptr(), &raw mut stat, libc::AT_SYMLINK_NOFOLLOW) })?;
    Ok(facts_from(&stat))
}

fn open_at(folder: RawFd, name: &OsStr, how: Opening) -> io::Result<RawFd> {
    let flags = match how {
        Opening::Folder => libc::O_RDONLY | libc::O_DIRECTORY,
        Opening::Read => libc::O_RDONLY,
        Opening::Write => libc::O_RDWR,
    };
    // A pipe in place of a file must not be waited for, and a terminal must not become ours.
    let flags = flags | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let name = with_zero(name)?;
    // SAFETY: the name ends with a zero; a descriptor that is not open is an error.
    checked(unsafe { libc::openat(folder, name.as_ptr(), flags) })
}

fn flock(lock: Lock, range: Range) -> libc::flock {
    let kind = match lock {
        Lock::Shared => libc::F_RDLCK,
        Lock::Exclusive => libc::F_WRLCK,
    };
    libc::flock {
        l_type: kind as _,
        l_whence: libc::SEEK_SET as _,
        l_start: range.start,
        l_len: range.length,
        l_pid: 0,
    }
}

/// The half of a word that the system looks at.
fn lower_half(word: &AtomicU64) -> *const u32 {
    let first = std::ptr::from_ref(word).cast::<u32>();
    if cfg!(target_endian = "big") { first.wrapping_add(1) } else { first }
}

impl Kernel for Linux {
    fn user(&self) -> u32 {
        // SAFETY: takes nothing and cannot fail.
        unsafe { libc::geteuid() }
    }

    fn pid(&self) -> u32 {
        std::process::id()
    }

    fn name(&self) -> String {
        let name = fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let name = name.trim();
        if name.is_empty() { "unknown".to_owned() } else { name.to_owned() }
    }

    fn patience(&self) -> Duration {
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

    fn facts_of(&self, path: &Path) -> io::Result<Facts> {
        facts_at(libc::AT_FDCWD, path.as_os_str())
    }

    fn facts_in(&self, folder: RawFd, name: &OsStr) -> io::Result<Facts> {
        facts_at(folder, name)
    }

    fn facts(&self, file: RawFd) -> io::Result<Facts> {
        // SAFETY: zeros are a `stat`.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` may be written; a descriptor that is not open is an error.
        checked(unsafe { libc::fstat(file, &raw mut stat) })?;
        Ok(facts_from(&stat))
    }

    fn open(&self, path: &Path, how: Opening) -> io::Result<RawFd> {
        open_at(libc::AT_FDCWD, path.as_os_str(), how)
    }

    fn open_in(&self, folder: RawFd, name: &OsStr, how: Opening) -> io::Result<RawFd> {
        open_at(folder, name, how)
    }

    fn close(&self, file: RawFd) {
        // SAFETY: the caller's table had it, so it is open and nobody else's; taking it out made this the only closing.
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
        // SAFETY: just made, and nobody else's.
        let mut file = File::from(unsafe { OwnedFd::from_raw_fd(file) });
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        let length = libc::off_t::try_from(contents.len()).map_err(io::Error::other)?;
        // Set aside, so that writing to a map of it cannot fail.
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

    fn try_lock(&self, file: RawFd, lock: Lock, range: Range) -> io::Result<bool> {
        let lock = flock(lock, range);
        // SAFETY: `lock` is a whole `flock`, which the call only reads; a descriptor that is not open is an error.
        match checked(unsafe { libc::fcntl(file, libc::F_OFD_SETLK, &raw const lock) }) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn is_locked(&self, file: RawFd, lock: Lock, range: Range) -> io::Result<bool> {
        let mut lock = flock(lock, range);
        // SAFETY: `lock` is a whole `flock` that the call may write; a descriptor that is not open is an error.
        checked(unsafe { libc::fcntl(file, libc::F_OFD_GETLK, &raw mut lock) })?;
        Ok(i32::from(lock.l_type) != libc::F_UNLCK)
    }

    fn try_lock_whole(&self, file: RawFd) -> io::Result<bool> {
        // SAFETY: takes a descriptor and flags; a descriptor that is not open is an error.
        match checked(unsafe { libc::flock(file, libc::LOCK_EX | libc::LOCK_NB) }) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn who_locks(&self, range: Range) -> Vec<u32> {
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

/// Returns whether a line of a descriptor's information in /proc tells of a lock of its description within `range`. Such
/// a line ends with the first and the last byte.
fn is_lock_within(line: &str, range: Range) -> bool {
    let mut words = line.split_ascii_whitespace().rev();
    let (last, first) = (words.next(), words.next());
    let number = |word: Option<&str>| word.and_then(|word| word.parse::<i64>().ok());
    let inside = |at: i64| at >= range.start && at - range.start < range.length;
    line.starts_with("lock:")
        && line.contains("OFDLCK")
        && number(first).is_some_and(inside)
        && number(last).is_some_and(inside)
}

/// Has forks wait while descriptors of a process are opened and closed, and the child let go of them.
pub(crate) fn have_forks_told() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers live as long as the program, and run where a fork may run them: they take a lock before,
        // and after it close descriptors, store to words and give the lock back.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    });
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
        // SAFETY: just made, and nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        let news = libc::IN_CLOSE_WRITE | libc::IN_ATTRIB | libc::IN_MOVE_SELF | libc::IN_DELETE_SELF;
        // SAFETY: the descriptor is open and the path ends with a zero.
        let number = checked(unsafe { libc::inotify_add_watch(file.as_raw_fd(), path.as_ptr(), news) })?;
        Ok(Self { file, number })
    }
}

impl Watch for Inotify {
    fn read(&self) -> io::Result<News> {
        const HEAD: usize = size_of::<libc::inotify_event>();
        let mut buffer = [0u8; 4096];
        // SAFETY: the buffer is as long as is said.
        let read = unsafe { libc::read(self.file.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
        let Ok(read) = usize::try_from(read) else {
            let error = io::Error::last_os_error();
            let interrupted = error.kind() == io::ErrorKind::Interrupted;
            return if interrupted { Ok(News::default()) } else { Err(error) };
        };
        let (mut news, mut rest) = (News::default(), &buffer[..read]);
        while rest.len() >= HEAD {
            let word = |at: usize| u32::from_ne_bytes(rest[at..at + 4].try_into().unwrap_or_default());
            // The watch, what happened, a cookie, the length of a name: four words, as inotify(7) has them.
            let (mask, name) = (word(4), word(12) as usize);
            news.closed |= mask & (libc::IN_CLOSE_WRITE | libc::IN_Q_OVERFLOW) != 0;
            news.renamed |= mask & (libc::IN_ATTRIB | libc::IN_MOVE_SELF | libc::IN_DELETE_SELF) != 0;
            news.over |= mask & libc::IN_IGNORED != 0;
            rest = rest.get(HEAD + name..).unwrap_or_default();
        }
        Ok(news)
    }

    fn end(&self) {
        // SAFETY: the descriptor is open; a watch that has ended already is an error and nothing else.
        unsafe { libc::inotify_rm_watch(self.file.as_raw_fd(), self.number) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_in_proc_are_recognised_by_their_bytes() {
        let range = Range { start: 100, length: 10 };
        let line = |first, last| format!("lock:\t1: OFDLCK ADVISORY  READ -1 00:1b:2 {first} {last}");
        assert!(is_lock_within(&line("100", "109"), range));
        for (first, last) in [("99", "99"), ("110", "110"), ("0", "EOF"), ("105", "EOF")] {
            assert!(!is_lock_within(&line(first, last), range), "{first} {last}");
        }
        assert!(!is_lock_within("pos:\t100 109", range));
    }
}
