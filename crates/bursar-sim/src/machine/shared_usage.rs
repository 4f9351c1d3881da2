//! The memory that processes hold of the devices of one name.
//!
//! Every simulator that holds memory of named devices has a small file in the folder of that name, with the bytes it holds
//! of each device. The file stays locked while its simulator lives, and the kernel drops the lock with the process, however
//! it ends; so a file that can be locked belongs to a dead process and counts nothing. A simulator that allocates locks the
//! folder, adds up the files of living simulators, and writes its own before it unlocks. No daemon is needed, and there is
//! no stored total that could become wrong. Devices without a name pay nothing for this: only a name takes an immediate
//! simulator off its shortcuts.
//!
//! A lock is held for moments. One that another process has for longer, most likely because it is stopped, is an error that names it,
//! and gives back without the lock what is freed meanwhile.
//!
//! A forked process shares its parent's locks: until it ends or executes another program, the memory of the parent counts as
//! held.

use bursar_core::is_interrupted;
use bursar_linux::{FOLDER_VARIABLE, create_private_folder, shared_folder, user_id};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The name of the file whose lock is the folder's.
const LOCK: &str = "lock";
/// The suffix of a simulator's file.
const HELD: &str = ".held";
/// The time after which a folder's lock that another process has is an error.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest that a wait for it sleeps before it tries again.
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// The memory that this simulator and others hold of the devices of one name.
#[derive(Debug)]
pub(crate) struct SharedUsage {
    folder: PathBuf,
    /// The bytes held here, by device.
    held: Vec<u64>,
    /// Created with the first allocation, so that a simulator which only asks leaves no file.
    own: Option<OwnFile>,
}

/// A simulator's own file, locked, and the file whose lock is the folder's.
#[derive(Debug)]
struct OwnFile {
    path: PathBuf,
    file: File,
    lock: File,
}

/// The lock of a folder, held.
struct FolderLock<'a>(&'a File);

impl Drop for FolderLock<'_> {
    fn drop(&mut self) {
        // Closing the file drops the lock in any case.
        let _ = self.0.unlock();
    }
}

impl SharedUsage {
    /// Creates the usage of the devices called `name`, in `root` or in the folder that the processes of this user share.
    pub(crate) fn new(name: &str, root: Option<&Path>, devices: usize) -> Self {
        let root = root.map_or_else(|| shared_folder(user_id()), Path::to_owned);
        Self { folder: root.join(folder_name(name)), held: vec![0; devices], own: None }
    }

    /// Counts `bytes` as held here, if all processes together then hold at most `total`. Returns whether they do.
    pub(crate) fn charge(&mut self, device: usize, bytes: u64, total: u64) -> io::Result<bool> {
        if self.own.is_none() {
            self.own = Some(self.create_own_file()?);
        }
        let Some(own) = &self.own else { return Ok(false) };
        let _locked = own.lock_folder()?;
        let mine = self.held[device].saturating_add(bytes);
        let fits = others(&self.folder, Some(&own.path), device)?.saturating_add(mine) <= total;
        if fits {
            own.write(device, mine)?;
            self.held[device] = mine;
        }
        Ok(fits)
    }

    /// Counts `bytes` as no longer held. Needs no lock: whoever adds up meanwhile finds too much, and never too little.
    pub(crate) fn release(&mut self, device: usize, bytes: u64) -> io::Result<()> {
        let Some(own) = &self.own else { return Ok(()) };
        self.held[device] = self.held[device].saturating_sub(bytes);
        own.write(device, self.held[device])
    }

    /// Returns the bytes that all processes hold of a device.
    pub(crate) fn held(&self, device: usize) -> io::Result<u64> {
        if let Some(own) = &self.own {
            let _locked = own.lock_folder()?;
            return Ok(others(&self.folder, Some(&own.path), device)?.saturating_add(self.held[device]));
        }
        loop {
            let path = self.folder.join(LOCK);
            let lock = match File::open(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
                other => other.map_err(|error| self.unusable(&error))?,
            };
            let _locked = locked(&lock, &path, PATIENCE)?;
            if is_same(&lock.metadata()?, &path) {
                return others(&self.folder, None, device);
            }
        }
    }

