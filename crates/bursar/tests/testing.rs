//! The race detector finds planted bugs, reports them exactly, and reports nothing for correct programs.
#![forbid(unsafe_code)]

use bursar::Bytes;
use bursar::driver::HostFlags;
use bursar::host::PinnedBuffer;
use bursar::prelude::*;
use bursar::sim::{HazardKind, Launch, LeakKind, Operation};
use bursar::testing::{Finding, Outcome, Race, Rig, SEED_VARIABLE, Verdict, races};
use std::cell::Cell;
use std::process::Command;

const BYTES: u64 = 4096;
const SEEDS: u64 = 1000;

/// The lines of this file with the two operations of a bug.
type Lines<'a> = &'a Cell<(u32, u32)>;

/// One stream writes what another reads.
fn producer_and_consumer(rig: &Rig, is_fixed: bool, lines: Lines<'_>) -> Outcome {
    let (producer, consumer) = (rig.stream()?, rig.stream()?);
    let batch = rig.allocate(BYTES, producer, tag!("batch"))?;
    let first = line!() + 1;
    rig.launch(producer, Launch::new("produce").writes(batch.ptr(), BYTES))?;
    if is_fixed {
        rig.context().order(producer, consumer)?;
    }
    lines.set((first, line!() + 1));
    rig.launch(consumer, Launch::new("consume").reads(batch.ptr(), BYTES))?;
    rig.context().order(consumer, producer)?;
    rig.deallocate(batch, producer)?;
    Ok(())
}

/// Host memory is written again while a stream may still read it.
fn staging_reused(rig: &Rig, is_fixed: bool, lines: Lines<'_>) -> Outcome {
    let stream = rig.stream()?;
    let batch = rig.allocate(BYTES, stream, tag!("batch"))?;
    let staging = rig.driver().host_allocate(rig.device(), BYTES as usize, HostFlags::default())?;
    let first = line!() + 1;
    rig.launch(stream, Launch::new("upload").reads_host(staging, BYTES).writes(batch.ptr(), BYTES))?;
    if is_fixed {
        rig.context().synchronize(stream)?;
    }
    lines.set((first, line!() + 1));
    rig.driver().touch_host(staging, BYTES as usize, Access::Write);
    rig.deallocate(batch, stream)?;
    Ok(())
}

/// Memory is freed while another stream may still read it.
fn freed_while_read(rig: &Rig, is_fixed: bool, lines: Lines<'_>) -> Outcome {
    let (owner, reader) = (rig.stream()?, rig.stream()?);
    let batch = rig.gpu().buffer::<u8>(BYTES as usize, owner, tag!("batch"))?;
    rig.context().order(owner, reader)?;
    let first = line!() + 1;
    rig.launch(reader, Launch::new("read").reads(batch.ptr(), BYTES))?;
    if is_fixed {
        rig.context().order(reader, owner)?;
    }
    lines.set((first, line!() + 1));
    rig.here(|| drop(batch));
    Ok(())
}

