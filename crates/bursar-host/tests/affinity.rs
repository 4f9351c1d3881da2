//! N8: the calling thread is kept near a device for as long as it asks to be.

mod rig;

use bursar_core::{DeviceContext, DeviceId, NumaNode};
use bursar_host::{Errno, HostError, IndexSet, Topology};
use bursar_sim::Sim;
use rig::{Call, Rig, Tree};
use std::sync::Arc;

fn set(text: &str) -> IndexSet {
    text.parse().expect("a list")
}

/// Two nodes with CPUs, and one without, which is nearer to the second.
fn three_nodes() -> Topology {
    let machine = Tree::with_cpus("0-7").node(0, "0-3", 64, "10").node(0, "0-3", 64, "10 21 30");
    machine.node(1, "4-7", 64, "21 10 15").node(2, "", 64, "30 15 10").node(0, "0-3", 64, "10 21 30").topology()
}

/// Creates a rig on three nodes whose calling thread may run on these CPUs.
fn rig_on(cpus: &str) -> Rig {
    let rig = Rig::on(three_nodes(), Sim::builder().seed(1));
    *rig.system.runs_on.lock().unwrap() = Some(set(cpus));
    rig
}

fn gpu_on(node: u32) -> Arc<DeviceContext> {
    DeviceContext::open(Sim::builder().seed(1).numa_node(node).build(), DeviceId(0)).expect("a device")
}

fn moves(rig: &Rig) -> Vec<IndexSet> {
    rig.system.ran_on.lock().unwrap().clone()
}

#[test]
fn n8_a_thread_goes_to_the_cpus_near_a_gpu_and_back() {
    for (node, near, cpus) in [(0, 0, "0-3"), (1, 1, "4-7"), (2, 1, "4-7")] {
        let rig = rig_on("0-7");
        let pin = rig.workers.pin_thread_near(&gpu_on(node)).expect("nobody refuses");
        assert_eq!((pin.node(), pin.cpus()), (NumaNode::new(near), &set(cpus)));
        assert_eq!(moves(&rig), [set(cpus)]);
        drop(pin);
        assert_eq!(moves(&rig), [set(cpus), set("0-7")], "let go");
    }
}

#[test]
fn n8_a_thread_that_may_run_on_some_cpus_of_a_node_stays_with_those() {
    let rig = rig_on("2,5-6");
    drop(rig.workers.pin_thread_near(&gpu_on(1)).expect("nobody refuses"));
    assert_eq!(moves(&rig), [set("5-6"), set("2,5-6")]);
    let rig = rig_on("2");
    drop(rig.workers.pin_thread_near(&gpu_on(1)).expect("nobody refuses"));
    assert_eq!(moves(&rig), [set("4-7"), set("2")], "one that may run on none of them is moved");
}

#[test]
fn n8_a_thread_that_is_to_stay_stays() {
    let rig = rig_on("0-7");
    rig.workers.pin_thread_to(NumaNode::new(1)).expect("nobody refuses").keep();
    assert_eq!(moves(&rig), [set("4-7")]);
}

#[test]
fn n8_where_no_node_is_known_the_thread_is_left_alone() {
    let rig = rig_on("0-7");
    for pin in [rig.workers.pin_thread_near(&rig.context), rig.workers.pin_thread_to(NumaNode::new(9))] {
        let pin = pin.expect("nothing to refuse");
        assert_eq!((pin.node(), pin.cpus().is_empty()), (NumaNode::UNKNOWN, true));
    }
    assert!(rig.system.calls.lock().unwrap().is_empty(), "the kernel was not even asked");
}

#[test]
fn n8_a_kernel_that_refuses_is_an_error_and_changes_nothing() {
    for call in [Call::RunOn, Call::RunsOn] {
        let rig = rig_on("0-7");
        rig.system.refuse(call, Errno(libc::EPERM));
        let refused = rig.workers.pin_thread_near(&gpu_on(0)).expect_err("refused");
        assert_eq!(refused, HostError::ThreadNotPinned { node: NumaNode::new(0), why: Errno(libc::EPERM) });
        assert!(refused.to_string().ends_with("Operation not permitted (os error 1)"), "{refused}");
        assert!(std::error::Error::source(&refused).is_some_and(|why| why.is::<Errno>()));
        assert!(moves(&rig).is_empty());
    }
}
