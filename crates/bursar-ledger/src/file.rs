//! The file of a ledger: made whole or not at all, checked before it is believed.

use crate::book::Book;
use crate::ground::LIVES_AT;
use crate::layout::{Layout, MAGIC, VERSION, header, packed, unpacked};
use crate::sys::{self, Kind};
use crate::words::{Sheet, Words};
use crate::{LedgerError, Subject};
use bursar_core::{Bytes, DeviceUuid};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const SIZE: u64 = Layout::FILE.words() as u64 * 8;

/// A ledger file, open twice: once to be mapped, and once for its locks. See [`crate::ground::Ground::of_file`].
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) path: PathBuf,
    pub(crate) mapped: File,
    pub(crate) lives: File,
    /// Locked together with all who use the ledger, so that nobody makes another while this one is in use.
    pub(crate) users: File,
}

/// Opens the ledger of `subject` in `folder`, or makes it.
pub(crate) fn open_or_make(folder: &Path, subject: &Subject) -> Result<Opened, LedgerError> {
    let path = folder.join(subject.file_name());
    let users = users_of(&path)?;
    // Somebody else may be making it, or leaving: both are short.
    for pause_ms in [0, 1, 2, 5, 10, 20, 50, 100, 200, 500] {
        std::thread::sleep(Duration::from_millis(pause_ms));
        if let Some(opened) = open_with(&path, users.try_clone())? {
            let found = subject_of(&path, &opened.mapped)?;
            return if found.uuid == subject.uuid && found.total == subject.total.min(Bytes(crate::book::BYTES_MAX)) {
                Ok(opened)
            } else {
                Err(LedgerError::OtherDevice {
                    file: path,
                    found: found.uuid,
                    total: found.total,
                    wanted: subject.uuid,
                    expected: subject.total,
                })
            };
        }
        let fd = users.as_raw_fd();
        let alone = sys::try_lock(fd, Kind::Exclusive, 0, 1).map_err(|error| LedgerError::io(&path, "lock", error))?;
        if alone {
            let made = if path.exists() { Ok(()) } else { make(&path, subject) };
            sys::unlock(fd, 0, 1);
            made?;
        }
    }
    Err(LedgerError::InUse { pids: users_in_sight(&path), file: path })
}

/// Opens a ledger that exists.
pub(crate) fn open(path: &Path) -> Result<Opened, LedgerError> {
    let users = users_of(path)?;
    let absent = || LedgerError::io(path, "open", io::ErrorKind::NotFound.into());
    let opened = open_with(path, users.try_clone())?.ok_or_else(absent)?;
    subject_of(path, &opened.mapped)?;
    Ok(opened)
}

fn users_of(path: &Path) -> Result<File, LedgerError> {
    let path = path.with_extension("users");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options.open(&path).map_err(|error| refused(&path, error))
}

fn open_with(path: &Path, users: io::Result<File>) -> Result<Option<Opened>, LedgerError> {
    let failed = |call| move |error| LedgerError::io(path, call, error);
    let users = users.map_err(failed("open"))?;
    let mapped = match writable(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refused(path, error)),
    };
    check_facts(path, &mapped)?;
    // Whoever makes a new file has this lock alone; so what has a name while we share it keeps it or was removed in use.
    if !sys::try_lock(users.as_raw_fd(), Kind::Shared, 0, 1).map_err(failed("lock"))? {
        return Ok(None);
    }
    let lives = writable(path).ok().filter(|lives| is_same(lives, &mapped));
    match lives {
        Some(lives) => Ok(Some(Opened { path: path.to_owned(), mapped, lives, users })),
        None => {
            sys::unlock(users.as_raw_fd(), 0, 1);
            Ok(None)
        }
    }
}

fn writable(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path)
}

fn is_same(one: &File, other: &File) -> bool {
    let of = |file: &File| file.metadata().map(|facts| (facts.dev(), facts.ino())).ok();
    of(one).is_some() && of(one) == of(other)
}

