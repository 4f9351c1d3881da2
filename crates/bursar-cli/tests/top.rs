//! `bursar top` as its users meet it: printed, as JSON, and in a terminal, while other processes hold memory of a named
//! simulated device. This program starts itself again as those.
//!
//! The terminal is tmux. Where it is not found the trials that need it are ignored, and say so; with
//! `BURSAR_REQUIRE_TMUX=1` they fail instead.
#![forbid(unsafe_code)]

mod common;
#[path = "top/other.rs"]
mod other;
#[path = "top/printed.rs"]
mod printed;
#[path = "top/tmux.rs"]
mod tmux;
#[path = "top/watched.rs"]
mod watched;

use common::Folder;
use libtest_mimic::{Arguments, Trial};
use std::process::{Command, ExitCode};
use tmux::Tmux;

const ABSENT: &str = "no tmux was found";

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(other::ROLE) {
        return other::play(&role);
    }
    let required = std::env::var_os("BURSAR_REQUIRE_TMUX").is_some_and(|value| value == "1");
    let mut trials: Vec<Trial> = printed::TRIALS.iter().map(|&(name, run)| trial(name, run)).collect();
    let found = Tmux::is_there();
    trials.extend(watched::TRIALS.iter().map(|&(name, run)| match found {
        true => trial(name, run),
        false => trial(name, |_| panic!("{ABSENT}")).with_kind(ABSENT).with_ignored_flag(!required),
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// A trial: its name, and what it does.
type Named = (&'static str, fn(&Folder));

/// Creates a trial with a folder of its own, which fails by panicking.
fn trial(name: &str, run: fn(&Folder)) -> Trial {
    Trial::test(name, move || {
        let folder = Folder::new();
        std::fs::create_dir(folder.ledgers()).expect("room");
        run(&folder);
        Ok(())
    })
}

impl Folder {
    /// Returns the name of the devices of this trial.
    fn devices(&self) -> String {
        self.0.file_name().and_then(|name| name.to_str()).expect("a plain name").replace("bursar-cli", "top")
    }

    /// Returns the command with words that contain no blanks, on one device of 8 GiB.
    fn bursar(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bursar"));
        command.args(words.split_whitespace());
        command.env("BURSAR_DRIVER", "sim").env("BURSAR_SIM_DEVICES", format!("1x8GiB@{}", self.devices()));
        command.env("BURSAR_LEDGER_DIR", self.ledgers()).env("CUDA_VISIBLE_DEVICES", "").env("LC_ALL", "C.UTF-8");
        command
    }
}
