//! Other processes, which hold memory of the device.

use crate::common::Folder;
use bursar::ledger::{Ledger, Priority, ReserveOptions};
use bursar::prelude::*;
use bursar::sim::Sim;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

/// The variable that says what this program is started as, and that which names the device.
pub(crate) const ROLE: &str = "BURSAR_TEST_ROLE";
const DEVICE: &str = "BURSAR_TEST_DEVICE";

const GPU: Bytes = Bytes::gib(8);

/// A label that would clear the screen and write lines and colours of its own.
pub(crate) const LABEL: &str = "two\nlines\u{1b}[2J\u{1b}[31m\u{9b}7m";

/// Runs as another process: holds 2 GiB, or 1 GiB with the same set aside under a label. Takes and gives back 1 GiB for each
/// line that asks for it, and answers each.
#[allow(clippy::print_stdout, reason = "one process reads what another prints")]
pub(crate) fn play(role: &str) -> ExitCode {
    let device = std::env::var(DEVICE).expect("the device is named");
    let sim = Sim::builder().immediate().device(GPU).named(device).build();
    let context = DeviceContext::open(sim, DeviceId(0)).expect("a device");
    let memory = Stack::new().layer(Ledgers::default().budget()).over(leaf::Direct).build(&context).expect("a stack");
    let stream = context.default_stream();
    let allocate = |gib: u64| memory.allocate(gib << 30, 256, stream, tag!("held")).expect("room");
    let ledger = Ledger::for_device(&context).expect("a ledger");
    let labelled = || ledger.reserve_with(Bytes::gib(1), &ReserveOptions::new().label(LABEL)).expect("room");
    let mut blocks = vec![allocate(if role == "small" { 1 } else { 2 })];
    let aside = (role == "small").then(labelled);
    let answer = |line: &str| {
        println!("{line}");
        std::io::stdout().flush().expect("the other side listens");
    };
    answer("ready");
    for line in std::io::stdin().lines() {
        match line.expect("text").as_str() {
            "take" => blocks.push(allocate(1)),
            "give" => memory.deallocate(blocks.pop().expect("it was taken"), stream).expect("its own"),
            "refuse" => drop(ledger.reserve(Bytes::gib(7)).expect_err("there is less")),
            "wait" => {
                answer("done");
                let _ = ledger.reserve_within(GPU, Duration::from_secs(600), Priority::default());
            }
            other => panic!("{other} is not known"),
        }
        answer("done");
    }
    drop(aside);
    blocks.into_iter().for_each(|block| memory.deallocate(block, stream).expect("its own"));
    ExitCode::SUCCESS
}

/// Another process, killed when dropped.
pub(crate) struct Other {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Other {
    pub(crate) fn start(folder: &Folder, role: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .env(ROLE, role)
            .env(DEVICE, folder.devices())
            .env("BURSAR_LEDGER_DIR", folder.ledgers())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("another process");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let mut other = Self { child, answers };
        other.expect("ready");
        other
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn expect(&mut self, answer: &str) {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("text");
        assert_eq!(line.trim_end(), answer);
    }

    /// Asks it for something and waits until that is done, or begun if it is to wait.
    pub(crate) fn ask(&mut self, what: &str) {
        writeln!(self.child.stdin.as_ref().expect("piped"), "{what}").expect("it listens");
        self.expect("done");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _status = self.child.wait();
    }
}