/// Another user's file cannot even be opened, unless one is root.
fn refused(path: &Path, error: io::Error) -> LedgerError {
    let user = sys::user();
    match fs::symlink_metadata(path) {
        Ok(facts) if facts.uid() != user => LedgerError::Owner { file: path.to_owned(), owner: facts.uid(), user },
        _ => LedgerError::io(path, "open", error),
    }
}

fn check_facts(path: &Path, file: &File) -> Result<(), LedgerError> {
    let facts = file.metadata().map_err(|error| LedgerError::io(path, "stat", error))?;
    let (file, mode, user) = (path.to_owned(), facts.permissions().mode() & 0o777, sys::user());
    if !facts.is_file() {
        Err(LedgerError::NotALedger { file })
    } else if facts.uid() != user {
        Err(LedgerError::Owner { file, owner: facts.uid(), user })
    } else if mode & 0o077 != 0 {
        Err(LedgerError::Mode { file, mode })
    } else if facts.size() != SIZE {
        Err(LedgerError::Truncated { file, size: facts.size(), expected: SIZE })
    } else {
        Ok(())
    }
}

/// Makes the file under another name and links it into place, so that nobody ever sees half of it.
fn make(path: &Path, subject: &Subject) -> Result<(), LedgerError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!(".{name}.draft"));
    let failed = |call| move |error| LedgerError::io(path, call, error);
    // Only who has the lock makes drafts, so one that is there was left by somebody who died.
    let _ = fs::remove_file(&draft);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft).map_err(failed("open"))?;
    let written = sys::allocate(&file, SIZE)
        .and_then(|()| file.set_permissions(fs::Permissions::from_mode(0o600)))
        .and_then(|()| file.write_all(&image(subject)))
        .and_then(|()| fs::hard_link(&draft, path));
    let _ = fs::remove_file(&draft);
    match written {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(failed("write")(error)),
        _ => Ok(()),
    }
}

/// A new ledger, as bytes.
pub(crate) fn image(subject: &Subject) -> Vec<u8> {
    let layout = Layout::FILE;
    let sheet = Sheet::new(std::iter::repeat_n(0, layout.words()), Vec::new());
    write_header(&sheet, layout, subject);
    (0..layout.words()).flat_map(|at| sheet.load(at).to_le_bytes()).collect()
}

/// Writes a new ledger's header and first figures.
pub(crate) fn write_header(words: impl Words, layout: Layout, subject: &Subject) {
    let (high, low) = halves(subject.uuid);
    let book = Book::new(words, layout, 0);
    book.found(subject.total.get());
    let words = book.words();
    let fields = [
        (header::MAGIC, MAGIC),
        (header::VERSION, VERSION),
        (header::SHAPE, layout.shape()),
        (header::UUID, high),
        (header::UUID + 1, low),
    ];
    for (at, value) in fields {
        words.store(at, value);
    }
    for (at, word) in packed::<{ header::NAME_WORDS }>(&subject.name).into_iter().enumerate() {
        words.store(header::NAME + at, word);
    }
    words.store(header::CHECKSUM, checksum(words));
}

fn halves(uuid: DeviceUuid) -> (u64, u64) {
    let value = u128::from_be_bytes(uuid.0);
    ((value >> 64) as u64, value as u64)
}

