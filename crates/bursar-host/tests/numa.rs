//! N1, N4, N6, N7, N8 on a kernel with several NUMA nodes: the kernel itself says where pages and threads are.
//!
//! Ignored where the kernel shows one node; `cargo xtask numa` boots one with five, of which one is small, one has no memory and one no CPUs.
//! Where pages are is asked with a system call of this file's own, so that no mistake of the crate's judges itself.
#![allow(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a process of a test tells the other that it passed")]

use bursar_core::{Bytes, DeviceContext, DeviceId, NumaNode};
use bursar_host::{
    HostError, Machine, Node, NumaWorkerPool, PinnedBuffer, PinnedOptions, PinnedPool, System as _, Topology,
    current_node,
};
use bursar_sim::Sim;
use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// With this set to 1, a kernel that lacks what a trial needs is a failure, and its control groups are ours to change.
const REQUIRE_NODES: &str = "BURSAR_REQUIRE_NODES";
/// Set to a control group for the process that is to join it.
const INSIDE: &str = "BURSAR_HOST_TEST_INSIDE_GROUP";
/// The smallest node is filled to see what happens then, if it has no more than this.
const SMALL: Bytes = Bytes::gib(1);
/// An emulated machine takes longer than a real one.
const PATIENCE: Duration = Duration::from_secs(120);

type Needs = fn(&Topology) -> bool;
type Tested = fn(&Topology) -> Result<(), Box<dyn Error>>;

/// The trials, each with the machine that it needs.
const TRIALS: &[(&str, Needs, Tested)] = &[
    ("n4_every_page_lies_on_the_node_it_was_asked_for", has_nodes, on_every_node),
    ("n1_requests_for_gpus_of_every_node_at_once_stay_on_their_nodes", has_nodes, of_all_gpus_at_once),
    ("n6_a_node_without_cpus_is_served_from_the_nearest_that_has_some", has_bare_node, without_cpus),
    ("n6_a_node_without_memory_gets_that_of_the_nearest_with_cpus", has_empty_node, without_memory),
    ("n4_a_node_that_runs_out_gives_what_it_has_and_the_nearest_gives_the_rest", has_small_node, running_out),
    ("n6_a_process_that_may_use_one_node_is_served_there_and_refused_by_its_group", has_own_groups, in_group),
    ("n7_a_pool_near_a_gpu_has_memory_of_its_node_alone", has_nodes, pooled),
    ("n8_a_thread_pinned_near_a_gpu_stays_there_until_it_is_let_go", has_nodes, thread_near),
    ("n8_what_a_thread_near_a_gpu_touches_first_lies_there", has_nodes, touched_near),
];

fn is_required() -> bool {
    std::env::var(REQUIRE_NODES).is_ok_and(|value| value == "1")
}

fn main() {
    if let Some(group) = std::env::var_os(INSIDE) {
        return inside_group(Path::new(&group));
    }
    let arguments = Arguments::from_args();
    let is_required = is_required();
    let topology = Topology::here().expect("the files of this machine make sense");
    let trials = TRIALS.iter().map(|&(name, is_possible, test)| {
        let (possible, topology) = (is_possible(&topology), topology.clone());
        let run = move || match possible {
            true => test(&topology).map_err(|error| Failed::from(error.to_string())),
            false => Err(format!("{REQUIRE_NODES}=1, and this machine is {topology:?}").into()),
        };
        Trial::test(name, run).with_ignored_flag(!possible && !is_required)
    });
    // Each fills or watches the machine, so they take turns.
    let arguments = Arguments { test_threads: Some(1), ..arguments };
    libtest_mimic::run(&arguments, trials.collect()).exit();
}

fn has_memory(node: &&Node) -> bool {
    node.memory > Bytes::ZERO && node.memory_allowed
}

fn has_nodes(topology: &Topology) -> bool {
    topology.nodes().iter().filter(has_memory).count() > 1
}

fn has_bare_node(topology: &Topology) -> bool {
    has_nodes(topology) && topology.nodes().iter().filter(has_memory).any(|node| !node.has_cpus)
}

fn empty_node(topology: &Topology) -> Option<&Node> {
    topology.nodes().iter().find(|node| node.memory == Bytes::ZERO && !node.cpus.is_empty())
}

