//! Devices that cannot be shared are an error, never a guess.
#![allow(unsafe_code)]

use crate::others::{Folder, GPU, Other, Role, TOTAL, free};
use bursar_core::{Bytes, Driver, DriverError};
use bursar_sim::Sim;
use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

pub(crate) const TRIALS: &[(&str, fn())] = &[
    ("l5_devices_without_a_name_need_no_folder", devices_without_a_name_need_no_folder),
    ("l5_other_names_are_other_devices", other_names_are_other_devices),
    ("l5_devices_of_one_name_are_counted_one_by_one", devices_of_one_name_are_counted_one_by_one),
    ("l7_a_folder_that_cannot_be_had_is_named", a_folder_that_cannot_be_had_is_named),
    ("l7_a_folder_that_others_can_write_to_is_refused", a_folder_that_others_can_write_to_is_refused),
    ("l7_a_folder_removed_while_in_use_is_noticed", a_folder_removed_while_in_use_is_noticed),
];

fn refused(sim: &Sim) -> DriverError {
    sim.allocate(GPU, 4096).expect_err("the folder cannot be used")
}

fn devices_without_a_name_need_no_folder() {
    let folder = Folder::new();
    let missing = folder.0.join("not/there");
    let mut unnamed = Other::start(Role::Unnamed(4096), &missing);
    assert_eq!(unnamed.says(), "4096");
    let mut named = Other::start(Role::Hold(4096), &missing);
    let said = named.says();
    assert!(said.contains("not/there"), "{said}");
}

fn other_names_are_other_devices() {
    let folder = Folder::new();
    let [one, two] =
        ["one", "../one"].map(|name| Sim::builder().immediate().device(TOTAL).named(name).shared_in(&folder.0).build());
    one.allocate(GPU, TOTAL.get()).expect("all of it");
    two.allocate(GPU, TOTAL.get()).expect("all of the other");
    assert_eq!((free(&one), free(&two)), (Bytes::ZERO, Bytes::ZERO));
}

fn devices_of_one_name_are_counted_one_by_one() {
    let folder = Folder::new();
    let builder = Sim::builder().immediate().named("several").shared_in(&folder.0);
    let few = builder.clone().devices(1, TOTAL).build();
    let many = builder.devices(3, TOTAL).build();
    few.allocate(GPU, 1 << 20).expect("room");
    many.allocate(bursar_core::DeviceId(2), 2 << 20).expect("room");
    let free = |device| many.memory(bursar_core::DeviceId(device)).expect("works").free;
    assert_eq!([0, 1, 2].map(free), [Bytes::mib(63), TOTAL, Bytes::mib(62)]);
    assert_eq!(few.memory(GPU).expect("works").free, Bytes::mib(63));
}

fn a_folder_that_cannot_be_had_is_named() {
    let folder = Folder::new();
    std::fs::write(folder.0.join("sim-shared"), "in the way").expect("a file");
    let sim = folder.sim();
    let error = refused(&sim).to_string();
    assert!(error.contains("sim-shared") && error.contains("BURSAR_LEDGER_DIR"), "{error}");
    std::fs::remove_file(folder.0.join("sim-shared")).expect("ours");
    sim.allocate(GPU, 4096).expect("nothing is remembered");
}

fn a_folder_that_others_can_write_to_is_refused() {
    let folder = Folder::new();
    let path = folder.0.join("sim-shared");
    DirBuilder::new().mode(0o700).create(&path).expect("a folder");
    std::fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("ours");
    let error = refused(&folder.sim()).to_string();
    assert!(error.contains("nobody else can write"), "{error}");
}

fn a_folder_removed_while_in_use_is_noticed() {
    let folder = Folder::new();
    let sim = folder.sim();
    let ptr = sim.allocate(GPU, 4096).expect("room");
    std::fs::remove_dir_all(folder.0.join("sim-shared")).expect("ours");
    let error = refused(&sim).to_string();
    assert!(error.contains("was removed"), "{error}");
    assert!(sim.memory(GPU).is_err());
    // SAFETY: an allocation of this device, freed once.
    unsafe { sim.free(GPU, ptr) }.expect("what is held can be given back");
}
