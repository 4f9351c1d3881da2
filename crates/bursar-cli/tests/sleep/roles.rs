//! The programs that are asked: each does what it reads on standard input, a line each, and answers with a line.

use super::rig::{DEVICE, device};
use bursar::device::{AwakeGuard, SleepOptions, SleepWhenAsked, WakeOptions};
use bursar::ledger::{Ledger, LedgerAccount, Subject};
use bursar::prelude::*;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// The variable that makes this program another: the mebibytes that it fills.
pub(crate) const VARIABLE: &str = "BURSAR_TEST_FILLS";

/// The variable that makes this program a worker: the folder where it says how far it is, and is told to end.
pub(crate) const WORKS_IN: &str = "BURSAR_TEST_WORKS_IN";

/// The memory that the host's ledger has.
pub(crate) const HOST: Bytes = Bytes::gib(4);

/// Opens the device, fills memory, and answers until its input ends.
#[allow(clippy::print_stdout, reason = "one process reads what another prints")]
pub(crate) fn play() -> ExitCode {
    let fills: u64 = std::env::var(VARIABLE).expect("set").parse().expect("a number");
    let name = std::env::var(DEVICE).expect("set");
    let ledgers = Ledgers::default();
    let stack = Stack::new().layer(PagePool::default()).layer(ledgers.budget()).over(leaf::Frames);
    let gpu = Gpu::open(device(&name), DeviceId(0), &stack).expect("a device");
    let stream = gpu.streams().lease().expect("a stream");
    let words = (fills << 20) as usize / 8;
    let pattern: Vec<u64> = (0..words as u64).map(|nth| nth ^ u64::from(std::process::id()) << 32).collect();
    let host: LedgerAccount = Ledger::open(&Subject::host(HOST)).and_then(|host| host.account()).expect("a ledger");
    let pinned =
        || PinnedPool::near_with(&gpu, PinnedOptions::default().account(Arc::new(host.clone()))).expect("host memory");
    let memory = gpu.buffer_from(&pattern, &stream, tag!("pattern")).expect("room");
    let sleeper = ledgers.sleep_when_asked(&gpu, pinned(), SleepOptions::new()).expect("a ledger");
    let mut program = Some(sleeper);
    println!("ready");
    let mut aside = None;
    let mut lines = std::io::stdin().lines().map_while(Result::ok);
    while let Some(line) = lines.next() {
        let answer = match (line.as_str(), &program) {
            ("check", Some(sleeper)) => {
                let _awake = sleeper.awake();
                let found = memory.to_vec();
                if found.is_ok_and(|found| found == pattern) { "right".to_owned() } else { "wrong".to_owned() }
            }
            ("work", Some(sleeper)) => work_until_told(sleeper, &mut lines),
            ("state", _) => gpu.sleep_reading().state.to_string(),
            ("deaf", _) => {
                program = None;
                "deaf".to_owned()
            }
            ("wake", _) => match gpu.wake(&WakeOptions::new().patience(Duration::from_secs(30))) {
                Ok(report) => report.taken.get().to_string(),
                Err(error) => error.to_string(),
            },
            ("take", _) => match ledgers.of(gpu.context()).and_then(|ledger| ledger.reserve(ledger.available()?)) {
                Ok(reserved) => {
                    let bytes = reserved.undrawn().get().to_string();
                    aside = Some(reserved);
                    bytes
                }
                Err(error) => error.to_string(),
            },
            ("free", _) => {
                aside = None;
                "freed".to_owned()
            }
            (other, _) => format!("{other}?"),
        };
        println!("{answer}");
        std::io::stdout().flush().expect("the other side listens");
    }
    drop(aside);
    ExitCode::SUCCESS
}

/// Looks at its memory again and again, and counts how often, until it is told to end. Fails once it is not what it was. While it
/// is told to be busy, its work does not end.
pub(crate) fn work() -> ExitCode {
    let folder = std::path::PathBuf::from(std::env::var_os(WORKS_IN).expect("set"));
    let ledgers = Ledgers::default();
    let stack = Stack::new().layer(PagePool::default()).layer(ledgers.budget()).over(leaf::Frames);
    let gpu = Gpu::open(device(&std::env::var(DEVICE).expect("set")), DeviceId(0), &stack).expect("a device");
    let stream = gpu.streams().lease().expect("a stream");
    let pattern: Vec<u64> = (0..5 << 20).collect();
    let memory = gpu.buffer_from(&pattern, &stream, tag!("pattern")).expect("room");
    let pinned = PinnedPool::near(&gpu).expect("host memory");
    let sleeper = ledgers.sleep_when_asked(&gpu, pinned, SleepOptions::new()).expect("a ledger");
    let say = |name: &str, text: String| {
        std::fs::write(folder.join("new"), text).and_then(|()| std::fs::rename(folder.join("new"), folder.join(name)))
    };
    say("pid", std::process::id().to_string()).expect("room");
    for round in 0u64.. {
        let awake = sleeper.awake();
        if memory.to_vec().is_ok_and(|found| found == pattern) {
            say("round", round.to_string()).expect("room");
        } else {
            return ExitCode::FAILURE;
        }
        if folder.join("busy").exists() {
            say("working", round.to_string()).expect("room");
            while folder.join("busy").exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        drop(awake);
        if folder.join("end").exists() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    ExitCode::SUCCESS
}

/// Works from here to the next line.
#[allow(clippy::print_stdout, reason = "one process reads what another prints")]
fn work_until_told(sleeper: &SleepWhenAsked, lines: &mut impl Iterator<Item = String>) -> String {
    let awake: AwakeGuard<'_> = sleeper.awake();
    println!("working");
    lines.next().expect("the other side talks");
    drop(awake);
    "rested".to_owned()
}
