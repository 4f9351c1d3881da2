//! Variations of a given trace.

use super::writer::unit;
use crate::{Event, EventKind, Trace};
use bursar_sim::Random;

/// The stream that frees a block of a [dealt](Trace::dealt) trace.
///
/// ```
/// assert_eq!(bursar::trace::FreeStream::default(), bursar::trace::FreeStream::Own);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FreeStream {
    /// The stream that allocated it.
    #[default]
    Own,
    /// The stream after the one that allocated it, as where a block is handed on and freed by its last user.
    Next,
}

impl Trace {
    /// Returns this trace with its blocks dealt over so many streams, at least one, in turns: block 0 to the first stream,
    /// block 1 to the second, and so on. Nothing else changes, so the order of operations and the peak stay.
    ///
    /// ```
    /// use bursar::trace::{Event, EventKind, FreeStream, TraceFamily, TraceGenerator};
    ///
    /// let trace = TraceGenerator::new(TraceFamily::Mix).rounds(10).generate();
    /// let dealt = trace.dealt(4, FreeStream::Next);
    /// assert_eq!((dealt.streams.len(), dealt.peak_live()), (4, trace.peak_live()));
    /// let is_fourth = |event: &&Event| event.block == 3;
    /// let streams: Vec<_> = dealt.events.iter().filter(is_fourth).map(|event| (event.kind, event.stream)).collect();
    /// assert_eq!(streams, [(EventKind::Allocate, 3), (EventKind::Free, 0)]);
    /// ```
    #[must_use]
    pub fn dealt(&self, streams: u16, frees: FreeStream) -> Self {
        let streams = streams.max(1);
        let deal = |event: &Event| {
            let own = (event.block % u32::from(streams)) as u16;
            let stream = match (event.kind, frees) {
                (EventKind::Fail, _) => 0,
                (EventKind::Free, FreeStream::Next) => (own + 1) % streams,
                _ => own,
            };
            Event { stream, ..*event }
        };
        let events = self.events.iter().map(deal).collect();
        Self { events, streams: (0..streams.into()).collect(), ..self.clone() }
    }

    /// Returns this trace with the size of each block varied by at most `part` of it, up or down, as `seed` decides; 0.1 is
    /// ten per cent. A `part` outside 0 to 1 counts as the nearer of the two. No block has less than a byte.
    ///
    /// ```
    /// let trace = bursar::trace::bundled();
    /// let varied = trace.jittered(0.1, 7);
    /// let change = varied.events[0].bytes as f64 / trace.events[0].bytes as f64;
    /// assert!((0.89..1.11).contains(&change));
    /// assert_eq!(varied, trace.jittered(0.1, 7));
    /// ```
    #[must_use]
    pub fn jittered(&self, part: f64, seed: u64) -> Self {
        let part = if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) };
        let mut random = Random::new(seed);
        let factors: Vec<f64> = (0..self.blocks).map(|_| 1.0 + part * (2.0 * unit(&mut random) - 1.0)).collect();
        let mut varied = self.clone();
        for event in &mut varied.events {
            if let Some(factor) = factors.get(event.block as usize) {
                let bytes = (event.bytes as f64 * factor).round() as u64;
                event.bytes = bytes.clamp(1, Self::MAX_BLOCK_BYTES);
            }
        }
        varied
    }
}
