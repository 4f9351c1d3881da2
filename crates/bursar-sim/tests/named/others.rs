//! The other processes: each a copy of this program with a role.
#![allow(unsafe_code)]

use bursar_core::{Bytes, DeviceId, Driver};
use bursar_sim::Sim;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

pub(crate) const TOTAL: Bytes = Bytes::mib(64);
pub(crate) const GPU: DeviceId = DeviceId(0);
const VARIABLE: &str = "BURSAR_TEST_ROLE";

/// The role of a process, which it plays before it waits for the end of its input.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    /// Allocates this much in one piece.
    Hold(u64),
    /// Allocates pieces of this size, and frees some on the way, until it is refused.
    Grab(u64),
    /// Tries to allocate the whole device this often; whenever it succeeds, checks that nobody else has it.
    Own(u64),
    /// Allocates on a device without a name, whatever the folder is like.
    Unnamed(u64),
}

impl Role {
    pub(crate) fn given() -> Option<Self> {
        let text = std::env::var(VARIABLE).ok()?;
        let (role, bytes) = text.split_once(' ')?;
        let bytes = bytes.parse().ok()?;
        Some(match role {
            "hold" => Self::Hold(bytes),
            "grab" => Self::Grab(bytes),
            "own" => Self::Own(bytes),
            _ => Self::Unnamed(bytes),
        })
    }

    fn text(self) -> String {
        match self {
            Self::Hold(bytes) => format!("hold {bytes}"),
            Self::Grab(bytes) => format!("grab {bytes}"),
            Self::Own(times) => format!("own {times}"),
            Self::Unnamed(bytes) => format!("unnamed {bytes}"),
        }
    }

    /// Plays the role, and prints the bytes that it holds or the refusal.
    pub(crate) fn play(self) -> ExitCode {
        let sim = match self {
            Self::Unnamed(_) => Sim::builder().immediate().device(TOTAL).build(),
            _ => Sim::builder().immediate().device(TOTAL).named("shared").build(),
        };
        let held = match self {
            Self::Hold(bytes) | Self::Unnamed(bytes) => sim.allocate(GPU, bytes).map(|_| bytes),
            Self::Grab(bytes) => Ok(grab(&sim, bytes)),
            Self::Own(times) => Ok((0..times).map(|_| own(&sim)).sum()),
        };
        let mut out = std::io::stdout();
        let said = held.map_or_else(|error| error.to_string(), |bytes| bytes.to_string());
        writeln!(out, "{said}").and_then(|()| out.flush()).expect("the other side listens");
        std::io::stdin().read_to_end(&mut Vec::new()).expect("the other side ends it");
        ExitCode::SUCCESS
    }
}

fn grab(sim: &Sim, bytes: u64) -> u64 {
    let mut held = Vec::new();
    while let Ok(ptr) = sim.allocate(GPU, bytes) {
        held.push(ptr);
        if held.len() % 3 == 0
            && let Some(ptr) = held.pop()
        {
            // SAFETY: an allocation of this device, freed once.
            unsafe { sim.free(GPU, ptr) }.expect("its own");
            held.extend(sim.allocate(GPU, bytes));
        }
    }
    held.len() as u64 * bytes
}

/// Takes the whole device if it can. Returns the number of others that have it too.
fn own(sim: &Sim) -> u64 {
    let Ok(ptr) = sim.allocate(GPU, TOTAL.get()) else { return 0 };
    let mark = PathBuf::from(std::env::var_os("BURSAR_LEDGER_DIR").expect("given")).join("mine");
    let is_alone = File::create_new(&mark).is_ok();
    std::thread::yield_now();
    if is_alone {
        std::fs::remove_file(&mark).expect("it is ours");
    }
    // SAFETY: an allocation of this device, freed once.
    unsafe { sim.free(GPU, ptr) }.expect("its own");
    u64::from(!is_alone)
}

/// Another process, which is ended with this value.
#[derive(Debug)]
pub(crate) struct Other {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Other {
    pub(crate) fn start(role: Role, folder: &Path) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .env(VARIABLE, role.text())
            .env("BURSAR_LEDGER_DIR", folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("another process");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, input, output }
    }

    /// Returns the line that it prints once it has played its role.
    pub(crate) fn says(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        line.trim_end().to_owned()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Lets it end by itself.
    pub(crate) fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().expect("it was started").success());
    }

    /// Ends it with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it is alive");
        self.child.wait().expect("it was started");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It has ended already, or a trial failed and nobody waits for it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder for one trial, removed with it.
#[derive(Debug)]
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let since = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos();
        let unique = format!("bursar-sim-{}-{}-{since}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(unique);
        std::fs::create_dir(&path).expect("a folder");
        Self(path)
    }

    /// Returns the device that the other processes use, in this process.
    pub(crate) fn sim(&self) -> Arc<Sim> {
        Sim::builder().immediate().device(TOTAL).named("shared").shared_in(&self.0).build()
    }

    pub(crate) fn is_empty(&self) -> bool {
        std::fs::read_dir(&self.0).expect("it is there").next().is_none()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn free(sim: &Sim) -> Bytes {
    sim.memory(GPU).expect("the device works").free
}
