//! N7: whatever a program does with a pool, no buffer is in use twice, the counts add up, and everything is released.

mod rig;

use bursar_core::Bytes;
use bursar_host::{PinnedBuffer, PinnedPool};
use proptest::prelude::*;
use rig::Rig;
use std::collections::HashMap;

/// Sizes that share slabs, fill one, and have one of their own.
const SIZES: [usize; 6] = [1, 64, 1000, 600_000, 2 << 20, (3 << 20) + 1];

#[derive(Clone, Debug)]
enum Step {
    Get(usize),
    TryGet(usize),
    Drop(prop::sample::Index),
    /// Returns a buffer on one of two streams.
    Release(prop::sample::Index, usize),
    Prime(usize, usize),
    Trim(u64),
    /// Lets streams advance.
    Settle,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop::sample::select(&SIZES[..]);
    let step = prop_oneof![
        4 => size.clone().prop_map(Step::Get),
        1 => size.clone().prop_map(Step::TryGet),
        3 => any::<prop::sample::Index>().prop_map(Step::Drop),
        3 => (any::<prop::sample::Index>(), 0usize..2).prop_map(|(which, stream)| Step::Release(which, stream)),
        1 => (size, 0usize..3).prop_map(|(bytes, count)| Step::Prime(bytes, count)),
        1 => prop_oneof![Just(0), Just(4 << 20), Just(u64::MAX)].prop_map(Step::Trim),
        1 => Just(Step::Settle),
    ];
    prop::collection::vec(step, 1..40)
}

/// The buffers in use, each filled with a mark of its own.
struct Out {
    buffers: Vec<(PinnedBuffer, u8)>,
    made: u8,
}

impl Out {
    fn add(&mut self, mut buffer: PinnedBuffer, bytes: usize) {
        assert_eq!((buffer.len(), buffer.as_ptr().addr() % 64), (bytes, 0));
        let ends = |buffer: &PinnedBuffer| (buffer.as_ptr().addr(), buffer.as_ptr().addr() + buffer.len());
        let (start, end) = ends(&buffer);
        let overlaps = |other: &PinnedBuffer| ends(other).0 < end && start < ends(other).1;
        assert!(!self.buffers.iter().any(|(other, _)| overlaps(other)), "handed out twice");
        self.made = self.made.wrapping_add(1);
        buffer[0] = self.made;
        buffer[bytes - 1] = self.made;
        self.buffers.push((buffer, self.made));
    }

    fn take(&mut self, which: &prop::sample::Index) -> Option<PinnedBuffer> {
        if self.buffers.is_empty() {
            return None;
        }
        let (buffer, mark) = self.buffers.swap_remove(which.index(self.buffers.len()));
        assert_eq!((buffer[0], buffer[buffer.len() - 1]), (mark, mark), "nobody else wrote to it");
        Some(buffer)
    }

    /// Returns the bytes of slabs that the buffers take: whole cache lines.
    fn bytes(&self) -> u64 {
        self.buffers.iter().map(|(buffer, _)| buffer.len().next_multiple_of(64) as u64).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn n7_what_is_held_adds_up_and_all_of_it_comes_back(steps in steps()) {
        let rig = Rig::new();
        let pool = PinnedPool::new(&rig.workers, &rig.context, rig.charged());
        let streams = [0, 1].map(|_| rig.context.create_stream(0).expect("a stream"));
        let mut out = Out { buffers: Vec::new(), made: 0 };
        let mut flying: HashMap<usize, u64> = HashMap::new();
        for step in &steps {
            match step {
                Step::Get(bytes) => out.add(pool.get(*bytes).expect("room"), *bytes),
                Step::TryGet(bytes) => {
                    if let Some(buffer) = pool.try_get(*bytes) {
                        out.add(buffer, *bytes);
                    }
                }
                Step::Drop(which) => drop(out.take(which)),
                Step::Release(which, stream) => {
                    if let Some(buffer) = out.take(which) {
                        *flying.entry(*stream).or_default() += buffer.len().next_multiple_of(64) as u64;
                        pool.release_on(buffer, &rig.context, streams[*stream]).expect("a buffer of this pool");
                    }
                }
                Step::Prime(bytes, count) => pool.prime(*bytes, *count).wait().expect("room"),
                Step::Trim(keep) => {
                    pool.trim(Bytes(*keep));
                    pool.flush();
                }
                Step::Settle => rig.sim.settle(),
            }
            let counts = pool.counts();
            let known = counts.free.get() + counts.in_flight.get() + out.bytes();
            // A slab ends with its last page, of which less than one piece belongs to nobody.
            prop_assert!(counts.held.get() >= known && counts.held.get() - known < held_slack(counts.held), "{counts:?}");
            prop_assert!(counts.in_flight.get() <= flying.values().sum::<u64>());
            prop_assert_eq!((rig.pinned(), rig.account.charged()), (counts.held.get(), counts.held.get()));
        }
        drop(pool);
        drop(out);
        let Rig { sim, system, account, workers, .. } = rig;
        // The workers wait for the thread that releases.
        drop(workers);
        prop_assert_eq!((system.mapped(), account.charged()), (0, 0));
        sim.assert_clean();
    }
}

/// Each slab is at least 1 MiB long and has less than a page to spare.
fn held_slack(held: Bytes) -> u64 {
    (held.get() >> 20) * 4096 + 1
}
