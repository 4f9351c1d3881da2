//! Where in the program a call was made, for drivers that listen.

use super::DeviceContext;
use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::Location;

thread_local! {
    static HERE: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
}

/// A call of the program's own, from one place in its source until this is dropped.
///
/// Entry points that programs call directly are `#[track_caller]` and begin with [`DeviceContext::here`]; a driver that
/// [listens](crate::Driver::listens) asks [`Here::current`] what the call it gets is part of. The outermost place counts,
/// since that is the program's. With a driver that does not listen nothing is written anywhere.
///
/// ```
/// # use bursar_core::*;
/// # fn show(context: &DeviceContext) {
/// {
///     let _here = context.here();
///     assert_eq!(Here::current().is_some(), context.listens());
/// }
/// assert!(Here::current().is_none());
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the place is forgotten when this is dropped"]
pub struct Here {
    has_entered: bool,
    /// It is about the thread that made it.
    thread: PhantomData<*const ()>,
}

impl Here {
    /// Where the program is, as far as an entry point said so.
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
        // A thread whose last destructors run has no place any more.
        let _ = HERE.try_with(|here| here.set(None));
    }
}

impl Drop for Here {
    #[inline]
    fn drop(&mut self) {
        if self.has_entered {
            Self::leave();
        }
    }
}

impl DeviceContext {
    /// From here until the answer is dropped, what this thread asks of a driver that listens is asked by the caller of
    /// this, unless an outer call was there first.
    #[inline]
    #[track_caller]
    pub fn here(&self) -> Here {
        let has_entered = self.listens() && Here::enter(Location::caller());
        Here { has_entered, thread: PhantomData }
    }
}
