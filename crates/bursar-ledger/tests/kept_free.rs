//! Reservations that leave a part of the memory free, and labels (L10).

#[path = "common/figures.rs"]
#[allow(dead_code, reason = "part of it is used")]
mod figures;
#[path = "common/wakers.rs"]
#[allow(dead_code, reason = "part of it is used")]
mod wakers;

use bursar_core::{Account, Bytes, MemoryInfo};
use bursar_ledger::{Ledger, Priority, Reservation, ReserveOptions};
use figures::refusal;
use proptest::prelude::*;
use std::pin::pin;
use std::task::{Poll, Waker};
use wakers::poll;

/// Options that leave so many hundredths free.
fn leaving(hundredths: u32) -> ReserveOptions {
    ReserveOptions::new().keep_free_millionths(hundredths * 10_000)
}

#[test]
fn l10_what_is_left_free_counts_for_the_sum() {
    let ledger = Ledger::private(Bytes(100));
    let first = ledger.reserve_with(Bytes(60), &leaving(30)).unwrap();
    assert_eq!(refusal(ledger.reserve_with(Bytes(11), &leaving(30)).unwrap_err()), (11, 10, 70));
    let second = ledger.reserve_with(Bytes(10), &leaving(30)).unwrap();
    assert_eq!(refusal(ledger.reserve_with(Bytes(1), &leaving(30)).unwrap_err()), (1, 0, 70));
    let account = ledger.account().unwrap();
    account.charge(Bytes(30)).unwrap();
    account.release(Bytes(30));
    drop((first, second));
    assert_eq!(ledger.reserve_with(Bytes(70), &leaving(30)).unwrap().bytes(), Bytes(70));
    assert!(ledger.reserve_with(Bytes(1), &ReserveOptions::new().keep_free_millionths(u32::MAX)).is_err());
}

#[test]
fn l10_the_whole_is_what_the_limit_and_others_leave() {
    let info = MemoryInfo { free: Bytes(80), total: Bytes(100) };
    let ledger = Ledger::private(Bytes(100)).measured_by(move || Ok(info));
    assert_eq!(refusal(ledger.reserve_with(Bytes(41), &leaving(50)).unwrap_err()), (41, 40, 50));
    ledger.set_limit(Bytes(60)).unwrap();
    assert_eq!(refusal(ledger.reserve_with(Bytes(31), &leaving(50)).unwrap_err()), (31, 30, 30));
    assert!(ledger.reserve_with(Bytes(30), &leaving(50)).is_ok());
}

