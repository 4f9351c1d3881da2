//! The acts of processes in the model.

use super::actor::{self, Actor, DeviceHandles};
use super::{AWAY, DEVICES, DelegationRecord, HOME, LIMIT, Model, check_allowed, check_fair, subject};
use crate::system::Process;
use crate::system::simulated::Pid;
use crate::{Delegation, Ledger, LedgerError, ProcessUsage, ReserveOptions, api};
use bursar_core::{Account, Bytes, Error};
use std::path::Path;
use std::sync::Arc;

/// Returns the options of a request: some have a label, and some leave a part of the device free.
fn options(bytes: u64) -> ReserveOptions {
    let options = if bytes.is_multiple_of(2) {
        ReserveOptions::new().label("the longest label that there is room for in a row")
    } else {
        ReserveOptions::new()
    };
    if bytes.is_multiple_of(3) { options.keep_free_millionths(200_000) } else { options }
}

impl Model {
    pub(super) fn start(&self) {
        let (pid, kernel) = self.world.start();
        self.actors.borrow_mut().push(Actor::new(pid, Arc::new(Process::new(kernel))));
    }

    pub(super) fn device(&self) -> usize {
        self.below(DEVICES as u64) as usize
    }

    pub(super) fn ledger(&self, pid: Pid, device: usize) -> Option<Ledger> {
        self.end(pid, device, |handles| handles.ledgers.last().cloned()).flatten()
    }

    pub(super) fn open(&self, pid: Pid) {
        let device = self.device();
        let Some(process) = self.with(pid, |actor| Arc::clone(&actor.process)) else { return };
        if self.end(pid, device, |handles| handles.ledgers.len()).is_none_or(|ledgers| ledgers > 1) {
            return;
        }
        let open = || Ledger::open_by(&process, Path::new(HOME), &subject(device));
        self.run(pid, open, |actor, opened| match opened {
            Ok(ledger) => actor.devices[device].ledgers.push(ledger),
            Err(error) => check_allowed(&error),
        });
    }

    /// Drops one handle of a process, chosen at random.
    pub(super) fn drop_something(&self, pid: Pid) {
        self.drop_handle(pid, self.device(), self.below(17));
    }

    pub(super) fn drop_handle(&self, pid: Pid, device: usize, which: u64) {
        let taken = self.end(pid, device, |handles| handles.take(which)).flatten();
        let Some((handle, given)) = taken else { return };
        if let Some(given) = given
            && let Some(given) = self.given.borrow_mut().get_mut(&given)
        {
            given.kept = false;
        }
        self.run(pid, || drop(handle), |actor, ()| actor.devices[device].settle());
    }

    /// Drops all handles of a process for one device; what is charged to its account stays charged.
    pub(super) fn close(&self, pid: Pid) {
        let device = self.device();
        // Each kind twice: reclaimers, publishers, futures, drawn reservations, delegations, reservations, accounts, ledgers.
        let which = [15, 14, 13, 11, 10, 6, 5, 0].into_iter().flat_map(|which| [which; 2]);
        for which in which {
            self.drop_handle(pid, device, which);
        }
    }

    pub(super) fn reserve(&self, pid: Pid) {
        let device = self.device();
        let bytes = 1 + self.below(LIMIT);
        let Some(ledger) = self.ledger(pid, device) else { return };
        self.run(
            pid,
            move || ledger.reserve_with(Bytes(bytes), &options(bytes)),
            |actor, reserved| match reserved {
                Ok(reservation) => actor.devices[device].reservations.push((reservation, bytes)),
                Err(error) => self.refused(device, &error),
            },
        );
    }

    pub(super) fn charge(&self, pid: Pid) {
        let device = self.device();
        let bytes = 1 + self.below(LIMIT / 4);
        let known = self.end(pid, device, |handles| handles.accounts.last().cloned()).flatten();
        let ledger = self.ledger(pid, device);
        let in_the_middle = self.stopped.borrow().contains(&pid);
        if known.is_none() && (ledger.is_none() || in_the_middle) {
            return;
        }
        let charge = move || {
            let account = known.map_or_else(|| ledger.unwrap().account(), Ok)?;
            let charged = account.charge(Bytes(bytes));
            Ok::<_, LedgerError>((account, charged))
        };
        self.run(pid, charge, |actor, done| match done {
            Ok((account, charged)) => {
                let handles = &mut actor.devices[device];
                // A third handle would be a clone of one that is there.
                if handles.accounts.len() < 2 {
                    handles.accounts.push(account);
                }
                match charged {
                    Ok(()) => handles.held += bytes,
                    Err(error) => self.refused(device, &error),
                }
            }
            Err(error) => check_allowed(&error),
        });
    }

    pub(super) fn release(&self, pid: Pid) {
        let device = self.device();
        let part = self.below(LIMIT);
        let Some((account, bytes)) = self.end(pid, device, |handles| handles.give_back(part)).flatten() else { return };
        self.run(pid, move || account.release(Bytes(bytes)), |_, ()| {});
    }

    pub(super) fn listen(&self, pid: Pid) {
        let device = self.device();
        let Some(ledger) = self.ledger(pid, device) else { return };
        self.run(
            pid,
            move || ledger.on_reclaim(|_| Bytes::ZERO),
            |actor, reclaimer| {
                actor.devices[device].reclaimers.push(reclaimer);
            },
        );
    }

