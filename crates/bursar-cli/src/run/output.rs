//! The output of a run: a thread that reads what workers write and prints it. It alone writes, so lines are never mixed; and
//! where nobody reads our output, it alone blocks.

mod console;
mod line_buffer;

pub(super) use console::Console;

use anstyle::Style;
use console::Destination;
use line_buffer::LineBuffer;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, ioctl_fionbio, read, write};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{ChildStderr, ChildStdout};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// The most bytes read from one worker before the next has its turn.
const READ_BYTES_MAX: usize = 64 << 10;

/// The most reads after a worker's end. So many empty any pipe; what is written later is not the worker's.
const LAST_READS_MAX: usize = 32;

/// The interval of drawing the status line.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// The handle of the output thread.
#[derive(Debug)]
pub(crate) struct OutputThread {
    messages: Sender<Message>,
    /// An eventfd that wakes the thread.
    wakeup: Arc<OwnedFd>,
    /// Receives the thread's result; none once that was taken or abandoned.
    result: Option<Receiver<io::Result<()>>>,
}

/// A message to the output thread.
#[derive(Debug)]
enum Message {
    WorkerStarted { worker: u64, stdout: ChildStdout, stderr: ChildStderr },
    WorkerEnded { worker: u64 },
    Say { style: Style, text: String },
    Json { line: String },
    Status { status: String },
    Pause,
    Resume,
    Close,
}

impl OutputThread {
    /// Starts the thread.
    pub(crate) fn start(console: Console) -> io::Result<Self> {
        let wakeup = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let ((messages, received), (done, result)) = (channel(), channel());
        let mut output = OutputLoop {
            console,
            sources: Vec::new(),
            messages: received,
            deferred: VecDeque::new(),
            wakeup: wakeup.clone(),
        };
        let run = move || drop(done.send(output.run()));
        std::thread::Builder::new().name("output".into()).spawn(run)?;
        Ok(Self { messages, wakeup, result: Some(result) })
    }

    /// Prints what a worker writes, from its start.
    pub(crate) fn worker_started(&self, worker: u64, stdout: ChildStdout, stderr: ChildStderr) {
        self.send(Message::WorkerStarted { worker, stdout, stderr });
    }

    /// Prints what a worker that has ended wrote last, and closes its pipes.
    pub(crate) fn worker_ended(&self, worker: u64) {
        self.send(Message::WorkerEnded { worker });
    }

    /// Prints a line for people, on standard error.
    pub(crate) fn say(&self, style: Style, text: impl Into<String>) {
        self.send(Message::Say { style, text: text.into() });
    }

    /// Prints a line of JSON on standard output.
    pub(crate) fn write_json(&self, line: String) {
        self.send(Message::Json { line });
    }

    /// Sets the text of the status line.
    pub(crate) fn set_status(&self, status: String) {
        self.send(Message::Status { status });
    }

    /// Prints nothing until [`resume`](Self::resume).
    pub(crate) fn pause(&self) {
        self.send(Message::Pause);
    }

    /// Prints everything again.
    pub(crate) fn resume(&self) {
        self.send(Message::Resume);
    }

    /// Prints what is left and ends the thread.
    pub(crate) fn close(&self) {
        self.resume();
        self.send(Message::Close);
    }

    /// Waits until the thread, which must be [closed](Self::close), has printed everything. Returns none after `timeout`.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Option<io::Result<()>> {
        let disconnected = Err(RecvTimeoutError::Disconnected);
        let received = self.result.as_ref().map_or(disconnected, |result| result.recv_timeout(timeout));
        match received {
            Err(RecvTimeoutError::Timeout) => return None,
            _ => self.result = None,
        }
        Some(received.unwrap_or(Ok(())))
    }

    /// Drops the handle's claim on the thread's result, so that nothing waits for output that nobody reads.
    pub(crate) fn abandon(&mut self) {
        self.result = None;
    }

    fn send(&self, message: Message) {
        // Fails if the thread has failed, and that is its result.
        let _ = self.messages.send(message);
        let _ = write(&*self.wakeup, &1u64.to_ne_bytes());
    }
}

/// Waits until everything is printed, whatever went wrong afterwards.
impl Drop for OutputThread {
    fn drop(&mut self) {
        self.close();
        if let Some(result) = self.result.take() {
            let _ = result.recv();
        }
    }
}

/// The state of the thread.
#[derive(Debug)]
struct OutputLoop {
    console: Console,
    sources: Vec<Source>,
    messages: Receiver<Message>,
    /// The messages that came during a pause.
    deferred: VecDeque<Message>,
    wakeup: Arc<OwnedFd>,
}

