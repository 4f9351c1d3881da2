//! Waiting in one process: the order of service, and leaving the queue (L4).

#[path = "common/figures.rs"]
mod figures;
#[path = "common/wakers.rs"]
mod wakers;

use bursar_core::{Account, Bytes, Error, MemoryInfo};
use bursar_ledger::{Ledger, Priority, RefusalReason, ReserveOptions};
use figures::{LONG, figures, refusal};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::task::{Poll, Waker};
use std::time::Duration;
use wakers::{Count, poll};

#[test]
fn l4_first_come_within_a_priority() {
    let ledger = Ledger::private(Bytes(100));
    let all = ledger.reserve(Bytes(100)).unwrap();
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        for (at, priority) in
            [Priority::LOW, Priority::NORMAL, Priority::NORMAL, Priority::HIGH].into_iter().enumerate()
        {
            let (ledger, tell) = (ledger.clone(), tell.clone());
            let waits = ledger.clone();
            scope.spawn(move || {
                let reserved = ledger.reserve_within(Bytes(100), LONG, priority).unwrap();
                tell.send(at).unwrap();
                drop(reserved);
            });
            while waits.reading().unwrap().waiting.len() != at + 1 {
                std::thread::yield_now();
            }
        }
        drop(all);
    });
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [3, 1, 2, 0]);
    assert_eq!(ledger.available().unwrap(), Bytes(100));
}

#[test]
fn l4_a_passed_deadline_leaves_no_trace() {
    let ledger = Ledger::private(Bytes(100));
    let most = ledger.reserve(Bytes(60)).unwrap();
    let refused = ledger.reserve_within(Bytes(50), Duration::ZERO, Priority::HIGH).unwrap_err();
    assert_eq!(refusal(refused), (50, 40, 100));
    assert!(ledger.reading().unwrap().waiting.is_empty());
    // A request that can never be granted is refused at once, however long its deadline.
    assert_eq!(refusal(ledger.reserve_within(Bytes(101), LONG, Priority::HIGH).unwrap_err()).0, 101);
    drop((most, ledger.reserve(Bytes(40)).unwrap()));
    assert_eq!(ledger.available().unwrap(), Bytes(100));
}

/// Who asks for memory at once that is kept for others is told how much of it there is, and who comes first.
#[test]
fn l4_a_refusal_for_those_who_wait_says_what_is_free_and_who_they_are() {
    let ledger = Ledger::private(Bytes(100));
    let _some = ledger.reserve(Bytes(40)).unwrap();
    let mut waiting: Vec<_> =
        [80, 70, 90].map(|bytes| Box::pin(ledger.reserve_async(Bytes(bytes), Priority::NORMAL))).into();
    for (behind, waits) in waiting.iter_mut().enumerate() {
        assert!(poll(waits.as_mut(), Waker::noop()).is_pending());
        let refused = ledger.reserve(Bytes(10)).unwrap_err();
        assert!(refused.is_capacity());
        let Error::OutOfTurn { requested, remaining, limit, first, behind: more } = &refused else {
            panic!("{refused}")
        };
        assert_eq!((*requested, *remaining, *limit), (Bytes(10), Bytes(60), Bytes(100)));
        assert_eq!((first.pid, first.bytes, *more), (std::process::id(), Bytes(80), behind));
        let text = refused.to_string();
        assert!(text.starts_with("10 B requested out of turn: 60 B of 100 B left"), "{text}");
        assert!(text.contains(&format!("(pid {}) waits for 80 B", first.pid)), "{text}");
    }
    // What is not there is refused as ever, whoever waits.
    assert_eq!(refusal(ledger.reserve(Bytes(61)).unwrap_err()), (61, 60, 100));
    let last = ledger.reading().unwrap().refusals;
    assert_eq!((last[1].reason, last[1].available), (RefusalReason::Queue, Bytes(60)));
}

/// A request that would come first in the queue is granted at once, too; one that would come behind is not, and a charge has no turn.
#[test]
fn l4_a_request_at_once_comes_before_those_who_wait_with_a_lower_priority() {
    let ledger = Ledger::private(Bytes(100));
    let _some = ledger.reserve(Bytes(40)).unwrap();
    let mut waits = Box::pin(ledger.reserve_async(Bytes(80), Priority::NORMAL));
    assert!(poll(waits.as_mut(), Waker::noop()).is_pending());
    let at_once = |bytes: u64, priority| ledger.reserve_with(Bytes(bytes), &ReserveOptions::new().priority(priority));
    let within = |bytes: u64, priority| ledger.reserve_within(Bytes(bytes), Duration::ZERO, priority);
    for priority in [Priority::LOW, Priority::NORMAL, Priority(Priority::NORMAL.0 + 1), Priority::HIGH] {
        for bytes in [1, 60, 61] {
            let expected = within(bytes, priority).is_ok();
            assert_eq!(expected, priority > Priority::NORMAL && bytes <= 60);
            assert_eq!(at_once(bytes, priority).is_ok(), expected, "{bytes} B with {priority:?}");
        }
    }
    assert!(ledger.account().unwrap().charge(Bytes(1)).unwrap_err().is_capacity());
    // One of a higher priority that waits as well comes first.
    let mut first = Box::pin(ledger.reserve_async(Bytes(70), Priority::HIGH));
    assert!(poll(first.as_mut(), Waker::noop()).is_pending());
    assert!(matches!(at_once(1, Priority::HIGH), Err(Error::OutOfTurn { behind: 1, .. })));
    assert_eq!(at_once(60, Priority(255)).map(|reserved| reserved.bytes()), Ok(Bytes(60)));
}

