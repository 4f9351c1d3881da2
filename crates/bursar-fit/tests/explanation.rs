//! Plans in words.

use bursar_core::{Bytes, DeviceId};
use bursar_fit::{Candidate, Headroom, MemoryKind, Need, Plan};

fn need(fixed_gib: u64, per_worker_gib: u64, want: u64) -> Need {
    Need { fixed: Bytes::gib(fixed_gib), per_worker: Bytes::gib(per_worker_gib), want, ..Need::default() }
}

fn plan(memory: MemoryKind, need: Need) -> Plan {
    Plan::of(
        memory,
        need,
        &[Candidate { device: None, available: Bytes::gib(64), charged: Bytes::ZERO, distance: 0, limit: None }],
    )
    .expect("a candidate")
}

#[test]
fn f2_ram_warns_of_swapping_and_vram_says_that_it_does_not() {
    let [ram, vram] = [MemoryKind::Ram, MemoryKind::Vram]
        .map(|memory| plan(memory, need(60, 4, 16)).overflow_message().expect("overflow"));
    assert_eq!(
        ram,
        "the shared data of 60 GiB exceeds the RAM budget of 44.80 GiB, so the shared data will swap; going on with 1 worker"
    );
    assert_eq!(
        vram,
        "the shared data of 60 GiB exceeds the VRAM budget of 44.80 GiB; VRAM does not swap, so allocating it would fail"
    );
}

#[test]
fn f2_the_one_that_overflowed_is_blamed() {
    let overflow_message = |fixed, each| plan(MemoryKind::Ram, need(fixed, each, 2)).overflow_message();
    assert!(overflow_message(45, 1).expect("overflow").starts_with("the shared data of 45 GiB exceeds"));
    assert!(
        overflow_message(44, 1)
            .expect("overflow")
            .starts_with("one worker of 1 GiB beside 44 GiB of shared data exceeds")
    );
    let alone = overflow_message(0, 45).expect("overflow");
    assert!(alone.starts_with("one worker of 45 GiB exceeds") && alone.contains("the worker will swap"), "{alone}");
    assert_eq!(overflow_message(44, 0), None);
    assert_eq!(overflow_message(0, 44), None);
}

#[test]
fn f2_the_decision_is_one_line_with_every_number() {
    let line = plan(MemoryKind::Ram, need(10, 4, 16)).log_line("embed");
    assert_eq!(
        line,
        "embed: RAM: 64 GiB free, budget 44.80 GiB, fixed 10 GiB, per worker 4 GiB: 8 workers, reduced from 16 to 8 workers"
    );
    let line = plan(MemoryKind::Vram, need(60, 4, 1)).log_line("embed");
    assert!(line.contains(": 1 worker: the shared data of 60 GiB exceeds") && !line.contains('\n'), "{line}");
}

#[test]
fn f5_a_plan_explains_itself_in_two_sentences() {
    let candidate = |device, gib| Candidate {
        device: Some(DeviceId(device)),
        available: Bytes::gib(gib),
        charged: Bytes::ZERO,
        distance: 0,
        limit: None,
    };
    let explained = |need, candidates: &[Candidate]| {
        Plan::of(MemoryKind::Vram, need, candidates).expect("candidates").explanation()
    };
    let all = Need { headroom: Headroom::ALL, ..need(2, 4, 3) };
    assert_eq!(
        explained(all, &[candidate(0, 10), candidate(1, 80)]),
        "All 3 workers fit: 2 on gpu0 and 1 on gpu1. On each device 2 GiB are shared and a worker needs 4 GiB: gpu0 may use \
         10 GiB of 10 GiB and has room for 2 and gpu1 may use 80 GiB of 80 GiB and has room for 19."
    );
    assert_eq!(
        plan(MemoryKind::Ram, need(10, 4, 16)).explanation(),
        "8 of 16 workers fit into RAM. Of 64 GiB available 44.80 GiB may be used; 10 GiB are shared and a worker needs 4 GiB."
    );
    let many: Vec<Candidate> = (0..12).map(|device| candidate(device, 80)).collect();
    for (need, candidates) in [(all, &many[..]), (need(90, 4, 3), &many[..1]), (need(0, 0, 1), &many[..1])] {
        let text = explained(need, candidates);
        assert_eq!(text.matches(". ").count() + usize::from(text.ends_with('.')), 2, "{text}");
    }
}

#[test]
fn f2_the_advice_names_every_way_and_is_silent_where_all_fit() {
    assert_eq!(
        plan(MemoryKind::Ram, need(10, 4, 16)).advice().expect("reduced"),
        "One more worker would fit with 1.72 GiB more available, if a worker needed at most 3.86 GiB, if at most 8.79 GiB \
         were shared, or with a headroom of 0.71875."
    );
    assert_eq!(plan(MemoryKind::Ram, need(10, 4, 8)).advice(), None);
    let overflow = plan(MemoryKind::Vram, need(60, 4, 1)).advice().expect("overflow");
    assert!(
        overflow.starts_with("One worker would fit with 27.43 GiB more available, if at most 40.79 GiB"),
        "{overflow}"
    );
}
