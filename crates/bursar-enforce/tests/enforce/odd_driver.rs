//! A driver of another make: other versions, missing functions, memory in pages, graphs that allocate.

use crate::scene::{Scene, program, runs};
use bursar_core::Bytes;
use std::fs;

#[test]
fn e4_a_driver_of_another_version_passes_through_where_it_is_not_known() {
    let scene = Scene::new();
    let script = scene.folder.join("versions");
    fs::write(&script, "ODD_1 { global: *; };").expect("a file");
    let script = format!("-Wl,--version-script={}", script.display());
    let driver = program("odd_driver.c", &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", &script]);
    let share = scene.share(Bytes::mib(64));
    let uuid: String = scene.ledger.subject().uuid.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut command = scene.command(&program("odd.c", &[]), &share);
    runs(command.arg(driver).env("ODD_UUID", uuid));
    scene.assert_returned(&share);
}
