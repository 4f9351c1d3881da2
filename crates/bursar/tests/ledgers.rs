//! The ledgers of a program, with its pools, its tenants and its choice of a device.

use bursar::driver::Status;
use bursar::error::Shortage;
use bursar::fit::Spec;
use bursar::ledger::{RefusalReason, Reservation, ReserveOptions, Subject, UsageReading};
use bursar::memory::{Account, Admission, ObservedResource};
use bursar::prelude::*;
use bursar::sim::{Call, Faults, Random, Sim};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const GPU: Bytes = Bytes::gib(8);

fn sim(devices: usize) -> Arc<Sim> {
    Sim::builder().immediate().devices(devices, GPU).build()
}

fn open(driver: Arc<dyn Driver>) -> Arc<DeviceContext> {
    DeviceContext::open(driver, DeviceId(0)).expect("a device")
}

/// Creates a pool of a tenant, on the device of a context.
fn pool(ledgers: &Ledgers, context: &Arc<DeviceContext>) -> impl DeviceMemoryResource + use<> {
    let stack = Stack::new().layer(PagePool::default()).layer(ledgers.budget()).over(leaf::Frames);
    let memory: ObservedResource<_> = stack.build(context).expect("a stack");
    memory
}

/// Makes a pool hold `bytes` that nobody uses.
fn cache(memory: &impl DeviceMemoryResource, bytes: Bytes, stream: Stream) {
    let block = memory.allocate(bytes.get(), 256, stream, tag!("passing")).expect("room");
    memory.deallocate(block, stream).expect("its own");
}

#[test]
fn l2_an_owner_that_asks_has_a_borrowers_pool_trimmed_and_is_granted() {
    let (ledgers, context) = (Ledgers::default(), open(sim(1)));
    let ledger = ledgers.of(&context).expect("a ledger");
    let owner = ledger.tenant("serving").expect("room");
    owner.configure(Bytes::gib(6), GPU).expect("it fits");
    let borrower = pool(&ledgers.tenant("batch"), &context);
    let stream = context.create_stream(0).expect("a stream");
    let used = borrower.allocate(1 << 30, 256, stream, tag!("used")).expect("room");
    cache(&borrower, Bytes::gib(6), stream);
    assert_eq!(ledger.reading().expect("works").held, Bytes::gib(7), "what is cached is charged");

    let reservation = owner.reserve(Bytes::gib(6)).expect("the borrower's pool lets go");
    let reading = ledger.reading().expect("works");
    assert_eq!((reading.held, reading.undrawn), (Bytes::gib(1), Bytes::gib(6)));
    let refused = borrower.allocate(2 << 30, 256, stream, tag!("more")).expect_err("it is the owner's");
    assert!(refused.is_capacity(), "{refused}");
    drop(reservation);
    cache(&borrower, Bytes::gib(6), stream);
    borrower.deallocate(used, stream).expect("its own");
}

#[test]
fn l2_an_owners_stack_grows_into_what_was_borrowed() {
    let (ledgers, context) = (Ledgers::default(), open(sim(1)));
    let ledger = ledgers.of(&context).expect("a ledger");
    ledger.tenant("serving").expect("room").configure(Bytes::gib(6), GPU).expect("it fits");
    let (borrower, owner) = (pool(&ledgers.tenant("batch"), &context), pool(&ledgers.tenant("serving"), &context));
    let stream = context.create_stream(0).expect("a stream");
    cache(&borrower, GPU, stream);
    let block = owner.allocate(6 << 30, 256, stream, tag!("weights")).expect("without an error in between");
    assert!(ledger.reading().expect("works").held >= Bytes::gib(6));
    owner.deallocate(block, stream).expect("its own");
}

