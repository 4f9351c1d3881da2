//! Where everything that is shown goes: whole lines only, and below them the status line of a terminal.

use anstream::{AutoStream, ColorChoice};
use anstyle::{Ansi256Color, AnsiColor, Color, Style};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, ErrorKind, Write};

/// Where a line goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    Output,
    Error,
}

/// Both ways out, and what waits to be written on them.
#[derive(Debug)]
pub(crate) struct Screen {
    output: Way,
    error: Way,
    /// Standard output is for answers alone.
    json: bool,
    /// Draws on standard error, and only where that is a terminal.
    status: ProgressBar,
}

/// One way out.
#[derive(Debug)]
struct Way {
    colourful: bool,
    waiting: Vec<u8>,
    /// Whoever read here has gone, or it cannot be written: the rest is for nobody.
    shut: bool,
}

impl Way {
    fn new(choice: ColorChoice) -> Self {
        Self { colourful: choice != ColorChoice::Never, waiting: Vec::new(), shut: false }
    }

    fn write(&mut self, mut to: impl Write) -> io::Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        if self.shut || waiting.is_empty() {
            return Ok(());
        }
        let written = to.write_all(&waiting).and_then(|()| to.flush());
        self.shut = written.is_err();
        match written {
            // Whoever reads has seen enough; the workers go on.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            written => written,
        }
    }
}

impl Screen {
    pub(crate) fn new(json: bool) -> Self {
        let style = ProgressStyle::with_template("{spinner} {msg} · {elapsed_precise}");
        let status = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        Self {
            output: Way::new(AutoStream::choice(&io::stdout())),
            error: Way::new(AutoStream::choice(&io::stderr())),
            json,
            status: status.with_style(style.unwrap_or(ProgressStyle::default_spinner())),
        }
    }

    /// What the lines of a worker begin with.
    pub(crate) fn prefix(&self, worker: u64, to: To) -> String {
        let style = if self.way(to).colourful { colour(worker) } else { Style::new() };
        format!("{style}[worker {worker}]{style:#} ")
    }

    /// Where to put what a worker writes there.
    pub(crate) fn room(&mut self, to: To) -> &mut Vec<u8> {
        if self.json || to == To::Error { &mut self.error.waiting } else { &mut self.output.waiting }
    }

    /// A line of our own, for people.
    pub(crate) fn say(&mut self, style: Style, text: &str) {
        let style = if self.error.colourful { style } else { Style::new() };
        self.error.waiting.extend_from_slice(format!("{style}{text}{style:#}\n").as_bytes());
    }

    /// A line of our own, for programs.
    pub(crate) fn answer(&mut self, line: &str) {
        self.output.waiting.extend_from_slice(line.as_bytes());
        self.output.waiting.push(b'\n');
    }

    /// What the status line says.
    pub(crate) fn stand(&mut self, status: String) {
        self.status.set_message(status);
    }

    /// Whether there is a status line, which then wants to be drawn now and then.
    pub(crate) fn has_status(&self) -> bool {
        !self.status.is_hidden()
    }

    pub(crate) fn tick(&self) {
        self.status.tick();
    }

    /// Writes what waits, above the status line.
    pub(crate) fn write(&mut self) -> io::Result<()> {
        if self.output.waiting.is_empty() && self.error.waiting.is_empty() {
            return Ok(());
        }
        let Self { output, error, status, .. } = self;
        status.suspend(|| {
            let written = output.write(io::stdout().lock());
            // What is only said, and cannot be, is no reason to fail.
            let _ = error.write(io::stderr().lock());
            written
        })
    }

    /// Takes the status line away.
    pub(crate) fn clear(&mut self) {
        self.status.finish_and_clear();
    }

    fn way(&self, to: To) -> &Way {
        if self.json || to == To::Error { &self.error } else { &self.output }
    }
}

/// The colour of a worker: neighbours differ.
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
