//! A run that is stopped and continued, and workers that are: as they are, or asleep meanwhile.

use super::Supervisor;
use super::sleeping::SleepingWorker;
use super::worker::{PauseState, Worker, WorkerState};
use crate::output::BAD;
use rustix::process::{Pid, Signal, WaitStatus};
use signal_hook::consts::SIGSTOP;
use std::sync::Arc;
use std::time::Instant;

impl Supervisor {
    /// Stops the workers and prints nothing until [`resume`](Self::resume), while `bursar run` is stopped.
    pub(super) fn pause(&mut self) {
        if self.paused_at.is_some() {
            return;
        }
        self.paused_at = Some(Instant::now());
        match self.sleep {
            Some(_) => self.fall_asleep(|worker| worker.pause != PauseState::Stopped),
            None => self.workers.iter().for_each(|worker| worker.signal(Signal::STOP)),
        }
        self.output.pause();
    }

    /// Continues the workers. The time of the pause does not count.
    pub(super) fn resume(&mut self) {
        let Some(paused_at) = self.paused_at.take() else { return };
        for worker in &mut self.workers {
            worker.kill_at = worker.kill_at.map(|at| at + paused_at.elapsed());
            worker.signal(Signal::CONT);
        }
        if self.sleep.is_some() {
            self.wake(|worker| worker.pause != PauseState::Running);
        }
        self.output.resume();
    }

    /// Has workers fall asleep and be stopped then.
    fn fall_asleep(&mut self, is_meant: impl Fn(&Worker) -> bool) {
        for worker in self.workers.iter_mut().filter(|worker| worker.group().is_some() && is_meant(worker)) {
            worker.pause = PauseState::Falling(0);
        }
        self.order_sleep();
    }

    /// Continues workers, and has them wake.
    fn wake(&mut self, is_meant: impl Fn(&Worker) -> bool) {
        for worker in self.workers.iter_mut().filter(|worker| worker.slot.is_some() && is_meant(worker)) {
            worker.pause = PauseState::Waking(0);
            worker.signal(Signal::CONT);
        }
        self.order_sleep();
    }

    /// Has the share of a worker that ended while it slept taken again, for the process that is started in its place.
    pub(super) fn wake_if_asleep(&mut self, index: usize) {
        if self.paused_at.is_none() && self.workers[index].pause != PauseState::Running {
            self.workers[index].pause = PauseState::Waking(0);
            self.order_sleep();
        }
    }

    /// Has all workers that are to fall asleep or to wake do so: what was ordered before ends with this.
    fn order_sleep(&mut self) {
        let Some(sleep) = &self.sleep else { return };
        let sleeping = |worker: &Worker| {
            let share = Arc::downgrade(&worker.slot.as_ref()?.memory);
            Some(SleepingWorker { group: worker.group(), share })
        };
        let of = |is: fn(PauseState) -> bool| {
            self.workers.iter().filter(move |worker| is(worker.pause)).filter_map(sleeping).collect()
        };
        let falling = of(|pause| matches!(pause, PauseState::Falling(_)));
        let waking = of(|pause| matches!(pause, PauseState::Waking(_)));
        let number = sleep.order(falling, waking);
        for worker in &mut self.workers {
            worker.pause = match worker.pause {
                PauseState::Falling(_) => PauseState::Falling(number),
                PauseState::Waking(_) => PauseState::Waking(number),
                pause => pause,
            };
        }
    }

    /// Stops workers that sleep now, and says what went wrong.
    pub(super) fn handle_slept(&mut self, number: u64, wakes: bool, failure: Option<String>) {
        if let Some(failure) = failure {
            let what = if wakes { "could not wake" } else { "is stopped without sleeping" };
            self.output.say(BAD, format!("bursar: a worker {what}: {failure}"));
        }
        for worker in &mut self.workers {
            match worker.pause {
                PauseState::Falling(of) if of == number && !wakes => {
                    worker.pause = PauseState::Stopped;
                    worker.signal(Signal::STOP);
                }
                PauseState::Waking(of) if of == number && wakes => worker.pause = PauseState::Running,
                _ => {}
            }
        }
    }

    /// Takes note that the first process of a worker was stopped or continued by somebody else than the run: one that was
    /// stopped by SIGTSTP or the terminal is continued until it sleeps.
    pub(super) fn note_stop(&mut self, pid: Pid, status: WaitStatus) {
        let leads = |worker: &Worker| worker.state == WorkerState::Running { group: pid };
        let Some(found) = self.workers.iter().find(|worker| leads(worker)) else { return };
        if self.paused_at.is_some() {
            return;
        }
        match (found.pause, status.stopping_signal()) {
            (PauseState::Running | PauseState::Waking(_), Some(signal)) if signal != SIGSTOP => {
                found.signal(Signal::CONT);
                self.fall_asleep(leads);
            }
            (PauseState::Stopped, None) if status.continued() => self.wake(leads),
            _ => {}
        }
    }
}
