//! The share that this program was given: what is charged for the memory it takes, and what it is told.
//!
//! A share is the reservation whose token is in `BURSAR_RESERVATION`, which every process of the program draws on, and beside it what
//! the workers of a device have in common (`BURSAR_RESERVATION_SHARED`). A program that knows nothing of Bursar cannot say which of the
//! two an allocation is for. So its own comes first, and the common part is drawn on where that is used up.

use bursar_core::{Account, Bytes, DeviceId, DeviceUuid, Error};
use bursar_ledger::Reservation;
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The environment variable with the token of what the workers of a device share.
const COMMON_VARIABLE: &str = "BURSAR_RESERVATION_SHARED";

/// Memory of one device that was set aside for this program.
#[derive(Debug)]
pub(crate) struct Share {
    own: Reservation,
    common: Option<Reservation>,
    /// The bytes of what is held that were drawn on the common part.
    drawn_on_common: AtomicU64,
    /// The bytes that this process holds.
    held: AtomicU64,
    /// The most that it held at a time.
    peak: AtomicU64,
}

impl Share {
    /// Returns whether this program was given a share, of whatever memory.
    pub(crate) fn is_named() -> bool {
        static NAMED: OnceLock<bool> = OnceLock::new();
        *NAMED.get_or_init(|| std::env::var_os(Reservation::VARIABLE).is_some_and(|token| !token.is_empty()))
    }

    /// Opens the share; none where it is not a device's.
    pub(crate) fn open() -> Result<Option<Self>, Error> {
        let Some(own) = quietly(Reservation::from_environment)? else { return Ok(None) };
        let is_device = |share: &Reservation| share.ledger().subject().uuid != DeviceUuid([0; 16]);
        if !is_device(&own) {
            return Ok(None);
        }
        let token = |variable| std::env::var(variable).ok().filter(|token| !token.is_empty());
        let common = token(COMMON_VARIABLE).filter(|common| Some(common) != token(Reservation::VARIABLE).as_ref());
        let common = common.map(|common| quietly(|| Reservation::from_token(&common))).transpose()?;
        let common = common.filter(|common| common.ledger().subject().uuid == own.ledger().subject().uuid);
        // A ledger in which that cannot be said now can be used all the same.
        let _ = own.ledger().publish_held();
        let [drawn_on_common, held, peak] = std::array::from_fn(|_| AtomicU64::new(0));
        Ok(Some(Self { own, common, drawn_on_common, held, peak }))
    }

    /// Returns the device that the share is of.
    pub(crate) fn uuid(&self) -> DeviceUuid {
        self.own.ledger().subject().uuid
    }

    pub(crate) const fn reservation(&self) -> &Reservation {
        &self.own
    }

    /// Returns the size of the share.
    pub(crate) fn bytes(&self) -> u64 {
        self.own.bytes().get().saturating_add(self.common.as_ref().map_or(0, |common| common.bytes().get()))
    }

    /// Returns what is left of the share.
    pub(crate) fn undrawn(&self) -> u64 {
        self.own.undrawn().get().saturating_add(self.common.as_ref().map_or(0, |common| common.undrawn().get()))
    }

    /// Returns what can be charged of the share at once: one look, where exactness is worth none more.
    pub(crate) fn at_hand(&self) -> u64 {
        self.own.at_hand().get().saturating_add(self.common.as_ref().map_or(0, |common| common.at_hand().get()))
    }

    /// Gives back what processes held that drew on this share and are gone. A charge does so itself before it is refused.
    pub(crate) fn reclaim_dead(&self) {
        if self.undrawn().saturating_add(self.held()) < self.bytes() {
            // A ledger that cannot be read says so where something is charged.
            let _ = self.own.ledger().availability();
        }
    }

    /// Returns the bytes that this process holds.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// Returns the bytes of the device that this process is charged with, by whichever account; none where they cannot be told. What the
    /// program charges itself with through Bursar is not among those that it [holds](Self::held) here.
    pub(crate) fn charged_here(&self) -> Option<u64> {
        if !charges_itself() {
            return Some(self.held());
        }
        let reading = self.own.ledger().reading().ok()?;
        let here = reading.processes.iter().filter(|process| process.pid == std::process::id());
        Some(here.map(|process| process.held.get()).sum())
    }

