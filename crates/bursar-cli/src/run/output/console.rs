//! Standard output and error: whole lines only, and below them the status line of a terminal.

use anstream::{AutoStream, ColorChoice};
use anstyle::{Ansi256Color, AnsiColor, Color, Style};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, ErrorKind, Write};

/// The stream that a worker wrote a line to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    Stdout,
    Stderr,
}

/// Both output streams with what is still to be written, and the status line.
#[derive(Debug)]
pub(crate) struct Console {
    stdout: BufferedStream,
    stderr: BufferedStream,
    /// True if standard output is for JSON alone.
    json: bool,
    /// Draws on standard error, and only if that is a terminal.
    status: ProgressBar,
}

/// An output stream and what is still to be written to it.
#[derive(Debug)]
struct BufferedStream {
    colourful: bool,
    pending: Vec<u8>,
    /// True once a write failed: the reader is gone or the stream cannot be written, and the rest is dropped.
    is_closed: bool,
}

impl BufferedStream {
    fn new(choice: ColorChoice) -> Self {
        Self { colourful: choice != ColorChoice::Never, pending: Vec::new(), is_closed: false }
    }

    fn write(&mut self, mut to: impl Write) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        if self.is_closed || pending.is_empty() {
            return Ok(());
        }
        let written = to.write_all(&pending).and_then(|()| to.flush());
        self.is_closed = written.is_err();
        match written {
            // The reader has closed the pipe and wants no more; the workers continue.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            written => written,
        }
    }
}

impl Console {
    pub(crate) fn new(json: bool) -> Self {
        let style = ProgressStyle::with_template("{spinner} {msg} · {elapsed_precise}");
        let status = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        Self {
            stdout: BufferedStream::new(AutoStream::choice(&io::stdout())),
            stderr: BufferedStream::new(AutoStream::choice(&io::stderr())),
            json,
            status: status.with_style(style.unwrap_or(ProgressStyle::default_spinner())),
        }
    }

    /// Returns the prefix of a worker's lines.
    pub(crate) fn prefix(&self, worker: u64, to: Destination) -> String {
        let style = if self.stream(to).colourful { colour(worker) } else { Style::new() };
        format!("{style}[worker {worker}]{style:#} ")
    }

    /// Returns the buffer for what a worker writes to `to`.
    pub(crate) fn buffer(&mut self, to: Destination) -> &mut Vec<u8> {
        if self.json || to == Destination::Stderr { &mut self.stderr.pending } else { &mut self.stdout.pending }
    }

    /// Adds a line of our own, for people.
    pub(crate) fn say(&mut self, style: Style, text: &str) {
        let style = if self.stderr.colourful { style } else { Style::new() };
        self.stderr.pending.extend_from_slice(format!("{style}{text}{style:#}\n").as_bytes());
    }

    /// Adds a line of JSON on standard output.
    pub(crate) fn write_json(&mut self, line: &str) {
        self.stdout.pending.extend_from_slice(line.as_bytes());
        self.stdout.pending.push(b'\n');
    }

    /// Sets the text of the status line.
    pub(crate) fn set_status(&mut self, status: String) {
        self.status.set_message(status);
    }

    /// Returns whether there is a status line, which has to be drawn by [`tick`](Self::tick) now and then.
    pub(crate) fn has_status(&self) -> bool {
        !self.status.is_hidden()
    }

    /// Draws the status line.
    pub(crate) fn tick(&self) {
        self.status.tick();
    }

    /// Writes what is pending, above the status line.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.stdout.pending.is_empty() && self.stderr.pending.is_empty() {
            return Ok(());
        }
        let Self { stdout, stderr, status, .. } = self;
        status.suspend(|| {
            let written = stdout.write(io::stdout().lock());
            // Standard error that cannot be written is no reason to fail.
            let _ = stderr.write(io::stderr().lock());
            written
        })
    }

    /// Removes the status line.
    pub(crate) fn clear(&mut self) {
        self.status.finish_and_clear();
    }

    fn stream(&self, to: Destination) -> &BufferedStream {
        if self.json || to == Destination::Stderr { &self.stderr } else { &self.stdout }
    }
}

/// Returns the colour of a worker. Workers with neighbouring numbers differ.
fn colour(worker: u64) -> Style {
    const COLOURS: [Color; 10] = [
        Color::Ansi(AnsiColor::Cyan),
        Color::Ansi(AnsiColor::Yellow),
        Color::Ansi(AnsiColor::Green),
        Color::Ansi(AnsiColor::Magenta),
        Color::Ansi(AnsiColor::Blue),
        Color::Ansi256(Ansi256Color(208)),
        Color::Ansi256(Ansi256Color(43)),
        Color::Ansi256(Ansi256Color(176)),
        Color::Ansi256(Ansi256Color(148)),
        Color::Ansi256(Ansi256Color(110)),
    ];
    Style::new().fg_color(Some(COLOURS[(worker % COLOURS.len() as u64) as usize]))
}
