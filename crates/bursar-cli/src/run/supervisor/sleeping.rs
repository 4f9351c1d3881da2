//! Workers that sleep while they are stopped: a thread that has them fall asleep and wake, one request after the other.
//!
//! A worker is stopped only once its memory sleeps and its share is given back, since a process that is stopped meets no
//! request. It is continued before its memory wakes, for the same reason; its work waits for that by itself. An order that comes
//! while another is being met ends that one early, and has all that is left of it.

use super::events::Event;
use crate::run::slots::SlotShare;
use bursar::ledger::{Ledger, LedgerError, RemoteCall, RemoteError, RemoteRequest};
use rustix::process::{Pid, getpgid};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The longest that work under way is waited for. Workers whose memory does not sleep by then are stopped as they are.
const FALL_ASLEEP_MAX: Duration = Duration::from_secs(60);

/// The longest that a worker may wait for what its share has, once that was taken again.
const WAKE_MAX: Duration = Duration::from_secs(60);

/// The interval of looking whether a request is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The way that workers sleep while they are stopped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SleepPolicy {
    /// True if their shares are kept, so that waking waits for nobody.
    pub(crate) keep_place: bool,
}

/// A worker that is to fall asleep or to wake.
pub(super) struct SleepingWorker {
    /// Its processes, if it has any.
    pub(super) group: Option<Pid>,
    /// Its share, for as long as it has one.
    pub(super) share: Weak<dyn SlotShare>,
}

/// An order to the thread, by its number.
struct SleepOrder {
    number: u64,
    falling: Vec<SleepingWorker>,
    waking: Vec<SleepingWorker>,
}

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct SleepThread {
    orders: Sender<SleepOrder>,
    /// The number of the last order: earlier ones are not wanted any more.
    last: Arc<AtomicU64>,
}

impl SleepThread {
    /// Starts the thread, which tells of workers that sleep and of those that could not wake.
    pub(super) fn start(policy: SleepPolicy, events: Sender<Event>) -> io::Result<Self> {
        let (orders, received) = channel();
        let last = Arc::new(AtomicU64::new(0));
        let sleeper = Sleeper { policy, events, last: last.clone() };
        std::thread::Builder::new().name("sleep".into()).spawn(move || sleeper.run(&received))?;
        Ok(Self { orders, last })
    }

    /// Has workers fall asleep and wake, instead of whatever was ordered before. Returns the number of the order.
    pub(super) fn order(&self, falling: Vec<SleepingWorker>, waking: Vec<SleepingWorker>) -> u64 {
        let number = self.last.fetch_add(1, SeqCst) + 1;
        // Fails only once the thread has ended, with this process.
        let _ = self.orders.send(SleepOrder { number, falling, waking });
        number
    }

    /// Ends early whatever is being done.
    pub(super) fn cancel(&self) {
        self.last.fetch_add(1, SeqCst);
    }
}

impl Drop for SleepThread {
    fn drop(&mut self) {
        self.cancel();
    }
}

struct Sleeper {
    policy: SleepPolicy,
    events: Sender<Event>,
    last: Arc<AtomicU64>,
}

impl Sleeper {
    fn run(&self, orders: &Receiver<SleepOrder>) {
        for SleepOrder { number, falling, waking } in orders {
            for (workers, wakes) in [(falling, false), (waking, true)] {
                if workers.is_empty() || self.is_over(number) {
                    continue;
                }
                let failure = if wakes { self.wake(number, &workers) } else { self.fall_asleep(number, &workers) };
                if self.events.send(Event::Slept { number, wakes, failure }).is_err() {
                    return;
                }
            }
        }
    }

    fn is_over(&self, number: u64) -> bool {
        self.last.load(SeqCst) != number
    }

    /// Has workers fall asleep, and gives their shares back. Returns what went wrong.
    fn fall_asleep(&self, number: u64, workers: &[SleepingWorker]) -> Option<String> {
        let request = RemoteRequest::Sleep { keep_place: self.policy.keep_place, patience: FALL_ASLEEP_MAX };
        let (met, failure) = self.ask(number, workers, request);
        if !self.policy.keep_place && !self.is_over(number) {
            // Whoever does not sleep goes on with his share.
            let asleep = workers.iter().filter(|worker| worker.group.is_some_and(|group| met.contains(&group)));
            let shares = asleep.filter_map(|worker| worker.share.upgrade());
            let given_up = shares.map(|share| share.give_up()).collect::<bursar::Result<Vec<()>>>();
            return failure.or(given_up.err().map(|error| error.to_string()));
        }
        failure
    }

    /// Takes the shares of workers again, waiting for them, and has the workers wake. Returns what went wrong.
    fn wake(&self, number: u64, workers: &[SleepingWorker]) -> Option<String> {
        for share in workers.iter().filter_map(|worker| worker.share.upgrade()) {
            match share.take_again(&|| self.is_over(number)) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(error.to_string()),
            }
        }
        self.ask(number, workers, RemoteRequest::Wake { patience: WAKE_MAX }).1
    }

    /// Asks every process of the workers that listens, and waits for all of them. Returns the groups that have done as they were
    /// asked, and what went wrong first.
    fn ask(&self, number: u64, workers: &[SleepingWorker], request: RemoteRequest) -> (Vec<Pid>, Option<String>) {
        let (mut met, mut failure) = (Vec::new(), None);
        let calls = match self.begin(number, workers, request, &mut failure) {
            Ok(calls) => calls,
            Err(error) => return (met, Some(error.to_string())),
        };
        for (group, call) in calls {
            let ended = loop {
                match call.wait(LOOK_EVERY) {
                    None if self.is_over(number) => break None,
                    None => {}
                    ended => break ended,
                }
            };
            match ended {
                Some(Ok(_)) => met.push(group),
                // A process that has ended has nothing.
                Some(Err(RemoteError::Ended { .. } | RemoteError::Withdrawn { .. })) | None => {}
                Some(Err(error)) => drop(failure.get_or_insert(error.to_string())),
            }
        }
        (met, failure)
    }

    fn begin(
        &self,
        number: u64,
        workers: &[SleepingWorker],
        request: RemoteRequest,
        failure: &mut Option<String>,
    ) -> Result<Vec<(Pid, RemoteCall)>, LedgerError> {
        let group_of = |pid: u32| {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
            getpgid(Some(pid)).ok().filter(|group| workers.iter().any(|worker| worker.group == Some(*group)))
        };
        let mut calls = Vec::new();
        for file in Ledger::list()? {
            // Workers have only ledgers that can be read.
            let Ok(reading) = Ledger::inspect(&file) else { continue };
            for process in reading.processes.iter().filter(|process| process.listens) {
                let Some(group) = group_of(process.pid) else { continue };
                match self.begin_one(number, &Ledger::open_file(&file)?, process.pid, request) {
                    Ok(call) => calls.extend(call.map(|call| (group, call))),
                    Err(RemoteError::Ended { .. } | RemoteError::NotHere { .. }) => {}
                    Err(error) => drop(failure.get_or_insert(error.to_string())),
                }
            }
        }
        Ok(calls)
    }

    /// Asks a process, after whatever it was asked before.
    fn begin_one(
        &self,
        number: u64,
        ledger: &Ledger,
        pid: u32,
        request: RemoteRequest,
    ) -> Result<Option<RemoteCall>, RemoteError> {
        loop {
            match ledger.ask(pid, request) {
                Err(RemoteError::Busy { .. }) if self.is_over(number) => return Ok(None),
                Err(RemoteError::Busy { .. }) => std::thread::sleep(LOOK_EVERY),
                asked => return asked.map(Some),
            }
        }
    }
}
