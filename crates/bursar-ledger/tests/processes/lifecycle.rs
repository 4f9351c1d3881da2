//! Processes that live, stop, fork and die (L5, L6, L7), and what they hand on (L3).

use crate::peer::{Folder, Peer, TOTAL, myself, subject};
use crate::trial;
use bursar_core::{Account, Bytes, Error};
use bursar_ledger::book::Book;
use bursar_ledger::format::{WordsSnapshot, header};
use bursar_ledger::{Ledger, LedgerError, ProcessReading, Reservation};
use libtest_mimic::Trial;
use rustix::process::Signal;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("l5_processes_share_one_limit", l5_processes_share_one_limit),
        trial("l6_a_killed_process_gives_everything_back", l6_a_killed_process_gives_everything_back),
        trial("m4_refusals_of_a_killed_process_stay_counted", m4_refusals_of_a_killed_process_stay_counted),
        trial("m5_what_is_published_ends_with_its_process", m5_what_is_published_ends_with_its_process),
        trial("l6_a_stopped_process_keeps_its_charge", l6_a_stopped_process_keeps_its_charge),
        trial("l6_a_stopped_owner_of_the_lock_is_named", l6_a_stopped_owner_of_the_lock_is_named),
        trial("l6_a_dead_owner_of_the_lock_is_replaced", l6_a_dead_owner_of_the_lock_is_replaced),
        trial("l6_another_pid_namespace_is_no_matter", l6_another_pid_namespace_is_no_matter)
            .with_ignored_flag(!can_unshare()),
        trial("l7_removal_while_in_use_is_noticed_and_refused", l7_removal_while_in_use_is_noticed_and_refused),
        trial("l6_clearing_tells_nobody_who_lives_unless_forced", l6_clearing_tells_nobody_who_lives_unless_forced),
        trial("l7_clearing_while_others_open_damages_nothing", l7_clearing_while_others_open_damages_nothing),
        trial("l3_a_share_returns_when_giver_and_child_are_gone", l3_a_share_returns_when_giver_and_child_are_gone),
        trial("l3_several_children_draw_on_one_token", l3_several_children_draw_on_one_token),
        trial("l3_a_process_draws_on_a_share_by_one_account", l3_a_process_draws_on_a_share_by_one_account),
    ]
}

fn in_use(ledger: &Ledger) -> (Bytes, Bytes) {
    let reading = ledger.reading().unwrap();
    (reading.held, reading.undrawn)
}

fn l5_processes_share_one_limit() {
    let folder = Folder::new();
    let (mut one, mut other, ledger) = (Peer::new(&folder), Peer::new(&folder), folder.open());
    assert_eq!(one.command("charge 600"), "ok");
    assert_eq!(other.command("charge 401"), "error over budget: 401 B requested, 400 B of 1000 B left");
    assert_eq!(other.command("charge 400"), "ok");
    assert_eq!(other.command("reserve 1"), "error over budget: 1 B requested, 0 B of 1000 B left");
    assert_eq!(one.command("release 100"), "ok");
    assert_eq!(other.command("reserve 100"), "ok");
    assert_eq!(in_use(&ledger), (Bytes(900), Bytes(100)));
    let reading = Ledger::inspect(&folder.file()).unwrap();
    assert_eq!((reading.held, reading.undrawn, reading.limit), (Bytes(900), Bytes(100), TOTAL));
    let pids: Vec<u32> = reading.processes.iter().map(|process| process.pid).collect();
    assert_eq!(pids, [one.child.id(), other.child.id(), std::process::id()]);
    assert_eq!(reading.processes.iter().map(|process| process.held.get()).collect::<Vec<_>>(), [500, 400, 0]);
    ledger.set_limit(Bytes(950)).unwrap();
    assert_eq!(one.command("charge 1"), "error over budget: 1 B requested, 0 B of 950 B left");
}

