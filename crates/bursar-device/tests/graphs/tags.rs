//! Tags of buffers inside graphs: in statistics, and in refusals and their advice.

use bursar_core::{Advice, AllocTag, Bytes, DeviceId, Holding, Observer as _, Result, Stack, leaf, tag};
use bursar_device::{DeviceBuffer, Gpu};
use bursar_memory::{GlobalDeviceBudget, PagePool, Quota, Statistics};
use bursar_sim::{Random, Sim};
use std::collections::HashMap;
use std::time::Duration;

/// The bytes and blocks of each tag, and the most of either.
type Model = HashMap<AllocTag, [u64; 4]>;

fn granted(model: &mut Model, tag: AllocTag, bytes: u64) {
    let [now, blocks, peak, most] = model.entry(tag).or_default();
    (*now, *blocks) = (*now + bytes, *blocks + 1);
    (*peak, *most) = ((*peak).max(*now), (*most).max(*blocks));
}

fn freed(model: &mut Model, buffer: &DeviceBuffer<u8>, tag: AllocTag) {
    let [now, blocks, ..] = model.entry(tag).or_default();
    (*now, *blocks) = (*now - buffer.block().expect("some").granted().get(), *blocks - 1);
}

/// Checks what is counted against a model, and against what the memory of graphs holds beyond its blocks.
fn check(statistics: &Statistics, model: &Model, held: Bytes, inside: Bytes, seed: u64) {
    for (tag, [now, blocks, peak, most]) in model {
        let counts = statistics.counts_of(*tag);
        assert_eq!((counts.current.bytes.get(), counts.current.count), (*now, *blocks), "seed {seed}, {tag}");
        assert_eq!((counts.peak.bytes.get(), counts.peak.count), (*peak, *most), "seed {seed}, {tag}");
    }
    let rest = statistics.counts_of(tag!("graph memory"));
    assert_eq!(rest.current.bytes, held.saturating_sub(inside), "seed {seed}");
    assert!(rest.peak.bytes <= statistics.counts().peak.bytes, "seed {seed}");
    let holders = statistics.holders(DeviceId(0)).expect("counted");
    let by_tag: u64 = holders.iter().map(|holding| holding.bytes.get()).sum();
    assert_eq!(by_tag, statistics.counts().current.bytes.get(), "seed {seed}: nothing is counted twice");
    let known = model.iter().filter(|(_, [now, ..])| *now > 0).count();
    assert_eq!(holders.len(), known + usize::from(held > inside), "seed {seed}: {holders:?}");
}

#[test]
fn z1_buffers_inside_graphs_are_counted_under_their_tags_and_the_rest_as_graph_memory() {
    for seed in 0..48 {
        let (mut random, statistics, mut model) = (Random::new(seed), Statistics::default(), Model::new());
        let stack = Stack::new().observe(statistics.clone()).layer(PagePool::default()).over(leaf::Frames);
        let gpu = Gpu::open(Sim::seeded(seed), DeviceId(0), &stack).expect("opens");
        let stream = gpu.streams().lease().expect("room");
        let memories = [gpu.graph_memory().expect("room"), gpu.graph_memory().expect("room")];
        let tags = [tag!("one"), tag!("two"), tag!("three")];
        let (mut graphs, mut kept) = (Vec::new(), Vec::<(DeviceBuffer<u8>, AllocTag, bool)>::new());
        for _ in 0..12 {
            match random.below(3) {
                0 => {
                    let tag = tags[random.index(3)];
                    let buffer = gpu.buffer::<u8>(1 + random.index(1 << 20), &stream, tag).expect("room");
                    granted(&mut model, tag, buffer.block().expect("some").granted().get());
                    kept.push((buffer, tag, false));
                }
                1 if !kept.is_empty() => {
                    let (buffer, tag, _) = kept.swap_remove(random.index(kept.len()));
                    freed(&mut model, &buffer, tag);
                    drop(buffer);
                }
                _ => {
                    let captured = gpu.capture_into(&memories[random.index(2)], &stream, |capture| -> Result<_> {
                        let mut buffers = Vec::new();
                        for _ in 0..6 {
                            if buffers.len() > 1 && random.below(2) == 0 {
                                let (buffer, tag, _) = buffers.swap_remove(random.index(buffers.len()));
                                freed(&mut model, &buffer, tag);
                                drop(buffer);
                            }
                            let (tag, len) = (tags[random.index(3)], 1 + random.index(300 << 10));
                            let buffer = capture.gpu().buffer::<u8>(len, capture.stream(), tag)?;
                            granted(&mut model, tag, buffer.block().expect("some").granted().get());
                            buffers.push((buffer, tag, true));
                        }
                        Ok(buffers)
                    });
                    let (graph, buffers) = captured.expect("captured");
                    graphs.push(graph);
                    kept.extend(buffers);
                }
            }
            let held = memories.iter().fold(Bytes::ZERO, |sum, memory| sum.saturating_add(memory.held()));
            let inside = kept.iter().filter(|(_, _, is_inside)| *is_inside);
            let inside = Bytes(inside.map(|(buffer, ..)| buffer.block().expect("some").granted().get()).sum());
            check(&statistics, &model, held, inside, seed);
        }
        kept.drain(..).for_each(|(buffer, tag, _)| freed(&mut model, &buffer, tag));
        drop((graphs, memories));
        check(&statistics, &model, Bytes::ZERO, Bytes::ZERO, seed);
        assert_eq!(statistics.counts().current.count, 0);
    }
}

