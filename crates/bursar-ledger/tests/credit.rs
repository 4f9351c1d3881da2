//! Credit that moves while it is recalled (L9).

mod common;

use bursar_ledger::book::{Book, CreditLimit, NodeKey};
use common::{LOCK_TIMEOUT, Memory, View, register};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

const SHARE: u64 = 10;

/// Opens an account with all of `SHARE`, held or as credit.
fn account(book: &Book<View>, held: bool) -> NodeKey {
    register(book);
    let mut locked = book.lock(LOCK_TIMEOUT).unwrap();
    let tenant = locked.find_or_add_tenant("").unwrap();
    let key = locked.open_account(tenant).unwrap();
    locked.charge(key, if held { SHARE } else { 0 }, 0).unwrap();
    drop(locked);
    if !held {
        book.charge(key, 1, SHARE - 1, LOCK_TIMEOUT).unwrap().unwrap();
        assert!(book.release_to_balance(key, 1, CreditLimit::new(SHARE)));
    }
    key
}

/// Asks for `SHARE` while one process releases as much just before the `gives`th write, and another charges as much
/// just before the `takes`th. There is enough at every moment. Returns the number of writes.
fn ask(gives: u64, takes: u64) -> u64 {
    let memory = Memory::new(2 * SHARE);
    let (asker, giver, taker) = (memory.process(1), memory.process(2), memory.process(3));
    let (of_giver, of_taker) = (account(&giver, true), account(&taker, false));
    register(&asker);
    let tenant = asker.lock(LOCK_TIMEOUT).unwrap().find_or_add_tenant("").unwrap();
    let mine = asker.lock(LOCK_TIMEOUT).unwrap().open_account(tenant).unwrap();
    let began = asker.words().writes.load(SeqCst);
    let memory = Arc::clone(&memory);
    let (mut given, mut taken) = (false, false);
    *asker.words().hook.lock().unwrap() = Some(Box::new(move |write| {
        if write == began + gives {
            let book = memory.process(2);
            if !book.release_to_balance(of_giver, SHARE, CreditLimit::new(SHARE)) {
                book.release(of_giver, SHARE, SHARE);
            }
            given = true;
        }
        if write == began + takes && given && !taken {
            taken = memory.process(3).charge_balance(of_taker, SHARE);
        }
    }));
    let refused = asker.charge(mine, SHARE, 0, LOCK_TIMEOUT).unwrap().err();
    *asker.words().hook.lock().unwrap() = None;
    assert_eq!(refused, None, "given before write {gives}, taken before write {takes}");
    assert_eq!(asker.lock(LOCK_TIMEOUT).unwrap().find_inconsistency(), None);
    asker.words().writes.load(SeqCst) - began
}

#[test]
fn l9_what_moves_between_others_refuses_nobody() {
    let writes = ask(u64::MAX / 2, u64::MAX / 2);
    assert!(writes > 10, "credit was called in");
    for gives in 0..writes {
        for takes in gives..writes {
            ask(gives, takes);
        }
    }
}
