//! Folders and files that are moved, removed or replaced while in use, and things that are no ledger (L7).

use crate::peer::{Folder, Peer, TOTAL, subject};
use crate::trial;
use bursar_core::{Bytes, DeviceUuid, Error};
use bursar_ledger::{Ledger, LedgerError, Reservation, Subject};
use libtest_mimic::Trial;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("l7_a_folder_that_is_moved_in_use_has_no_second", l7_a_folder_that_is_moved_in_use_has_no_second),
        trial("l7_a_folder_that_is_removed_in_use_has_no_second", l7_a_folder_that_is_removed_in_use_has_no_second),
        trial("l7_a_folder_emptied_in_use_has_no_second", l7_a_folder_emptied_in_use_has_no_second),
        trial("l7_another_ledger_in_its_place_is_refused", l7_another_ledger_in_its_place_is_refused),
        trial(
            "l7_a_ledger_by_the_name_of_another_device_is_not_read_as_its",
            l7_a_ledger_by_the_name_of_another_device_is_not_read_as_its,
        ),
        trial("l7_what_is_no_file_is_refused_at_once", l7_what_is_no_file_is_refused_at_once),
        trial("l7_a_link_to_a_folder_is_refused_however_it_is_spelt", l7_a_link_to_a_folder_is_refused_however_spelt),
        trial("l7_a_token_makes_no_files", l7_a_token_makes_no_files),
        trial("l7_what_a_dead_maker_left_is_removed", l7_what_a_dead_maker_left_is_removed),
        trial("l7_too_many_open_files_are_named", l7_too_many_open_files_are_named),
    ]
}

/// Returns the refusal of whoever opens the ledger, which is what whoever only looks is told too.
fn refusal(folder: &Path) -> LedgerError {
    let looked = Ledger::inspect_in(folder, &subject()).expect_err("somebody uses another ledger of this device");
    let refused = Ledger::open_in(folder, &subject()).expect_err("somebody uses another ledger of this device");
    assert_eq!(looked.to_string(), refused.to_string());
    refused
}

fn names_its_user(refused: &LedgerError, peer: &Peer) {
    let LedgerError::InUse { pids, .. } = refused else { panic!("{refused}") };
    assert_eq!(pids, &[peer.child.id()], "{refused}");
}

fn l7_a_folder_that_is_moved_in_use_has_no_second() {
    let around = Folder::new();
    let (here, there) = (around.path().join("here"), around.path().join("there"));
    fs::create_dir(&here).unwrap();
    let mut one = Peer::idle();
    assert_eq!(one.command(&format!("open {}", here.display())), "ok");
    assert_eq!(one.command("reserve 800"), "ok");
    fs::rename(&here, &there).unwrap();
    names_its_user(&refusal(&here), &one);
    // By its new name it is the same ledger.
    let moved = Ledger::open_in(&there, &subject()).unwrap();
    assert!(moved.reserve(Bytes(201)).unwrap_err().is_capacity());
    drop(moved.reserve(Bytes(200)).unwrap());
    drop(moved);
    // Moved back, all is well.
    let _ = fs::remove_dir_all(&here);
    fs::rename(&there, &here).unwrap();
    assert!(Ledger::open_in(&here, &subject()).unwrap().reserve(Bytes(201)).unwrap_err().is_capacity());
    one.kill();
    assert_eq!(Ledger::open_in(&here, &subject()).unwrap().available().unwrap(), TOTAL);
}

fn l7_a_folder_that_is_removed_in_use_has_no_second() {
    let folder = Folder::new();
    let mut one = Peer::new(&folder);
    assert_eq!(one.command("reserve 700"), "ok");
    fs::remove_dir_all(folder.path()).unwrap();
    names_its_user(&refusal(folder.path()), &one);
    let told = one.command("reserve 1");
    assert!(told.starts_with("error") && told.contains("removed"), "{told}");
    one.kill();
    assert_eq!(folder.open().available().unwrap(), TOTAL);
}