#[test]
fn l3_a_stack_on_a_reservation_draws_it_down_and_returns_the_rest() {
    let (ledgers, context) = (Ledgers::default(), open(sim(1)));
    let ledger = ledgers.of(&context).expect("a ledger");
    let reservation = Arc::new(ledgers.reserve(&context, Bytes::gib(3)).expect("room"));
    let stack = Stack::new()
        .layer(PagePool::default())
        .layer(GlobalDeviceBudget::shared(reservation.clone()))
        .over(leaf::Frames);
    let memory = stack.build(&context).expect("a stack");
    let stream = context.create_stream(0).expect("a stream");
    let others = pool(&ledgers, &context);
    let theirs = others.allocate(5 << 30, 256, stream, tag!("theirs")).expect("what is not set aside");
    let ours = memory.allocate(3 << 30, 256, stream, tag!("ours")).expect("what was set aside");
    assert_eq!((reservation.held(), reservation.undrawn()), (Bytes::gib(3), Bytes::ZERO));
    assert!(memory.allocate(1, 256, stream, tag!("more")).expect_err("all of it is drawn").is_capacity());
    memory.deallocate(ours, stream).expect("its own");
    drop((memory, stack, reservation));
    let reading = ledger.reading().expect("works");
    assert_eq!((reading.held, reading.undrawn), (Bytes::gib(5), Bytes::ZERO));
    others.deallocate(theirs, stream).expect("its own");
}

#[test]
fn l8_what_our_pools_only_keep_is_available_and_can_be_reserved() {
    let (ledgers, context) = (Ledgers::default(), open(sim(1)));
    let memory = pool(&ledgers, &context);
    let stream = context.create_stream(0).expect("a stream");
    let used = memory.allocate(1 << 30, 256, stream, tag!("used")).expect("room");
    cache(&memory, Bytes::gib(5), stream);
    assert_eq!(ledgers.available(&context).expect("works"), Bytes::gib(7));
    let reservation = ledgers.reserve(&context, Bytes::gib(7)).expect("what is available can be had");
    assert_eq!(ledgers.available(&context).expect("works"), Bytes::ZERO);
    drop(reservation);
    memory.deallocate(used, stream).expect("its own");
}

/// Allocates and frees at random, and returns what is said to be available and what of that can be had: in one block, and by a
/// reservation where no work is under way.
fn available_in_the_end(seed: u64, is_immediate: bool) -> (Bytes, [Result<(), Error>; 2]) {
    let builder = Sim::builder().device(Bytes::gib(1)).seed(seed);
    let context = open(if is_immediate { builder.immediate() } else { builder }.build());
    let (ledgers, mut random) = (Ledgers::default(), Random::new(seed));
    let memory = pool(&ledgers, &context);
    let streams = [(); 2].map(|()| context.create_stream(0).expect("a stream"));
    let mut live = Vec::new();
    for _ in 0..random.below(60) {
        let stream = streams[random.index(2)];
        if random.below(5) < 3 {
            let most = 1 << (8 + random.below(19));
            let bytes = random.below(most) + 1;
            live.extend(memory.allocate(bytes, 256, stream, tag!("random")).ok());
        } else if !live.is_empty() {
            let block = live.swap_remove(random.index(live.len()));
            memory.deallocate(block, stream).expect("its own");
        }
    }
    let available = ledgers.available(&context).expect("works");
    let reserved = if is_immediate { ledgers.reserve(&context, available).map(drop) } else { Ok(()) };
    let block = memory.allocate(available.get(), 256, streams[0], tag!("all there is"));
    let granted = block.map(|block| memory.deallocate(block, streams[0]).expect("its own"));
    live.into_iter().for_each(|block| memory.deallocate(block, streams[0]).expect("its own"));
    (available, [reserved, granted])
}

#[test]
fn l8_what_is_said_to_be_available_can_be_had_in_one_piece() {
    for (seed, is_immediate) in (0..200).map(|nth| (nth / 2, nth % 2 == 0)) {
        let (available, had) = available_in_the_end(seed, is_immediate);
        assert!(available >= Bytes::mib(256), "seed {seed}: {available} of 1 GiB, of which little is used");
        for had in had {
            had.unwrap_or_else(|error| panic!("seed {seed}, immediate {is_immediate}: {available}, and {error}"));
        }
    }
}

