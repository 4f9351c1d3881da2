//! `bursar serve` as its users meet it: scraped by Prometheus, looked at in a browser, asked by scripts and by those who mean
//! harm. This program starts itself again as the processes that are watched.
//!
//! Where no Chromium or no Prometheus is found the trials that need one are ignored, and say so; with
//! `BURSAR_REQUIRE_CHROMIUM=1` and `BURSAR_REQUIRE_PROMETHEUS=1` they fail instead.
#![forbid(unsafe_code)]

#[path = "serve/answers.rs"]
mod answers;
#[path = "serve/chromium.rs"]
mod chromium;
mod common;
#[path = "serve/load.rs"]
mod load;
#[path = "serve/page.rs"]
mod page;
#[path = "serve/prometheus.rs"]
mod prometheus;
#[path = "serve/rig.rs"]
mod rig;

use libtest_mimic::{Arguments, Trial};
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(status) = rig::play() {
        return status;
    }
    let mut trials: Vec<Trial> =
        answers::TRIALS.iter().chain(load::TRIALS).map(|&(name, run)| trial(name, run)).collect();
    let browser = std::env::var_os("BURSAR_CHROMIUM").map(PathBuf::from).or_else(|| find(&chromium::NAMES));
    for &(name, run) in page::TRIALS {
        trials.push(match browser.clone() {
            Some(browser) => trial(name, move || run(&browser)),
            None => absent(name, "no Chromium was found", "BURSAR_REQUIRE_CHROMIUM"),
        });
    }
    let tools = find(&["prometheus"]).zip(find(&["promtool"]));
    for &(name, run) in prometheus::TRIALS {
        trials.push(match tools.clone() {
            Some((prometheus, promtool)) => trial(name, move || run(&prometheus, &promtool)),
            None => absent(name, "no Prometheus was found", "BURSAR_REQUIRE_PROMETHEUS"),
        });
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Returns the first program of these names that the search path has.
fn find(names: &[&str]) -> Option<PathBuf> {
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    let mut places = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    places.find(|place| place.is_file())
}

/// Creates a trial that fails by panicking.
fn trial(name: &str, run: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name, move || {
        run();
        Ok(())
    })
}

/// Creates a trial that is ignored, or fails where its program is required.
fn absent(name: &str, why: &'static str, variable: &str) -> Trial {
    let is_required = std::env::var_os(variable).is_some_and(|value| value == "1");
    trial(name, move || panic!("{why}")).with_kind(why).with_ignored_flag(!is_required)
}