#[test]
fn p4_a_refusal_names_what_is_inside_graphs_by_tag_and_its_advice_holds() {
    let statistics = Statistics::default();
    let stack =
        Stack::new().observe(statistics).layer(PagePool::default()).layer(GlobalDeviceBudget::of(Bytes::mib(64)));
    let gpu = Gpu::open(Sim::immediate(), DeviceId(0), &stack.over(leaf::Frames)).expect("opens");
    let stream = gpu.streams().lease().expect("room");
    let outside = gpu.buffer::<u8>(8 << 20, &stream, tag!("cache")).expect("room");
    let (graph, inside) = gpu
        .capture(&stream, |capture| -> Result<_> {
            let gpu = capture.gpu();
            let scratch = gpu.buffer::<u8>(8 << 20, capture.stream(), tag!("scratch"))?;
            let kept = gpu.buffer::<u8>(40 << 20, capture.stream(), tag!("cache"))?;
            drop(scratch);
            Ok(kept)
        })
        .expect("captured");
    let refused = gpu.buffer::<u8>(20 << 20, &stream, tag!("more")).expect_err("too much");
    let shortage = refused.shortage().expect("explained");
    let holding = |tag, mib, blocks| Holding { tag, bytes: Bytes::mib(mib), blocks };
    assert_eq!(shortage.holders, [holding(tag!("cache"), 48, 2), holding(tag!("graph memory"), 8, 2)], "{refused:#}");
    // Blocks inside a graph come back with all of its memory alone.
    let Advice::Free { tags, bytes, .. } = &shortage.advice else { panic!("{refused:#}") };
    assert_eq!((tags.as_slice(), *bytes), ([tag!("graph memory"), tag!("cache")].as_slice(), Bytes::mib(56)));
    drop((outside, graph, inside));
    gpu.buffer::<u8>(20 << 20, &stream, tag!("more")).expect("as advised");
}

#[test]
fn d6_memory_of_graphs_is_in_the_report_of_its_handle_whatever_is_inside() {
    let stack = Stack::new().observe(Statistics::default()).layer(PagePool::default()).over(leaf::Frames);
    let gpu = Gpu::open(Sim::immediate(), DeviceId(0), &stack).expect("opens");
    let (tenant, stream) = (gpu.under(&Quota::of(Bytes::mib(8))).expect("opens"), gpu.streams().lease().expect("room"));
    let own = gpu.buffer::<u8>(1 << 20, &stream, tag!("cache")).expect("room");
    let captured = tenant.capture(&stream, |capture| capture.gpu().buffer::<u8>(4096, capture.stream(), tag!("cache")));
    let (graph, inside) = captured.expect("captured");
    let holders = |gpu: &Gpu| gpu.still_held(Duration::ZERO).expect("some is held").holders;
    assert_eq!(holders(&gpu), [Holding { tag: tag!("cache"), bytes: Bytes::mib(1), blocks: 1 }]);
    assert_eq!(holders(&tenant), [Holding { tag: tag!("graph memory"), bytes: Bytes::kib(64), blocks: 1 }]);
    drop((own, graph, inside));
    assert_eq!((gpu.still_held(Duration::ZERO), tenant.still_held(Duration::ZERO)), (None, None));
}