/// FNV-1a over the words that never change.
fn checksum(words: &impl Words) -> u64 {
    let bytes = (0..header::CHECKSUM).flat_map(|at| words.load(at).to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// What a ledger is about, once its header is believed.
pub(crate) fn subject_in(path: &Path, words: &impl Words) -> Result<Subject, LedgerError> {
    let file = path.to_owned();
    if words.load(header::MAGIC) != MAGIC {
        return Err(LedgerError::NotALedger { file });
    }
    if words.load(header::VERSION) != VERSION {
        return Err(LedgerError::Version { file, found: words.load(header::VERSION), ours: VERSION });
    }
    if words.load(header::CHECKSUM) != checksum(words) || words.load(header::SHAPE) != Layout::FILE.shape() {
        return Err(LedgerError::Corrupt { file, what: "its header does not match its checksum".into() });
    }
    let uuid = u128::from(words.load(header::UUID)) << 64 | u128::from(words.load(header::UUID + 1));
    Ok(Subject {
        uuid: DeviceUuid(uuid.to_be_bytes()),
        name: unpacked((0..header::NAME_WORDS).map(|at| words.load(header::NAME + at))),
        total: Bytes(words.load(header::TOTAL)),
    })
}

fn subject_of(path: &Path, file: &File) -> Result<Subject, LedgerError> {
    let copy = Copy::of(path, file)?;
    let subject = subject_in(path, &copy.words)?;
    copy.audit(path)?;
    Ok(subject)
}

/// A copy of a ledger's words.
struct Copy {
    words: Sheet,
    /// Whether nobody changed anything while it was taken.
    whole: bool,
}

impl Copy {
    /// Taken at a moment when nobody changes anything, if one can be had.
    fn of(path: &Path, file: &File) -> Result<Self, LedgerError> {
        let read = || -> io::Result<(Vec<u8>, u64)> {
            let (mut bytes, mut lock) = (vec![0; SIZE as usize], [0; 8]);
            file.read_exact_at(&mut bytes, 0)?;
            file.read_exact_at(&mut lock, header::LOCK as u64 * 8)?;
            Ok((bytes, u64::from_le_bytes(lock)))
        };
        let mut latest = read().map_err(|error| LedgerError::io(path, "read", error))?;
        let mut whole = false;
        for pause_us in [0, 0, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000] {
            std::thread::sleep(Duration::from_micros(pause_us));
            let before = latest;
            latest = read().map_err(|error| LedgerError::io(path, "read", error))?;
            let ((takings, owner), (later, _)) =
                (Book::<Sheet>::lock_state(before.1), Book::<Sheet>::lock_state(latest.1));
            // An owner that is stopped or dead changes nothing either.
            whole = takings == later && (owner.is_none_or(|place| !is_alive(file, place)) || before.0 == latest.0);
            if whole {
                break;
            }
        }
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        let alive = (0..Layout::FILE.places).map(|place| is_alive(file, place)).collect();
        Ok(Self { words: Sheet::new(latest.0.chunks_exact(8).map(word), alive), whole })
    }

    /// Believes the words only if their figures agree, once what was half done is undone.
    fn audit(&self, path: &Path) -> Result<(), LedgerError> {
        let book = Book::new(&self.words, Layout::FILE, Layout::FILE.places);
        let found = book.lock_copy().contradiction().filter(|_| self.whole);
        found.map_or(Ok(()), |what| Err(LedgerError::Corrupt { file: path.to_owned(), what: what.into() }))
    }
}

fn is_alive(file: &File, place: usize) -> bool {
    sys::is_locked(file.as_raw_fd(), Kind::Exclusive, LIVES_AT + place as i64, 1).unwrap_or(true)
}

/// Reads a ledger without joining those who use it.
pub(crate) fn look_at(path: &Path) -> Result<(Subject, Sheet), LedgerError> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path);
    let file = opened.map_err(|error| refused(path, error))?;
    check_facts(path, &file)?;
    let copy = Copy::of(path, &file)?;
    let subject = subject_in(path, &copy.words)?;
    copy.audit(path)?;
    Ok((subject, copy.words))
}

/// Locks a place that nobody else has; those never used come last, so that tables stay short.
pub(crate) fn take_place(opened: &Opened) -> Result<usize, LedgerError> {
    for place in 0..Layout::FILE.places {
        let locked = sys::try_lock(opened.lives.as_raw_fd(), Kind::Exclusive, LIVES_AT + place as i64, 1);
        if locked.map_err(|error| LedgerError::io(&opened.path, "lock", error))? {
            return Ok(place);
        }
    }
    Err(LedgerError::TableFull { file: opened.path.clone(), what: "processes", max: Layout::FILE.places })
}

/// The processes that have the users' file open, as far as they can be seen.
fn users_in_sight(path: &Path) -> Vec<u32> {
    let users = path.with_extension("users");
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let open = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        if pid != std::process::id()
            && open.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|target| target == users)
        {
            found.push(pid);
        }
    }
    found
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_millis().try_into().unwrap_or(u64::MAX)
}
