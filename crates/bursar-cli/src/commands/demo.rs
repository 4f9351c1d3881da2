//! `bursar demo`: the tour. Every step really runs, and its result is what is shown.

mod race;
mod trace;

use super::devices::{self, Devices};
use crate::failure::Failure;
use crate::output::{BAD, FAINT, GOOD, HEADING, Show};
use bursar::driver::OpenedDriver;
use bursar::prelude::*;
use serde::Serialize;
use std::io::{Result, Write};
use std::panic::resume_unwind;
use std::time::{Duration, Instant};

const LIMIT: Bytes = Bytes::mib(64);
const THREADS: u64 = 4;
const PAIRS: u64 = 5_000;

/// The results of all steps.
#[derive(Debug, Serialize)]
pub(crate) struct Tour {
    devices: Devices,
    stack: Vec<&'static str>,
    limit: u64,
    threads: Threads,
    refusal: Refusal,
    stream_order: StreamOrder,
    trace: trace::TraceReport,
    race: race::Race,
    statistics: Totals,
}

/// The result of four threads that allocate and free under the limit.
#[derive(Debug, Serialize)]
struct Threads {
    threads: u64,
    pairs: u64,
    refused: u64,
    peak_bytes: u64,
    ns_per_pair: u64,
}

/// The refusal of a request that does not fit.
#[derive(Debug, Serialize)]
struct Refusal {
    requested: u64,
    remaining: u64,
    limit: u64,
    message: String,
}

/// The bytes outstanding after a free, before and after the stream has passed it.
#[derive(Debug, Serialize)]
struct StreamOrder {
    bytes: u64,
    outstanding_after_free: u64,
    outstanding_after_wait: u64,
}

#[derive(Debug, Serialize)]
struct Totals {
    live_bytes: u64,
    peak_bytes: u64,
    blocks_ever: u64,
    refused: u64,
    tags: Vec<Tag>,
}

#[derive(Debug, Serialize)]
struct Tag {
    tag: &'static str,
    peak_bytes: u64,
    blocks_ever: u64,
}

/// Runs the tour.
pub(crate) fn tour(opened: &OpenedDriver) -> std::result::Result<Tour, Failure> {
    let statistics = Statistics::default();
    let stack = Stack::new().observe(statistics.clone()).layer(GlobalDeviceBudget::of(LIMIT)).over(leaf::Async);
    let gpus = DevicePool::open(opened.driver.clone(), &stack)?;
    let gpu = gpus.most_free();
    Ok(Tour {
        devices: devices::list(opened),
        stack: vec!["statistics", "budget of 64 MiB a device", "the driver's stream-ordered pool"],
        limit: LIMIT.get(),
        threads: four_threads(gpu, &statistics)?,
        refusal: refusal(gpu)?,
        stream_order: stream_order(gpu)?,
        trace: trace::replay(&opened.driver, gpu.context().device())?,
        race: race::run_twice()?,
        statistics: totals(&statistics),
    })
}

fn four_threads(gpu: &Gpu, statistics: &Statistics) -> bursar::Result<Threads> {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|seed| scope.spawn(move || churn(gpu, seed))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })?;
    let pairs = statistics.counts().total.count;
    Ok(Threads {
        threads: THREADS,
        pairs,
        refused: statistics.refused(),
        peak_bytes: statistics.counts().peak.bytes.get(),
        ns_per_pair: start.elapsed().as_nanos() as u64 / pairs.max(1),
    })
}

/// Allocates and frees blocks of 1 byte to 8 MiB, one at a time: four threads never need more than half of the limit.
fn churn(gpu: &Gpu, seed: u64) -> bursar::Result<()> {
    let stream = gpu.streams().lease()?;
    let mut state = seed + 1;
    for _ in 0..PAIRS {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bytes = 1 + (state >> 41) % (8 << 20);
        let block = gpu.memory().allocate(bytes, 256, *stream, tag!("activations"))?;
        gpu.memory().deallocate(block, *stream)?;
    }
    Ok(())
}

fn refusal(gpu: &Gpu) -> bursar::Result<Refusal> {
    let stream = gpu.streams().lease()?;
    gpu.memory().reap_blocking(Duration::MAX)?;
    let weights = gpu.buffer::<f32>(12 << 20, &stream, tag!("weights"))?;
    let refused = gpu.buffer::<f32>(6 << 20, &stream, tag!("one batch too many"));
    drop(weights);
    match refused {
        Err(Error::OutOfBudget { requested, remaining, limit, .. }) => Ok(Refusal {
            requested: requested.get(),
            remaining: remaining.get(),
            limit: limit.get(),
            message: Error::out_of_budget(requested, remaining, limit).to_string(),
        }),
        Err(other) => Err(other),
        Ok(_) => Err(Error::InvalidValue { what: "72 MiB were granted under a limit of 64 MiB" }),
    }
}

fn stream_order(gpu: &Gpu) -> bursar::Result<StreamOrder> {
    let stream = gpu.streams().lease()?;
    gpu.memory().reap_blocking(Duration::MAX)?;
    let block = gpu.memory().allocate(8 << 20, 256, *stream, tag!("batch"))?;
    let bytes = block.granted().get();
    gpu.memory().deallocate(block, *stream)?;
    let outstanding_after_free = gpu.memory().bytes_outstanding().get();
    gpu.memory().reap_blocking(Duration::MAX)?;
    Ok(StreamOrder { bytes, outstanding_after_free, outstanding_after_wait: gpu.memory().bytes_outstanding().get() })
}

