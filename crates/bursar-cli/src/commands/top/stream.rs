//! States as JSON, one value a line, until the reader has enough.

use crate::failure::Failure;
use crate::output::is_unsafe_to_print;
use crate::run::is_ignored;
use bursar::metrics::{Sampler, State};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;
use serde_json::ser::Formatter;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Prints the state of each interval on standard output, so many times or until the reader or a signal ends it.
pub(super) fn print(sampler: &Sampler, interval: Duration, count: Option<u64>) -> Result<(), Failure> {
    let ending = Ending::install().map_err(Failure::Output)?;
    let mut next = Instant::now();
    let mut printed = 0;
    while count.is_none_or(|count| printed < count) {
        if printed > 0 && ending.came_before(next) {
            break;
        }
        next = (next + interval).max(Instant::now());
        match line(&sampler.sample()).and_then(|line| ending.write(&line)) {
            // The reader has closed the pipe and wants no more.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(Failure::Output)?,
        }
        printed += 1;
    }
    ending.status()
}

/// Prints one state.
pub(super) fn print_one(state: &State) -> io::Result<()> {
    let line = line(state)?;
    let mut out = io::stdout().lock();
    out.write_all(&line).and_then(|()| out.flush())
}

fn line(state: &State) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    state.serialize(&mut serde_json::Serializer::with_formatter(&mut line, Printable)).map_err(io::Error::from)?;
    line.push(b'\n');
    Ok(line)
}

/// JSON on one line, in which characters that a terminal would obey are written as escapes: the value is the same.
#[derive(Debug)]
struct Printable;

impl Formatter for Printable {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut units = [0; 2];
        for c in fragment.chars() {
            if is_unsafe_to_print(c) {
                c.encode_utf16(&mut units).iter().try_for_each(|unit| write!(writer, "\\u{unit:04x}"))?;
            } else {
                writer.write_all(c.encode_utf8(&mut [0; 4]).as_bytes())?;
            }
        }
        Ok(())
    }
}

/// The signals that end a stream between two lines, but for those that were ignored when this process was started.
#[derive(Debug)]
struct Ending {
    signal: Arc<AtomicUsize>,
    woken: UnixStream,
}

/// The time that a reader has for the rest of a line once a signal has come.
const GRACE: Duration = Duration::from_secs(1);

/// The most bytes that a pipe with room takes without blocking.
const PIPE_ROOM: usize = 4096;

impl Ending {
    fn install() -> io::Result<Self> {
        let (woken, waking) = UnixStream::pair()?;
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|number| !is_ignored(*number)) {
            signal_hook::flag::register_usize(number, signal.clone(), usize::try_from(number).unwrap_or(0))?;
            signal_hook::low_level::pipe::register(number, waking.try_clone()?)?;
        }
        Ok(Self { signal, woken })
    }

    /// Waits until that moment, or until a signal has come or nobody reads standard output any more: returns true then.
    fn came_before(&self, moment: Instant) -> bool {
        let out = io::stdout();
        let mut watched = [PollFd::new(&self.woken, PollFlags::IN), PollFd::new(&out, PollFlags::empty())];
        wait(&mut watched, Some(moment))
    }

    /// Writes a line. A signal ends it in the middle only if nobody reads the rest for a while.
    fn write(&self, mut line: &[u8]) -> io::Result<()> {
        let out = io::stdout();
        let mut until = None;
        while !line.is_empty() {
            let mut watched = [PollFd::new(&out, PollFlags::OUT), PollFd::new(&self.woken, PollFlags::IN)];
            // The socket stays readable: it is watched until the signal is known.
            let count = if until.is_some() { 1 } else { 2 };
            if !wait(&mut watched[..count], until) {
                return Ok(());
            }
            if watched[0].revents().is_empty() {
                until = Some(Instant::now() + GRACE);
                continue;
            }
            match rustix::io::write(&out, &line[..line.len().min(PIPE_ROOM)]) {
                Ok(written) => line = &line[written..],
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Returns the result of a stream that ended: Ctrl-C is the common way.
    fn status(&self) -> Result<(), Failure> {
        match u8::try_from(self.signal.load(Relaxed)) {
            Ok(0) | Err(_) => Ok(()),
            Ok(number) if i32::from(number) == SIGINT => Ok(()),
            Ok(number) => Err(Failure::AlreadyReported { status: 128 + number }),
        }
    }
}

/// Waits for what is watched, until a moment if one is given. Returns false when that has come.
fn wait(watched: &mut [PollFd<'_>], until: Option<Instant>) -> bool {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(watched, timeout.as_ref()) {
            Ok(0) => return false,
            Err(Errno::INTR) => {}
            // Whatever is wrong with it, reading or writing will say.
            Ok(_) | Err(_) => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn m1_a_line_has_the_state_and_nothing_that_a_terminal_obeys(name: String, driver: String) {
            let mut state = State::default();
            state.folder = name + "\u{1b}[2J\u{9b}31m\u{7f}\u{202e}";
            state.driver = Some(driver);
            let line = String::from_utf8(line(&state).expect("JSON")).expect("text");
            prop_assert!(!line.trim_end_matches('\n').chars().any(is_unsafe_to_print), "{:?}", line);
            prop_assert_eq!(serde_json::from_str::<State>(&line).expect("JSON"), state);
        }
    }
}
