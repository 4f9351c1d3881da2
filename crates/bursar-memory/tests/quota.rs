//! Quotas of tenants that share a pool.

use bursar_core::{
    Action, Actions, Build, Bytes, DeviceBlock, DeviceContext, DeviceId, DeviceMemoryResource, Error, Holding, Layer,
    Observer, Record, Stack, Stream, leaf, tag,
};
use bursar_memory::{PagePool, Quota, QuotaResource};
use bursar_sim::Sim;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

type Shared = Arc<dyn DeviceMemoryResource>;

fn pool() -> (Arc<DeviceContext>, Shared) {
    let context = DeviceContext::open(Sim::immediate(), DeviceId(0)).expect("the simulator has it");
    let pool = Stack::new().layer(PagePool::default()).over(leaf::Frames).build(&context).expect("nothing to refuse");
    (context, Arc::new(pool))
}

fn tenant(quota: &Quota, pool: &Shared) -> QuotaResource<Shared> {
    quota.layer(pool.clone()).expect("a layer")
}

fn allocate(memory: &QuotaResource<Shared>, bytes: u64, stream: Stream) -> Result<DeviceBlock, Error> {
    memory.allocate(bytes, 256, stream, tag!("tenant"))
}

#[test]
fn b12_a_quota_is_exact_at_the_limit_wherever_its_change_lies() {
    let (context, pool) = pool();
    let quota = Quota::of(Bytes::mib(64));
    let memory = tenant(&quota, &pool);
    let stream = context.create_stream(0).expect("room");
    // Sixteen threads take and return, so that each ends with credit of its own.
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let block = allocate(&memory, 10_000, stream).expect("far below the limit");
                    memory.deallocate(block, stream).expect("its own");
                }
            });
        }
    });
    assert_eq!(quota.used(), Bytes::ZERO);
    let whole = allocate(&memory, 64 << 20, stream).expect("an exact fit, though it lies in many pockets");
    let refused = allocate(&memory, 1, stream).expect_err("not a byte more");
    let (requested, remaining, limit) = (Bytes(256), Bytes::ZERO, Bytes::mib(64));
    assert_eq!(refused.plain(), Error::out_of_budget(requested, remaining, limit));
    memory.deallocate(whole, stream).expect("its own");
    assert_eq!(quota.used(), Bytes::ZERO);
}

#[test]
fn b12_the_sum_granted_never_exceeds_the_limit_and_what_fits_is_granted() {
    let (context, pool) = pool();
    const SHARE: u64 = 1 << 20;
    const THREADS: u64 = 8;
    let quota = Quota::of(Bytes(SHARE * THREADS));
    let memory = tenant(&quota, &pool);
    let held = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (memory, held, context) = (&memory, &held, &context);
            scope.spawn(move || {
                let stream = context.create_stream(0).expect("room");
                for round in 0..2000u64 {
                    let bytes = 256 * (1 + (round * 7919 + thread * 31) % (SHARE / 256));
                    let block = allocate(memory, bytes, stream).expect("within its share, whatever the others do");
                    let now = held.fetch_add(bytes, Ordering::SeqCst) + bytes;
                    assert!(now <= SHARE * THREADS, "{now} granted");
                    held.fetch_sub(bytes, Ordering::SeqCst);
                    memory.deallocate(block, stream).expect("its own");
                }
            });
        }
    });
    assert_eq!(quota.used(), Bytes::ZERO);
}

#[test]
fn b12_tenants_of_one_pool_do_not_touch_each_others_quotas() {
    let (context, pool) = pool();
    let stream = context.create_stream(0).expect("room");
    let quotas = [Quota::of(Bytes::mib(1)), Quota::of(Bytes::mib(2))];
    let [small, large] = quotas.each_ref().map(|quota| tenant(quota, &pool));
    let (a, b) = (allocate(&small, 1 << 20, stream).expect("fits"), allocate(&large, 2 << 20, stream).expect("fits"));
    assert!(allocate(&small, 1, stream).is_err() && allocate(&large, 1, stream).is_err());
    small.deallocate(a, stream).expect("its own");
    assert_eq!(quotas.each_ref().map(Quota::used), [Bytes::ZERO, Bytes::mib(2)]);
    large.deallocate(b, stream).expect("its own");
}

#[test]
fn b12_a_quota_lowered_below_what_is_granted_refuses_until_enough_has_come_back() {
    let (context, pool) = pool();
    let stream = context.create_stream(0).expect("room");
    let quota = Quota::of(Bytes::mib(4));
    let memory = tenant(&quota, &pool);
    let blocks: Vec<_> = (0..4).map(|_| allocate(&memory, 1 << 20, stream).expect("fits")).collect();
    quota.set_limit(Bytes::mib(2));
    for (freed, block) in blocks.into_iter().enumerate() {
        let fits = freed > 2;
        assert_eq!(allocate(&memory, 1 << 20, stream).map(|b| memory.deallocate(b, stream)).is_ok(), fits, "{freed}");
        memory.deallocate(block, stream).expect("its own");
    }
    assert_eq!((quota.used(), quota.limit()), (Bytes::ZERO, Bytes::mib(2)));
}

#[test]
fn b12_what_the_pool_cannot_grant_costs_nothing_and_refusals_are_told() {
    #[derive(Debug, Default)]
    struct Refusals(AtomicU64);
    impl Observer for Refusals {
        fn interest(&self) -> Actions {
            Actions::of(&[Action::Refuse])
        }
        fn identity(&self) -> usize {
            std::ptr::from_ref(self).addr()
        }
        fn record(&self, _: &Record<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn holders(&self, _: DeviceId) -> Option<Vec<Holding>> {
            None
        }
    }
    let (context, pool) = pool();
    let refusals = Arc::new(Refusals::default());
    context.sink().subscribe(&(refusals.clone() as Arc<dyn Observer>)).expect("room");
    let stream = context.create_stream(0).expect("room");
    let quota = Quota::of(Bytes::MAX);
    let memory = tenant(&quota, &pool);
    let total = context.driver().memory(context.device()).expect("alive").total.get();
    assert!(allocate(&memory, 2 * total, stream).is_err_and(|error| error.is_capacity()));
    assert_eq!(quota.used(), Bytes::ZERO, "what was not granted is not paid for");
    quota.set_limit(Bytes::kib(1));
    assert!(allocate(&memory, 2048, stream).is_err());
    assert_eq!(refusals.0.load(Ordering::Relaxed), 1);
}
