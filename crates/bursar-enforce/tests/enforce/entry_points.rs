//! Every entry point by which memory can be taken, in every way that programs reach it.

use crate::scene::{Scene, program, runs};
use bursar_core::Bytes;

/// The ways that programs find the driver's functions; the program in C knows them by name.
const WAYS: [&str; 9] =
    ["local", "deep", "path", "global", "versioned", "twice", "address", "address1", "address-per-thread"];

#[test]
fn e1_every_entry_point_is_charged_exactly_and_refused_at_the_byte() {
    let scene = Scene::new();
    let program = program("entry_points.c", &[]);
    for way in WAYS {
        let share = scene.share(Bytes::mib(64));
        let output = runs(scene.command(&program, &share).arg(way));
        let explained = String::from_utf8_lossy(&output.stderr);
        assert_eq!(explained.matches("bursar: refused").count(), 1, "{way}: {explained}");
        scene.assert_returned(&share);
    }
}
