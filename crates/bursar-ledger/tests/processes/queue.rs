//! Waiting across processes (L4), and giving back what is borrowed (L2).

use crate::peer::{Folder, Peer, TOTAL};
use crate::trial;
use bursar_core::{Account, Bytes, Error};
use bursar_ledger::{Ledger, Priority};
use libtest_mimic::Trial;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("l4_a_release_elsewhere_wakes_who_waits", l4_a_release_elsewhere_wakes_who_waits),
        trial("l4_a_death_elsewhere_wakes_who_waits", l4_a_death_elsewhere_wakes_who_waits),
        trial("l4_a_waiter_that_dies_leaves_no_trace", l4_a_waiter_that_dies_leaves_no_trace),
        trial("l4_the_large_is_served_within_the_second_round", l4_the_large_is_served_within_the_second_round),
        trial("l2_other_processes_give_back_when_the_owner_asks", l2_other_processes_give_back_when_the_owner_asks),
        trial(
            "l2_a_callback_that_panics_ends_no_thread_that_listens",
            l2_a_callback_that_panics_ends_no_thread_that_listens,
        ),
        trial("l2_the_refusal_names_who_still_borrows", l2_the_refusal_names_who_still_borrows),
    ]
}

/// Returns once `n` requests wait.
fn until_waiting(ledger: &Ledger, n: usize) {
    let began = Instant::now();
    while ledger.reading().unwrap().waiting.len() != n {
        assert!(began.elapsed() < LONG, "nobody came to wait");
        std::thread::yield_now();
    }
}

fn l4_a_release_elsewhere_wakes_who_waits() {
    let folder = Folder::new();
    let (mut one, mut other, ledger) = (Peer::new(&folder), Peer::new(&folder), folder.open());
    assert_eq!(one.command("charge 900"), "ok");
    other.send("within 500 60000 1");
    until_waiting(&ledger, 1);
    let waiting = &ledger.reading().unwrap().waiting[0];
    assert_eq!((waiting.pid, waiting.bytes, waiting.priority), (other.child.id(), Bytes(500), Priority(1)));
    assert_eq!(one.command("release 400"), "ok");
    assert_eq!(other.reply(), "ok");
    assert_eq!(ledger.reading().unwrap().undrawn, Bytes(500));
}

fn l4_a_death_elsewhere_wakes_who_waits() {
    let folder = Folder::new();
    let (mut one, mut other) = (Peer::new(&folder), Peer::new(&folder));
    assert_eq!(one.command("charge 900"), "ok");
    other.send("within 500 60000 1");
    until_waiting(&folder.open(), 1);
    let began = Instant::now();
    one.kill();
    assert_eq!(other.reply(), "ok");
    assert!(began.elapsed() < LONG / 2, "the kernel tells, nobody waits for the deadline");
}

fn l4_a_waiter_that_dies_leaves_no_trace() {
    let folder = Folder::new();
    let (mut one, ledger) = (Peer::new(&folder), folder.open());
    let ours = ledger.reserve(Bytes(600)).unwrap();
    one.send("within 500 60000 128");
    until_waiting(&ledger, 1);
    // It waits for what is available, so nobody else may have it.
    assert!(ledger.reserve(Bytes(300)).unwrap_err().is_capacity());
    one.kill();
    assert!(ledger.reading().unwrap().waiting.is_empty());
    let next = ledger.reserve(Bytes(400)).unwrap();
    drop((ours, next));
    assert_eq!(ledger.available().unwrap(), TOTAL);
}

/// Three processes make small requests, and one asks for nearly all: once it waits, whoever comes later waits behind
/// it, so it is served when those who came before are done.
fn l4_the_large_is_served_within_the_second_round() {
    let folder = Folder::new();
    let ledger = folder.open();
    let mut small: Vec<Peer> = (0..3).map(|_| Peer::new(&folder)).collect();
    let mut large = Peer::new(&folder);
    for peer in &mut small {
        assert_eq!(peer.command("within 300 60000 128"), "ok");
    }
    large.send("within 900 60000 128");
    until_waiting(&ledger, 1);
    // The second round: each releases and asks again, and none may overtake.
    for (done, peer) in small.iter_mut().enumerate() {
        assert_eq!(peer.command("drop"), "ok");
        let refused = peer.command("reserve 50");
        assert!(refused.starts_with("error 50 B requested out of turn: "), "{refused}");
        peer.send("within 300 60000 128");
        until_waiting(&ledger, if done == 2 { 3 } else { done + 2 });
    }
    assert_eq!(large.reply(), "ok");
    assert_eq!(ledger.reading().unwrap().undrawn, Bytes(900));
    assert_eq!(large.command("drop"), "ok");
    for peer in &mut small {
        assert_eq!(peer.reply(), "ok");
    }
}

fn l2_other_processes_give_back_when_the_owner_asks() {
    let folder = Folder::new();
    let (mut borrower, ledger) = (Peer::new(&folder), folder.open());
    let owner = ledger.tenant("owner").unwrap();
    owner.configure(Bytes(600), TOTAL).unwrap();
    assert_eq!(borrower.command("charge 900"), "ok");
    assert_eq!(borrower.command("give-back-when-asked 900"), "ok");
    // `reserve` asks only the callbacks of this process, and there are none.
    assert!(owner.reserve(Bytes(500)).unwrap_err().is_capacity());
    let granted = owner.reserve_within(Bytes(500), LONG, Priority::NORMAL).unwrap();
    assert_eq!(granted.undrawn(), Bytes(500));
    assert_eq!(borrower.command("held"), "500");
}

/// Asked twice by another process: the callback that panics each time keeps neither the other callback nor later
/// requests from being served.
fn l2_a_callback_that_panics_ends_no_thread_that_listens() {
    let folder = Folder::new();
    let (mut borrower, ledger) = (Peer::new(&folder), folder.open());
    let owner = ledger.tenant("owner").unwrap();
    owner.configure(Bytes(600), TOTAL).unwrap();
    assert_eq!(borrower.command("charge 900"), "ok");
    assert_eq!(borrower.command("panic-when-asked"), "ok");
    assert_eq!(borrower.command("give-back-when-asked 900"), "ok");
    let within = Duration::from_secs(10);
    let one = owner.reserve_within(Bytes(300), within, Priority::NORMAL).unwrap();
    let other = owner.reserve_within(Bytes(300), within, Priority::NORMAL).unwrap();
    assert_eq!((one.bytes(), other.bytes()), (Bytes(300), Bytes(300)));
    assert_eq!(borrower.command("held"), "400");
}

fn l2_the_refusal_names_who_still_borrows() {
    let folder = Folder::new();
    let (mut borrower, ledger) = (Peer::new(&folder), folder.open());
    let owner = ledger.tenant("owner").unwrap();
    owner.configure(Bytes(600), TOTAL).unwrap();
    assert_eq!(borrower.command("charge 900"), "ok");
    let refused = owner.reserve_within(Bytes(500), Duration::from_millis(50), Priority::NORMAL).unwrap_err();
    let Error::Withheld { requested, by, .. } = &refused else { panic!("{refused}") };
    assert_eq!(*requested, Bytes(500));
    assert!(by.contains(&format!("(pid {}): 900 B", borrower.child.id())), "{by}");
    assert!(refused.is_capacity() && ledger.reading().unwrap().waiting.is_empty());
    let account = ledger.account().unwrap();
    account.charge(Bytes(100)).unwrap();
    account.release(Bytes(100));
}
