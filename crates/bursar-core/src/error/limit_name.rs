//! The names of limits.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The name of a limit, as refusals show it, and its identity: two limits are told apart even if they have the same name.
///
/// ```
/// use bursar::error::LimitName;
///
/// let name = LimitName::new("model-a");
/// assert_eq!((name.as_str(), name.to_string().as_str()), ("model-a", "`model-a`"));
/// assert_eq!(LimitName::unnamed("quota").to_string(), "quota");
/// assert!(name == name.clone() && name != LimitName::new("model-a"));
/// ```
#[derive(Clone)]
pub struct LimitName(Arc<Inner>);

struct Inner {
    id: LimitId,
    text: Box<str>,
    /// True for the word that stands for a limit which nobody named.
    is_default: bool,
}

/// The identity of a limit or of a pool, among all of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LimitId(u64);

impl LimitId {
    /// Returns an identity that nothing else in the process has.
    pub(crate) fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Relaxed))
    }
}

impl LimitName {
    /// Makes the name of a limit.
    pub fn new(text: &str) -> Self {
        Self::of(text, false)
    }

    /// Makes the name of a limit that nobody named: the word for its kind.
    pub fn unnamed(kind: &str) -> Self {
        Self::of(kind, true)
    }

    fn of(text: &str, is_default: bool) -> Self {
        Self(Arc::new(Inner { id: LimitId::unique(), text: text.into(), is_default }))
    }

    /// Makes the name of another limit that is called the same.
    #[must_use]
    pub fn for_another(&self) -> Self {
        Self::of(&self.0.text, self.0.is_default)
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    /// Returns whether somebody gave the limit its name.
    pub fn is_named(&self) -> bool {
        !self.0.is_default
    }

    pub(crate) fn id(&self) -> LimitId {
        self.0.id
    }
}

/// Two names are equal if they are those of one limit.
impl PartialEq for LimitName {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for LimitName {}

impl fmt::Display for LimitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.is_default {
            true => f.write_str(&self.0.text),
            false => write!(f, "`{}`", self.0.text),
        }
    }
}

impl fmt::Debug for LimitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
