//! A server, the processes that it watches, and a client.

use crate::common::Folder;
use bursar::ledger::{Ledger, Priority};
use bursar::prelude::*;
use bursar::sim::Sim;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// The time after which a trial fails instead of hanging; nothing here takes as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The memory of the simulated device.
pub(crate) const GPU: Bytes = Bytes::gib(16);

const ROLE: &str = "BURSAR_TEST_ROLE";

/// A folder of ledgers and a simulated device of one trial's own.
pub(crate) struct Scene {
    pub(crate) folder: Folder,
    name: String,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let folder = Folder::with_ledgers();
        let name = folder.0.file_name().expect("a name").to_string_lossy().into_owned();
        Self { folder, name }
    }

    /// Returns the command on the scene's device and ledgers.
    pub(crate) fn bursar(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bursar"));
        command
            .args(["--sim-devices", &format!("1x16GiB@{}", self.name)])
            .args(arguments)
            .env_remove("BURSAR_DRIVER")
            .env("BURSAR_LEDGER_DIR", self.folder.ledgers())
            .env("NO_COLOR", "1");
        command
    }

    /// Returns the JSON of a command that ends.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.bursar(&[arguments, &["--json"]].concat()).output().expect("the command was built");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {output:?}"))
    }

    /// Starts a server.
    pub(crate) fn serve(&self, arguments: &[&str]) -> Serving {
        Self::started(self.bursar(&[&["serve", "--json"], arguments].concat()))
    }

    /// Starts a server that may have so many descriptors.
    pub(crate) fn serve_within(&self, descriptors: u32, arguments: &[&str]) -> Serving {
        let command = self.bursar(&[&["serve", "--json"], arguments].concat());
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("ulimit -n {descriptors} && exec \"$0\" \"$@\""));
        shell.arg(command.get_program()).args(command.get_args()).env_remove("BURSAR_DRIVER");
        for (name, value) in command.get_envs() {
            value.map(|value| shell.env(name, value));
        }
        Self::started(shell)
    }

    /// Starts a server, and returns once it listens.
    fn started(mut command: Command) -> Serving {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command was built");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut text = String::new();
        while !text.ends_with("}\n") {
            let length = output.read_line(&mut text).expect("text");
            if length == 0 {
                let mut said = String::new();
                let _ = child.stderr.take().expect("piped").read_to_string(&mut said);
                panic!("no server: {text}{said}");
            }
        }
        let started: Value = serde_json::from_str(&text).expect("one JSON value");
        let address = started["address"].as_str().and_then(|address| address.parse().ok()).expect("an address");
        Serving { child, address, started }
    }

    /// Starts a process that is watched.
    pub(crate) fn actor(&self, role: &str) -> Actor {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .env(ROLE, format!("{role} {}", self.name))
            .env("BURSAR_LEDGER_DIR", self.folder.ledgers())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("another process");
        let (orders, answers) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("piped")));
        let mut actor = Actor { child, orders, answers };
        actor.hear();
        actor
    }
}

