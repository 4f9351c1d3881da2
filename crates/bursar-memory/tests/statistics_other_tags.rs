//! Memory of more tags than counts tell apart. It is a program of its own, because the tags it makes leave none for others.

mod common;

use bursar_core::{AllocTag, Build, Bytes, DeviceMemoryResource as _, DeviceMemoryResourceExt as _, Stack, leaf};
use bursar_memory::{GlobalDeviceBudget, Statistics};
use bursar_sim::Sim;

const MANY: u32 = 5000;

#[test]
fn p4_memory_of_tags_that_are_not_counted_apart_is_shown_as_that_of_other_tags() {
    let context = common::context(Sim::seeded(1));
    let statistics = Statistics::default();
    let budget = GlobalDeviceBudget::of(Bytes::mib(4));
    let stack = Stack::new().observe(statistics.clone()).layer(budget).over(leaf::Async);
    let memory = stack.build(&context).expect("a stack");
    let stream = context.create_stream(0).expect("a stream");
    let first = AllocTag::intern("first");
    let beyond: Vec<_> = (0..MANY).map(|n| AllocTag::intern(&format!("one of many {n}"))).collect();
    let beyond = beyond.into_iter().filter(|tag| tag.index() >= 4095).collect::<Vec<_>>();
    let allocate = |mib: u64, tag| memory.allocate(mib << 20, 256, stream, tag);
    let held = [(1, first), (2, beyond[0]), (1, beyond[7])].map(|(mib, tag)| allocate(mib, tag).expect("room"));

    let shown: Vec<_> = statistics.tags().into_iter().map(|(tag, counts)| (tag, counts.current.bytes)).collect();
    assert_eq!(shown, [(AllocTag::OTHERS, Bytes::mib(3)), (first, Bytes::mib(1))]);
    assert_eq!(statistics.counts_of(beyond[3]), statistics.counts_of(AllocTag::OTHERS));
    let refused = memory.explain(allocate(2, first).expect_err("nothing is left"), Bytes::mib(2), 256);
    let shortage = refused.shortage().expect("it is for want of memory");
    let holders: Vec<_> = shortage.holders.iter().map(|held| (held.tag, held.bytes, held.blocks)).collect();
    assert_eq!(holders, [(AllocTag::OTHERS, Bytes::mib(3), 2), (first, Bytes::mib(1), 1)]);
    assert!(refused.to_string().contains("(other tags)"), "{refused}");
    for block in held {
        memory.deallocate(block, stream).expect("a block of this stack");
    }
}
