//! N3: the least and the greatest numbers are refused or met like all others, and end no program.

mod rig;

use bursar_core::{Bytes, NumaNode};
use bursar_host::{Errno, HostError, IndexSet, Machine, MemoryLimit, PinnedOptions, PinnedPool, System, pages_on_node};
use rig::{Call, Rig, TestAccount};
use std::time::Duration;

const SIZES: [usize; 9] = [0, 1, 63, 64, 65, 1 << 20, isize::MAX as usize, isize::MAX as usize + 1, usize::MAX];

/// The error of a request whose total no machine could meet.
fn is_refused(result: &Result<(), HostError>) -> bool {
    matches!(result, Err(HostError::TooLarge { .. } | HostError::ZeroBytes)) || {
        result.as_ref().is_err_and(HostError::is_capacity)
    }
}

#[test]
fn n3_more_buffers_than_can_be_counted_are_refused_before_any_is_made() {
    let rig = Rig::new();
    let pool = PinnedPool::new(&rig.workers, &rig.context, rig.charged());
    for bytes in SIZES {
        for count in [usize::MAX, usize::MAX / 2, isize::MAX as usize] {
            let result = pool.prime(bytes, count).wait();
            let expected = if bytes == 0 { HostError::ZeroBytes } else { HostError::TooLarge { requested: u64::MAX } };
            assert_eq!(result, Err(expected), "{count} of {bytes}");
        }
        assert_eq!(pool.prime(bytes, 0).wait(), Ok(()), "none of {bytes} are there already");
    }
    assert!(rig.system.calls.lock().unwrap().is_empty(), "no worker was started");
    drop(pool);
    rig.assert_nothing_is_held();
}

#[test]
fn n3_more_buffers_than_the_machine_has_room_for_are_refused_before_any_is_made() {
    let rig = Rig::new();
    let pool = PinnedPool::new(&rig.workers, &rig.context, PinnedOptions::default());
    let limit = MemoryLimit { group: None, available: Bytes::mib(64), limit: Bytes::gib(1) };
    *rig.system.limits.lock().unwrap() = vec![limit];
    for (bytes, count) in [(1 << 20, 1 << 40), (1 << 20, 65), (100, 10 << 20), (64 << 20, 2)] {
        let result = pool.prime(bytes, count).wait();
        let Err(HostError::NoMemory { requested, available, .. }) = result else { panic!("{result:?}") };
        assert!(requested > available && requested.get() >= (bytes * count) as u64, "{count} of {bytes}: {requested}");
    }
    assert!(rig.system.threads_of(Call::Reserve).is_empty(), "nothing was reserved");
    pool.prime(1 << 20, 20).wait().expect("as many as there is room for");
    assert_eq!(pool.counts().free, Bytes::mib(20));
    drop(pool);
}

/// Without known limits, slabs are created until one is refused, and none after it. Earlier slabs are not released to make
/// room for more of the same.
#[test]
fn n7_growth_ends_with_its_first_failure_and_keeps_what_there_is() {
    let rig = Rig::new();
    let account = TestAccount::of(Bytes::mib(16));
    let pool = PinnedPool::new(&rig.workers, &rig.context, PinnedOptions::default().account(account));
    let refused = pool.prime(4 << 20, 1000).wait().expect_err("an account of 16 MiB");
    assert!(refused.is_capacity() && matches!(refused, HostError::Account { .. }), "{refused}");
    assert_eq!(pool.counts().free, Bytes::mib(16));
    assert_eq!(rig.system.threads_of(Call::Reserve).len(), 4);
    drop(pool);
}

#[test]
fn n7_growth_ends_with_its_pool_or_its_workers() {
    let rig = Rig::new();
    let pool = PinnedPool::new(&rig.workers, &rig.context, PinnedOptions::default());
    let (of_pool, of_workers) = (pool.prime(2 << 20, 1 << 20), pool.prime(4 << 20, 1 << 20));
    drop(pool);
    assert_eq!(of_pool.wait(), Err(HostError::Closed));
    let Rig { workers, system, .. } = rig;
    drop(workers);
    assert_eq!(of_workers.wait(), Err(HostError::Closed));
    assert_eq!(system.mapped(), 0, "and nothing stays");
}

#[test]
fn n3_every_size_is_met_or_refused() {
    let rig = Rig::new();
    let pool = PinnedPool::new(&rig.workers, &rig.context, rig.charged());
    for bytes in SIZES {
        let (got, pinned) = (pool.get(bytes), rig.workers.pin_with(&rig.context, bytes, &rig.charged()).wait());
        for result in [got, pinned] {
            match result {
                Ok(buffer) => assert_eq!((buffer.len(), bytes <= 1 << 20), (bytes, true)),
                Err(error) => assert!(is_refused(&Err(error)) && !(1..=1 << 20).contains(&bytes), "{bytes}"),
            }
        }
        assert_eq!(pool.try_get(bytes).is_some(), (1..=1 << 20).contains(&bytes), "{bytes} are kept");
    }
    assert_eq!(pool.trim(Bytes(u64::MAX)), Bytes::ZERO);
    let held = pool.counts().held;
    assert_eq!(pool.trim(Bytes::ZERO), held);
    pool.flush();
}

#[test]
fn n3_no_patience_and_endless_patience() {
    let rig = Rig::new();
    let patient = rig.charged().patience(Duration::MAX);
    assert_eq!(rig.workers.pin_with(&rig.context, 1, &patient).wait().expect("room").len(), 1);
    let hasty = rig.charged().patience(Duration::ZERO);
    let refused = rig.workers.pin_with(&rig.context, 1, &hasty).wait().expect_err("no time");
    assert!(matches!(refused, HostError::Deadline { patience: Duration::ZERO, .. }), "{refused}");
}

#[test]
fn n3_nodes_and_cpus_that_no_kernel_has() {
    let all: IndexSet = [0, u32::MAX - 1, u32::MAX].into_iter().collect();
    assert_eq!(all.to_string(), "0,4294967294-4294967295");
    let machine = Machine::default();
    for cpu in [1 << 16, u32::MAX] {
        assert_eq!(machine.run_on(&[cpu].into_iter().collect()), Err(Errno(libc::EINVAL)), "{cpu}");
    }
    let region = machine.reserve(1 << 16).expect("room");
    for node in [1 << 16, u32::MAX] {
        assert_eq!(machine.bind(&region, node), Err(Errno(libc::EINVAL)), "{node}");
    }
    assert!(machine.reserve(0).is_err() && machine.reserve(usize::MAX).is_err());
    assert_eq!(pages_on_node(&machine, &[], NumaNode::UNKNOWN).unwrap_or_default(), (0, 0));
    let rig = Rig::new();
    let buffer = rig.workers.pin_with(&rig.context, 1, &rig.charged().node(NumaNode::new(u32::MAX))).wait();
    assert_eq!(buffer.expect("an unknown node is used anyway").len(), 1);
}
