//! Memory that the driver takes for a program without being asked: modules and kernels that are loaded when they are first used,
//! their stacks, the workspaces of its libraries.
//!
//! No call tells of it. NVML knows how much this process has of the device, and what that is beyond the charge is charged as well: at
//! most once a second while less than an eighth of the share is left, and before a refusal. Where NVML lists the process under a number
//! that it does not know itself by, as in some containers, nothing can be told, and only what the context took at first is charged.

use crate::nvml;
use crate::share::Share;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// The growth that is charged, and the moment of the last look.
#[derive(Debug, Default)]
struct Growth {
    charged: u64,
    looked: Option<Instant>,
}

static GROWTH: Mutex<Growth> = Mutex::new(Growth { charged: 0, looked: None });
/// The contexts that there are: without one there is nothing to look for.
static CONTEXTS: AtomicU64 = AtomicU64::new(0);

fn growth() -> MutexGuard<'static, Growth> {
    GROWTH.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks if it is time to and little is left.
#[inline]
pub(crate) fn look_if_near(share: &Share) {
    if share.at_hand() < share.bytes() / 8 {
        look_again(share);
    }
}

/// Looks if it is time to.
#[cold]
pub(crate) fn look_again(share: &Share) {
    if CONTEXTS.load(Relaxed) == 0 {
        return;
    }
    let mut growth = growth();
    if growth.looked.is_some_and(|looked| looked.elapsed() < INTERVAL) {
        return;
    }
    growth.looked = Some(Instant::now());
    let before = share.charged_here();
    let Some(used) = nvml::used_here(share) else { return };
    // Memory is charged before it is taken and given back after it is free: the larger figure is nearer to what was taken.
    let Some((before, after)) = before.zip(share.charged_here()) else { return };
    let asked_for = before.max(after).saturating_sub(growth.charged);
    let grown = used.saturating_sub(asked_for);
    if grown > growth.charged {
        // Of what does not fit any more, as much as does.
        let more = (grown - growth.charged).min(share.undrawn());
        growth.charged += if share.charge(more) { more } else { 0 };
    } else {
        share.release(growth.charged - grown);
        growth.charged = grown;
    }
}

/// Takes note of a context that was made.
pub(crate) fn context_made() {
    CONTEXTS.fetch_add(1, Relaxed);
}

/// Takes note of a context that has ended; with the last of them, the charge for growth does.
pub(crate) fn context_ended(share: &Share) {
    if CONTEXTS.fetch_sub(1, Relaxed) == 1 {
        share.release(std::mem::take(&mut growth().charged));
    }
}
