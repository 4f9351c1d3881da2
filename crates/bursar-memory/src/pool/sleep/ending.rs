//! The end of a pool of which something sleeps: nobody wakes it any more.

use super::super::PagePoolResource;
use super::super::asleep::FallingFrames;
use super::record::{Physical, SleepingFrames};
use super::waking::awake;
use bursar_core::{Error, FrameSource};

impl<F: FrameSource> PagePoolResource<F> {
    /// Ends all sleeps of a pool that is dropped, and takes no memory for them: places and host memory go back, and what was freed
    /// asleep is free in the frames that stayed, which are the pool's as any other from here on.
    pub(in super::super) fn end_sleeps(&self) {
        if !self.state.sleep.is_any() || self.state.sleep.is_of_parent() {
            return;
        }
        let mut asleep = self.state.sleep.asleep();
        let (ranges, sets) = (std::mem::take(&mut asleep.ranges), std::mem::take(&mut asleep.frames));
        drop(asleep);
        sets.into_iter().for_each(|set| self.end_sleep_of_frames(set));
        self.end_sleep(ranges);
    }

    fn end_sleep_of_frames(&self, mut set: SleepingFrames) {
        if let Err(Error::Driver(error)) = set.contents.wait_for_copies(&self.context) {
            self.context.fault().record(error);
        }
        self.abandon_unused(&mut set);
        if set.place.is_some() {
            self.source.give_up_place(set.away());
        }
        let (mut mapped, mut unmapped, mut nowhere) = (Vec::new(), Vec::new(), Vec::new());
        for frame in set.frames {
            if !matches!(frame.physical, Physical::Mapped(_)) {
                nowhere.push((frame.at, frame.len));
            }
            match frame.physical {
                Physical::Unmapped(of) => unmapped.push(of),
                _ => mapped.extend(awake(frame)),
            }
        }
        let mut lists = self.state.lists();
        lists.forget_asleep(&nowhere, &mut set.free);
        unmapped.into_iter().for_each(|frame| lists.space.keep_unmapped(frame));
        drop(lists);
        self.enter_awake(FallingFrames { frames: mapped, free: set.free });
    }
}
