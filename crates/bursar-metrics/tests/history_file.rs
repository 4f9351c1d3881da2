//! Histories that are kept in files: restarted, torn, damaged and foreign ones.
#![forbid(unsafe_code)]

use bursar_metrics::{DeviceState, HistoryFile, HistoryFileError, HistoryQuery, LedgerState, ProcessState, State};
use bursar_metrics::{TenantState, Thinning, UnreadableLedger};
use bursar_sim::Random;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// A path for a file of one test's own, removed with it.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("bursar-history-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        Self(std::env::temp_dir().join(name))
    }

    fn open(&self) -> Result<HistoryFile, HistoryFileError> {
        let rings = [(Duration::from_secs(1), 30), (Duration::from_secs(10), 30)];
        HistoryFile::open(&self.0, Thinning::new(&rings))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _gone_already = fs::remove_file(&self.0);
    }
}

/// Returns a state of two devices, one of which cannot always be read.
fn state(random: &mut Random, at_ms: u64) -> State {
    let name = |random: &mut Random| ["a", "ünïcode", "", "line\nbreak \"quoted\""][random.index(4)].to_owned();
    let mut state = State::default();
    state.at_ms = at_ms;
    let held = random.below(1 << 40);
    let processes = (0..random.below(20)).map(|_| ProcessState {
        pid: random.below(50) as u32,
        name: name(random),
        held: random.below(held + 1),
        ..ProcessState::default()
    });
    let processes = processes.collect();
    let tenants = vec![TenantState { name: name(random), charged: held, ..TenantState::default() }];
    let cached = (random.below(2) == 0).then_some(held / 2);
    let ledger = LedgerState {
        uuid: "GPU-1".into(),
        name: "card".into(),
        ordinal: Some(0),
        held,
        cached,
        processes,
        tenants,
        ..LedgerState::default()
    };
    state.devices.push(DeviceState::Readable(ledger));
    state.devices.push(match random.below(3) {
        0 => DeviceState::Unreadable(UnreadableLedger { uuid: "HOST".into(), ..UnreadableLedger::default() }),
        _ => DeviceState::Readable(LedgerState { uuid: "HOST".into(), total: 7, ..LedgerState::default() }),
    });
    state
}

/// Returns everything that a history shows.
fn shown(kept: &HistoryFile) -> String {
    let query = HistoryQuery { points: 2000, ..HistoryQuery::default() };
    serde_json::to_string(&kept.history().view(&query)).expect("it is data")
}

#[test]
fn m3_a_history_is_the_same_after_a_restart() {
    for seed in 0..20 {
        let (place, mut random) = (Place::new(), Random::new(seed));
        let (mut at, mut before) = (1_700_000_000_000, None);
        for _ in 0..5 {
            let mut kept = place.open().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert_eq!(kept.torn_bytes(), 0);
            if let Some(before) = before {
                assert_eq!(shown(&kept), before, "seed {seed}");
            }
            for _ in 0..random.below(100) {
                at += random.below(3_000);
                kept.record(&state(&mut random, at)).expect("room");
            }
            before = Some(shown(&kept));
        }
    }
}

#[test]
fn m3_a_record_that_was_not_written_to_its_end_is_cut_off() {
    let (place, mut random) = (Place::new(), Random::new(7));
    let mut kept = place.open().expect("a new file");
    let mut lengths = vec![(fs::metadata(&place.0).expect("it is there").len(), shown(&kept))];
    for second in 1..=3 {
        kept.record(&state(&mut random, second * 1000)).expect("room");
        lengths.push((fs::metadata(&place.0).expect("it is there").len(), shown(&kept)));
    }
    drop(kept);
    let whole = fs::read(&place.0).expect("readable");
    for length in 0..whole.len() as u64 {
        fs::write(&place.0, &whole[..length as usize]).expect("room");
        let mut kept = place.open().unwrap_or_else(|error| panic!("{length} bytes: {error}"));
        let expected = lengths.iter().rev().find(|(end, _)| *end <= length);
        if let Some((end, history)) = expected {
            // Both devices of a state have a record, and the first may be whole.
            assert!(kept.torn_bytes() <= length - end, "{length} bytes");
            assert!(shown(&kept).len() >= history.len(), "{length} bytes");
        }
        kept.record(&state(&mut random, 60_000)).expect("room");
        let after = shown(&kept);
        drop(kept);
        assert_eq!(shown(&place.open().expect("whole again")), after, "{length} bytes");
    }
}