#[test]
fn l8_memory_taken_outside_the_ledger_is_not_available() {
    let (ledgers, context) = (Ledgers::default(), open(sim(1)));
    context.driver().allocate(DeviceId(0), 3 << 30).expect("room");
    assert_eq!(ledgers.available(&context).expect("works"), Bytes::gib(5));
    assert!(ledgers.reserve(&context, Bytes::gib(6)).expect_err("somebody has it").is_capacity());
    assert_eq!(ledgers.of(&context).expect("a ledger").reading().expect("works").unmanaged, Bytes::gib(3));
}

#[test]
fn d4_choosers_that_come_at_once_share_the_devices_exactly() {
    const UNIT: Bytes = Bytes::gib(1);
    let gpus = DevicePool::open(sim(3), &Stack::new().over(leaf::Async)).expect("devices");
    let ledgers = Ledgers::default();
    let kept: Vec<Reservation> = std::thread::scope(|scope| {
        let choose = || {
            let reserved = (0..6).map_while(|_| gpus.reserve_on_best(&ledgers, UNIT).ok());
            reserved.map(|(_, reservation)| reservation).collect::<Vec<_>>()
        };
        let choosers: Vec<_> = (0..6).map(|_| scope.spawn(choose)).collect();
        choosers.into_iter().flat_map(|chooser| chooser.join().expect("no panic")).collect()
    });
    assert_eq!(kept.len(), 24, "36 were wanted of three times eight");
    for gpu in &gpus {
        assert_eq!(ledgers.available(gpu.context()).expect("works"), Bytes::ZERO);
    }
    assert!(gpus.reserve_on_best(&ledgers, Bytes(1)).expect_err("all is set aside").is_capacity());
    drop(kept);
    let (gpu, _all) = gpus.reserve_on_best(&ledgers, GPU).expect("all came back");
    assert_eq!(gpu.id(), DeviceId(0), "ties go to the first");
    assert_eq!(gpus.most_available(&ledgers).expect("they can be asked").id(), DeviceId(1));
    assert_eq!(gpus.most_free().id(), DeviceId(0), "nothing is held of it");
}

#[test]
fn l1_ledgers_keep_no_device_open() {
    let (ledgers, sim) = (Ledgers::default(), sim(1));
    let context = open(sim.clone());
    let memory = pool(&ledgers, &context);
    let stream = context.create_stream(0).expect("a stream");
    cache(&memory, Bytes::gib(1), stream);
    drop((memory, context));
    assert!(sim.leaks().is_empty(), "{}", sim.leaks());
    let again = open(sim);
    assert_eq!(ledgers.available(&again).expect("works"), GPU, "nothing stays charged");
}

#[test]
fn l8_a_stage_has_what_a_pool_of_its_program_only_caches() {
    let (ledgers, context) = (Ledgers::default(), open(sim(1)));
    let memory = pool(&ledgers, &context);
    cache(&memory, Bytes::gib(7), context.create_stream(0).expect("a stream"));
    let used = context.driver().memory(DeviceId(0)).expect("a device").used();
    assert!(used >= Bytes::gib(7), "the pool keeps it");
    let spec = Spec::vram("stage", [context]).per_worker(Bytes::gib(1)).want(9).headroom(1.0);
    assert_eq!(fit_workers(&spec).expect("all of it").plan.workers, 8);
}

#[test]
fn f5_a_stage_takes_the_gpus_of_a_program() {
    let gpus = DevicePool::open(sim(2), &Stack::new().over(leaf::Direct)).expect("devices");
    let reserved = fit_workers(&Spec::vram("stage", &gpus).per_worker(Bytes::gib(4)).want(4).headroom(1.0));
    let workers = reserved.expect("four").into_workers().expect("four");
    assert_eq!(
        workers.iter().map(|worker| worker.device()).collect::<Vec<_>>(),
        [0, 0, 1, 1].map(|n| Some(DeviceId(n)))
    );
}

