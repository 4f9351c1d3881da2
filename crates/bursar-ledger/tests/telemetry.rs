//! What a ledger tells those who watch (M2, M4, M5): a model knows of every request whether it is refused and why, and the ledger's
//! counts, its last refusals and its waits are the model's.
#![forbid(unsafe_code)]

use bursar_core::{Account, Bytes, DeviceUuid, Error, MemoryInfo, interruptible};
use bursar_ledger::format::header;
use bursar_ledger::{
    Ledger, LedgerAccount, Priority, ProcessUsage, Reading, RefusalReason, Reservation, ReserveOptions, Subject,
    Tenant, UsageReading, WaitHistogram,
};
use bursar_sim::Random;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Waker};
use std::time::Duration;

const TOTAL: u64 = 100_000;
const WHOLE: u64 = 1_000_000;
/// The number of refusals that a ledger remembers.
const REMEMBERED: usize = 32;
const TENANTS: [(&str, u64); 3] = [("", TOTAL), ("batch", 40_000), ("serving", 70_000)];

/// A request that the model expects to be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusal {
    tenant: usize,
    reason: RefusalReason,
    requested: u64,
}

/// One process with accounts and reservations, and what it should find.
struct Model {
    ledger: Ledger,
    tenants: Vec<(Tenant, LedgerAccount)>,
    reservations: Vec<(Reservation, usize, u64, u64)>,
    /// The bytes that each tenant's account holds.
    held: [u64; 3],
    limit: u64,
    /// The bytes that others use of the device, and that the ledger's accounts and reservations hold.
    others: Arc<AtomicU64>,
    ours: Arc<AtomicU64>,
    refused: Vec<Refusal>,
    waits: u64,
    random: Random,
}

impl Model {
    fn new(seed: u64) -> Self {
        let (others, ours) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (outside, inside) = (Arc::clone(&others), Arc::clone(&ours));
        let ledger = Ledger::private(Bytes(TOTAL)).measured_by(move || {
            let used = outside.load(SeqCst) + inside.load(SeqCst);
            Ok(MemoryInfo { free: Bytes(TOTAL.saturating_sub(used)), total: Bytes(TOTAL) })
        });
        let tenants = TENANTS.map(|(name, ceiling)| {
            let tenant = ledger.tenant(name).unwrap();
            tenant.configure(Bytes::ZERO, Bytes(ceiling)).unwrap();
            let account = tenant.account().unwrap();
            (tenant, account)
        });
        Self {
            ledger,
            tenants: tenants.into(),
            reservations: Vec::new(),
            held: [0; 3],
            limit: TOTAL,
            others,
            ours,
            refused: Vec::new(),
            waits: 0,
            random: Random::new(seed),
        }
    }

    /// Returns what all have, or one tenant.
    fn charged(&self, of: Option<usize>) -> u64 {
        let is_of = |tenant: usize| of.is_none_or(|of| of == tenant);
        let held: u64 = (0..3).filter(|&tenant| is_of(tenant)).map(|tenant| self.held[tenant]).sum();
        held + self
            .reservations
            .iter()
            .filter(|(_, tenant, ..)| is_of(*tenant))
            .map(|(_, _, bytes, _)| bytes)
            .sum::<u64>()
    }

    /// Returns the reason to refuse a tenant so much, if there is one.
    fn reason(&self, tenant: usize, bytes: u64, kept: u64) -> Option<RefusalReason> {
        let effective = self.limit.min(TOTAL - self.others.load(SeqCst));
        let charged = self.charged(None);
        let usable = effective * (WHOLE - kept) / WHOLE;
        let refused = |room: u64, used: u64| room.saturating_sub(used) < bytes;
        if refused(TENANTS[tenant].1, self.charged(Some(tenant))) {
            Some(RefusalReason::Tenant)
        } else if !refused(usable, charged) {
            None
        } else if kept > 0 && !refused(effective, charged) {
            Some(RefusalReason::Headroom)
        } else if !refused(self.limit, charged) {
            Some(RefusalReason::Unmanaged)
        } else {
            Some(RefusalReason::Limit)
        }
    }

