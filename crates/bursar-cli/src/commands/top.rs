//! `bursar top`: who holds what of each device, watched on a terminal.
//!
//! A [`Sampler`] makes states. `watch` is the loop on a terminal, `app` what keys and samples do, `view` the frame; `once`
//! is a frame as text, and `stream` states as JSON. Below them `tables` makes rows of a state, `table` fits rows into a
//! width, and `bar` and `sparkline` draw a device. All but `watch` and `terminal` is tested without a terminal.

mod app;
mod bar;
mod once;
mod sparkline;
mod stream;
mod table;
mod tables;
mod terminal;
#[cfg(test)]
mod tests;
mod text;
mod theme;
mod view;
mod watch;

use crate::commands::ledger::Machine;
use crate::commands::serve::interval;
use crate::failure::Failure;
use crate::options::GlobalOptions;
use bursar::metrics::{DeviceState, Sampler, State};
use clap::Args;
use std::io::{ErrorKind, IsTerminal, Write};
use std::time::Duration;

pub(crate) const EXAMPLES: &str = "\
Examples:
  bursar top                                        watch; ? shows the keys, q quits
  bursar top --once                                 one frame as text
  bursar top --json --count 5 | jq '.devices[].held'   five samples, a line each
  bursar top --driver sim --sim-devices 2x80GiB@lab    simulated devices that processes share by a name";

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The time between samples: 1s, 500ms, 10s.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,

    /// Print one frame as text, as wide as the terminal or 100 columns, and end.
    #[arg(long)]
    once: bool,

    /// With --json: end after so many values.
    #[arg(long, value_name = "N", conflicts_with = "once", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// The columns of a frame that is not printed on a terminal.
const COLUMNS: usize = 100;

/// Watches, prints one frame, or prints states as JSON.
pub(crate) fn top(options: &GlobalOptions, args: &TopArgs) -> Result<(), Failure> {
    if args.count.is_some() && !options.json {
        return Err(Failure::Usage("--count is the number of values that --json prints: say --json too"));
    }
    if !options.json && !args.once {
        check_terminal()?;
    }
    let sampler = sampler(options)?;
    match (options.json, args.once) {
        (true, false) => stream::print(&sampler, args.interval, args.count),
        (false, false) => watch::watch(sampler, args.interval),
        (json, true) => {
            let state = sampler.sample();
            let written = if json { stream::print_one(&state) } else { print_frame(&state) };
            match written {
                // The reader has closed the pipe and wants no more.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                written => written.map_err(Failure::Output)?,
            }
            check_readable(&state).map_err(|failure| Failure::AfterOutput(Box::new(failure)))
        }
    }
}

/// Returns the sampler of the machine; without a driver, of the ledgers that there are.
fn sampler(options: &GlobalOptions) -> Result<Sampler, Failure> {
    Ok(match Machine::of(options.open_machine())? {
        Machine::Opened(opened) => Sampler::new(opened.driver),
        Machine::WithoutGpu { why } => Sampler::without_driver(why),
    })
}

/// Fails where no frame can be drawn.
fn check_terminal() -> Result<(), Failure> {
    let why = if !std::io::stdout().is_terminal() {
        "standard output is not a terminal"
    } else if std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb") {
        "the terminal cannot move its cursor (TERM is dumb or not set)"
    } else {
        return Ok(());
    };
    Err(Failure::Terminal { why: why.to_owned() })
}

fn print_frame(state: &State) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let size = if out.is_terminal() { ratatui::crossterm::terminal::size().ok() } else { None };
    let columns = size.map(|(columns, _)| usize::from(columns)).filter(|columns| *columns > 0).unwrap_or(COLUMNS);
    once::write(&mut out, state, columns.clamp(view::LEAST.0.into(), view::MOST.0.into())).and_then(|()| out.flush())
}

/// Fails if a ledger cannot be read.
fn check_readable(state: &State) -> Result<(), Failure> {
    let errors = state.devices.iter().filter_map(|device| match device {
        DeviceState::Unreadable(ledger) => Some(&ledger.error),
        DeviceState::Readable(_) => None,
    });
    let errors: Vec<&String> = errors.chain(&state.folder_error).collect();
    match errors.first() {
        Some(first) => Err(Failure::UnreadableLedgers { count: errors.len(), first: (*first).clone() }),
        None => Ok(()),
    }
}
