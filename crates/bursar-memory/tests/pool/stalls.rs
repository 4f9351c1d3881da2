//! P1: what was freed on a stream that cannot go on is nobody else's before it has.

use crate::common::RandomSize;
use crate::rig::{FRAME, Rig, small};
use bursar_sim::{Random, Sim};

const TRIES: u64 = 10_000;
const TRIES_OF_ONE_POOL: u64 = 50;

/// One stream is stalled with writes and frees behind that; another allocates and writes. Its write may run while the
/// first is stalled only where the first has nothing.
#[test]
fn p1_what_was_freed_on_a_stalled_stream_is_nobody_elses_before_it_has_run() {
    for seed in 0..TRIES / TRIES_OF_ONE_POOL {
        let mut random = Random::new(seed);
        let rig = Rig::new(Sim::seeded(seed), 24, &small());
        let (a, b) = (rig.stream(), rig.stream());
        for attempt in 0..TRIES_OF_ONE_POOL {
            let stall = rig.stall(a);
            let old: Vec<_> = (0..1 + random.below(3)).map(|_| rig.allocate(random.size(6 * FRAME), a)).collect();
            let places: Vec<_> = old.iter().map(|old| (old.ptr().0, old.granted().get())).collect();
            old.iter().for_each(|old| rig.fill(old, 1, a));
            old.into_iter().for_each(|old| rig.free(old));
            let new = rig.allocate(random.size(6 * FRAME), b);
            let (from, end) = (new.ptr().0, new.ptr().0 + new.granted().get());
            rig.sim.poke(new.ptr(), &[0]);
            rig.fill(&new, 2, b);
            rig.sim.settle();
            let shared = places.iter().any(|&(at, len)| from < at + len && at < end);
            if shared {
                assert_ne!(rig.sim.peek(new.ptr(), 1), [2], "seed {seed}, attempt {attempt}: given out early");
            }
            drop(stall);
            rig.sim.settle();
            assert_eq!(rig.sim.peek(new.ptr(), 1), [2], "seed {seed}, attempt {attempt}: overwritten");
            rig.free(new);
        }
        rig.finish();
    }
}
