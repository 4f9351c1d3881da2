//! A folder and a pair of devices for one trial, and the runs started there.

use bursar::ledger::{Ledger, Reading};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The time after which a trial fails instead of hanging; nothing here takes as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The environment variable that names another program to try, such as the console script of the Python package.
const COMMAND_VARIABLE: &str = "BURSAR_TEST_COMMAND";

/// Makes runs start with no signal ignored, however these trials were started: programs that a shell starts in the background
/// ignore some. A signal that a process handles has its default action in programs that it starts.
pub(crate) fn unignore_signals() {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask");
    let mask = u64::from_str_radix(mask.trim(), 16).expect("a number");
    for signal in
        [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGCHLD, SIGTSTP].into_iter().filter(|signal| mask >> (signal - 1) & 1 == 1)
    {
        signal_hook::flag::register(signal, Arc::default()).expect("a signal");
    }
}

/// A folder and a pair of devices of their own.
pub(crate) struct Rig {
    pub(crate) folder: PathBuf,
}

impl Rig {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("bursar-run-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&folder).expect("a temporary folder");
        Self { folder }
    }

    /// Returns the devices; their name is unique in this folder.
    pub(crate) fn devices(&self) -> &'static str {
        "2x80GiB@pair"
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the command `bursar` with these words, with its ledgers in the folder and simulated devices.
    pub(crate) fn bursar(&self, words: &str) -> Command {
        let other = std::env::var_os(COMMAND_VARIABLE);
        let mut command = Command::new(other.unwrap_or_else(|| env!("CARGO_BIN_EXE_bursar").into()));
        command.args(words.split_whitespace());
        self.place(&mut command);
        command
    }

    pub(crate) fn place(&self, command: &mut Command) {
        command.env("BURSAR_LEDGER_DIR", &self.folder).env("NO_COLOR", "1").current_dir(&self.folder);
        command.env("BURSAR_DRIVER", "sim").env("BURSAR_SIM_DEVICES", self.devices());
    }

    /// Returns the command `bursar run` with these options and this command.
    pub(crate) fn run(&self, options: &str, command: &[&str]) -> Command {
        let mut run = self.bursar(&format!("run {options} --"));
        run.args(command);
        run
    }

    /// Returns the command `bursar run` whose workers run a shell script.
    pub(crate) fn shell(&self, options: &str, script: &str) -> Command {
        self.run(options, &["sh", "-c", script])
    }

    /// Creates a gate of this name in the folder.
    pub(crate) fn gate(&self, name: &str) -> Gate {
        let path = self.path(name);
        let _ = std::fs::remove_file(&path);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        let closed = OpenOptions::new().read(true).write(true).open(&path).expect("a pipe");
        Gate { path, closed: Some(closed) }
    }

    /// Reads each ledger in the folder.
    pub(crate) fn readings(&self) -> Vec<Reading> {
        let files = std::fs::read_dir(&self.folder).expect("a folder").map(|entry| entry.expect("a file").path());
        let ledgers = files.filter(|path| path.extension().is_some_and(|extension| extension == "ledger"));
        let mut readings: Vec<_> = ledgers.map(|path| Ledger::inspect(&path).expect("a ledger")).collect();
        readings.sort_by_key(|reading| reading.uuid);
        readings
    }

    /// Returns what is reserved and not held, in all ledgers together, in GiB.
    pub(crate) fn undrawn_gib(&self) -> u64 {
        self.readings().iter().map(|reading| reading.undrawn.get() >> 30).sum()
    }

    /// Asserts that no process, no reservation and no lock is left.
    pub(crate) fn assert_nothing_is_left(&self) {
        assert_eq!(self.processes(), Vec::<String>::new(), "processes are left");
        assert_eq!(self.charged(), Vec::<String>::new(), "something is charged");
        let cleared = self.bursar("ledger clear").output().expect("the command was built");
        assert!(cleared.status.success(), "a lock is left: {}", String::from_utf8_lossy(&cleared.stderr));
    }

    /// Returns the ledgers in which a process holds, reserves or waits for memory.
    pub(crate) fn charged(&self) -> Vec<String> {
        let is_charged = |reading: &Reading| {
            let left = (reading.held.get(), reading.undrawn.get(), reading.processes.len(), reading.waiting.len());
            left != (0, 0, 0, 0)
        };
        self.readings().iter().filter(|reading| is_charged(reading)).map(|reading| format!("{reading:?}")).collect()
    }