/// A program with a planted bug, or without it.
#[derive(Clone, Copy)]
struct Bug {
    program: fn(&Rig, bool, Lines<'_>) -> Outcome,
    kind: HazardKind,
    missing: &'static str,
}

const BUGS: [Bug; 3] = [
    Bug {
        program: producer_and_consumer,
        kind: HazardKind::Conflict,
        missing: "nothing orders stream 2's read after stream 1's write",
    },
    Bug {
        program: staging_reused,
        kind: HazardKind::HostTouched,
        missing: "nothing orders the host's write after stream 1's read",
    },
    Bug {
        program: freed_while_read,
        kind: HazardKind::FreeUnordered,
        missing: "nothing orders the free on stream 1 after stream 2's read",
    },
];

impl Bug {
    fn check(self, is_fixed: bool, lines: Lines<'_>, only: Option<u64>) -> Result<Verdict, Box<Race>> {
        let search = races(|rig| (self.program)(rig, is_fixed, lines)).seeds(SEEDS);
        // Safe code cannot free pinned memory, so the program leaks it.
        let search = if self.kind == HazardKind::HostTouched { search.allow_leaks() } else { search };
        match only {
            Some(seed) => search.replay(seed).check(),
            None => search.check(),
        }
    }
}

fn place(op: &Operation) -> (&'static str, u32) {
    op.location.map_or(("an unknown place", 0), |location| (location.file(), location.line()))
}

#[test]
fn each_classic_bug_is_caught_with_both_places_on_every_seed() {
    for bug in BUGS {
        let lines = Cell::new((0, 0));
        let race = bug.check(false, &lines, None).expect_err("a planted bug");
        assert_eq!((race.tried, race.failing), (SEEDS, SEEDS), "{race}");
        let hazard = race.hazard().unwrap_or_else(|| panic!("{race}")).hazard;
        assert_eq!(hazard.kind, bug.kind, "{race}");
        let (first, second) = lines.get();
        assert_eq!(place(&hazard.first.expect("two operations")), (file!(), first), "{race}");
        assert_eq!(place(&hazard.second), (file!(), second), "{race}");
        let text = race.to_string();
        assert!(text.contains(bug.missing), "{text}");
        assert!(text.contains(&format!("{}:{first}:", file!())), "{text}");
        assert!(text.contains(&format!("{}:{second}:", file!())), "{text}");
        assert!(text.contains(&format!("{SEED_VARIABLE}={}", race.seed)), "{text}");
    }
}

#[test]
fn each_classic_bug_mended_is_clean_on_every_seed() {
    for bug in BUGS {
        let verdict = bug.check(true, &Cell::default(), None).unwrap_or_else(|race| panic!("{race}"));
        assert_eq!(verdict.seeds, SEEDS);
        assert!(verdict.calls > SEEDS, "{verdict}");
    }
}

#[test]
fn a_seed_that_is_replayed_tells_the_same() {
    for bug in BUGS {
        let lines = Cell::default();
        let race = bug.check(false, &lines, None).expect_err("a planted bug");
        let again = bug.check(false, &lines, Some(race.seed)).expect_err("the same bug");
        assert_eq!(again.seed, race.seed);
        let schedule = |race: &Race| race.hazard().expect("a hazard").schedule.clone();
        assert_eq!(schedule(&again), schedule(&race));
        if bug.kind != HazardKind::HostTouched {
            // Host addresses are real and differ each time.
            assert_eq!(again.finding.to_string(), race.finding.to_string());
        }
    }
}

/// Polls a copy on another stream, and each time has a third one wait for the producer: but never the consumer. How many
/// such waits lie between the two operations is the seed's choice.
fn polls(rig: &Rig) -> Outcome {
    let (producer, consumer, other, third) = (rig.stream()?, rig.stream()?, rig.stream()?, rig.stream()?);
    let batch = rig.allocate(BYTES, producer, tag!("batch"))?;
    let mut small = rig.gpu().buffer::<u8>(1, other, tag!("small"))?;
    rig.context().order(producer, consumer)?;
    rig.launch(producer, Launch::new("produce").writes(batch.ptr(), BYTES))?;
    (0..40).try_for_each(|_| rig.launch(other, Launch::new("noise")))?;
    let copy = rig.gpu().submit(other, |work| work.copy_from_host(&mut small, vec![1]))?;
    for _ in 0..64 {
        rig.context().order(producer, third)?;
        if copy.is_complete()? {
            break;
        }
    }
    rig.launch(consumer, Launch::new("consume").reads(batch.ptr(), BYTES))?;
    rig.context().order(consumer, producer)?;
    rig.deallocate(batch, producer)?;
    Ok(())
}

#[test]
fn the_schedule_that_is_told_is_the_shortest_of_all_that_fail() {
    const TRIED: u64 = 64;
    let told = races(polls).seeds(TRIED).check().expect_err("a planted bug");
    let length = |race: &Race| race.hazard().map_or(0, |found| found.schedule.len());
    let replays = (0..TRIED).filter_map(|seed| races(polls).replay(seed).check().err());
    let lengths: Vec<usize> = replays.map(|race| length(&race)).collect();
    let shortest = lengths.iter().min().copied();
    assert_eq!(lengths.len() as u64, told.failing);
    assert_eq!(Some(length(&told)), shortest);
    assert!(shortest.as_ref() < lengths.first(), "the first that fails is not it, or this shows nothing: {lengths:?}");
    let calls = told.hazard().expect("a hazard").calls;
    assert!((length(&told) as u64) < calls / 2, "cut down to what matters: {told}");
}

#[test]
fn even_the_last_seed_there_is_can_be_replayed() {
    let runs = Cell::new(0);
    let verdict = races(|rig| {
        runs.set(runs.get() + 1);
        assert_eq!(rig.driver().seed(), Some(u64::MAX));
        Ok(())
    });
    assert_eq!((verdict.replay(u64::MAX).expect_clean().seeds, runs.get()), (1, 1));
}

#[test]
fn a_wait_for_the_wrong_stream_is_shown_and_what_has_nothing_to_do_with_it_is_not() {
    let race = races(|rig| {
        let (a, b, c) = (rig.stream()?, rig.stream()?, rig.stream()?);
        let batch = rig.allocate(BYTES, a, tag!("batch"))?;
        rig.context().order(a, b)?;
        rig.launch(a, Launch::new("produce").writes(batch.ptr(), BYTES))?;
        rig.launch(c, Launch::new("unrelated"))?;
        rig.context().order(c, b)?;
        rig.launch(b, Launch::new("consume").reads(batch.ptr(), BYTES))?;
        rig.context().order(b, a)?;
        rig.deallocate(batch, a)?;
        Ok(())
    });
    let race = race.check().expect_err("nothing orders b after a");
    let calls = race.hazard().expect("a hazard").schedule.iter().filter(|call| !call.ran);
    let names: Vec<_> = calls.map(|call| call.name).collect();
    assert_eq!(names, ["granted", "produce", "event_record", "stream_wait", "consume"], "{race}");
}

#[test]
fn the_calls_of_buffers_and_submissions_know_their_places() {
    let lines = Cell::new((0, 0));
    let race = races(|rig| {
        let (a, b) = (rig.gpu().streams().lease()?, rig.gpu().streams().lease()?);
        let mut weights = rig.gpu().buffer::<f32>(1024, &a, tag!("weights"))?;
        rig.context().order(*a, *b)?;
        let first = line!() + 1;
        a.submit(|work| work.fill(&mut weights, 1.0))?;
        lines.set((first, line!() + 1));
        rig.launch(&b, Launch::new("undeclared").reads(weights.ptr(), BYTES))?;
        rig.context().synchronize(*b)?;
        Ok(())
    });
    let race = race.seeds(20).check().expect_err("the launch was not declared");
    let hazard = race.hazard().unwrap_or_else(|| panic!("{race}")).hazard;
    let first = hazard.first.expect("two operations");
    assert_eq!((place(&first).1, place(&hazard.second).1), lines.get(), "{race}");
    assert_eq!((first.what, hazard.tag), ("fill", tag!("weights")), "{race}");
    assert!(race.to_string().contains("tag \"weights\""), "{race}");
}

#[test]
fn a_buffer_that_goes_out_of_scope_does_so_at_an_unknown_place_and_its_beginning_is_told() {
    let line = Cell::new(0);
    let race = races(|rig| {
        let (a, b) = (rig.stream()?, rig.stream()?);
        line.set(line!() + 1);
        let weights = rig.gpu().buffer::<u8>(64, a, tag!("weights"))?;
        rig.context().order(a, b)?;
        rig.launch(b, Launch::new("late").reads(weights.ptr(), 64))?;
        Ok(())
    });
    let race = race.seeds(20).check().expect_err("freed too early");
    let found = race.hazard().unwrap_or_else(|| panic!("{race}"));
    assert_eq!(found.hazard.second.location, None, "{race}");
    let begun = found.allocation.and_then(|call| call.location).expect("a place");
    assert_eq!((begun.file(), begun.line()), (file!(), line.get()), "{race}");
    assert!(race.to_string().contains("at an unknown place"), "{race}");
}

#[test]
fn what_is_still_held_is_told_unless_it_is_meant() {
    fn forgets(rig: &Rig) -> Outcome {
        let stream = rig.stream()?;
        let _forgotten = rig.allocate(BYTES, stream, tag!("forgotten"))?;
        Ok(())
    }
    let race = races(forgets).seeds(3).check().expect_err("a leak");
    let Finding::Leak(report) = &race.finding else { panic!("{race}") };
    let leak = report.leaks.iter().find(|leak| leak.kind == LeakKind::Allocation).expect("an allocation");
    assert_eq!((leak.tag, leak.bytes), (tag!("forgotten"), Bytes(BYTES)));
    assert_eq!(leak.location.map(|location| location.file()), Some(file!()));
    races(forgets).seeds(3).allow_leaks().expect_clean();
}

/// Uploads a batch from pinned memory. Threads of the process make and release that, and may come after the end of the program.
fn uploads_from_pinned_memory(rig: &Rig, kept: &mut Option<Vec<PinnedBuffer>>) -> Outcome {
    let (stream, pool) = (rig.gpu().streams().lease()?, PinnedPool::near(rig.gpu())?);
    let mut batch = rig.gpu().buffer::<u8>(BYTES as usize, &stream, tag!("batch"))?;
    let staging = (0..8).map(|_| pool.get(1 << 16)).collect::<Result<Vec<_>, _>>()?;
    drop((pool.prime(1 << 20, 3), pool.get_async(3 << 20)));
    let source = pool.get(BYTES as usize)?;
    let upload = stream.submit(|work| work.copy_from_host(&mut batch, source))?;
    drop((upload.wait()?, staging));
    if let Some(kept) = kept {
        kept.push(pool.get(BYTES as usize)?);
    }
    Ok(())
}

#[test]
fn pinned_memory_that_is_released_late_is_not_still_held_and_what_is_kept_is() {
    let verdict = races(|rig| uploads_from_pinned_memory(rig, &mut None)).seeds(200).expect_clean();
    assert_eq!(verdict.seeds, 200);
    let mut kept = Some(Vec::new());
    let race = races(|rig| uploads_from_pinned_memory(rig, &mut kept)).seeds(3).check().expect_err("a leak");
    assert!(matches!(race.finding, Finding::Leak(_)) && race.failing == 3, "{race}");
}

#[test]
fn pinned_memory_that_a_driver_fails_to_release_is_released_all_the_same() {
    let gets_and_drops = |rig: &Rig| {
        let pool = PinnedPool::near(rig.gpu())?;
        drop((pool.get(1 << 16)?, pool.get(3 << 20)?));
        Ok(())
    };
    let verdict = races(gets_and_drops).seeds(3).failing_each_call().expect_clean();
    assert!(verdict.faults >= 12, "each of two is registered and unregistered: {verdict}");
}

#[test]
fn t7_pinned_memory_of_an_upload_is_released_whichever_call_fails() {
    // The error of a wait that failed has the memory, until the search has told it.
    let uploads = || races(|rig| uploads_from_pinned_memory(rig, &mut None)).seeds(20).failing_each_call();
    let verdict = uploads().expect_clean();
    assert!(verdict.faults >= 20 * 8, "{verdict}");
    uploads().stack(Stack::new().layer(PagePool::default()).over(leaf::Frames)).expect_clean();
}

#[test]
fn a_search_shares_its_devices_with_no_other_that_runs_at_the_same_time() {
    let fills_most_of_a_device = |rig: &Rig| {
        let stream = rig.stream()?;
        let most = rig.allocate(60 << 30, stream, tag!("most"))?;
        rig.deallocate(most, stream)?;
        Ok(())
    };
    let fills_it_around_another = |rig: &Rig| {
        let stream = rig.stream()?;
        let most = rig.allocate(60 << 30, stream, tag!("most"))?;
        races(fills_most_of_a_device).seeds(1).expect_clean();
        rig.deallocate(most, stream)?;
        Ok(())
    };
    races(fills_it_around_another).seeds(1).expect_clean();
}

#[test]
fn an_error_and_a_panic_are_told_with_their_seeds_and_a_hazard_goes_before_them() {
    let runs = Cell::new(0);
    let fails_late = |_: &Rig| {
        runs.set(runs.get() + 1);
        if runs.get() > 3 { Err("out of ideas".into()) } else { Ok(()) }
    };
    let race = races(fails_late).seeds(6).check().expect_err("an error");
    assert_eq!((race.seed, race.failing), (3, 3));
    assert!(race.to_string().starts_with("the program failed: out of ideas"), "{race}");

    let runs = Cell::new(0);
    let panics = |_: &Rig| {
        runs.set(runs.get() + 1);
        assert!(runs.get() < 3, "the third time");
        Ok(())
    };
    let race = races(panics).seeds(6).check().expect_err("a panic");
    assert_eq!((race.seed, race.tried), (2, 3), "nothing is run after a panic");
    assert!(race.to_string().contains("the third time"), "{race}");

    let lines = Cell::default();
    let both = |rig: &Rig| producer_and_consumer(rig, false, &lines).and(Err("wrong numbers".into()));
    let race = races(both).seeds(2).check().expect_err("both");
    assert!(race.hazard().is_some(), "{race}");
    assert!(race.to_string().contains("and then the program failed: wrong numbers"), "{race}");
}

#[test]
fn whatever_stack_is_named_is_the_one_that_runs() {
    let held = Cell::new(Bytes::ZERO);
    let program = |rig: &Rig| {
        let stream = rig.stream()?;
        let buffer = rig.gpu().buffer::<u8>(BYTES as usize, stream, tag!("batch"))?;
        drop(buffer);
        let memory = rig.gpu().memory_info()?;
        held.set(Bytes(memory.total.get() - memory.free.get()));
        Ok(())
    };
    races(program).seeds(20).stack(Stack::new().layer(PagePool::default()).over(leaf::Frames)).expect_clean();
    assert!(held.get() >= Bytes::mib(2), "a pool keeps what was freed");
}

/// The program that the next test runs in processes of its own, where the variable may be set.
#[test]
fn seven_seeds_are_run_or_what_the_parent_expects() {
    let expected = std::env::var("EXPECTED").unwrap_or("clean with 7 seeds, 14 driver calls".to_owned());
    let outcome = races(|_| Ok(())).seeds(7).check();
    assert_eq!(outcome.map_or_else(|race| race.to_string(), |verdict| verdict.to_string()), expected);
}

#[test]
fn the_variable_makes_one_seed_run_alone_and_nonsense_is_refused() {
    let cases = [
        (None, "clean with 7 seeds, 14 driver calls"),
        (Some("3"), "clean with 1 seed, 2 driver calls"),
        (Some("x"), "BURSAR_SEED is no number: \"x\""),
    ];
    for (seed, expected) in cases {
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        child.args(["--exact", "seven_seeds_are_run_or_what_the_parent_expects"]).env("EXPECTED", expected);
        match seed {
            Some(seed) => child.env(SEED_VARIABLE, seed),
            None => child.env_remove(SEED_VARIABLE),
        };
        let output = child.output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{seed:?}: {text}");
    }
}
