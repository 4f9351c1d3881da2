//! Files that appear once they are whole.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

/// Lets `write` fill a file that is moved to `path` at the end, so that an earlier one, perhaps the one that was converted, is
/// lost only to a whole one. What is no plain file, such as a pipe, is written to as it is; so is a file in a folder where no
/// other can be made.
pub(super) fn create(path: &Path, write: impl FnOnce(File) -> io::Result<()>) -> io::Result<()> {
    let earlier = fs::metadata(path).ok();
    if earlier.as_ref().is_some_and(|there| !there.is_file()) {
        return write(OpenOptions::new().write(true).open(path)?);
    }
    // Where there is a link, the file it names is replaced.
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = place.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = place.with_file_name(name);
    let file = match OpenOptions::new().write(true).create_new(true).open(&part) {
        Ok(file) => file,
        Err(_) if earlier.is_some() => return write(File::create(path)?),
        Err(error) => return Err(error),
    };
    let kept = earlier.map_or(Ok(()), |earlier| file.set_permissions(earlier.permissions()));
    let written = kept.and_then(|()| write(file)).and_then(|()| fs::rename(&part, &place));
    if written.is_err() {
        // It was made here, and nobody else knows of it.
        let _ = fs::remove_file(&part);
    }
    written
}