/// Requests within a guarantee come first, whatever the priority of others.
#[test]
fn l4_a_request_at_once_does_not_come_before_those_within_a_guarantee() {
    let ledger = Ledger::private(Bytes(100));
    let owner = ledger.tenant("owner").unwrap();
    owner.configure(Bytes(80), Bytes(100)).unwrap();
    let _lent = ledger.reserve(Bytes(40)).unwrap();
    let mut waits = Box::pin(owner.reserve_async(Bytes(80), Priority::LOW));
    assert!(poll(waits.as_mut(), Waker::noop()).is_pending());
    let high = ReserveOptions::new().priority(Priority::HIGH);
    assert!(matches!(ledger.reserve_with(Bytes(1), &high), Err(Error::OutOfTurn { behind: 0, .. })));
    assert!(ledger.reserve_within(Bytes(1), Duration::ZERO, Priority::HIGH).is_err());
}

/// There are bytes for all but no row in the table: the refusal says what is full.
#[test]
fn l4_a_full_table_is_named_where_one_waited_for_it() {
    let ledger = Ledger::private(Bytes::gib(8));
    let mut kept = Vec::new();
    let full = loop {
        match ledger.reserve(Bytes(1)) {
            Ok(one) => kept.push(one),
            Err(error) => break error.to_string(),
        }
    };
    assert!(full.contains("no room for more reservations"), "{full}");
    let refused = ledger.reserve_within(Bytes(1), Duration::from_millis(1), Priority::HIGH).unwrap_err();
    assert_eq!(refused.to_string(), full);
    assert!(!refused.is_capacity(), "less would not fit either");
    // A request that waits for a row gets the next one.
    let mut turn = pin!(ledger.reserve_async(Bytes(1), Priority::NORMAL));
    assert!(poll(turn.as_mut(), Waker::noop()).is_pending());
    drop(kept.pop());
    assert!(poll(turn.as_mut(), Waker::noop()).is_ready());
}

#[test]
fn l4_a_dropped_future_leaves_no_trace_and_a_kept_one_is_woken() {
    let ledger = Ledger::private(Bytes(100));
    let all = ledger.reserve(Bytes(100)).unwrap();
    let woken = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&woken));
    {
        let mut dropped = pin!(ledger.reserve_async(Bytes(100), Priority::HIGH));
        assert!(poll(dropped.as_mut(), &waker).is_pending());
        assert_eq!(ledger.reading().unwrap().waiting.len(), 1);
    }
    assert!(ledger.reading().unwrap().waiting.is_empty());
    let mut granted = Box::pin(ledger.reserve_async(Bytes(70), Priority::NORMAL));
    let mut kept = pin!(ledger.reserve_async(Bytes(50), Priority::NORMAL));
    assert!(poll(granted.as_mut(), &waker).is_pending() && poll(kept.as_mut(), &waker).is_pending());
    drop(all);
    // Granted, and dropped before it was polled: the grant goes to the next request.
    assert_eq!(figures(&ledger), (0, 70));
    drop(granted);
    while woken.0.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    let Poll::Ready(reserved) = poll(kept.as_mut(), &waker) else { panic!("it was its turn") };
    assert_eq!(reserved.unwrap().bytes(), Bytes(50));
    assert_eq!(ledger.available().unwrap(), Bytes(100));
}

#[test]
fn l4_what_only_a_ceiling_holds_up_holds_up_nobody_else() {
    let ledger = Ledger::private(Bytes(100));
    let narrow = ledger.tenant("narrow").unwrap();
    narrow.configure(Bytes::ZERO, Bytes(30)).unwrap();
    let full = narrow.reserve(Bytes(30)).unwrap();
    let mut waits = pin!(narrow.reserve_async(Bytes(20), Priority::HIGH));
    assert!(poll(waits.as_mut(), Waker::noop()).is_pending());
    let other = ledger.reserve(Bytes(50)).unwrap();
    // A request that would leave too little for the one that waits is refused.
    assert!(ledger.reserve(Bytes(10)).unwrap_err().is_capacity());
    drop(full);
    assert!(poll(waits.as_mut(), Waker::noop()).is_ready());
    drop(other);
}

#[test]
fn l8_those_who_wait_notice_what_others_give_back() {
    let free = Arc::new(AtomicU64::new(400));
    let seen = Arc::clone(&free);
    let probe = move || Ok(MemoryInfo { free: Bytes(seen.load(SeqCst)), total: Bytes(1000) });
    let ledger = Ledger::private(Bytes(1000)).measured_by(probe);
    let mut turn = pin!(ledger.reserve_async(Bytes(500), Priority::NORMAL));
    let woken = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(poll(turn.as_mut(), &waker).is_pending());
    let blocking = ledger.clone();
    let waits = std::thread::spawn(move || blocking.reserve_within(Bytes(500), LONG, Priority::LOW).unwrap());
    free.store(1000, SeqCst);
    assert_eq!(waits.join().unwrap().bytes(), Bytes(500));
    while woken.0.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    assert!(poll(turn.as_mut(), &waker).is_ready());
}