fn m4_refusals_of_a_killed_process_stay_counted() {
    let folder = Folder::new();
    let (mut one, mut other, ledger) = (Peer::new(&folder), Peer::new(&folder), folder.open());
    assert_eq!(one.command("charge 600"), "ok");
    assert!(other.command("charge 401").starts_with("error"));
    assert!(one.command("reserve 402").starts_with("error"));
    let before = ledger.reading().unwrap();
    let pids: Vec<(u32, u64)> = before.refusals.iter().map(|refusal| (refusal.pid, refusal.requested.get())).collect();
    assert_eq!(pids, [(one.child.id(), 402), (other.child.id(), 401)], "newest first");
    assert_eq!(before.processes.iter().map(|process| process.refused).collect::<Vec<_>>(), [1, 1, 0]);
    one.kill();
    let after = Ledger::inspect(&folder.file()).unwrap();
    assert_eq!((after.refused, &after.refusals), (before.refused, &before.refusals));
    assert_eq!(after.processes.iter().map(|process| process.refused).collect::<Vec<_>>(), [1, 0]);
    // Whoever gets its place begins anew.
    let next = Peer::new(&folder);
    let reading = ledger.reading().unwrap();
    assert_eq!(reading.processes.iter().find(|process| process.pid == next.child.id()).unwrap().refused, 0);
    assert_eq!((reading.refused, &reading.refusals), (before.refused, &before.refusals));
}

/// A process that is killed, and one that has closed the ledger but still holds something, are shown with no usage.
fn m5_what_is_published_ends_with_its_process() {
    let folder = Folder::new();
    let (mut one, mut other, ledger) = (Peer::new(&folder), Peer::new(&folder), folder.open());
    assert_eq!((one.command("publish 7"), other.command("publish 8")), ("ok".into(), "ok".into()));
    let shown = |ledger: &Ledger| -> Vec<Option<u64>> {
        let reading = ledger.reading().unwrap();
        let live = |process: &ProcessReading| process.usage.as_ref().map(|usage| usage.live.get());
        reading.processes.iter().map(live).collect()
    };
    assert_eq!(shown(&ledger), [Some(7), Some(8), None]);
    let pid = one.child.id();
    one.kill();
    assert_eq!(shown(&ledger), [Some(8), None]);
    let next = Peer::new(&folder);
    let reading = ledger.reading().unwrap();
    let in_its_place = reading.processes.iter().find(|process| process.pid == next.child.id()).unwrap();
    assert_eq!(in_its_place.usage, None, "process {pid} left nothing");
    assert_eq!((other.command("charge 5"), other.command("close")), ("ok".into(), "ok".into()));
    let reading = ledger.reading().unwrap();
    let held = reading.processes.iter().find(|process| process.pid == other.child.id()).unwrap();
    assert_eq!((held.held, &held.usage), (Bytes(5), &None));
}

fn l6_a_killed_process_gives_everything_back() {
    let folder = Folder::new();
    let (mut one, ledger) = (Peer::new(&folder), folder.open());
    assert_eq!((one.command("charge 500"), one.command("reserve 500")), ("ok".into(), "ok".into()));
    assert!(ledger.reserve(Bytes(1)).unwrap_err().is_capacity());
    one.kill();
    assert_eq!(in_use(&ledger), (Bytes::ZERO, Bytes::ZERO));
    let everything = ledger.reserve(TOTAL).unwrap();
    assert_eq!(everything.bytes(), TOTAL);
    // Its slot is used again, whatever id the new process has.
    let mut next = Peer::new(&folder);
    assert!(next.command("charge 1").starts_with("error over budget"));
}

fn l6_a_stopped_process_keeps_its_charge() {
    let folder = Folder::new();
    let (mut one, ledger) = (Peer::new(&folder), folder.open());
    assert_eq!(one.command("charge 700"), "ok");
    one.signal(Signal::STOP);
    assert!(ledger.reserve(Bytes(301)).unwrap_err().is_capacity());
    assert_eq!(in_use(&ledger).0, Bytes(700));
    let rest = ledger.reserve(Bytes(300)).unwrap();
    one.signal(Signal::CONT);
    assert_eq!(one.command("held"), "700");
    drop(rest);
}

/// Has the lock look as if the process in `slot` had it.
fn forge_lock(folder: &Folder, slot: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(folder.file()).unwrap();
    let taken = Book::<WordsSnapshot>::lock_word(1 << 12, slot as usize);
    file.write_all_at(&taken.to_le_bytes(), header::LOCK as u64 * 8).unwrap();
}

fn l6_a_stopped_owner_of_the_lock_is_named() {
    let folder = Folder::new();
    let (mut one, ledger) = (Peer::new(&folder), folder.open());
    let ours = ledger.reserve(Bytes(100)).unwrap();
    assert_eq!(one.command("charge 10"), "ok");
    one.signal(Signal::STOP);
    forge_lock(&folder, 0);
    let began = Instant::now();
    let stuck = ledger.account().unwrap_err();
    assert!(began.elapsed() >= Duration::from_secs(5));
    assert!(matches!(&stuck, LedgerError::Stuck { pid, .. } if *pid == one.child.id()), "{stuck}");
    // What needs no lock goes on.
    ours.charge(Bytes(60)).unwrap();
    ours.release(Bytes(60));
    one.kill();
    assert_eq!(ours.undrawn(), Bytes(100));
    assert_eq!(ledger.available().unwrap(), Bytes(900));
}

