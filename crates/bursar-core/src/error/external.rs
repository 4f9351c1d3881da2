//! Errors of parts that the core does not know, kept whole.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// An error of a part that the core does not know, such as pinned host memory, with what the core has to know about it.
///
/// It is shown as that error is, and two are equal if they are shown alike.
///
/// ```
/// use bursar::Error;
/// use bursar::error::ExternalError;
/// use std::num::ParseIntError;
///
/// let cause = "many".parse::<u32>().unwrap_err();
/// let error = Error::External(ExternalError::new(cause, false));
/// assert!(error.to_string().contains("invalid digit") && !error.is_capacity());
/// let Error::External(external) = error else { unreachable!() };
/// assert!(external.downcast_ref::<ParseIntError>().is_some());
/// ```
#[derive(Clone)]
pub struct ExternalError {
    cause: Arc<dyn StdError + Send + Sync>,
    is_capacity: bool,
}

impl ExternalError {
    /// Keeps `cause`, which says whether the request could succeed after some memory is freed.
    pub fn new(cause: impl StdError + Send + Sync + 'static, is_capacity: bool) -> Self {
        Self { cause: Arc::new(cause), is_capacity }
    }

    /// Returns whether the request failed for want of memory, so that freeing some and trying again could succeed.
    pub const fn is_capacity(&self) -> bool {
        self.is_capacity
    }

    /// Returns the error that was kept, if it is of this type.
    pub fn downcast_ref<E: StdError + 'static>(&self) -> Option<&E> {
        self.cause.downcast_ref()
    }
}

impl PartialEq for ExternalError {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.cause, &other.cause)
            || (self.is_capacity == other.is_capacity && self.to_string() == other.to_string())
    }
}

impl Eq for ExternalError {}

impl fmt::Display for ExternalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.cause, f)
    }
}

impl fmt::Debug for ExternalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.cause, f)
    }
}

impl StdError for ExternalError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.source()
    }
}
