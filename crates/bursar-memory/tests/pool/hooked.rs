//! A driver that does something else before every call.
#![allow(unsafe_code)]

use bursar_core::{Driver, driver_methods};
use std::fmt;
use std::sync::{Arc, OnceLock};

type Hook = Box<dyn Fn(&'static str) + Send + Sync>;

/// Forwards to another driver; before each call, the hook is told its name.
pub(crate) struct Hooked {
    inner: Arc<dyn Driver>,
    hook: OnceLock<Hook>,
}

impl Hooked {
    pub(crate) fn new(inner: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self { inner, hook: OnceLock::new() })
    }

    pub(crate) fn set(&self, hook: impl Fn(&'static str) + Send + Sync + 'static) {
        assert!(self.hook.set(Box::new(hook)).is_ok(), "it is set once");
    }

    fn before(&self, call: &'static str) {
        if let Some(hook) = self.hook.get() {
            hook(call);
        }
    }
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooked").field("inner", &self.inner).finish_non_exhaustive()
    }
}

macro_rules! hooked {
    (fn $method:ident($($arg:ident: $type:ty),*) -> $answer:ty) => {
        fn $method(&self, $($arg: $type),*) -> $answer {
            self.before(stringify!($method));
            self.inner.$method($($arg),*)
        }
    };
    (unsafe fn $method:ident($($arg:ident: $type:ty),*) -> $answer:ty) => {
        unsafe fn $method(&self, $($arg: $type),*) -> $answer {
            self.before(stringify!($method));
            // SAFETY: the caller's own promise.
            unsafe { self.inner.$method($($arg),*) }
        }
    };
}

// SAFETY: what is given out is what a driver that upholds the contract gave out.
#[deny(clippy::missing_trait_methods)]
unsafe impl Driver for Hooked {
    driver_methods!(hooked);
}
