//! Ledgers that one process opens, closes and opens again while its own threads still know of the old one (L5, L6).

use crate::peer::{Folder, Peer, TOTAL, subject};
use crate::trial;
use bursar_core::{Account, Bytes, DeviceUuid};
use bursar_ledger::{Ledger, Priority, Subject};
use libtest_mimic::Trial;
use std::pin::pin;
use std::task::{Context, Waker};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("l6_who_opens_again_keeps_its_place", l6_who_opens_again_keeps_its_place),
        trial("l6_threads_that_open_and_close_keep_their_places", l6_threads_that_open_and_close_keep_their_places),
    ]
}

/// Opens a ledger, starts its listener, and closes it.
fn open_listen_and_close(folder: &Folder, round: u32) {
    let ledger = folder.open();
    if round.is_multiple_of(2) {
        drop(ledger.on_reclaim(|_| Bytes::ZERO));
    } else {
        let all = ledger.reserve(TOTAL).unwrap();
        let mut turn = pin!(ledger.reserve_async(Bytes(1), Priority::NORMAL));
        assert!(turn.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(all);
    }
}

fn l6_who_opens_again_keeps_its_place() {
    let folder = Folder::new();
    let mut other = Peer::new(&folder);
    for round in 0..100 {
        open_listen_and_close(&folder, round);
        let ledger = folder.open();
        let everything = ledger.reserve(TOTAL).unwrap();
        // The thread of the closed ledger has time to end.
        std::thread::yield_now();
        let told = other.command("reserve 1000");
        assert!(told.starts_with("error over budget"), "round {round}: another process was told {told:?}");
        everything.charge(TOTAL).unwrap();
        everything.release(TOTAL);
    }
}

/// Three ledgers, as of three devices.
fn one_of_three(number: u8) -> Subject {
    Subject { uuid: DeviceUuid([number; 16]), ..subject() }
}

fn l6_threads_that_open_and_close_keep_their_places() {
    let folder = Folder::new();
    let thread = |number: u8| {
        let subject = one_of_three(number);
        for round in 0..300 {
            let ledger = Ledger::open_in(folder.path(), &subject).unwrap();
            drop(ledger.on_reclaim(|_| Bytes::ZERO));
            drop(ledger);
            let ledger = Ledger::open_in(folder.path(), &subject).unwrap();
            let everything = ledger.reserve(TOTAL).unwrap_or_else(|error| panic!("round {round}: {error}"));
            let me = ledger.reading().unwrap().processes;
            assert_eq!(me.len(), 1, "round {round}: {me:?}");
            everything.charge(TOTAL).unwrap_or_else(|error| panic!("round {round}: {error}"));
            everything.release(TOTAL);
        }
    };
    std::thread::scope(|scope| {
        for number in 1..=3 {
            scope.spawn(move || thread(number));
        }
    });
}
