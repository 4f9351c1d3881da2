//! The memory that eight graphs of one model hold, each for itself and shared, and the cost of a launch.
//!
//! Requires: CUDA
//!
//! `cargo run --release -p bursar-cuda --example graph-memory`
//!
//! The model is made up and fixed: 24 layers, each of which allocates a hidden state, three projections, scores and a wide
//! intermediate, fills them (a stand-in for kernels), and frees all but the hidden state, which the next layer frees. Scores are
//! made on a second stream that forks and joins. It is captured for eight batch sizes, the largest first. `held` is what
//! the graphs hold, `live` the most that one of them has in blocks at a time, and `launch_us` the median of a launch and
//! its wait. Contents of the outputs are checked after each of a thousand launches.
//!
//! Exit status: 0 if shared memory holds less and every content is right, 1 otherwise, 3 no CUDA.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that reports")]

use bursar::graph::{GpuCapture, Graph, GraphMemory};
use bursar::memory::Holder as _;
use bursar::{Bytes, DeviceBuffer, DeviceId, Gpu, PagePool, Result, Stack, StreamLease, leaf, tag};
use bursar_cuda::Cuda;
use serde_json::json;
use std::process::ExitCode;
use std::time::Instant;

const BATCHES: [usize; 8] = [256, 192, 128, 96, 64, 32, 16, 8];
const LAYERS: u32 = 24;
const WIDTH: usize = 4096;
const LAUNCHES: usize = 1000;

struct Model<'a> {
    gpu: &'a Gpu,
    main: StreamLease,
    side: StreamLease,
}

impl Model<'_> {
    /// Captures one step for a batch. Returns the output and the most bytes that were in blocks at a time.
    fn step(&self, capture: &GpuCapture<'_>, batch: usize) -> Result<(DeviceBuffer<u32>, Bytes)> {
        let (gpu, mut most) = (capture.gpu(), Bytes::ZERO);
        let filled = |len: usize, stream: &StreamLease, value: u32| -> Result<DeviceBuffer<u32>> {
            let mut buffer = gpu.buffer::<u32>(len, stream, tag!("activations"))?;
            stream.submit(|work| work.fill(&mut buffer, value))?;
            Ok(buffer)
        };
        let mut hidden = filled(batch * WIDTH, &self.main, 0)?;
        for layer in 1..=LAYERS {
            let projection = || filled(batch * WIDTH, &self.main, layer);
            let projections = (projection()?, projection()?, projection()?);
            capture.order(&self.main, &self.side)?;
            let scores = filled(batch * 1024, &self.side, layer)?;
            let wide = filled(batch * 4 * WIDTH, &self.main, layer)?;
            capture.order(&self.side, &self.main)?;
            let mut next = gpu.buffer::<u32>(batch * WIDTH, &self.main, tag!("activations"))?;
            self.main.submit(|work| work.copy(wide.slice(..batch * WIDTH)?, &mut next))?;
            most = most.max(capture.memory().bytes_outstanding());
            drop((projections, scores, wide, std::mem::replace(&mut hidden, next)));
        }
        Ok((hidden, most))
    }

    /// Captures all batches, each into a memory of its own or into `shared`.
    fn report(&self, shared: Option<&GraphMemory>) -> Result<(Bytes, bool)> {
        let (mut graphs, mut live): (Vec<(Graph, DeviceBuffer<u32>)>, _) = (Vec::new(), Bytes::ZERO);
        for batch in BATCHES {
            let memory = shared.map_or_else(|| self.gpu.graph_memory(), |memory| Ok(memory.clone()))?;
            let (graph, (output, most)) =
                self.gpu.capture_into(&memory, &self.main, |capture| self.step(capture, batch))?;
            live = live.max(most);
            graphs.push((graph, output));
        }
        let held = match shared {
            Some(memory) => memory.held(),
            None => graphs.iter().fold(Bytes::ZERO, |sum, (graph, _)| sum + graph.memory().held()),
        };
        let (mut costs, mut is_right) = (Vec::new(), true);
        for nth in 0..LAUNCHES {
            let (graph, output) = &graphs[nth % graphs.len()];
            // Ordinary memory comes and goes on the other stream meanwhile.
            let mut ordinary = self.gpu.buffer::<u32>(1 << (10 + nth % 10), &self.side, tag!("ordinary"))?;
            self.side.submit(|work| work.fill(&mut ordinary, 0xdead))?;
            let begun = Instant::now();
            graph.launch(&self.main)?;
            self.gpu.context().synchronize(&self.main)?;
            costs.push(begun.elapsed());
            is_right &= output.slice(..1024)?.to_vec()?.iter().all(|value| *value == LAYERS);
        }
        costs.sort_unstable();
        let line = json!({
            "bench": "graph memory",
            "memory": if shared.is_some() { "shared" } else { "separate" },
            "graphs": graphs.len(),
            "held": held.get(),
            "live": live.get(),
            "launch_us": costs[costs.len() / 2].as_secs_f64() * 1e6,
            "right": is_right,
        });
        println!("{line}");
        Ok((held, is_right))
    }
}

fn run(gpu: &Gpu) -> Result<bool> {
    let model = Model { gpu, main: gpu.streams().lease()?, side: gpu.streams().lease()? };
    let (separate, is_right) = model.report(None)?;
    let memory = gpu.graph_memory()?;
    let (shared, is_right_too) = model.report(Some(&memory))?;
    Ok(shared < separate && is_right && is_right_too)
}

fn main() -> ExitCode {
    let opened = Cuda::load().map_err(|absent| absent.to_string()).and_then(|cuda| {
        let stack = Stack::new().layer(PagePool::default()).over(leaf::Frames);
        Gpu::open(cuda, DeviceId(0), &stack).map_err(|error| error.to_string())
    });
    match opened.map(|gpu| run(&gpu)) {
        Err(absent) => {
            eprintln!("graph-memory: {absent}");
            ExitCode::from(3)
        }
        Ok(Ok(is_within)) => ExitCode::from(u8::from(!is_within)),
        Ok(Err(error)) => {
            eprintln!("graph-memory: {error}");
            ExitCode::from(1)
        }
    }
}
