//! The share of this process, as `bursar run` gave it: whoever draws on it here, its object and every pool, has it in common, so that
//! a release is everybody's.
#![allow(unsafe_code)]

use crate::failure::Failure;
use crate::reservation::Drawn;
use bursar::ledger::Reservation;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A share that this process, or one that it was forked from, has drawn on.
#[derive(Debug)]
struct Share {
    process: u32,
    token: String,
    drawn: Arc<Drawn>,
    /// The one before.
    next: *mut Share,
}

/// The newest share. There is one for each process and token, and none is ever dropped. No lock guards them, because a process that is
/// forked off meanwhile would never have it.
static NEWEST: AtomicPtr<Share> = AtomicPtr::new(std::ptr::null_mut());

/// Returns the token of this process's share, if it has one.
pub(crate) fn token() -> Option<String> {
    std::env::var(Reservation::VARIABLE).ok().filter(|token| !token.is_empty())
}

/// Returns what this process draws on by the token of its share; `reserved` draws on it for the first time.
pub(crate) fn drawn(
    token: String,
    reserved: impl FnOnce() -> Result<Reservation, Failure>,
) -> Result<Arc<Drawn>, Failure> {
    match oldest(&token) {
        Some(drawn) => Ok(drawn),
        None => Ok(enter(token, reserved()?)),
    }
}

/// Returns what this process draws on, where it was found to have a share.
pub(crate) fn of_process(reserved: Reservation) -> Arc<Drawn> {
    let token = token().unwrap_or_default();
    oldest(&token).unwrap_or_else(|| enter(token, reserved))
}

/// Enters a share. Where another thread does the same, both have the older one.
fn enter(token: String, reserved: Reservation) -> Arc<Drawn> {
    let (process, drawn) = (std::process::id(), Arc::new(Drawn::new(reserved)));
    let next = NEWEST.load(Ordering::Acquire);
    let share = Box::leak(Box::new(Share { process, token, drawn, next }));
    while let Err(newest) = NEWEST.compare_exchange(share.next, share, Ordering::AcqRel, Ordering::Acquire) {
        share.next = newest;
    }
    oldest(&share.token).unwrap_or_else(|| share.drawn.clone())
}

/// Returns the oldest share of this process and token.
fn oldest(token: &str) -> Option<Arc<Drawn>> {
    let (process, mut oldest) = (std::process::id(), None);
    let mut next = NEWEST.load(Ordering::Acquire);
    // SAFETY: null, or a share that was entered, which is never dropped and does not change.
    while let Some(share) = unsafe { next.as_ref() } {
        if share.process == process && share.token == token {
            oldest = Some(&share.drawn);
        }
        next = share.next;
    }
    oldest.cloned()
}
