//! Requests that one process makes of another end with whoever made them (Z10).

mod common;

use bursar_core::{Account, Bytes};
use bursar_ledger::book::{AskRefusal, Book, ProcessRequest, RequestEnd, RequestKey, RequestState};
use bursar_ledger::{Ledger, RemoteError, RemoteReport, RemoteRequest};
use common::{LOCK_TIMEOUT, Memory, View, register};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// The time that a wait lasts which nothing ends.
const LONG: Duration = Duration::from_secs(60);

/// Longer than it takes to end a wait, and shorter than the wait would last.
const SOON: Duration = Duration::from_secs(20);

/// The number of times that a request is made and withdrawn.
const ROUNDS: u32 = 300;

/// A callback waits for memory: in the queue with an account of a tenant, and beside it with a reservation, which nobody queues for.
#[test]
fn z10_a_wait_for_memory_ends_when_the_request_is_withdrawn() {
    let ledger = Ledger::private(Bytes(1000));
    let all = Arc::new(ledger.reserve(Bytes(1000)).unwrap());
    all.charge(Bytes(1000)).unwrap();
    let accounts: [Arc<dyn Account>; 2] = [all.clone(), Arc::new(ledger.account().unwrap())];
    // A request may be withdrawn at any moment of the wait, also just before it begins.
    for account in (0..ROUNDS).flat_map(|_| accounts.clone()) {
        let (tell, told) = channel();
        let listener = ledger.on_request(move |_| {
            tell.send(()).unwrap();
            account.charge_within(Bytes(10), LONG).map(|()| RemoteReport::default())
        });
        let call = ledger.ask(std::process::id(), RemoteRequest::Wake { patience: LONG }).unwrap();
        told.recv_timeout(SOON).expect("the callback runs");
        assert!(!call.withdraw().unwrap(), "it was taken");
        let ended = call.wait(SOON).expect("it still waits");
        assert!(matches!(ended, Err(RemoteError::Withdrawn { .. })), "{ended:?}");
        drop(listener);
    }
    let reading = ledger.reading().unwrap();
    assert_eq!((all.held(), reading.waiting.len()), (Bytes(1000), 0));
    assert_eq!((reading.refused.total(), reading.refusals.len()), (0, 0), "who gives up is not refused");
}

/// The request is withdrawn while another process has the lock, which then gives the lock back, or dies with it.
#[test]
fn l6_a_request_that_is_withdrawn_without_the_lock_is_gone_for_whoever_has_it_next() {
    for (is_taken, owner_dies) in [(false, false), (false, true), (true, false), (true, true)] {
        let (memory, [asker, other, asked]) = three();
        let key = asker.lock(LOCK_TIMEOUT).unwrap().ask(asked.slot(), SLEEP, false).unwrap();
        if is_taken {
            asked.lock(LOCK_TIMEOUT).unwrap().take_request().expect("it is wanted");
        }
        let owner = other.lock(LOCK_TIMEOUT).unwrap();
        asker.withdraw_request(key);
        assert!(asked.is_withdrawn(key), "it is known at once");
        if owner_dies {
            memory.kill(other.slot());
            std::mem::forget(owner);
        } else {
            drop(owner);
        }
        assert_eq!(asked.lock(LOCK_TIMEOUT).unwrap().take_request(), None, "nobody waits for it");
        let mut locked = asker.lock(LOCK_TIMEOUT).unwrap();
        match is_taken {
            true => {
                assert_eq!(locked.read_request(key), RequestState::Taken);
                assert_eq!(locked.ask(asked.slot(), SLEEP, false), Err(AskRefusal::Busy), "it is to end first");
            }
            false => {
                assert_eq!(locked.read_request(key), RequestState::Withdrawn);
                let next = locked.ask(asked.slot(), SLEEP, false).expect("the slot is free");
                drop(locked);
                // A late note of the first says nothing of the second.
                asker.withdraw_request(key);
                assert_eq!(asked.lock(LOCK_TIMEOUT).unwrap().take_request(), Some((next, SLEEP)));
                assert!(!asked.is_withdrawn(next));
            }
        }
    }
}

const SLEEP: ProcessRequest = ProcessRequest { wake: false, keep_place: true, patience_ms: 7 };

