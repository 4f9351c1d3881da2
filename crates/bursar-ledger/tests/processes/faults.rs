//! Files that are no ledger, belong to others or do not exist (L7): each error names the file and a remedy, and the
//! file stays as it is.

use crate::peer::{Folder, Peer, ROLE, myself, subject};
use crate::trial;
use bursar_ledger::format::{LedgerLayout, header, sealed};
use bursar_ledger::{Ledger, LedgerError};
use libtest_mimic::Trial;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::{Command, Stdio};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("l7_a_truncated_file_is_refused", l7_a_truncated_file_is_refused),
        trial("l7_noise_is_refused", l7_noise_is_refused),
        trial("l7_figures_that_do_not_agree_are_refused", l7_figures_that_do_not_agree_are_refused),
        trial(
            "l7_a_bit_that_changes_in_a_live_file_grants_nothing",
            l7_a_bit_that_changes_in_a_live_file_grants_nothing,
        ),
        trial("l7_another_version_is_refused", l7_another_version_is_refused),
        trial("l7_a_file_of_version_3_is_refused_by_name", l7_a_file_of_version_3_is_refused_by_name),
        trial("l7_another_device_is_refused", l7_another_device_is_refused),
        trial("l7_a_file_open_to_others_is_refused", l7_a_file_open_to_others_is_refused),
        trial("l7_a_folder_open_to_others_is_refused", l7_a_folder_open_to_others_is_refused),
        trial("l7_a_link_is_not_followed", l7_a_link_is_not_followed),
        trial("l7_another_users_file_is_refused", l7_another_users_file_is_refused).with_ignored_flag(!is_root()),
        trial("l7_a_read_only_file_system_is_named", l7_a_read_only_file_system_is_named)
            .with_ignored_flag(!can_mount()),
        trial("l7_a_full_file_system_is_named", l7_a_full_file_system_is_named).with_ignored_flag(!can_mount()),
    ]
}

/// A ledger that was in use once, changed by `spoil`; opening and inspecting it must fail and leave it as it is.
fn refused_after(spoil: impl FnOnce(&Folder)) -> LedgerError {
    let folder = Folder::new();
    let mut peer = Peer::new(&folder);
    assert_eq!(peer.command("charge 10"), "ok");
    peer.kill();
    spoil(&folder);
    let before = fs::read(folder.file()).unwrap();
    let refused = Ledger::open_in(folder.path(), &subject()).unwrap_err();
    let inspected = Ledger::inspect(&folder.file());
    if !matches!(refused, LedgerError::OtherDevice { .. }) {
        assert_eq!(inspected.unwrap_err().to_string(), refused.to_string());
    }
    assert!(fs::read(folder.file()).unwrap() == before, "a file that is refused is left alone");
    assert!(refused.to_string().contains(folder.file().to_str().unwrap()), "{refused}");
    refused
}

fn write(folder: &Folder, word: usize, value: u64) {
    let file = fs::OpenOptions::new().write(true).open(folder.file()).unwrap();
    file.write_all_at(&value.to_le_bytes(), word as u64 * 8).unwrap();
}

fn l7_a_truncated_file_is_refused() {
    for size in [0, 1, 4096, 262_144, 524_287] {
        let refused = refused_after(|folder| {
            fs::OpenOptions::new().write(true).open(folder.file()).unwrap().set_len(size).unwrap();
        });
        assert!(matches!(refused, LedgerError::Truncated { size: found, .. } if found == size), "{refused}");
    }
}

fn l7_noise_is_refused() {
    let noise = |seed: u64| {
        let mut state = seed;
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
    };
    let all = refused_after(|folder| fs::write(folder.file(), noise(1).take(524_288).collect::<Vec<u8>>()).unwrap());
    assert!(matches!(all, LedgerError::NotALedger { .. }), "{all}");
    // Garbage behind a valid header, wherever it begins.
    for seed in 0..20 {
        let from = header::LOCK * 8 + (seed as usize * 1237) % 8192;
        let refused = refused_after(|folder| {
            let mut bytes = fs::read(folder.file()).unwrap();
            let length = bytes.len() - from;
            bytes.splice(from.., noise(seed).take(length));
            fs::write(folder.file(), bytes).unwrap();
        });
        assert!(matches!(refused, LedgerError::Corrupt { .. }), "noise {seed} from byte {from}: {refused}");
    }
    let header = refused_after(|folder| write(folder, header::TOTAL, 7));
    assert!(matches!(header, LedgerError::Corrupt { .. }), "{header}");
}

fn l7_figures_that_do_not_agree_are_refused() {
    let layout = LedgerLayout::FILE;
    let total_of_the_device = layout.node_at(0) + bursar_ledger::format::node::TOTAL;
    let refused = refused_after(|folder| write(folder, total_of_the_device, sealed(999)));
    assert!(matches!(&refused, LedgerError::Corrupt { what, .. } if what.contains("999")), "{refused}");
}

