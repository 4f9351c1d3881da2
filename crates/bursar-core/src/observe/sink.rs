//! The event sink of a device, and the observers that subscribe to it.

use super::record::{Action, Actions, Record};
use super::scope::{GraphCount, PartCount, StackCount, StackScopes};
use super::tally::{Column, Tally};
use crate::{DeviceBlock, DeviceId, Error, Holding, Refused, Stream, Survey};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// An observer of what happens to a device's memory. It is called on the thread that the event happened on, in the
/// middle of it: it must be quick, must not allocate from the stack it observes, and can change nothing.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::error::Holding;
/// use bursar::observe::{Action, Actions, Observer, Record};
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
    /// Returns the actions it wants records of; called once.
    fn interest(&self) -> Actions;

    /// Returns its identity, so that no observer is called twice for one event: the address of its state, which for a
    /// handle that can be cloned is the state that the clones share.
    fn identity(&self) -> usize;

    /// Receives one record.
    fn record(&self, record: &Record<'_>);

    /// Returns what is held on a device for each tag, in any order; `None` from an observer that does not count it.
    /// Called when a request was refused.
    fn holders(&self, device: DeviceId) -> Option<Vec<Holding>>;

    /// Returns the tally to count blocks in, for an observer that does nothing else with grants and frees:
    /// [`ObservedResource`](crate::ObservedResource) counts them there, and the observer is not called for them. A
    /// device has one such tally, the first it is offered; an observer that offers another is called like all others.
    fn tally(&self) -> Option<Arc<Tally>> {
        None
    }
}

const MAX_OBSERVERS: usize = 16;

/// The actions that a tally counts without records.
const COUNTED: Actions = Actions::of(&[Action::Allocate, Action::Free]);

/// The sink that delivers records of what happens to a device's memory to its observers.
///
/// ```
/// use bursar::observe::{Action, EventSink};
///
/// let sink = EventSink::default();
/// assert!(!sink.wants(Action::Allocate), "nobody listens");
/// ```
#[derive(Default)]
pub struct EventSink {
    wanted: AtomicU32,
    tally: OnceLock<Arc<Tally>>,
    /// The same tally, for those who watch without the device.
    counting_tally: Arc<OnceLock<Arc<Tally>>>,
    scopes: StackScopes,
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
    /// Subscribes `observer` from now on, for the life of the device's context. One that is subscribed already, by its
    /// [identity](Observer::identity), is left as it is; more than sixteen are an error.
    pub fn subscribe(&self, observer: &Arc<dyn Observer>) -> crate::Result<()> {
        let mut count = self.entrance.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.observers[..*count].iter().filter_map(OnceLock::get);
        if known.into_iter().any(|(_, other)| other.identity() == observer.identity()) {
            return Ok(());
        }
        let place =
            self.observers.get(*count).ok_or(Error::InvalidValue { what: "a device takes at most 16 observers" })?;
        let counted = observer.tally().is_some_and(|tally| {
            let refused = self.tally.set(Arc::clone(&tally)).err();
            let _ = self.counting_tally.set(tally);
            // It is told by records, which say nothing of the stack.
            refused.iter().for_each(|tally| tally.share_columns());
            refused.is_none()
        });
        let interest = observer.interest().except(if counted { COUNTED } else { Actions::default() });
        if place.set((interest, observer.clone())).is_ok() {
            *count += 1;
        }
        self.wanted.fetch_or(interest.0, Ordering::Release);
        Ok(())
    }

    /// Returns whether any observer wants a record of `action`, to be asked before a record is put together.
    #[inline]
    pub fn wants(&self, action: Action) -> bool {
        // Relaxed: whoever is called for it orders itself after the subscription, and those who want nothing pay nothing.
        Actions(self.wanted.load(Ordering::Relaxed)).contains(action)
    }

    /// Delivers a record to the observers that want it.
    #[inline]
    pub fn emit(&self, record: &Record<'_>) {
        if self.wants(record.action) {
            self.deliver(record);
        }
    }

    /// Returns the tally that counts the device's blocks, once an observer has offered one.
    pub(crate) fn tally(&self) -> Option<&Arc<Tally>> {
        self.tally.get()
    }

    /// Returns the place of the tally that counts the device's blocks, which is filled once an observer has offered one.
    pub(crate) fn counting_tally(&self) -> Arc<OnceLock<Arc<Tally>>> {
        Arc::clone(&self.counting_tally)
    }

    /// Makes the counts of a layer that knows apart what it granted, where an observer counts by tag: `survey` begins with
    /// its limit and goes on with what is below.
    pub fn count_part(&self, device: DeviceId, survey: &Survey) -> PartCount {
        self.tally.get().map(|tally| self.scopes.count_part(tally, device, survey)).unwrap_or_default()
    }

    /// Makes the counts of a stack of which `survey` says what is below.
    pub(crate) fn count_stack(&self, device: DeviceId, survey: &Survey) -> StackCount {
        self.tally.get().map(|tally| self.scopes.count_stack(tally, device, survey)).unwrap_or_default()
    }

    /// Makes the counts of a memory of graphs of which `survey` says what is below.
    pub(crate) fn count_graph(&self, device: DeviceId, survey: &Survey) -> GraphCount {
        self.tally.get().map(|tally| self.scopes.count_graph(tally, device, survey)).unwrap_or_default()
    }

    /// Returns the stacks and layers that count in the tally.
    pub(crate) const fn scopes(&self) -> &StackScopes {
        &self.scopes
    }

    /// Delivers a record of a block on a stream.
    #[inline]
    pub(crate) fn emit_block(&self, block: &DeviceBlock, action: Action, stream: Stream) {
        if self.wants(action) {
            self.deliver(&Record::of(block, action, stream));
        }
    }

    /// Takes back the record of a free that was refused, and that was counted in a column.
    #[cold]
    pub(crate) fn restore(&self, Refused { block, error }: &Refused, stream: Stream, column: Column) {
        if let Some(tally) = self.tally.get() {
            tally.restored_in(column, block.tag(), block.granted());
        }
        self.emit(&Record { error: Some(error), ..Record::of(block, Action::Allocate, stream) });
    }

    /// Returns what is held on a device for each tag, in any order, from the first observer that counts it; empty where
    /// none does.
    pub fn holders(&self, device: DeviceId) -> Vec<Holding> {
        self.counted_holders(device).unwrap_or_default()
    }

    /// Returns what is held on a device for each tag as [`holders`](Self::holders) does, by the blocks that its stacks
    /// granted: the memory of graphs is whole there, under its own tag, as those who free it see it.
    pub fn block_holders(&self, device: DeviceId) -> Vec<Holding> {
        let counted = self.tally.get().and_then(|tally| tally.undivided_holders(device));
        counted.unwrap_or_else(|| self.holders(device))
    }

    /// Returns what is held on a device for each tag, in any order; `None` where no observer counts it.
    pub(crate) fn counted_holders(&self, device: DeviceId) -> Option<Vec<Holding>> {
        let mut known = self.observers.iter().map_while(OnceLock::get);
        known.find_map(|(_, observer)| observer.holders(device))
    }

    #[cold]
    fn deliver(&self, record: &Record<'_>) {
        fence(Ordering::Acquire);
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
