//! The page of `bursar replay --html` as its readers meet it, in a browser, and the files that a replay writes.
//!
//! Where no Chromium is found the trials that need one are ignored, and say so; with `BURSAR_REQUIRE_CHROMIUM=1` they fail
//! instead. `BURSAR_CHROMIUM` names the program.

#[path = "html/browser.rs"]
mod browser;
#[path = "html/command.rs"]
mod command;
mod common;
#[path = "html/files.rs"]
mod files;
#[path = "html/pages.rs"]
mod pages;

use browser::Browser;
use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

fn main() -> ExitCode {
    let found = Browser::find();
    let required = std::env::var_os("BURSAR_REQUIRE_CHROMIUM").is_some_and(|value| value == "1");
    let mut trials: Vec<Trial> = files::TRIALS.iter().map(|&(name, run)| trial(name, run)).collect();
    for &(name, run) in pages::TRIALS {
        trials.push(match &found {
            Some(browser) => {
                let browser = browser.clone();
                trial(name, move || run(&browser))
            }
            None => trial(name, || panic!("{ABSENT}")).with_kind(ABSENT).with_ignored_flag(!required),
        });
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

const ABSENT: &str = "no Chromium was found";

/// Creates a trial that fails by panicking.
fn trial(name: &str, run: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name, move || {
        run();
        Ok(())
    })
}