    fn expect(&mut self, tenant: usize, requested: u64, reason: Option<RefusalReason>) {
        self.refused.extend(reason.map(|reason| Refusal { tenant, reason, requested }));
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn act(&mut self) {
        let (tenant, bytes) = (self.below(3) as usize, 1 + self.below(TOTAL / 4));
        match self.below(12) {
            0..=2 => self.reserve(tenant, bytes),
            3..=5 => self.charge(tenant, bytes),
            6 => self.release(tenant, bytes),
            7 => self.draw(bytes),
            8 => drop((!self.reservations.is_empty()).then(|| {
                let at = self.below(self.reservations.len() as u64) as usize;
                let (reservation, _, _, drawn) = self.reservations.swap_remove(at);
                reservation.release(Bytes(drawn));
                self.ours.fetch_sub(drawn, SeqCst);
            })),
            9 => {
                self.limit = TOTAL / 2 + self.below(TOTAL / 2);
                self.ledger.set_limit(Bytes(self.limit)).unwrap();
            }
            10 => {
                let others = self.below(TOTAL / 3).min(TOTAL - self.ours.load(SeqCst));
                self.others.store(others, SeqCst);
                self.ledger.available().unwrap();
            }
            _ => self.wait(tenant, 4 * bytes),
        }
    }

    fn reserve(&mut self, tenant: usize, bytes: u64) {
        let kept = if self.below(3) == 0 { 200_000 } else { 0 };
        let reason = self.reason(tenant, bytes, kept);
        let options = ReserveOptions::new().keep_free_millionths(kept as u32);
        let reserved = self.tenants[tenant].0.reserve_with(Bytes(bytes), &options);
        assert_eq!(reserved.is_err(), reason.is_some(), "{reserved:?}, {reason:?}");
        self.expect(tenant, bytes, reason);
        self.reservations.extend(reserved.ok().map(|reserved| (reserved, tenant, bytes, 0)));
    }

    fn charge(&mut self, tenant: usize, bytes: u64) {
        let reason = self.reason(tenant, bytes, 0);
        let charged = self.tenants[tenant].1.charge(Bytes(bytes));
        assert_eq!(charged.is_err(), reason.is_some(), "{charged:?}, {reason:?}");
        self.expect(tenant, bytes, reason);
        if charged.is_ok() {
            self.held[tenant] += bytes;
            self.ours.fetch_add(bytes, SeqCst);
        }
    }

    fn release(&mut self, tenant: usize, bytes: u64) {
        let bytes = bytes.min(self.held[tenant]);
        self.held[tenant] -= bytes;
        self.ours.fetch_sub(bytes, SeqCst);
        self.tenants[tenant].1.release(Bytes(bytes));
    }

    /// Charges a reservation, which refuses what it has not.
    fn draw(&mut self, bytes: u64) {
        let Some((reservation, tenant, size, drawn)) = self.reservations.last_mut() else { return };
        let (tenant, fits) = (*tenant, *size - *drawn >= bytes);
        assert_eq!(reservation.charge(Bytes(bytes)).is_ok(), fits);
        if fits {
            *drawn += bytes;
            self.ours.fetch_add(bytes, SeqCst);
        }
        self.expect(tenant, bytes, (!fits).then_some(RefusalReason::Share));
    }

    /// Joins the queue with no time to wait.
    fn wait(&mut self, tenant: usize, bytes: u64) {
        let reason = match bytes {
            bytes if bytes > TENANTS[tenant].1 => Some(RefusalReason::Tenant),
            bytes if bytes > self.limit => Some(RefusalReason::Limit),
            bytes => {
                self.waits += 1;
                self.reason(tenant, bytes, 0).map(|_| RefusalReason::Timeout)
            }
        };
        let reserved = self.tenants[tenant].0.reserve_within(Bytes(bytes), Duration::ZERO, Priority::NORMAL);
        assert_eq!(reserved.is_err(), reason.is_some(), "{reserved:?}, {reason:?}");
        self.expect(tenant, bytes, reason);
        self.reservations.extend(reserved.ok().map(|reserved| (reserved, tenant, bytes, 0)));
    }

    fn check(&self) {
        let reading = self.ledger.reading().unwrap();
        let count =
            |is_it: &dyn Fn(&Refusal) -> bool| self.refused.iter().filter(|refusal| is_it(refusal)).count() as u64;
        for (reason, counted) in reading.refused.iter() {
            assert_eq!(counted, count(&|refusal| refusal.reason == reason), "{reason}");
        }
        for (at, (name, _)) in TENANTS.into_iter().enumerate() {
            let tenant = reading.tenants.iter().find(|tenant| tenant.name == name).unwrap();
            assert_eq!(tenant.refused, count(&|refusal| refusal.tenant == at), "{name}");
        }
        assert_eq!(reading.processes[0].refused, self.refused.len() as u64);
        let last = self.refused.iter().rev().take(REMEMBERED);
        let last: Vec<_> = last.map(|refusal| (TENANTS[refusal.tenant].0, refusal.reason, refusal.requested)).collect();
        let found = reading.refusals.iter();
        let found: Vec<_> = found.map(|refusal| (&*refusal.tenant, refusal.reason, refusal.requested.get())).collect();
        assert_eq!(found, last);
        assert!(reading.refusals.iter().all(|refusal| refusal.pid == std::process::id()));
        assert!(reading.refusals.iter().all(|refusal| refusal.available < refusal.requested));
        check_waits(&reading, self.waits);
    }
}

fn check_waits(reading: &Reading, count: u64) {
    let waits = reading.waits;
    assert_eq!(waits.count(), count);
    assert_eq!(waits.cumulative().last(), Some((None, count)));
    assert_eq!(waits.buckets().count(), WaitHistogram::BOUNDS.len() + 1);
    assert_eq!(reading.tenants.iter().map(|tenant| tenant.waited).sum::<Duration>(), waits.sum());
    assert_eq!(reading.processes.iter().map(|process| process.waited).sum::<Duration>(), waits.sum());
}

#[test]
fn m4_refusals_and_waits_are_counted_as_a_model_counts_them() {
    for seed in 0..40 {
        let mut model = Model::new(seed);
        for _ in 0..80 {
            model.act();
        }
        model.check();
        assert!(!model.refused.is_empty() && model.waits > 0, "seed {seed} tried nothing");
    }
}

/// A wait that somebody ends before its time is counted as a wait, and as no refusal.
#[test]
fn m4_a_wait_that_is_interrupted_is_no_refusal() {
    let ledger = Ledger::private(Bytes(TOTAL));
    let _all = ledger.reserve(Bytes(TOTAL)).unwrap();
    let wait = || ledger.reserve_within(Bytes(1), Duration::from_secs(600), Priority::NORMAL);
    assert!(interruptible(|| true, wait).unwrap_err().is_capacity());
    let reading = ledger.reading().unwrap();
    assert_eq!((reading.refused.total(), reading.refusals.len(), reading.waiting.len()), (0, 0, 0));
    check_waits(&reading, 1);
}

/// A future that waited and is told to end now is refused because its time ran out; one that never waited, for what stood against it.
#[test]
fn m4_a_future_that_waited_and_ends_is_a_timeout() {
    let ledger = Ledger::private(Bytes(TOTAL));
    let _most = ledger.reserve(Bytes(TOTAL - 10)).unwrap();
    let ask = |bytes: u64| Box::pin(ledger.reserve_async(Bytes(bytes), Priority::NORMAL));
    let last = || ledger.reading().unwrap().refusals.swap_remove(0);
    assert!(Pin::into_inner(ask(20)).now().is_err());
    assert_eq!((last().reason, last().available), (RefusalReason::Limit, Bytes(10)));
    let mut first = ask(20);
    assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let mut second = ask(5);
    assert!(second.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let refused = Pin::into_inner(second).now().unwrap_err();
    assert!(matches!(refused, Error::OutOfTurn { remaining: Bytes(10), behind: 0, .. }), "{refused}");
    assert_eq!((last().reason, last().requested, last().available), (RefusalReason::Timeout, Bytes(5), Bytes(10)));
    assert!(Pin::into_inner(first).now().unwrap_err().is_capacity());
    assert_eq!((last().reason, last().requested, last().available), (RefusalReason::Timeout, Bytes(20), Bytes(10)));
    let reading = ledger.reading().unwrap();
    assert_eq!((reading.refused.of(RefusalReason::Timeout), reading.refused.total(), reading.waiting.len()), (2, 3, 0));
    check_waits(&reading, 2);
}

/// A refusal because others wait is kept with the bytes that were free for them, whoever asked: at once, for a charge, or for a stack,
/// which tries without having refusals told.
#[test]
fn m4_a_refusal_for_those_who_wait_is_kept_with_what_was_free() {
    let ledger = Ledger::private(Bytes(TOTAL));
    let _some = ledger.reserve(Bytes(TOTAL - 60)).unwrap();
    let mut waits = Box::pin(ledger.reserve_async(Bytes(80), Priority::NORMAL));
    assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let account = ledger.account().unwrap();
    assert!(ledger.reserve(Bytes(10)).is_err());
    let refused = account.charge(Bytes(20)).unwrap_err();
    assert!(
        matches!(refused, Error::OutOfBudget { remaining: Bytes::ZERO, .. }),
        "none of it is this one's: {refused}"
    );
    let refused = account.try_charge(Bytes(30)).unwrap_err();
    account.note_refusal(&refused);
    let kept = ledger.reading().unwrap().refusals;
    let kept: Vec<_> = kept.iter().map(|last| (last.reason, last.requested, last.available, last.limit)).collect();
    let expected = [30, 20, 10].map(|bytes| (RefusalReason::Queue, Bytes(bytes), Bytes(60), Bytes(TOTAL)));
    assert_eq!(kept, expected);
}

/// A future that was granted what it waited for, and is told to end before it was polled again, has it.
#[test]
fn m4_a_future_that_was_granted_and_ends_is_no_refusal() {
    let ledger = Ledger::private(Bytes(TOTAL));
    let all = ledger.reserve(Bytes(TOTAL)).unwrap();
    let mut waits = Box::pin(ledger.reserve_async(Bytes(TOTAL), Priority::LOW));
    assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(all);
    assert_eq!(Pin::into_inner(waits).now().unwrap().bytes(), Bytes(TOTAL));
    let reading = ledger.reading().unwrap();
    assert_eq!((reading.refused.total(), reading.waiting.len()), (0, 0));
    check_waits(&reading, 1);
}

/// A ledger in a file of its own, which goes with it.
struct Shared(PathBuf, Ledger);

impl Shared {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("bursar-telemetry-{name}-{}", std::process::id()));
        let subject = Subject { uuid: DeviceUuid([0x21; 16]), name: "Test".into(), total: Bytes::gib(8) };
        let ledger = Ledger::open_in(&folder, &subject).unwrap();
        Self(folder, ledger)
    }

