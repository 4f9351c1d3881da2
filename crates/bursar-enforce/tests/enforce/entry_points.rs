//! Every entry point by which memory can be taken, in every way that programs reach it.

use crate::scene::{Scene, library, program, runs};
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

/// `BURSAR_ENFORCE_SEEDS=1000` runs so many programs, and `BURSAR_ENFORCE_SEED=7` one of them.
#[test]
fn e1_random_programs_are_charged_at_every_step_for_what_they_were_given() {
    let scene = Scene::new();
    let program = program("random.c", &[]);
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("BURSAR_ENFORCE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BURSAR_ENFORCE_SEEDS").unwrap_or(24),
    };
    for seed in seeds {
        let share = scene.share(Bytes::mib([48, 96, 160, 512][seed as usize % 4]));
        let way = WAYS[seed as usize % WAYS.len()];
        runs(scene.command(&program, &share).args([way, &seed.to_string(), "400"]));
        scene.assert_returned(&share);
    }
}

#[test]
fn e4_programs_and_libraries_that_are_linked_with_the_driver_are_kept_inside() {
    let scene = Scene::new();
    let driver = library("bursar_libcuda");
    let folder = driver.parent().expect("a folder").to_str().expect("a plain name").to_owned();
    let link = [format!("-L{folder}"), "-l:libbursar_libcuda.so".to_owned()];
    let linked = program("linked.c", &[&link[0], &link[1]]);
    let plugin = program("linked.c", &["-shared", "-fPIC", &link[0], &link[1]]);
    let host = program("plugin.c", &[]);
    let share = scene.share(Bytes::mib(64));
    runs(&mut scene.command(&linked, &share));
    for way in ["local", "global", "deep"] {
        runs(scene.command(&host, &share).arg(way).arg(&plugin));
    }
    // Others may stand before the driver too, each before the next.
    let before = |at: &str| program("chain.c", &["-shared", "-fPIC", &format!("-Wl,-soname,{at}")]);
    let (first, second) = (before("first.so"), before("second.so"));
    let preload =
        [&library("bursar_enforce"), &first, &second].map(|file| file.to_str().expect("a plain name")).join(":");
    runs(scene.command(&linked, &share).env("LD_PRELOAD", preload));
    scene.assert_returned(&share);
}
