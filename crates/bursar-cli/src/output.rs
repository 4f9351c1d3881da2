//! Output: the data of a command, shown to people or printed as JSON, and lines on standard error.

use crate::failure::Failure;
use anstyle::{AnsiColor, Style};
use bursar::driver::OpenedDriver;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use std::fmt;
use std::io::{ErrorKind, Write};

pub(crate) const HEADING: Style = AnsiColor::Cyan.on_default().bold();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
pub(crate) const WARNING: Style = AnsiColor::Yellow.on_default().bold();
pub(crate) const FAINT: Style = Style::new().dimmed();

/// A progress bar on standard error, shown only on a terminal.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Creates a bar of so many steps.
    pub(crate) fn new(steps: usize) -> Self {
        let style =
            ProgressStyle::with_template("{bar:24.cyan} {pos}/{len} {msg}").unwrap_or(ProgressStyle::default_bar());
        Self(ProgressBar::new(steps as u64).with_style(style).with_position(0))
    }

    /// Begins the next step.
    pub(crate) fn step(&mut self, what: &str) {
        self.0.set_message(what.to_owned());
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// The data of a command.
pub(crate) trait Show: Serialize {
    /// Writes it for people.
    fn show(&self, out: &mut dyn Write) -> std::io::Result<()>;
}

/// Prints the data of a command, for people or as one JSON value.
pub(crate) fn show(data: &impl Show, json: bool) -> Result<(), Failure> {
    let written = if json {
        let mut out = std::io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, data)
            .map_err(std::io::Error::from)
            .and_then(|()| writeln!(out))
            .and_then(|()| out.flush())
    } else {
        let mut out = anstream::stdout().lock();
        data.show(&mut out).and_then(|()| out.flush())
    };
    match written {
        // The reader has closed the pipe and wants no more.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(Failure::Output),
    }
}

/// Returns a name as people see it: one that a program chose writes no lines, colours or cursor movements of its own.
///
/// Control characters are escaped as in a Rust string, and so are those that change the direction of text.
pub(crate) fn printable(name: &str) -> String {
    escape(name, is_unsafe_to_print)
}

/// Returns a text of several lines as people see it, with the same characters escaped within its lines.
fn printable_lines(text: &str) -> String {
    escape(text, |c| c != '\n' && is_unsafe_to_print(c))
}

fn escape(text: &str, is_escaped: impl Fn(char) -> bool) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut shown, c| {
        if is_escaped(c) {
            shown.extend(c.escape_debug())
        } else {
            shown.push(c)
        }
        shown
    })
}

/// Returns whether a terminal would do something else with a character than show it where it stands.
pub(crate) fn is_unsafe_to_print(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Prints a line on standard error, ignoring errors.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    let _ = writeln!(anstream::stderr().lock(), "{line}");
}

/// Prints a line on standard error if that does not block, ignoring errors.
pub(crate) fn say_without_blocking(line: fmt::Arguments<'_>) {
    let error = std::io::stderr();
    if let Ok(1) = poll(&mut [PollFd::new(&error, PollFlags::OUT)], Some(&Timespec::default())) {
        say(line);
    }
}

/// Prints a line on standard error if devices are simulated and nobody asked for that.
pub(crate) fn say_if_simulated(opened: &OpenedDriver) {
    if let Some(why) = &opened.instead_of_cuda {
        say(format_args!("{FAINT}bursar: using simulated devices ({why}){FAINT:#}"));
    }
}

/// A failure as JSON.
#[derive(Debug, Serialize)]
struct FailureReport<'a> {
    error: FailureFields<'a>,
}

#[derive(Debug, Serialize)]
struct FailureFields<'a> {
    cause: &'a str,
    remedy: &'a str,
    exit_status: u8,
}

/// Prints what went wrong and a hint, also as one line of JSON if that was asked for and nothing was printed before. Returns
/// the exit status.
pub(crate) fn fail(failure: &Failure, json: bool) -> u8 {
    if let Some((text, hint)) = failure.text_and_hint() {
        let shown = printable_lines(&text);
        say(format_args!("{BAD}error:{BAD:#} {shown}\n{FAINT}hint: {hint}{FAINT:#}"));
        if json && !failure.follows_output() {
            let error = FailureFields { cause: &text, remedy: hint, exit_status: failure.status() };
            let mut out = std::io::stdout().lock();
            // Standard error has it in any case, and the exit status says that something failed.
            let _ = serde_json::to_writer(&mut out, &FailureReport { error })
                .map_err(std::io::Error::from)
                .and_then(|()| writeln!(out))
                .and_then(|()| out.flush());
        }
    }
    failure.status()
}
