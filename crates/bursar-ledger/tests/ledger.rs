//! The ledger of one process: accounts, tenants, reservations, measuring.

#[path = "common/figures.rs"]
mod figures;

use bursar_core::{
    Account, AllocTag, Build, Bytes, DeviceContext, DeviceId, DeviceMemoryResource, Error, MemoryInfo, Stack, leaf,
};
use bursar_ledger::{Ledger, LedgerError, Priority, Reservation};
use bursar_sim::Sim;
use figures::{LONG, figures, refusal};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};

#[test]
fn l1_a_charge_counts_along_the_whole_path_or_not_at_all() {
    let ledger = Ledger::private(Bytes(6400));
    let (a, b) = (ledger.tenant("a").unwrap(), ledger.tenant("b").unwrap());
    a.configure(Bytes::ZERO, Bytes(4000)).unwrap();
    let (of_a, of_b) = (a.account().unwrap(), b.account().unwrap());
    of_a.charge(Bytes(4000)).unwrap();
    assert_eq!(refusal(of_a.charge(Bytes(1)).unwrap_err()), (1, 0, 4000));
    assert_eq!(refusal(of_b.charge(Bytes(2401)).unwrap_err()), (2401, 2400, 6400));
    assert_eq!(figures(&ledger), (4000, 0));
    of_b.charge(Bytes(2400)).unwrap();
    assert_eq!(refusal(of_b.charge(Bytes(1)).unwrap_err()), (1, 0, 6400));
    of_a.release(Bytes(4000));
    of_b.release(Bytes(2400));
    assert_eq!(figures(&ledger), (0, 0));
}

#[test]
fn l1_an_account_opened_again_is_the_same() {
    let ledger = Ledger::private(Bytes(1000));
    let (one, same) = (ledger.account().unwrap(), ledger.account().unwrap());
    one.charge(Bytes(700)).unwrap();
    assert_eq!(same.held(), Bytes(700));
    same.release(Bytes(700));
    assert_eq!(one.held(), Bytes::ZERO);
}

#[test]
fn l1_sizes_beyond_all_reason_are_refused() {
    let ledger = Ledger::private(Bytes::MAX);
    let account = ledger.account().unwrap();
    assert!(account.charge(Bytes::MAX).unwrap_err().is_capacity());
    assert!(ledger.reserve(Bytes::MAX).unwrap_err().is_capacity());
    assert!(ledger.reserve_within(Bytes::MAX, LONG, Priority::HIGH).unwrap_err().is_capacity());
    account.charge(Bytes::ZERO).unwrap();
    assert_eq!(figures(&ledger), (0, 0));
}

#[test]
fn l1_giving_back_more_than_was_charged_makes_nothing() {
    let ledger = Ledger::private(Bytes(6400));
    let (account, other) = (ledger.account().unwrap(), ledger.tenant("other").unwrap().account().unwrap());
    account.charge(Bytes(10)).unwrap();
    account.release(Bytes(90));
    account.release(Bytes(6000));
    let reservation = ledger.reserve(Bytes(50)).unwrap();
    reservation.release(Bytes(1));
    assert_eq!((reservation.undrawn(), figures(&ledger)), (Bytes(50), (0, 50)));
    other.charge(Bytes(6350)).unwrap();
    assert_eq!(refusal(account.charge(Bytes(1)).unwrap_err()), (1, 0, 6400));
    other.release(Bytes(6350));
}