fn l6_a_dead_owner_of_the_lock_is_replaced() {
    let folder = Folder::new();
    let (mut one, ledger) = (Peer::new(&folder), folder.open());
    assert_eq!(one.command("charge 10"), "ok");
    one.kill();
    forge_lock(&folder, 0);
    assert_eq!(ledger.available().unwrap(), TOTAL);
}

fn can_unshare() -> bool {
    let tried = Command::new("unshare").args(["-Urpf", "true"]).stderr(Stdio::null()).status();
    tried.is_ok_and(|status| status.success())
}

fn l6_another_pid_namespace_is_no_matter() {
    let folder = Folder::new();
    let ledger = folder.open();
    let mut command = Command::new("unshare");
    command.args(["-Urpf", "--kill-child", "--map-root-user"]).arg(std::env::current_exe().unwrap());
    let mut other = Peer::started(command);
    assert_eq!(other.command(&format!("open {}", folder.path().display())), "ok");
    assert_eq!(other.command("charge 800"), "ok");
    assert!(ledger.reserve(Bytes(201)).unwrap_err().is_capacity());
    let reading = ledger.reading().unwrap();
    assert!(reading.processes.iter().any(|process| process.pid < 10 && process.held == Bytes(800)), "{reading:?}");
    other.kill();
    let everything = ledger.reserve_within(TOTAL, Duration::from_secs(20), Default::default()).unwrap();
    assert_eq!(everything.bytes(), TOTAL);
}

fn l7_removal_while_in_use_is_noticed_and_refused() {
    let folder = Folder::new();
    let mut one = Peer::new(&folder);
    assert_eq!(one.command("charge 300"), "ok");
    std::fs::remove_file(folder.file()).unwrap();
    let refused = Ledger::open_in(folder.path(), &subject()).unwrap_err();
    let LedgerError::InUse { file, pids } = &refused else { panic!("{refused}") };
    assert_eq!((file, pids.as_slice()), (&folder.file(), [one.child.id()].as_slice()));
    let told = one.command("charge 100");
    assert!(told.starts_with("error") && told.contains("was removed or replaced while in use"), "{told}");
    assert_eq!(one.command("release 300"), "ok");
    one.kill();
    assert_eq!(folder.open().available().unwrap(), TOTAL);
}

fn l6_clearing_tells_nobody_who_lives_unless_forced() {
    let folder = Folder::new();
    let (mut one, ledger) = (Peer::new(&folder), folder.open());
    assert_eq!(one.command("tenant batch"), "ok");
    let refused = ledger.clear(false).unwrap_err();
    let LedgerError::Held { processes, .. } = &refused else { panic!("{refused}") };
    assert_eq!(processes.len(), 1, "{refused}");
    assert!(processes[0].contains(&one.child.id().to_string()), "{refused}");
    assert_eq!(one.command("charge 10"), "ok");
    assert_eq!(one.command("release 10"), "ok");
    ledger.clear(true).unwrap();
    assert!(one.command("charge 10").contains("cleared by force"));
    one.kill();
    ledger.clear(false).unwrap();
    assert_eq!(ledger.reading().unwrap().tenants, []);
}

