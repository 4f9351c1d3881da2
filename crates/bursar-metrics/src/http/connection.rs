//! One connection: reading a request, writing its answer, and waiting for the other side to close.

use super::request::HEAD_MAX;
use super::response::Body;
use super::{Request, RequestError, Response};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// The time within which the head of a request comes whole.
const HEAD_WITHIN: Duration = Duration::from_secs(5);

/// The time for which a connection may stay open between requests.
const IDLE_FOR: Duration = Duration::from_secs(60);

/// The time for which an answer may make no progress.
const WRITE_STALL: Duration = Duration::from_secs(10);

/// The time within which an answer is read whole.
const WRITE_WITHIN: Duration = Duration::from_secs(60);

/// The time and the bytes for which a closed connection is read on, so that the other side gets the answer before it is told
/// that nobody listens.
const LINGER: (Duration, usize) = (Duration::from_secs(1), 256 << 10);

/// The most requests that are answered in one go before others have their turn.
const TURN: usize = 8;

/// The answer to a request: the handler's, or that to a request which is refused before.
pub(super) type Answer<'a> = &'a mut dyn FnMut(Result<&Request, RequestError>) -> Response;

pub(super) struct Connection {
    stream: TcpStream,
    phase: Phase,
    received: Vec<u8>,
    /// The moment at which the phase began; of reading, when the first byte came.
    began: Instant,
    progressed: Instant,
    /// True if the other side has closed and sends no more.
    is_ended: bool,
}

enum Phase {
    Reading,
    Writing { head: Vec<u8>, body: Body, written: usize, keeps_alive: bool },
    Lingering { left: usize },
}

/// The end of a step.
#[derive(PartialEq, Eq)]
pub(super) enum Step {
    /// The socket has to become ready first.
    Wait,
    /// There is more to do without waiting.
    Again,
    Close,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, now: Instant) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let (phase, received) = (Phase::Reading, Vec::new());
        Ok(Self { stream, phase, received, began: now, progressed: now, is_ended: false })
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(super) const fn writes(&self) -> bool {
        matches!(self.phase, Phase::Writing { .. })
    }

    /// Returns the answer that waits to be read.
    pub(super) fn body(&self) -> Option<&Body> {
        match &self.phase {
            Phase::Writing { body, .. } => Some(body),
            _ => None,
        }
    }

    const fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Reading) && self.received.is_empty()
    }

    /// Returns how long it has made no progress, if it may be closed to make room for another connection.
    pub(super) fn stalled(&self, now: Instant) -> Option<Duration> {
        let stalled = now.duration_since(self.progressed);
        (self.is_idle() || stalled > Duration::from_millis(250)).then_some(stalled)
    }

    /// Returns the moment at which it is closed if nothing happens.
    pub(super) fn deadline(&self) -> Instant {
        match self.phase {
            Phase::Reading if self.received.is_empty() => self.progressed + IDLE_FOR,
            Phase::Reading => self.began + HEAD_WITHIN,
            Phase::Writing { .. } => (self.progressed + WRITE_STALL).min(self.began + WRITE_WITHIN),
            Phase::Lingering { .. } => self.began + LINGER.0,
        }
    }

    /// Returns the step to take at the deadline: a request that came in part is answered.
    pub(super) fn expire(&mut self, now: Instant, answer: Answer<'_>) -> Step {
        if self.is_idle() || !matches!(self.phase, Phase::Reading) {
            return Step::Close;
        }
        self.reply(answer(Err(RequestError::Timeout)), false, true, now);
        self.write(now)
    }

    /// Does what can be done without waiting.
    pub(super) fn step(&mut self, now: Instant, answer: Answer<'_>) -> Step {
        for _ in 0..TURN {
            let step = match self.phase {
                Phase::Reading => self.read(now, answer),
                Phase::Writing { .. } => self.write(now),
                Phase::Lingering { .. } => self.linger(),
            };
            if step != Step::Again {
                return step;
            }
        }
        Step::Again
    }

    fn read(&mut self, now: Instant, answer: Answer<'_>) -> Step {
        let mut chunk = [0; 4096];
        loop {
            match Request::parse(&self.received) {
                Ok(Some((request, length))) => {
                    self.received.drain(..length);
                    let response = answer(Ok(&request));
                    self.reply(response, request.keeps_alive() && !self.is_ended, request.method() != "HEAD", now);
                    return Step::Again;
                }
                Ok(None) => {}
                Err(error) => {
                    self.reply(answer(Err(error)), false, true, now);
                    return Step::Again;
                }
            }
            if self.is_ended {
                return Step::Close;
            }
            let room = chunk.len().min((HEAD_MAX + 8).saturating_sub(self.received.len()).max(1));
            match self.stream.read(&mut chunk[..room]) {
                Ok(0) => self.is_ended = true,
                Ok(length) => {
                    if self.received.is_empty() {
                        self.began = now;
                    }
                    self.progressed = now;
                    self.received.extend_from_slice(&chunk[..length]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Step::Wait,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Step::Close,
            }
        }
    }

    fn reply(&mut self, response: Response, keeps_alive: bool, with_body: bool, now: Instant) {
        let (head, body) = response.encode(keeps_alive, with_body);
        self.phase = Phase::Writing { head, body, written: 0, keeps_alive };
        (self.began, self.progressed) = (now, now);
    }

    fn write(&mut self, now: Instant) -> Step {
        let Phase::Writing { head, body, written, keeps_alive } = &mut self.phase else { return Step::Again };
        while *written < head.len() + body.len() {
            let rest = head.get(*written..).filter(|rest| !rest.is_empty());
            match self.stream.write(rest.unwrap_or_else(|| &body[*written - head.len()..])) {
                Ok(0) => return Step::Close,
                Ok(length) => {
                    *written += length;
                    self.progressed = now;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Step::Wait,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Step::Close,
            }
        }
        if *keeps_alive {
            self.phase = Phase::Reading;
        } else {
            if self.is_ended || self.stream.shutdown(Shutdown::Write).is_err() {
                return Step::Close;
            }
            self.phase = Phase::Lingering { left: LINGER.1 };
        }
        self.began = now;
        Step::Again
    }

    fn linger(&mut self) -> Step {
        let Phase::Lingering { left } = &mut self.phase else { return Step::Again };
        let mut chunk = [0; 4096];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(length) if length > 0 && length < *left => *left -= length,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Step::Wait,
                _ => return Step::Close,
            }
        }
    }
}
