//! Z: memory inside graphs.
#![allow(unsafe_code)]

use crate::StackRig;
use bursar_core::{
    Access, Bytes, Capture, DeviceBlock, DeviceMemoryResource as _, DevicePtr, Error, Graph, GraphMemory, Holder as _,
    Pattern, Result, Status, Stream, StreamMisuse, Submission, TrackedBlock, tag,
};
use bursar_sim::Call;

super::clauses! {
    Capture: z1_a_thousand_launches_compute_the_same_beside_other_memory,
    Capture: z1_the_memory_of_a_graph_stays_its_own_until_it_is_gone,
    Capture: z2_what_is_freed_in_a_capture_is_reused_in_its_order,
    Capture: z2_uses_on_captured_streams_are_ordered_like_any_other,
    Capture: z2_graphs_that_share_a_memory_run_one_after_another,
    Capture: z2_a_launch_without_its_buffers_is_refused,
    Capture: z3_memory_is_found_while_somebody_captures_in_the_strictest_mode,
    Capture: z3_a_capture_that_fails_leaves_nothing_behind,
    Capture: z3_a_capture_whose_end_nobody_announced_is_found_to_be_over,
    Capture: z3_every_call_of_a_capture_that_grows_may_fail,
    Capture: z4_frees_of_other_streams_wait_for_their_turn,
}

const BYTES: u64 = 64 << 10;

fn graph_memory(rig: &StackRig) -> GraphMemory {
    GraphMemory::new(rig.memory.clone()).expect("a stream is free")
}

fn other_stream(rig: &StackRig) -> Stream {
    rig.context.create_stream(0).expect("the device works")
}

/// Allocates in a capture, to be used by submissions.
fn tracked(memory: &GraphMemory, bytes: u64, stream: Stream) -> Result<TrackedBlock> {
    Ok(TrackedBlock::new(memory, memory.allocate(bytes, 256, stream, tag!("in a graph"))?))
}

/// Fills a range in the order of a stream; the trial orders its streams.
fn fill(rig: &StackRig, ptr: DevicePtr, value: u32, stream: Stream) -> Result<()> {
    let (driver, device, held) = (rig.context.driver(), rig.context.device(), rig.context.hold(stream)?);
    // SAFETY: the range is a live block of the trial, which orders its streams.
    let filled = unsafe { driver.fill(device, held.raw(), ptr, Pattern::U32(value), BYTES / 4) };
    filled.map_err(|error| rig.context.failed(error))
}

/// Copies a whole block in the order of a stream; the trial orders its streams.
fn copy(rig: &StackRig, dst: DevicePtr, src: DevicePtr, stream: Stream) -> Result<()> {
    let (driver, device, held) = (rig.context.driver(), rig.context.device(), rig.context.hold(stream)?);
    // SAFETY: the ranges are live blocks of the trial, which orders its streams.
    let copied = unsafe { driver.copy_on_device(device, held.raw(), dst, src, BYTES) };
    copied.map_err(|error| rig.context.failed(error))
}

fn expect_all(rig: &StackRig, block: &DeviceBlock, value: u32) {
    let bytes = rig.read(block, rig.stream);
    assert!(bytes.chunks_exact(4).all(|part| part == value.to_ne_bytes()), "a graph's result is not what it computes");
}

/// A graph that goes from an input over scratch memory, on two streams, to an output.
struct Pipeline {
    graph: Graph,
    input: DeviceBlock,
    output: DeviceBlock,
    addresses: Vec<DevicePtr>,
}

fn pipeline(rig: &StackRig, memory: &GraphMemory, side: Stream) -> Pipeline {
    let input = rig.allocate(BYTES);
    let record = |capture: &Capture| -> Result<_> {
        let main = capture.stream();
        let scratch = memory.allocate(BYTES, 256, main, tag!("scratch"))?;
        copy(rig, scratch.ptr(), input.ptr(), main)?;
        capture.order(main, side)?;
        // On the side, a copy of the scratch; here, something else meanwhile.
        let copied = memory.allocate(BYTES, 256, side, tag!("copied"))?;
        copy(rig, copied.ptr(), scratch.ptr(), side)?;
        let noise = memory.allocate(BYTES, 256, main, tag!("noise"))?;
        fill(rig, noise.ptr(), 9, main)?;
        let mut addresses = vec![scratch.ptr(), copied.ptr(), noise.ptr()];
        memory.deallocate(noise, main)?;
        capture.order(side, main)?;
        memory.deallocate(scratch, main)?;
        let output = memory.allocate(BYTES, 256, main, tag!("output"))?;
        copy(rig, output.ptr(), copied.ptr(), main)?;
        memory.deallocate(copied, main)?;
        addresses.push(output.ptr());
        Ok((output, addresses))
    };
    let (graph, (output, addresses)) = memory.capture(rig.stream, record).expect("captured");
    Pipeline { graph, input, output, addresses }
}

