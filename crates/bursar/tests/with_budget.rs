//! An example of a suite whose tests share a card: each takes most of it, all run at once, and none fails for want of
//! memory. The last tests run the others as `cargo test` does, in threads, and as nextest does, in processes.

use bursar::prelude::*;
use bursar::testing::{with_budget, with_budget_within};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

/// Most of the card that the suite is run on below.
const MOST: Bytes = Bytes::mib(700);

/// Fills what is reserved for it, to the last page.
fn uses_all_of_it(tag: AllocTag, seed: u64) {
    let written = with_budget(MOST, |gpu| {
        let stream = gpu.streams().lease()?;
        let mut parts = Vec::new();
        for part in 0..7 {
            let mut buffer = gpu.buffer::<u64>((100 << 20) / 8, &stream, tag)?;
            buffer.slice_mut(..64)?.fill(seed + part)?;
            parts.push(buffer);
        }
        parts.iter().map(|part| Ok(part.slice(..1)?.to_vec()?[0])).collect::<bursar::Result<Vec<u64>>>()
    });
    assert_eq!(written.expect("what was set aside is there"), (seed..seed + 7).collect::<Vec<_>>());
}

#[test]
fn shared_a() {
    uses_all_of_it(tag!("a"), 10);
}

#[test]
fn shared_b() {
    uses_all_of_it(tag!("b"), 20);
}

#[test]
fn shared_c() {
    uses_all_of_it(tag!("c"), 30);
}

#[test]
fn shared_d() {
    uses_all_of_it(tag!("d"), 40);
}

/// A folder of one test, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bursar-with-budget-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }

    /// Runs this suite on a card of a GiB, which has room for one test at a time.
    fn suite(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this suite"));
        let card = format!("1x1GiB@with-budget-{}", std::process::id());
        command.args(arguments).env("BURSAR_LEDGER_DIR", &self.0);
        command.env("BURSAR_DRIVER", "sim").env("BURSAR_SIM_DEVICES", card);
        command
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone_already = std::fs::remove_dir_all(&self.0);
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn l4_tests_in_threads_take_turns() {
    let folder = Folder::new("threads");
    let output = folder.suite(&["shared_", "--test-threads", "4"]).output().expect("it was built");
    assert!(output.status.success() && text(&output).contains("4 passed"), "{}", text(&output));
}

#[test]
fn l4_tests_in_processes_take_turns() {
    let folder = Folder::new("processes");
    let names = ["shared_a", "shared_b", "shared_c", "shared_d"];
    let spawn = |name: &&str| {
        let mut command = folder.suite(&["--exact", name]);
        std::thread::spawn(move || command.output().expect("it was built"))
    };
    let running: Vec<_> = names.iter().map(spawn).collect();
    for output in running.into_iter().map(|process| process.join().expect("it was waited for")) {
        assert!(output.status.success() && text(&output).contains("1 passed"), "{}", text(&output));
    }
}

#[test]
fn a_test_that_panics_gives_its_turn_back() {
    let outcome = std::panic::catch_unwind(|| with_budget(MOST, |_| panic!("as tests do")));
    assert!(outcome.is_err());
    uses_all_of_it(tag!("after"), 50);
}

#[test]
fn l4_a_test_that_needs_more_than_there_is_fails_at_once_and_says_so() {
    let ask = || with_budget_within(Bytes(u64::MAX >> 2), Duration::MAX, |_| ());
    let message = *std::panic::catch_unwind(ask).unwrap_err().downcast::<String>().expect("words");
    assert!(message.contains("over budget") && message.contains("needs"), "{message}");
}

#[test]
fn l4_a_test_whose_patience_ends_says_who_has_the_memory() {
    if std::env::var_os("BURSAR_SIM_DEVICES").is_none() {
        let folder = Folder::new("patience");
        let name = "l4_a_test_whose_patience_ends_says_who_has_the_memory";
        let output = folder.suite(&["--exact", name]).output().expect("it was built");
        assert!(output.status.success() && text(&output).contains("1 passed"), "{}", text(&output));
        return;
    }
    with_budget(MOST, |_| {
        let ask = || with_budget_within(MOST, Duration::from_millis(20), |_| ());
        let message = *std::panic::catch_unwind(ask).unwrap_err().downcast::<String>().expect("words");
        let me = format!("(pid {})", std::process::id());
        assert!(message.contains("its turn did not come in time") && message.contains(&me), "{message}");
    });
}
