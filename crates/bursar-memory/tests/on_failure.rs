//! G4: a callback that may free memory and ask for a retry, a bounded number of times.

mod common;

use bursar_core::{
    Build, Bytes, DeviceBlock, DeviceContext, DeviceId, DeviceMemoryResource, DriverError, Error, Holder, Stack,
    Status, Stream, leaf, tag,
};
use bursar_memory::{Failure, FailureAction, GlobalDeviceBudget, Guard, OnFailure, PagePool};
use bursar_sim::{Call, Faults, Random, Sim};
use common::{RandomSize, context};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

const LIMIT: Bytes = Bytes::mib(1);

fn build(context: &Arc<DeviceContext>, layer: OnFailure) -> Arc<dyn DeviceMemoryResource> {
    let stack = Stack::new().layer(layer).layer(GlobalDeviceBudget::of(LIMIT)).over(leaf::Async);
    Arc::new(stack.build(context).expect("a stack"))
}

fn desk() -> (Arc<DeviceContext>, Stream) {
    let context = context(Sim::immediate());
    let stream = context.create_stream(0).expect("a stream");
    (context, stream)
}

/// Memory that a program could do without, and frees when it is asked to.
#[derive(Clone, Default)]
struct Cache(Arc<Mutex<Vec<DeviceBlock>>>);

impl Cache {
    fn put(&self, block: DeviceBlock) {
        self.0.lock().expect("no panic").push(block);
    }

    fn evict(&self, failure: &Failure<'_>) -> FailureAction {
        let Some(block) = self.0.lock().expect("no panic").pop() else { return FailureAction::GiveUp };
        failure.memory.deallocate(block, failure.stream).expect("its own");
        failure.memory.reap_blocking(Duration::MAX).expect("the device works");
        FailureAction::Retry
    }
}

#[test]
fn g4_memory_that_the_callback_frees_meets_the_request() {
    let (context, stream) = desk();
    let (cache, heard) = (Cache::default(), Arc::new(Mutex::new(Vec::new())));
    let layer = {
        let (cache, heard) = (cache.clone(), heard.clone());
        OnFailure::new(move |failure| {
            let Failure { requested, align, stream, tag, attempt, .. } = *failure;
            heard.lock().expect("no panic").push((failure.error.plain(), requested, align, stream, tag, attempt));
            cache.evict(failure)
        })
    };
    let memory = build(&context, layer);
    for _ in 0..4 {
        cache.put(memory.allocate(LIMIT.get() / 4, 256, stream, tag!("cached")).expect("it fits"));
    }
    let block = memory.allocate(LIMIT.get() / 2, 512, stream, tag!("wanted")).expect("two were freed for it");
    let requested = Bytes(LIMIT.get() / 2 + 256);
    let refusal = |free: u64| Error::out_of_budget(requested, Bytes(free), LIMIT);
    let asked = Bytes(LIMIT.get() / 2);
    let quarter = LIMIT.get() / 4;
    let expected: Vec<_> =
        (0..3).map(|n| (refusal(n * quarter), asked, 512, stream, tag!("wanted"), n as u32 + 1)).collect();
    assert_eq!(*heard.lock().expect("no panic"), expected);
    memory.deallocate(block, stream).expect("its own");
}

#[test]
fn g4_retries_are_bounded_and_the_last_error_is_the_answer() {
    for retries in [0, 1, 3, 100] {
        let (context, stream) = desk();
        let calls = Arc::new(AtomicU32::new(0));
        let layer = {
            let calls = calls.clone();
            OnFailure::new(move |failure| {
                assert_eq!(failure.attempt, calls.fetch_add(1, SeqCst) + 1);
                FailureAction::Retry
            })
        };
        let memory = build(&context, layer.retries(retries));
        let refused = memory.allocate(LIMIT.get() + 1, 256, stream, tag!("too much")).expect_err("never fits");
        assert!(matches!(refused, Error::OutOfBudget { .. }), "{refused:?}");
        assert_eq!(calls.load(SeqCst), retries);
    }
}

