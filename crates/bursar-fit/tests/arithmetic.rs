//! The arithmetic, compared with a reference in numbers of any size.

use bursar_core::Bytes;
use bursar_fit::{Fit, Headroom, Overflow, compute_fit};
use num_bigint::BigUint;
use proptest::prelude::*;

/// Computes the clause, word for word, in numbers of any size.
fn reference(available: u64, fixed: u64, per_worker: Option<u64>, want: Option<u64>, millionths: u32) -> Fit {
    let big = |number: u64| BigUint::from(number);
    let zero = big(0);
    let want = big(want.unwrap_or(0).max(1));
    let budget = big(available) * big(u64::from(millionths)) / big(1_000_000);
    let fixed = big(fixed);
    let (workers, overflow) = match big(per_worker.unwrap_or(0)) {
        none if none == zero => (want.clone(), (fixed > budget).then_some(Overflow::Shared)),
        _ if fixed > budget => (big(1), Some(Overflow::Shared)),
        each => match (&budget - &fixed) / each {
            none if none == zero => (big(1), Some(Overflow::Worker)),
            fitting => (fitting.min(want.clone()), None),
        },
    };
    let narrow = |number: &BigUint| u64::try_from(number).expect("at most what was given");
    Fit { workers: narrow(&workers), reduced: workers < want, overflow, budget: Bytes(narrow(&budget)) }
}

fn computed(available: u64, fixed: u64, per_worker: Option<u64>, want: Option<u64>, millionths: u32) -> Fit {
    let headroom = Headroom::millionths(millionths).expect("a fraction");
    compute_fit(Bytes(available), Bytes(fixed), per_worker.map(Bytes), want, headroom)
}

const EDGES: [u64; 9] = [0, 1, 2, 3, 999_999, 1_000_000, 1 << 40, u64::MAX - 1, u64::MAX];

/// Generates edge cases, small numbers that often divide evenly, sizes of machines, and any number.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        proptest::sample::select(&EDGES[..]),
        0u64..64,
        (0u64..512).prop_map(|gib| gib << 30),
        any::<u64>(),
        (0u32..64, any::<u64>()).prop_map(|(shift, number)| number >> shift),
    ]
}

fn millionths() -> impl Strategy<Value = u32> {
    prop_oneof![Just(1), Just(700_000), Just(999_999), Just(1_000_000), 1u32..=1_000_000]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn f1_the_fit_is_the_clause_in_numbers_without_an_end(
        available in number(),
        fixed in number(),
        per_worker in proptest::option::of(number()),
        want in proptest::option::of(number()),
        millionths in millionths(),
    ) {
        let fit = computed(available, fixed, per_worker, want, millionths);
        prop_assert_eq!(fit, reference(available, fixed, per_worker, want, millionths));
        prop_assert!(fit.workers >= 1);
    }

    #[test]
    fn f1_what_fits_fits_and_one_more_would_not(
        available in number(), fixed in number(), each in number(), want in number(), millionths in millionths(),
    ) {
        let fit = computed(available, fixed, Some(each), Some(want), millionths);
        let needed = |workers: u64| BigUint::from(fixed) + BigUint::from(each) * BigUint::from(workers);
        let budget = BigUint::from(fit.budget.get());
        if fit.overflow.is_none() {
            prop_assert!(needed(fit.workers) <= budget);
            prop_assert!(!fit.reduced || needed(fit.workers) + BigUint::from(each) > budget);
        } else {
            prop_assert!(needed(1) > budget);
        }
    }

    #[test]
    fn f1_any_text_is_a_fraction_or_refused(text in "\\PC{0,12}|[0-9.]{0,12}") {
        let Ok(headroom) = text.parse::<Headroom>() else { return Ok(()) };
        prop_assert!((1..=1_000_000).contains(&headroom.get()));
        prop_assert_eq!(headroom.to_string().parse(), Ok(headroom));
        let number: f64 = text.trim().parse().expect("what is read here is a number");
        prop_assert!((number * 1e6 - f64::from(headroom.get())).abs() < 1e-3, "{}", text);
    }
}

#[test]
fn f1_every_combination_of_the_edges_is_exact() {
    for available in EDGES {
        for fixed in EDGES {
            for per_worker in EDGES {
                for want in EDGES {
                    for millionths in [1, 700_000, 999_999, 1_000_000] {
                        let numbers = (available, fixed, Some(per_worker), Some(want), millionths);
                        let (a, f, p, w, m) = numbers;
                        assert_eq!(computed(a, f, p, w, m), reference(a, f, p, w, m), "{numbers:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn f1_seven_of_ten_workers_fit_into_seven_tenths() {
    let fit = computed(10, 0, Some(1), Some(10), 700_000);
    assert_eq!((fit.workers, fit.reduced, fit.overflow, fit.budget), (7, true, None, Bytes(7)));
}

#[test]
fn f1_absent_and_zero_are_the_same() {
    let is_one = |want| assert_eq!(computed(100, 0, Some(1), want, 1_000_000).workers, 1);
    [None, Some(0), Some(1)].into_iter().for_each(is_one);
    for per_worker in [None, Some(0)] {
        let fits = computed(100, 100, per_worker, Some(9), 1_000_000);
        assert_eq!((fits.workers, fits.reduced, fits.overflow), (9, false, None));
        let overflows = computed(100, 101, per_worker, Some(9), 1_000_000);
        assert_eq!((overflows.workers, overflows.reduced, overflows.overflow), (9, false, Some(Overflow::Shared)));
    }
}

#[test]
fn f1_a_headroom_outside_its_range_is_an_error_and_says_so() {
    for millionths in [0, 1_000_001, u32::MAX] {
        let error = Headroom::millionths(millionths).expect_err("outside");
        assert!(error.to_string().contains("above 0 and at most 1"), "{error}");
    }
    for text in ["0", "0.0", "-0.5", "1.000001", "2", "nan", "inf", "1e-1", "", ".", "0.7000001", "0,7", "70%", "٠.٧"]
    {
        let error = text.parse::<Headroom>().expect_err(text);
        assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
    }
    for (text, millionths) in
        [("1", 1_000_000), ("1.0", 1_000_000), (".5", 500_000), ("0.000001", 1), (" 0.70 ", 700_000)]
    {
        assert_eq!(text.parse::<Headroom>().map(Headroom::get), Ok(millionths), "{text}");
    }
}