/// Two processes that ask, and one that is asked.
fn three() -> (Arc<Memory>, [Book<View>; 3]) {
    let memory = Memory::new(1000);
    let books = [1, 2, 3].map(|slot| memory.process(slot));
    books.iter().for_each(register);
    books[2].set_listens(true);
    (memory, books)
}

#[test]
fn z10_a_request_is_taken_while_whoever_made_it_is_alive_and_no_later() {
    type Fate = fn(&Arc<Memory>);
    let fates: [(&str, Fate, bool); 4] = [
        ("it lives", |_| {}, true),
        ("it is dead", |memory| memory.kill(1), false),
        ("it is dead, and another process has its slot", |memory| register(&memory.process(1)), false),
        ("it has left", |memory| assert!(memory.process(1).lock(LOCK_TIMEOUT).unwrap().unregister_process()), false),
    ];
    for (what, fate, is_wanted) in fates {
        let (memory, [asker, other, asked]) = three();
        let key = asker.lock(LOCK_TIMEOUT).unwrap().ask(asked.slot(), SLEEP, false).unwrap();
        fate(&memory);
        let taken = asked.lock(LOCK_TIMEOUT).unwrap().take_request();
        assert_eq!(taken, is_wanted.then_some((key, SLEEP)), "{what}");
        let mut locked = other.lock(LOCK_TIMEOUT).unwrap();
        let state = if is_wanted { RequestState::Taken } else { RequestState::Withdrawn };
        assert_eq!(locked.read_request(key), state, "{what}");
        assert_eq!(locked.ask(asked.slot(), SLEEP, false).is_ok(), !is_wanted, "{what}: one at a time");
    }
}

/// Makes a request that has ended.
fn ended(asker: &Book<View>, asked: &Book<View>) -> RequestKey {
    let key = asker.lock(LOCK_TIMEOUT).unwrap().ask(asked.slot(), SLEEP, false).unwrap();
    let mut locked = asked.lock(LOCK_TIMEOUT).unwrap();
    locked.take_request().expect("it is wanted");
    locked.end_request(key, &RequestEnd::default());
    key
}

#[test]
fn z10_the_end_of_a_request_is_there_until_whoever_made_it_has_read_it() {
    type Fate = fn(&Arc<Memory>, &Book<View>, RequestKey);
    let fates: [(&str, Fate, bool); 4] = [
        ("it was not read", |_, _, _| {}, false),
        ("it was read", |_, asker, key| drop(asker.lock(LOCK_TIMEOUT).unwrap().read_request(key)), true),
        ("nobody wants it", |_, asker, key| asker.withdraw_request(key), true),
        ("whoever made it is dead", |memory, _, _| memory.kill(1), true),
    ];
    for (what, fate, is_over) in fates {
        let (memory, [asker, other, asked]) = three();
        let key = ended(&asker, &asked);
        fate(&memory, &asker, key);
        let mut locked = other.lock(LOCK_TIMEOUT).unwrap();
        assert_eq!(locked.ask(asked.slot(), SLEEP, false).is_ok(), is_over, "{what}");
        assert!(is_over || locked.read_request(key) == RequestState::Ended(RequestEnd::default()), "{what}");
    }
    // One that is stopped reads nothing.
    let (_memory, [asker, other, asked]) = three();
    let key = ended(&asker, &asked);
    other.lock(LOCK_TIMEOUT).unwrap().ask(asked.slot(), SLEEP, true).expect("it was waited for");
    assert_eq!(asker.lock(LOCK_TIMEOUT).unwrap().read_request(key), RequestState::Overtaken);
}

/// Several ask at once, and again and again.
#[test]
fn z10_everybody_who_asks_is_told_how_it_ended() {
    let ledger = Ledger::private(Bytes(1000));
    let _listener = ledger.on_request(|_| Ok(RemoteReport { moved: Bytes(7), ..RemoteReport::default() }));
    let ask = || loop {
        match ledger.ask(std::process::id(), RemoteRequest::Wake { patience: LONG }) {
            Err(RemoteError::Busy { .. }) => std::thread::yield_now(),
            call => break call.unwrap().wait(SOON).expect("it ends"),
        }
    };
    std::thread::scope(|scope| {
        let asker = || (0..ROUNDS).for_each(|_| assert_eq!(ask().unwrap().moved, Bytes(7)));
        for _ in 0..3 {
            scope.spawn(asker);
        }
    });
}