#[test]
fn g4_a_callback_that_gives_up_is_asked_once() {
    let (context, stream) = desk();
    let calls = Arc::new(AtomicU32::new(0));
    let layer = {
        let calls = calls.clone();
        OnFailure::new(move |_| {
            calls.fetch_add(1, SeqCst);
            FailureAction::GiveUp
        })
    };
    let memory = build(&context, layer);
    assert!(memory.allocate(LIMIT.get() + 1, 256, stream, tag!("too much")).expect_err("never fits").is_capacity());
    assert_eq!(calls.load(SeqCst), 1);
}

#[test]
fn g4_other_errors_are_none_of_its_business() {
    let faults = Faults::new(Sim::immediate());
    let context = context(faults.clone());
    let stream = context.create_stream(0).expect("a stream");
    let memory = build(&context, OnFailure::new(|failure| panic!("called for {:?}", failure.error)));
    assert_eq!(memory.allocate(0, 256, stream, tag!("none")).err(), Some(Error::InvalidSize { requested: 0 }));
    assert_eq!(memory.allocate(1, 3, stream, tag!("odd")).err(), Some(Error::InvalidAlignment { align: 3 }));
    faults.fail_next(Call::AllocateAsync, Status::InvalidValue);
    let failed = memory.allocate(1, 256, stream, tag!("failing")).expect_err("planted");
    assert!(matches!(failed, Error::Driver(error) if error.status == Status::InvalidValue), "{failed:?}");
}

#[test]
fn g4_another_error_after_a_retry_is_the_answer() {
    let faults = Faults::new(Sim::immediate());
    let context = context(faults.clone());
    let stream = context.create_stream(0).expect("a stream");
    let (cache, calls) = (Cache::default(), Arc::new(AtomicU32::new(0)));
    let layer = {
        let (cache, faults, calls) = (cache.clone(), faults.clone(), calls.clone());
        OnFailure::new(move |failure| {
            calls.fetch_add(1, SeqCst);
            let verdict = cache.evict(failure);
            faults.fail_next(Call::AllocateAsync, Status::NotSupported);
            verdict
        })
    };
    let memory = build(&context, layer);
    cache.put(memory.allocate(LIMIT.get(), 256, stream, tag!("cached")).expect("it fits"));
    let failed = memory.allocate(1, 256, stream, tag!("wanted")).expect_err("planted");
    assert!(matches!(failed, Error::Driver(error) if error.status == Status::NotSupported), "{failed:?}");
    assert_eq!((memory.bytes_outstanding(), calls.load(SeqCst)), (Bytes::ZERO, 1));
}

#[test]
fn g4_the_callback_may_use_the_same_stack_and_is_not_called_inside_itself() {
    let (context, stream) = desk();
    let memory: Arc<OnceLock<Arc<dyn DeviceMemoryResource>>> = Arc::default();
    let (cache, calls) = (Cache::default(), Arc::new(AtomicU32::new(0)));
    let layer = {
        let (memory, cache, calls) = (memory.clone(), cache.clone(), calls.clone());
        OnFailure::new(move |failure| {
            calls.fetch_add(1, SeqCst);
            let whole = memory.get().expect("built");
            let refused = whole.allocate(LIMIT.get(), 256, failure.stream, tag!("inside")).expect_err("full");
            assert!(refused.is_capacity(), "{refused:?}");
            let block = cache.0.lock().expect("no panic").pop().expect("something cached");
            whole.deallocate(block, failure.stream).expect("its own");
            let scratch = whole.allocate(256, 256, failure.stream, tag!("inside")).expect("it fits");
            whole.deallocate(scratch, failure.stream).expect("its own");
            FailureAction::Retry
        })
    };
    let memory = memory.get_or_init(|| build(&context, layer));
    cache.put(memory.allocate(LIMIT.get(), 256, stream, tag!("cached")).expect("it fits"));
    for round in 1..=3 {
        let block = memory.allocate(LIMIT.get(), 256, stream, tag!("wanted")).expect("freed for it");
        cache.put(block);
        assert_eq!(calls.load(SeqCst), round, "called for each request, and for none of its own");
    }
}