#[test]
fn m3_a_damaged_history_is_refused_and_left_as_it_is() {
    let (place, mut random) = (Place::new(), Random::new(9));
    let mut kept = place.open().expect("a new file");
    for second in 1..=3 {
        kept.record(&state(&mut random, second * 1000)).expect("room");
    }
    let before = shown(&kept);
    drop(kept);
    let whole = fs::read(&place.0).expect("readable");
    for bit in (0..whole.len() * 8).step_by(3) {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(&place.0, &damaged).expect("room");
        match place.open() {
            Err(HistoryFileError::Damaged { length, .. }) => assert_eq!(length, whole.len() as u64),
            Err(HistoryFileError::Foreign { .. } | HistoryFileError::Version { .. }) => {
                assert!(bit / 8 < 17, "bit {bit}")
            }
            other => panic!("bit {bit}: {other:?}"),
        }
        assert!(fs::read(&place.0).expect("readable") == damaged, "bit {bit}: nothing was changed");
    }
    fs::write(&place.0, &whole).expect("room");
    assert_eq!(shown(&place.open().expect("it is whole again")), before);
}

#[test]
fn m3_a_foreign_file_is_refused_and_left_as_it_is() {
    let place = Place::new();
    for content in [&b"precious data"[..], b"bursar history 9\nfrom the future", &[0; 4096]] {
        fs::write(&place.0, content).expect("room");
        let error = place.open().expect_err("it is not ours");
        assert!(error.to_string().contains(&place.0.display().to_string()), "{error}");
        assert_eq!(fs::read(&place.0).expect("readable"), content);
    }
    assert!(matches!(
        HistoryFile::open(&std::env::temp_dir(), Thinning::default()),
        Err(HistoryFileError::Foreign { .. } | HistoryFileError::Io { .. })
    ));
}

#[test]
fn m3_a_history_has_one_writer() {
    let place = Place::new();
    let kept = place.open().expect("a new file");
    assert!(matches!(place.open(), Err(HistoryFileError::InUse { .. })));
    drop(kept);
    place.open().expect("nobody writes to it any more");
}

#[test]
fn m3_a_history_file_that_is_removed_is_made_anew_and_one_in_its_place_is_left() {
    let (place, mut random) = (Place::new(), Random::new(5));
    let mut kept = place.open().expect("a new file");
    let mut at = 1_700_000_000_000;
    let mut record = |kept: &mut HistoryFile| {
        at += 1000;
        kept.record(&state(&mut random, at))
    };
    record(&mut kept).expect("room");
    fs::remove_file(&place.0).expect("it is there");
    record(&mut kept).expect("it is made anew");
    assert!(matches!(place.open(), Err(HistoryFileError::InUse { .. })), "and is the writer's");
    record(&mut kept).expect("room");
    fs::remove_file(&place.0).expect("it is there");
    fs::write(&place.0, "somebody else's").expect("a file");
    let error = record(&mut kept).expect_err("it is not ours");
    assert!(matches!(&error, HistoryFileError::Replaced { .. }), "{error}");
    assert!(error.to_string().contains(&place.0.display().to_string()), "{error}");
    assert_eq!(fs::read_to_string(&place.0).expect("it is there"), "somebody else's");
    fs::remove_file(&place.0).expect("it is there");
    record(&mut kept).expect("there is room for it again");
    let before = shown(&kept);
    drop(kept);
    assert_eq!(shown(&place.open().expect("whole")), before, "with all that was recorded meanwhile");
}

#[test]
fn m3_a_history_file_is_bounded() {
    let (place, mut random) = (Place::new(), Random::new(3));
    let mut kept = place.open().expect("a new file");
    let (mut at, mut most) = (1_700_000_000_000, 0);
    for _ in 0..40_000 {
        at += 1000;
        kept.record(&state(&mut random, at)).expect("room");
        most = most.max(fs::metadata(&place.0).expect("it is there").len());
    }
    let before = shown(&kept);
    drop(kept);
    assert!(most < 10 << 20, "{most} bytes");
    assert_eq!(shown(&place.open().expect("whole")), before);
    let name = place.0.file_name().expect("a name").to_string_lossy().into_owned();
    let left = fs::read_dir(std::env::temp_dir()).expect("a folder").filter_map(Result::ok);
    let left = left.filter(|entry| entry.file_name().to_string_lossy().starts_with(&format!("{name}."))).count();
    assert_eq!(left, 0, "nothing is left beside it");
}
