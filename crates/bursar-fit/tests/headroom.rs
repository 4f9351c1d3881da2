//! The headroom of fits that come one after the other: what one leaves free, no other takes.

#[allow(dead_code, reason = "this test needs no control groups")]
mod machine;

use bursar_core::{Build, Bytes, DeviceBlock, DeviceContext, DeviceId, DeviceMemoryResource, Stack, leaf, tag};
use bursar_fit::{Candidate, FitError, Headroom, MemoryKind, Need, Plan, ReservedPlan, Spec, fit_workers};
use bursar_ledger::{Ledger, Reservation};
use bursar_sim::Sim;
use machine::Machine;
use proptest::prelude::*;
use std::process::Command;
use std::sync::{Arc, Barrier, Mutex};

const GIB: u64 = 1 << 30;

fn device(gib: u64) -> (Arc<Sim>, Arc<DeviceContext>) {
    let sim = Sim::builder().immediate().devices(1, Bytes::gib(gib)).build();
    let context = DeviceContext::open(sim.clone(), DeviceId(0)).expect("a simulated device");
    (sim, context)
}

/// Returns how many workers of a plan fit, and the plan, which keeps their memory.
fn fitted(outcome: Result<ReservedPlan, FitError>) -> (u64, Option<ReservedPlan>) {
    match outcome {
        Ok(reserved) => (reserved.plan.fitting(), Some(reserved)),
        Err(error) => {
            assert!(error.is_capacity(), "{error}");
            (0, None)
        }
    }
}

#[test]
fn f9_what_the_first_of_four_fits_leaves_free_stays_free() {
    let (_sim, context) = device(100);
    let spec = Spec::vram("stage", [context]).per_worker(Bytes::gib(1)).want(100);
    let fits: Vec<_> = (0..4).map(|_| fitted(fit_workers(&spec))).collect();
    assert_eq!(fits.iter().map(|(workers, _)| *workers).collect::<Vec<_>>(), [70, 0, 0, 0]);
    let shown = spec.plan().expect("a device").explanation();
    assert!(shown.contains("Of 30 GiB available on gpu0 beside 70 GiB that others have 0 B may be used"), "{shown}");
}

#[test]
fn f9_each_headroom_is_of_the_sum_whatever_those_before_had() {
    let (_sim, context) = device(100);
    let spec =
        |headroom: f64| Spec::vram("stage", [context.clone()]).per_worker(Bytes::gib(1)).want(100).headroom(headroom);
    let (half, kept) = fitted(fit_workers(&spec(0.5)));
    let (more, _kept) = fitted(fit_workers(&spec(0.9)));
    let (none, _) = fitted(fit_workers(&spec(0.7)));
    assert_eq!((half, more, none), (50, 40, 0));
    drop(kept);
    let (again, _kept) = fitted(fit_workers(&spec(0.7)));
    assert_eq!(again, 30, "beside 40");
}

