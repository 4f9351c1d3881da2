//! Any history of one process, compared with a simple model of a ledger.

use bursar_core::{Account, Bytes};
use bursar_ledger::{Ledger, Reservation};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Act {
    Charge(usize, u64),
    Release(usize, u64),
    Reserve(usize, u64),
    Split(usize, u64),
    Shrink(usize, u64),
    Drop(usize),
    Limit(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let (who, bytes) = (0..3usize, 0..500u64);
    let act = prop_oneof![
        3 => (who.clone(), bytes.clone()).prop_map(|(who, bytes)| Act::Charge(who, bytes)),
        3 => (who.clone(), bytes.clone()).prop_map(|(who, bytes)| Act::Release(who, bytes)),
        2 => (who.clone(), bytes.clone()).prop_map(|(who, bytes)| Act::Reserve(who, bytes)),
        1 => (0..8usize, bytes.clone()).prop_map(|(who, bytes)| Act::Split(who, bytes)),
        1 => (0..8usize, bytes).prop_map(|(who, bytes)| Act::Shrink(who, bytes)),
        2 => (0..8usize).prop_map(Act::Drop),
        1 => (500..1500u64).prop_map(Act::Limit),
    ];
    prop::collection::vec(act, 0..80)
}

proptest! {
    #[test]
    fn l5_any_history_of_one_process_agrees_with_plain_arithmetic(acts in acts()) {
        let ledger = Ledger::private(Bytes(1500));
        ledger.tenant("1").unwrap().configure(Bytes::ZERO, Bytes(700)).unwrap();
        let accounts: Vec<_> = (0..3).map(|at| ledger.tenant(&at.to_string()).unwrap().account().unwrap()).collect();
        let (mut held, mut limit) = ([0u64; 3], 1500u64);
        let mut reserved: Vec<(usize, Reservation)> = Vec::new();
        for act in acts {
            let aside = |tenant: usize| reserved.iter().filter(|(of, _)| *of == tenant).map(|(_, r)| r.bytes().get()).sum::<u64>();
            let charged = held.iter().sum::<u64>() + (0..3).map(aside).sum::<u64>();
            let room = |who: usize| {
                let ceiling = if who == 1 { 700 } else { u64::MAX };
                limit.saturating_sub(charged).min(ceiling - held[who] - aside(who))
            };
            match act {
                Act::Charge(who, bytes) => {
                    let fits = bytes <= room(who);
                    prop_assert_eq!(accounts[who].charge(Bytes(bytes)).is_ok(), fits || bytes == 0);
                    held[who] += if fits { bytes } else { 0 };
                }
                Act::Release(who, bytes) => {
                    let bytes = bytes.min(held[who]);
                    accounts[who].release(Bytes(bytes));
                    held[who] -= bytes;
                }
                Act::Reserve(who, bytes) => {
                    let fits = bytes <= room(who);
                    let made = ledger.tenant(&who.to_string()).unwrap().reserve(Bytes(bytes));
                    prop_assert_eq!(made.is_ok(), fits);
                    reserved.extend(made.ok().map(|made| (who, made)));
                }
                Act::Split(at, bytes) => {
                    if let Some((who, from)) = reserved.get(at) {
                        let (who, had) = (*who, from.bytes().get());
                        let part = from.split(Bytes(bytes));
                        prop_assert_eq!(part.is_ok(), bytes <= had);
                        reserved.extend(part.ok().map(|part| (who, part)));
                    }
                }
                Act::Shrink(at, to) => {
                    if let Some((_, from)) = reserved.get(at) {
                        let had = from.bytes().get();
                        from.shrink(Bytes(to)).unwrap();
                        prop_assert_eq!(from.bytes().get(), had.min(to));
                    }
                }
                Act::Drop(at) if at < reserved.len() => drop(reserved.swap_remove(at)),
                Act::Drop(_) => {}
                Act::Limit(to) => {
                    limit = to;
                    ledger.set_limit(Bytes(to)).unwrap();
                }
            }
            let aside: u64 = reserved.iter().map(|(_, reservation)| reservation.bytes().get()).sum();
            let reading = ledger.reading().unwrap();
            prop_assert_eq!((reading.held.get(), reading.undrawn.get()), (held.iter().sum(), aside));
        }
    }
}