fn has_empty_node(topology: &Topology) -> bool {
    has_nodes(topology) && empty_node(topology).is_some()
}

fn small_node(topology: &Topology) -> Option<&Node> {
    topology.nodes().iter().filter(has_memory).min_by_key(|node| node.memory).filter(|node| node.memory <= SMALL)
}

fn has_small_node(topology: &Topology) -> bool {
    has_nodes(topology) && small_node(topology).is_some()
}

fn has_own_groups(topology: &Topology) -> bool {
    has_nodes(topology) && is_required()
}

/// Returns the number of pages of a buffer by the node they lie on.
fn pages(buffer: &PinnedBuffer) -> BTreeMap<i32, usize> {
    pages_at(buffer.as_ptr().addr(), buffer.len())
}

/// Returns the number of pages of some memory by the node they lie on.
fn pages_at(address: usize, bytes: usize) -> BTreeMap<i32, usize> {
    let page = Machine::page();
    let (first, last) = (address / page * page, address + bytes);
    let addresses: Vec<*mut c_void> = (first..last).step_by(page).map(std::ptr::without_provenance_mut).collect();
    let mut nodes = vec![c_int::MIN; addresses.len()];
    let targets = std::ptr::null::<c_int>();
    // SAFETY: both lists have the given length; without targets the kernel only looks.
    let asked = unsafe {
        libc::syscall(libc::SYS_move_pages, 0, addresses.len(), addresses.as_ptr(), targets, nodes.as_mut_ptr(), 0)
    };
    assert_eq!(asked, 0, "{}", std::io::Error::last_os_error());
    let mut counts = BTreeMap::new();
    nodes.into_iter().for_each(|node| *counts.entry(node).or_default() += 1);
    counts
}

/// Returns an error unless every page of a buffer lies on a node, and its placement says so.
fn check_on(buffer: &PinnedBuffer, node: u32, what: &str) -> Result<(), String> {
    let (pages, placement) = (pages(buffer), buffer.placement());
    if pages.keys().copied().eq([node.cast_signed()]) && placement.is_verified() {
        return Ok(());
    }
    Err(format!("{what} of {} bytes for node {node}: pages by node {pages:?}; {placement}", buffer.len()))
}

fn context_on(node: u32) -> Result<Arc<DeviceContext>, bursar_core::Error> {
    DeviceContext::open(Sim::builder().seed(1).numa_node(node).build(), DeviceId(0))
}

fn on_every_node(topology: &Topology) -> Result<(), Box<dyn Error>> {
    let workers = NumaWorkerPool::here()?;
    let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
    for node in topology.nodes().iter().filter(has_memory).map(|node| node.index) {
        for options in [PinnedOptions::default(), PinnedOptions::default().small_pages()] {
            for bytes in [1, 4097, 3 << 20, (40 << 20) + 123] {
                let options = options.clone().node(NumaNode::new(node)).patience(PATIENCE);
                let buffer = workers.pin_with(&context, bytes, &options).wait()?;
                check_on(&buffer, node, &format!("{options:?}"))?;
                assert!(buffer.placement().worker_pinned.is_done(), "{}", buffer.placement());
            }
        }
    }
    Ok(())
}

fn of_all_gpus_at_once(topology: &Topology) -> Result<(), Box<dyn Error>> {
    let workers = NumaWorkerPool::here()?;
    let mut requests = Vec::new();
    for node in topology.nodes().iter().filter(has_memory).map(|node| node.index) {
        let context = context_on(node)?;
        for _ in 0..4 {
            requests.push((node, workers.pin(&context, 17 << 20)));
        }
    }
    for (node, request) in requests {
        let buffer = request.wait()?;
        assert_eq!(buffer.placement().node, NumaNode::new(node));
        check_on(&buffer, node, "one of many")?;
    }
    Ok(())
}