fn l7_a_folder_emptied_in_use_has_no_second() {
    let folder = Folder::new();
    let mut one = Peer::new(&folder);
    assert_eq!(one.command("reserve 700"), "ok");
    for entry in fs::read_dir(folder.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    names_its_user(&refusal(folder.path()), &one);
}

/// An idle ledger is put where one in use was.
fn l7_another_ledger_in_its_place_is_refused() {
    let around = Folder::new();
    let (here, there, spare) = (around.path().join("here"), around.path().join("there"), around.path().join("spare"));
    for folder in [&here, &spare] {
        drop(Ledger::open_in(folder, &subject()).unwrap());
    }
    let mut one = Peer::idle();
    assert_eq!(one.command(&format!("open {}", here.display())), "ok");
    assert_eq!(one.command("reserve 800"), "ok");
    fs::rename(&here, &there).unwrap();
    fs::rename(&spare, &here).unwrap();
    names_its_user(&refusal(&here), &one);
    // And with the file alone.
    fs::rename(&here, &spare).unwrap();
    fs::rename(&there, &here).unwrap();
    let name = subject().file_name();
    fs::rename(here.join(&name), here.join("aside")).unwrap();
    fs::rename(spare.join(&name), here.join(&name)).unwrap();
    names_its_user(&refusal(&here), &one);
}

fn l7_a_ledger_by_the_name_of_another_device_is_not_read_as_its() {
    let folder = Folder::new();
    drop(folder.open());
    let other = Subject { uuid: DeviceUuid([9; 16]), ..subject() };
    for name in [other.file_name(), "HOST.ledger".to_owned(), "copy.ledger".to_owned()] {
        let copy = folder.path().join(&name);
        fs::copy(folder.file(), &copy).unwrap();
        let told = Ledger::inspect(&copy).unwrap_err();
        assert!(matches!(told, LedgerError::OtherDevice { .. } | LedgerError::NotALedger { .. }), "{name}: {told}");
    }
    let told = Ledger::inspect_in(folder.path(), &other).unwrap_err();
    assert!(matches!(&told, LedgerError::OtherDevice { wanted, .. } if *wanted == other.uuid), "{told}");
    assert!(Ledger::inspect_in(folder.path(), &subject()).unwrap().is_some());
    assert_eq!(Ledger::inspect_in(&folder.path().join("nowhere"), &subject()).unwrap(), None);
}

fn make_fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn l7_what_is_no_file_is_refused_at_once() {
    for what in ["a pipe", "a folder", "a link"] {
        let folder = Folder::new();
        match what {
            "a pipe" => make_fifo(&folder.file()),
            "a folder" => fs::create_dir(folder.file()).unwrap(),
            _ => std::os::unix::fs::symlink("elsewhere", folder.file()).unwrap(),
        }
        for refused in [refusal(folder.path()), Ledger::inspect(&folder.file()).unwrap_err()] {
            assert!(matches!(refused, LedgerError::NotALedger { .. }), "{what}: {refused}");
            assert!(refused.to_string().contains("move it away"), "{what}: {refused}");
        }
    }
}

fn l7_a_link_to_a_folder_is_refused_however_spelt() {
    let (real, around) = (Folder::new(), Folder::new());
    let link = around.path().join("link");
    std::os::unix::fs::symlink(real.path(), &link).unwrap();
    for spelling in ["", "/", "//", "/.", "/./"] {
        let spelt = PathBuf::from(format!("{}{spelling}", link.display()));
        let refused = refusal(&spelt);
        assert!(matches!(&refused, LedgerError::Folder { why, .. } if why.contains("link")), "{spelling:?}: {refused}");
    }
}

/// A process that makes a ledger can die just after the file has its name, and leave its draft as another.
fn l7_what_a_dead_maker_left_is_removed() {
    let folder = Folder::new();
    drop(folder.open());
    let draft = folder.path().join(format!(".{}.draft", subject().file_name()));
    fs::hard_link(folder.file(), &draft).unwrap();
    let mut one = Peer::new(&folder);
    assert_eq!(names_in(folder.path()), [folder.file()]);
    assert_eq!(one.command("reserve 1000"), "ok");
    assert!(folder.open().reserve(Bytes(1)).unwrap_err().is_capacity());
}

/// However many descriptors are left, the reason is the true one, and nothing is left behind.
fn l7_too_many_open_files_are_named() {
    let folder = Folder::new();
    let ledger = folder.open();
    let mut one = Peer::idle();
    let mut opened = 0;
    for files in 0..12 {
        assert_eq!(one.command(&format!("files {files}")), "ok");
        let told = one.command(&format!("open {}", folder.path().display()));
        opened += u32::from(told == "ok");
        assert!(told == "ok" || told.contains("too many files are open"), "{files} descriptors left: {told}");
        assert!(ledger.reading().unwrap().processes.len() <= 2, "a failed attempt leaves nobody behind");
        if told == "ok" {
            assert_eq!(one.command("charge 1000"), "ok");
            assert_eq!(one.command("release 1000"), "ok");
        }
    }
    assert!(opened > 0, "a dozen descriptors are enough");
    assert_eq!(ledger.available().unwrap(), TOTAL);
}

fn l7_a_token_makes_no_files() {
    let folder = Folder::new();
    let stranger = folder.path().join("passwd");
    fs::write(&stranger, "root:x:0:0").unwrap();
    let own = std::env::current_dir().unwrap();
    let before = (names_in(folder.path()), names_in(&own));
    let absent = folder.path().join("absent.ledger");
    for file in [stranger.to_str().unwrap(), absent.to_str().unwrap(), "relative", "relative.ledger", "", "/", "."] {
        let refused = Reservation::from_token(&format!("bursar1:2:0:{file}")).unwrap_err();
        let Error::External(external) = refused else { panic!("{file}: {refused}") };
        assert!(external.downcast_ref::<LedgerError>().is_some(), "{file}: {external}");
    }
    assert_eq!((names_in(folder.path()), names_in(&own)), before);
}

fn names_in(folder: &Path) -> Vec<PathBuf> {
    let mut names: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    names
}