#[test]
fn l10_who_waits_blocks_no_more_than_it_asks_for() {
    let ledger = Ledger::private(Bytes(100));
    let held = ledger.reserve(Bytes(65)).unwrap();
    let mut waiting = pin!(ledger.reserve_async_with(Bytes(10), leaving(30)));
    assert!(poll(waiting.as_mut(), Waker::noop()).is_pending(), "75 are more than 70");
    assert_eq!(ledger.reading().unwrap().waiting[0].bytes, Bytes(10));
    // It waits for ten bytes, not for the thirty that it would leave.
    let account = ledger.account().unwrap();
    account.charge(Bytes(5)).unwrap();
    let beside = ledger.reserve(Bytes(20)).unwrap();
    assert!(ledger.reserve(Bytes(1)).unwrap_err().is_capacity(), "ten are left, and waited for");
    assert!(ledger.reserve_with(Bytes(1), &leaving(1)).unwrap_err().is_capacity(), "it came later");
    drop(beside);
    assert!(poll(waiting.as_mut(), Waker::noop()).is_pending(), "80 are more than 70");
    account.release(Bytes(5));
    held.shrink(Bytes(60)).unwrap();
    match poll(waiting.as_mut(), Waker::noop()) {
        Poll::Ready(Ok(reservation)) => assert_eq!(reservation.bytes(), Bytes(10)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn l10_those_behind_may_have_what_is_left_free_and_nothing_else() {
    let ledger = Ledger::private(Bytes(100));
    let _held = ledger.reserve(Bytes(65)).unwrap();
    let mut first = pin!(ledger.reserve_async_with(Bytes(10), leaving(30)));
    let mut small = pin!(ledger.reserve_async_with(Bytes(5), leaving(30)));
    assert!(poll(first.as_mut(), Waker::noop()).is_pending());
    assert!(poll(small.as_mut(), Waker::noop()).is_pending(), "it would fit, and came later");
    let within = |bytes| ledger.reserve_within(Bytes(bytes), std::time::Duration::ZERO, Priority::NORMAL);
    assert!(within(21).unwrap_err().is_capacity(), "of 35 left 15 are waited for");
    assert_eq!(within(20).unwrap().bytes(), Bytes(20));
}

#[test]
fn l10_a_request_that_can_never_be_granted_is_refused_at_once() {
    let ledger = Ledger::private(Bytes(100));
    let mut never = pin!(ledger.reserve_async_with(Bytes(71), leaving(30)));
    let Poll::Ready(refused) = poll(never.as_mut(), Waker::noop()) else { panic!("it waits") };
    assert_eq!(refusal(refused.unwrap_err()), (71, 70, 70));
}

#[test]
fn l10_labels_reach_readings_and_pass_to_those_who_split_and_draw() {
    let ledger = Ledger::private(Bytes(100));
    let labels = || ledger.reading().unwrap().processes[0].labels.clone();
    let train = ledger.reserve_with(Bytes(10), &ReserveOptions::new().label("train")).unwrap();
    assert_eq!(labels(), ["train"]);
    let part = train.split(Bytes(5)).unwrap();
    let mut waiting = pin!(ledger.reserve_async_with(Bytes(90), ReserveOptions::new().label("embed")));
    let Poll::Ready(Ok(embed)) = poll(waiting.as_mut(), Waker::noop()) else { panic!("there is room") };
    assert_eq!(labels(), ["embed", "train"]);
    drop(train);
    assert_eq!((labels(), part.label()), (vec!["embed".to_owned(), "train".to_owned()], "train".to_owned()));
    drop((part, embed));
    // The row of a labelled reservation is used again.
    let plain: Vec<Reservation> = (0..4).map(|_| ledger.reserve(Bytes(1)).unwrap()).collect();
    assert!(labels().is_empty(), "{:?}", labels());
    drop(plain);
    let whole = "x".repeat(49);
    let labelled = ledger.reserve_with(Bytes(1), &ReserveOptions::new().label(&whole)).unwrap();
    let all = ledger.reserve(Bytes(99)).unwrap();
    let mut waiting = pin!(ledger.reserve_async(Bytes(1), Priority::NORMAL));
    assert!(poll(waiting.as_mut(), Waker::noop()).is_pending());
    // Granting a request is the longest step, and longest where a label is overwritten.
    drop(labelled);
    assert_eq!(ledger.reading().unwrap().waiting.len(), 0, "it is granted");
    assert!(labels().is_empty(), "and not labelled as what was there before: {:?}", labels());
    assert!(poll(waiting.as_mut(), Waker::noop()).is_ready());
    drop(all);
    let long = "ä".repeat(60);
    let cut = ledger.reserve_with(Bytes(1), &ReserveOptions::new().label(&long)).unwrap();
    assert_eq!((cut.label(), labels()), ("ä".repeat(24), vec!["ä".repeat(24)]));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever was granted before, one that leaves a part free is granted exactly where the sum allows it.
    #[test]
    fn l10_a_grant_leaves_what_it_says(requests in proptest::collection::vec((0u32..=100, 1u64..40, any::<bool>()), 1..30)) {
        let ledger = Ledger::private(Bytes(100));
        let mut reserved: Vec<Reservation> = Vec::new();
        for (hundredths, bytes, ends) in requests {
            if ends && !reserved.is_empty() {
                reserved.remove(0);
            }
            let sum: u64 = reserved.iter().map(|reservation| reservation.bytes().get()).sum();
            let granted = ledger.reserve_with(Bytes(bytes), &leaving(hundredths));
            prop_assert_eq!(granted.is_ok(), sum + bytes <= u64::from(100 - hundredths));
            reserved.extend(granted.ok());
        }
    }
}
