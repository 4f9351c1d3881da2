//! The event sink of a device: who wants to know what happens to its memory.

use super::record::{Action, Actions, Record};
use super::tally::Tally;
use crate::{DeviceBlock, DeviceId, Error, Holding, Refused, Stream};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Someone who wants to know. It is called on the thread the thing happened on, in the middle of it: it must be quick,
/// must not allocate from the stack it observes, and can change nothing.
///
/// ```
/// use bursar_core::{Action, Actions, DeviceId, Holding, Observer, Record};
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
///
/// #[derive(Debug, Default)]
/// struct Refusals(AtomicU64);
///
/// impl Observer for Refusals {
///     fn interest(&self) -> Actions {
///         Actions::of(&[Action::Refuse])
///     }
///     fn identity(&self) -> usize {
///         std::ptr::from_ref(self).addr()
///     }
///     fn record(&self, _: &Record<'_>) {
///         self.0.fetch_add(1, Relaxed);
///     }
///     fn holders(&self, _: DeviceId) -> Option<Vec<Holding>> {
///         None
///     }
/// }
/// ```
pub trait Observer: fmt::Debug + Send + Sync {
    /// What it wants to hear of; asked once.
    fn interest(&self) -> Actions;

    /// Which observer it is, so that none hears of anything twice: the address of what it keeps, which for a handle that
    /// can be cloned is what the clones share.
    fn identity(&self) -> usize;

    /// Hears of one thing.
    fn record(&self, record: &Record<'_>);

    /// What is held on a device for each tag, in any order, from one that counts it. Asked when a request was refused.
    fn holders(&self, device: DeviceId) -> Option<Vec<Holding>>;

    /// Where blocks are to be counted, for one that does nothing else with grants and frees: [`Observed`](crate::Observed)
    /// counts them there, and it need not be told. A device has one such tally, the first it is offered; whoever offers
    /// another is told like everybody else.
    fn tally(&self) -> Option<Arc<Tally>> {
        None
    }
}

const MAX_OBSERVERS: usize = 16;

/// What a tally takes the place of records for.
const COUNTED: Actions = Actions::of(&[Action::Allocate, Action::Free]);

/// Where everything that happens to a device's memory is told.
///
/// ```
/// use bursar_core::{Action, EventSink};
///
/// let sink = EventSink::default();
/// assert!(!sink.wants(Action::Allocate), "nobody listens");
/// ```
#[derive(Default)]
pub struct EventSink {
    wanted: AtomicU32,
    tally: OnceLock<Arc<Tally>>,
    observers: [OnceLock<(Actions, Arc<dyn Observer>)>; MAX_OBSERVERS],
    entrance: Mutex<usize>,
}

impl fmt::Debug for EventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let observers = self.observers.iter().filter_map(OnceLock::get).count();
        f.debug_struct("EventSink").field("observers", &observers).finish_non_exhaustive()
    }
}

impl EventSink {
    /// Lets `observer` hear of everything from now on, for the life of the device's context. One that listens already,
    /// by its [identity](Observer::identity), is left as it is; more than sixteen are an error.
    pub fn subscribe(&self, observer: &Arc<dyn Observer>) -> crate::Result<()> {
        let mut count = self.entrance.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.observers[..*count].iter().filter_map(OnceLock::get);
        if known.into_iter().any(|(_, other)| other.identity() == observer.identity()) {
            return Ok(());
        }
        let place =
            self.observers.get(*count).ok_or(Error::InvalidValue { what: "a device takes at most 16 observers" })?;
        let counted = observer.tally().is_some_and(|tally| self.tally.set(tally).is_ok());
        let interest = observer.interest().except(if counted { COUNTED } else { Actions::default() });
        if place.set((interest, observer.clone())).is_ok() {
            *count += 1;
        }
        self.wanted.fetch_or(interest.0, Ordering::Release);
        Ok(())
    }

    /// Whether anybody wants a record of `action`: whoever would have to put a record together asks first.
    #[inline]
    pub fn wants(&self, action: Action) -> bool {
        Actions(self.wanted.load(Ordering::Acquire)).contains(action)
    }

    /// Tells those who want to hear of it.
    #[inline]
    pub fn emit(&self, record: &Record<'_>) {
        if self.wants(record.action) {
            self.deliver(record);
        }
    }

    /// What counts the device's blocks, once somebody has offered to.
    pub(crate) fn tally(&self) -> Option<&Arc<Tally>> {
        self.tally.get()
    }

    /// Tells of what happened to a block on a stream.
    #[inline]
    pub(crate) fn tell(&self, block: &DeviceBlock, action: Action, stream: Stream) {
        if self.wants(action) {
            self.deliver(&Record::of(block, action, stream));
        }
    }

    /// Takes back what was told of a free.
    #[cold]
    pub(crate) fn restored(&self, Refused { block, error }: &Refused, stream: Stream) {
        if let Some(tally) = self.tally.get() {
            tally.restored(block.device(), block.tag(), block.granted());
        }
        self.emit(&Record { error: Some(error), ..Record::of(block, Action::Allocate, stream) });
    }

    /// What is held on a device for each tag, in any order, as the first observer counts it that does; empty where none
    /// does.
    pub fn holders(&self, device: DeviceId) -> Vec<Holding> {
        let mut known = self.observers.iter().map_while(OnceLock::get);
        known.find_map(|(_, observer)| observer.holders(device)).unwrap_or_default()
    }

    #[cold]
    fn deliver(&self, record: &Record<'_>) {
        for (interest, observer) in self.observers.iter().map_while(OnceLock::get) {
            if interest.contains(record.action) {
                observer.record(record);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Heard(Actions, Mutex<Vec<Action>>);

    impl Observer for Heard {
        fn interest(&self) -> Actions {
            self.0
        }
        fn identity(&self) -> usize {
            std::ptr::from_ref(self).addr()
        }
        fn record(&self, record: &Record<'_>) {
            self.1.lock().expect("no panic").push(record.action);
        }
        fn holders(&self, _: DeviceId) -> Option<Vec<Holding>> {
            None
        }
    }

    #[test]
    fn g1_each_observer_hears_what_it_asked_for_once() {
        let sink = EventSink::default();
        let some = Arc::new(Heard(Actions::of(&[Action::Refuse]), Mutex::default()));
        let all = Arc::new(Heard(Actions::ALL, Mutex::default()));
        for observer in [some.clone() as Arc<dyn Observer>, all.clone()] {
            sink.subscribe(&observer).expect("room");
            sink.subscribe(&observer).expect("already there");
        }
        for (action, name) in Action::ALL {
            assert_eq!(action.to_string(), name);
            sink.emit(&Record::new(action, DeviceId(0)));
        }
        assert_eq!(*some.1.lock().expect("no panic"), [Action::Refuse]);
        assert_eq!(*all.1.lock().expect("no panic"), Action::ALL.map(|(action, _)| action));
    }
}