    /// Returns the processes with this folder in their environment, whoever started them.
    pub(crate) fn processes(&self) -> Vec<String> {
        let here = self.folder.to_str().expect("a plain name").as_bytes();
        let is_here = |path: &Path| {
            let environment = std::fs::read(path.join("environ")).unwrap_or_default();
            environment.windows(here.len()).any(|window| window == here)
        };
        let processes = std::fs::read_dir("/proc").expect("Linux").filter_map(|entry| Some(entry.ok()?.path()));
        let here = processes.filter(|path| path.file_name().is_some_and(|name| name != "self") && is_here(path));
        here.map(|path| {
            let command = std::fs::read(path.join("cmdline")).unwrap_or_default();
            format!("{}: {}", path.display(), String::from_utf8_lossy(&command).replace('\0', " "))
        })
        .collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // A failed trial leaves nothing running either. Errors are ignored, since its own failure says more.
        for process in self.processes() {
            let number = process.split(['/', ':']).find_map(|part| part.parse().ok()).and_then(Pid::from_raw);
            let _ = number.map(|number| kill_process(number, Signal::KILL));
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A file whose readers wait until the gate is dropped, and not afterwards.
pub(crate) struct Gate {
    path: PathBuf,
    /// The write end of the pipe: readers wait until it is closed.
    closed: Option<File>,
}

impl Drop for Gate {
    fn drop(&mut self) {
        // Later readers find an empty file.
        let open = self.path.with_extension("open");
        std::fs::write(&open, "").and_then(|()| std::fs::rename(&open, &self.path)).expect("a folder");
        drop(self.closed.take());
    }
}

/// A run, read line by line.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

/// The exit status of a run, and everything that it wrote, standard output and error mixed.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) lines: Vec<String>,
}

impl Ended {
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("{self:?}"))
    }

    pub(crate) fn count(&self, part: &str) -> usize {
        self.lines.iter().filter(|line| line.contains(part)).count()
    }

    pub(crate) fn has(&self, part: &str) -> bool {
        self.count(part) > 0
    }
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().expect("the command was built");
        let (tell, lines) = channel();
        let (out, err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let told = tell.clone();
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| tell.send(line))
        });
        std::thread::spawn(move || {
            BufReader::new(err).lines().map_while(Result::ok).try_for_each(|line| told.send(line))
        });
        Self { child, lines, seen: Vec::new() }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits for a line that contains `part`, and returns it.
    pub(crate) fn line(&mut self, part: &str) -> String {
        self.lines(part, 1).remove(0)
    }

    /// Waits until so many lines that contain `part` were written since the start, and returns them.
    pub(crate) fn lines(&mut self, part: &str, count: usize) -> Vec<String> {
        let ends = Instant::now() + PATIENCE;
        loop {
            let found: Vec<_> = self.seen.iter().filter(|line| line.contains(part)).cloned().collect();
            if found.len() >= count {
                return found;
            }
            match self.lines.recv_timeout(ends.saturating_duration_since(Instant::now())) {
                Ok(line) => self.seen.push(line),
                Err(_) => panic!("{count} lines with {part:?} did not come: {:#?}", self.seen),
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    /// Waits until the run itself has ended, even if other processes have its output open.
    pub(crate) fn status(&mut self) -> ExitStatus {
        ends(&mut self.child)
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Ended {
        drop(self.child.stdin.take());
        let ends = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(ends.saturating_duration_since(Instant::now())) {
                Ok(line) => self.seen.push(line),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it does not end: {:#?}", self.seen),
            }
        }
        Ended { status: self.child.wait().expect("it is ours"), lines: std::mem::take(&mut self.seen) }
    }
}

/// A failed trial leaves nothing running either.
impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a process to end.
pub(crate) fn ends(child: &mut Child) -> ExitStatus {
    let until = Instant::now() + PATIENCE;
    loop {
        match child.try_wait().expect("it is ours") {
            Some(status) => return status,
            None => assert!(Instant::now() < until, "it does not end"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Starts a run and waits for its end.
pub(crate) fn end(command: Command) -> Ended {
    Running::start(command).end()
}
