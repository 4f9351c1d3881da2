//! Streams, events, and the notes that follow their order.

use super::active_call::ActiveCall;
use crate::machine::Work;
use crate::operation::CallResult;
use crate::oracle::OrderedOp;
use bursar_core::{Note, Progress, RawEvent, RawStream, Status};

impl ActiveCall<'_> {
    pub(crate) fn destroy_stream(&mut self, raw: RawStream) -> CallResult<()> {
        let stream = self.stream(self.device(), raw)?;
        if stream < self.devices.len() {
            return Err(Status::InvalidHandle);
        }
        self.streams[stream].is_alive = false;
        self.abandon_capture(stream);
        Ok(())
    }

    pub(crate) fn stream_wait(&mut self, stream: RawStream, event: RawEvent) -> CallResult<()> {
        let call = self.call;
        let stream = self.work_stream(call.device, stream)?;
        if self.capture_wait(stream, event)? {
            return Ok(());
        }
        let event = self.events.get(&event.0).ok_or(Status::InvalidHandle)?;
        let (record, clock) = (event.record, event.clock.clone());
        if let Some(oracle) = &mut self.oracle {
            oracle.wait(stream, &clock);
        }
        self.submit(call, stream, record.as_slice(), &[], Work::Nothing);
        Ok(())
    }

    pub(crate) fn event_record(&mut self, event: RawEvent, stream: RawStream) -> CallResult<()> {
        let call = self.call;
        let stream = self.work_stream(call.device, stream)?;
        self.event(call.device, event)?;
        if self.capture_record(stream, event)? {
            return Ok(());
        }
        self.submit(call, stream, &[], &[], Work::Nothing);
        let clock = self.oracle.as_ref().map(|oracle| oracle.clock(stream).clone());
        let point = self.end_of(stream);
        if let Some(event) = self.events.get_mut(&event.0) {
            event.record = Some(point);
            event.clock = clock.unwrap_or_default();
            event.captured = None;
        }
        Ok(())
    }

    pub(crate) fn event_query(&mut self, event: RawEvent) -> CallResult<Progress> {
        self.event(self.device(), event)?;
        self.check_not_captured(event)?;
        self.pass_time();
        let event = self.event(self.device(), event)?;
        if event.record.is_some_and(|point| !self.is_reached(point)) {
            return Ok(Progress::Pending);
        }
        let clock = event.clock.clone();
        if let Some(oracle) = &mut self.oracle {
            oracle.host_observed(&clock);
        }
        Ok(Progress::Complete)
    }

    pub(crate) fn event_synchronize(&mut self, event: RawEvent) -> CallResult<()> {
        self.event(self.device(), event)?;
        self.check_not_captured(event)?;
        let event = self.event(self.device(), event)?;
        let (record, clock) = (event.record, event.clock.clone());
        if let Some(point) = record {
            self.wait_for(&[point])?;
        }
        if let Some(oracle) = &mut self.oracle {
            oracle.host_observed(&clock);
        }
        Ok(())
    }

    /// Records a note of a layer above about a block.
    pub(crate) fn note(&mut self, note: Note) -> CallResult<()> {
        let (device, call) = (self.device(), self.call);
        let raw = match note {
            Note::Granted { stream, .. } | Note::Freed { stream, .. } => stream,
            Note::Divided { stream, .. } | Note::Rejoined { stream, .. } => stream,
            _ => return Ok(()),
        };
        let stream = self.stream(device, raw)?;
        if self.capture_note(call, stream, note)? {
            return Ok(());
        }
        let (others, op) = (self.implicit_waits(stream), call.operation(self.streams[stream].executor));
        let home = match note {
            Note::Freed { home, .. } if home != raw => Some(self.stream(device, home)?),
            _ => None,
        };
        let home = home.map(|home| (home, self.implicit_waits(home)));
        let Some(oracle) = &mut self.oracle else { return Ok(()) };
        let (epoch, clock) = oracle.point(stream, &others);
        match note {
            Note::Granted { ptr, bytes, tag, .. } => {
                let end = ptr.0.checked_add(bytes).ok_or(Status::InvalidValue)?;
                oracle.record_block(device, ptr.0..end, OrderedOp { op, epoch }, &clock, tag);
            }
            Note::Freed { ptr, .. } => {
                let home = home.map(|(home, others)| oracle.point(home, &others));
                oracle.record_block_free(device, ptr.0, OrderedOp { op, epoch }, &clock, home.as_ref());
            }
            Note::Divided { ptr, bytes, .. } => {
                let end = ptr.0.checked_add(bytes).ok_or(Status::InvalidValue)?;
                oracle.record_division(device, ptr.0..end);
            }
            Note::Rejoined { ptr, .. } => oracle.record_rejoining(device, ptr.0, OrderedOp { op, epoch }, &clock),
            _ => {}
        }
        Ok(())
    }
}