/// A tenant that is looked up before a clearing is not used after it.
fn l7_clearing_while_others_open_damages_nothing() {
    let folder = Folder::new();
    let (mut one, ledger) = (Peer::new(&folder), folder.open());
    for round in 0..20 {
        one.send("open-accounts 300");
        for _ in 0..300 {
            ledger.clear(true).unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        let told = one.reply();
        assert!(told == "ok" || told.contains("cleared by force"), "round {round}: {told}");
        ledger.reading().unwrap_or_else(|error| panic!("round {round}: {error}"));
        drop(Peer::new(&folder));
    }
}

fn l3_a_share_returns_when_giver_and_child_are_gone() {
    let folder = Folder::new();
    let (mut giver, mut child, ledger) = (Peer::new(&folder), Peer::started(myself()), folder.open());
    assert_eq!(giver.command("reserve 600"), "ok");
    let token = giver.command("delegate");
    assert_eq!(child.command(&format!("draw {token}")), "ok");
    assert_eq!(child.command(&format!("open {}", folder.path().display())), "ok");
    assert_eq!(child.command("draw-charge 200"), "ok");
    assert_eq!(in_use(&ledger), (Bytes(200), Bytes(400)));
    // The giver goes first: the child's share stays.
    giver.kill();
    assert!(ledger.reserve(Bytes(401)).unwrap_err().is_capacity());
    assert_eq!(child.command("draw-charge 400"), "ok");
    child.kill();
    assert_eq!(ledger.reserve(TOTAL).unwrap().bytes(), TOTAL);

    // The child goes first: its share is the giver's at once.
    let (mut giver, mut child) = (Peer::new(&folder), Peer::new(&folder));
    assert_eq!(giver.command("reserve 600"), "ok");
    let token = giver.command("delegate");
    assert_eq!(child.command(&format!("draw {token}")), "ok");
    assert_eq!(child.command("draw-charge 600"), "ok");
    child.kill();
    assert_eq!(in_use(&ledger), (Bytes::ZERO, Bytes(600)));
    giver.kill();
    assert_eq!(in_use(&ledger), (Bytes::ZERO, Bytes::ZERO));
    let ended = Reservation::from_token(&token).unwrap_err();
    let Error::External(external) = &ended else { panic!("{ended}") };
    let cause = external.downcast_ref();
    assert!(matches!(cause, Some(LedgerError::Token { why, .. }) if why.contains("has ended")), "{ended}");
}

fn l3_a_process_draws_on_a_share_by_one_account() {
    let folder = Folder::new();
    let ledger = folder.open();
    let delegations = [500, 300].map(|bytes| ledger.reserve(Bytes(bytes)).unwrap().delegate().unwrap());
    let draw = |share: usize| Reservation::from_token(&delegations[share].token()).unwrap();
    let (one, other, elsewhere) = (draw(0), draw(0), draw(1));
    one.charge(Bytes(200)).unwrap();
    other.charge(Bytes(100)).unwrap();
    let held = |share: &Reservation| (share.held(), share.undrawn(), share.bytes());
    assert_eq!(held(&one), (Bytes(300), Bytes(200), Bytes(500)));
    assert_eq!(held(&other), held(&one));
    assert_eq!(held(&elsewhere), (Bytes::ZERO, Bytes(300), Bytes(300)), "another share has an account of its own");
    // It ends with its last handle, whichever that is.
    drop(one);
    assert_eq!(held(&other), (Bytes(300), Bytes(200), Bytes(500)));
    other.charge(Bytes(200)).unwrap();
    other.release(Bytes(500));
    drop(other);
    assert_eq!(held(&draw(0)), (Bytes::ZERO, Bytes(500), Bytes(500)));
    drop(elsewhere);
    // One that was cleared is not found again.
    let old = draw(0);
    ledger.clear(true).unwrap();
    let delegation = ledger.reserve(Bytes(400)).unwrap().delegate().unwrap();
    let new = Reservation::from_token(&delegation.token()).unwrap();
    new.charge(Bytes(400)).unwrap();
    assert_eq!((new.held(), old.held()), (Bytes(400), Bytes::ZERO));
    new.release(Bytes(400));
}

fn l3_several_children_draw_on_one_token() {
    let folder = Folder::new();
    let ledger = folder.open();
    let delegation = ledger.reserve(Bytes(500)).unwrap().delegate().unwrap();
    let (mut one, mut other) = (Peer::new(&folder), Peer::new(&folder));
    for child in [&mut one, &mut other] {
        assert_eq!(child.command(&format!("draw {}", delegation.token())), "ok");
    }
    assert_eq!(one.command("draw-charge 300"), "ok");
    assert!(other.command("draw-charge 201").starts_with("error over budget: 201 B requested, 200 B of 500 B left"));
    assert_eq!(other.command("draw-charge 200"), "ok");
    assert_eq!((delegation.held(), delegation.undrawn()), (Bytes(500), Bytes::ZERO));
    // What one has given back it keeps as credit, and another could have it.
    assert_eq!(one.command("draw-release 300"), "ok");
    let drawn = Reservation::from_token(&delegation.token()).unwrap();
    assert_eq!(drawn.undrawn(), Bytes(300));
    assert!(drawn.at_hand() <= drawn.undrawn());
    drawn.charge(drawn.undrawn()).unwrap();
    assert_eq!(drawn.undrawn(), Bytes::ZERO);
    one.kill();
    drawn.release(Bytes(300));
    assert_eq!(ledger.reading().unwrap().undrawn, Bytes(300));
}
