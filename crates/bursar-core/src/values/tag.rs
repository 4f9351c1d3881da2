//! Tags: the purpose of an allocation as a small integer.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

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

/// The process whose threads take the lock. One that was forked off may have inherited a lock that nobody gives back.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The last process that was found to have inherited such a lock.
static HAS_LOST: AtomicU32 = AtomicU32::new(0);

/// The number of times, a millisecond apart, that a process which was forked off tries to take the lock before it has it once: its
/// other threads, if it has any, keep it for moments.
const FIRST_TRIES: u32 = 50;

/// The name of all tags that are not counted apart.
const OTHERS: &str = "(other tags)";

const OTHER_PROCESS: &str = "a tag of the process that this one was forked from";

/// Calls `f` with the names; `None` in a process that was forked off while a thread of the other one had them, where they may be
/// half written and nobody gives the lock back.
fn with_names<T>(f: impl FnOnce(&mut Names) -> T) -> Option<T> {
    let mut guard = lock_names()?;
    Some(f(guard.get_or_insert_with(|| Names { index: HashMap::from([("untagged", 0)]), names: vec!["untagged"] })))
}

fn lock_names() -> Option<MutexGuard<'static, Option<Names>>> {
    let process = std::process::id();
    match PROCESS.compare_exchange(0, process, Ordering::AcqRel, Ordering::Acquire) {
        Err(owner) if owner != process => lock_inherited(process),
        _ => Some(NAMES.lock().unwrap_or_else(PoisonError::into_inner)),
    }
}

/// Takes the lock in a process that was forked off.
#[cold]
fn lock_inherited(process: u32) -> Option<MutexGuard<'static, Option<Names>>> {
    for _ in 0..FIRST_TRIES {
        if HAS_LOST.load(Ordering::Acquire) == process {
            return None;
        }
        match NAMES.try_lock() {
            Err(TryLockError::WouldBlock) if PROCESS.load(Ordering::Acquire) == process => {
                return Some(NAMES.lock().unwrap_or_else(PoisonError::into_inner));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            Ok(guard) => {
                PROCESS.store(process, Ordering::Release);
                return Some(guard);
            }
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
        }
    }
    HAS_LOST.store(process, Ordering::Release);
    None
}

impl AllocTag {
    /// The tag of an allocation that nobody named.
    pub const UNTAGGED: Self = Self(0);

    /// The tag that counts show in place of those that they do not tell apart: all beyond the first 4,095 of a process.
    pub const OTHERS: Self = Self(u32::MAX);

    /// Returns the tag called `name`: the same for the same name, for the life of the process. The memory of a new name
    /// is never freed, and counts tell 4,095 tags apart, so a name should stand for a kind of allocation and not for a single one.
    ///
    /// A process that was forked off while another thread made a tag has none of its own: it gets [`UNTAGGED`](Self::UNTAGGED).
    pub fn intern(name: &str) -> Self {
        let interned = with_names(|names| {
            if let Some(&id) = names.index.get(name) {
                return Self(id);
            }
            let id = names.names.len() as u32;
            let name: &'static str = Box::leak(name.into());
            names.names.push(name);
            names.index.insert(name, id);
            COUNT.store(id + 1, Ordering::Release);
            Self(id)
        });
        interned.unwrap_or(Self::UNTAGGED)
    }

    /// Returns the tag called `name`, which `place` remembers: zero, or one more than its index. It is for [`tag!`](crate::tag!).
    #[doc(hidden)]
    #[inline]
    pub fn intern_once(place: &AtomicU32, name: &str) -> Self {
        match place.load(Ordering::Relaxed) {
            0 => Self::intern_in(place, name),
            id => Self(id - 1),
        }
    }

    /// Whoever comes at the same time finds the same, so nobody waits for another: in a process that was forked off meanwhile, the
    /// other would never come.
    #[cold]
    fn intern_in(place: &AtomicU32, name: &str) -> Self {
        let tag = Self::intern(name);
        place.store(tag.0 + 1, Ordering::Relaxed);
        tag
    }

    /// Returns the name it was made with.
    pub fn name(self) -> &'static str {
        if self == Self::OTHERS {
            return OTHERS;
        }
        with_names(|names| names.names[self.0 as usize]).unwrap_or(OTHER_PROCESS)
    }

    /// Returns every tag there is, oldest first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..COUNT.load(Ordering::Acquire)).map(Self)
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
        static TAG: ::std::sync::atomic::AtomicU32 = ::std::sync::atomic::AtomicU32::new(0);
        $crate::AllocTag::intern_once(&TAG, $name)
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
