//! Two programs that each want most of a device, and take turns.

use crate::Named;
use crate::rig::Rig;
use bursar::Bytes;

pub(crate) const TRIALS: &[Named] =
    &[("z12_two_programs_take_turns_with_a_device_that_has_room_for_one", two_programs_take_turns)];

fn two_programs_take_turns(rig: &Rig) {
    let rounds = std::env::var("BURSAR_SLEEP_ROUNDS").map_or(100, |rounds| rounds.parse().expect("a number"));
    // Each has 80 of 100 MiB.
    let mut first = rig.start(80);
    rig.asked("sleep", &first, &[]);
    let mut second = rig.start(80);
    for round in 0..rounds {
        let (sleeps, wakes) = if round % 2 == 0 { (&mut second, &mut first) } else { (&mut first, &mut second) };
        // The one waits in the queue, or comes first, while the other falls asleep.
        let (to_sleep, to_wake) = (sleeps.child.id().to_string(), wakes.child.id().to_string());
        let waking = rig.command(&["wake", &to_wake, "--timeout", "600"]).spawn().expect("the command was built");
        let falling = rig.command(&["sleep", &to_sleep, "--timeout", "600"]).spawn().expect("the command was built");
        for (what, asking) in [("sleep", falling), ("wake", waking)] {
            let output = crate::rig::ended(asking);
            assert!(output.status.success(), "round {round}: {what}: {}", crate::rig::text(&output.stderr));
        }
        assert_eq!(wakes.say("check"), "right", "round {round}");
        assert_eq!(sleeps.say("state"), "asleep", "round {round}");
    }
    let reading = rig.reading();
    assert_eq!(reading.refused.total(), 0, "nobody was ever refused: {:?}", reading.refusals);
    assert!(reading.held >= Bytes::mib(80) && reading.held < Bytes::mib(100));
}
