//! What a sampler says of ledgers that can be read, and of those that cannot.
#![forbid(unsafe_code)]

use bursar_core::{Bytes, DeviceId, Driver};
use bursar_ledger::{Ledger, Subject};
use bursar_metrics::{DeviceState, Sampler, UnreadableReason};
use bursar_sim::{Faults, Sim};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A folder for ledgers, removed with its test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("bursar-metrics-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a temporary folder");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("its own folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone_already = fs::remove_dir_all(&self.0);
    }
}

fn device(folder: &Path) -> (Arc<dyn Driver>, Subject, PathBuf) {
    let driver: Arc<dyn Driver> = Sim::builder().immediate().device(Bytes::gib(8)).named("sampler-test").build();
    let subject = Subject::device(&driver.facts(DeviceId(0)).expect("a device"));
    let file = folder.join(subject.file_name());
    (driver, subject, file)
}

#[test]
fn m1_a_sample_is_what_the_ledger_says() {
    let folder = Folder::new();
    let (driver, subject, _) = device(&folder.0);
    let ledger = Ledger::open_in(&folder.0, &subject).expect("a ledger");
    ledger.tenant("batch").and_then(|tenant| tenant.configure(Bytes::gib(1), Bytes::gib(4))).expect("room");
    let _aside = ledger.reserve(Bytes::gib(3)).expect("room");
    ledger.set_limit(Bytes::gib(7)).expect("usable");
    let state = Sampler::new(driver).in_folder(&folder.0).sample();
    let (sampled, reading) = (state.devices[0].ledger().expect("readable"), ledger.reading().expect("readable"));
    assert_eq!((sampled.limit, sampled.held, sampled.undrawn), (7 << 30, reading.held.get(), reading.undrawn.get()));
    assert_eq!((sampled.total, sampled.free), (8 << 30, 5 << 30));
    assert_eq!((sampled.processes[0].pid, sampled.processes[0].undrawn), (std::process::id(), 3 << 30));
    let batch = sampled.tenants.iter().find(|tenant| tenant.name == "batch").expect("it was configured");
    assert_eq!((batch.guarantee, batch.ceiling), (1 << 30, 4 << 30));
    assert_eq!((state.devices.len(), state.simulated, state.folder_error), (1, true, None));
}

#[test]
fn m1_sampling_makes_no_ledger() {
    let folder = Folder::new();
    let (driver, ..) = device(&folder.0);
    let state = Sampler::new(driver).in_folder(&folder.0).sample();
    let sampled = state.devices[0].ledger().expect("no ledger is one in which nobody holds anything");
    assert_eq!((sampled.limit, sampled.held, sampled.free), (8 << 30, 0, 8 << 30));
    assert_eq!(fs::read_dir(&folder.0).expect("it is there").count(), 0);
}

/// Replaces bytes of a file, whatever they are.
fn scratch(file: &Path, at: usize, bytes: &[u8]) {
    let mut content = fs::read(file).expect("readable");
    content[at..at + bytes.len()].copy_from_slice(bytes);
    fs::write(file, content).expect("writable");
}

#[test]
fn m1_an_unreadable_ledger_is_a_state_and_not_zeros() {
    type Damage = fn(&Path);
    let damages: [(Damage, UnreadableReason); 5] = [
        (
            |file| fs::set_permissions(file, fs::Permissions::from_mode(0o644)).expect("ours"),
            UnreadableReason::Permissions,
        ),
        (|file| fs::write(file, b"short").expect("ours"), UnreadableReason::Corrupt),
        (|file| scratch(file, 0, b"something"), UnreadableReason::Foreign),
        (|file| scratch(file, 8, &[99]), UnreadableReason::OtherVersion),
        (
            |file| {
                fs::remove_file(file).expect("ours");
                fs::create_dir(file).expect("room");
            },
            UnreadableReason::Foreign,
        ),
    ];
    for (damage, reason) in damages {
        let folder = Folder::new();
        let (driver, subject, file) = device(&folder.0);
        drop(Ledger::open_in(&folder.0, &subject).expect("a ledger"));
        damage(&file);
        for sampler in [Sampler::new(driver.clone()), Sampler::without_driver("none here")] {
            let state = sampler.in_folder(&folder.0).sample();
            let [DeviceState::Unreadable(unreadable)] = &state.devices[..] else { panic!("{reason}: {state:?}") };
            assert_eq!((unreadable.reason, &unreadable.uuid), (reason, &subject.uuid.to_string()));
            assert!(unreadable.error.contains(&file.display().to_string()), "{}", unreadable.error);
        }
    }
}

#[test]
fn m1_a_driver_that_fails_is_a_state_of_its_device() {
    let folder = Folder::new();
    let (driver, ..) = device(&folder.0);
    let faults = Faults::new(driver);
    let sampler = Sampler::new(faults.clone()).in_folder(&folder.0);
    faults.lose(DeviceId(0));
    let state = sampler.sample();
    let [DeviceState::Unreadable(unreadable)] = &state.devices[..] else { panic!("{state:?}") };
    assert_eq!((unreadable.reason, unreadable.ordinal), (UnreadableReason::Driver, Some(0)));
}

#[test]
fn m1_devices_beyond_the_bound_are_counted() {
    let folder = Folder::new();
    let (driver, _, _) = device(&folder.0);
    let sampled = || Sampler::new(driver.clone()).in_folder(&folder.0).sample();
    assert_eq!((sampled().devices.len(), sampled().left_out), (1, 0));
    for number in 0..70_u8 {
        fs::write(folder.0.join(format!("GPU-00000000-0000-0000-0000-0000000000{number:02x}.ledger")), "")
            .expect("a file");
    }
    assert_eq!((sampled().devices.len(), sampled().left_out), (64, 7));
    let without = Sampler::without_driver("none here").in_folder(&folder.0).sample();
    assert_eq!((without.devices.len(), without.left_out), (64, 6));
}

#[test]
fn m1_a_folder_that_cannot_be_listed_is_told() {
    let folder = Folder::new();
    let file = folder.0.join("no-folder");
    fs::write(&file, b"").expect("room");
    let state = Sampler::without_driver("none here").in_folder(&file).sample();
    assert!(state.folder_error.is_some_and(|error| error.contains("no-folder")));
    let state = Sampler::without_driver("none here").in_folder(folder.0.join("absent")).sample();
    assert_eq!((state.folder_error, state.devices.len()), (None, 0), "no folder is no ledger");
}
