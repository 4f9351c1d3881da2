//! R6 at the end: what a stack cannot give back while it is dropped is kept, counted and given back later.

use crate::Rig;
use bursar_core::{Bytes, DeviceContext, DeviceMemoryResource, Status, Stream, tag};
use bursar_sim::Call;
use std::sync::Arc;

super::clauses! {
    Anything: r6_one_failure_while_a_stack_is_dropped_loses_nothing,
    Anything: r6_failures_that_end_after_a_stack_was_dropped_lose_nothing,
    Anything: r6_what_is_left_of_a_stack_is_given_back_at_the_end_of_its_context,
}

/// A failure that passes.
const FAILS: Status = Status::Other { code: 999, name: "CUDA_ERROR_UNKNOWN", sticky: false };

/// A stack on a context of its own, which was used and has everything back, with work that may not have run.
struct Used {
    context: Arc<DeviceContext>,
    memory: Arc<dyn DeviceMemoryResource>,
    streams: [Stream; 2],
}

impl Used {
    fn new(rig: &Rig) -> Self {
        let context = DeviceContext::open(rig.faults.clone(), rig.context.device()).expect("the device works");
        let memory = rig.stack.build(&context).expect("the device works");
        let streams = [(); 2].map(|()| context.create_stream(0).expect("a stream"));
        let sizes = [700, 3 << 20, 5000, 5 << 20, 40_000, 1 << 20];
        let blocks = sizes.into_iter().zip(streams.into_iter().cycle()).map(|(bytes, stream)| {
            let mut block = memory.allocate(bytes, 256, stream, tag!("dropped")).expect("there is room");
            context.submit_fill(&mut block, 0, 7, 64, stream).expect("the device works");
            block
        });
        let blocks: Vec<_> = blocks.collect();
        for (nth, block) in blocks.into_iter().enumerate() {
            // Every third on another stream than its own.
            let stream = streams[(nth + usize::from(nth % 3 == 0)) % 2];
            context.order(block.stream(), stream).expect("the device works");
            memory.deallocate(block, stream).expect("the block and the stream belong here");
        }
        Self { context, memory, streams }
    }

    /// Drops the stack; what is left of it is the context's.
    fn drop_memory(self) -> Left {
        let Self { context, memory, streams } = self;
        drop(memory);
        Left { context, streams }
    }
}

/// The context of a stack that is gone.
struct Left {
    context: Arc<DeviceContext>,
    streams: [Stream; 2],
}

impl Left {
    /// Nothing fails any more and everything has run: a trim gives back all that is left.
    fn settle(self, rig: &Rig, what: &str) {
        let Self { context, streams } = self;
        rig.faults.heal();
        streams.iter().for_each(|&stream| context.synchronize(stream).expect("the device works"));
        context.trim();
        assert_eq!(rig.faults.held(context.device()), Bytes::ZERO, "{what}: a trim gives it back");
        assert_eq!(context.left_behind(), Bytes::ZERO, "{what}: nothing is counted any more");
    }
}

/// The kinds of calls that are made while a stack is dropped.
fn kinds(rig: &Rig) -> Vec<Call> {
    let used = Used::new(rig);
    let before: Vec<_> = Call::ALL.iter().map(|&call| rig.faults.calls(call)).collect();
    used.drop_memory();
    let kinds = Call::ALL.iter().zip(before);
    kinds.filter(|&(&call, before)| call.can_fail() && rig.faults.calls(call) > before).map(|(&call, _)| call).collect()
}

fn r6_one_failure_while_a_stack_is_dropped_loses_nothing(rig: &Rig) {
    for call in kinds(rig) {
        for nth in 1.. {
            let used = Used::new(rig);
            let before = rig.faults.calls(call);
            rig.faults.fail_nth(call, nth, FAILS);
            let left = used.drop_memory();
            let has_failed = rig.faults.calls(call) - before >= nth;
            left.settle(rig, &format!("{call} number {nth}"));
            if !has_failed {
                break;
            }
        }
    }
}

fn r6_failures_that_end_after_a_stack_was_dropped_lose_nothing(rig: &Rig) {
    for call in kinds(rig) {
        let used = Used::new(rig);
        rig.faults.fail_always(call, FAILS);
        let left = used.drop_memory();
        // A trim that still fails changes nothing.
        left.context.trim();
        left.settle(rig, &format!("every {call}"));
    }
}

fn r6_what_is_left_of_a_stack_is_given_back_at_the_end_of_its_context(rig: &Rig) {
    for call in kinds(rig) {
        let used = Used::new(rig);
        rig.faults.fail_always(call, FAILS);
        let left = used.drop_memory();
        rig.faults.heal();
        drop(left);
        assert_eq!(rig.faults.held(rig.context.device()), Bytes::ZERO, "every {call}: the context gave it back");
    }
}
