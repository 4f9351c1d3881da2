//! A replayed run as a trace of its own: what was granted, and where it lay.

use super::ground::{Backed, Ground, add};
use crate::{Event, EventKind, Layout, Moment, Segment, Trace};

/// Collects a watched pass into a trace and its [`Layout`], as [`write_torch_snapshot_at`](crate::write_torch_snapshot_at)
/// takes them. An allocation that was refused is a failure there, and its free is left out.
///
/// ```
/// use bursar_core::{Build, DeviceContext, DeviceId, Stack, leaf};
/// use bursar_sim::Sim;
/// use bursar_trace::{Ground, Placed, Replay};
///
/// let trace = bursar_trace::bundled();
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let memory = Stack::new().over(leaf::Direct).build(&context)?;
/// let mut placed = Placed::default();
/// Replay::new(&trace, &context)?.watch(&memory, &mut |moment| placed.record(moment))?;
/// let (run, layout) = placed.finish(&trace, &Ground::default());
/// assert_eq!(run.events, trace.events);
/// assert_eq!(layout.addresses.len(), trace.blocks as usize);
/// # Ok::<(), bursar_trace::ReplayError>(())
/// ```
#[derive(Debug, Default)]
pub struct Placed {
    events: Vec<Event>,
    addresses: Vec<u64>,
    /// Whether each block was granted.
    granted: Vec<bool>,
    /// Where blocks were, at one time or another.
    used: Backed,
    /// The stream of the block that lay at the beginning of each used range when it was first used.
    streams: std::collections::HashMap<u64, u16>,
}

impl Placed {
    /// Takes one moment.
    pub fn record(&mut self, moment: &Moment<'_>) {
        let event = moment.event;
        let number = event.block as usize;
        match (event.kind, moment.block) {
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

    /// The run and where its blocks lay. `trace` is what was replayed: its names are kept. `ground` has listened to the
    /// device.
    ///
    /// A segment is a run of addresses that blocks lay at, at any time, or that a pool has put memory behind: its length
    /// is of addresses, of which not all need have been held at once. It has the stream of the block that first lay at its
    /// beginning. A run through one device is of that device alone.
    pub fn finish(mut self, trace: &Trace, ground: &Ground) -> (Trace, Layout) {
        for (&start, &end) in &*ground.backed() {
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
        let layout = Layout { addresses, segments: segments.collect() };
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
            let mut placed = Placed::default();
            Replay::new(&trace, &context).expect("streams").watch(&*memory, &mut |moment| placed.record(moment)).expect("room");
            let (run, layout) = placed.finish(&trace, &Ground::default());
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
