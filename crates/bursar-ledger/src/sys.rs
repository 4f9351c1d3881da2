//! System calls that the standard library has no name for, each behind a safe function.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

/// The user this process acts as.
pub(crate) fn user() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Has the file system set `bytes` aside for a file, so that writing to a map of it cannot fail.
pub(crate) fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    let bytes = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open for as long as `file` is borrowed.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// How a range of a file is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// By many.
    Shared,
    /// By one.
    Exclusive,
}

fn flock(kind: Option<Kind>, start: i64, length: i64) -> libc::flock {
    let kind = match kind {
        None => libc::F_UNLCK,
        Some(Kind::Shared) => libc::F_RDLCK,
        Some(Kind::Exclusive) => libc::F_WRLCK,
    };
    libc::flock { l_type: kind as _, l_whence: libc::SEEK_SET as _, l_start: start, l_len: length, l_pid: 0 }
}

/// Locks a range for the open file description, without waiting; answers whether that succeeded. The kernel drops the
/// lock with the last descriptor of the description, however its process ends.
pub(crate) fn try_lock(fd: RawFd, kind: Kind, start: i64, length: i64) -> io::Result<bool> {
    let lock = flock(Some(kind), start, length);
    // SAFETY: `lock` is a whole `flock`, which the call only reads; a descriptor that is not open is an error.
    match unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const lock) } {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            error => Err(error),
        },
    }
}

/// Unlocks a range.
pub(crate) fn unlock(fd: RawFd, start: i64, length: i64) {
    let lock = flock(None, start, length);
    // SAFETY: `lock` is a whole `flock`, which the call only reads; a descriptor that is not open is an error.
    unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const lock) };
}

/// Whether another description has a lock in the range that one of `kind` would have to wait for.
pub(crate) fn is_locked(fd: RawFd, kind: Kind, start: i64, length: i64) -> io::Result<bool> {
    let mut lock = flock(Some(kind), start, length);
    // SAFETY: `lock` is a whole `flock` that the call may write; a descriptor that is not open is an error.
    match unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &raw mut lock) } {
        0 => Ok(i32::from(lock.l_type) != libc::F_UNLCK),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The half of a word that the kernel looks at.
fn lower_half(word: &AtomicU64) -> *const u32 {
    let first = std::ptr::from_ref(word).cast::<u32>();
    if cfg!(target_endian = "big") { first.wrapping_add(1) } else { first }
}

/// Sleeps while the lower half of `word` is that of `value`, across processes where the word is shared.
pub(crate) fn sleep_on(word: &AtomicU64, value: u64, timeout: Option<Duration>) {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word lives while it is borrowed, and the timeout is null or outlives the call.
    unsafe { libc::syscall(libc::SYS_futex, lower_half(word), libc::FUTEX_WAIT, value as u32, timeout) };
}

/// Wakes at most `most` of those who sleep on `word`.
pub(crate) fn wake(word: &AtomicU64, most: u32) {
    let most = i32::try_from(most).unwrap_or(i32::MAX);
    // SAFETY: the word lives while it is borrowed; the kernel only takes its address.
    unsafe { libc::syscall(libc::SYS_futex, lower_half(word), libc::FUTEX_WAKE, most) };
}

/// How many descriptors can be tethered: two a ledger.
const TETHERS: usize = 128;
static FDS: [AtomicI32; TETHERS] = [const { AtomicI32::new(-1) }; TETHERS];
static MARKS: [AtomicPtr<AtomicU64>; TETHERS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; TETHERS];

/// A descriptor that ends with this process and does not follow it into a forked child.
#[derive(Debug)]
pub(crate) struct Tether {
    slot: usize,
    fd: RawFd,
    kept: AtomicBool,
}

impl Tether {
    /// Keeps `file`, and has a forked child find a zero at `mark`, which must live until this is cut.
    pub(crate) fn new(file: File, mark: Option<&'static AtomicU64>) -> Option<Self> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the handler only closes descriptors and stores to words, which a forked child may do.
            unsafe { libc::pthread_atfork(None, None, Some(let_go)) };
        });
        let fd = file.as_raw_fd();
        let free = |slot: &AtomicI32| slot.compare_exchange(-1, fd, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let slot = FDS.iter().position(free)?;
        let mark = mark.map_or(std::ptr::null_mut(), |mark| std::ptr::from_ref(mark).cast_mut());
        MARKS[slot].store(mark, Ordering::SeqCst);
        Some(Self { slot, fd: file.into_raw_fd(), kept: AtomicBool::new(false) })
    }

    /// The descriptor. In a forked child it is closed, and may be another file's.
    pub(crate) const fn fd(&self) -> RawFd {
        self.fd
    }

    /// Keeps the descriptor open until the process ends, whatever becomes of this.
    pub(crate) fn keep_for_good(&self) {
        self.kept.store(true, Ordering::SeqCst);
    }

    /// Closes the descriptor, once, unless it is kept for good; in a forked child it is closed already.
    pub(crate) fn cut(&self) {
        MARKS[self.slot].store(std::ptr::null_mut(), Ordering::SeqCst);
        let kept = self.kept.load(Ordering::SeqCst);
        if !kept && FDS[self.slot].compare_exchange(self.fd, -1, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            // SAFETY: the table had it, so it is open and nobody else's; taking it out makes this the only closing.
            drop(unsafe { OwnedFd::from_raw_fd(self.fd) });
        }
    }
}

