//! Programs that break a promise of graphs, each of which the simulator has to find.
#![allow(unsafe_code)]

use bursar_core::{
    Build as _, Bytes, DeviceContext, DeviceId, DeviceMemoryResource, GraphMemory, Pattern, RawGraphExec, RawStream,
    Stack, Stream, leaf, tag,
};
use bursar_memory::PagePool;
use bursar_sim::Sim;
use std::sync::Arc;

const GPU: DeviceId = DeviceId(0);
const BYTES: u64 = 4096;

/// A pool below a memory for graphs that somebody captures by hand.
struct Rig {
    sim: Arc<Sim>,
    context: Arc<DeviceContext>,
    pool: Arc<dyn DeviceMemoryResource>,
    memory: GraphMemory,
    streams: [Stream; 2],
}

impl Rig {
    fn new(seed: u64) -> Self {
        let sim = Sim::seeded(seed);
        let context = DeviceContext::open(sim.clone(), GPU).expect("a simulated device opens");
        let stack = Stack::new().layer(PagePool::default()).over(leaf::Frames);
        let pool: Arc<dyn DeviceMemoryResource> = Arc::new(stack.build(&context).expect("room"));
        let memory = GraphMemory::new(pool.clone()).expect("room");
        let streams = [(); 2].map(|()| context.create_stream(0).expect("room"));
        Self { sim, context, pool, memory, streams }
    }

    fn raw(&self, stream: Stream) -> RawStream {
        self.context.resolve(stream).expect("its own")
    }

    fn fill(&self, ptr: bursar_core::DevicePtr, stream: Stream) {
        // SAFETY: breaking the driver's contract is what the simulator is for.
        unsafe { self.context.driver().fill(GPU, self.raw(stream), ptr, Pattern::U8(1), BYTES) }.expect("submitted");
    }

    fn begin(&self) {
        // SAFETY: a live stream.
        unsafe { self.context.driver().capture_begin(GPU, self.raw(self.streams[0])) }.expect("not captured");
    }

    fn order(&self, first: Stream, then: Stream) {
        let driver = self.context.driver();
        let event = driver.event_create(GPU).expect("room");
        // SAFETY: live streams and a live event.
        unsafe { driver.event_record(GPU, event, self.raw(first)) }.expect("recorded");
        // SAFETY: as above.
        unsafe { driver.stream_wait(GPU, self.raw(then), event) }.expect("waits");
    }

    fn end(&self) -> RawGraphExec {
        let driver = self.context.driver();
        // SAFETY: a live stream.
        let graph = unsafe { driver.capture_end(GPU, self.raw(self.streams[0])) }.expect("captured");
        // SAFETY: a live graph.
        unsafe { driver.graph_instantiate(GPU, graph) }.expect("a graph")
    }

    fn launch(&self, graph: RawGraphExec, stream: Stream) {
        // SAFETY: breaking the driver's contract is what the simulator is for.
        unsafe { self.context.driver().graph_launch(GPU, graph, self.raw(stream)) }.expect("launched");
    }
}

/// Says that streams are ordered which are not: memory freed on one is reused on the other.
fn reuses_across_a_fork(rig: &Rig, is_broken: bool) {
    let [main, side] = rig.streams;
    let capture = rig.memory.capture_of(main).expect("nobody captures it");
    rig.begin();
    rig.order(main, side);
    capture.order(main, side).expect("captured");
    let block = rig.memory.allocate(BYTES, 256, main, tag!("freed")).expect("room");
    rig.fill(block.ptr(), main);
    rig.memory.deallocate(block, main).expect("its own");
    if !is_broken {
        rig.order(main, side);
    }
    capture.order(main, side).expect("captured");
    let block = rig.memory.allocate(BYTES, 256, side, tag!("reused")).expect("room");
    rig.fill(block.ptr(), side);
    rig.memory.deallocate(block, side).expect("its own");
    rig.order(side, main);
    let graph = rig.end();
    drop(capture);
    rig.launch(graph, main);
    rig.memory.launched(main).expect("its own");
}