#[test]
fn m4_a_request_of_a_stack_that_fails_is_counted_once_and_one_that_is_granted_never() {
    let (ledgers, context) = (Ledgers::default(), open(sim(1)));
    let ledger = ledgers.of(&context).expect("a ledger");
    ledger.tenant("batch").expect("room").configure(Bytes::ZERO, Bytes::gib(2)).expect("it fits");
    let [open, batch] = [pool(&ledgers, &context), pool(&ledgers.tenant("batch"), &context)];
    let stream = context.create_stream(0).expect("a stream");
    // What is cached is given back before the next is refused.
    cache(&open, Bytes::gib(5), stream);
    let large = open.allocate(7 << 30, 256, stream, tag!("large")).expect("what is cached is in the way of nobody");
    assert_eq!(ledger.reading().expect("works").refused.total(), 0);

    for _ in 0..3 {
        open.allocate(2 << 30, 256, stream, tag!("too much")).expect_err("1 GiB is left");
    }
    batch.allocate(3 << 30, 256, stream, tag!("beyond")).expect_err("the ceiling is 2 GiB");
    let reservation = ledger.tenant("batch").expect("there").reserve(Bytes::mib(64)).expect("room");
    let stack =
        Stack::new().layer(PagePool::default()).layer(GlobalDeviceBudget::shared(reservation)).over(leaf::Frames);
    let drawing = stack.build(&context).expect("a stack");
    drawing.allocate(65 << 20, 256, stream, tag!("share")).expect_err("64 MiB are there");

    let reading = ledger.reading().expect("works");
    let counted: Vec<_> = reading.refused.iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(counted, [(RefusalReason::Limit, 3), (RefusalReason::Tenant, 1), (RefusalReason::Share, 1)]);
    let told = reading.refusals.iter().map(|refusal| (refusal.reason, &*refusal.tenant, refusal.requested));
    let told: Vec<_> = told.take(3).collect();
    let expected = [
        (RefusalReason::Share, "batch", Bytes::mib(66)),
        (RefusalReason::Tenant, "batch", Bytes::gib(3)),
        (RefusalReason::Limit, "", Bytes::gib(2)),
    ];
    assert_eq!(told, expected);
    open.deallocate(large, stream).expect("its own");
}

