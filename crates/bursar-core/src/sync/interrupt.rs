//! Waits that end before their time because whoever waits is wanted elsewhere.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

thread_local! {
    /// The question whether the waits of this thread are to end.
    static ASKED: RefCell<Option<Rc<dyn Fn() -> bool>>> = const { RefCell::new(None) };
}

/// The longest that a wait which may be interrupted sleeps before it looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Has waits for memory and for streams that this thread begins in `run` end as if their time were over, from the moment at which
/// `is_interrupted` returns true. They ask it again and again on this thread, some of them thousands of times a second.
///
/// For languages whose programs are interrupted: what they call ends with the refusal that the end of its time would have been,
/// and has changed as little.
///
/// ```
/// use bursar::memory::Account;
/// use bursar::{Bytes, Error, sync};
/// use std::time::Duration;
///
/// #[derive(Debug)]
/// struct Full;
///
/// impl Account for Full {
///     fn charge(&self, bytes: Bytes) -> bursar::Result<()> {
///         Err(Error::out_of_budget(bytes, Bytes::ZERO, Bytes::ZERO))
///     }
///     fn release(&self, _: Bytes) {}
/// }
///
/// let refused = sync::interruptible(|| true, || Full.charge_within(Bytes(1), Duration::MAX));
/// assert!(refused.unwrap_err().is_capacity());
/// assert!(!sync::is_interrupted());
/// ```
pub fn interruptible<T>(is_interrupted: impl Fn() -> bool + 'static, run: impl FnOnce() -> T) -> T {
    /// Puts back what was asked before, also when `run` panics.
    struct Before(Option<Rc<dyn Fn() -> bool>>);
    impl Drop for Before {
        fn drop(&mut self) {
            let _ended = ASKED.replace(self.0.take());
        }
    }
    let _before = Before(ASKED.replace(Some(Rc::new(is_interrupted))));
    run()
}

/// Returns whether this thread is to wait no longer. See [`interruptible`].
pub fn is_interrupted() -> bool {
    let asked = ASKED.with_borrow(Clone::clone);
    asked.is_some_and(|asked| asked())
}

/// Returns the longest that a wait of this thread may sleep before it asks whether it is [interrupted](is_interrupted); `None`
/// where nobody can interrupt it.
pub fn interrupt_interval() -> Option<Duration> {
    ASKED.with_borrow(Option::is_some).then_some(LOOK_EVERY)
}
