//! Files that replace an earlier one only once they are complete.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

/// Calls `write` with a temporary file that is then renamed to `path`, so that an earlier file, perhaps the one being
/// converted, is replaced only by a complete one. Special files such as pipes are written directly, and so is an existing
/// file in a folder where no other can be created.
pub(super) fn write(path: &Path, write: impl FnOnce(File) -> io::Result<()>) -> io::Result<()> {
    let earlier = fs::metadata(path).ok();
    if earlier.as_ref().is_some_and(|there| !there.is_file()) {
        return write(OpenOptions::new().write(true).open(path)?);
    }
    // Of a symbolic link, the file it points to is replaced.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = target.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = target.with_file_name(name);
    let file = match OpenOptions::new().write(true).create_new(true).open(&part) {
        Ok(file) => file,
        Err(_) if earlier.is_some() => return write(File::create(path)?),
        Err(error) => return Err(error),
    };
    let permitted = earlier.map_or(Ok(()), |earlier| file.set_permissions(earlier.permissions()));
    let written = permitted.and_then(|()| write(file)).and_then(|()| fs::rename(&part, &target));
    if written.is_err() {
        // It was created here, and nobody else knows of it.
        let _ = fs::remove_file(&part);
    }
    written
}
