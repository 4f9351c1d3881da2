//! The supervisor of a run: the loop that starts, watches and ends its workers.
//!
//! A worker is a process group. One thread starts, signals and reaps, under the [`ChildLock`], so that no process number is
//! used after it was given back. A process that leaves its group is reparented to this process when its parent ends, and is
//! killed at the end of the run.

mod command_template;
mod drain;
mod events;
mod outcome;
mod pausing;
mod sleeping;
mod worker;

pub(super) use command_template::{CommandTemplate, names_a_device};
pub(super) use outcome::{RunFailure, RunOutcome};
pub(super) use sleeping::SleepPolicy;

use super::output::OutputThread;
use super::processes::child_lock::ChildLock;
use super::processes::signal_socket::SignalReceiver;
use super::processes::signals::SignalWatch;
use super::processes::{children, launch};
use super::slots::{Slot, SlotSource};
use crate::output::{BAD, FAINT};
use anstyle::Style;
use drain::{DRAIN_MAX, drain};
use events::{Event, StopRequests};
use outcome::StartError;
use rustix::process::{Pid, Signal, WaitOptions, wait, waitpid};
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGTSTP};
use sleeping::SleepThread;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use worker::{Ending, Worker, WorkerReport, WorkerState};

/// The interval of looking at groups whose first process has ended: the others need not be our children, so that no signal
/// tells of their end.
const LINGERING_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The policy of a run.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    /// The number of times that each failed worker is started again.
    pub(crate) restarts: u32,
    /// True if the first failure ends the other workers.
    pub(crate) fail_fast: bool,
    /// The time that a worker has to end when it is asked to.
    pub(crate) grace: Duration,
    pub(crate) json: bool,
    /// The driver of the devices; none for the machine's memory.
    pub(crate) driver: Option<String>,
    /// True if the devices are simulated.
    pub(crate) is_simulated: bool,
    /// The way that workers sleep while they are stopped; none where they do not.
    pub(crate) sleep: Option<SleepPolicy>,
}

/// The workers of a run.
#[derive(Debug)]
pub(crate) struct Supervisor {
    policy: Policy,
    output: OutputThread,
    child_lock: Arc<ChildLock>,
    workers: Vec<Worker>,
    /// The indices of the workers to start next.
    starting: VecDeque<usize>,
    /// The source of slots for more workers.
    slot_source: Option<Arc<dyn SlotSource>>,
    /// The number of workers that still wait for a slot.
    waiting_for_slots: u64,
    /// True once everything is to end.
    is_stopping: bool,
    stop_requests: StopRequests,
    /// The moment at which the workers were stopped.
    paused_at: Option<Instant>,
    /// The thread that has workers sleep while they are stopped.
    sleep: Option<SleepThread>,
    start_error: Option<StartError>,
}

impl Supervisor {
    /// Creates a supervisor without workers.
    pub(crate) fn new(policy: Policy, output: OutputThread, child_lock: Arc<ChildLock>) -> Self {
        Self {
            policy,
            output,
            child_lock,
            workers: Vec::new(),
            starting: VecDeque::new(),
            slot_source: None,
            waiting_for_slots: 0,
            is_stopping: false,
            stop_requests: StopRequests::default(),
            paused_at: None,
            sleep: None,
            start_error: None,
        }
    }

    /// Prints a line for people.
    pub(crate) fn say(&self, style: Style, text: impl Into<String>) {
        self.output.say(style, text);
    }

    /// Runs a worker on each slot, and so many more as `more` says when there are slots for them, until no process of them is
    /// left.
    pub(crate) fn run(
        mut self,
        template: &CommandTemplate,
        slots: Vec<Slot>,
        more: Option<(Arc<dyn SlotSource>, u64)>,
        forwarded: &SignalReceiver,
    ) -> io::Result<RunOutcome> {
        let (sender, events) = channel();
        let (signals, forwarded_signals) = (sender.clone(), sender.clone());
        forwarded.set_handler(move |signal| drop(forwarded_signals.send(Event::Forwarded(signal))));
        let watch = SignalWatch::start(move |signal| drop(signals.send(Event::Signal(signal))))?;
        let start_sleep = |policy| SleepThread::start(policy, sender.clone());
        self.sleep = self.policy.sleep.map(start_sleep).transpose()?;
        slots.into_iter().for_each(|slot| self.add_worker(slot));
        let requesting = more.map(|(source, count)| self.request_slots(source, count, sender)).transpose()?;
        let child_lock = self.child_lock.clone();
        while self.is_busy() {
            self.start_next(template);
            self.update_status();
            if !self.is_busy() {
                // The last worker could not be started, and no event would come.
                break;
            }
            let event = self.next(&events);
            let _guard = child_lock.lock();
            event.into_iter().for_each(|event| self.handle(event));
            self.reap();
        }
        self.slot_source.iter().for_each(|source| source.cancel());
        {
            let _guard = child_lock.lock();
            children::kill_all();
        }
        let patience = self.policy.grace.min(DRAIN_MAX);
        let written = drain(&mut self.output, &events, &mut self.stop_requests, patience);
        forwarded.clear_handler();
        drop((watch, events));
        if let Some(requesting) = requesting {
            // Its receiver is gone, so it gives back the last slot that it got, and ends.
            let _ = requesting.join();
        }
        let is_unread = written.is_none();
        // If a signal ended the run, output that could not be written is no further failure: its reader may be the reason.
        if self.stop_requests.signal.is_none() {
            written.unwrap_or(Ok(()))?;
        }
        let Policy { driver, is_simulated, .. } = &self.policy;
        let reports = self.workers.iter().map(|worker| worker.report(driver.clone(), *is_simulated)).collect();
        Ok(RunOutcome { reports, signal: self.stop_requests.signal, start_error: self.start_error, is_unread })
    }