fn z1_a_thousand_launches_compute_the_same_beside_other_memory(rig: &StackRig) {
    let (memory, side) = (graph_memory(rig), other_stream(rig));
    let Pipeline { graph, input, output, .. } = pipeline(rig, &memory, side);
    let ordinary = [other_stream(rig), other_stream(rig)];
    // Each seed of a simulator is another run, and a debug build of one takes its time.
    let launches: u32 = if rig.context.driver().simulates() { 40 } else { 1000 };
    for round in 0..launches {
        let noise = ordinary.map(|stream| rig.allocate_on(BYTES * (1 + u64::from(round) % 5), stream));
        noise.iter().for_each(|block| rig.fill(block, 0xee, block.stream()));
        rig.fill(&input, round as u8, rig.stream);
        graph.launch(rig.stream).expect("launched");
        noise.into_iter().for_each(|block| rig.free(block));
        if round % 8 == 0 || round + 1 == launches {
            expect_all(rig, &output, u32::from_ne_bytes([round as u8; 4]));
            // What was freed there counts until the streams have come to it, and they may be slow to.
            ordinary.iter().for_each(|&stream| rig.context.synchronize(stream).expect("no device is lost"));
        }
    }
    memory.deallocate(output, rig.stream).expect("its own");
    drop((graph, memory));
    rig.free(input);
    rig.drain();
    assert_eq!(rig.outstanding(), Bytes::ZERO);
}

fn z1_the_memory_of_a_graph_stays_its_own_until_it_is_gone(rig: &StackRig) {
    let (memory, side) = (graph_memory(rig), other_stream(rig));
    let Pipeline { graph, input, output, addresses } = pipeline(rig, &memory, side);
    let held = memory.held();
    assert!(held >= Bytes(3 * BYTES), "{held}");
    assert_eq!(memory.bytes_outstanding(), output.granted());
    memory.deallocate(output, rig.stream).expect("its own");
    rig.fill(&input, 5, rig.stream);
    for _ in 0..3 {
        graph.launch(rig.stream).expect("launched");
        rig.drain();
        rig.context.trim();
        let blocks: Vec<_> = (0..32).map(|_| rig.allocate_on(BYTES, side)).collect();
        for block in &blocks {
            let range = block.ptr().0..block.ptr().0 + BYTES;
            assert!(addresses.iter().all(|ptr| !range.contains(&ptr.0)), "memory of a graph was given to others");
            rig.fill(block, 1, side);
        }
        blocks.into_iter().for_each(|block| rig.free(block));
    }
    assert!(rig.outstanding() >= held + input.granted(), "what a graph holds is charged");
    drop(memory);
    graph.launch(rig.stream).expect("the graph keeps its memory");
    drop(graph);
    rig.free(input);
    rig.drain();
    assert_eq!(rig.outstanding(), Bytes::ZERO, "and gives it back");
}

fn z2_what_is_freed_in_a_capture_is_reused_in_its_order(rig: &StackRig) {
    let (memory, side) = (graph_memory(rig), other_stream(rig));
    let record = |capture: &Capture| -> Result<()> {
        let (main, allocate) = (capture.stream(), |stream| memory.allocate(BYTES, 256, stream, tag!("reused")));
        let first = allocate(main)?;
        let address = first.ptr();
        fill(rig, address, 1, main)?;
        memory.deallocate(first, main)?;
        let again = allocate(main)?;
        assert_eq!(again.ptr(), address, "the same stream has it at once");
        capture.order(main, side)?;
        fill(rig, address, 2, main)?;
        memory.deallocate(again, main)?;
        let other = allocate(side)?;
        assert_ne!(other.ptr(), address, "the side went off before that");
        fill(rig, other.ptr(), 3, side)?;
        capture.order(main, side)?;
        let joined = allocate(side)?;
        assert_eq!(joined.ptr(), address, "now it has waited");
        fill(rig, joined.ptr(), 4, side)?;
        memory.deallocate(joined, side)?;
        memory.deallocate(other, side)?;
        capture.order(side, main)
    };
    let (graph, ()) = memory.capture(rig.stream, record).expect("captured");
    (0..3).for_each(|_| graph.launch(rig.stream).expect("launched"));
    let refused = memory.allocate(BYTES, 256, rig.stream, tag!("late")).expect_err("the capture is over");
    assert!(matches!(refused, Error::StreamMisuse { why: StreamMisuse::NotCaptured, .. }), "{refused}");
    rig.context.synchronize(rig.stream).expect("the device works");
}