/// The pipe of a worker's standard output or error.
#[derive(Debug)]
struct Source {
    worker: u64,
    pipe: OwnedFd,
    to: Destination,
    lines: LineBuffer,
}

/// The state of a pipe after a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadState {
    /// There may be more now.
    MayHaveMore,
    /// It is empty, and the worker has it open.
    Empty,
    Closed,
}

impl Source {
    /// Reads what there is, at most [`READ_BYTES_MAX`].
    fn read(&mut self, console: &mut Console) -> ReadState {
        let mut bytes = [0; READ_BYTES_MAX];
        match read(&self.pipe, &mut bytes) {
            Ok(0) => ReadState::Closed,
            Ok(count) => {
                self.lines.push(&bytes[..count], console.buffer(self.to));
                ReadState::MayHaveMore
            }
            Err(Errno::AGAIN | Errno::INTR) => ReadState::Empty,
            Err(_) => ReadState::Closed,
        }
    }

    /// Reads the last of it.
    fn close(&mut self, console: &mut Console) {
        let _ = (0..LAST_READS_MAX).find(|_| self.read(console) != ReadState::MayHaveMore);
        self.lines.finish(console.buffer(self.to));
    }
}

impl OutputLoop {
    fn run(&mut self) -> io::Result<()> {
        let mut written = Ok(());
        loop {
            self.wait_and_read()?;
            let is_closed = self.handle_messages()?;
            written = written.and(self.console.flush());
            if is_closed {
                self.console.clear();
                return written;
            }
        }
    }

    /// Waits until a worker wrote or a message came, and reads what was written.
    fn wait_and_read(&mut self) -> io::Result<()> {
        let mut polled: Vec<_> = self.sources.iter().map(|source| PollFd::new(&source.pipe, PollFlags::IN)).collect();
        polled.push(PollFd::from_borrowed_fd(self.wakeup.as_fd(), PollFlags::IN));
        let tick = self.console.has_status().then_some(TICK);
        match poll(&mut polled, tick.as_ref()) {
            Ok(0) => self.console.tick(),
            Ok(_) | Err(Errno::INTR) => (),
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<_> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        let console = &mut self.console;
        self.sources.retain_mut(|source| {
            let is_closed = ready.next() == Some(true) && source.read(console) == ReadState::Closed;
            if is_closed {
                source.lines.finish(console.buffer(source.to));
            }
            !is_closed
        });
        Ok(())
    }

    /// Handles every message that has come. Returns whether the thread was closed.
    fn handle_messages(&mut self) -> io::Result<bool> {
        let _ = read(&*self.wakeup, &mut [0; 8]);
        while let Some(message) = self.deferred.pop_front().or_else(|| self.messages.try_recv().ok()) {
            match message {
                Message::WorkerStarted { worker, stdout, stderr } => {
                    self.add_source(worker, stdout.into(), Destination::Stdout)?;
                    self.add_source(worker, stderr.into(), Destination::Stderr)?;
                }
                Message::WorkerEnded { worker } => self.close(|source| source.worker == worker),
                Message::Say { style, text } => self.console.say(style, &text),
                Message::Json { line } => self.console.write_json(&line),
                Message::Status { status } => self.console.set_status(status),
                Message::Pause => self.wait_for_resume(),
                // Not paused: nothing to resume.
                Message::Resume => (),
                Message::Close => {
                    self.close(|_| true);
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Waits for the end of a pause. Lines that workers wrote before they were stopped wait too.
    fn wait_for_resume(&mut self) {
        while let Ok(message) = self.messages.recv() {
            match message {
                Message::Resume => break,
                message => self.deferred.push_back(message),
            }
        }
    }

    fn add_source(&mut self, worker: u64, pipe: OwnedFd, to: Destination) -> io::Result<()> {
        ioctl_fionbio(&pipe, true)?;
        let lines = LineBuffer::new(self.console.prefix(worker, to));
        self.sources.push(Source { worker, pipe, to, lines });
        Ok(())
    }

    /// Closes the sources that `is_closed` returns true for.
    fn close(&mut self, is_closed: impl Fn(&Source) -> bool) {
        let (closed, open) = std::mem::take(&mut self.sources).into_iter().partition(is_closed);
        self.sources = open;
        let closed: Vec<Source> = closed;
        closed.into_iter().for_each(|mut source| source.close(&mut self.console));
    }
}
