//! Numbers of the program's own pieces of work, which allocations are attributed to.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

thread_local! {
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// A number the program gives to a piece of its work (a query, a request, a training step) so that records of memory
/// can be traced back to it. A [`QueryScope`] sets the number for its thread; outside any, it is [`QueryId::NONE`].
///
/// ```
/// use bursar::observe::{QueryId, QueryScope};
///
/// let _working = QueryScope::enter(QueryId(7));
/// assert_eq!(QueryId::current(), QueryId(7));
/// assert_eq!(QueryId(7).to_string(), "7");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryId(pub u64);

impl QueryId {
    /// No particular piece of work.
    pub const NONE: Self = Self(0);

    /// Returns the number of the work that the current thread does.
    #[inline]
    pub fn current() -> Self {
        Self(CURRENT.get())
    }
}

impl fmt::Display for QueryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The stretch of a thread's work that belongs to one query. When it ends, the thread goes back to what it worked on
/// when it began; scopes are meant to end in the reverse order of their beginnings.
///
/// ```
/// use bursar::observe::{QueryId, QueryScope};
///
/// let outer = QueryScope::enter(QueryId(1));
/// {
///     let _inner = QueryScope::enter(QueryId(2));
///     assert_eq!(QueryId::current(), QueryId(2));
/// }
/// assert_eq!(QueryId::current(), QueryId(1));
/// drop(outer);
/// assert_eq!(QueryId::current(), QueryId::NONE);
/// ```
#[derive(Debug)]
#[must_use = "the scope ends when it is dropped"]
pub struct QueryScope {
    previous: u64,
    /// A scope belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl QueryScope {
    /// Attributes the current thread's work to `query` until the result is dropped.
    pub fn enter(query: QueryId) -> Self {
        Self { previous: CURRENT.replace(query.0), _thread: PhantomData }
    }
}

impl Drop for QueryScope {
    fn drop(&mut self) {
        CURRENT.set(self.previous);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g1_a_query_belongs_to_its_thread_and_ends_even_in_a_panic() {
        let _outer = QueryScope::enter(QueryId(1));
        let elsewhere = std::thread::spawn(QueryId::current).join().expect("no panic");
        assert_eq!(elsewhere, QueryId::NONE);
        let caught = std::panic::catch_unwind(|| {
            let _inner = QueryScope::enter(QueryId(2));
            std::panic::resume_unwind(Box::new(QueryId::current()));
        });
        let inside = *caught.expect_err("it unwound").downcast::<QueryId>().expect("what was thrown");
        assert_eq!((inside, QueryId::current()), (QueryId(2), QueryId(1)));
    }
}
