//! The thread that carries what workers write to where it is shown. It alone writes, so no line is ever torn; and where
//! nobody reads, it alone waits.

use super::lines::Lines;
use super::screen::{Screen, To};
use anstyle::Style;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, ioctl_fionbio, read, write};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{ChildStderr, ChildStdout};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// So much is taken from one worker before the next has its turn.
const TURN_BYTES: usize = 64 << 10;

/// So many such turns empty any pipe: what is written after a worker's end is not its own.
const LAST_TURNS_MAX: usize = 32;

/// How often the status line moves.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// The hand that holds the pump.
#[derive(Debug)]
pub(crate) struct Pump {
    notes: Sender<Note>,
    bell: Arc<OwnedFd>,
    /// How it ended, as long as nobody has asked.
    over: Option<Receiver<io::Result<()>>>,
}

#[derive(Debug)]
enum Note {
    Began { worker: u64, output: ChildStdout, error: ChildStderr },
    Ended { worker: u64 },
    Say { style: Style, text: String },
    Answer { line: String },
    Stand { status: String },
    Pause,
    GoOn,
    Over,
}

impl Pump {
    /// Starts the thread.
    pub(crate) fn start(screen: Screen) -> io::Result<Self> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let ((notes, noted), (ended, over)) = (channel(), channel());
        let mut pumping =
            Pumping { screen, sources: Vec::new(), notes: noted, kept: VecDeque::new(), bell: bell.clone() };
        let pumping = move || drop(ended.send(pumping.run()));
        std::thread::Builder::new().name("output".into()).spawn(pumping)?;
        Ok(Self { notes, bell, over: Some(over) })
    }

    /// A worker began, and writes there.
    pub(crate) fn began(&self, worker: u64, output: ChildStdout, error: ChildStderr) {
        self.note(Note::Began { worker, output, error });
    }

    /// A worker has ended: what it wrote is shown, and nobody listens there any more.
    pub(crate) fn ended(&self, worker: u64) {
        self.note(Note::Ended { worker });
    }

    /// A line for people, on standard error.
    pub(crate) fn say(&self, style: Style, text: impl Into<String>) {
        self.note(Note::Say { style, text: text.into() });
    }

    /// A line for programs, on standard output.
    pub(crate) fn answer(&self, line: String) {
        self.note(Note::Answer { line });
    }

    /// What the status line says.
    pub(crate) fn stand(&self, status: String) {
        self.note(Note::Stand { status });
    }

    /// Shows nothing until [`go_on`](Self::go_on).
    pub(crate) fn pause(&self) {
        self.note(Note::Pause);
    }

    /// Shows everything again.
    pub(crate) fn go_on(&self) {
        self.note(Note::GoOn);
    }

    /// Nothing more will come: what is left is shown.
    pub(crate) fn close(&self) {
        self.go_on();
        self.note(Note::Over);
    }

    /// Waits until a pump that is closed has shown everything; none where that takes longer than `patience`.
    pub(crate) fn wait(&mut self, patience: Duration) -> Option<io::Result<()>> {
        let ended = self.over.as_ref().map_or(Err(RecvTimeoutError::Disconnected), |over| over.recv_timeout(patience));
        match ended {
            Err(RecvTimeoutError::Timeout) => return None,
            _ => self.over = None,
        }
        Some(ended.unwrap_or(Ok(())))
    }

    /// Nobody reads what is left, so nobody waits for it.
    pub(crate) fn give_up(&mut self) {
        self.over = None;
    }

    fn note(&self, note: Note) {
        // A pump that has failed says so when it is finished.
        let _ = self.notes.send(note);
        let _ = write(&*self.bell, &1u64.to_ne_bytes());
    }
}

/// What was said is shown, whatever went wrong afterwards.
impl Drop for Pump {
    fn drop(&mut self) {
        self.close();
        if let Some(over) = self.over.take() {
            let _ = over.recv();
        }
    }
}

