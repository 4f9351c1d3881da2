//! Tags: the purpose of an allocation as a small integer.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// The purpose of an allocation. A tag is a small dense integer, so the hot path never sees a string; make one with
/// [`tag!`](crate::tag!), which interns its name once, at first use.
///
/// ```
/// use bursar::memory::AllocTag;
/// use bursar::tag;
///
/// let weights = tag!("weights");
/// assert_eq!(weights, AllocTag::intern("weights"));
/// assert_eq!(weights.to_string(), "weights");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocTag(u32);

struct Names {
    index: HashMap<&'static str, u32>,
    names: Vec<&'static str>,
}

static NAMES: Mutex<Option<Names>> = Mutex::new(None);

/// The number of tags there are, to be read without the lock; only grows.
static COUNT: AtomicU32 = AtomicU32::new(1);

fn with_names<T>(f: impl FnOnce(&mut Names) -> T) -> T {
    let mut guard = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    f(guard.get_or_insert_with(|| Names { index: HashMap::from([("untagged", 0)]), names: vec!["untagged"] }))
}

impl AllocTag {
    /// The tag of an allocation that nobody named.
    pub const UNTAGGED: Self = Self(0);

    /// Returns the tag called `name`: the same for the same name, for the life of the process. The memory of a new name
    /// is never freed, so a name should stand for a kind of allocation and not for a single one.
    pub fn intern(name: &str) -> Self {
        with_names(|names| {
            if let Some(&id) = names.index.get(name) {
                return Self(id);
            }
            let id = names.names.len() as u32;
            let name: &'static str = Box::leak(name.into());
            names.names.push(name);
            names.index.insert(name, id);
            COUNT.store(id + 1, Ordering::Release);
            Self(id)
        })
    }

    /// Returns the name it was made with.
    pub fn name(self) -> &'static str {
        with_names(|names| names.names[self.0 as usize])
    }

    /// Returns every tag there is, oldest first.
    pub fn all() -> impl Iterator<Item = Self> {
        let count = with_names(|names| names.names.len());
        (0..count as u32).map(Self)
    }

    /// Returns a small dense integer, to index tables by.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the tag with this [index](Self::index), if there is one: for boundaries that carry numbers alone.
    ///
    /// ```
    /// use bursar::memory::AllocTag;
    /// use bursar::tag;
    ///
    /// assert_eq!(AllocTag::from_index(tag!("weights").index()), Some(tag!("weights")));
    /// assert_eq!(AllocTag::from_index(usize::MAX), None);
    /// ```
    #[inline]
    pub fn from_index(index: usize) -> Option<Self> {
        (index < COUNT.load(Ordering::Acquire) as usize).then_some(Self(index as u32))
    }
}

impl fmt::Display for AllocTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for AllocTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.name())
    }
}

/// Returns the [`AllocTag`](crate::AllocTag) of a name written in the source, which is interned once, at first use.
///
/// ```
/// use bursar::tag;
///
/// assert_eq!(tag!("kv-cache").name(), "kv-cache");
/// ```
#[macro_export]
macro_rules! tag {
    ($name:literal) => {{
        static TAG: ::std::sync::OnceLock<$crate::AllocTag> = ::std::sync::OnceLock::new();
        *TAG.get_or_init(|| $crate::AllocTag::intern($name))
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_name_is_one_tag_on_every_thread() {
        let tags: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| tag!("same"))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert!(tags.iter().all(|tag| *tag == AllocTag::intern("same")));
        assert_ne!(AllocTag::intern("other"), tags[0]);
    }
}
