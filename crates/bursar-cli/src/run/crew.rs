//! The workers of a run, and the loop that starts, watches and ends them.

use super::finish::{READING_MAX, finish};
use super::hands::Hands;
use super::launch;
use super::line::Listener;
use super::outcome::{Outcome, Trouble};
use super::pump::Pump;
use super::seat::{Room, Seat};
use super::signals::Watch;
use super::strays;
use super::template::Template;
use super::told::{Event, Told};
use super::worker::{Ending, Report, State, Worker};
use crate::output::{BAD, FAINT};
use anstyle::Style;
use rustix::process::{Pid, Signal, WaitOptions, wait, waitpid};
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGTSTP};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a group is looked at whose first process has ended: the last of its others need not be ours to wait for.
const LINGERING_LOOK: Duration = Duration::from_millis(50);

/// How a run goes about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orders {
    /// How often each worker that failed is started again.
    pub(crate) restarts: u32,
    /// Whether the first failure ends the others.
    pub(crate) fail_fast: bool,
    /// How long a worker may take to end when it is asked to.
    pub(crate) grace: Duration,
    pub(crate) json: bool,
}

/// The workers of a run.
#[derive(Debug)]
pub(crate) struct Crew {
    orders: Orders,
    pump: Pump,
    hands: Arc<Hands>,
    workers: Vec<Worker>,
    /// Who is to be started next.
    starting: VecDeque<usize>,
    /// Room that more workers wait for, and how many.
    room: Option<Arc<dyn Room>>,
    expected: u64,
    /// Whether everything is to end.
    stopping: bool,
    told: Told,
    /// Since when the workers are stopped.
    paused: Option<Instant>,
    trouble: Option<Trouble>,
}

impl Crew {
    /// A crew with nobody in it yet.
    pub(crate) fn new(orders: Orders, pump: Pump, hands: Arc<Hands>) -> Self {
        Self {
            orders,
            pump,
            hands,
            workers: Vec::new(),
            starting: VecDeque::new(),
            room: None,
            expected: 0,
            stopping: false,
            told: Told::default(),
            paused: None,
            trouble: None,
        }
    }

    /// A line for people.
    pub(crate) fn say(&self, style: Style, text: impl Into<String>) {
        self.pump.say(style, text);
    }

    /// Runs a worker on each seat, and on so many more as there comes to be room for, until nothing of them is left.
    pub(crate) fn run(
        mut self,
        template: &Template,
        seats: Vec<Seat>,
        more: Option<(Arc<dyn Room>, u64)>,
        listener: &Listener,
    ) -> io::Result<Outcome> {
        let (tell, events) = channel();
        let (told, ordered) = (tell.clone(), tell.clone());
        listener.hear_by(move |signal| drop(ordered.send(Event::Order(signal))));
        let watch = Watch::start(move |signal| drop(told.send(Event::Signal(signal))))?;
        seats.into_iter().for_each(|seat| self.seat(seat));
        let asking = more.map(|(room, count)| self.ask_for_room(room, count, tell)).transpose()?;
        let hands = self.hands.clone();
        while self.is_busy() {
            self.start_next(template);
            self.stand();
            if !self.is_busy() {
                // What could not be started was the last, and nothing would wake us.
                break;
            }
            let event = self.next(&events);
            let _taken = hands.take();
            event.into_iter().for_each(|event| self.hear(event));
            self.look_around();
        }
        self.room.iter().for_each(|room| room.cancel());
        {
            let _taken = hands.take();
            strays::end();
        }
        let patience = self.orders.grace.min(READING_MAX);
        let written = finish(&mut self.pump, &events, &mut self.told, patience);
        listener.hear_no_more();
        drop((watch, events));
        if let Some(asking) = asking {
            // Nobody hears it any more, and it gives back what it was given last.
            let _ = asking.join();
        }
        let is_unread = written.is_none();
        // Where a signal ended us, whoever should have read the rest may be the reason.
        if self.told.signal.is_none() {
            written.unwrap_or(Ok(()))?;
        }
        let reports = self.workers.iter().map(Worker::report).collect();
        Ok(Outcome { reports, signal: self.told.signal, trouble: self.trouble, is_unread })
    }

