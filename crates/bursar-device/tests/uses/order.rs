//! T1: work waits for what other streams do with the same buffer, and sees it.

use super::{LEN, Rig, SEEDS};
use bursar_core::tag;
use bursar_sim::Sim;

#[test]
fn t1_work_on_another_stream_sees_the_last_write_and_a_write_spares_the_readers() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b, c] = rig.leases();
        let mut buffer = rig.buffer(&a);
        let gate = rig.hold(*a);
        a.submit(|work| work.fill(&mut buffer, 1)).expect("submitted");
        b.submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
        c.submit(|work| rig.look(work, &buffer)).expect("submitted");
        a.submit(|work| rig.look(work, &buffer)).expect("submitted");
        b.submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
        gate.open();
        let seen = c.submit(|work| work.read_back(&buffer)).expect("submitted");
        assert_eq!(seen.wait().expect("it runs"), [3; LEN], "seed {seed}");
        drop((buffer, a, b, c));
        rig.end(seed);
    }
}

#[test]
fn t1_a_stream_that_waited_once_waits_again_for_what_came_later() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b] = rig.leases();
        let [mut buffer, other] = [(); 2].map(|()| rig.buffer(&a));
        b.submit(|work| rig.look(work, &other)).expect("submitted");
        a.submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
        b.submit(|work| rig.look(work, &buffer)).expect("submitted");
        assert_eq!(rig.waits(), 2);
        drop((buffer, other, a, b));
        rig.end(seed);
    }
}

#[test]
fn t1_the_wait_is_submitted_when_the_address_is_asked_for() {
    let rig = Rig::new(Sim::seeded(1));
    let [a, b] = rig.leases();
    let mut buffer = rig.buffer(&a);
    a.submit(|work| work.fill(&mut buffer, 1)).expect("submitted");
    b.submit(|work| {
        assert_eq!(rig.waits(), 0);
        work.read(&buffer).expect("its own");
        assert_eq!(rig.waits(), 1);
    });
    drop((buffer, a, b));
    rig.end(1);
}

#[test]
fn t1_every_kind_of_submitted_work_is_ordered_and_keeps_its_values() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b, c] = rig.leases();
        let [mut from, mut to] = [&a, &b].map(|home| rig.gpu.buffer::<[u8; 3]>(21, home, tag!("test")).expect("room"));
        let values: Vec<_> = (0..21).map(|nth| [nth, seed as u8, 255 - nth]).collect();
        let upload = a.submit(|work| work.copy_from_host(&mut from, values.clone())).expect("submitted");
        b.submit(|work| work.copy(&from, &mut to)).expect("submitted");
        let part = to.slice_mut(3..9).expect("inside");
        c.submit(|work| work.fill(part, [1, 2, 3])).expect("submitted");
        let part = from.slice(..7).expect("inside");
        a.submit(|work| work.copy(part, to.slice_mut(9..16)?)).expect("submitted");
        let seen = b.submit(|work| work.read_back(to.slice(2..)?)).expect("submitted");
        let mut expected = values.clone();
        expected[3..9].fill([1, 2, 3]);
        expected[9..16].copy_from_slice(&values[..7]);
        assert_eq!(seen.wait().expect("it runs"), expected[2..], "seed {seed}");
        assert_eq!(upload.wait().expect("it runs"), values);
        drop((from, to, a, b, c));
        rig.end(seed);
    }
}

#[test]
fn t1_a_synchronous_copy_waits_for_what_was_submitted_elsewhere() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b, c] = rig.leases();
        let (mut buffer, mut other) = (rig.buffer(&a), rig.buffer(&c));
        b.submit(|work| work.fill(&mut buffer, 1)).expect("submitted");
        assert_eq!(buffer.to_vec(), Ok(vec![1; LEN]), "seed {seed}");
        b.submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
        other.copy_from(&buffer).expect("it runs");
        assert_eq!(other.to_vec(), Ok(vec![2; LEN]), "seed {seed}");
        c.submit(|work| rig.look(work, &buffer)).expect("submitted");
        buffer.fill(3).expect("it runs");
        c.submit(|work| rig.look(work, &buffer)).expect("submitted");
        buffer.write_from_host(&[4; LEN]).expect("it runs");
        b.submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
        buffer.slice_mut(..3).expect("inside").fill(9).expect("it runs");
        assert_eq!(buffer.slice(2..4).expect("inside").to_vec(), Ok(vec![9, 5]), "seed {seed}");
        drop((buffer, other, a, b, c));
        rig.end(seed);
    }
}

#[test]
fn t1_what_the_host_knows_to_have_run_is_not_waited_for() {
    let rig = Rig::new(Sim::seeded(1));
    let [a, b] = rig.leases();
    let mut buffer = rig.buffer(&a);
    a.submit(|work| work.fill(&mut buffer, 1)).expect("submitted");
    rig.gpu.context().synchronize(*a).expect("it runs");
    b.submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
    assert_eq!(rig.events(), 0);
    buffer.fill(7).expect("it runs");
    let waits = rig.waits();
    b.submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
    assert_eq!(rig.waits(), waits, "the fill has run");
    drop((buffer, a, b));
    rig.end(1);
}
