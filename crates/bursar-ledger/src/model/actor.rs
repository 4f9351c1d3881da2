//! One process of the model: its handles, and what they hold.

use super::DEVICES;
use crate::system::Process;
use crate::system::simulated::Pid;
use crate::{Delegation, Ledger, LedgerAccount, Reclaimer, Reservation, ReserveFuture, UsagePublisher};
use bursar_core::Result;
use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A future that waits for a reservation.
pub(super) type WaitingFuture = Pin<Box<ReserveFuture>>;

/// Polls a future once. Returns it, with its result if it is ready.
pub(super) fn polled(mut future: WaitingFuture) -> (WaitingFuture, Option<Result<Reservation>>) {
    let polled = match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    };
    (future, polled)
}

/// The handles of a process for one device.
#[derive(Default)]
pub(super) struct DeviceHandles {
    pub(super) ledgers: Vec<Ledger>,
    /// Handles of one account.
    pub(super) accounts: Vec<LedgerAccount>,
    /// The bytes that are charged to the account.
    pub(super) held: u64,
    /// The bytes that were charged when the last handle of the ledger was dropped: they stay charged until the process
    /// ends.
    left_behind: u64,
    pub(super) reservations: Vec<(Reservation, u64)>,
    pub(super) delegations: Vec<(Delegation, u64)>,
    pub(super) drawn: Vec<(Reservation, u64)>,
    pub(super) waiting: Vec<(WaitingFuture, u64)>,
    /// Futures that have resolved.
    pub(super) finished: Vec<WaitingFuture>,
    pub(super) reclaimers: Vec<Reclaimer>,
    pub(super) publishers: Vec<UsagePublisher>,
    /// The bytes that were ever said to be used.
    pub(super) published: Vec<u64>,
}

impl DeviceHandles {
    /// Returns the bytes that the process holds by handles of its own, not counting delegations.
    pub(super) fn holds(&self) -> u64 {
        self.held + self.left_behind + self.reservations.iter().map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// Takes one handle out, to be dropped, with the number of the delegation if it was one.
    pub(super) fn take(&mut self, which: u64) -> Option<(Box<dyn Any>, Option<u64>)> {
        let boxed = |handle: Box<dyn Any>| (handle, None);
        match which {
            0..=4 => self.ledgers.pop().map(|ledger| boxed(Box::new(ledger))),
            5 => self.accounts.pop().map(|account| boxed(Box::new(account))),
            6..=9 => self.reservations.pop().map(|(reservation, _)| boxed(Box::new(reservation))),
            10 => self.delegations.pop().map(|(delegation, number)| {
                let handle: Box<dyn Any> = Box::new(delegation);
                (handle, Some(number))
            }),
            11..=12 => self.drawn.pop().map(|(drawn, _)| boxed(Box::new(drawn))),
            13 => {
                let future = self.finished.pop().or_else(|| self.waiting.pop().map(|(future, _)| future));
                future.map(|future| boxed(Box::new(future)))
            }
            14 => self.publishers.pop().map(|publisher| boxed(Box::new(publisher))),
            _ => self.reclaimers.pop().map(|reclaimer| boxed(Box::new(reclaimer))),
        }
    }

    /// Accounts for what nobody can release any more, once all handles are gone.
    pub(super) fn settle(&mut self) {
        let any = !self.ledgers.is_empty()
            || !self.accounts.is_empty()
            || !self.reservations.is_empty()
            || !self.delegations.is_empty()
            || !self.drawn.is_empty()
            || !self.waiting.is_empty()
            || !self.finished.is_empty();
        if !any {
            self.left_behind += std::mem::take(&mut self.held);
        }
    }

    /// Takes a part of what the account holds, to be released.
    pub(super) fn give_back(&mut self, part: u64) -> Option<(LedgerAccount, u64)> {
        let account = self.accounts.last()?.clone();
        let bytes = part.min(self.held);
        self.held -= bytes;
        (bytes > 0).then_some((account, bytes))
    }
}

/// A process.
pub(super) struct Actor {
    pub(super) pid: Pid,
    pub(super) process: Arc<Process>,
    pub(super) devices: [DeviceHandles; DEVICES],
}

impl Actor {
    pub(super) fn new(pid: Pid, process: Arc<Process>) -> Self {
        Self { pid, process, devices: Default::default() }
    }
}