    /// Asks for room until there is enough, from a thread that may wait.
    fn ask_for_room(&mut self, room: Arc<dyn Room>, count: u64, tell: Sender<Event>) -> io::Result<JoinHandle<()>> {
        self.expected = count;
        self.room = Some(room.clone());
        let ask = move || {
            let granted = (0..count).map_while(|_| room.one_more());
            for granted in granted {
                let failed = granted.is_err();
                if tell.send(Event::Room(granted.map(Box::new))).is_err() || failed {
                    break;
                }
            }
        };
        std::thread::Builder::new().name("room".into()).spawn(ask)
    }

    fn is_busy(&self) -> bool {
        let left = self.workers.iter().any(|worker| worker.group().is_some());
        left || !self.stopping && (self.expected > 0 || !self.starting.is_empty())
    }

    fn seat(&mut self, seat: Seat) {
        self.starting.push_back(self.workers.len());
        self.workers.push(Worker::new(self.workers.len() as u64, seat));
    }

    /// The next thing that happened, waiting for it where there is nothing else to do.
    fn next(&self, events: &Receiver<Event>) -> Option<Event> {
        if self.paused.is_none() && !self.stopping && !self.starting.is_empty() {
            return events.try_recv().ok();
        }
        let lingering = self.workers.iter().any(|worker| matches!(worker.state, State::Lingering { .. }));
        let look = lingering.then(|| Instant::now() + LINGERING_LOOK);
        let kills = self.workers.iter().filter_map(|worker| worker.kill_at).filter(|_| self.paused.is_none());
        let wake = kills.chain(look).min();
        let Some(wake) = wake else { return events.recv().ok() };
        events.recv_timeout(wake.saturating_duration_since(Instant::now())).ok()
    }

    fn hear(&mut self, event: Event) {
        match event {
            // `bursar run` is what a user stops.
            Event::Signal(SIGCHLD | SIGTSTP | SIGCONT) => (),
            Event::Order(SIGTSTP) => self.pause(),
            Event::Order(SIGCONT) => self.go_on(),
            Event::Signal(signal) | Event::Order(signal) => {
                let is_first = self.told.signal.is_none();
                self.told.count(&event);
                self.interrupt(signal, is_first);
            }
            Event::Room(granted) if self.stopping => drop(granted),
            Event::Room(Ok(seat)) => {
                self.expected -= 1;
                self.seat(*seat);
            }
            Event::Room(Err(error)) => {
                self.expected = 0;
                if self.workers.iter().any(|worker| worker.group().is_some()) {
                    self.pump.say(BAD, format!("bursar: no more workers: {error}"));
                }
                self.trouble.get_or_insert(Trouble::Room(error));
            }
        }
    }