fn without_cpus(topology: &Topology) -> Result<(), Box<dyn Error>> {
    let bare = topology.nodes().iter().filter(has_memory).find(|node| !node.has_cpus).ok_or("no such node")?;
    let nearest = topology.nodes().iter().filter(|node| node.has_cpus).min_by_key(|node| bare.distance_to(node.index));
    let nearest = nearest.ok_or("no node has CPUs")?;
    let workers = NumaWorkerPool::here()?;
    let context = context_on(bare.index)?;
    let pin = workers.pin_thread_near(&context)?;
    assert_eq!((pin.node(), current_node()), (NumaNode::new(nearest.index), NumaNode::new(nearest.index)));
    drop(pin);
    let buffer = workers.pin(&context, 24 << 20).wait()?;
    assert_eq!(buffer.placement().threads, nearest.cpus.len(), "as many threads as the nearest node has CPUs");
    check_on(&buffer, bare.index, "memory without CPUs")?;
    Ok(())
}

fn without_memory(topology: &Topology) -> Result<(), Box<dyn Error>> {
    let empty = empty_node(topology).ok_or("no such node")?;
    let others = topology.nodes().iter().filter(has_memory).filter(|node| node.has_cpus);
    let nearest = others.min_by_key(|node| empty.distance_to(node.index)).ok_or("no other node")?.index;
    let (workers, context) = (NumaWorkerPool::here()?, context_on(empty.index)?);
    let near = workers.pin_thread_near(&context)?;
    assert_eq!((near.node(), current_node()), (NumaNode::new(empty.index), NumaNode::new(empty.index)));
    drop(near);
    let buffer = workers.pin(&context, 20 << 20).wait()?;
    let placement = buffer.placement();
    assert_eq!((placement.node, placement.memory_node), (NumaNode::new(empty.index), NumaNode::new(nearest)));
    check_on(&buffer, nearest, "memory for a node that has none")?;
    Ok(())
}

fn running_out(topology: &Topology) -> Result<(), Box<dyn Error>> {
    let small = small_node(topology).ok_or("no such node")?;
    let others = topology.nodes().iter().filter(has_memory).filter(|node| node.index != small.index);
    let nearest = others.min_by_key(|node| small.distance_to(node.index)).ok_or("no other node")?.index;
    let bytes = small.memory.get() as usize + (128 << 20);
    let workers = NumaWorkerPool::here()?;
    for options in [PinnedOptions::default(), PinnedOptions::default().small_pages()] {
        let options = options.patience(PATIENCE);
        let buffer = workers.pin_with(&context_on(small.index)?, bytes, &options).wait()?;
        let (pages, placement) = (pages(&buffer), buffer.placement());
        let on = |node: u32| pages.get(&node.cast_signed()).copied().unwrap_or(0) * Machine::page();
        assert_eq!(on(small.index) + on(nearest), bytes.next_multiple_of(Machine::page()), "{pages:?}; {placement}");
        assert!(on(small.index) > small.memory.get() as usize / 2, "the node gave what it had: {pages:?}; {placement}");
        assert!(!placement.is_verified() && placement.pages_on_node > 0, "{placement}");
        let rest = placement.pages_asked - placement.pages_on_node;
        assert_eq!(placement.pages_elsewhere, [(NumaNode::new(nearest), rest)], "the report names the other node");
        assert!(placement.to_string().ends_with(&format!(", {rest} on node {nearest}")), "{placement}");
        drop(buffer);
    }
    let again = workers.pin(&context_on(small.index)?, 32 << 20).wait()?;
    check_on(&again, small.index, "after the node was given back its memory")?;
    Ok(())
}

/// The node and the memory that the process in the control group may use.
const ALLOWED_NODE: u32 = 1;
const ALLOWED_BYTES: usize = 256 << 20;

/// Restricts another process to one node and some memory, as a container does.
fn in_group(topology: &Topology) -> Result<(), Box<dyn Error>> {
    let cpus = topology.node(ALLOWED_NODE).ok_or("no such node")?.cpus.to_string();
    let root = Path::new("/sys/fs/cgroup");
    let group = root.join("bursar-numa");
    std::fs::write(root.join("cgroup.subtree_control"), "+cpuset +memory")?;
    std::fs::create_dir(&group)?;
    let (mems, bytes) = (ALLOWED_NODE.to_string(), ALLOWED_BYTES.to_string());
    for (file, value) in [("cpuset.mems", mems), ("cpuset.cpus", cpus), ("memory.max", bytes)] {
        std::fs::write(group.join(file), value)?;
    }
    let ran = Command::new(std::env::current_exe()?).env(INSIDE, &group).output()?;
    std::fs::remove_dir(&group)?;
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    if ran.status.success() && said.trim() == "passed" { Ok(()) } else { Err(said.into()) }
}

