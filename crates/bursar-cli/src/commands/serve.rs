//! `bursar serve`: metrics for scrapers, the state and its history as JSON, and a page, over HTTP.
//!
//! Two threads: one samples the machine and records history, the other answers requests with what was sampled last. Neither
//! waits for the other for longer than it takes to exchange a pointer, so that neither a driver or a disk that hangs nor a
//! reader that is slow holds anybody up.

mod board;
mod routes;
mod sampling;

use crate::commands::ledger::Machine;
use crate::failure::Failure;
use crate::output::{self, FAINT, Show, WARNING};
use board::Board;
use bursar::driver::OpenedDriver;
use bursar::metrics::{AccessToken, History, HistoryFile, ReadAccess, Sampler, Server, ServerOptions, Thinning};
use clap::Args;
use routes::Routes;
use sampling::Sampling;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const EXAMPLES: &str = "\
Examples:
  bursar serve                                the page, at http://127.0.0.1:9400/
  curl -s http://127.0.0.1:9400/metrics       what Prometheus scrapes
  bursar serve --history ~/.bursar-history    keeps history across restarts
  bursar serve --listen 0.0.0.0:9400 --token-file token   for other machines, with a token

Ends on Ctrl-C and SIGTERM.";

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The address and port to listen on; port 0 is one that is free.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9400")]
    listen: String,

    /// A file with a token that readers have to send, as Authorization: Bearer …; it is read once.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// A file that keeps history across restarts; it is made if it is not there.
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,

    /// The time between samples: 1s, 500ms, 10s.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
}

/// Parses a time between 100 ms and an hour.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, f64); 4] = [("ms", 0.001), ("min", 60.0), ("s", 1.0), ("", 1.0)];
    let text = text.trim();
    let parsed = UNITS.iter().find_map(|(unit, factor)| {
        let number: f64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
        Duration::try_from_secs_f64(number * factor).ok()
    });
    match parsed {
        Some(time) if (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&time) => Ok(time),
        Some(_) => Err("give a time from 100ms to 60min".to_owned()),
        None => Err("give a time such as 1s, 500ms or 2min".to_owned()),
    }
}

/// The server as it was started.
#[derive(Debug, Serialize)]
struct Started {
    address: String,
    url: String,
    history: Option<String>,
    token: bool,
    interval_ms: u64,
}

impl Show for Started {
    fn show(&self, out: &mut dyn Write) -> std::io::Result<()> {
        writeln!(out, "{} {FAINT}(metrics at {}metrics){FAINT:#}", self.url, self.url)
    }
}

/// Serves until a signal ends it.
pub(crate) fn serve(opened: Result<OpenedDriver, Failure>, args: &ServeArgs, json: bool) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Failure::Output)?;
    let sampler = match Machine::of(opened)? {
        Machine::Opened(opened) => Sampler::new(opened.driver),
        Machine::WithoutGpu { why } => Sampler::without_driver(why),
    };
    let token = args.token_file.as_deref().map(AccessToken::read).transpose()?;
    let mut file = args.history.as_deref().map(|path| HistoryFile::open(path, Thinning::default())).transpose()?;
    let failed = |error| Failure::Listen { address: args.listen.clone(), error };
    let listener = TcpListener::bind(&args.listen).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    say_what_it_means(address, token.as_ref(), file.as_ref());

    let access = ReadAccess::on(address);
    let (has_token, access) = match token {
        Some((token, _)) => (true, access.with_token(token)),
        None => (false, access),
    };
    let history = file.as_ref().map_or_else(History::default, |file| file.history().clone());
    let first = sampler.sample();
    file.as_mut().map_or(Ok(()), |file| file.record(&first))?;
    let board = Arc::new(Board::new(first, history, args.interval));
    let routes = Routes::new(access, board.clone());
    let server =
        Server::start(listener, ServerOptions::default(), move |request| routes.answer(request)).map_err(failed)?;
    let sampling = Sampling::start(sampler, board, file, args.interval).map_err(failed)?;
    let started = Started {
        address: address.to_string(),
        url: format!("http://{address}/"),
        history: args.history.as_ref().map(|path| path.display().to_string()),
        token: has_token,
        interval_ms: u64::try_from(args.interval.as_millis()).unwrap_or(u64::MAX),
    };
    output::show(&started, json)?;
    let _signal = signals.forever().next();
    drop(server);
    drop(sampling);
    Ok(())
}

/// Says on standard error what follows from an address that others can reach, from a token that others can read, and from a
/// history that was cut.
fn say_what_it_means(address: SocketAddr, token: Option<&(AccessToken, bool)>, file: Option<&HistoryFile>) {
    let warn = |line: &str| output::say(format_args!("{WARNING}warning:{WARNING:#} {line}"));
    match (address.ip().is_loopback(), token) {
        (false, None) => warn(&format!(
            "whoever can reach {address} can read who holds what here, names of processes and tenants included; --token-file \
             asks them for a token"
        )),
        (false, Some(_)) => warn(&format!(
            "the token and all figures cross the network to {address} unencrypted; put a proxy with TLS before it where that \
             matters"
        )),
        (true, _) => {}
    }
    if let Some((_, true)) = token {
        warn("others can read the token file; `chmod 600` keeps it to its user");
    }
    if let Some(torn @ 1..) = file.map(HistoryFile::torn_bytes) {
        warn(&format!("the history ended in a record that was not whole: its {torn} bytes were cut off"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_a_unit_and_bounds() {
        let ms = |text| interval(text).map(|time| time.as_millis());
        assert_eq!([ms("1s"), ms("500ms"), ms("2"), ms("1.5 s"), ms("2min")], [1000, 500, 2000, 1500, 120_000].map(Ok));
        for wrong in ["", "s", "-1s", "50ms", "2h", "inf", "NaN", "61min"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
