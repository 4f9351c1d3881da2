//! Callbacks and wakers that panic end nothing but themselves (L2, L4).

#[path = "common/wakers.rs"]
mod wakers;

use bursar_core::{Account, Bytes, MemoryInfo};
use bursar_ledger::{Ledger, Priority};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};
use wakers::{Count, poll};

const LONG: Duration = Duration::from_secs(20);

/// A tenant with a guarantee of 600 of 1000, of which a borrower has 900.
fn borrowed() -> (Ledger, bursar_ledger::Tenant, bursar_ledger::LedgerAccount) {
    let ledger = Ledger::private(Bytes(1000));
    let owner = ledger.tenant("owner").unwrap();
    owner.configure(Bytes(600), Bytes(1000)).unwrap();
    let account = ledger.tenant("borrower").unwrap().account().unwrap();
    account.charge(Bytes(900)).unwrap();
    (ledger, owner, account)
}

#[test]
fn l2_a_callback_that_panics_is_told_and_the_others_are_asked() {
    let (ledger, owner, borrower) = borrowed();
    let panics = ledger.on_reclaim(|_| panic!("the first callback fails")).with_cached(|| panic!("so does this"));
    let giver = borrower.clone();
    let gives = ledger.on_reclaim(move |wanted| {
        giver.release(wanted);
        wanted
    });
    // On the caller's thread, twice: the first panic does not keep callbacks from being called again.
    let first = owner.reserve(Bytes(300)).unwrap();
    let second = owner.reserve(Bytes(300)).unwrap();
    assert_eq!((first.bytes(), second.bytes(), borrower.held()), (Bytes(300), Bytes(300), Bytes(400)));
    assert_eq!(ledger.available().unwrap(), Bytes::ZERO, "what cannot be told counts as nothing");
    let what: String = ledger.callback_panic().expect("the first panic is kept");
    assert!(what.contains("the first callback fails"), "{what}");
    drop((panics, gives, first, second));
    assert_eq!(ledger.available().unwrap(), Bytes(600));
}

/// The account decides, whatever a callback returns, and even if it panics after it has given back.
#[test]
fn l9_what_was_given_back_counts_and_not_what_was_said() {
    for panics in [false, true] {
        let (ledger, owner, borrower) = borrowed();
        let giver = borrower.clone();
        let gives = ledger.on_reclaim(move |_| {
            giver.release(Bytes(900));
            assert!(!panics, "after giving");
            Bytes::ZERO
        });
        assert_eq!(owner.reserve(Bytes(600)).map(|reserved| reserved.bytes()), Ok(Bytes(600)));
        drop(gives);
    }
}

#[test]
fn l1_a_charge_beyond_all_bounds_says_what_is_left() {
    let ledger = Ledger::private(Bytes(1000));
    let account = ledger.account().unwrap();
    account.charge(Bytes(300)).unwrap();
    for bytes in [Bytes(1 << 48), Bytes(u64::MAX)] {
        let refused = account.charge(bytes).unwrap_err();
        assert!(refused.to_string().ends_with("700 B of 1000 B left"), "{refused}");
    }
}

/// A probe that panics while the listener measures for a future is reported, and the thread goes on.
#[test]
fn l8_a_probe_that_panics_ends_no_thread_that_listens() {
    let (asked, panics) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counts, fails) = (Arc::clone(&asked), Arc::clone(&panics));
    let ledger = Ledger::private(Bytes(100)).measured_by(move || {
        counts.fetch_add(1, SeqCst);
        assert_eq!(fails.load(SeqCst), 0, "the probe fails");
        Ok(MemoryInfo { free: Bytes(40), total: Bytes(100) })
    });
    // The listener sleeps already, with nobody to measure for.
    drop(ledger.on_reclaim(|_| Bytes::ZERO));
    std::thread::sleep(Duration::from_millis(50));
    let woken = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut turn = pin!(ledger.reserve_async(Bytes(50), Priority::NORMAL));
    assert!(poll(turn.as_mut(), &waker).is_pending());
    panics.store(1, SeqCst);
    let (before, began) = (asked.load(SeqCst), Instant::now());
    while asked.load(SeqCst) < before + 2 {
        assert!(began.elapsed() < LONG, "nobody measures any more");
        std::thread::yield_now();
    }
    assert!(ledger.callback_panic().unwrap().contains("a probe panicked"));
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("this waker fails");
    }
}

#[test]
fn l4_a_waker_that_panics_keeps_nobody_else_asleep() {
    let ledger = Ledger::private(Bytes(100));
    let all = ledger.reserve(Bytes(100)).unwrap();
    let (bad, woken) = (Waker::from(Arc::new(Panics)), Arc::new(Count::default()));
    let good = Waker::from(Arc::clone(&woken));
    let mut first = pin!(ledger.reserve_async(Bytes(40), Priority::HIGH));
    let mut second = pin!(ledger.reserve_async(Bytes(40), Priority::NORMAL));
    let mut third = pin!(ledger.reserve_async(Bytes(40), Priority::LOW));
    assert!(poll(first.as_mut(), &bad).is_pending());
    assert!(poll(second.as_mut(), &good).is_pending() && poll(third.as_mut(), &good).is_pending());
    let until_woken = |times: usize| {
        let began = Instant::now();
        while woken.0.load(SeqCst) < times {
            assert!(began.elapsed() < LONG, "woken {} times instead of {times}", woken.0.load(SeqCst));
            std::thread::yield_now();
        }
    };
    drop(all);
    until_woken(1);
    let Poll::Ready(granted) = poll(second.as_mut(), &good) else { panic!("it was its turn") };
    // The listener goes on: futures that are granted later are woken too.
    drop(granted);
    until_woken(2);
    assert!(poll(third.as_mut(), &good).is_ready() && poll(first.as_mut(), Waker::noop()).is_ready());
    assert!(ledger.reading().unwrap().waiting.is_empty());
}
