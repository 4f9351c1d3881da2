//! Memory whose bytes are in a file: two simulators see each other's writes, and the memory counts for its owner alone.
#![allow(unsafe_code)]

mod rig;

use bursar_core::{Bytes, DeviceId, Driver};
use bursar_sim::Sim;
use rig::{PAGE, Rig};
use std::fs::{File, OpenOptions};

const DEVICE: DeviceId = DeviceId(0);

fn file(name: &str, bytes: u64) -> (File, File) {
    let path = std::env::temp_dir().join(format!("bursar-sim-share-{name}-{}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).expect("a file");
    std::fs::remove_file(&path).expect("made above");
    file.set_len(bytes).expect("room");
    let again = file.try_clone().expect("the same file");
    (file, again)
}

fn held(sim: &Sim) -> u64 {
    let memory = sim.memory(DEVICE).expect("a device");
    (memory.total - memory.free).get()
}

#[test]
fn imported_pages_have_the_bytes_of_their_owner_and_count_there() {
    let (one, other) = (Rig::seeded(1), Rig::of(Sim::immediate()));
    let (here, there) = file("pages", PAGE);
    let owned = one.sim.pages_create_in_file(DEVICE, PAGE, here).expect("room");
    let imported = other.sim.pages_import(DEVICE, PAGE, there).expect("pages");
    assert_eq!((held(&one.sim), held(&other.sim)), (PAGE, 0));
    let (a, b) = (one.reserve(PAGE), other.reserve(PAGE));
    one.map(a, PAGE, owned);
    one.allow(a, PAGE);
    other.map(b, PAGE, imported);
    other.allow(b, PAGE);
    let stream = one.stream();
    one.fill(stream, a.offset(100), 7, 70_000);
    one.sync(stream);
    assert_eq!(other.peek(b.offset(99), 3)[1..], [7, 7]);
    assert_eq!(other.peek(b.offset(70_098), 4), [7, 7, 0, 0]);
    other.sim.poke(b.offset(5), &[1, 2, 3]);
    assert_eq!(one.peek(a.offset(5), 3), [1, 2, 3]);
    one.sim.assert_clean();
}

#[test]
fn an_allocation_that_is_shared_keeps_its_bytes_until_it_is_freed() {
    for sim in [Sim::seeded(3), Sim::immediate()] {
        let before = sim.allocate(DEVICE, 512).expect("room");
        let ptr = sim.allocate(DEVICE, 3 << 20).expect("room");
        let (here, there) = file("allocation", 3 << 20);
        sim.poke(ptr.offset(2 << 20), &[1, 2, 3]);
        sim.poke(before.offset(510), &[9, 9]);
        sim.share_allocation(DEVICE, ptr, 3 << 20, here).expect("a live allocation");
        assert_eq!(sim.peek(ptr.offset(2 << 20), 3), [1, 2, 3]);
        assert_eq!(sim.peek(before.offset(510), 2), [9, 9], "its neighbour is not shared");
        let other = Sim::immediate();
        let pages = other.pages_import(DEVICE, Bytes::mib(2).get(), there).expect("pages");
        let rig = Rig::of(other);
        let base = rig.reserve(PAGE);
        rig.map(base, PAGE, pages);
        rig.allow(base, PAGE);
        rig.sim.poke(base.offset(7), &[42]);
        assert_eq!(sim.peek(ptr.offset(7), 1), [42]);
        let refused = sim.share_allocation(DEVICE, ptr.offset(1), 3 << 20, file("refused", 1).0);
        assert!(refused.is_err(), "beyond the allocation");
        // SAFETY: allocated above, and nothing uses it.
        unsafe { sim.free(DEVICE, ptr) }.expect("a live allocation");
        let again = sim.allocate(DEVICE, 3 << 20).expect("room");
        assert_ne!(sim.peek(again.offset(7), 1), [42], "another allocation has bytes of its own");
    }
}
