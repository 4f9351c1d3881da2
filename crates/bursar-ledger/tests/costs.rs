//! The cost of a charge (L9): accesses to shared words, instructions where valgrind can count them, and system calls
//! where strace can.

mod common;

use bursar_core::{Account, Bytes, DeviceUuid};
use bursar_ledger::book::CreditLimit;
use bursar_ledger::{Ledger, Subject};
use common::{LOCK_TIMEOUT, Memory, View, register};
use libtest_mimic::{Arguments, Failed, Trial};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;

const ROLE: &str = "BURSAR_LEDGER_COSTS_IN";

fn main() {
    if let Some(folder) = std::env::var_os(ROLE) {
        return play(&PathBuf::from(folder));
    }
    let no_counter = !has("valgrind");
    let trials = vec![
        Trial::test("l9_a_charge_from_credit_is_one_compare_and_swap", || trial(one_compare_and_swap)),
        Trial::test("m2_a_reading_looks_at_each_node_a_bounded_number_of_times", || trial(reads_of_a_reading)),
        Trial::test("l9_charge_and_release_take_at_most_60_instructions", || trial(instructions))
            .with_ignored_flag(no_counter),
        Trial::test("l9_a_charge_makes_no_system_call", || trial(no_system_call)).with_ignored_flag(!has("strace")),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn trial(run: fn()) -> Result<(), Failed> {
    std::panic::catch_unwind(run).map_err(|reason| {
        Failed::from(reason.downcast_ref::<String>().cloned().unwrap_or_else(|| "see above".to_owned()))
    })
}

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Counts every read and every write of a shared word.
fn one_compare_and_swap() {
    let memory = Memory::new(1 << 40);
    let book = memory.process(1);
    register(&book);
    let key = {
        let mut locked = book.lock(LOCK_TIMEOUT).unwrap();
        let tenant = locked.find_or_add_tenant("").unwrap();
        let key = locked.open_account(tenant).unwrap();
        locked.charge(key, 1, 1 << 20).unwrap();
        key
    };
    let count = |view: &View| (view.reads.load(SeqCst), view.writes.load(SeqCst));
    let before = count(book.words());
    assert!(book.charge_once(key, 4096));
    let charged = count(book.words());
    assert!(book.release_once(key, 4096, CreditLimit::new(1 << 20)));
    let released = count(book.words());
    assert_eq!((charged.0 - before.0, charged.1 - before.1), (1, 1), "one read and one compare-and-swap");
    assert_eq!((released.0 - charged.0, released.1 - charged.1), (2, 1), "two reads and one compare-and-swap");
}

/// Counts the reads of shared words by those who check a ledger and add up what processes hold, with few nodes and with many.
fn reads_of_a_reading() {
    let reads = |nodes: u64| {
        let memory = Memory::new(1 << 40);
        let book = memory.process(1);
        register(&book);
        let mut locked = book.lock(LOCK_TIMEOUT).unwrap();
        let tenant = locked.find_or_add_tenant("").unwrap();
        for _ in 0..nodes {
            locked.reserve(tenant, 4096).unwrap();
        }
        let before = book.words().reads.load(SeqCst);
        assert_eq!(locked.find_inconsistency(), None);
        assert_eq!(locked.sums_by_process()[1], (0, nodes * 4096));
        book.words().reads.load(SeqCst) - before
    };
    let (few, many) = (reads(10), reads(40));
    assert!(many - few <= 30 * 60, "{few} reads for 10 nodes, and {many} for 40");
}

/// Charges and releases a shared account `ROUNDS` times, through the trait that budgets use.
fn play(folder: &std::path::Path) {
    let subject = Subject { uuid: DeviceUuid([8; 16]), name: "Test".into(), total: Bytes::gib(8) };
    let ledger = Ledger::open_in(folder, &subject).unwrap();
    let account: Box<dyn Account> = Box::new(ledger.account().unwrap());
    let rounds: u32 = std::env::var("ROUNDS").unwrap().parse().unwrap();
    account.charge(Bytes(1)).unwrap();
    for _ in 0..rounds {
        account.charge(Bytes::mib(2)).unwrap();
        account.release(Bytes::mib(2));
    }
    account.release(Bytes(1));
}

/// Returns what `tool` counts for so many rounds: the last number in its last line that has `mark`.
fn counted(tool: &[&str], mark: &str, rounds: u32) -> u64 {
    let folder = std::env::temp_dir().join(format!("bursar-ledger-costs-{}-{rounds}-{}", std::process::id(), tool[0]));
    std::fs::create_dir(&folder).unwrap();
    let mut command = Command::new(tool[0]);
    command.args(&tool[1..]).arg(std::env::current_exe().unwrap()).current_dir(&folder);
    let output = command.env(ROLE, &folder).env("ROUNDS", rounds.to_string()).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let line = text.lines().rev().find(|line| line.contains(mark)).unwrap_or_else(|| panic!("{text}"));
    let digits: String = line.rsplit(mark).next().unwrap().chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// Counts only inside the two functions, including the first charge, which fetches credit.
fn instructions() {
    let inside = "--toggle-collect=*LedgerAccount as*";
    let tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", inside];
    let each = counted(&tool, "Collected :", 100_000) / 100_000;
    assert!((10..=60).contains(&each), "{each} instructions a charge and release");
}

fn no_system_call() {
    // Each line of the trace is a call.
    let script = r#"strace -f -o trace "$0" && echo "calls: $(wc -l < trace)" >&2"#;
    let trace = |rounds| counted(&["sh", "-c", script], "calls:", rounds);
    assert!(trace(11_000) < trace(1_000) + 100, "charges made system calls");
}
