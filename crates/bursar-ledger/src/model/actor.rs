//! One process of the model: the handles it has, and what they hold.

use super::DEVICES;
use crate::system::Process;
use crate::system::simulated::Pid;
use crate::{Delegation, Ledger, LedgerAccount, Reclaimer, Reservation, Reserving};
use bursar_core::Result;
use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A request that waits for its turn.
pub(super) type Turn = Pin<Box<Reserving>>;

/// Polls a turn once. It comes back, with what it was given if it was.
pub(super) fn polled(mut turn: Turn) -> (Turn, Option<Result<Reservation>>) {
    let polled = match turn.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    };
    (turn, polled)
}

/// What a process has of one device.
#[derive(Default)]
pub(super) struct End {
    pub(super) ledgers: Vec<Ledger>,
    /// Handles of one account.
    pub(super) accounts: Vec<LedgerAccount>,
    /// What is charged to the account.
    pub(super) held: u64,
    /// What was charged when the last handle of the ledger was dropped: it stays so until the process ends.
    left_behind: u64,
    pub(super) reservations: Vec<(Reservation, u64)>,
    pub(super) delegations: Vec<(Delegation, u64)>,
    pub(super) drawn: Vec<(Reservation, u64)>,
    pub(super) turns: Vec<(Turn, u64)>,
    /// Those whose turn has come.
    pub(super) finished: Vec<Turn>,
    pub(super) reclaimers: Vec<Reclaimer>,
}

impl End {
    /// What this process holds by handles of its own, delegations aside.
    pub(super) fn holds(&self) -> u64 {
        self.held + self.left_behind + self.reservations.iter().map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// Takes one handle out, to be dropped, with the number of the delegation it was, if it was one.
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
                let turn = self.finished.pop().or_else(|| self.turns.pop().map(|(turn, _)| turn));
                turn.map(|turn| boxed(Box::new(turn)))
            }
            _ => self.reclaimers.pop().map(|reclaimer| boxed(Box::new(reclaimer))),
        }
    }

    /// Takes note of what nobody can give back any more.
    pub(super) fn settle(&mut self) {
        let any = !self.ledgers.is_empty()
            || !self.accounts.is_empty()
            || !self.reservations.is_empty()
            || !self.delegations.is_empty()
            || !self.drawn.is_empty()
            || !self.turns.is_empty()
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
    pub(super) ends: [End; DEVICES],
}

impl Actor {
    pub(super) fn new(pid: Pid, process: Arc<Process>) -> Self {
        Self { pid, process, ends: Default::default() }
    }
}
