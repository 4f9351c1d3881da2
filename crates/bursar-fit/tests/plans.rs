//! Plans compared with every possible plan.

use bursar_core::{Bytes, DeviceId};
use bursar_fit::{Candidate, Headroom, MemoryKind, Need, Overflow, Plan, compute_fit};
use proptest::prelude::*;

fn candidates(available: &[(u64, u32)]) -> Vec<Candidate> {
    let candidate = |(device, &(bytes, distance))| Candidate {
        charged: Bytes::ZERO,
        device: Some(DeviceId(device as u32)),
        available: Bytes(bytes),
        distance,
        limit: None,
    };
    available.iter().enumerate().map(candidate).collect()
}

fn counts(plan: &Plan) -> Vec<u64> {
    plan.assignments.iter().map(|assignment| assignment.workers).collect()
}

/// Returns whether `workers` fit on a device that has `available`.
fn fits(need: &Need, available: u64, workers: u64) -> bool {
    let budget = u128::from(available) * u128::from(need.headroom.get()) / 1_000_000;
    workers == 0 || u128::from(need.fixed.0) + u128::from(need.per_worker.0) * u128::from(workers) <= budget
}

/// The merit of a way to place workers; the smallest is the best: more workers, then evener, then nearer, then earlier.
type Merit = (std::cmp::Reverse<u64>, Vec<u64>, Vec<u32>, Vec<std::cmp::Reverse<u64>>);

fn merit(way: &[u64], candidates: &[(u64, u32)]) -> Merit {
    let mut fullest_first = way.to_vec();
    fullest_first.sort_unstable_by(|a, b| b.cmp(a));
    let mut distances: Vec<u32> =
        way.iter().zip(candidates).flat_map(|(&workers, &(_, distance))| vec![distance; workers as usize]).collect();
    distances.sort_unstable();
    let earlier_first = way.iter().copied().map(std::cmp::Reverse).collect();
    (std::cmp::Reverse(way.iter().sum()), fullest_first, distances, earlier_first)
}

/// Returns every way to place at most `need.want` workers where they fit.
fn every_way(need: &Need, candidates: &[(u64, u32)]) -> Vec<Vec<u64>> {
    candidates.iter().fold(vec![Vec::new()], |ways, &(available, _)| {
        let longer = |way: &Vec<u64>| {
            let left = need.wanted() - way.iter().sum::<u64>();
            let ways = (0..=left).filter(|&workers| fits(need, available, workers));
            ways.map(|workers| [&way[..], &[workers]].concat()).collect::<Vec<_>>()
        };
        ways.iter().flat_map(longer).collect()
    })
}

fn small_need() -> impl Strategy<Value = Need> {
    let headroom = prop_oneof![Just(1_000_000), Just(700_000), 1u32..=1_000_000];
    (0u64..6, 0u64..5, 0u64..7, headroom).prop_map(|(fixed, per_worker, want, millionths)| Need {
        fixed: Bytes(fixed),
        per_worker: Bytes(per_worker),
        want,
        headroom: Headroom::millionths(millionths).expect("a fraction"),
    })
}