/// A server that runs.
pub(crate) struct Serving {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) started: Value,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Serving {
    /// Gets a path, with further lines of the head.
    pub(crate) fn get(&self, path: &str, headers: &str) -> Answer {
        ask(self.address, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n"))
    }

    pub(crate) fn state(&self) -> Value {
        let answer = self.get("/api/state", "");
        serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
    }

    /// Returns the first state that was sampled after this call began.
    pub(crate) fn next_state(&self) -> Value {
        let now = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_millis();
        let until = Instant::now() + PATIENCE;
        loop {
            let state = self.state();
            if state["at_ms"].as_u64().is_some_and(|at| u128::from(at) > now) {
                return state;
            }
            assert!(Instant::now() < until, "nothing is sampled any more");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it is ours");
    }

    /// Waits for its end, and returns its exit status and what it said on standard error.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let until = Instant::now() + PATIENCE;
        while self.child.try_wait().expect("it is ours").is_none() {
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut said = String::new();
        self.child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        (self.child.wait().expect("it is ours").code(), said)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Sends a request and returns the answer.
pub(crate) fn ask(address: SocketAddr, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it answers");
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {answer}"));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

/// A process that is watched, and does what it is told.
pub(crate) struct Actor {
    pub(crate) child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Actor {
    /// Has it carry out an order, and returns once it has.
    pub(crate) fn tell(&mut self, order: &str) {
        writeln!(self.orders.as_mut().expect("it is not ending"), "{order}").expect("it listens");
        self.hear();
    }

    fn hear(&mut self) {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("text");
        assert_eq!(line, "done\n");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Runs as a process that is watched, if this is one.
pub(crate) fn play() -> Option<ExitCode> {
    let role = std::env::var(ROLE).ok()?;
    let (role, name) = role.split_once(' ').expect("a role and a device");
    let sim = Sim::builder().immediate().device(GPU).named(name).build();
    let context = DeviceContext::open(sim, DeviceId(0)).expect("a device");
    match role {
        "crowd" => crowd(&context),
        _ => follow_orders(&context),
    }
    Some(ExitCode::SUCCESS)
}

#[allow(clippy::print_stdout, reason = "one process reads what another prints")]
fn done() {
    println!("done");
    std::io::stdout().flush().expect("the other side listens");
}

/// Has sixteen accounts of sixteen tenants until it is ended.
fn crowd(context: &std::sync::Arc<DeviceContext>) {
    use bursar::memory::Account;
    let ledger = Ledger::for_device(context).expect("a ledger");
    let account = |n: u64| {
        let account = ledger.tenant(&format!("tenant {n}")).and_then(|tenant| tenant.account()).expect("room");
        account.charge(Bytes(4096 * (n + 1))).expect("room");
        account
    };
    let _accounts: Vec<_> = (0..16).map(account).collect();
    done();
    std::io::stdin().read_to_end(&mut Vec::new()).expect("the other side ends it");
}

fn follow_orders(context: &std::sync::Arc<DeviceContext>) {
    let ledger = Ledger::for_device(context).expect("a ledger");
    let memory = Stack::new().layer(Ledgers::default().budget()).over(leaf::Direct).build(context).expect("a stack");
    let stream = context.default_stream();
    let (mut blocks, mut aside) = (Vec::new(), Vec::new());
    done();
    for order in std::io::stdin().lines() {
        let order = order.expect("text");
        let (what, of) = order.split_once(' ').unwrap_or((&order, ""));
        let size = || of.parse::<Bytes>().expect("a size");
        match what {
            "hold" => blocks.push(memory.allocate(size().get(), 256, stream, tag!("held")).expect("room")),
            "release" => {
                for block in blocks.drain(..) {
                    memory.deallocate(block, stream).expect("its own");
                }
            }
            "reserve" => aside.push(ledger.reserve(size()).expect("room")),
            "refuse" => assert!(ledger.reserve(size()).is_err(), "there is no room"),
            "tenant" => aside.push(
                ledger
                    .tenant(of)
                    .and_then(|tenant| tenant.reserve(Bytes(4096)).map_err(|_| bursar::ledger::LedgerError::Forked))
                    .expect("room"),
            ),
            "wait" => {
                let (ledger, bytes) = (ledger.clone(), size());
                std::thread::spawn(move || {
                    let _granted = ledger.reserve_within(bytes, Duration::from_secs(600), Priority::default());
                });
                let until = Instant::now() + PATIENCE;
                while ledger_of(context).reading().expect("a reading").waiting.is_empty() {
                    assert!(Instant::now() < until, "nobody waits");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            "outside" => {
                context.driver().allocate(DeviceId(0), size().get()).expect("room");
            }
            other => panic!("{other} is no order"),
        }
        done();
    }
}

fn ledger_of(context: &std::sync::Arc<DeviceContext>) -> Ledger {
    Ledger::for_device(context).expect("a ledger")
}
