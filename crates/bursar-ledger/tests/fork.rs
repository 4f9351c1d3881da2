//! A process that is forked and does not exec: what its parent opened is not its own (L6).
#![allow(unsafe_code)]

use bursar_core::{Account, AllocTag, Bytes, DeviceUuid, Error, tag};
use bursar_ledger::{Ledger, LedgerError, Subject};
use libtest_mimic::{Arguments, Failed, Trial};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const ROLE: &str = "BURSAR_LEDGER_FORK_IN";
const OPENING: &str = "BURSAR_LEDGER_FORK_WHILE_OPENING_IN";
const TAGGING: &str = "BURSAR_LEDGER_FORK_WHILE_TAGGING";
/// The number of children that are forked while another thread opens and closes.
const CHILDREN: usize = 60;
const LONG: Duration = Duration::from_secs(60);

fn main() {
    if let Some(folder) = std::env::var_os(ROLE) {
        return parent(&PathBuf::from(folder));
    }
    if let Some(folder) = std::env::var_os(OPENING) {
        return opening_parent(&PathBuf::from(folder));
    }
    if std::env::var_os(TAGGING).is_some() {
        return tagging_parent();
    }
    let trials = vec![
        named("l6_a_forked_child_has_nothing_and_the_parents_charge_ends_with_it", trial),
        named("l6_a_fork_in_the_middle_of_opening_keeps_nothing_and_hangs_nobody", opening_trial),
        named("l6_a_fork_while_tags_are_made_hangs_nobody", tags_trial),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn named(name: &str, run: fn()) -> Trial {
    Trial::test(name, move || {
        std::panic::catch_unwind(run).map_err(|reason| {
            Failed::from(reason.downcast_ref::<String>().cloned().unwrap_or_else(|| "see above".to_owned()))
        })
    })
}

/// Forks again and again while another thread opens a ledger, charges it and closes it.
fn opening_parent(folder: &Path) {
    let opening = || loop {
        let ledger = Ledger::open_in(folder, &subject()).unwrap();
        let account = ledger.account().unwrap();
        account.charge(Bytes(500)).unwrap();
        drop(ledger.on_reclaim(|_| Bytes::ZERO));
        account.release(Bytes(500));
    };
    std::thread::scope(|scope| {
        scope.spawn(opening);
        for child in 0..CHILDREN {
            // Somewhere in the middle of a round of the other thread.
            std::thread::sleep(Duration::from_micros(37 * (child as u64 % 29)));
            // SAFETY: the child runs nothing but the ledger, which is meant to work there, and the C library, whose own
            // locks are taken care of by it.
            if unsafe { libc::fork() } == 0 {
                let opened = Ledger::open_in(folder, &subject());
                std::fs::write(folder.join(format!("child-{child}")), format!("{:?}", opened.err())).unwrap();
                drop(Ledger::open_in(folder, &subject()));
                until("the end", || !folder.exists());
                std::process::exit(0);
            }
        }
        std::fs::write(folder.join("forked"), "").unwrap();
        until("being killed", || false);
    });
}

fn opening_trial() {
    let folder = std::env::temp_dir().join(format!("bursar-ledger-opening-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let mut parent = Command::new(std::env::current_exe().unwrap());
    let mut parent = parent.env(OPENING, &folder).process_group(0).stdout(Stdio::null()).spawn().unwrap();
    until("the last fork", || folder.join("forked").exists());
    let results: Vec<PathBuf> = (0..CHILDREN).map(|child| folder.join(format!("child-{child}"))).collect();
    let mut waited = Duration::ZERO;
    while !results.iter().all(|result| result.exists()) && waited < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(10));
        waited += Duration::from_millis(10);
    }
    let hung = results.iter().filter(|result| !result.exists()).count();
    parent.kill().unwrap();
    parent.wait().unwrap();
    let ledger = Ledger::open_in(&folder, &subject()).unwrap();
    let everything = ledger.reserve(Bytes(1000)).map(|reservation| reservation.bytes());
    let refused = results.iter().filter_map(|result| std::fs::read_to_string(result).ok()).find(|text| text != "None");
    // Children that hang in the middle of opening have to be killed.
    let children = rustix::process::Pid::from_child(&parent);
    rustix::process::kill_process_group(children, rustix::process::Signal::KILL).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(hung, 0, "children that could not open the ledger");
    assert_eq!(refused, None, "what a child was told that opened the ledger");
    assert_eq!(everything, Ok(Bytes(1000)), "what a dead parent held, while its children live");
}

/// Forks again and again while other threads make tags, and waits for each child, which makes tags too and says them.
fn tagging_parent() {
    let is_over = AtomicBool::new(false);
    let tagging = |thread: usize| {
        for nth in 0.. {
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            // Names are never freed.
            AllocTag::intern(&format!("{thread}-{}", nth % 4096));
        }
    };
    let hung = std::thread::scope(|scope| {
        let threads = (0..3).map(|thread| scope.spawn(move || tagging(thread))).collect::<Vec<_>>();
        let hung = (0..CHILDREN * 5).filter(|_| !forked_child_ends()).count();
        is_over.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        hung
    });
    assert_eq!(hung, 0, "children that did not end");
}

/// Forks a child that makes tags, and returns whether it came to its end by itself.
fn forked_child_ends() -> bool {
    // SAFETY: the child runs nothing but tags, which are meant to work there, and the C library, whose own locks are taken care
    // of by it.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the signal ends the child if it hangs.
        unsafe { libc::alarm(20) };
        let tags = [AllocTag::intern("of the child"), tag!("of its source"), tag!("of its source")];
        let is_same = tags[1] == tags[2] && AllocTag::intern("of its source") == tags[1];
        let has_names = tags.iter().all(|tag| !tag.to_string().is_empty()) && AllocTag::all().count() > 0;
        // SAFETY: nothing of the child is to be cleaned up.
        unsafe { libc::_exit(i32::from(!(is_same && has_names))) };
    }
    let mut status = 0;
    // SAFETY: the child is this process's own, and the place for its status is a live variable.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    waited == child && status == 0
}

fn tags_trial() {
    let mut parent = Command::new(std::env::current_exe().unwrap());
    let ended = parent.env(TAGGING, "1").output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

fn subject() -> Subject {
    Subject { uuid: DeviceUuid([3; 16]), name: "Test".into(), total: Bytes(1000) }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < LONG, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Has a handle of every kind, forks, and waits to be killed.
fn parent(folder: &Path) {
    let ledger = Ledger::open_in(folder, &subject()).unwrap();
    let account = ledger.account().unwrap();
    account.charge(Bytes(300)).unwrap();
    let reservation = ledger.reserve(Bytes(200)).unwrap();
    // SAFETY: this process has one thread, so the child finds nothing locked that nobody will unlock.
    if unsafe { libc::fork() } != 0 {
        until("being killed", || false);
    }
    let mut results = Vec::new();
    let mut check = |what: &str, as_it_should: bool| results.push(format!("{what}: {as_it_should}"));
    check("charge", account.charge(Bytes(1)) == Err(Error::Forked));
    check("large charge", account.charge(Bytes(900)) == Err(Error::Forked));
    check("reservation", reservation.charge(Bytes(1)) == Err(Error::Forked));
    check("reserve", matches!(ledger.reserve(Bytes(1)), Err(Error::Forked)));
    check("reading", matches!(ledger.reading(), Err(LedgerError::Forked)));
    check("available", ledger.available() == Err(Error::Forked));
    // None of these may change what is the parent's.
    account.release(Bytes(300));
    reservation.release(Bytes(200));
    drop((reservation, account, ledger));
    let anew = Ledger::open_in(folder, &subject()).unwrap();
    let figures = anew.reading().unwrap();
    check("the parent's stays", (figures.held, figures.undrawn) == (Bytes(300), Bytes(200)));
    anew.account().unwrap().charge(Bytes(50)).unwrap();
    std::fs::write(folder.join("draft"), format!("{}\n{}", std::process::id(), results.join("\n"))).unwrap();
    std::fs::rename(folder.join("draft"), folder.join("results")).unwrap();
    until("the end", || !folder.exists());
}

fn trial() {
    let folder = std::env::temp_dir().join(format!("bursar-ledger-fork-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let mut parent = Command::new(std::env::current_exe().unwrap()).env(ROLE, &folder).spawn().unwrap();
    let results = folder.join("results");
    until("results of the child", || results.exists());
    let results = std::fs::read_to_string(results).unwrap();
    let (child, results) = results.split_once('\n').unwrap();
    let ledger = Ledger::open_in(&folder, &subject()).unwrap();
    let figures = |ledger: &Ledger| (ledger.reading().unwrap().held, ledger.reading().unwrap().undrawn);
    let both = figures(&ledger);
    parent.kill().unwrap();
    parent.wait().unwrap();
    let child = rustix::process::Pid::from_raw(child.parse().unwrap()).unwrap();
    let lives = rustix::process::test_kill_process(child).is_ok();
    let alone = figures(&ledger);
    std::fs::remove_dir_all(&folder).unwrap();
    until("the end of the child", || rustix::process::test_kill_process(child).is_err());
    assert!(!results.contains("false") && results.lines().count() == 7, "{results}");
    assert!(lives, "the child lived when its parent's charge was read");
    assert_eq!((both, alone), ((Bytes(350), Bytes(200)), (Bytes(50), Bytes::ZERO)));
}