    /// Publishes that so much is used, by one publisher at a time.
    pub(super) fn publish(&self, pid: Pid) {
        let device = self.device();
        let bytes = 1 + self.below(LIMIT);
        let Some(ledger) = self.ledger(pid, device) else { return };
        let known = self.end(pid, device, |handles| {
            handles.published.push(bytes);
            !handles.publishers.is_empty()
        });
        if known != Some(false) {
            return;
        }
        let publish = move || {
            let publisher =
                ledger.publish(move || ProcessUsage { live: Some(Bytes(bytes)), ..ProcessUsage::default() });
            publisher.publish_now();
            publisher
        };
        self.run(pid, publish, |actor, publisher| actor.devices[device].publishers.push(publisher));
    }

    pub(super) fn delegate(&self, pid: Pid) {
        let device = self.device();
        let Some((reservation, bytes)) = self.end(pid, device, |handles| handles.reservations.pop()).flatten() else {
            return;
        };
        // A delegation that fails drops its reservation.
        let number = self.random.borrow_mut().next_u64();
        self.run(
            pid,
            move || reservation.delegate(),
            |actor, delegated: Result<Delegation, Error>| match delegated {
                Ok(delegation) => {
                    let given = DelegationRecord { device, bytes, token: delegation.token(), kept: true };
                    self.given.borrow_mut().insert(number, given);
                    actor.devices[device].delegations.push((delegation, number));
                }
                Err(error) => check_fair(&error),
            },
        );
        if !self.given.borrow().contains_key(&number) {
            self.end(pid, device, DeviceHandles::settle);
        }
    }

    pub(super) fn draw(&self, pid: Pid) {
        let device = self.device();
        let tokens: Vec<(u64, String)> = {
            let given = self.given.borrow();
            let here = given.iter().filter(|(_, given)| given.device == device && given.kept);
            here.map(|(number, given)| (*number, given.token.clone())).collect()
        };
        if tokens.is_empty() {
            return;
        }
        let (number, token) = tokens[self.below(tokens.len() as u64) as usize].clone();
        let Some(process) = self.with(pid, |actor| Arc::clone(&actor.process)) else { return };
        self.run(
            pid,
            move || api::from_token(&process, &token),
            |actor, drawn| match drawn {
                Ok(drawn) => actor.devices[device].drawn.push((drawn, number)),
                Err(error) => check_allowed(&error),
            },
        );
    }

    pub(super) fn wait(&self, pid: Pid) {
        let device = self.device();
        let bytes = 1 + self.below(LIMIT);
        let Some(ledger) = self.ledger(pid, device) else { return };
        let future = Box::pin(ledger.reserve_async_with(Bytes(bytes), options(bytes)));
        drop(ledger);
        self.end(pid, device, |handles| handles.waiting.push((future, bytes)));
        self.poll(pid);
    }

    pub(super) fn poll(&self, pid: Pid) {
        let device = self.device();
        let Some((future, bytes)) = self.end(pid, device, |handles| handles.waiting.pop()).flatten() else { return };
        self.run(
            pid,
            move || actor::polled(future),
            |actor, (future, polled)| {
                let handles = &mut actor.devices[device];
                match polled {
                    None => handles.waiting.push((future, bytes)),
                    // Dropped later, so that others can act before.
                    Some(polled) => {
                        handles.finished.push(future);
                        match polled {
                            Ok(reservation) => handles.reservations.push((reservation, bytes)),
                            Err(error) => self.refused(device, &error),
                        }
                    }
                }
            },
        );
    }

    pub(super) fn fork(&self, pid: Pid) {
        let Some(process) = self.with(pid, |actor| Arc::clone(&actor.process)) else { return };
        let mut child = None;
        let forked = process.forked(|| {
            let (pid, kernel) = self.world.fork(pid);
            child = Some(pid);
            kernel
        });
        // A child that was killed while it closed its parent's descriptors does not come into being.
        if let (Some(forked), Some(child)) = (forked, child)
            && self.world.is_alive(child)
        {
            self.actors.borrow_mut().push(Actor::new(child, Arc::new(forked)));
        }
    }

    pub(super) fn kill(&self, pid: Pid) {
        let actor = {
            let mut actors = self.actors.borrow_mut();
            let at = actors.iter().position(|actor| actor.pid == pid);
            at.map(|at| actors.remove(at))
        };
        let Some(actor) = actor else { return };
        for (_, number) in actor.devices.iter().flat_map(|handles| &handles.delegations) {
            if let Some(given) = self.given.borrow_mut().get_mut(number) {
                given.kept = false;
            }
        }
        self.remains.borrow_mut().push((actor, self.world.kill(pid)));
        self.discard_dead_processes();
        self.check_sum();
    }

    /// Discards what killed processes left in memory, unless a process is stopped in the middle of a call.
    pub(super) fn discard_dead_processes(&self) {
        if self.stopped.borrow().is_empty() {
            self.world.discard(self.remains.take());
        }
    }

    pub(super) fn move_files(&self) {
        self.moved.set(true);
        let file = format!("{HOME}/{}", subject(self.device()).file_name());
        match self.below(6) {
            0 => self.world.rename(HOME, AWAY),
            1..=2 => {
                let between = "/shm/between";
                self.world.rename(HOME, between);
                self.world.rename(AWAY, HOME);
                self.world.rename(between, AWAY);
            }
            3 => self.world.rename(AWAY, HOME),
            4 => self.world.remove(HOME),
            _ => self.world.remove(&file),
        }
    }
}