/// Bits of the device, its tenant and an account change under a process that has them mapped: no request that does not
/// fit is granted, and every other error names the file and the remedy.
fn l7_a_bit_that_changes_in_a_live_file_grants_nothing() {
    let layout = LedgerLayout::FILE;
    let words = layout.node_at(0)..layout.node_at(3);
    for (word, bit) in words.flat_map(|word| (0..64).map(move |bit| (word, bit))).step_by(17) {
        let folder = Folder::new();
        let mut peer = Peer::new(&folder);
        assert_eq!(peer.command("charge 100"), "ok");
        let bytes = fs::read(folder.file()).unwrap();
        let old = u64::from_le_bytes(bytes[word * 8..word * 8 + 8].try_into().unwrap());
        write(&folder, word, old ^ 1 << bit);
        let what = format!("bit {bit} of {}", layout.name_of(word));
        let is_damaged = |reply: &str| {
            reply.contains(folder.file().to_str().unwrap())
                && reply.contains("is damaged")
                && reply.contains("remove it")
        };
        for command in ["charge 950", "reserve 950"] {
            let reply = peer.command(command);
            assert!(reply.starts_with("error over budget") || is_damaged(&reply), "{what}: {command}: {reply}");
        }
        let reply = peer.command("charge 50");
        assert!(reply == "ok" || is_damaged(&reply), "{what}: {reply}");
        match Ledger::inspect(&folder.file()) {
            Ok(reading) => assert_eq!((reading.held.get(), reading.undrawn.get()), (150, 0), "{what}"),
            Err(why) => assert!(is_damaged(&why.to_string()), "{what}: {why}"),
        }
    }
}

fn l7_another_version_is_refused() {
    let refused = refused_after(|folder| write(folder, header::VERSION, 1));
    assert!(matches!(refused, LedgerError::Version { found: 1, ours: 6, .. }), "{refused}");
}

/// A file that version 3 wrote: a tenant, an account and a reservation that hold something, and a request that waits.
fn l7_a_file_of_version_3_is_refused_by_name() {
    let listed = include_str!("../data/version-3.words").lines().filter(|line| !line.starts_with('#'));
    let mut words = vec![0u64; 32_768];
    for line in listed {
        let (at, word) = line.split_once(' ').unwrap();
        words[usize::from_str_radix(at, 16).unwrap()] = u64::from_str_radix(word, 16).unwrap();
    }
    let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    let refused = refused_after(|folder| fs::write(folder.file(), &bytes).unwrap());
    assert!(matches!(refused, LedgerError::Version { found: 3, ours: 6, .. }), "{refused}");
    assert!(refused.to_string().contains("end the programs that use it and remove it"), "{refused}");
}

fn l7_another_device_is_refused() {
    let folder = Folder::new();
    drop(folder.open());
    let larger = bursar_ledger::Subject { total: bursar_core::Bytes(2000), ..subject() };
    let refused = Ledger::open_in(folder.path(), &larger).unwrap_err();
    assert!(matches!(refused, LedgerError::OtherDevice { .. }), "{refused}");
}

fn l7_a_file_open_to_others_is_refused() {
    let refused = refused_after(|folder| {
        fs::set_permissions(folder.file(), fs::Permissions::from_mode(0o644)).unwrap();
    });
    assert!(matches!(refused, LedgerError::Mode { mode: 0o644, .. }), "{refused}");
    let folder = Folder::new();
    drop(folder.open());
    assert_eq!(fs::metadata(folder.file()).unwrap().permissions().mode() & 0o777, 0o600);
}

fn l7_a_folder_open_to_others_is_refused() {
    let folder = Folder::new();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let refused = Ledger::open_in(folder.path(), &subject()).unwrap_err();
    assert!(matches!(refused, LedgerError::Folder { .. }), "{refused}");
    let inside = Folder::new();
    let linked = inside.path().join("linked");
    std::os::unix::fs::symlink(folder.path(), &linked).unwrap();
    let refused = Ledger::open_in(&linked, &subject()).unwrap_err();
    assert!(matches!(&refused, LedgerError::Folder { why, .. } if why.contains("link")), "{refused}");
}

fn l7_a_link_is_not_followed() {
    let (real, folder) = (Folder::new(), Folder::new());
    drop(real.open());
    std::os::unix::fs::symlink(real.file(), folder.file()).unwrap();
    let refused = Ledger::open_in(folder.path(), &subject()).unwrap_err();
    assert!(matches!(refused, LedgerError::NotALedger { .. }), "{refused}");
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn l7_another_users_file_is_refused() {
    let refused = refused_after(|folder| std::os::unix::fs::chown(folder.file(), Some(12_345), None).unwrap());
    assert!(matches!(refused, LedgerError::Owner { owner: 12_345, .. }), "{refused}");
}

fn can_mount() -> bool {
    let folder = Folder::new();
    let mut command = Command::new("unshare");
    command.args(["-Urm", "sh", "-c", r#"mount -t tmpfs -o size=1m none "$0""#]).arg(folder.path());
    command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Returns the reply of a process that opens a ledger in a folder where `mount` was run, which only that process sees.
fn opened_after(mount: &str) -> String {
    let folder = Folder::new();
    let mut command = Command::new("unshare");
    let script = format!(r#"folder=$0; {mount} && exec "$1""#);
    command.args(["-Urm", "sh", "-c", &script]).arg(folder.path()).arg(myself().get_program()).env(ROLE, "puppet");
    Peer::started(command).command(&format!("open {}", folder.path().display()))
}

fn l7_a_read_only_file_system_is_named() {
    let reply = opened_after(r#"mount -t tmpfs -o ro,mode=700 none "$folder""#);
    assert!(reply.starts_with("error") && reply.contains("file system that cannot be written to"), "{reply}");
}

fn l7_a_full_file_system_is_named() {
    let reply = opened_after(r#"mount -t tmpfs -o size=64k,mode=700 none "$folder""#);
    assert!(reply.starts_with("error there is no room for"), "{reply}");
}