/// Looks at a ledger until this process is shown as `is_it` says.
fn shown(ledger: &Ledger, is_it: impl Fn(&UsageReading) -> bool) -> UsageReading {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let reading = ledger.reading().expect("works");
        let usage = reading.processes.iter().find_map(|process| process.usage.clone());
        match usage {
            Some(usage) if is_it(&usage) => return usage,
            seen => assert!(Instant::now() < until, "the ledger shows {seen:?}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn m5_a_ledger_shows_what_pools_and_statistics_know_until_the_stacks_are_gone() {
    let (ledgers, context) = (Ledgers::default(), open(sim(1)));
    let memory = {
        let stack = Stack::new().observe(Statistics::default()).layer(PagePool::default()).layer(ledgers.budget());
        stack.over(leaf::Frames).build(&context).expect("a stack")
    };
    let ledger = Ledger::for_device(&context).expect("a ledger");
    let stream = context.create_stream(0).expect("a stream");
    let weights = memory.allocate(3 << 30, 256, stream, tag!("weights")).expect("room");
    let cache = memory.allocate(1 << 30, 256, stream, tag!("kv-cache")).expect("room");
    // Tags and pools are looked at one after the other, perhaps with an allocation between them; the next look has both.
    let usage = shown(&ledger, |usage| usage.live == Bytes::gib(4) && usage.holders.len() == 2);
    let holders: Vec<_> = usage.holders.iter().map(|holder| (&*holder.tag, holder.live)).collect();
    assert_eq!(holders, [("weights", Bytes::gib(3)), ("kv-cache", Bytes::gib(1))]);
    assert_eq!((usage.cached, usage.peak), (Bytes::ZERO, Bytes::gib(4)));

    memory.deallocate(weights, stream).expect("its own");
    let usage = shown(&ledger, |usage| usage.live == Bytes::gib(1) && usage.holders.len() == 1);
    assert_eq!((usage.cached, usage.peak), (Bytes::gib(3), Bytes::gib(4)));
    memory.deallocate(cache, stream).expect("its own");
    drop((memory, ledgers));
    assert_eq!(ledger.reading().expect("works").processes[0].usage, None);
}

/// The variable with the name of a device that a parent shares with the program below.
const SHARED_DEVICE: &str = "BURSAR_TEST_SHARED_DEVICE";

/// The memory that a program uses is shown once, however many handles, stacks and shares it has. The next test runs it once more
/// with a share.
#[test]
fn m5_what_several_handles_publish_of_a_device_is_shown_once() {
    let shared = std::env::var(SHARED_DEVICE).ok();
    let builder = Sim::builder().immediate().device(GPU);
    let context = open(shared.iter().fold(builder, |builder, name| builder.named(name)).build());
    let (one, other) = (Ledgers::default(), Ledgers::default());
    let stacks = [&one, &one, &other].map(|ledgers| pool(ledgers, &context));
    let ledgers = [&one, &other].map(|ledgers| ledgers.of(&context).expect("a ledger"));
    assert_eq!(Ledgers::share(&context).expect("works").is_some(), shared.is_some());
    let stream = context.create_stream(0).expect("a stream");
    let block = stacks[0].allocate(2 << 30, 256, stream, tag!("weights")).expect("room");
    cache(&stacks[1], Bytes::gib(1), stream);
    for ledger in &ledgers {
        // What is cached was live a moment ago, which may have been published.
        let usage = shown(ledger, |usage| usage.cached > Bytes::ZERO);
        assert_eq!((usage.live, usage.cached, usage.peak), (Bytes::gib(2), Bytes::gib(1), Bytes::gib(3)));
    }
    if shared.is_none() {
        assert_eq!(one.available(&context).expect("works"), Bytes::gib(6), "what is cached is available once");
    }
    // Whoever ends takes nothing along that others still publish.
    let [first, second, third] = stacks;
    drop((one, other, third, second));
    let usage = shown(&ledgers[0], |usage| usage.cached == Bytes::ZERO);
    assert_eq!(usage.live, Bytes::gib(2));
    first.deallocate(block, stream).expect("its own");
}

#[test]
fn m5_a_program_with_a_share_shows_once_what_it_uses() {
    let folder = std::env::temp_dir().join(format!("bursar-once-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("its own");
    let name = format!("bursar-once-{}", std::process::id());
    let context = open(Sim::builder().immediate().device(GPU).named(&name).shared_in(&folder).build());
    let ledger = Ledger::open_in(&folder, &Subject::device(context.facts())).expect("a ledger");
    let share = ledger.reserve(Bytes::gib(4)).and_then(Reservation::delegate).expect("room");
    let test = "m5_what_several_handles_publish_of_a_device_is_shown_once";
    let mut program = Command::new(std::env::current_exe().expect("this test"));
    program.args(["--exact", test]).env("BURSAR_LEDGER_DIR", &folder).env(SHARED_DEVICE, &name);
    let ended = program.env(Reservation::VARIABLE, share.token()).output().expect("started");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    drop((share, ledger, context));
    std::fs::remove_dir_all(folder).expect("its own");
}

/// Whoever is refused by an account learns who has the memory that it draws on: of the whole ledger, of a tenant that is at its
/// ceiling, or of a reservation that is used up, and who waits where what is free is kept for others.
#[test]
fn p4_a_refusal_by_the_ledger_names_who_has_the_memory_and_who_waits_for_it() {
    let (ledgers, context) = (Ledgers::default(), open(sim(1)));
    let ledger = ledgers.of(&context).expect("a ledger");
    let stream = context.create_stream(0).expect("a stream");
    let memory = pool(&ledgers, &context);
    let refused = |memory: &dyn DeviceMemoryResource, bytes: Bytes| {
        let refused = memory.allocate(bytes.get(), 256, stream, tag!("batch")).expect_err("it does not fit");
        let shortage = refused.shortage().expect("an explanation").clone();
        (shortage, refused.to_string(), format!("{refused:#}"))
    };
    let me = |shortage: &Shortage| {
        let [claim] = &shortage.claims.processes[..] else { panic!("{shortage}") };
        assert_eq!((claim.pid, claim.is_own), (std::process::id(), true));
        (claim.held, claim.set_aside, claim.labels.clone())
    };

    let aside = ledger.reserve_with(Bytes::gib(6), &ReserveOptions::new().label("mine")).expect("room");
    let (shortage, line, lines) = refused(&memory, Bytes::gib(3));
    assert_eq!(me(&shortage), (Bytes::ZERO, Bytes::gib(6), vec!["mine".to_owned()]));
    assert!(shortage.claims.waiting.is_empty(), "{shortage}");
    assert!(line.ends_with("[mine]: 6 GiB set aside") && lines.contains("[mine]: 6 GiB set aside"), "{line}\n{lines}");

    let mut waiting = std::pin::pin!(ledger.reserve_async_with(Bytes::gib(5), ReserveOptions::new()));
    let mut polled = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waiting.as_mut().poll(&mut polled).is_pending(), "2 GiB are left");
    let (shortage, line, _) = refused(&memory, Bytes::gib(1));
    let [first] = &shortage.claims.waiting[..] else { panic!("{shortage}") };
    assert_eq!((first.pid, first.bytes), (std::process::id(), Bytes::gib(5)));
    assert!(line.contains("kept for those who wait") && line.ends_with("waits for 5 GiB"), "{line}");

    drop(aside);
    let granted = waiting.as_mut().poll(&mut polled);
    assert!(granted.is_ready(), "6 GiB came back");
    drop(granted);
    ledger.tenant("batch").expect("room").configure(Bytes::ZERO, Bytes::gib(2)).expect("it fits");
    let aside = ledger.reserve(Bytes::gib(1)).expect("room");
    let tenant = pool(&ledgers.tenant("batch"), &context);
    let block = tenant.allocate(1 << 30, 256, stream, tag!("weights")).expect("room");
    let (shortage, ..) = refused(&tenant, Bytes::gib(2));
    assert_eq!(me(&shortage), (Bytes::gib(1), Bytes::ZERO, vec![]), "what others have is not in its way");
    tenant.deallocate(block, stream).expect("its own");

    let used_up = Arc::new(ledger.reserve(Bytes::gib(2)).expect("room"));
    let budget = GlobalDeviceBudget::shared(used_up.clone());
    let drawn = Stack::new().layer(PagePool::default()).layer(budget).over(leaf::Frames);
    let drawn = drawn.build(&context).expect("a stack");
    used_up.charge(Bytes::gib(1)).expect("room");
    let (shortage, ..) = refused(&drawn, Bytes::mib(1536));
    assert_eq!(me(&shortage), (Bytes::gib(1), Bytes::gib(1), vec![]), "what was set aside beside it is not in its way");
    used_up.release(Bytes::gib(1));
    drop(aside);
}

/// The driver does not take everything back when a pool ends: the device keeps the rest, with its charge, and ends all the same.
#[test]
fn r6_a_device_ends_although_a_pool_of_a_ledger_could_not_give_everything_back() {
    for call in [Call::AddressRelease, Call::PagesUnmap, Call::PagesRelease] {
        let sim = sim(1);
        let faults = Faults::new(sim.clone());
        let ledgers = Ledgers::default();
        let context = open(faults.clone());
        let memory = pool(&ledgers, &context);
        cache(&memory, Bytes::mib(64), context.create_stream(0).expect("a stream"));
        faults.fail_nth(call, 1, Status::NotSupported);
        drop(memory);
        drop(context);
        assert!(sim.leaks().is_empty(), "{call}: {}", sim.leaks());
    }
}