fn z2_uses_on_captured_streams_are_ordered_like_any_other(rig: &StackRig) {
    let (memory, side, outside) = (graph_memory(rig), other_stream(rig), other_stream(rig));
    let mut input = TrackedBlock::new(&*rig.memory, rig.allocate(BYTES));
    if !rig.memory.tracks_use() {
        let refused = Submission::new(&rig.context, rig.stream).declare(&input, Access::Write).expect_err("untracked");
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        return input.free(&*rig.memory, rig.stream).expect("its own");
    }
    let record = |capture: &Capture| -> Result<TrackedBlock> {
        let main = capture.stream();
        capture.order(main, side)?;
        let (mut work, mut on_side) = (Submission::new(&rig.context, main), Submission::new(&rig.context, side));
        let (mut scratch, mut output) = (tracked(&memory, BYTES, main)?, tracked(&memory, BYTES, main)?);
        work.copy(&mut scratch, 0, &input, 0, BYTES)?;
        on_side.copy(&mut output, 0, &scratch, 0, BYTES)?;
        // The free comes after the copy on the side, and so does whoever has the memory next.
        scratch.free(&memory, main)?;
        let mut next = tracked(&memory, BYTES, main)?;
        work.fill(&mut next, 0, Pattern::U8(0xff), BYTES)?;
        next.free(&memory, main)?;
        work.check()?;
        Ok(output)
    };
    let (graph, output) = memory.capture(rig.stream, record).expect("captured");
    for round in 1..4u8 {
        Submission::new(&rig.context, outside).fill(&mut input, 0, Pattern::U8(round), BYTES).expect("submitted");
        graph.launch(if round == 2 { side } else { rig.stream }).expect("launched");
        let mut bytes = vec![0; BYTES as usize];
        output.copy_to_host(&rig.context, 0, &mut bytes).expect("read");
        assert!(bytes.iter().all(|byte| *byte == round), "round {round}");
    }
    output.free(&memory, outside).expect("its own");
    graph.launch(side).expect("launched");
    input.free(&*rig.memory, outside).expect("its own");
}

fn z2_graphs_that_share_a_memory_run_one_after_another(rig: &StackRig) {
    let (memory, side) = (graph_memory(rig), other_stream(rig));
    let streams = [rig.stream, other_stream(rig), other_stream(rig)];
    let first = pipeline(rig, &memory, side);
    let held = memory.held();
    let others: Vec<_> = (0..3).map(|_| pipeline(rig, &memory, side)).collect();
    assert!(memory.held() <= Bytes(held.get().max(2 << 20)), "they hold what one does: {} {held}", memory.held());
    let all: Vec<Pipeline> = std::iter::once(first).chain(others).collect();
    all.iter().for_each(|pipeline| rig.fill(&pipeline.input, 3, rig.stream));
    rig.context.synchronize(rig.stream).expect("the device works");
    for round in 0..6 {
        for (nth, pipeline) in all.iter().enumerate() {
            pipeline.graph.launch(streams[(nth + round) % streams.len()]).expect("launched");
        }
    }
    streams.iter().for_each(|stream| rig.context.synchronize(*stream).expect("the device works"));
    for Pipeline { graph, input, output, .. } in all {
        expect_all(rig, &output, 0x0303_0303);
        memory.deallocate(output, side).expect("its own");
        rig.free(input);
        drop(graph);
    }
}

fn z2_a_launch_without_its_buffers_is_refused(rig: &StackRig) {
    if !rig.memory.tracks_use() {
        return assert!(!rig.memory.tracks_use(), "there is nothing that a graph could be captured with");
    }
    let memory = graph_memory(rig);
    let mut block = TrackedBlock::new(&*rig.memory, rig.allocate(BYTES));
    let record =
        |capture: &Capture| Submission::new(&rig.context, capture.stream()).fill(&mut block, 0, Pattern::U8(1), BYTES);
    let (graph, ()) = memory.capture(rig.stream, record).expect("captured");
    graph.launch(rig.stream).expect("the buffer is there");
    let ptr = block.ptr();
    block.free(&*rig.memory, rig.stream).expect("its own");
    let refused = graph.launch(rig.stream).expect_err("the buffer is gone");
    assert!(matches!(refused, Error::UseAfterFree { ptr: gone, .. } if gone == ptr), "{refused}");
}

