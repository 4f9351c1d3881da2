//! The place in the program that a call was made from, for drivers that listen.
//!
//! `#[track_caller]` does not pass through a `dyn` seam. So entry points that programs call directly announce their
//! caller, and a driver asks for it where its own caller is inside Bursar. A call that no entry point announced has an
//! unknown place, never a guess.

use super::DeviceContext;
use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::Location;

thread_local! {
    static HERE: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
}

/// The time during which a thread's driver calls are attributed to one place in the program, until this is dropped.
///
/// Entry points that programs call directly are `#[track_caller]` and begin with [`DeviceContext::enter_call_site`]; a
/// driver that [listens](crate::Driver::listens) asks [`CallSite::current`] which of them the call it gets is part of.
/// The outermost place counts, since that is the program's. With a driver that does not listen nothing is recorded.
///
/// ```
/// # use bursar::device::CallSite;
/// # use bursar::prelude::*;
/// # fn show(context: &DeviceContext) {
/// {
///     let _here = context.enter_call_site();
///     assert_eq!(CallSite::current().is_some(), context.listens());
/// }
/// assert!(CallSite::current().is_none());
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the place is forgotten when this is dropped"]
pub struct CallSite {
    has_entered: bool,
    /// It belongs to the thread that made it.
    thread: PhantomData<*const ()>,
}

impl CallSite {
    /// Returns the program's place, if an entry point announced it.
    pub fn current() -> Option<&'static Location<'static>> {
        HERE.try_with(Cell::get).ok().flatten()
    }

    #[cold]
    fn enter(place: &'static Location<'static>) -> bool {
        let entered = HERE.try_with(|here| {
            let is_outermost = here.get().is_none();
            if is_outermost {
                here.set(Some(place));
            }
            is_outermost
        });
        entered.unwrap_or(false)
    }

    #[cold]
    fn leave() {
        // The thread-local variable is gone while the thread's last destructors run.
        let _ = HERE.try_with(|here| here.set(None));
    }
}

impl Drop for CallSite {
    #[inline]
    fn drop(&mut self) {
        if self.has_entered {
            Self::leave();
        }
    }
}

impl DeviceContext {
    /// Attributes what this thread asks of a driver that listens to the caller of this, until the result is dropped,
    /// unless an outer call did so before.
    #[inline]
    #[track_caller]
    pub fn enter_call_site(&self) -> CallSite {
        let has_entered = self.listens() && CallSite::enter(Location::caller());
        CallSite { has_entered, thread: PhantomData }
    }
}