    /// Takes note of who has ended, and ends those whose time is over.
    fn look_around(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let leads = |worker: &&mut Worker| worker.state == State::Running { group: pid };
            if let Some(worker) = self.workers.iter_mut().find(leads) {
                worker.state = State::Lingering { group: pid, ending: Ending::of(status) };
                if worker.kill_at.is_none() {
                    // What it left behind has no one to work for.
                    worker.ask_to_end(Signal::TERM, Instant::now() + self.orders.grace);
                }
            }
        }
        for index in 0..self.workers.len() {
            let worker = &mut self.workers[index];
            if self.paused.is_none() && worker.kill_at.is_some_and(|at| at <= Instant::now()) {
                worker.kill();
            }
            if let State::Lingering { ending, .. } = worker.state
                && worker.has_gone()
            {
                worker.state = State::Over { ending };
                worker.kill_at = None;
                self.over(index, ending);
            }
        }
    }

    /// Nothing of a worker is left.
    fn over(&mut self, index: usize, ending: Ending) {
        let worker = &mut self.workers[index];
        self.pump.ended(worker.number);
        if !ending.is_well() && !self.stopping && worker.restarts < self.orders.restarts {
            worker.restarts += 1;
            worker.state = State::Seated;
            let (number, count, of) = (worker.number, worker.restarts, self.orders.restarts);
            self.pump.say(FAINT, format!("bursar: worker {number} {ending}: started again ({count} of {of})"));
            self.starting.push_back(index);
            return;
        }
        let report = self.give_up(index);
        if !report.is_failure() {
            return;
        }
        self.pump.say(BAD, format!("bursar: worker {} {ending}", report.worker));
        if self.orders.fail_fast && !self.stopping {
            self.pump.say(Style::new(), "bursar: ending the other workers (--fail-fast)");
            self.stop(Signal::TERM);
        }
    }

    /// Gives a worker's share back and tells of its end.
    fn give_up(&mut self, index: usize) -> Report {
        let worker = &mut self.workers[index];
        worker.seat = None;
        let report = worker.report();
        if self.orders.json {
            self.pump.answer(serde_json::to_string(&report).unwrap_or_default());
        }
        report
    }

    fn start_next(&mut self, template: &Template) {
        if self.paused.is_some() {
            return;
        }
        let Some(index) = self.starting.pop_front() else { return };
        if let Err(error) = self.start(template, index) {
            self.trouble.get_or_insert(Trouble::Start(error));
            self.stop(Signal::TERM);
        }
    }

    fn start(&mut self, template: &Template, index: usize) -> io::Result<()> {
        let worker = &mut self.workers[index];
        let Some(seat) = &worker.seat else { return Ok(()) };
        let command = template.command(worker.number, seat);
        let hands = self.hands.clone();
        let launch = {
            let _taken = hands.take();
            launch::start(command)?
        };
        let begun = launch.wait();
        let _taken = hands.take();
        let mut child = launch.child;
        let group = Pid::from_child(&child);
        if let Err(error) = begun {
            let _ = waitpid(Some(group), WaitOptions::empty());
            return Err(error);
        }
        worker.state = State::Running { group };
        if let (Some(output), Some(error)) = (child.stdout.take(), child.stderr.take()) {
            self.pump.began(worker.number, output, error);
        }
        Ok(())
    }

    /// The first signal asks the workers to end, the next one ends them.
    fn interrupt(&mut self, signal: i32, is_first: bool) {
        self.go_on();
        if self.stopping {
            if is_first || self.told.is_impatient() {
                self.workers.iter_mut().for_each(Worker::kill);
            }
        } else {
            self.stop(Signal::from_named_raw(signal).unwrap_or(Signal::TERM));
            let grace = self.orders.grace.as_secs_f64();
            self.pump.say(
                Style::new(),
                format!("bursar: ending the workers; those left in {grace} s are killed, or now if asked again"),
            );
        }
    }

    /// Asks every worker to end and starts no other.
    fn stop(&mut self, signal: Signal) {
        self.stopping = true;
        self.expected = 0;
        self.starting.clear();
        self.room.iter().for_each(|room| room.cancel());
        let kill_at = Instant::now() + self.orders.grace;
        for index in 0..self.workers.len() {
            let worker = &mut self.workers[index];
            match worker.state {
                State::Running { .. } | State::Lingering { .. } => {
                    worker.stopped = matches!(worker.state, State::Running { .. });
                    worker.ask_to_end(signal, kill_at);
                }
                State::Seated => {
                    worker.state = State::Over { ending: Ending::Unstarted };
                    self.give_up(index);
                }
                State::Over { .. } => (),
            }
        }
    }

    /// Stops the workers and shows nothing until we [go on](Self::go_on), as `bursar run` is stopped.
    fn pause(&mut self) {
        if self.paused.is_none() {
            self.paused = Some(Instant::now());
            self.workers.iter().for_each(|worker| worker.signal(Signal::STOP));
            self.pump.pause();
        }
    }

    /// Goes on with the workers. Nobody's time ran meanwhile.
    fn go_on(&mut self) {
        let Some(paused) = self.paused.take() else { return };
        for worker in &mut self.workers {
            worker.kill_at = worker.kill_at.map(|at| at + paused.elapsed());
            worker.signal(Signal::CONT);
        }
        self.pump.go_on();
    }

    fn stand(&self) {
        let count = |is: fn(&Worker) -> bool| self.workers.iter().filter(|worker| is(worker)).count();
        let running = count(|worker| worker.group().is_some());
        let well = count(|worker| worker.state == State::Over { ending: Ending::Exit(0) });
        let failed = count(|worker| matches!(worker.state, State::Over { ending } if !ending.is_well()));
        let mut status = format!("{running} running · {well} ended well");
        if failed > 0 {
            status.push_str(&format!(" · {failed} failed"));
        }
        if self.expected > 0 {
            status.push_str(&format!(" · {} waiting for room", self.expected));
        }
        self.pump.stand(status);
    }
}