    /// Starts a thread that waits for `count` slots, one after the other.
    fn request_slots(
        &mut self,
        source: Arc<dyn SlotSource>,
        count: u64,
        events: Sender<Event>,
    ) -> io::Result<JoinHandle<()>> {
        self.waiting_for_slots = count;
        self.slot_source = Some(source.clone());
        let request = move || {
            let slots = (0..count).map_while(|_| source.wait_for_slot());
            for slot in slots {
                let failed = slot.is_err();
                if events.send(Event::Slot(slot.map(Box::new))).is_err() || failed {
                    break;
                }
            }
        };
        std::thread::Builder::new().name("slots".into()).spawn(request)
    }

    /// Returns whether there are workers that run, or are still to be started.
    fn is_busy(&self) -> bool {
        let is_running = self.workers.iter().any(|worker| worker.group().is_some());
        is_running || !self.is_stopping && (self.waiting_for_slots > 0 || !self.starting.is_empty())
    }

    fn add_worker(&mut self, slot: Slot) {
        self.starting.push_back(self.workers.len());
        self.workers.push(Worker::new(self.workers.len() as u64, slot));
    }

    /// Returns the next event, and waits for it if there is nothing else to do.
    fn next(&self, events: &Receiver<Event>) -> Option<Event> {
        if self.paused_at.is_none() && !self.is_stopping && !self.starting.is_empty() {
            return events.try_recv().ok();
        }
        let is_lingering = |worker: &Worker| matches!(worker.state, WorkerState::Lingering { .. });
        let poll = self.workers.iter().any(is_lingering).then(|| Instant::now() + LINGERING_POLL_INTERVAL);
        let kills = self.workers.iter().filter_map(|worker| worker.kill_at).filter(|_| self.paused_at.is_none());
        let deadline = kills.chain(poll).min();
        let Some(deadline) = deadline else { return events.recv().ok() };
        events.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
    }

    fn handle(&mut self, event: Event) {
        match event {
            // A user stops and continues `bursar run`, which forwards that.
            Event::Signal(SIGCHLD | SIGTSTP | SIGCONT) => (),
            Event::Forwarded(SIGTSTP) => self.pause(),
            Event::Forwarded(SIGCONT) => self.resume(),
            Event::Signal(signal) | Event::Forwarded(signal) => {
                let is_first = self.stop_requests.signal.is_none();
                self.stop_requests.count(&event);
                self.interrupt(signal, is_first);
            }
            Event::Slept { number, wakes, failure } => self.handle_slept(number, wakes, failure),
            Event::Slot(slot) if self.is_stopping => drop(slot),
            Event::Slot(Ok(slot)) => {
                self.waiting_for_slots -= 1;
                self.add_worker(*slot);
            }
            Event::Slot(Err(error)) => {
                self.waiting_for_slots = 0;
                if self.workers.iter().any(|worker| worker.group().is_some()) {
                    self.output.say(BAD, format!("bursar: no more workers: {error}"));
                }
                self.start_error.get_or_insert(StartError::Memory(error));
            }
        }
    }

