//! Records a replayed run as a trace of its own, with the addresses that its blocks had.

use super::backed_addresses::{AddressRanges, BackedAddresses, add};
use crate::{Event, EventKind, ReplayStep, Segment, Trace, TraceLayout};

/// Records a watched pass as a trace and its [`TraceLayout`], for
/// [`write_torch_snapshot_at`](crate::write_torch_snapshot_at). An allocation that was refused is a failure there, and its
/// free is left out.
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::memory::Build;
/// use bursar::sim::Sim;
/// use bursar::trace::{BackedAddresses, Replay, TraceRecorder};
/// use bursar::{DeviceId, Stack, leaf};
///
/// let trace = bursar::trace::bundled();
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let memory = Stack::new().over(leaf::Direct).build(&context)?;
/// let mut recorder = TraceRecorder::default();
/// Replay::new(&trace, &context)?.watch(&memory, &mut |step| recorder.record(step))?;
/// let (run, layout) = recorder.finish(&trace, &BackedAddresses::default());
/// assert_eq!(run.events, trace.events);
/// assert_eq!(layout.addresses.len(), trace.blocks as usize);
/// # Ok::<(), bursar::trace::ReplayError>(())
/// ```
#[derive(Debug, Default)]
pub struct TraceRecorder {
    events: Vec<Event>,
    addresses: Vec<u64>,
    /// True for each block that was granted.
    granted: Vec<bool>,
    /// The addresses that blocks had, at any time.
    used: AddressRanges,
    /// The stream of the first block at the start of each used range.
    streams: std::collections::HashMap<u64, u16>,
}

impl TraceRecorder {
    /// Records one operation.
    pub fn record(&mut self, step: &ReplayStep<'_>) {
        let event = step.event;
        let number = event.block as usize;
        match (event.kind, step.block) {
            (EventKind::Free, _) => {
                if self.granted.get(number).copied().unwrap_or(false) {
                    self.events.push(event);
                }
            }
            (_, Some(block)) => {
                if self.addresses.len() <= number {
                    self.addresses.resize(number + 1, 0);
                    self.granted.resize(number + 1, false);
                }
                (self.addresses[number], self.granted[number]) = (block.ptr().0, true);
                let start = block.base().0;
                self.use_range(start, start.saturating_add(block.granted().get()), event.stream);
                self.events.push(event);
            }
            (_, None) => {
                self.events.push(Event { kind: EventKind::Fail, block: Event::NO_BLOCK, ..event });
            }
        }
    }

    /// Adds the parts of `start .. end` that were not used before.
    fn use_range(&mut self, mut start: u64, end: u64, stream: u16) {
        while start < end {
            let covering = self.used.range(..=start).next_back().map(|(_, &to)| to).filter(|&to| to > start);
            if let Some(to) = covering {
                start = to;
                continue;
            }
            let until = self.used.range(start..end).next().map_or(end, |(&from, _)| from);
            add(&mut self.used, start, until);
            self.streams.insert(start, stream);
            start = until;
        }
    }

    /// Returns the run and the addresses of its blocks. `trace` is what was replayed: its identifiers are kept.
    /// `backed_addresses` has observed the device.
    ///
    /// A segment is a range of addresses that blocks had at any time, or that a pool has mapped memory to. Not all of its
    /// addresses need have had memory at once. Its stream is that of the first block at its start, and all events have the
    /// device of the first one, since the run used one device.
    pub fn finish(mut self, trace: &Trace, backed_addresses: &BackedAddresses) -> (Trace, TraceLayout) {
        for (&start, &end) in &*backed_addresses.ranges() {
            self.use_range(start, end, 0);
        }
        let Self { events, mut addresses, used, streams, .. } = self;
        addresses.resize(trace.blocks as usize, 0);
        let device = events.first().map_or(0, |event| event.device);
        let events = events.into_iter().map(|event| Event { device, ..event }).collect();
        let segments = used.iter().map(|(&address, &end)| {
            let stream = streams.get(&address).and_then(|&stream| trace.streams.get(usize::from(stream)));
            Segment { device, stream: stream.copied().unwrap_or_default(), address, bytes: end - address }
        });
        let layout = TraceLayout { addresses, segments: segments.collect() };
        let run = Trace {
            name: trace.name.clone(),
            format: trace.format,
            events,
            threads: trace.threads.clone(),
            streams: trace.streams.clone(),
            blocks: trace.blocks,
            ..Trace::default()
        };
        (run, layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Replay, read_from, write_torch_snapshot_at};
    use bursar_core::{Build, DeviceContext, DeviceId, DeviceMemoryResource, Stack, leaf};
    use bursar_sim::Sim;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use std::sync::Arc;

    /// A log whose rows allocate a size or free an earlier block; some blocks are never freed.
    fn log(steps: &[(u64, usize, u8)]) -> String {
        let (mut live, mut text) = (Vec::new(), "Thread,Time,Action,Pointer,Size,Stream\n".to_owned());
        for (at, &(bytes, pick, stream)) in steps.iter().enumerate() {
            let row = |action: &str, pointer: usize, bytes: u64| {
                format!("1,00:00:00.{at:06},{action},{:#x},{bytes},{stream}\n", pointer * 4096)
            };
            if live.len() > 1 && pick % 3 == 0 {
                let (pointer, bytes) = live.swap_remove(pick % live.len());
                text += &row("free", pointer, bytes);
            } else {
                live.push((at + 1, bytes));
                text += &row("allocate", at + 1, bytes);
            }
        }
        text
    }

    proptest! {
        #[test]
        fn every_block_has_its_place_to_itself_in_a_segment(
            steps in prop::collection::vec((1u64..5000, any::<usize>(), 0u8..3), 1..200),
            is_direct: bool,
        ) {
            let trace = read_from(log(&steps).as_bytes(), "steps.csv").expect("a trace");
            let context = DeviceContext::open(Sim::immediate(), DeviceId(0)).expect("a device");
            let memory: Arc<dyn DeviceMemoryResource> = if is_direct {
                Arc::new(Stack::new().over(leaf::Direct).build(&context).expect("a stack"))
            } else {
                Arc::new(Stack::new().over(leaf::Async).build(&context).expect("a stack"))
            };
            let mut recorder = TraceRecorder::default();
            Replay::new(&trace, &context).expect("streams").watch(&*memory, &mut |step| recorder.record(step)).expect("room");
            let (run, layout) = recorder.finish(&trace, &BackedAddresses::default());
            prop_assert_eq!(&run.events, &trace.events);
            prop_assert!(layout.segments.windows(2).all(|two| two[0].address + two[0].bytes < two[1].address));
            let mut live: HashMap<u32, (u64, u64)> = HashMap::new();
            for event in &run.events {
                let start = layout.addresses[event.block as usize];
                let end = start + event.bytes;
                if event.kind == EventKind::Free {
                    prop_assert_eq!(live.remove(&event.block), Some((start, end)));
                    continue;
                }
                prop_assert!(live.values().all(|&(from, to)| end <= from || to <= start), "two blocks overlap");
                let around = layout.segments.iter().filter(|one| one.address <= start && end <= one.address + one.bytes);
                prop_assert_eq!(around.count(), 1);
                live.insert(event.block, (start, end));
            }
            let mut snapshot = Vec::new();
            write_torch_snapshot_at(&run, &layout, &mut snapshot).expect("memory");
            let read = read_from(&snapshot[..], "run.pickle").expect("a snapshot");
            prop_assert_eq!(read.missing_frees.len(), live.len());
        }
    }
}