/// Runs in a process of its own, which joins the group before it reads anything.
fn inside_group(group: &Path) {
    std::fs::write(group.join("cgroup.procs"), std::process::id().to_string()).expect("the group takes this process");
    let workers = NumaWorkerPool::here().expect("the files of this machine make sense");
    let topology = workers.topology();
    let usable: Vec<u32> = topology.nodes().iter().filter(has_memory).map(|node| node.index).collect();
    assert_eq!(usable, [ALLOWED_NODE], "{topology:?}");
    let allowed = topology.node(ALLOWED_NODE).expect("a node");
    assert_eq!(topology.cpus(), &allowed.cpus, "{topology:?}");
    for node in topology.nodes().iter().map(|node| node.index) {
        let context = context_on(node).expect("a device");
        let buffer = workers.pin(&context, 20 << 20).wait().expect("room");
        let placement = buffer.placement();
        assert_eq!((placement.node, placement.memory_node), (NumaNode::new(node), NumaNode::new(ALLOWED_NODE)));
        assert!(placement.worker_pinned.is_done() && placement.bound.is_done(), "{placement}");
        check_on(&buffer, ALLOWED_NODE, "what the process may use").expect("on the only node there is for it");
        let near = workers.pin_thread_near(&context).expect("nobody refuses");
        assert_eq!((near.node(), current_node()), (NumaNode::new(ALLOWED_NODE), NumaNode::new(ALLOWED_NODE)));
    }
    let context = context_on(ALLOWED_NODE).expect("a device");
    let refused = workers.pin(&context, ALLOWED_BYTES + 1).wait().expect_err("the group has less");
    assert!(
        matches!(&refused, HostError::ControlGroup { group: named, limit, .. }
            if named == group && limit.get() == ALLOWED_BYTES as u64),
        "{refused}"
    );
    println!("passed");
}

fn pooled(topology: &Topology) -> Result<(), Box<dyn Error>> {
    let workers = NumaWorkerPool::here()?;
    for node in topology.nodes().iter().filter(has_memory).map(|node| node.index) {
        let context = context_on(node)?;
        let pool = PinnedPool::new(&workers, &context, PinnedOptions::default());
        let stream = context.create_stream(0)?;
        for round in 0..3 {
            for bytes in [64, 5000, 1 << 20, 6 << 20] {
                let mut buffer = pool.get(bytes)?;
                buffer.fill(round);
                check_on(&buffer, node, "a piece")?;
                if round == 1 {
                    pool.release_on(buffer, &context, stream)?;
                }
            }
        }
    }
    Ok(())
}

fn thread_near(topology: &Topology) -> Result<(), Box<dyn Error>> {
    let (workers, machine) = (NumaWorkerPool::here()?, Machine::default());
    let before = machine.runs_on()?;
    for node in topology.nodes().iter().filter(|node| !node.cpus.is_empty()) {
        let pin = workers.pin_thread_near(&context_on(node.index)?)?;
        assert_eq!(pin.node(), NumaNode::new(node.index));
        for _ in 0..100 {
            assert_eq!(current_node(), NumaNode::new(node.index));
            std::thread::yield_now();
        }
        let inherited = std::thread::spawn(current_node).join().map_err(|_| "a panic")?;
        assert_eq!(inherited, NumaNode::new(node.index));
        drop(pin);
        assert_eq!(machine.runs_on()?, before);
    }
    Ok(())
}

fn touched_near(topology: &Topology) -> Result<(), Box<dyn Error>> {
    let (workers, machine) = (NumaWorkerPool::here()?, Machine::default());
    for node in topology.nodes().iter().filter(has_memory).filter(|node| !node.cpus.is_empty()) {
        let near = workers.pin_thread_near(&context_on(node.index)?)?;
        let region = machine.reserve(8 << 20)?;
        machine.populate(&region, 0..region.len())?;
        let pages = pages_at(region.address(), region.len());
        assert!(pages.keys().copied().eq([node.index.cast_signed()]), "node {}: {pages:?}", node.index);
        drop(near);
    }
    Ok(())
}