fn z3_memory_is_found_while_somebody_captures_in_the_strictest_mode(rig: &StackRig) {
    let (memory, side) = (graph_memory(rig), other_stream(rig));
    let set_capturing = rig.set_capturing.as_ref().expect("a driver that captures");
    let (device, raw) = (rig.context.device(), rig.context.resolve(rig.stream).expect("its own"));
    let capture = memory.capture_of(rig.stream).expect("nobody captures it");
    set_capturing(device, raw, true);
    for round in 0..3 {
        let block = memory.allocate(BYTES << (3 * round), 256, rig.stream, tag!("grows")).expect("there is room");
        fill(rig, block.ptr(), 1, rig.stream).expect("captured");
        memory.deallocate(block, rig.stream).expect("its own");
        let refused = memory.allocate(BYTES, 256, side, tag!("other")).expect_err("not captured");
        assert!(matches!(refused, Error::StreamMisuse { why: StreamMisuse::NotCaptured, .. }), "{refused}");
        let ordinary = rig.allocate_on(BYTES, side);
        rig.fill(&ordinary, 1, side);
        rig.free(ordinary);
    }
    // It fails if anything has spoilt the capture.
    set_capturing(device, raw, false);
    drop(capture);
    memory.launched(rig.stream).expect("its own");
    drop(memory);
    rig.drain();
    assert_eq!(rig.outstanding(), Bytes::ZERO);
}

/// A library that captures by itself says when it begins, and says nothing where that fails.
fn z3_a_capture_whose_end_nobody_announced_is_found_to_be_over(rig: &StackRig) {
    let (memory, next) = (graph_memory(rig), graph_memory(rig));
    let set_capturing = rig.set_capturing.as_ref().expect("a driver that captures");
    let (device, raw) = (rig.context.device(), rig.context.resolve(rig.stream).expect("its own"));
    let failed = memory.capture_of_any().expect("nobody captures into it");
    assert_eq!(failed.is_over(), Ok(false), "it has not begun");
    set_capturing(device, raw, true);
    failed.enter(rig.stream).expect("part of no other");
    let block = memory.allocate(BYTES, 256, rig.stream, tag!("in vain")).expect("there is room");
    assert_eq!(failed.is_over(), Ok(false));
    set_capturing(device, raw, false);
    assert_eq!(failed.is_over(), Ok(true));
    drop(failed);
    let capture = next.capture_of_any().expect("nobody captures into it");
    set_capturing(device, raw, true);
    capture.enter(rig.stream).expect("part of no other any more");
    let other = next.allocate(BYTES, 256, rig.stream, tag!("captured")).expect("there is room");
    set_capturing(device, raw, false);
    assert_eq!(capture.is_over(), Ok(true));
    drop(capture);
    memory.deallocate(block, rig.stream).expect("its own");
    next.deallocate(other, rig.stream).expect("its own");
    drop((memory, next));
    rig.drain();
    assert_eq!(rig.outstanding(), Bytes::ZERO);
}

/// Returns whether ordinary memory is granted and freed on a stream, as on one that is not captured.
fn is_usable(rig: &StackRig, stream: Stream) -> bool {
    let block = rig.memory.allocate(BYTES, 256, stream, tag!("after"));
    block.map(|block| rig.free(block)).is_ok()
}

fn z3_a_capture_that_fails_leaves_nothing_behind(rig: &StackRig) {
    let (memory, side) = (graph_memory(rig), other_stream(rig));
    let failed = memory.capture(rig.stream, |capture| -> Result<()> {
        capture.order(capture.stream(), side)?;
        let block = memory.allocate(BYTES, 256, capture.stream(), tag!("in vain"))?;
        let inner = memory.capture(side, |_| -> Result<()> { Ok(()) });
        assert!(matches!(inner, Err(Error::StreamMisuse { why: StreamMisuse::Capturing, .. })), "{inner:?}");
        memory.deallocate(block, side)?;
        Err(Error::InvalidValue { what: "a reason of the caller's" })
    });
    assert_eq!(failed.err(), Some(Error::InvalidValue { what: "a reason of the caller's" }));
    assert!(is_usable(rig, rig.stream) && is_usable(rig, side));
    let unjoined = memory.capture(rig.stream, |capture| -> Result<()> {
        capture.order(capture.stream(), side)?;
        let block = memory.allocate(BYTES, 256, side, tag!("on the side"))?;
        fill(rig, block.ptr(), 1, side)?;
        Ok(memory.deallocate(block, side)?)
    });
    let (graph, ()) = unjoined.expect("a stream that does not come back is joined");
    assert!(is_usable(rig, rig.stream) && is_usable(rig, side));
    graph.launch(rig.stream).expect("launched");
    drop(graph);
    let default = rig.context.default_stream();
    assert!(memory.capture(default, |_| -> Result<()> { Ok(()) }).is_err(), "it cannot be captured");
    let (graph, ()) = memory.capture(rig.stream, |_| -> Result<()> { Ok(()) }).expect("an empty one");
    graph.launch(rig.stream).expect("launched");
}

