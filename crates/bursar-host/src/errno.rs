//! Error numbers of the kernel.

use std::fmt;

/// An error number of the kernel, shown with the text that the system has for it.
///
/// ```
/// use bursar::host::Errno;
///
/// let refused: Box<dyn std::error::Error> = Errno(libc::EPERM).into();
/// assert_eq!(refused.to_string(), "Operation not permitted (os error 1)");
/// assert_eq!(std::io::Error::from(Errno(libc::EPERM)).kind(), std::io::ErrorKind::PermissionDenied);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// Returns the last error of this thread.
    pub(crate) fn last() -> Self {
        Self(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// Returns the error number of an error of the standard library, or `EIO` where it has none.
    pub(crate) fn of(error: &std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&std::io::Error::from_raw_os_error(self.0), f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({}: {self})", self.0)
    }
}
