//! N2, N4, N7 over every driver: the simulated one always, CUDA where there is a device, ignored where there is none.

use bursar_core::{
    Build, Bytes, DeviceContext, DeviceId, DeviceMemoryResource, Driver, NumaNode, Stack, TrackedBlock, leaf, tag,
};
use bursar_cuda::Cuda;
use bursar_host::{Machine, NumaWorkerPool, PinnedKind, PinnedOptions, PinnedPool, StepOutcome, System, pages_on_node};
use bursar_sim::Sim;
use libtest_mimic::{Arguments, Failed, Trial};
use std::sync::Arc;

/// With this set to 1, the absence of a device is a failure.
const REQUIRE_CUDA: &str = "BURSAR_REQUIRE_CUDA";

type Tested = fn(Arc<dyn Driver>) -> Result<(), Box<dyn std::error::Error>>;

const TRIALS: &[(&str, Tested)] = &[
    ("n2_pinned_memory_is_written_copied_and_given_back", round_trip),
    ("n4_the_kernel_says_where_registered_pages_are", placed),
    ("n7_a_pool_hands_out_what_came_back_from_a_copy", pooled),
];

const KINDS: [PinnedKind; 3] = [PinnedKind::Registered, PinnedKind::DriverAllocated, PinnedKind::WriteCombined];

fn main() {
    let arguments = Arguments::from_args();
    let cuda = Cuda::load().ok().filter(|cuda| cuda.device_count() > 0);
    let is_required = std::env::var(REQUIRE_CUDA).is_ok_and(|value| value == "1");
    let mut trials = Vec::new();
    for &(name, test) in TRIALS {
        trials.push(Trial::test(format!("{name}::sim"), move || ran(test, Sim::seeded(1))));
        let driver = cuda.clone();
        let is_absent = driver.is_none() && !is_required;
        let trial = Trial::test(format!("{name}::cuda"), move || match driver {
            Some(driver) => ran(test, driver),
            None => Err(format!("{REQUIRE_CUDA}=1, and there is no device").into()),
        });
        trials.push(trial.with_ignored_flag(is_absent));
    }
    // A kernel without NUMA, or a container without permission, does not report where pages are.
    let can_say = pages_on_node(&Machine::default(), &[1; 64], NumaNode::UNKNOWN).is_ok();
    let verified = Trial::test("n4_this_machines_node_is_where_its_pages_are", || Ok(on_this_node()?));
    trials.push(verified.with_ignored_flag(!can_say));
    libtest_mimic::run(&arguments, trials).exit();
}

fn ran(test: Tested, driver: Arc<dyn Driver>) -> Result<(), Failed> {
    test(driver).map_err(|error| error.to_string().into())
}

fn round_trip(driver: Arc<dyn Driver>) -> Result<(), Box<dyn std::error::Error>> {
    let context = DeviceContext::open(driver, DeviceId(0))?;
    let (machine, bytes) = (Machine::default(), (5 << 20) + 123);
    let workers = NumaWorkerPool::new(bursar_host::Topology::here()?, Arc::new(machine.clone()));
    let memory = Stack::new().over(leaf::Direct).build(&context)?;
    let stream = context.create_stream(0)?;
    for kind in KINDS {
        let block = memory.allocate(bytes as u64, 256, stream, tag!("round trip"))?;
        let mut block = TrackedBlock::new(&memory, block);
        let pin = || workers.pin_with(&context, bytes, &PinnedOptions::default().kind(kind)).wait();
        let (mut from, to) = (pin()?, pin()?);
        from.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
        let upload = block.copy_from_host_async(&context, 0, from, stream)?;
        let download = block.copy_to_host_async(&context, 0, to, stream)?;
        let (to, from) = (download.wait()?, upload.wait()?);
        assert!(to[..] == from[..], "{kind:?}");
        let address = to.device_ptr(&context)?;
        assert!(address.0 != 0 && to.device_ptr(&context)? == address, "{kind:?}: one address for its life");
        block.free(&memory, stream)?;
    }
    assert_eq!(machine.mapped(), 0);
    Ok(())
}

fn placed(driver: Arc<dyn Driver>) -> Result<(), Box<dyn std::error::Error>> {
    let context = DeviceContext::open(driver, DeviceId(0))?;
    let workers = NumaWorkerPool::here()?;
    let buffer = workers.pin(&context, 40 << 20).wait()?;
    let placement = buffer.placement();
    assert_eq!(placement.node, workers.node_of(&context));
    if placement.verified.is_done() && placement.node != NumaNode::UNKNOWN {
        assert!(placement.is_verified(), "{placement}");
    }
    assert!(placement.pages_asked == 2048 || placement.verified.has_failed(), "{placement}");
    assert!(buffer.iter().step_by(4096).all(|byte| *byte == 0));
    Ok(())
}

fn pooled(driver: Arc<dyn Driver>) -> Result<(), Box<dyn std::error::Error>> {
    let context = DeviceContext::open(driver, DeviceId(0))?;
    let workers = NumaWorkerPool::here()?;
    let pool = PinnedPool::new(&workers, &context, PinnedOptions::default());
    let memory = Stack::new().over(leaf::Direct).build(&context)?;
    let stream = context.create_stream(0)?;
    let block = memory.allocate(3 << 20, 256, stream, tag!("pooled"))?;
    let mut block = TrackedBlock::new(&memory, block);
    for round in 0..20u8 {
        let mut buffer = pool.get(3 << 20)?;
        buffer.fill(round);
        let copy = block.copy_from_host_async(&context, 0, buffer, stream)?;
        if round % 2 == 0 {
            let buffer = copy.wait()?;
            let released = pool.release_on(buffer, &context, stream);
            released.map_err(|refused| refused.error)?;
        }
    }
    context.synchronize(stream)?;
    let last = block.copy_to_host_async(&context, 0, pool.get(3 << 20)?, stream)?.wait()?;
    assert!(last.iter().all(|byte| *byte == 19));
    drop(last);
    assert_eq!(pool.counts().held, Bytes::mib(3), "one buffer did for all");
    block.free(&memory, stream)?;
    assert_eq!(pool.trim(Bytes::ZERO), Bytes::mib(3));
    pool.flush();
    Ok(())
}

fn on_this_node() -> Result<(), String> {
    let workers = NumaWorkerPool::here().map_err(|error| error.to_string())?;
    let nodes = workers.topology().nodes();
    let node = nodes.iter().find(|node| node.memory > Bytes::ZERO && node.memory_allowed && !node.cpus.is_empty());
    let node = node.ok_or("the kernel shows no node with CPUs and memory")?.index;
    let context = DeviceContext::open(Sim::immediate(), DeviceId(0)).map_err(|error| error.to_string())?;
    let options = PinnedOptions::default().node(NumaNode::new(node));
    let buffer = workers.pin_with(&context, 6 << 20, &options).wait().map_err(|error| error.to_string())?;
    let placement = buffer.placement();
    assert_eq!((placement.worker_pinned, placement.bound), (StepOutcome::Done, StepOutcome::Done), "{placement}");
    assert!(placement.is_verified() && placement.pages_asked == 1536, "{placement}");
    let _: &dyn System = &Machine::default();
    Ok(())
}