/// Simulated devices without a name are private to a process: one ledger for each device of a driver, measured by it.
#[test]
fn l5_devices_without_a_name_have_a_ledger_of_this_process() {
    let driver = Sim::builder().devices(2, Bytes::mib(64)).immediate().build();
    let open = |driver: &Arc<Sim>, device| DeviceContext::open(driver.clone(), DeviceId(device)).unwrap();
    let context = open(&driver, 0);
    let ledger = Ledger::for_device(&context).unwrap();
    assert_eq!((ledger.file(), ledger.limit()), (None, Bytes::mib(64)));
    let aside = ledger.reserve(Bytes::mib(10)).unwrap();
    assert_eq!(Ledger::for_device(&open(&driver, 0)).unwrap().reading().unwrap().undrawn, Bytes::mib(10));
    assert_eq!(Ledger::for_device(&open(&driver, 1)).unwrap().reading().unwrap().undrawn, Bytes::ZERO);
    let elsewhere = Sim::builder().devices(2, Bytes::mib(64)).immediate().build();
    assert_eq!(Ledger::for_device(&open(&elsewhere, 0)).unwrap().reading().unwrap().undrawn, Bytes::ZERO);
    // What is allocated without the ledger is measured.
    let foreign = Stack::new().over(leaf::Direct).build(&context).unwrap();
    let block = foreign.allocate(20 << 20, 256, context.default_stream(), AllocTag::UNTAGGED).unwrap();
    assert_eq!(ledger.available().unwrap(), Bytes::mib(34));
    assert_eq!(ledger.reading().unwrap().unmanaged, Bytes::mib(20));
    foreign.deallocate(block, context.default_stream()).unwrap();
    assert_eq!(ledger.available().unwrap(), Bytes::mib(54));
    drop(aside);
}

#[test]
fn l2_an_owner_is_served_after_this_process_gave_back() {
    let ledger = Ledger::private(Bytes(1000));
    let (owner, borrower) = (ledger.tenant("owner").unwrap(), ledger.tenant("borrower").unwrap());
    owner.configure(Bytes(600), Bytes(1000)).unwrap();
    let borrowed = borrower.account().unwrap();
    borrowed.charge(Bytes(900)).unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (giver, heard) = (borrowed.clone(), Arc::clone(&asked));
    let reclaimer = ledger.on_reclaim(move |wanted| {
        heard.lock().unwrap().push(wanted);
        giver.release(wanted);
        wanted
    });
    let reserved = owner.reserve(Bytes(500)).unwrap();
    assert_eq!((*asked.lock().unwrap()).clone(), [Bytes(400)]);
    assert_eq!((borrowed.held(), reserved.undrawn()), (Bytes(500), Bytes(500)));
    // Beyond its guarantee nobody is asked.
    assert!(owner.reserve(Bytes(200)).unwrap_err().is_capacity());
    assert_eq!(asked.lock().unwrap().len(), 1);
    // An account of the owner is served the same way.
    owner.account().unwrap().charge(Bytes(100)).unwrap();
    drop(reclaimer);
    assert!(owner.reserve(Bytes(1)).unwrap_err().is_capacity());
    drop(reserved);
}

#[test]
fn l2_what_cannot_be_guaranteed_is_refused() {
    let ledger = Ledger::private(Bytes(1000));
    let tenant = ledger.tenant("a").unwrap();
    assert!(matches!(tenant.configure(Bytes(2), Bytes(1)), Err(LedgerError::Tenant { .. })));
    ledger.tenant("b").unwrap().configure(Bytes(600), Bytes(1000)).unwrap();
    assert!(matches!(tenant.configure(Bytes(401), Bytes(1000)), Err(LedgerError::Tenant { .. })));
    tenant.configure(Bytes(400), Bytes(1000)).unwrap();
    assert!(matches!(ledger.tenant(&"long".repeat(20)), Err(LedgerError::TenantName { .. })));
}

#[test]
fn l3_a_reservation_is_drawn_split_shrunk_and_returned() {
    let ledger = Ledger::private(Bytes(1000));
    let reservation = ledger.reserve(Bytes(800)).unwrap();
    assert_eq!(refusal(ledger.reserve(Bytes(201)).unwrap_err()), (201, 200, 1000));
    reservation.charge(Bytes(300)).unwrap();
    assert_eq!(refusal(reservation.charge(Bytes(501)).unwrap_err()), (501, 500, 800));
    let part = reservation.split(Bytes(200)).unwrap();
    assert_eq!((reservation.bytes(), reservation.undrawn(), part.bytes()), (Bytes(600), Bytes(300), Bytes(200)));
    assert!(reservation.split(Bytes(301)).unwrap_err().is_capacity());
    assert_eq!(figures(&ledger), (300, 500));
    assert!(reservation.shrink(Bytes(299)).unwrap_err().is_capacity());
    reservation.shrink(Bytes(300)).unwrap();
    assert_eq!(figures(&ledger), (300, 200));
    drop(part);
    reservation.release(Bytes(300));
    assert_eq!(reservation.undrawn(), Bytes(300));
    drop(reservation);
    assert_eq!(figures(&ledger), (0, 0));
}

