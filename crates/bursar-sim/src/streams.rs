//! Streams, events, and the notes that follow their order.

use crate::ranges::Moment;
use crate::schedule::Work;
use crate::turn::Turn;
use crate::world::Answer;
use bursar_core::{Note, Progress, RawEvent, RawStream, Status};

impl Turn<'_> {
    pub(crate) fn destroy_stream(&mut self, raw: RawStream) -> Answer<()> {
        let stream = self.stream(self.device(), raw)?;
        if stream < self.devices.len() {
            return Err(Status::InvalidHandle);
        }
        self.streams[stream].is_alive = false;
        if std::mem::take(&mut self.streams[stream].is_capturing) {
            self.calm();
        }
        Ok(())
    }

    pub(crate) fn stream_wait(&mut self, stream: RawStream, event: RawEvent) -> Answer<()> {
        let caller = self.caller;
        let stream = self.open_stream(caller.device, stream)?;
        let event = self.events.get(&event.0).ok_or(Status::InvalidHandle)?;
        let (record, clock) = (event.record, event.clock.clone());
        if let Some(oracle) = &mut self.oracle {
            oracle.wait(stream, &clock);
        }
        self.submit(caller, stream, record, &[], Work::Nothing);
        Ok(())
    }

    pub(crate) fn event_record(&mut self, event: RawEvent, stream: RawStream) -> Answer<()> {
        let caller = self.caller;
        let stream = self.open_stream(caller.device, stream)?;
        self.event(caller.device, event)?;
        self.submit(caller, stream, None, &[], Work::Nothing);
        let clock = self.oracle.as_ref().map(|oracle| oracle.clock(stream).clone());
        let mark = self.end_of(stream);
        if let Some(event) = self.events.get_mut(&event.0) {
            event.record = Some(mark);
            event.clock = clock.unwrap_or_default();
        }
        Ok(())
    }

    pub(crate) fn event_query(&mut self, event: RawEvent) -> Answer<Progress> {
        self.event(self.device(), event)?;
        self.pass_time();
        let event = self.event(self.device(), event)?;
        if event.record.is_some_and(|mark| !self.is_reached(mark)) {
            return Ok(Progress::Pending);
        }
        let clock = event.clock.clone();
        if let Some(oracle) = &mut self.oracle {
            oracle.host_saw_clock(&clock);
        }
        Ok(Progress::Complete)
    }

    pub(crate) fn event_synchronize(&mut self, event: RawEvent) -> Answer<()> {
        let event = self.event(self.device(), event)?;
        let (record, clock) = (event.record, event.clock.clone());
        if let Some(mark) = record {
            self.wait_for(&[mark])?;
        }
        if let Some(oracle) = &mut self.oracle {
            oracle.host_saw_clock(&clock);
        }
        Ok(())
    }

    /// Hears which range is a block.
    pub(crate) fn note(&mut self, note: Note) -> Answer<()> {
        let (device, caller) = (self.device(), self.caller);
        let raw = match note {
            Note::Granted { stream, .. } | Note::Freed { stream, .. } => stream,
            _ => return Ok(()),
        };
        let stream = self.stream(device, raw)?;
        let (others, op) = (self.implied(stream), caller.operation(self.streams[stream].place));
        let Some(oracle) = &mut self.oracle else { return Ok(()) };
        let (epoch, clock) = oracle.point(stream, &others);
        match note {
            Note::Granted { ptr, bytes, tag, .. } => {
                let end = ptr.0.checked_add(bytes).ok_or(Status::InvalidValue)?;
                oracle.granted(device, ptr.0..end, Moment { op, epoch }, &clock, tag);
            }
            Note::Freed { ptr, .. } => oracle.block_freed(device, ptr.0, Moment { op, epoch }, &clock),
            _ => {}
        }
        Ok(())
    }
}