    /// Returns the bytes that each process holds of a device, where it holds any.
    pub(crate) fn holders(&self, device: usize) -> io::Result<BTreeMap<u32, u64>> {
        // The lock removes the files of dead processes, and holds the others still.
        let _all = self.held(device)?;
        let mut holders = BTreeMap::new();
        for path in files(&self.folder)? {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let process = name.split('-').next().and_then(|process| process.parse().ok());
            let held = File::open(&path).and_then(|file| word(&file, device));
            if let (Some(process), Ok(held @ 1..)) = (process, held) {
                *holders.entry(process).or_default() += held;
            }
        }
        Ok(holders)
    }

    /// Returns the error of a folder that cannot be looked into.
    fn unusable(&self, error: &io::Error) -> io::Error {
        let root = self.folder.parent().unwrap_or(&self.folder).display();
        let advice = format!("set {FOLDER_VARIABLE} to a folder of yours that nobody else can write to");
        io::Error::new(error.kind(), format!("{root}: {error}; {advice}"))
    }

    /// Creates the folder and a file of our own in it.
    fn create_own_file(&self) -> io::Result<OwnFile> {
        loop {
            if let Some(root) = self.folder.parent() {
                create_private_folder(root)?;
            }
            create_private_folder(&self.folder)?;
            let lock_path = self.folder.join(LOCK);
            let opened =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&lock_path);
            let lock = match opened {
                // The last of the other simulators ended and removed the folder.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                other => other?,
            };
            let locked = locked(&lock, &lock_path, PATIENCE)?;
            if !is_same(&lock.metadata()?, &lock_path) {
                continue;
            }
            let (path, file) = own_file(&self.folder)?;
            file.lock()?;
            file.write_all_at(&vec![0; 8 * self.held.len()], 0)?;
            drop(locked);
            return Ok(OwnFile { path, file, lock });
        }
    }
}

impl Drop for SharedUsage {
    /// Removes the file, and the folder with the last file. A file that cannot be removed is found unlocked by the next
    /// simulator.
    fn drop(&mut self) {
        let Some(own) = &self.own else { return };
        let Ok(_locked) = locked(&own.lock, &self.folder.join(LOCK), PATIENCE) else { return };
        let _ = std::fs::remove_file(&own.path);
        if others(&self.folder, None, 0).is_ok() && files(&self.folder).is_ok_and(|files| files.is_empty()) {
            let _ = std::fs::remove_file(self.folder.join(LOCK));
            let _ = std::fs::remove_dir(&self.folder);
        }
    }
}

impl OwnFile {
    /// Locks the folder. Fails if it was removed: other processes would then use a new one, and the sum would be wrong.
    fn lock_folder(&self) -> io::Result<FolderLock<'_>> {
        let locked = locked(&self.lock, &self.path.with_file_name(LOCK), PATIENCE)?;
        if self.file.metadata()?.nlink() == 0 {
            let why = format!("{} was removed while its device was in use", self.path.display());
            return Err(io::Error::new(ErrorKind::NotFound, why));
        }
        Ok(locked)
    }

    fn write(&self, device: usize, held: u64) -> io::Result<()> {
        self.file.write_all_at(&held.to_le_bytes(), 8 * device as u64)
    }
}

/// Takes the lock of a folder, whose file is at `path`, waiting for at most `patience` while another has it.
fn locked<'a>(lock: &'a File, path: &Path, patience: Duration) -> io::Result<FolderLock<'a>> {
    let (began, mut pause) = (Instant::now(), Duration::from_micros(10));
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(FolderLock(lock)),
            Err(TryLockError::WouldBlock) if began.elapsed() < patience && !is_interrupted() => {
                std::thread::sleep(pause);
                pause = PAUSE_MAX.min(pause * 2);
            }
            Err(TryLockError::WouldBlock) => return Err(taken(lock, path)),
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Interrupted => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Returns the error for a lock that another process has had for too long.
fn taken(lock: &File, path: &Path) -> io::Error {
    let (who, remedy) = match owner(lock) {
        Some(pid) => {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            (format!("{} (pid {pid})", name.trim_end()), format!("continue it (`kill -CONT {pid}`) or end it"))
        }
        None => ("another process".into(), "continue it or end it".into()),
    };
    io::Error::new(ErrorKind::TimedOut, format!("{who} has had the lock of {} for too long; {remedy}", path.display()))
}