/// What the thread has.
#[derive(Debug)]
struct Pumping {
    screen: Screen,
    sources: Vec<Source>,
    notes: Receiver<Note>,
    /// Those that came during a pause.
    kept: VecDeque<Note>,
    bell: Arc<OwnedFd>,
}

/// Where a worker writes.
#[derive(Debug)]
struct Source {
    worker: u64,
    from: OwnedFd,
    to: To,
    lines: Lines,
}

/// Whether more may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum More {
    Now,
    Later,
    Never,
}

impl Source {
    /// Takes what there is, up to a turn's worth.
    fn turn(&mut self, screen: &mut Screen) -> More {
        let mut bytes = [0; TURN_BYTES];
        match read(&self.from, &mut bytes) {
            Ok(0) => More::Never,
            Ok(count) => {
                self.lines.take(&bytes[..count], screen.room(self.to));
                More::Now
            }
            Err(Errno::AGAIN | Errno::INTR) => More::Later,
            Err(_) => More::Never,
        }
    }

    /// Takes the last of it.
    fn close(&mut self, screen: &mut Screen) {
        let _ = (0..LAST_TURNS_MAX).find(|_| self.turn(screen) != More::Now);
        self.lines.finish(screen.room(self.to));
    }
}

impl Pumping {
    fn run(&mut self) -> io::Result<()> {
        let mut written = Ok(());
        loop {
            self.wait_and_take()?;
            let over = self.read_notes()?;
            written = written.and(self.screen.write());
            if over {
                self.screen.clear();
                return written;
            }
        }
    }

    /// Waits until somebody wrote or rang, and takes what was written.
    fn wait_and_take(&mut self) -> io::Result<()> {
        let mut waited: Vec<_> = self.sources.iter().map(|source| PollFd::new(&source.from, PollFlags::IN)).collect();
        waited.push(PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN));
        let tick = self.screen.has_status().then_some(TICK);
        match poll(&mut waited, tick.as_ref()) {
            Ok(0) => self.screen.tick(),
            Ok(_) | Err(Errno::INTR) => (),
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<_> = waited.iter().map(|waited| !waited.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        let screen = &mut self.screen;
        self.sources.retain_mut(|source| {
            let closes = ready.next() == Some(true) && source.turn(screen) == More::Never;
            if closes {
                source.lines.finish(screen.room(source.to));
            }
            !closes
        });
        Ok(())
    }

    /// Does what was asked; whether that was all.
    fn read_notes(&mut self) -> io::Result<bool> {
        let _ = read(&*self.bell, &mut [0; 8]);
        while let Some(note) = self.kept.pop_front().or_else(|| self.notes.try_recv().ok()) {
            match note {
                Note::Began { worker, output, error } => {
                    self.listen(worker, output.into(), To::Output)?;
                    self.listen(worker, error.into(), To::Error)?;
                }
                Note::Ended { worker } => self.close(|source| source.worker == worker),
                Note::Say { style, text } => self.screen.say(style, &text),
                Note::Answer { line } => self.screen.answer(&line),
                Note::Stand { status } => self.screen.stand(status),
                Note::Pause => self.wait_to_go_on(),
                // Nobody waits: the pause was over before it was read of.
                Note::GoOn => (),
                Note::Over => {
                    self.close(|_| true);
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Waits until nothing is paused any more. Lines that workers wrote before they were stopped wait too.
    fn wait_to_go_on(&mut self) {
        while let Ok(note) = self.notes.recv() {
            match note {
                Note::GoOn => break,
                note => self.kept.push_back(note),
            }
        }
    }

    fn listen(&mut self, worker: u64, from: OwnedFd, to: To) -> io::Result<()> {
        ioctl_fionbio(&from, true)?;
        let lines = Lines::new(self.screen.prefix(worker, to));
        self.sources.push(Source { worker, from, to, lines });
        Ok(())
    }

    fn close(&mut self, of: impl Fn(&Source) -> bool) {
        let (closed, open) = std::mem::take(&mut self.sources).into_iter().partition(of);
        self.sources = open;
        let closed: Vec<Source> = closed;
        closed.into_iter().for_each(|mut source| source.close(&mut self.screen));
    }
}