#[test]
fn l3_what_is_held_stays_charged_when_its_reservation_is_dropped() {
    let ledger = Ledger::private(Bytes(1000));
    let reservation = ledger.reserve(Bytes(800)).unwrap();
    reservation.charge(Bytes(300)).unwrap();
    drop(reservation);
    assert_eq!(figures(&ledger), (300, 0));
    assert!(ledger.reserve(Bytes(701)).unwrap_err().is_capacity());
}

#[test]
fn l3_tokens_that_mean_nothing_are_refused() {
    for token in ["", "bursar1", "bursar1:1:2", "bursar9:1:2:/x", "bursar1:x:2:/x", "bursar1:1:2:relative.ledger"] {
        let refused = Reservation::from_token(token).unwrap_err();
        let Error::External(external) = refused else { panic!("{token:?}: {refused}") };
        assert!(external.downcast_ref::<LedgerError>().is_some(), "{token:?}: {external}");
    }
    let private = Ledger::private(Bytes(10)).reserve(Bytes(1)).unwrap().delegate().unwrap_err();
    assert!(private.to_string().contains("private ledger"), "{private}");
}

#[test]
fn l8_unmanaged_memory_is_seen_by_admission() {
    let free = Arc::new(AtomicU64::new(1000));
    let seen = Arc::clone(&free);
    let probe = move || Ok(MemoryInfo { free: Bytes(seen.load(SeqCst)), total: Bytes(1000) });
    let ledger = Ledger::private(Bytes(1000)).measured_by(probe);
    ledger.set_limit(Bytes(900)).unwrap();
    assert_eq!(ledger.available().unwrap(), Bytes(900));
    // A program outside takes 300.
    free.store(700, SeqCst);
    assert_eq!(ledger.available().unwrap(), Bytes(700));
    assert_eq!(ledger.reading().unwrap().unmanaged, Bytes(300));
    assert_eq!(refusal(ledger.reserve(Bytes(701)).unwrap_err()), (701, 700, 900));
    let reserved = ledger.reserve(Bytes(600)).unwrap();
    assert_eq!(ledger.available().unwrap(), Bytes(100));
    // Drawing it down and really allocating changes neither.
    reserved.charge(Bytes(250)).unwrap();
    free.store(450, SeqCst);
    assert_eq!(ledger.available().unwrap(), Bytes(100));
    assert_eq!(ledger.reading().unwrap().unmanaged, Bytes(300));
    // The program ends: a charge that was refused measures again before it gives up.
    let account = ledger.account().unwrap();
    assert!(account.charge(Bytes(200)).unwrap_err().is_capacity());
    free.store(750, SeqCst);
    account.charge(Bytes(200)).unwrap();
    assert_eq!(ledger.reading().unwrap().unmanaged, Bytes::ZERO);
    account.release(Bytes(200));
    reserved.release(Bytes(250));
}

#[test]
fn l8_what_pools_hold_cached_is_available_to_a_newcomer() {
    let probe = || Ok(MemoryInfo { free: Bytes(400), total: Bytes(1000) });
    let ledger = Ledger::private(Bytes(1000)).measured_by(probe);
    let account = ledger.account().unwrap();
    account.charge(Bytes(600)).unwrap();
    assert_eq!(ledger.available().unwrap(), Bytes(400));
    let reclaimer = ledger.on_reclaim(|_| Bytes::ZERO).with_cached(|| Bytes(250));
    assert_eq!(ledger.available().unwrap(), Bytes(650));
    drop(reclaimer);
    account.release(Bytes(600));
}