    /// Reaps processes that have ended, and kills workers whose time is over.
    fn reap(&mut self) {
        let stops =
            if self.sleep.is_some() { WaitOptions::UNTRACED | WaitOptions::CONTINUED } else { WaitOptions::empty() };
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG | stops) {
            if status.stopped() || status.continued() {
                self.note_stop(pid, status);
                continue;
            }
            let leads = |worker: &&mut Worker| worker.state == WorkerState::Running { group: pid };
            if let Some(worker) = self.workers.iter_mut().find(leads) {
                worker.state = WorkerState::Lingering { group: pid, ending: Ending::of(status) };
                if worker.kill_at.is_none() {
                    // The rest of its group has no purpose without it.
                    worker.ask_to_end(Signal::TERM, Instant::now() + self.policy.grace);
                }
            }
        }
        for index in 0..self.workers.len() {
            let worker = &mut self.workers[index];
            if self.paused_at.is_none() && worker.kill_at.is_some_and(|at| at <= Instant::now()) {
                worker.kill();
            }
            if let WorkerState::Lingering { ending, .. } = worker.state
                && worker.has_gone()
            {
                worker.state = WorkerState::Ended { ending };
                worker.kill_at = None;
                self.finish_worker(index, ending);
            }
        }
    }

    /// Restarts a worker that has ended, or reports its end.
    fn finish_worker(&mut self, index: usize, ending: Ending) {
        let worker = &mut self.workers[index];
        self.output.worker_ended(worker.number);
        if !ending.is_success() && !self.is_stopping && worker.restarts < self.policy.restarts {
            worker.restarts += 1;
            worker.state = WorkerState::Pending;
            let (number, count, of) = (worker.number, worker.restarts, self.policy.restarts);
            self.output.say(FAINT, format!("bursar: worker {number} {ending}: started again ({count} of {of})"));
            self.starting.push_back(index);
            self.wake_if_asleep(index);
            return;
        }
        let report = self.release_slot(index);
        if !report.is_failure() {
            return;
        }
        self.output.say(BAD, format!("bursar: worker {} {ending}", report.worker));
        if self.policy.fail_fast && !self.is_stopping {
            self.output.say(Style::new(), "bursar: ending the other workers (--fail-fast)");
            self.stop(Signal::TERM);
        }
    }

    /// Gives a worker's slot back and reports its end.
    fn release_slot(&mut self, index: usize) -> WorkerReport {
        let worker = &mut self.workers[index];
        worker.slot = None;
        let report = worker.report(self.policy.driver.clone(), self.policy.is_simulated);
        if self.policy.json {
            self.output.write_json(serde_json::to_string(&report).unwrap_or_default());
        }
        report
    }

    /// Starts the next pending worker, unless paused.
    fn start_next(&mut self, template: &CommandTemplate) {
        if self.paused_at.is_some() {
            return;
        }
        let Some(index) = self.starting.pop_front() else { return };
        if let Err(error) = self.start(template, index) {
            self.start_error.get_or_insert(StartError::Command(error));
            self.stop(Signal::TERM);
        }
    }

    fn start(&mut self, template: &CommandTemplate, index: usize) -> io::Result<()> {
        let worker = &mut self.workers[index];
        let Some(slot) = &worker.slot else { return Ok(()) };
        let command = template.command(worker.number, slot);
        let child_lock = self.child_lock.clone();
        let launch = {
            let _guard = child_lock.lock();
            launch::start(command)?
        };
        let started = launch.wait();
        let _guard = child_lock.lock();
        let mut child = launch.child;
        let group = Pid::from_child(&child);
        if let Err(error) = started {
            let _ = waitpid(Some(group), WaitOptions::empty());
            return Err(error);
        }
        worker.state = WorkerState::Running { group };
        if let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) {
            self.output.worker_started(worker.number, stdout, stderr);
        }
        Ok(())
    }

    /// Asks the workers to end at the first signal, and kills them at the next.
    fn interrupt(&mut self, signal: i32, is_first: bool) {
        self.resume();
        if self.is_stopping {
            if is_first || self.stop_requests.is_repeated() {
                self.workers.iter_mut().for_each(Worker::kill);
            }
        } else {
            self.stop(Signal::from_named_raw(signal).unwrap_or(Signal::TERM));
            let grace = self.policy.grace.as_secs_f64();
            self.output.say(
                Style::new(),
                format!("bursar: ending the workers; those left in {grace} s are killed, or now if asked again"),
            );
        }
    }

    /// Asks every worker to end, and starts no more.
    fn stop(&mut self, signal: Signal) {
        self.is_stopping = true;
        self.waiting_for_slots = 0;
        self.sleep.iter().for_each(SleepThread::cancel);
        self.starting.clear();
        self.slot_source.iter().for_each(|source| source.cancel());
        let kill_at = Instant::now() + self.policy.grace;
        for index in 0..self.workers.len() {
            let worker = &mut self.workers[index];
            match worker.state {
                WorkerState::Running { .. } | WorkerState::Lingering { .. } => {
                    worker.stopped = matches!(worker.state, WorkerState::Running { .. });
                    worker.ask_to_end(signal, kill_at);
                }
                WorkerState::Pending => {
                    worker.state = WorkerState::Ended { ending: Ending::Unstarted };
                    self.release_slot(index);
                }
                WorkerState::Ended { .. } => (),
            }
        }
    }

    /// Sets the status line.
    fn update_status(&self) {
        let count = |is: fn(&Worker) -> bool| self.workers.iter().filter(|worker| is(worker)).count();
        let running = count(|worker| worker.group().is_some());
        let well = count(|worker| worker.state == WorkerState::Ended { ending: Ending::Exit(0) });
        let failed = count(|worker| matches!(worker.state, WorkerState::Ended { ending } if !ending.is_success()));
        let mut status = format!("{running} running · {well} ended well");
        if failed > 0 {
            status.push_str(&format!(" · {failed} failed"));
        }
        if self.waiting_for_slots > 0 {
            status.push_str(&format!(" · {} waiting for room", self.waiting_for_slots));
        }
        self.output.set_status(status);
    }
}