/// Runs in every forked child, before anything else does.
extern "C" fn let_go() {
    for (fd, mark) in FDS.iter().zip(&MARKS) {
        let fd = fd.swap(-1, Ordering::SeqCst);
        if fd >= 0 {
            // SAFETY: the parent's table had it, so it is open here too; taking it out makes this the only closing.
            unsafe { libc::close(fd) };
        }
        let mark = mark.swap(std::ptr::null_mut(), Ordering::SeqCst);
        // SAFETY: whoever entered it keeps the word mapped until it is taken out, and the child has a copy of the map.
        if let Some(mark) = unsafe { mark.as_ref() } {
            mark.store(0, Ordering::SeqCst);
        }
    }
}

/// What the kernel said of a watched file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// Somebody who could write it closed it, perhaps by dying.
    pub(crate) closed: bool,
    /// A name of it was added or removed, or it is gone.
    pub(crate) renamed: bool,
    /// The watch has ended.
    pub(crate) over: bool,
}

/// A watch on one file.
#[derive(Debug)]
pub(crate) struct Watch {
    fd: OwnedFd,
    number: i32,
}

impl Watch {
    /// Watches the file at `path`.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: takes flags only.
        let fd = unsafe { libc::inotify_init1(libc::IN_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let news = libc::IN_CLOSE_WRITE | libc::IN_ATTRIB | libc::IN_DELETE_SELF;
        // SAFETY: the descriptor is open and the path ends with a zero.
        let number = unsafe { libc::inotify_add_watch(fd.as_raw_fd(), path.as_ptr(), news) };
        if number < 0 { Err(io::Error::last_os_error()) } else { Ok(Self { fd, number }) }
    }

    /// Waits for news.
    pub(crate) fn read(&self) -> io::Result<News> {
        const HEAD: usize = size_of::<libc::inotify_event>();
        let mut buffer = [0u8; 4096];
        // SAFETY: the buffer is as long as is said.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
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
            news.renamed |= mask & (libc::IN_ATTRIB | libc::IN_DELETE_SELF) != 0;
            news.over |= mask & libc::IN_IGNORED != 0;
            rest = rest.get(HEAD + name..).unwrap_or_default();
        }
        Ok(news)
    }

    /// Ends the watch; whoever reads is told.
    pub(crate) fn end(&self) {
        // SAFETY: the descriptor is open; a watch that has ended already is an error and nothing else.
        unsafe { libc::inotify_rm_watch(self.fd.as_raw_fd(), self.number) };
    }
}
