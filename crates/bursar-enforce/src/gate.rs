//! The gate that every wrapper passes: is there a share to charge, and is this call the program's own?
#![allow(unsafe_code)]

use crate::entry::{NOT_INITIALIZED, OUT_OF_MEMORY};
use crate::share::{self, Share};
use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

thread_local! {
    /// True while this thread is in a wrapper. There is nothing to drop, so that it can be used until the thread is gone.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Set in a process that was forked from one that had taken something: its driver is its parent's.
static FORKED: AtomicBool = AtomicBool::new(false);
/// Set in a program that looks at devices and takes none of their memory.
static OBSERVES: AtomicBool = AtomicBool::new(false);
/// The place of the share. A forked child whose parent has only looked around gets another place, which is made beforehand: between fork
/// and exec nothing may be allocated.
static PLACE: AtomicPtr<SharePlace> = AtomicPtr::new(ptr::null_mut());
static NEXT_PLACE: AtomicPtr<SharePlace> = AtomicPtr::new(ptr::null_mut());

/// The share of this process; none where it has none, and an error where it cannot be used.
type SharePlace = OnceLock<Result<Option<Share>, ()>>;

/// Returns a place, made if there is none.
fn place(at: &AtomicPtr<SharePlace>) -> &'static SharePlace {
    let mut known = at.load(Acquire);
    if known.is_null() {
        let new = Box::into_raw(Box::new(OnceLock::new()));
        // Of two threads that come here at once, one leaves its place unused.
        known = at.compare_exchange(ptr::null_mut(), new, AcqRel, Acquire).err().unwrap_or(new);
    }
    // SAFETY: a place is never freed.
    unsafe { &*known }
}

/// A call of the program, until it returns. Calls that the driver makes of itself meanwhile pass, and `errno` is left as it was.
#[derive(Debug)]
pub(crate) struct Inside {
    errno: c_int,
}

/// Begins a call of the program; none within another call of the same thread.
#[inline]
pub(crate) fn enter() -> Option<Inside> {
    (!INSIDE.replace(true)).then(|| Inside { errno: errno() })
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        INSIDE.set(false);
        if errno() != self.errno {
            set_errno(self.errno);
        }
    }
}

fn errno() -> c_int {
    // SAFETY: the C library returns the address of a variable of this thread.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: the variable exists as long as its thread.
    unsafe { at.read() }
}

fn set_errno(value: c_int) {
    // SAFETY: as above.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { at.write(value) };
}

/// The decision about a call.
pub(crate) enum Admission {
    /// There is no share of a device: the driver decides alone.
    Pass,
    /// The share to charge.
    Share(&'static Share),
    /// Nothing may be taken, because the share cannot be used: the status that says so.
    Refused(c_int),
}

/// Returns the share of this process, opened when it is first asked for.
#[inline]
pub(crate) fn share() -> Admission {
    if FORKED.load(Relaxed) {
        return Admission::Refused(NOT_INITIALIZED);
    }
    if OBSERVES.load(Relaxed) {
        return Admission::Pass;
    }
    match place(&PLACE).get().unwrap_or_else(open) {
        Ok(Some(share)) => Admission::Share(share),
        Ok(None) => Admission::Pass,
        Err(()) => Admission::Refused(OUT_OF_MEMORY),
    }
}

/// Lets everything pass from now on.
pub(crate) fn observe() {
    OBSERVES.store(true, Relaxed);
}

#[cold]
fn open() -> &'static Result<Option<Share>, ()> {
    if !Share::is_named() {
        return place(&PLACE).get_or_init(|| Ok(None));
    }
    watch_forks();
    place(&NEXT_PLACE);
    place(&PLACE).get_or_init(|| {
        Share::open().map_err(|why| {
            crate::report::say(&format!("this program's share cannot be used, so it is given no memory: {why}"));
        })
    })
}

/// Has a child that is forked from now on know that the share, and perhaps the driver, are its parent's.
fn watch_forks() {
    extern "C" fn in_child() {
        INSIDE.set(false);
        if share::has_taken() {
            FORKED.store(true, Relaxed);
        } else {
            PLACE.store(NEXT_PLACE.swap(ptr::null_mut(), Relaxed), Relaxed);
        }
    }
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !WATCHED.swap(true, Relaxed) {
        // SAFETY: the handler stores flags and pointers, of the process and of its only thread.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}
