//! The loop of `bursar top` on a terminal: samples, keys and signals, each from a thread of its own, so that a driver that
//! takes its time holds no key up.

use super::app::{Action, App};
use super::terminal::{self, Screen};
use super::theme::Theme;
use super::view;
use crate::failure::Failure;
use crate::run::is_ignored;
use bursar::metrics::{Sampler, State};
use ratatui::crossterm::event::{self, Event as Input};
use signal_hook::consts::{
    SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU,
    SIGXFSZ,
};
use signal_hook::iterator::Signals;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant, SystemTime};

/// Something that the loop waits for.
#[derive(Debug)]
enum Event {
    Sampled(Box<State>),
    Input(Input),
    Signal(i32),
    /// The keys cannot be read any more.
    InputEnded(io::Error),
    /// The sampling thread panicked, and said so.
    SamplingEnded,
}

/// The time after which a frame is drawn in any case: ages grow.
const TICK: Duration = Duration::from_secs(1);

/// The most events that wait; whoever has more waits himself.
const EVENTS_MAX: usize = 64;

/// The signals that end a program which does not handle them, and that come from outside: those of a fault and of `abort`
/// are the program's own, and nothing of it can be relied on then.
const ENDING: [i32; 12] =
    [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGPROF, SIGIO, SIGXCPU, SIGXFSZ];

/// The real-time signals, which end a program too. Which of them the C library keeps to itself is its own affair.
const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;

/// The thing that ended the watching.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Key,
    Signal(i32),
    Panic,
}

/// Watches until a key or a signal ends it.
pub(super) fn watch(sampler: Sampler, interval: Duration) -> Result<(), Failure> {
    // From here on no signal finds the terminal taken and nobody to give it back.
    let signals = handled_signals().map_err(Failure::Output)?;
    let mut screen = Screen::take().map_err(|error| Failure::Terminal { why: error.to_string() })?;
    let events = start(sampler, interval, signals).map_err(Failure::Output)?;
    let ended = run(&mut screen, &events, App::new(interval)).or_else(|error| match terminal::is_gone() {
        // The signal that says so may come after the first frame that fails.
        true if !is_ignored(SIGHUP) => Ok(Ended::Signal(SIGHUP)),
        _ => Err(error),
    });
    drop(screen);
    match ended.map_err(Failure::Output)? {
        Ended::Key | Ended::Signal(SIGINT) => Ok(()),
        Ended::Signal(signal) => Err(Failure::AlreadyReported { status: 128 + u8::try_from(signal).unwrap_or(0) }),
        Ended::Panic => Err(Failure::AlreadyReported { status: 101 }),
    }
}

fn run(screen: &mut Screen, events: &Receiver<Event>, mut app: App) -> io::Result<Ended> {
    let theme = Theme::from_environment();
    loop {
        app.tick(now_ms());
        screen.draw(|frame| view::draw(frame, &mut app, theme))?;
        let mut event = match events.recv_timeout(TICK) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Ok(Ended::Panic),
        };
        // All that has come is drawn at once.
        while let Some(one) = event.take() {
            if let Some(ended) = handle(one, &mut app, screen)? {
                return Ok(ended);
            }
            event = events.try_recv().ok();
        }
    }
}

/// Handles an event. Returns a reason to end.
fn handle(event: Event, app: &mut App, screen: &mut Screen) -> io::Result<Option<Ended>> {
    match event {
        Event::Sampled(state) => app.sample(*state),
        Event::Input(Input::Key(key)) => match app.key(key) {
            Action::Continue => {}
            Action::Quit => return Ok(Some(Ended::Key)),
            Action::Suspend => screen.suspend()?,
        },
        // The size is asked for with every frame.
        Event::Input(_) => {}
        Event::Signal(SIGTSTP) => screen.suspend()?,
        Event::Signal(SIGCONT) => screen.retake()?,
        Event::Signal(signal) => return Ok(Some(Ended::Signal(signal))),
        Event::InputEnded(error) => return Err(error),
        Event::SamplingEnded => return Ok(Some(Ended::Panic)),
    }
    Ok(None)
}

/// Handles the signals that end, stop or continue this process, but for those that it was started to ignore.
fn handled_signals() -> io::Result<Signals> {
    let handled = ENDING.into_iter().chain([SIGTSTP, SIGCONT]).filter(|signal| !is_ignored(*signal));
    let signals = Signals::new(handled)?;
    for signal in REAL_TIME.filter(|signal| !is_ignored(*signal)) {
        let _kept_by_the_library = signals.add_signal(signal);
    }
    Ok(signals)
}

/// Starts the threads that events come from. They end with the process.
fn start(sampler: Sampler, interval: Duration, mut signals: Signals) -> io::Result<Receiver<Event>> {
    let (sender, receiver) = sync_channel(EVENTS_MAX);
    let to = sender.clone();
    Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            if to.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    })?;
    let to = sender.clone();
    Builder::new().name("keys".into()).spawn(move || {
        loop {
            let (event, more) = match event::read() {
                Ok(input) => (Event::Input(input), true),
                Err(error) => (Event::InputEnded(error), false),
            };
            if to.send(event).is_err() || !more {
                return;
            }
        }
    })?;
    Builder::new().name("samples".into()).spawn(move || sample(&sampler, interval, sender))?;
    Ok(receiver)
}

fn sample(sampler: &Sampler, interval: Duration, to: SyncSender<Event>) {
    let at_end = TellEnd(to);
    let mut next = Instant::now();
    while at_end.0.send(Event::Sampled(Box::new(sampler.sample()))).is_ok() {
        next = (next + interval).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Tells the loop that sampling has ended, also by a panic.
#[derive(Debug)]
struct TellEnd(SyncSender<Event>);

impl Drop for TellEnd {
    fn drop(&mut self) {
        // Nobody listens if it is the loop that ended.
        let _ = self.0.send(Event::SamplingEnded);
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
