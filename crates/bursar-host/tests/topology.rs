//! N1, N6: machines of every kind, as their files describe them.

mod rig;

use bursar_core::{Bytes, NumaNode, PciAddress};
use bursar_host::{HostError, IndexSet, Topology};
use rig::Tree;

fn set(text: &str) -> IndexSet {
    text.parse().expect("a list")
}

fn pci(bus: u8) -> PciAddress {
    PciAddress { domain: 0, bus, device: 0 }
}

/// Two sockets of eight cores with two threads each, two GPUs on the first and one on the second.
fn two_sockets() -> Tree {
    Tree::with_cpus("0-31")
        .node(0, "0-7,16-23", 256, "10")
        .node(0, "0-7,16-23", 256, "10 21")
        .node(1, "8-15,24-31", 256, "21 10")
        .siblings(0..16, 16)
        .gpu("0000:17:00.0", 0)
        .gpu("0000:65:00.0", 0)
        .gpu("0000:ca:00.0", 1)
}

#[test]
fn n6_one_node() {
    let machine = Tree::with_cpus("0-3")
        .node(0, "0-3", 64, "10")
        .write("sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "512")
        .write("sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", "500")
        .gpu("0000:00:05.0", -1)
        .topology();
    assert_eq!(machine.nodes().len(), 1);
    let node = machine.node(0).expect("a node");
    assert_eq!((node.memory, node.cpus.clone()), (Bytes::gib(64), set("0-3")));
    assert_eq!((node.huge_pages[0].size, node.huge_pages[0].total, node.huge_pages[0].free), (Bytes::mib(2), 512, 500));
    let gpu = PciAddress { domain: 0, bus: 0, device: 5 };
    assert_eq!(machine.node_of(gpu), NumaNode::UNKNOWN, "a node that nobody reports is not guessed");
    assert_eq!(machine.cpus_of_gpu(gpu), set("0-3"));
}

#[test]
fn n1_two_gpus_of_a_socket_share_its_cores_whole() {
    let machine = two_sockets().topology();
    assert_eq!(machine.node_of(pci(0x65)), NumaNode::new(0));
    assert_eq!(machine.cpus_of_gpu(pci(0x17)), set("0-3,16-19"));
    assert_eq!(machine.cpus_of_gpu(pci(0x65)), set("4-7,20-23"));
    assert_eq!(machine.cpus_of_gpu(pci(0xca)), set("8-15,24-31"), "alone on its socket");
    assert_eq!(machine.node(0).map(|node| node.distance_to(1)), Some(21));
}

#[test]
fn n6_a_restricted_cpuset_leaves_only_what_is_allowed() {
    // Half of the first socket, and one sibling of a core of the second.
    let restricted = two_sockets().allowed("4-7,20-23,9").topology();
    assert_eq!(restricted.cpus(), &set("4-7,9,20-23"));
    assert_eq!(restricted.cpus_of_gpu(pci(0x17)), set("4-5,20-21"));
    assert_eq!(restricted.cpus_of_gpu(pci(0xca)), set("9"));
    let given = two_sockets().topology().restricted_to(&set("4-7,20-23,9"));
    assert_eq!(given, restricted, "whichever way it is said");
}

#[test]
fn n6_a_socket_that_may_not_be_used_is_served_from_the_nearest() {
    let machine = two_sockets().allowed_with_memory_of("0-7", "0").topology();
    assert_eq!(machine.cpus_near(1).map(|node| node.index), Some(0));
    assert_eq!(machine.memory_near(1).map(|node| node.index), Some(0), "its memory may not be used either");
    assert_eq!(machine.cpus_of_gpu(pci(0xca)), set("5-7"), "shared with those who are there");
    assert_eq!(machine.cpus_of_gpu(pci(0x17)), set("0-1"));
}

#[test]
fn n6_four_nodes_of_sub_numa_clustering() {
    let machine = (0..4)
        .fold(Tree::with_cpus("0-31").siblings(0..16, 16), |tree, node| {
            let (first, distances) = (node * 4, ["10 12 21 21", "12 10 21 21", "21 21 10 12", "21 21 12 10"]);
            let online = "10 ".repeat(node as usize + 1);
            let cpus = format!("{first}-{},{}-{}", first + 3, first + 16, first + 19);
            let tree = tree.node(node, &cpus, 128, &online);
            tree.write(&format!("sys/devices/system/node/node{node}/distance"), distances[node as usize])
        })
        .gpu("0000:17:00.0", 1)
        .gpu("0000:65:00.0", 1)
        .gpu("0000:ca:00.0", 3)
        .topology();
    assert_eq!(machine.cpus_of_gpu(pci(0x17)), set("4-5,20-21"));
    assert_eq!(machine.cpus_of_gpu(pci(0x65)), set("6-7,22-23"));
    let lost = machine.clone().restricted_to(&set("0-3,8-15"));
    assert_eq!(lost.cpus_near(1).map(|node| node.index), Some(0), "the other half of the socket is nearer");
}

/// A Grace-Hopper: one node with the CPUs, and GPU memory as nodes without any, most of them empty.
fn grace_hopper() -> Tree {
    let tree = Tree::with_cpus("0-71").node(0, "0-71", 480, "10").node(1, "", 96, "10 80");
    let tree = (2..9).fold(tree, |tree, node| tree.node(node, "", 0, &"80 ".repeat(node as usize + 1)));
    let row = |here: usize| -> Vec<&str> { (0..9).map(|to| if to == here { "10" } else { "80" }).collect() };
    (0..9)
        .fold(tree, |tree, node| {
            tree.write(&format!("sys/devices/system/node/node{node}/distance"), &row(node).join(" "))
        })
        .gpu("0009:01:00.0", 0)
}

#[test]
fn n6_a_grace_hopper_has_nodes_without_cpus_and_without_memory() {
    let machine = grace_hopper().topology();
    let gpu = PciAddress { domain: 9, bus: 1, device: 0 };
    assert_eq!(machine.nodes().len(), 9);
    assert_eq!(machine.cpus_of_gpu(gpu), set("0-71"));
    assert_eq!(machine.cpus_near(1).map(|node| node.index), Some(0), "a node without CPUs is served from the CPUs");
    assert_eq!(machine.memory_near(1).map(|node| node.index), Some(1), "asked for by name, GPU memory is memory");
    assert_eq!(machine.memory_near(5).map(|node| node.index), Some(0), "but nobody is sent there");
}

#[test]
fn n6_cxl_memory_is_a_node_without_cpus_and_never_a_substitute() {
    let machine = Tree::with_cpus("0-15")
        .node(0, "0-7", 0, "10")
        .node(1, "8-15", 256, "21 10")
        .node(2, "", 512, "14 24 10")
        .write("sys/devices/system/node/node0/distance", "10 21 14")
        .write("sys/devices/system/node/node1/distance", "21 10 24")
        .topology();
    assert_eq!(machine.memory_near(0).map(|node| node.index), Some(1), "further than the CXL memory, and faster");
    assert_eq!(machine.memory_near(2).map(|node| node.index), Some(2));
    assert_eq!(machine.cpus_near(2).map(|node| node.index), Some(0));
}

#[test]
fn n6_only_memory_without_cpus_is_better_than_none() {
    let machine = Tree::with_cpus("0-3").node(0, "0-3", 0, "10").node(4, "", 8, "17 10");
    let machine = machine.write("sys/devices/system/node/node0/distance", "10 17").topology();
    assert_eq!(machine.memory_near(0).map(|node| node.index), Some(4));
}

#[test]
fn n6_holes_in_the_numbering_are_legal() {
    let machine = Tree::with_cpus("0-3,8-11")
        .node(0, "0-3", 128, "10")
        .node(8, "8-11", 128, "40 10")
        .write("sys/devices/system/node/node0/distance", "10 40")
        .gpu("0004:04:00.0", 8)
        .topology();
    assert_eq!(machine.nodes().iter().map(|node| node.index).collect::<Vec<_>>(), [0, 8]);
    assert_eq!(machine.node(0).map(|node| node.distance_to(8)), Some(40));
    let gpu = PciAddress { domain: 4, bus: 4, device: 0 };
    assert_eq!(machine.cpus_of_gpu(gpu), set("8-11"));
}

#[test]
fn n6_offline_cpus_are_nobodys() {
    // Eight CPUs, of which two are offline; their siblings are alone then.
    let machine = Tree::with_cpus("0-1,3-6").node(0, "0-7", 16, "10").siblings(0..4, 4).gpu("0000:01:00.0", 0);
    let machine = machine.topology();
    assert_eq!(machine.node(0).map(|node| node.cpus.clone()), Some(set("0-1,3-6")));
    assert_eq!(machine.cores(), [set("0,4"), set("1,5"), set("3"), set("6")]);
    assert_eq!(machine.cpus_of_gpu(pci(1)), set("0-1,3-6"));
}

#[test]
fn n6_one_cpu_serves_every_gpu() {
    let machine = Tree::with_cpus("0").node(0, "0", 1, "10").gpu("0000:01:00.0", 0).gpu("0000:02:00.0", 0).topology();
    assert_eq!(machine.cpus_of_gpu(pci(1)), set("0"));
    assert_eq!(machine.cpus_of_gpu(pci(2)), set("0"));
}

#[test]
fn n6_a_kernel_without_numa_has_no_nodes() {
    let machine = Tree::with_cpus("0-3").topology();
    assert!(machine.nodes().is_empty());
    assert_eq!(machine.cpus(), &set("0-3"));
    assert_eq!(machine.cpus_near(0), None);
    assert_eq!(machine.memory_near(0), None);
}

#[test]
fn n6_files_that_make_no_sense_are_named() {
    let broken = [
        ("sys/devices/system/node/node0/cpulist", "0-"),
        ("sys/devices/system/node/node0/distance", "10 20"),
        ("sys/devices/system/node/node0/distance", "far"),
        ("sys/devices/system/node/node0/meminfo", "nothing"),
        ("sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "some"),
        ("sys/devices/system/node/online", "x"),
        ("sys/devices/system/cpu/online", "0-99999999999"),
        ("proc/self/status", "Cpus_allowed_list:\tall"),
    ];
    for (path, text) in broken {
        let tree = Tree::with_cpus("0-3").node(0, "0-3", 64, "10").write(path, text);
        match tree.read() {
            Err(HostError::Topology { path: named, .. }) => assert_eq!(named, tree.path().join(path)),
            other => panic!("{path}: {other:?}"),
        }
    }
}

#[test]
fn n6_other_functions_and_other_devices_are_no_gpus() {
    let machine = two_sockets()
        .write("sys/bus/pci/devices/0000:17:00.1/vendor", "0x10de")
        .write("sys/bus/pci/devices/0000:17:00.1/class", "0x040300")
        .write("sys/bus/pci/devices/0000:01:00.0/vendor", "0x8086")
        .write("sys/bus/pci/devices/0000:01:00.0/class", "0x030000")
        .write("sys/bus/pci/devices/strange/class", "0x030000")
        .topology();
    assert_eq!(machine.gpus().len(), 3);
}

#[test]
fn n6_this_machine_can_be_read() {
    let here = Topology::here().expect("the kernel makes sense");
    assert!(!here.cpus().is_empty());
    assert!(here.nodes().iter().all(|node| node.cpus.is_within(here.cpus())));
}