    /// Returns every word of the file but the lock, which counts how often it was taken.
    fn words(&self) -> Vec<u64> {
        let bytes = std::fs::read(self.1.file().unwrap()).unwrap();
        let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        words.enumerate().map(|(at, word)| if at == header::LOCK { 0 } else { word }).collect()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn m2_a_reading_changes_no_word() {
    let shared = Shared::new("reading");
    let account = shared.1.account().unwrap();
    account.charge(Bytes::gib(2)).unwrap();
    assert!(account.charge(Bytes::gib(7)).is_err());
    let before = shared.words();
    let reading = shared.1.reading().unwrap();
    assert_eq!(Ledger::inspect(shared.1.file().unwrap()).unwrap(), reading);
    assert_eq!(reading.refused.total(), 1);
    assert!(shared.words() == before, "a reading changed something");
}

#[test]
fn m2_a_charge_that_is_granted_changes_the_balance_alone() {
    let shared = Shared::new("charge");
    let account = shared.1.account().unwrap();
    account.charge(Bytes::mib(1)).unwrap();
    let changed = |before: &[u64], after: &[u64]| before.iter().zip(after).filter(|(old, new)| old != new).count();
    let before = shared.words();
    account.charge(Bytes::kib(4)).unwrap();
    let charged = shared.words();
    assert_eq!(changed(&before, &charged), 1);
    account.release(Bytes::kib(4));
    assert!(shared.words() == before, "a charge and its release leave nothing behind");
}

fn usage(ledger: &Ledger) -> Option<UsageReading> {
    ledger.reading().unwrap().processes[0].usage.clone()
}

/// What several parts of a program say is added up, and of whatever they say no more is kept than there is room for.
#[test]
fn m5_what_is_published_is_the_sum_and_bounded() {
    for seed in 0..50 {
        let mut random = Random::new(seed);
        let mut draw = |bound: u64| random.below(bound);
        let said: Vec<ProcessUsage> = (0..1 + draw(4))
            .map(|_| ProcessUsage {
                live: Some(Bytes(draw(1 << 40))),
                cached: Bytes(draw(1 << 40)),
                peak: Bytes(draw(1 << 44)),
                holders: (0..draw(9))
                    .map(|_| ("ä".repeat(draw(30) as usize) + "x", Bytes(1 + draw(1 << 40))))
                    .collect(),
            })
            .collect();
        let ledger = Ledger::private(Bytes(TOTAL));
        let publishers: Vec<_> = said.iter().cloned().map(|usage| ledger.publish(move || usage.clone())).collect();
        publishers[0].publish_now();
        let found = usage(&ledger).unwrap();
        let sum = |of: fn(&ProcessUsage) -> u64| said.iter().map(of).sum::<u64>();
        let (live, cached) = (sum(|usage| usage.live.unwrap().get()), sum(|usage| usage.cached.get()));
        assert_eq!((found.live.get(), found.cached.get()), (live, cached));
        assert_eq!(found.peak.get(), sum(|usage| usage.peak.get()).max(live + cached));
        let mut by_tag: BTreeMap<&str, u64> = BTreeMap::new();
        for (tag, bytes) in said.iter().flat_map(|usage| &usage.holders) {
            *by_tag.entry(tag).or_default() += bytes.get();
        }
        let mut expected: Vec<(u64, &str)> = by_tag.into_iter().map(|(tag, bytes)| (bytes, tag)).collect();
        expected.sort_by_key(|(bytes, tag)| (Reverse(*bytes), *tag));
        assert_eq!(found.holders.len(), expected.len().min(4));
        for (holder, (bytes, tag)) in found.holders.iter().zip(expected) {
            assert_eq!(holder.live.get(), bytes);
            assert!(tag.starts_with(&holder.tag) && (holder.tag.len() >= 34 || holder.tag == tag), "{}", holder.tag);
        }
        drop(publishers);
        assert_eq!(usage(&ledger), None, "what is withdrawn is gone");
    }
}

#[test]
fn m5_a_callback_that_panics_is_left_out() {
    let ledger = Ledger::private(Bytes(TOTAL));
    let fails = ledger.publish(|| panic!("as it was told"));
    let works = ledger.publish(|| ProcessUsage { live: Some(Bytes(5)), ..ProcessUsage::default() });
    works.publish_now();
    assert_eq!(usage(&ledger).unwrap().live, Bytes(5));
    assert!(ledger.callback_panic().unwrap().contains("as it was told"));
    drop((fails, works));
}

#[test]
fn m5_what_is_held_is_what_is_used_where_a_process_says_so() {
    let ledger = Ledger::private(Bytes(TOTAL));
    let account = ledger.account().unwrap();
    account.charge(Bytes(30)).unwrap();
    assert_eq!(usage(&ledger), None, "nothing is published unasked");
    ledger.publish_held().unwrap();
    ledger.note_peak(Bytes(40));
    for charged in [30, 35, 50] {
        account.charge(Bytes(charged - account.held().get())).unwrap();
        let shown = usage(&ledger).unwrap();
        assert_eq!((shown.live.get(), shown.peak.get()), (charged, charged.max(40)));
    }
    // Pools know what they cache of it.
    let publisher = ledger.publish(|| ProcessUsage { cached: Bytes(20), ..ProcessUsage::default() });
    publisher.publish_now();
    let shown = usage(&ledger).unwrap();
    assert_eq!((shown.live, shown.cached), (Bytes(30), Bytes(20)));
    account.release(Bytes(50));
}
