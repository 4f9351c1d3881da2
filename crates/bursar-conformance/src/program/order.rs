//! The order of submissions that a program may rely on.

use bursar_core::Progress;

/// A submission: the stream it went to, and its number there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Epoch {
    stream: usize,
    number: u64,
}

impl Epoch {
    pub(super) fn stream(self) -> usize {
        self.stream
    }
}

/// A vector clock: for each stream, the number of its submissions that came before.
#[derive(Clone, Debug)]
struct Clock(Vec<u64>);

impl Clock {
    fn covers(&self, epoch: Epoch) -> bool {
        self.0[epoch.stream] >= epoch.number
    }

    fn join(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }
}

/// The latest record of an event.
#[derive(Clone, Debug)]
struct EventRecord {
    stream: usize,
    clock: Clock,
    /// True once the host has waited for it, or for its stream since.
    is_done: bool,
}

/// The order of everything submitted so far.
#[derive(Debug)]
pub(super) struct Order {
    /// The submissions that the host has waited for: everything submitted later comes after them.
    host: Clock,
    streams: Vec<Clock>,
    /// True for each stream that the host has waited for and that nothing was submitted to since.
    is_dry: Vec<bool>,
    events: Vec<Option<EventRecord>>,
    /// The host function that a shut gate holds.
    held: Option<Epoch>,
}

impl Order {
    pub(super) fn new(streams: usize, events: usize) -> Self {
        let clock = Clock(vec![0; streams]);
        Self {
            host: clock.clone(),
            streams: vec![clock; streams],
            is_dry: vec![true; streams],
            events: vec![None; events],
            held: None,
        }
    }

    pub(super) fn submit(&mut self, stream: usize) -> Epoch {
        let clock = &mut self.streams[stream];
        clock.join(&self.host);
        clock.0[stream] += 1;
        self.is_dry[stream] = false;
        let number = clock.0[stream];
        Epoch { stream, number }
    }

    /// Accounts for submissions of others to any stream.
    pub(super) fn others_submitted(&mut self) {
        self.is_dry.fill(false);
    }

    /// Returns whether the next submission to `stream` comes after `epoch`.
    pub(super) fn is_ordered(&self, epoch: Epoch, stream: usize) -> bool {
        self.streams[stream].covers(epoch) || self.host.covers(epoch)
    }

    /// Returns the events whose latest record comes after `epoch`.
    pub(super) fn events_after(&self, epoch: Epoch) -> Vec<usize> {
        let is_after = |event: &usize| self.events[*event].as_ref().is_some_and(|record| record.clock.covers(epoch));
        (0..self.events.len()).filter(is_after).collect()
    }

    pub(super) fn record(&mut self, event: usize, stream: usize) {
        self.submit(stream);
        let clock = self.streams[stream].clone();
        self.events[event] = Some(EventRecord { stream, clock, is_done: false });
    }

    pub(super) fn wait(&mut self, event: usize, stream: usize) {
        self.submit(stream);
        if let Some(record) = &self.events[event] {
            self.streams[stream].join(&record.clock);
        }
    }

    /// Accounts for a wait of the host for everything on a stream.
    pub(super) fn synchronize(&mut self, stream: usize) {
        self.host_saw(stream);
        self.is_dry[stream] = true;
        let of_stream = self.events.iter_mut().flatten().filter(|record| record.stream == stream);
        of_stream.for_each(|record| record.is_done = true);
    }

    pub(super) fn synchronize_event(&mut self, event: usize) {
        if let Some(record) = &mut self.events[event] {
            record.is_done = true;
            self.host.join(&record.clock);
        }
    }

    /// Accounts for a wait after which everything on a stream has run, although a query of the stream need not show it yet.
    pub(super) fn host_saw(&mut self, stream: usize) {
        self.host.join(&self.streams[stream]);
    }

    pub(super) fn hold(&mut self, stream: usize) {
        self.held = Some(self.submit(stream));
    }

    pub(super) fn open(&mut self) {
        self.held = None;
    }

    pub(super) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Returns whether the latest submission to a stream, or the record of an event, comes after the host function that is
    /// held.
    fn is_behind_gate(&self, clock: &Clock) -> bool {
        self.held.is_some_and(|held| clock.covers(held))
    }

    /// Returns the progress of a stream, if it must be the same on every driver.
    pub(super) fn stream_progress(&self, stream: usize) -> Option<Progress> {
        if self.is_behind_gate(&self.streams[stream]) {
            return Some(Progress::Pending);
        }
        self.is_dry[stream].then_some(Progress::Complete)
    }

    /// Returns the progress of an event, if it must be the same on every driver.
    pub(super) fn event_progress(&self, event: usize) -> Option<Progress> {
        match &self.events[event] {
            None => Some(Progress::Complete),
            Some(record) if self.is_behind_gate(&record.clock) => Some(Progress::Pending),
            Some(record) => record.is_done.then_some(Progress::Complete),
        }
    }
}
