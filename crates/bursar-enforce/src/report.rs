//! Sentences on standard error.
#![allow(unsafe_code)]

/// Writes a line to standard error, in one piece where the system takes it. Failures are nobody's concern here.
#[cold]
pub(crate) fn say(text: &str) {
    let line = format!("bursar: {text}\n");
    // SAFETY: the bytes are there for the time of the call.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}