/// Each of 16 threads is entitled to a sixteenth, and uses all of it again and again: the credit of others must never
/// make it wait or be refused.
#[test]
fn l9_sixteen_threads_entitled_to_a_sixteenth_are_never_refused() {
    const SHARE: u64 = 1 << 10;
    let ledger = Ledger::private(Bytes(16 * SHARE));
    let start = Barrier::new(16);
    std::thread::scope(|scope| {
        for thread in 0..16u64 {
            let (ledger, start) = (&ledger, &start);
            scope.spawn(move || {
                // Half of them share an account, the others have one each.
                let tenant = if thread % 2 == 0 { String::new() } else { format!("tenant {thread}") };
                let account = ledger.tenant(&tenant).unwrap().account().unwrap();
                start.wait();
                let mut seed = thread * 2 + 1;
                for _ in 0..300 {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let first = (seed >> 33) % SHARE;
                    for part in [first, SHARE - first] {
                        account.charge(Bytes(part)).unwrap_or_else(|error| panic!("thread {thread}: {error}"));
                    }
                    account.release(Bytes(SHARE - first));
                    account.release(Bytes(first));
                }
            });
        }
    });
    assert_eq!(figures(&ledger), (0, 0));
}

#[test]
fn l9_credit_is_called_in_before_anyone_is_refused() {
    let ledger = Ledger::private(Bytes(6400));
    let (one, other) = (ledger.tenant("a").unwrap().account().unwrap(), ledger.tenant("b").unwrap().account().unwrap());
    one.charge(Bytes(100)).unwrap();
    one.release(Bytes(100));
    other.charge(Bytes(6400)).unwrap();
    assert_eq!(refusal(one.charge(Bytes(1)).unwrap_err()), (1, 0, 6400));
    other.release(Bytes(6400));
    ledger.reserve(Bytes(6400)).unwrap();
}

#[test]
fn b11_a_limit_can_be_lowered_and_raised_in_use() {
    let ledger = Ledger::private(Bytes(1000));
    let account = ledger.account().unwrap();
    account.charge(Bytes(500)).unwrap();
    ledger.set_limit(Bytes(300)).unwrap();
    assert_eq!(refusal(account.charge(Bytes(10)).unwrap_err()), (10, 0, 300));
    account.release(Bytes(250));
    account.charge(Bytes(50)).unwrap();
    ledger.set_limit(Bytes(1000)).unwrap();
    account.charge(Bytes(700)).unwrap();
    account.release(Bytes(1000));
}

#[test]
fn b11_credit_in_hand_does_not_outlive_a_lowered_limit() {
    let ledger = Ledger::private(Bytes(6400));
    let (tenant, account) = (ledger.tenant("").unwrap(), ledger.account().unwrap());
    account.charge(Bytes(500)).unwrap();
    ledger.set_limit(Bytes(480)).unwrap();
    assert_eq!(refusal(account.charge(Bytes(1)).unwrap_err()), (1, 0, 480));
    // What is released while more is charged than may be is not kept as credit.
    account.release(Bytes(10));
    assert_eq!(refusal(account.charge(Bytes(10)).unwrap_err()), (10, 0, 480));
    ledger.set_limit(Bytes(6400)).unwrap();
    account.charge(Bytes(10)).unwrap();
    tenant.configure(Bytes::ZERO, Bytes(490)).unwrap();
    assert_eq!(refusal(account.charge(Bytes(1)).unwrap_err()), (1, 0, 490));
    account.release(Bytes(500));
}

#[test]
fn l7_clearing_is_refused_while_somebody_holds_something_unless_forced() {
    let ledger = Ledger::private(Bytes(1000));
    let account = ledger.account().unwrap();
    account.charge(Bytes(500)).unwrap();
    let refused = ledger.clear(false).unwrap_err();
    assert!(
        matches!(&refused, LedgerError::Held { processes, .. } if processes[0].contains("holds 500 B")),
        "{refused}"
    );
    ledger.clear(true).unwrap();
    assert_eq!(figures(&ledger), (0, 0));
    let cleared = account.charge(Bytes(1)).unwrap_err();
    assert!(cleared.to_string().contains("was cleared by force"), "{cleared}");
    // What a handle of a cleared account releases counts for nobody.
    let again = ledger.account().unwrap();
    again.charge(Bytes(100)).unwrap();
    account.release(Bytes(500));
    assert_eq!(again.held(), Bytes(100));
    again.release(Bytes(100));
    ledger.clear(false).unwrap();
}