    /// Charges all of `bytes` or nothing. Returns whether it did, and explains nothing.
    #[inline]
    pub(crate) fn charge(&self, bytes: u64) -> bool {
        if bytes == 0 {
            return true;
        }
        let charged = self.own.try_charge(Bytes(bytes)).is_ok() || self.charge_both(bytes);
        if charged {
            let held = self.held.fetch_add(bytes, Relaxed) + bytes;
            if held > self.peak.load(Relaxed) {
                self.note_peak(held);
            }
            note_taking();
        }
        charged
    }

    /// Charges what the own part has left to it, and the rest to the common part.
    #[cold]
    fn charge_both(&self, bytes: u64) -> bool {
        let Some(common) = &self.common else { return false };
        // What is left may change while it is read: then the next try is made with what is left by then.
        for _ in 0..8 {
            let from_own = self.own.undrawn().get().min(bytes);
            if from_own > 0 && self.own.try_charge(Bytes(from_own)).is_err() {
                continue;
            }
            let rest = bytes - from_own;
            if rest == 0 || common.try_charge(Bytes(rest)).is_ok() {
                self.drawn_on_common.fetch_add(rest, Relaxed);
                return true;
            }
            if from_own > 0 {
                self.own.release(Bytes(from_own));
            }
        }
        false
    }

    /// Has the ledger show that so much was held at a time.
    #[cold]
    fn note_peak(&self, held: u64) {
        if self.peak.fetch_max(held, Relaxed) < held {
            self.own.ledger().note_peak(Bytes(self.peak.load(Relaxed)));
        }
    }

    /// Has the ledger count a request that was refused for want of room in the share.
    #[cold]
    pub(crate) fn note_refusal(&self, asked: u64) {
        self.own.note_refusal(&Error::out_of_budget(Bytes(asked), Bytes(self.undrawn()), Bytes(self.bytes())));
    }

    /// Has the ledger count a request for which the driver, which has so much free of so much, had no memory.
    #[cold]
    pub(crate) fn note_refusal_by_driver(&self, asked: u64, (free, total): (u64, u64)) {
        self.own.note_refusal(&Error::out_of_memory(DeviceId(0), Bytes(asked), Bytes(free), Bytes(total)));
    }

    /// Gives back what was charged: first to the common part what was drawn on it.
    #[inline]
    pub(crate) fn release(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.held.fetch_sub(bytes, Relaxed);
        let mut rest = bytes;
        if let Some(common) = &self.common {
            let take = |drawn: u64| Some(drawn - drawn.min(bytes));
            let drawn = self.drawn_on_common.fetch_update(Relaxed, Relaxed, take).unwrap_or(0).min(bytes);
            if drawn > 0 {
                common.release(Bytes(drawn));
            }
            rest -= drawn;
        }
        if rest > 0 {
            self.own.release(Bytes(rest));
        }
    }
}

/// True once the program itself has an account with the ledger of its share.
static CHARGES_ITSELF: AtomicBool = AtomicBool::new(false);

/// Takes note that the program itself has an account with the ledger of its share.
pub(crate) fn note_own_account() {
    CHARGES_ITSELF.store(true, Relaxed);
}

/// Returns whether the program itself has an account with the ledger of its share.
pub(crate) fn charges_itself() -> bool {
    CHARGES_ITSELF.load(Relaxed)
}

/// True once this process has taken something of a device, even if only a context.
static HAS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Returns whether this process has ever taken something of a device.
pub(crate) fn has_taken() -> bool {
    HAS_TAKEN.load(Relaxed)
}

/// Takes note that this process takes something of a device.
pub(crate) fn note_taking() {
    if !HAS_TAKEN.load(Relaxed) {
        HAS_TAKEN.store(true, Relaxed);
    }
}

thread_local! {
    /// True while this library opens the share: that is no account of the program's own.
    static OPENING: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread is opening the share.
pub(crate) fn is_opening() -> bool {
    OPENING.get()
}

/// Opens something of a ledger on behalf of this library.
fn quietly<T>(open: impl FnOnce() -> T) -> T {
    OPENING.set(true);
    let opened = open();
    OPENING.set(false);
    opened
}
