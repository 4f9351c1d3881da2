//! Cards of mixed sizes and requests that arrive as those of people do: more by day, in bursts, most small and short, a few whole
//! cards and long.

use bursar::sim::Random;

const GIB: u64 = 1 << 30;

/// The sizes of cards in gibibytes, and of how many nodes in a hundred they are.
pub(super) const CARDS: [(u64, u64); 5] = [(24, 20), (40, 15), (48, 15), (80, 35), (141, 15)];

/// A request: when it comes, the bytes of one card that it needs, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) at: f64,
    pub(super) bytes: u64,
    pub(super) lasts: f64,
}

/// Returns the sizes of the cards, a node's after another's.
pub(super) fn cards(nodes: u32, cards: u32, random: &mut Random) -> Vec<u64> {
    let size = |random: &mut Random| {
        let mut drawn = random.below(100);
        let hit = CARDS.iter().find(|(_, share)| {
            let is_hit = drawn < *share;
            drawn = drawn.saturating_sub(*share);
            is_hit
        });
        hit.map_or(CARDS[0].0, |(size, _)| *size) * GIB
    };
    (0..nodes).map(|_| size(random)).flat_map(|size| (0..cards).map(move |_| size)).collect()
}

/// Returns requests that need `load` times what `capacity` bytes can do. A request lasts 1 on average.
pub(super) fn arrivals(count: u32, capacity: u64, load: f64, random: &mut Random) -> Vec<Arrival> {
    let mut made: Vec<Arrival> = Vec::with_capacity(count as usize);
    let sizes: Vec<(u64, f64)> = (0..count).map(|_| (size(random), lasting(random))).collect();
    let work: f64 = sizes.iter().map(|(bytes, lasts)| *bytes as f64 * lasts).sum();
    let all = work / (load * capacity as f64);
    let mut at = 0.0;
    let mut burst = 0;
    for (bytes, lasts) in sizes {
        if burst == 0 {
            // A burst of one to sixteen, then a pause that is shorter by day.
            burst = 1 + random.below(16);
            let day = 1.0 + 0.6 * (at / all * 4.0 * std::f64::consts::TAU).sin();
            at += -unit(random).ln() * 8.5 * all / (f64::from(count) * day);
        }
        burst -= 1;
        made.push(Arrival { at, bytes, lasts });
    }
    made
}

/// Returns a size: under 8 GiB of almost half, a whole card of one in fourteen.
fn size(random: &mut Random) -> u64 {
    let between = |random: &mut Random, least: f64, most: f64| least * (most / least).powf(unit(random));
    let gib = match random.below(100) {
        0..45 => between(random, 1.0, 8.0),
        45..75 => between(random, 8.0, 24.0),
        75..93 => between(random, 24.0, 72.0),
        _ => random.pick(&[24.0, 40.0, 48.0, 80.0]).unwrap_or(24.0),
    };
    // Programs ask for whole mebibytes.
    ((gib * 1024.0) as u64) << 20
}

/// Returns for how long a request lasts: most a third of the mean, a few ten times as long.
fn lasting(random: &mut Random) -> f64 {
    let normal = (-2.0 * unit(random).ln()).sqrt() * (std::f64::consts::TAU * unit(random)).cos();
    (normal - 0.5).exp()
}

/// Returns a number above 0 and at most 1.
fn unit(random: &mut Random) -> f64 {
    (random.below(1 << 53) + 1) as f64 / (1_u64 << 53) as f64
}