/// Gives the memory of a graph back that is launched once more.
fn gives_memory_to_others(rig: Rig, is_broken: bool) -> Arc<Sim> {
    let [main, side] = rig.streams;
    let capture = rig.memory.capture_of(main).expect("nobody captures it");
    rig.begin();
    let block = rig.memory.allocate(BYTES, 256, main, tag!("scratch")).expect("room");
    rig.fill(block.ptr(), main);
    rig.memory.deallocate(block, main).expect("its own");
    let graph = rig.end();
    drop(capture);
    rig.launch(graph, main);
    rig.memory.launched(main).expect("its own");
    let Rig { sim, context, pool, memory, streams } = rig;
    let kept = if is_broken { None } else { Some(memory.clone()) };
    drop(memory);
    let others: Vec<_> =
        (0..4).map(|_| pool.allocate(Bytes::mib(2).get(), 256, side, tag!("others")).expect("room")).collect();
    let rig = Rig { sim: sim.clone(), memory: GraphMemory::new(pool.clone()).expect("room"), context, pool, streams };
    others.iter().for_each(|block| rig.fill(block.ptr(), side));
    rig.launch(graph, main);
    kept.inspect(|memory| memory.launched(main).expect("its own"));
    sim
}

/// Launches two graphs of one memory at once.
fn runs_two_at_once(rig: &Rig, is_broken: bool) {
    let [main, side] = rig.streams;
    let graphs = [(); 2].map(|()| {
        let capture = rig.memory.capture_of(main).expect("nobody captures it");
        rig.begin();
        let block = rig.memory.allocate(BYTES, 256, main, tag!("scratch")).expect("room");
        rig.fill(block.ptr(), main);
        rig.memory.deallocate(block, main).expect("its own");
        drop(capture);
        rig.end()
    });
    rig.launch(graphs[0], main);
    if !is_broken {
        rig.order(main, side);
    }
    rig.launch(graphs[1], side);
    rig.memory.launched(side).expect("its own");
    rig.memory.launched(main).expect("its own");
}

/// Runs a program with 64 seeds: broken it is found with each, and otherwise there is nothing to find.
fn judge(program: impl Fn(u64, bool) -> Arc<Sim>) {
    for seed in 0..64 {
        assert!(!program(seed, true).hazards().is_empty(), "seed {seed} finds nothing");
        program(seed, false).assert_clean();
    }
}

#[test]
fn z2_reuse_across_a_fork_without_a_join_is_found() {
    judge(|seed, is_broken| {
        let rig = Rig::new(seed);
        reuses_across_a_fork(&rig, is_broken);
        rig.sim.clone()
    });
}

#[test]
fn z1_memory_of_a_live_graph_that_others_have_is_found() {
    judge(|seed, is_broken| gives_memory_to_others(Rig::new(seed), is_broken));
}

#[test]
fn z2_two_graphs_of_one_memory_at_once_are_found() {
    judge(|seed, is_broken| {
        let rig = Rig::new(seed);
        runs_two_at_once(&rig, is_broken);
        rig.sim.clone()
    });
}

/// What a graph has left behind is written on another stream and freed there; the next graph, which the program launches
/// without waiting for that stream, has it only once that work has run.
#[test]
fn z2_a_graph_that_nobody_orders_reuses_only_what_streams_are_done_with() {
    for seed in 0..64 {
        let rig = Rig::new(seed);
        let [main, side] = rig.streams;
        let capture = rig.memory.capture_of(main).expect("nobody captures it");
        rig.begin();
        let left = rig.memory.allocate(BYTES, 256, main, tag!("left")).expect("room");
        let graph = rig.end();
        drop(capture);
        rig.launch(graph, main);
        rig.memory.launched(main).expect("its own");
        rig.order(main, side);
        rig.fill(left.ptr(), side);
        let address = left.ptr();
        // Before the next capture, or while it is under way.
        let mut left = Some(left);
        let free = |left: &mut Option<_>| {
            left.take().map_or(Ok(()), |left| rig.memory.deallocate(left, side)).expect("its own");
        };
        if seed % 2 == 0 {
            free(&mut left);
        }
        let capture = rig.memory.capture_of(main).expect("nobody captures it");
        rig.begin();
        free(&mut left);
        let block = rig.memory.allocate(BYTES, 256, main, tag!("next")).expect("room");
        assert_eq!(block.ptr() == address, seed % 2 == 0, "what is freed meanwhile is for the next one");
        rig.fill(block.ptr(), main);
        rig.memory.deallocate(block, main).expect("its own");
        let graph = rig.end();
        drop(capture);
        rig.launch(graph, main);
        rig.memory.launched(main).expect("its own");
        rig.sim.assert_clean();
    }
}