/// Captures with growth, a fork and a join. Blocks that are not freed in the capture are left in `blocks`.
fn capture_with_growth(
    rig: &StackRig,
    memory: &GraphMemory,
    side: Stream,
    blocks: &mut Vec<DeviceBlock>,
) -> Result<()> {
    let record = |capture: &Capture| -> Result<()> {
        let main = capture.stream();
        for (bytes, stream) in [(BYTES, main), (3 << 20, side)] {
            if stream == side {
                capture.order(main, side)?;
            }
            let block = memory.allocate(bytes, 256, stream, tag!("fails"))?;
            let filled = fill(rig, block.ptr(), 1, stream);
            blocks.push(block);
            filled?;
        }
        capture.order(side, main)?;
        while let Some(block) = blocks.pop() {
            memory.deallocate(block, main).map_err(|refused| {
                blocks.push(refused.block);
                refused.error
            })?;
        }
        Ok(())
    };
    let (graph, ()) = memory.capture(rig.stream, record)?;
    graph.launch(rig.stream)
}

fn z3_every_call_of_a_capture_that_grows_may_fail(rig: &StackRig) {
    let (side, mut failures) = (other_stream(rig), 0);
    // The seeds of a simulator share the calls among them.
    let shares = if rig.context.listens() { 8 } else { 1 };
    let own = Call::ALL.iter().copied().skip((rig.seed % shares) as usize).step_by(shares as usize);
    for call in own.filter(|call| call.can_fail()) {
        for nth in 1..4 {
            let (memory, mut blocks) = (graph_memory(rig), Vec::new());
            rig.faults.fail_nth(call, nth, Status::InvalidValue);
            let outcome = capture_with_growth(rig, &memory, side, &mut blocks);
            failures += u32::from(outcome.is_err());
            rig.faults.heal();
            for block in blocks {
                memory.deallocate(block, side).expect("a block outlives a capture that fails");
            }
            drop(memory);
            // A failure that was only remembered is told once, by whatever comes next.
            let _told = rig.memory.reap();
            assert!(is_usable(rig, rig.stream) && is_usable(rig, side), "{call} {nth}");
            rig.drain();
            assert_eq!(rig.outstanding(), Bytes::ZERO, "{call} {nth}: everything is back");
        }
    }
    assert!(failures > 10 || shares > 1, "{failures} failures are too few to show anything");
}

fn z4_frees_of_other_streams_wait_for_their_turn(rig: &StackRig) {
    let (memory, side) = (graph_memory(rig), other_stream(rig));
    let (ordinary, elsewhere) = (rig.allocate(BYTES), rig.allocate_on(BYTES, side));
    let record = |capture: &Capture| -> Result<_> {
        let main = capture.stream();
        let refused = rig.memory.deallocate(ordinary, main).expect_err("it is captured");
        assert!(matches!(refused.error, Error::StreamMisuse { why: StreamMisuse::Capturing, .. }), "{refused}");
        rig.free(elsewhere);
        let block = memory.allocate(BYTES, 256, main, tag!("freed outside"))?;
        let address = block.ptr();
        fill(rig, address, 1, main)?;
        memory.deallocate(block, side)?;
        let next = memory.allocate(BYTES, 256, main, tag!("next"))?;
        assert_ne!(next.ptr(), address, "a stream outside the capture says nothing of its order");
        fill(rig, next.ptr(), 2, main)?;
        Ok((refused.block, next, address))
    };
    let (graph, (ordinary, next, address)) = memory.capture(rig.stream, record).expect("captured");
    graph.launch(rig.stream).expect("launched");
    rig.free(ordinary);
    memory.deallocate(next, rig.stream).expect("its own");
    let held = memory.held();
    let again = |capture: &Capture| -> Result<_> {
        let allocate = || memory.allocate(BYTES, 256, capture.stream(), tag!("again"));
        Ok([allocate()?, allocate()?])
    };
    let (second, both) = memory.capture(rig.stream, again).expect("captured");
    assert!(both.iter().any(|block| block.ptr() == address) && memory.held() == held, "nothing is lost");
    second.launch(rig.stream).expect("launched");
    for block in both {
        memory.deallocate(block, rig.stream).expect("its own");
    }
    drop((graph, second, memory));
    rig.drain();
    assert_eq!(rig.outstanding(), Bytes::ZERO);
}
