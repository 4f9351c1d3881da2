//! T5: no more waits and events than are needed.

use super::{LEN, Rig};
use bursar_device::StreamLease;
use bursar_sim::{Call, Sim};

#[test]
fn t5_a_program_on_one_stream_creates_and_records_no_event() {
    let rig = Rig::new(Sim::seeded(1));
    let [a] = rig.leases();
    for round in 0..20 {
        let mut buffers = [(); 3].map(|()| rig.buffer(&a));
        a.submit(|work| work.fill(&mut buffers[0], round)).expect("submitted");
        let [from, to, _] = &mut buffers;
        a.submit(|work| work.copy(&*from, &mut *to)).expect("submitted");
        a.submit(|work| rig.add_one(work, to)).expect("submitted");
        let seen = a.submit(|work| work.read_back(&*to)).expect("submitted");
        assert_eq!(seen.wait().expect("it runs"), [round + 1; LEN]);
        assert_eq!(to.to_vec(), Ok(vec![round + 1; LEN]));
    }
    assert_eq!(rig.events(), 0);
    drop(a);
    rig.end(1);
}

#[test]
fn t5_a_stream_that_has_waited_does_not_wait_again() {
    let rig = Rig::new(Sim::seeded(1));
    let [a, b, c] = rig.leases();
    let mut buffers = [(); 8].map(|()| rig.buffer(&a));
    for buffer in &mut buffers {
        a.submit(|work| work.fill(buffer, 1)).expect("submitted");
    }
    for _ in 0..10 {
        for buffer in &buffers {
            b.submit(|work| rig.look(work, buffer)).expect("submitted");
        }
    }
    assert_eq!(rig.waits(), 1, "one wait for a is enough");
    c.submit(|work| rig.add_one(work, &mut buffers[0])).expect("submitted");
    assert_eq!(rig.waits(), 2, "c waits for b, which came after a");
    c.submit(|work| rig.look(work, &buffers[1])).expect("submitted");
    assert_eq!(rig.waits(), 2);
    assert_eq!(rig.faults.calls(Call::EventCreate), 1, "events are used again");
    drop((buffers, a, b, c));
    rig.end(1);
}

#[test]
fn t5_a_block_used_again_and_again_by_eight_streams_keeps_the_waits_few() {
    let rig = Rig::new(Sim::immediate());
    let leases: [StreamLease; 8] = rig.leases();
    let mut buffer = rig.buffer(&leases[0]);
    for round in 0..1000 {
        let lease = &leases[round % 8];
        (0..125).for_each(|_| lease.submit(|work| work.read(&buffer)).map(drop).expect("its own"));
        lease.submit(|work| work.write(&mut buffer)).expect("its own");
    }
    assert!(rig.waits() <= 1000, "{} waits", rig.waits());
    assert_eq!(rig.faults.calls(Call::EventCreate), 1);
}
