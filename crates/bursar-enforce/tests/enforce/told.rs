//! The answers that a program gets about memory, and programs that use Bursar themselves.

use crate::scene::{Scene, library, program, runs};
use bursar::cuda::Cuda;
use bursar::prelude::*;

/// The variable by which this program starts itself again as one that uses Bursar.
const ROLE: &str = "BURSAR_ENFORCE_ROLE";

#[test]
fn e3_a_program_is_told_its_share() {
    let scene = Scene::new();
    let share = scene.share(Bytes::mib(64));
    runs(scene.command(&program("told.c", &[]), &share).args(["told", &Bytes::mib(64).get().to_string(), "0"]));
    scene.assert_returned(&share);
}

#[test]
fn e6_the_contexts_own_memory_belongs_to_the_share() {
    let scene = Scene::new();
    let (whole, own) = (Bytes::mib(512), Bytes::mib(300));
    let words = [whole.get().to_string(), own.get().to_string()];
    let share = scene.share(whole);
    let mut command = scene.command(&program("told.c", &[]), &share);
    runs(command.arg("told").args(&words).env("BURSAR_SIM_CONTEXT", "300MiB"));
    scene.assert_returned(&share);
    let share = scene.share(Bytes::mib(200));
    let mut command = scene.command(&program("told.c", &[]), &share);
    let said = runs(command.arg("too-large").args(&words).env("BURSAR_SIM_CONTEXT", "300MiB")).stderr;
    assert!(String::from_utf8_lossy(&said).contains("refused 300 MiB"), "{}", String::from_utf8_lossy(&said));
    scene.assert_returned(&share);
}

#[test]
fn e7_without_a_share_everything_passes() {
    let scene = Scene::new();
    let share = scene.share(Bytes::mib(64));
    let storm = program("storm.c", &[]);
    let mut command = scene.bare(&storm);
    runs(command.args(["2", "1", "0.2"]).env("LD_PRELOAD", library("bursar_enforce")));
    scene.assert_returned(&share);
}

#[test]
fn e7_a_program_that_uses_bursar_is_charged_once() {
    let scene = Scene::new();
    for role in ["share", "no-ledger"] {
        let share = scene.share(Bytes::gib(1));
        scene.plays("told::role", &share, |command| command.env(ROLE, role).env("BURSAR_LEDGER_DIR", &scene.folder));
        scene.assert_returned(&share);
    }
}

/// The program that the test above starts under a share of 1 GiB.
#[test]
#[ignore = "a program for another test"]
fn role() {
    let role = std::env::var(ROLE).expect("the name of a role");
    let driver = Cuda::load().expect("the simulated libcuda");
    let context = DeviceContext::open(driver.clone(), DeviceId(0)).expect("a device");
    let gpu = match role.as_str() {
        "share" => {
            let budget = Ledgers::default().budget();
            Gpu::with_context(&context, &Stack::new().layer(PagePool::default()).layer(budget).over(leaf::Frames))
        }
        _ => Gpu::with_context(&context, &Stack::new().layer(PagePool::default()).over(leaf::Frames)),
    };
    let gpu = gpu.expect("a stack");
    let stream = gpu.streams().lease().expect("a stream");
    // Read without an account.
    let held = || Ledger::inspect(&Ledger::list().expect("a folder")[0]).expect("a ledger").held;
    assert_eq!(context.driver().memory(DeviceId(0)).expect("a device").total, Bytes::gib(8), "the whole device");
    let first = gpu.buffer::<u8>(600 << 20, &stream, tag!("first")).expect("it fits");
    let used = context.driver().memory(DeviceId(0)).expect("a device").used();
    assert_eq!(held(), used, "{role}");
    gpu.buffer::<u8>(600 << 20, &stream, tag!("second")).expect_err("it does not fit");
    drop(first);
}
