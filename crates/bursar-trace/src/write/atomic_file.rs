//! Files that replace an earlier one only once they are complete.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file that appears at its path once it is complete: it is written under a temporary name in the same folder and
/// renamed by [`finish`](Self::finish), so that nobody sees half of it and an earlier file, with its permissions, stays
/// until then. If dropped before, it leaves nothing behind.
///
/// Of a symbolic link, the file it points to is replaced. Special files such as pipes are written directly, and so is an
/// existing file in a folder where no other can be created.
///
/// ```
/// use bursar::trace::AtomicFile;
/// use std::io::Write;
///
/// # let path = std::env::temp_dir().join(format!("bursar-atomic-{}.txt", std::process::id()));
/// let file = AtomicFile::create(&path)?;
/// assert!(!path.exists());
/// file.finish(|out| out.write_all(b"complete"))?;
/// assert_eq!(std::fs::read_to_string(&path)?, "complete");
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct AtomicFile {
    file: BufWriter<File>,
    target: Target,
}

/// The way in which the written bytes get to the path.
#[derive(Debug)]
enum Target {
    /// They are written to a special file.
    Special,
    /// They overwrite an existing file.
    Existing,
    /// The file `temporary` is renamed to `path`.
    Renamed { temporary: PathBuf, path: PathBuf },
}

impl AtomicFile {
    /// Creates the temporary file, so that a folder that cannot be written fails at once.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let earlier = fs::metadata(path).ok();
        if earlier.as_ref().is_some_and(|there| !there.is_file()) {
            return Ok(Self::new(OpenOptions::new().write(true).open(path)?, Target::Special));
        }
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut name = OsString::from(".");
        name.push(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
        name.push(format!(".{}.part", std::process::id()));
        let temporary = path.with_file_name(name);
        let file = match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Ok(file) => file,
            Err(_) if earlier.is_some() => {
                return Ok(Self::new(OpenOptions::new().write(true).open(&path)?, Target::Existing));
            }
            Err(error) => return Err(error),
        };
        let this = Self::new(file, Target::Renamed { temporary, path });
        earlier.map_or(Ok(()), |earlier| this.file.get_ref().set_permissions(earlier.permissions()))?;
        Ok(this)
    }

    fn new(file: File, target: Target) -> Self {
        Self { file: BufWriter::with_capacity(1 << 18, file), target }
    }

    /// Writes the file by `write` and puts it in its place.
    pub fn finish(mut self, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
        if matches!(self.target, Target::Existing) {
            self.file.get_ref().set_len(0)?;
        }
        write(&mut self.file)?;
        self.file.flush()?;
        match &self.target {
            Target::Renamed { temporary, path } => fs::rename(temporary, path),
            Target::Special | Target::Existing => Ok(()),
        }
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Target::Renamed { temporary, .. } = &self.target {
            // Fails if it was finished, because it was renamed.
            let _gone = fs::remove_file(temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn an_earlier_file_stays_until_the_new_one_is_complete_and_gives_it_its_permissions() {
        let folder = std::env::temp_dir().join(format!("bursar-atomic-file-{}", std::process::id()));
        fs::create_dir(&folder).expect("a temporary folder");
        let (path, link) = (folder.join("file"), folder.join("link"));
        fs::write(&path, "earlier").expect("room");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("it is ours");
        std::os::unix::fs::symlink(&path, &link).expect("room");
        let create = || AtomicFile::create(&link).expect("room");
        let fail = |out: &mut BufWriter<File>| out.write_all(b"half").and(Err(io::Error::other("no more")));
        drop(create());
        assert_eq!(create().finish(fail).expect_err("it failed").to_string(), "no more");
        assert_eq!(fs::read_to_string(&path).expect("a file"), "earlier");
        create().finish(|out| out.write_all(b"new")).expect("room");
        assert_eq!(fs::read_to_string(&path).expect("a file"), "new");
        assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).expect("a link").is_symlink());
        assert_eq!(fs::read_dir(&folder).expect("it is there").count(), 2, "nothing is left beside them");
        fs::remove_dir_all(&folder).expect("our own folder");
    }
}