#[test]
fn f9_fits_at_once_keep_the_headroom_together() {
    for _ in 0..20 {
        let (_sim, context) = device(100);
        let start = Barrier::new(6);
        let fits: Vec<_> = std::thread::scope(|scope| {
            let (context, start) = (&context, &start);
            let fit = |want| {
                start.wait();
                fitted(fit_workers(&Spec::vram("stage", [context.clone()]).per_worker(Bytes::gib(1)).want(want)))
            };
            let threads: Vec<_> = (0..6).map(|n| scope.spawn(move || fit(20 + n))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(fits.iter().map(|(workers, _)| workers).sum::<u64>(), 70, "135 were wanted");
    }
}

#[test]
fn f9_what_others_reserve_between_plan_and_reservation_counts() {
    let sim = Sim::builder().immediate().devices(2, Bytes::gib(100)).build();
    let contexts = [0, 1].map(|n| DeviceContext::open(sim.clone(), DeviceId(n)).expect("a device"));
    let [first, second] = contexts.each_ref().map(|context| Ledger::for_device(context).expect("a ledger"));
    let others = Arc::new(Mutex::new(None));
    let (taken, ledger) = (others.clone(), first.clone());
    // The second device is asked after the first.
    let _late = second.on_reclaim(|_| Bytes::ZERO).with_cached(move || {
        taken.lock().expect("no panic").get_or_insert_with(|| ledger.reserve(Bytes::gib(50)).expect("room"));
        Bytes::ZERO
    });
    let spec = Spec::vram("stage", contexts).per_worker(Bytes::gib(1)).want(90);
    let reserved = fit_workers(&spec).expect("20 and 70");
    let workers: Vec<_> = reserved.shares.iter().map(|share| share.workers).collect();
    assert_eq!((workers, others.lock().expect("no panic").is_some()), (vec![20, 70], true));
    assert_eq!(first.reading().expect("a ledger").undrawn, Bytes::gib(70));
}

/// An act of one of several programs on a device.
#[derive(Clone, Debug)]
enum Act {
    /// Fits workers: the headroom in hundredths, and GiB.
    Fit {
        hundredths: u32,
        fixed: u64,
        per_worker: u64,
        want: u64,
    },
    /// Ends a stage.
    End(usize),
    /// Reserves without a headroom.
    Reserve(u64),
    /// Takes memory outside the ledger.
    Foreign(u64),
    /// Gives such memory back.
    Return(usize),
    Limit(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (1u32..=100, 0u64..8, 1u64..12, 1u64..40).prop_map(|(hundredths, fixed, per_worker, want)| Act::Fit {
            hundredths,
            fixed,
            per_worker,
            want
        }),
        3 => any::<usize>().prop_map(Act::End),
        1 => (1u64..20).prop_map(Act::Reserve),
        1 => (1u64..30).prop_map(Act::Foreign),
        1 => any::<usize>().prop_map(Act::Return),
        1 => (1u64..=120).prop_map(Act::Limit),
    ]
}

/// The programs on a device of 100 GiB.
struct Programs {
    /// Memory that no ledger knows.
    foreign_memory: Box<dyn DeviceMemoryResource>,
    context: Arc<DeviceContext>,
    ledger: Ledger,
    stages: Vec<ReservedPlan>,
    reserved: Vec<Reservation>,
    foreign: Vec<DeviceBlock>,
    limit: u64,
}

impl Programs {
    fn new() -> Self {
        let (_, context) = device(100);
        let ledger = Ledger::for_device(&context).expect("a ledger");
        let foreign_memory = Box::new(Stack::new().over(leaf::Direct).build(&context).expect("a stack"));
        Self {
            foreign_memory,
            context,
            ledger,
            stages: Vec::new(),
            reserved: Vec::new(),
            foreign: Vec::new(),
            limit: 100,
        }
    }

    /// Returns the bytes that all programs have of the ledger.
    fn charged(&self) -> u64 {
        let reading = self.ledger.reading().expect("a ledger");
        reading.held.get() + reading.undrawn.get()
    }

    /// Returns the bytes that all programs could have of it.
    fn whole(&self) -> u64 {
        let foreign: u64 = self.foreign.iter().map(|block| block.granted().get()).sum();
        (self.limit * GIB).min(100 * GIB - foreign)
    }

    fn fit(&mut self, hundredths: u32, fixed: u64, per_worker: u64, want: u64) {
        let headroom = Headroom::millionths(hundredths * 10_000).expect("a fraction");
        let spec = Spec::vram("stage", [self.context.clone()]).headroom(headroom).want(want);
        let spec = spec.fixed(Bytes::gib(fixed)).per_worker(Bytes::gib(per_worker));
        let before = self.charged();
        let usable = self.whole() * u64::from(hundredths) / 100;
        let rest = usable.saturating_sub(before).checked_sub(fixed * GIB);
        // What is set aside can be more than is left where the limit was lowered or a foreign program took it.
        let expected = rest.map_or(0, |rest| rest / (per_worker * GIB)).min(want);
        let (workers, reserved) = fitted(fit_workers(&spec));
        assert_eq!(workers, expected, "{before} of {} are charged", self.whole());
        assert!(workers == 0 || self.charged() <= usable, "{} of {usable}", self.charged());
        self.stages.extend(reserved);
    }

    fn end(mut self) {
        for block in self.foreign.drain(..) {
            self.foreign_memory.deallocate(block, self.context.default_stream()).expect("allocated above");
        }
    }

    fn perform(&mut self, act: &Act) {
        match *act {
            Act::Fit { hundredths, fixed, per_worker, want } => self.fit(hundredths, fixed, per_worker, want),
            Act::End(at) if !self.stages.is_empty() => drop(self.stages.swap_remove(at % self.stages.len())),
            Act::Reserve(gib) => self.reserved.extend(self.ledger.reserve(Bytes::gib(gib)).ok()),
            Act::Foreign(gib) => {
                let stream = self.context.default_stream();
                self.foreign.extend(self.foreign_memory.allocate(gib * GIB, 256, stream, tag!("foreign")).ok());
            }
            Act::Return(at) if !self.foreign.is_empty() => {
                let block = self.foreign.swap_remove(at % self.foreign.len());
                self.foreign_memory.deallocate(block, self.context.default_stream()).expect("allocated above");
            }
            Act::Limit(gib) => {
                self.limit = gib;
                self.ledger.set_limit(Bytes::gib(gib)).expect("a limit");
            }
            Act::End(_) | Act::Return(_) => (),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn f9_the_headroom_holds_for_the_sum_whatever_happened_before(acts in proptest::collection::vec(act(), 1..40)) {
        let mut programs = Programs::new();
        for act in &acts {
            programs.perform(act);
        }
        programs.end();
    }
}

proptest! {
    /// What is said to make one more worker fit does, only just, beside whatever others have.
    #[test]
    fn f9_the_advice_counts_what_others_have(
        available in 0u64..1 << 40,
        charged in 0u64..1 << 40,
        fixed in 0u64..1 << 30,
        per_worker in 1u64..1 << 36,
        want in 1u64..100,
        millionths in 1u32..=1_000_000,
    ) {
        let headroom = Headroom::millionths(millionths).expect("a fraction");
        let fitting = |available, headroom| {
            let candidate = Candidate { device: None, available, charged: Bytes(charged), distance: 0, limit: None };
            let need = Need { fixed: Bytes(fixed), per_worker: Bytes(per_worker), want, headroom };
            Plan::of(MemoryKind::Vram, need, &[candidate]).expect("a candidate")
        };
        let plan = fitting(Bytes(available), headroom);
        let budget = u128::from(available + charged) * u128::from(millionths) / 1_000_000;
        prop_assert_eq!(u128::from(plan.budget().get()), budget.saturating_sub(charged.into()));
        let Some(more) = plan.one_more() else { return Ok(()) };
        let before = plan.fitting();
        if let Some(least) = more.available {
            prop_assert_eq!(fitting(least, headroom).fitting(), before + 1);
            prop_assert_eq!(fitting(Bytes(least.get() - 1), headroom).fitting(), before);
            // Others that give so much back are enough as well.
            let given_back = least.get() - available;
            let rest = Candidate {
                device: None,
                available: least,
                charged: Bytes(charged.saturating_sub(given_back)),
                distance: 0,
                limit: None,
            };
            prop_assert!(charged < given_back || Plan::of(MemoryKind::Vram, plan.need, &[rest]).expect("one").fitting() > before);
        }
        if let Some(least) = more.headroom {
            prop_assert!(fitting(Bytes(available), least).fitting() > before);
            let below = Headroom::millionths(least.get() - 1);
            prop_assert!(below.map_or(true, |below| fitting(Bytes(available), below).fitting() <= before));
        }
    }

    #[test]
    fn f9_a_fraction_is_rounded_down_to_the_millionth_or_refused(
        millionths in 1u32..1_000_000,
        part in 0.001f64..0.999,
        beyond in 1.0000001f64..1e9,
    ) {
        let taken = |fraction| Headroom::try_from(fraction).map(Headroom::get);
        prop_assert_eq!(taken(f64::from(millionths) / 1e6), Ok(millionths));
        prop_assert_eq!(taken((f64::from(millionths) + part) / 1e6), Ok(millionths));
        prop_assert_eq!((taken(part / 1e6), taken(f64::MIN_POSITIVE), taken(1.0)), (Ok(1), Ok(1), Ok(1_000_000)));
        for wrong in [beyond, -beyond, 0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let error = Headroom::try_from(wrong).expect_err("no fraction").to_string();
            prop_assert!(error.contains(&wrong.to_string()) && error.contains("above 0 and at most 1"), "{}", error);
            let spec = Spec::ram("stage").available(Bytes(10)).headroom(wrong);
            prop_assert!(matches!(spec.plan(), Err(FitError::Headroom(_))));
            prop_assert!(matches!(fit_workers(&spec), Err(FitError::Headroom(_))));
            prop_assert!(spec.headroom(0.5).plan().is_ok(), "the last one counts");
        }
    }
}

#[test]
fn f10_ram_needs_no_ledger_and_is_set_aside_among_the_stages_of_a_process() {
    const CHILD: &str = "BURSAR_FIT_TEST_WITHOUT_LEDGER";
    let name = "f10_ram_needs_no_ledger_and_is_set_aside_among_the_stages_of_a_process";
    if std::env::var_os(CHILD).is_none() {
        let folder = std::env::temp_dir().join(format!("bursar-fit-no-ledger-{}", std::process::id()));
        // One that does not exist, and one that never can.
        for place in [folder.clone(), "/dev/null/ledgers".into()] {
            let this = std::env::current_exe().expect("this test");
            let mut command = Command::new(this);
            let output = command.args(["--exact", name]).env("BURSAR_LEDGER_DIR", &place).env(CHILD, "1").output();
            let output = output.expect("this test");
            let told = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success() && told.contains("1 passed"), "{}: {told}", place.display());
            assert!(!folder.exists(), "no folder is made");
        }
        return;
    }
    let machine = Machine::new(128 * GIB, 100 * GIB);
    let spec = || Spec::ram("stage").machine(machine.ram()).per_worker(Bytes::gib(1)).allow_overflow(false).want(100);
    assert_eq!(spec().want(10).plan().expect("a machine").workers, 10);
    let (first, kept) = fitted(fit_workers(&spec()));
    let (second, _) = fitted(fit_workers(&spec()));
    let (third, _kept) = fitted(fit_workers(&spec().headroom(0.8)));
    assert_eq!((first, second, third), (70, 0, 10));
    drop(kept);
    assert_eq!(spec().plan().expect("a machine").workers, 60, "beside 10");
}