fn totals(statistics: &Statistics) -> Totals {
    let report = statistics.report();
    let tags = report.tags.iter().map(|(tag, counts)| Tag {
        tag: tag.name(),
        peak_bytes: counts.peak.bytes.get(),
        blocks_ever: counts.total.count,
    });
    Totals {
        live_bytes: report.whole.current.bytes.get(),
        peak_bytes: report.whole.peak.bytes.get(),
        blocks_ever: report.whole.total.count,
        refused: report.refused,
        tags: tags.collect(),
    }
}

impl Show for Tour {
    fn show(&self, out: &mut dyn Write) -> Result<()> {
        heading(out, "The devices")?;
        self.devices.show(out)?;

        heading(out, "A stack, built for each of them")?;
        writeln!(out, "{}", self.stack.join(" → "))?;

        heading(out, "Four threads, four streams, one budget")?;
        let Threads { threads, pairs, refused, peak_bytes, ns_per_pair } = &self.threads;
        writeln!(out, "{threads} threads allocated and freed {pairs} blocks of up to 8 MiB in {ns_per_pair} ns each")?;
        writeln!(out, "{GOOD}{refused} refused{GOOD:#}, at most {} live at a time", Bytes(*peak_bytes))?;

        heading(out, "A request that does not fit")?;
        writeln!(out, "{BAD}{}{BAD:#}", self.refusal.message)?;

        heading(out, "A free in stream order")?;
        let StreamOrder { bytes, outstanding_after_free, outstanding_after_wait } = &self.stream_order;
        writeln!(out, "{} freed on a stream; still charged: {}", Bytes(*bytes), Bytes(*outstanding_after_free))?;
        writeln!(out, "once the stream has passed the free: {GOOD}{}{GOOD:#}", Bytes(*outstanding_after_wait))?;

        heading(out, "A real trace, through each stack")?;
        self.trace.show(out)?;

        heading(out, "A race, caught by the simulated device")?;
        self.race.show(out)?;

        heading(out, "What it came to")?;
        self.statistics.show(out)
    }
}

fn heading(out: &mut dyn Write, text: &str) -> Result<()> {
    writeln!(out, "\n{HEADING}── {text}{HEADING:#}")
}

impl Show for Totals {
    fn show(&self, out: &mut dyn Write) -> Result<()> {
        let Self { live_bytes, peak_bytes, blocks_ever, refused, tags } = self;
        let (live, peak) = (Bytes(*live_bytes), Bytes(*peak_bytes));
        writeln!(out, "{blocks_ever} blocks, {refused} refused, peak {peak}, live at the end {live}")?;
        for Tag { tag, peak_bytes, blocks_ever } in tags {
            writeln!(out, "  {tag:<16} peak {:>10}  {FAINT}{blocks_ever} blocks{FAINT:#}", Bytes(*peak_bytes))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bursar::device::DeviceContext;
    use bursar::memory::AllocTag;
    use bursar::memory::{DeviceBlock, Holder, Refused};
    use std::sync::Arc;

    #[test]
    fn d1_the_tour_leaves_a_lost_device_out() {
        let tour = tour(&devices::tests::with_a_lost_device()).expect("two devices are well");
        assert!(matches!(tour.devices.devices[1], devices::DeviceEntry::Unusable { ordinal: 1, .. }));
        assert_eq!((tour.threads.refused, tour.race.hazards_when_ordered), (0, 0));
    }

    /// Memory with a bug in it.
    #[derive(Debug)]
    struct Broken(Arc<DeviceContext>);

    impl Holder for Broken {
        fn context(&self) -> &Arc<DeviceContext> {
            &self.0
        }
        fn bytes_outstanding(&self) -> Bytes {
            Bytes::ZERO
        }
        fn released_total(&self) -> u64 {
            0
        }
        fn reap(&self) -> bursar::Result<Bytes> {
            Ok(Bytes::ZERO)
        }
        fn reap_blocking(&self, _: Duration) -> bursar::Result<Bytes> {
            Ok(Bytes::ZERO)
        }
        fn survey(&self, _: &mut bursar::error::Survey) {}
    }

    impl DeviceMemoryResource for Broken {
        fn granted_size(&self, bytes: u64, _: u64) -> bursar::Result<Bytes> {
            Ok(Bytes(bytes))
        }
        fn allocate(&self, _: u64, _: u64, _: Stream, _: AllocTag) -> bursar::Result<DeviceBlock> {
            panic!("a bug")
        }
        fn deallocate(&self, _: DeviceBlock, _: Stream) -> std::result::Result<(), Refused> {
            Ok(())
        }
        fn tracks_use(&self) -> bool {
            true
        }
    }

    #[derive(Debug)]
    struct Breaks;

    impl Build for Breaks {
        type Memory = Broken;
        fn build(&self, context: &Arc<DeviceContext>) -> bursar::Result<Broken> {
            Ok(Broken(context.clone()))
        }
    }

    #[test]
    #[should_panic(expected = "a bug")]
    fn a_thread_that_panics_is_no_success() {
        let gpu = Gpu::open(bursar::sim::Sim::immediate(), DeviceId(0), &Breaks).expect("it opens");
        let _counted = four_threads(&gpu, &Statistics::default());
    }
}
