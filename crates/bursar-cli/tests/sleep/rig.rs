//! A device of its own, the programs on it, and the command.

use crate::common::{Folder, schema};
use crate::roles;
use bursar::ledger::{Ledger, Reading, RemoteError, RemoteRequest, Subject};
use bursar::prelude::*;
use bursar::sim::Sim;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time after which a trial fails instead of hanging; nothing here takes as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The variable with the name of the device.
pub(crate) const DEVICE: &str = "BURSAR_TEST_DEVICE";

const DOCUMENT: &str = include_str!("../../../../docs/cli.md");

/// The memory of the device.
pub(crate) const GPU: Bytes = Bytes::mib(100);

/// Opens the device of a name.
pub(crate) fn device(name: &str) -> Arc<dyn Driver> {
    Sim::builder().immediate().device(GPU).named(name).build()
}

/// A device of a trial's own, and a folder for its ledgers.
pub(crate) struct Rig {
    pub(crate) folder: Folder,
    pub(crate) name: String,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let folder = Folder::new();
        let name = folder.0.file_name().and_then(|name| name.to_str()).expect("a plain name").to_owned();
        Self { folder, name }
    }

    /// Starts a program that fills so many mebibytes, and waits until it has.
    pub(crate) fn start(&self, fills: u64) -> Program {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .env(roles::VARIABLE, fills.to_string())
            .env(DEVICE, &self.name)
            .env("BURSAR_LEDGER_DIR", &self.folder.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("another process");
        let answers = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut program = Program { says: child.stdin.take(), child, answers };
        assert_eq!(program.answer(), "ready");
        program
    }

    /// Returns the command with these words.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bursar"));
        command.args(words).env("BURSAR_LEDGER_DIR", &self.folder.0).env("NO_COLOR", "1");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the command about a program.
    pub(crate) fn ask(&self, what: &str, program: &Program, more: &[&str]) -> Output {
        let pid = program.child.id().to_string();
        ended(self.command(&[&[what, &pid], more].concat()).spawn().expect("the command was built"))
    }

    /// Runs the command about a program, and returns what it printed about the only device.
    pub(crate) fn asked(&self, what: &str, program: &Program, more: &[&str]) -> Value {
        let output = self.ask(what, program, &[more, &["--json"]].concat());
        assert!(output.status.success(), "{what}: {}", text(&output.stderr));
        let value: Value = serde_json::from_slice(&output.stdout).expect("one JSON value and nothing else");
        assert_eq!(value["devices"].as_array().map(Vec::len), Some(1), "{value}");
        assert_eq!(schema::wrong(&value, &schema::block(DOCUMENT, what), ""), [""; 0]);
        value["devices"][0].clone()
    }

    /// Reads the ledger of the device.
    pub(crate) fn reading(&self) -> Reading {
        let facts = device(&self.name).facts(DeviceId(0)).expect("it is there");
        let reading = Ledger::inspect_in(&self.folder.0, &Subject::device(&facts));
        reading.expect("readable").expect("somebody made it")
    }

    /// Reads the ledger of the host.
    pub(crate) fn host_reading(&self) -> Reading {
        let reading = Ledger::inspect_in(&self.folder.0, &Subject::host(roles::HOST));
        reading.expect("readable").expect("somebody made it")
    }

    /// Returns what the device has free.
    pub(crate) fn free(&self) -> Bytes {
        let devices = format!("1x{}@{}", GPU.get(), self.name);
        let words = ["--driver", "sim", "--sim-devices", &devices, "--json", "devices"];
        let output = ended(self.command(&words).spawn().expect("the command was built"));
        let value: Value = serde_json::from_slice(&output.stdout).expect("one JSON value and nothing else");
        Bytes(value["devices"][0]["free"].as_u64().expect("a number"))
    }

    /// Opens the ledger of the device.
    pub(crate) fn ledger(&self) -> Ledger {
        let facts = device(&self.name).facts(DeviceId(0)).expect("it is there");
        Ledger::open_in(&self.folder.0, &Subject::device(&facts)).expect("somebody made it")
    }

    /// Waits until a request to a program is under way.
    pub(crate) fn wait_until_busy(&self, program: &Program) {
        self.wait_for_requests(program.child.id(), true);
    }

    /// Waits until a request to a process, which is awake, is under way, or until none is.
    pub(crate) fn wait_for_requests(&self, pid: u32, is_busy: bool) {
        let (ledger, until) = (self.ledger(), Instant::now() + PATIENCE);
        let wake = RemoteRequest::Wake { patience: Duration::ZERO };
        loop {
            let found = match ledger.ask(pid, wake) {
                Err(RemoteError::Busy { .. }) => true,
                // It was awake: the request that is waited for comes later, or has ended.
                Ok(call) => call.wait(PATIENCE).is_none(),
                Err(error) => panic!("{error}"),
            };
            if found == is_busy {
                return;
            }
            assert!(Instant::now() < until, "a request is never under way, or always");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the ledger is as wanted.
    pub(crate) fn wait_until(&self, what: &str, is_so: impl Fn(&Reading) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_so(&self.reading()) {
            assert!(Instant::now() < until, "never {what}: {:#?}", self.reading());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A program that is asked.
pub(crate) struct Program {
    pub(crate) child: Child,
    says: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Program {
    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.says.as_mut().expect("not ended"), "{line}").expect("it listens");
    }

    pub(crate) fn answer(&mut self) -> String {
        self.answers.next().expect("it has not ended").expect("text")
    }

    /// Tells it something, and returns its answer.
    pub(crate) fn say(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is ours");
    }

    /// Kills it, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("it is ours");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _gone_already = self.child.kill();
        let _gone_already = self.child.wait();
    }
}

/// Waits for a command, and kills it if it does not end.
pub(crate) fn ended(mut child: Child) -> Output {
    let until = Instant::now() + PATIENCE;
    while child.try_wait().expect("it is ours").is_none() {
        if Instant::now() >= until {
            child.kill().expect("it is ours");
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.wait_with_output().expect("it has ended")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