fn any_need() -> impl Strategy<Value = Need> {
    let number = || prop_oneof![0u64..9, any::<u64>(), Just(u64::MAX), (0u64..99).prop_map(|gib| gib << 30)];
    (number(), number(), number(), 1u32..=1_000_000).prop_map(|(fixed, per_worker, want, millionths)| Need {
        fixed: Bytes(fixed),
        per_worker: Bytes(per_worker),
        want,
        headroom: Headroom::millionths(millionths).expect("a fraction"),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn f5_no_other_plan_is_better(need in small_need(), given in proptest::collection::vec((0u64..16, 0u32..3), 1..5)) {
        let plan = Plan::of(MemoryKind::Vram, need, &candidates(&given)).expect("there are candidates");
        let ways = every_way(&need, &given);
        let best = ways.iter().min_by_key(|way| merit(way, &given)).expect("nobody anywhere is a way");
        if best.iter().sum::<u64>() == 0 {
            prop_assert!(plan.overflow.is_some());
            prop_assert_eq!(plan.fitting(), 0);
        } else {
            prop_assert_eq!(plan.overflow, None);
            prop_assert_eq!(&counts(&plan), best);
            prop_assert_eq!(plan.workers, best.iter().sum::<u64>());
        }
    }

    #[test]
    fn f5_with_one_candidate_the_plan_is_the_fit(need in any_need(), available in any::<u64>(), shift in 0u32..64) {
        let available = Bytes(available >> shift);
        let plan = Plan::of(MemoryKind::Ram, need, &[Candidate { device: None, available, charged: Bytes::ZERO, distance: 0, limit: None }]).expect("a candidate");
        let fit = compute_fit(available, need.fixed, need.per_worker, need.want, need.headroom);
        prop_assert_eq!((plan.workers, plan.reduced, plan.overflow), (fit.workers, fit.reduced, fit.overflow));
        prop_assert_eq!((plan.budget(), counts(&plan)), (fit.budget, vec![fit.workers]));
    }

    #[test]
    fn f5_large_plans_add_up_and_are_as_even_as_room_allows(
        need in any_need(),
        given in proptest::collection::vec((any::<u64>(), 0u32..3), 1..65),
    ) {
        let plan = Plan::of(MemoryKind::Vram, need, &candidates(&given)).expect("there are candidates");
        let workers = counts(&plan);
        prop_assert_eq!(workers.iter().map(|&n| u128::from(n)).sum::<u128>(), u128::from(plan.workers));
        prop_assert_eq!(plan.reduced, plan.workers < need.wanted());
        if plan.overflow.is_none() {
            for (assignment, &(available, _)) in plan.assignments.iter().zip(&given) {
                prop_assert!(fits(&need, available, assignment.workers));
                // No candidate has two workers more than one that has room for another.
                for other in &plan.assignments {
                    prop_assert!(other.workers <= assignment.workers.saturating_add(1) || assignment.workers == assignment.room);
                }
                prop_assert!(!plan.reduced || !fits(&need, available, assignment.workers.saturating_add(1)));
            }
        }
    }

    #[test]
    fn f2_each_piece_of_advice_makes_one_more_fit_and_only_just(
        need in small_need(),
        given in proptest::collection::vec((0u64..40, 0u32..3), 1..4),
    ) {
        let plan = Plan::of(MemoryKind::Vram, need, &candidates(&given)).expect("there are candidates");
        let fitting = |need: Need, given: &[(u64, u32)]| Plan::of(MemoryKind::Vram, need, &candidates(given)).expect("candidates").fitting();
        let target = plan.fitting() + 1;
        let Some(more) = plan.one_more() else {
            prop_assert_eq!(plan.fitting(), need.wanted());
            return Ok(());
        };
        // If a worker needs nothing, as many as are wanted fit as soon as one does.
        let reached = |workers: u64| workers == target || (need.per_worker == Bytes(0) && workers == need.wanted());
        let with = |change: &dyn Fn(&mut Need)| {
            let mut changed = need;
            change(&mut changed);
            fitting(changed, &given)
        };
        let least = more.available.expect("small numbers").0;
        let grown = |bytes: u64| {
            let mut given = given.clone();
            given[more.candidate].0 = bytes;
            fitting(need, &given)
        };
        prop_assert!(reached(grown(least)) && grown(least - 1) < target);
        for (device, &(available, _)) in given.iter().enumerate() {
            // No device lacks fewer bytes.
            let mut given = given.clone();
            given[device].0 = available + (least - plan.assignments[more.candidate].candidate.available.0) - 1;
            prop_assert!(fitting(need, &given) < target);
        }
        if let Some(most) = more.per_worker {
            prop_assert!(with(&|need| need.per_worker = most) >= target);
            prop_assert!(with(&|need| need.per_worker = Bytes(most.0 + 1)) < target);
        }
        if let Some(most) = more.fixed {
            prop_assert!(with(&|need| need.fixed = most) >= target);
            prop_assert!(with(&|need| need.fixed = Bytes(most.0 + 1)) < target);
        }
        if let Some(least) = more.headroom {
            prop_assert!(with(&|need| need.headroom = least) >= target);
            let less = Headroom::millionths(least.get() - 1);
            prop_assert!(less.map_or(true, |less| with(&|need| need.headroom = less) < target));
        } else {
            prop_assert!(with(&|need| need.headroom = Headroom::ALL) < target);
        }
    }
}

#[test]
fn f5_the_odd_worker_goes_to_the_nearest_and_then_to_the_first() {
    let need = Need { per_worker: Bytes(1), want: 4, headroom: Headroom::ALL, ..Need::default() };
    let planned =
        |given: &[(u64, u32)]| counts(&Plan::of(MemoryKind::Vram, need, &candidates(given)).expect("candidates"));
    assert_eq!(planned(&[(9, 1), (9, 0), (9, 1)]), [1, 2, 1]);
    assert_eq!(planned(&[(9, 1), (9, 1), (9, 1)]), [2, 1, 1]);
    assert_eq!(planned(&[(1, 0), (9, 1), (9, 1)]), [1, 2, 1]);
}

#[test]
fn f5_where_nothing_fits_the_candidate_with_the_most_is_blamed() {
    let need = Need { fixed: Bytes(8), per_worker: Bytes(4), want: 2, headroom: Headroom::ALL };
    for (given, expected, overflow) in [
        ([(4, 0), (9, 1), (9, 1)], [0, 1, 0], Overflow::Worker),
        ([(4, 0), (9, 1), (9, 0)], [0, 0, 1], Overflow::Worker),
        ([(4, 0), (4, 0), (3, 0)], [1, 0, 0], Overflow::Shared),
    ] {
        let plan = Plan::of(MemoryKind::Vram, need, &candidates(&given)).expect("candidates");
        assert_eq!((counts(&plan), plan.overflow), (expected.to_vec(), Some(overflow)));
    }
    assert_eq!(Plan::of(MemoryKind::Vram, need, &[]), None);
}
