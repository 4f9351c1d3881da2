//! R6 at the end of a stack: memory that it cannot return while it is dropped is kept, counted and returned later.

use crate::StackRig;
use bursar_core::{Bytes, DeviceContext, DeviceMemoryResource, Status, Stream, tag};
use bursar_sim::Call;
use std::sync::Arc;

super::clauses! {
    Anything: r6_one_failure_while_a_stack_is_dropped_loses_nothing,
    Anything: r6_failures_that_end_after_a_stack_was_dropped_lose_nothing,
    Anything: r6_what_is_left_of_a_stack_is_given_back_at_the_end_of_its_context,
}

/// A failure that is not sticky.
const FAILS: Status = Status::Other { code: 999, name: "CUDA_ERROR_UNKNOWN", sticky: false };

/// A stack on a context of its own, whose blocks were all freed, with work that may not have run.
struct UsedStack {
    context: Arc<DeviceContext>,
    memory: Arc<dyn DeviceMemoryResource>,
    streams: [Stream; 2],
}

impl UsedStack {
    fn new(rig: &StackRig) -> Self {
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

    /// Drops the stack; the context keeps what is left of it.
    fn drop_memory(self) -> DroppedStack {
        let Self { context, memory, streams } = self;
        drop(memory);
        DroppedStack { context, streams }
    }
}

/// The context of a stack that was dropped.
struct DroppedStack {
    context: Arc<DeviceContext>,
    streams: [Stream; 2],
}

impl DroppedStack {
    /// Ends the faults, waits for the streams, and checks that a trim returns all that is left.
    fn settle(self, rig: &StackRig, what: &str) {
        let Self { context, streams } = self;
        rig.faults.heal();
        streams.iter().for_each(|&stream| context.synchronize(stream).expect("the device works"));
        context.trim();
        assert_eq!(rig.faults.held(context.device()), Bytes::ZERO, "{what}: a trim gives it back");
        assert_eq!(context.left_behind(), Bytes::ZERO, "{what}: nothing is counted any more");
    }
}

/// Returns the kinds of driver calls that are made while a stack is dropped.
fn kinds(rig: &StackRig) -> Vec<Call> {
    let used = UsedStack::new(rig);
    let before: Vec<_> = Call::ALL.iter().map(|&call| rig.faults.calls(call)).collect();
    used.drop_memory();
    let kinds = Call::ALL.iter().zip(before);
    kinds.filter(|&(&call, before)| call.can_fail() && rig.faults.calls(call) > before).map(|(&call, _)| call).collect()
}

fn r6_one_failure_while_a_stack_is_dropped_loses_nothing(rig: &StackRig) {
    for call in kinds(rig) {
        for nth in 1.. {
            let used = UsedStack::new(rig);
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

fn r6_failures_that_end_after_a_stack_was_dropped_lose_nothing(rig: &StackRig) {
    for call in kinds(rig) {
        let used = UsedStack::new(rig);
        rig.faults.fail_always(call, FAILS);
        let left = used.drop_memory();
        // A trim that still fails changes nothing.
        left.context.trim();
        left.settle(rig, &format!("every {call}"));
    }
}

fn r6_what_is_left_of_a_stack_is_given_back_at_the_end_of_its_context(rig: &StackRig) {
    for call in kinds(rig) {
        let used = UsedStack::new(rig);
        rig.faults.fail_always(call, FAILS);
        let left = used.drop_memory();
        rig.faults.heal();
        drop(left);
        assert_eq!(rig.faults.held(rig.context.device()), Bytes::ZERO, "every {call}: the context gave it back");
    }
}