/// Returns the process that has the lock of a file, where the system says so.
fn owner(lock: &File) -> Option<u32> {
    let file = lock.metadata().ok()?;
    let (major, minor) =
        (file.dev() >> 8 & 0xfff | file.dev() >> 32 & !0xfff, file.dev() & 0xff | file.dev() >> 12 & !0xff);
    let file = format!("{:02x}:{:02x}:{}", major, minor & 0xffff_ffff, file.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    // 1: FLOCK  ADVISORY  WRITE 4711 00:1a:1234 0 EOF
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[_, "FLOCK", _, _, pid, file_of, ..] = &words[..] else { return None };
        (file_of == file).then(|| pid.parse().ok()).flatten().filter(|pid| *pid > 0)
    })
}

/// Returns the bytes that other living simulators hold of a device, and removes the files of dead ones. The folder is
/// locked.
fn others(folder: &Path, own: Option<&Path>, device: usize) -> io::Result<u64> {
    let mut sum = 0u64;
    for path in files(folder)? {
        if Some(path.as_path()) == own {
            continue;
        }
        let file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            other => other?,
        };
        match file.try_lock_shared() {
            Ok(()) => drop(std::fs::remove_file(&path)),
            Err(TryLockError::WouldBlock) => {
                // A simulator with fewer devices holds nothing of this one.
                sum = sum.saturating_add(word(&file, device).unwrap_or(0));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(sum)
}

/// Returns the bytes that a file says are held of a device.
fn word(file: &File, device: usize) -> io::Result<u64> {
    let mut word = [0; 8];
    file.read_exact_at(&mut word, 8 * device as u64)?;
    Ok(u64::from_le_bytes(word))
}

/// Returns the files of simulators in a folder.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let is_one = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(HELD));
    paths.filter(|path| path.as_ref().map_or(true, is_one)).collect()
}

/// Creates a file with a name of its own.
fn own_file(folder: &Path) -> io::Result<(PathBuf, File)> {
    let process = std::process::id();
    for number in 0u64.. {
        let path = folder.join(format!("{process}-{number}{HELD}"));
        match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            other => return other.map(|file| (path, file)),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

fn is_same(opened: &Metadata, path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (opened.dev(), opened.ino()))
}

/// Returns the folder name for a device name: characters with a meaning in paths, and those beyond ASCII, become numbers.
fn folder_name(name: &str) -> OsString {
    let mut folder = "sim-".to_owned();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => folder.push(byte.into()),
            _ => folder.push_str(&format!("%{byte:02x}")),
        }
    }
    folder.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l5_a_name_is_one_folder_whatever_it_is_made_of() {
        for (name, folder) in
            [("pair", "sim-pair"), ("../up", "sim-..%2fup"), ("a b", "sim-a%20b"), ("a%20b", "sim-a%2520b")]
        {
            assert_eq!(folder_name(name), folder);
        }
    }

    #[test]
    fn k3_a_lock_that_another_has_for_too_long_is_named_and_what_is_freed_meanwhile_is_given_back() {
        let root = std::env::temp_dir().join(format!("bursar-stuck-{}", std::process::id()));
        let [mut one, mut other] = [(); 2].map(|()| SharedUsage::new("stuck", Some(&root), 1));
        assert!(one.charge(0, 5, 10).expect("a folder") && other.charge(0, 3, 10).expect("a folder"));
        let path = root.join("sim-stuck").join(LOCK);
        let lock = File::open(&path).expect("a lock");
        let mine = File::open(&path).expect("a lock");
        mine.lock().expect("nobody has it");
        let refused = locked(&lock, &path, Duration::ZERO).map(drop).expect_err("another has it");
        let said = refused.to_string();
        assert!(
            said.contains(&format!("(pid {}) has had the lock of {}", std::process::id(), path.display())),
            "{said}"
        );
        one.release(0, 5).expect("without the lock");
        drop(mine);
        assert_eq!(other.held(0).expect("a folder"), 3);
        drop((one, other));
        std::fs::remove_dir(&root).expect("nothing is left in the folder");
    }

    #[test]
    fn l5_whoever_comes_while_the_last_one_leaves_finds_a_folder() {
        let root = std::env::temp_dir().join(format!("bursar-share-{}", std::process::id()));
        let come_and_go = || -> io::Result<()> {
            for _ in 0..5_000 {
                assert!(SharedUsage::new("busy", Some(&root), 1).charge(0, 1, u64::MAX)?);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let others = [0; 3].map(|_| scope.spawn(come_and_go));
            for other in others {
                other.join().expect("no panic").expect("a folder at every attempt");
            }
        });
        std::fs::remove_dir(&root).expect("nothing is left in the folder");
    }
}
