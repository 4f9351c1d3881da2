//! The folder of ledgers of a trial, and the child processes that share it.

use crate::role::{Driver, VARIABLE};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A folder of ledgers, removed when dropped.
#[derive(Debug)]
pub(crate) struct LedgerFolder {
    driver: Driver,
    folder: PathBuf,
}

impl LedgerFolder {
    pub(crate) fn new(driver: Driver) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let since = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos();
        let name = format!("bursar-conformance-{}-{}-{since}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).expect("a folder");
        Self { driver, folder }
    }

    /// Starts a process that is charged to a tenant of that name.
    pub(crate) fn start(&self, tenant: &str) -> ChildProcess {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .env(VARIABLE, format!("{} {tenant}", self.driver.name()))
            .env("BURSAR_LEDGER_DIR", &self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("another process");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        ChildProcess { child, input: Some(input), output }
    }
}

impl Drop for LedgerFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A child process, killed when dropped.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl ChildProcess {
    /// Sends a command and waits for its result.
    pub(crate) fn ask(&mut self, what: &str) -> String {
        let input = self.input.as_mut().expect("it has not ended");
        writeln!(input, "{what}").and_then(|()| input.flush()).expect("it listens");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        line.trim_end().to_owned()
    }

    /// Sends a command whose result is a number.
    pub(crate) fn number(&mut self, what: &str) -> u64 {
        let said = self.ask(what);
        said.parse().unwrap_or_else(|_| panic!("{what}: {said:?}"))
    }

    /// Closes its input, and waits until it ends by itself.
    pub(crate) fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().expect("it was started").success());
    }

    /// Kills it with SIGKILL, whatever it holds.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it is alive");
        self.child.wait().expect("it was started");
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // It has ended already, or the trial failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
