//! Statistics of more tags and devices than each thread has entries for from the start. It is a program of its
//! own, because the tags it makes leave none near for others.

mod common;

use bursar_core::{Action, AllocTag, Bytes, DeviceId, Observer, Record};
use bursar_memory::{Amount, Counts, Statistics};
use common::Dice;

fn amount(bytes: u64, count: u64) -> Amount {
    Amount { bytes: Bytes(bytes), count }
}

fn apply(counts: &mut Counts, action: Action, bytes: u64) {
    let Counts { current, peak, total } = counts;
    if action == Action::Allocate {
        *current = amount(current.bytes.get() + bytes, current.count + 1);
        *total = amount(total.bytes.get() + bytes, total.count + 1);
        *peak = amount(peak.bytes.max(current.bytes).get(), peak.count.max(current.count));
    } else {
        *current = amount(current.bytes.get() - bytes, current.count - 1);
    }
}

#[test]
fn g2_every_tag_and_device_is_counted_apart() {
    let tags: Vec<_> = (0..150).map(|n| AllocTag::intern(&format!("apart {n}"))).collect();
    let devices = [0, 1, 7, 8, 9, 62].map(DeviceId);
    for seed in 0..8 {
        let statistics = Statistics::default();
        let (mut dice, mut live) = (Dice::new(seed), Vec::new());
        let mut model = vec![(Counts::default(), [Counts::default(); 6]); tags.len()];
        for _ in 0..3000 {
            let (action, tag, device, bytes) = if live.is_empty() || dice.below(2) == 0 {
                let block = (dice.below(150) as usize, dice.below(6) as usize, dice.size(1 << 20));
                live.push(block);
                (Action::Allocate, block.0, block.1, block.2)
            } else {
                let block = live.swap_remove(dice.below(live.len() as u64) as usize);
                (Action::Free, block.0, block.1, block.2)
            };
            let record = Record { tag: tags[tag], granted: Bytes(bytes), ..Record::new(action, devices[device]) };
            statistics.record(&record);
            apply(&mut model[tag].0, action, bytes);
            apply(&mut model[tag].1[device], action, bytes);
        }
        let holders = devices.map(|device| statistics.holders(device).expect("a device that is told apart"));
        for (tag, (whole, by_device)) in tags.iter().zip(&model) {
            assert_eq!(statistics.counts_of(*tag), *whole, "seed {seed}");
            for (held, Counts { current, .. }) in holders.iter().zip(by_device) {
                let held = held.iter().find(|held| held.tag == *tag).map(|held| amount(held.bytes.get(), held.blocks));
                assert_eq!(held.unwrap_or_default(), *current, "seed {seed}");
            }
        }
        let total: u64 = model.iter().map(|(whole, _)| whole.total.bytes.get()).sum();
        assert_eq!(statistics.counts().total.bytes, Bytes(total), "seed {seed}");
    }
}

#[test]
fn g2_devices_too_many_to_tell_apart_are_counted_together() {
    let statistics = Statistics::default();
    for device in [63, 64, u32::MAX] {
        statistics.record(&Record { granted: Bytes(512), ..Record::new(Action::Allocate, DeviceId(device)) });
        assert_eq!(statistics.holders(DeviceId(device)), None);
    }
    assert_eq!(statistics.counts().current, amount(3 * 512, 3));
    assert_eq!(statistics.holders(DeviceId(62)), Some(Vec::new()));
}