#[test]
fn g4_a_panic_goes_through_and_leaves_everything_in_order() {
    let (context, stream) = desk();
    let calls = Arc::new(AtomicU32::new(0));
    let layer = {
        let calls = calls.clone();
        OnFailure::new(move |_| {
            assert!(calls.fetch_add(1, SeqCst) > 0, "planted");
            FailureAction::GiveUp
        })
    };
    let memory = build(&context, layer);
    let block = memory.allocate(LIMIT.get(), 256, stream, tag!("held")).expect("it fits");
    let request = || memory.allocate(1, 256, stream, tag!("wanted"));
    let panic = catch_unwind(AssertUnwindSafe(request)).expect_err("the callback panics");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"planted"));
    assert_eq!(memory.bytes_outstanding(), LIMIT, "the panic has charged nothing");
    assert!(request().expect_err("full").is_capacity());
    assert_eq!(calls.load(SeqCst), 2, "it is called again");
    memory.deallocate(block, stream).expect("its own");
    let block = request().expect("there is room now");
    memory.deallocate(block, stream).expect("its own");
}

/// Threads that share one budget and one cache: a request fails only where there is nothing to evict, and nothing is lost.
#[test]
fn g4_threads_evict_for_each_other() {
    let (context, stream) = desk();
    let cache = Cache::default();
    let layer = {
        let cache = cache.clone();
        OnFailure::new(move |failure| cache.evict(failure)).retries(u32::MAX)
    };
    let memory = build(&context, layer);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (memory, cache) = (&memory, &cache);
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for _ in 0..500 {
                    let bytes = random.size(LIMIT.get() / 64);
                    match memory.allocate(bytes, 256, stream, tag!("shared")) {
                        Ok(block) => cache.put(block),
                        Err(error) => assert!(error.is_capacity(), "{error:?}"),
                    }
                    assert!(memory.bytes_outstanding() <= LIMIT);
                }
            });
        }
    });
    for block in cache.0.lock().expect("no panic").drain(..) {
        memory.deallocate(block, stream).expect("its own");
    }
    memory.reap_blocking(Duration::MAX).expect("the device works");
    assert_eq!(memory.bytes_outstanding(), Bytes::ZERO);
}

/// A free that failed for want of memory is reported by the next request, not taken for a want of memory of that one.
#[test]
fn r6_a_remembered_want_of_memory_is_reported_and_not_tried_again() {
    let (context, stream) = desk();
    let fault = DriverError::new("free", DeviceId(0), Status::OutOfMemory);
    let asked = Arc::new(AtomicU32::new(0));
    let count = asked.clone();
    let retry = OnFailure::new(move |_| {
        count.fetch_add(1, SeqCst);
        FailureAction::Retry
    });
    let stacks: [Arc<dyn DeviceMemoryResource>; 3] = [
        Arc::new(Stack::new().layer(retry).over(leaf::Async).build(&context).expect("a stack")),
        Arc::new(Stack::new().layer(Guard::default()).over(leaf::Async).build(&context).expect("a stack")),
        Arc::new(Stack::new().layer(PagePool::default()).over(leaf::Frames).build(&context).expect("a stack")),
    ];
    for memory in stacks {
        // A guard has something in quarantine to give up.
        let block = memory.allocate(1000, 256, stream, tag!("kept")).expect("there is room");
        memory.deallocate(block, stream).expect("its own");
        context.fault().record(fault);
        let reported = memory.allocate(9 << 20, 256, stream, tag!("next")).map(drop);
        assert_eq!(reported, Err(fault.into()), "{memory:?}");
        let block = memory.allocate(9 << 20, 256, stream, tag!("next")).expect("it is reported once");
        memory.deallocate(block, stream).expect("its own");
    }
    assert_eq!(asked.load(SeqCst), 0, "nobody was asked for memory");
}
