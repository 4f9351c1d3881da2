//! The one table that makes streams.
//!
//! **A [`Stream`] is made in one table**, and a token of a stream whose adoption has ended is recognised by its epoch,
//! even when its slot is taken again. Whoever uses an adopted stream holds it, and its adoption does not end before
//! they are done; streams of the context's own never end while it lives and cost no counting.

use super::hold::StreamHold;
use super::{ADOPTED, STREAM_SLOTS, Stream};
use crate::{DeviceId, Error, RawStream, Result, StreamMisuse, StreamNumber};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One slot of the table.
///
/// The slot of a stream that this context made is never reused, and its epoch is 1. Slots of adopted streams are: their
/// epochs are marked [`ADOPTED`], odd while the slot is taken, and move on with each occupant, so that a token of an
/// earlier one is recognised. Whoever uses an adopted stream counts among its users meanwhile, and its adoption does
/// not end before they are done.
///
/// A stream can only be captured into a graph by somebody who has its raw handle: whoever made it, or, for the streams
/// of this context, whoever asked for the handle.
#[derive(Debug, Default)]
struct Slot {
    raw: AtomicU64,
    /// The number that its stream is named by.
    number: AtomicU16,
    epoch: AtomicU32,
    users: AtomicU32,
    exposed: AtomicBool,
    /// The epoch of the last occupant whose end was handled: its heir comes after its work, or it is known to be
    /// unordered.
    last_handled_end: AtomicU32,
}

#[derive(Debug, Default)]
struct Occupancy {
    next: u32,
    vacant: Vec<u32>,
    owned: Vec<RawStream>,
    known: HashMap<RawStream, KnownStream>,
}

#[derive(Clone, Copy, Debug)]
struct KnownStream {
    slot: u32,
    adoptions: u32,
    owned: bool,
}

/// The streams of one context.
#[derive(Debug)]
pub(crate) struct StreamTable {
    context: u32,
    device: DeviceId,
    slots: Box<[Slot]>,
    occupancy: Mutex<Occupancy>,
}

impl StreamTable {
    pub(crate) fn new(context: u32, device: DeviceId) -> Self {
        let table = Self {
            context,
            device,
            slots: (0..STREAM_SLOTS).map(|_| Slot::default()).collect(),
            occupancy: Mutex::default(),
        };
        let placed = table.own(RawStream::LEGACY, None);
        debug_assert!(placed.is_ok_and(Stream::is_default));
        table
    }

    fn occupancy(&self) -> MutexGuard<'_, Occupancy> {
        self.occupancy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn token(&self, slot: u32) -> Stream {
        let entry = &self.slots[slot as usize];
        let (epoch, number) = (entry.epoch.load(Ordering::Relaxed), entry.number.load(Ordering::Relaxed));
        Stream::new(self.context, slot, epoch, self.device.0 as u16, number)
    }

    pub(crate) fn default_stream(&self) -> Stream {
        self.token(0)
    }

    /// Enters a stream that this context created, under the driver's number if it has one.
    pub(crate) fn own(&self, raw: RawStream, number: Option<u32>) -> Result<Stream> {
        let mut occupancy = self.occupancy();
        let slot = occupancy.fresh()?;
        if raw != RawStream::LEGACY {
            occupancy.owned.push(raw);
        }
        occupancy.known.insert(raw, KnownStream { slot, adoptions: 0, owned: true });
        Ok(self.occupy(slot, raw, number, 1))
    }

    /// Enters a stream that somebody else created, under the driver's number if it has one, or counts one more adoption
    /// of it.
    pub(crate) fn adopt(&self, raw: RawStream, number: Option<u32>) -> Result<Stream> {
        let raw = self.named(raw)?;
        let mut occupancy = self.occupancy();
        if let Some(known) = occupancy.known.get_mut(&raw) {
            known.adoptions += 1;
            return Ok(self.token(known.slot));
        }
        let slot = occupancy.vacant.pop().map_or_else(|| occupancy.fresh(), Ok)?;
        occupancy.known.insert(raw, KnownStream { slot, adoptions: 1, owned: false });
        let epoch = self.slots[slot as usize].epoch.load(Ordering::Relaxed);
        Ok(self.occupy(slot, raw, number, (epoch + 1) | ADOPTED))
    }

    /// Enters a stream that somebody else created and that outlives the table, under the driver's number if it has one:
    /// it is used like one of the context's own, and destroyed by its owner.
    pub(crate) fn enter_lasting(&self, raw: RawStream, number: Option<u32>) -> Result<Stream> {
        let raw = self.named(raw)?;
        let mut occupancy = self.occupancy();
        if let Some(known) = occupancy.known.get_mut(&raw) {
            known.owned = true;
            self.conceal(self.token(known.slot));
            return Ok(self.token(known.slot));
        }
        let slot = occupancy.fresh()?;
        occupancy.known.insert(raw, KnownStream { slot, adoptions: 0, owned: true });
        Ok(self.occupy(slot, raw, number, 1))
    }

    /// Returns the handle that a stream is known by here; the per-thread default stream is refused.
    fn named(&self, raw: RawStream) -> Result<RawStream> {
        match raw {
            RawStream::PER_THREAD => {
                let (device, stream) = (self.device, StreamNumber::PER_THREAD);
                Err(Error::StreamMisuse { device, stream, why: StreamMisuse::PerThread })
            }
            RawStream(0) => Ok(RawStream::LEGACY),
            raw => Ok(raw),
        }
    }

    /// Enters a stream in a slot, under a number of the driver's that a token has room for or the slot's own.
    fn occupy(&self, slot: u32, raw: RawStream, number: Option<u32>, epoch: u32) -> Stream {
        let entry = &self.slots[slot as usize];
        let number = number.and_then(|number| u16::try_from(number).ok()).unwrap_or(slot as u16);
        entry.number.store(number, Ordering::Relaxed);
        entry.raw.store(raw.0, Ordering::Relaxed);
        entry.exposed.store(epoch & ADOPTED != 0 || raw == RawStream::LEGACY, Ordering::Relaxed);
        entry.epoch.store(epoch, Ordering::SeqCst);
        self.token(slot)
    }

    /// Ends one adoption. With the last one the stream's token resolves no more, those who use it are waited for, and
    /// its handle is returned, so that its work can be put in order before [`vacate`](Self::vacate).
    pub(crate) fn release(&self, stream: Stream) -> Option<RawStream> {
        let entry = &self.slots[stream.slot()];
        let raw = RawStream(entry.raw.load(Ordering::Relaxed));
        let mut occupancy = self.occupancy();
        let known = occupancy.known.get_mut(&raw)?;
        known.adoptions = known.adoptions.saturating_sub(1);
        if known.adoptions > 0 || known.owned {
            return None;
        }
        occupancy.known.remove(&raw);
        entry.epoch.store(stream.epoch() + 1, Ordering::SeqCst);
        drop(occupancy);
        self.wait_for_users(stream);
        Some(raw)
    }

    /// Frees the slot of a stream whose adoption has ended, once its end was handled: its heir comes after its work, or
    /// it is known to be unordered.
    pub(crate) fn vacate(&self, stream: Stream) {
        self.slots[stream.slot()].last_handled_end.fetch_max(stream.epoch(), Ordering::SeqCst);
        self.occupancy().vacant.push(stream.slot() as u32);
    }

    /// Keeps a stream that may be used here alive.
    #[inline]
    pub(crate) fn hold(&self, stream: Stream) -> Result<StreamHold<'_>> {
        if stream.context() != self.context {
            return Err(self.misuse(stream));
        }
        let slot = &self.slots[stream.slot()];
        if !stream.is_adopted() {
            return Ok(StreamHold { raw: RawStream(slot.raw.load(Ordering::Relaxed)), users: None });
        }
        let held = slot.enter();
        if slot.epoch.load(Ordering::SeqCst) == stream.epoch() { Ok(held) } else { Err(self.misuse(stream)) }
    }

    /// Returns the handle of a stream that this context made and whose handle nobody else has.
    pub(crate) fn private_handle(&self, stream: Stream) -> Option<RawStream> {
        self.is_private(stream).then(|| RawStream(self.slots[stream.slot()].raw.load(Ordering::Relaxed)))
    }

    /// Returns whether a stream is of this table; its adoption may have ended.
    #[inline]
    pub(crate) fn is_own(&self, stream: Stream) -> bool {
        stream.context() == self.context
    }

    /// Refuses a stream of another table.
    #[inline]
    pub(crate) fn check_own(&self, stream: Stream) -> Result<()> {
        if self.is_own(stream) { Ok(()) } else { Err(self.misuse(stream)) }
    }

    /// Returns whether a stream of this table was adopted and its adoption has ended.
    #[inline]
    pub(crate) fn has_ended(&self, stream: Stream) -> bool {
        stream.is_adopted() && self.slots[stream.slot()].epoch.load(Ordering::SeqCst) != stream.epoch()
    }

    /// Returns whether the end of an adopted stream was handled: its heir comes after its work, or it is known to be
    /// unordered.
    pub(crate) fn is_end_handled(&self, stream: Stream) -> bool {
        self.slots[stream.slot()].last_handled_end.load(Ordering::SeqCst) >= stream.epoch()
    }

    /// Keeps whichever stream is in a slot now alive.
    pub(crate) fn hold_slot(&self, slot: usize) -> Option<StreamHold<'_>> {
        let slot = &self.slots[slot];
        match slot.epoch.load(Ordering::Acquire) {
            0 => None,
            1 => Some(StreamHold { raw: RawStream(slot.raw.load(Ordering::Relaxed)), users: None }),
            _ => {
                let held = slot.enter();
                let taken = slot.epoch.load(Ordering::SeqCst) % 2 == 1;
                taken.then_some(held)
            }
        }
    }

    /// Keeps a stream alive as [`hold`](Self::hold) does, and counts among its users, whoever made it.
    pub(crate) fn hold_counted(&self, stream: Stream) -> Result<StreamHold<'_>> {
        self.hold(stream).map(|held| self.counted(stream.slot(), held))
    }

    /// Keeps whichever stream is in a slot now alive, and counts among its users, whoever made it.
    pub(crate) fn hold_slot_counted(&self, slot: usize) -> Option<StreamHold<'_>> {
        self.hold_slot(slot).map(|held| self.counted(slot, held))
    }

    fn counted<'a>(&'a self, slot: usize, held: StreamHold<'a>) -> StreamHold<'a> {
        if held.users.is_some() { held } else { self.slots[slot].enter() }
    }

    /// Waits until nobody counts among the users of a stream.
    pub(crate) fn wait_for_users(&self, stream: Stream) {
        while self.slots[stream.slot()].users.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
    }

    /// Returns the number that the stream in a slot is named by.
    pub(crate) fn number_at(&self, slot: usize) -> StreamNumber {
        StreamNumber(self.slots[slot].number.load(Ordering::Relaxed).into())
    }

    /// Returns the driver's handle for others, who may capture the stream from now on.
    pub(crate) fn expose(&self, stream: Stream) -> Result<RawStream> {
        let held = self.hold(stream)?;
        self.slots[stream.slot()].exposed.store(true, Ordering::SeqCst);
        Ok(held.raw())
    }

    /// Has a stream that outlives the table taken for one that nobody captures.
    pub(crate) fn conceal(&self, stream: Stream) {
        if !stream.is_adopted() {
            self.slots[stream.slot()].exposed.store(false, Ordering::SeqCst);
        }
    }

    /// Returns whether somebody else may have the handle of the stream in a slot.
    pub(crate) fn is_exposed_slot(&self, slot: usize) -> bool {
        self.slots[slot].exposed.load(Ordering::SeqCst)
    }

    /// Returns whether somebody else may have the handle of a stream that resolves.
    #[inline]
    pub(crate) fn is_exposed(&self, stream: Stream) -> bool {
        self.slots[stream.slot()].exposed.load(Ordering::Acquire)
    }

    /// Returns whether this context made a stream, so that it stays, and nobody else has its handle, so that it is not
    /// being captured: the only streams that are used without being held or checked.
    #[inline]
    pub(crate) fn is_private(&self, stream: Stream) -> bool {
        let is_exposed = || self.slots[stream.slot()].exposed.load(Ordering::SeqCst);
        stream.context() == self.context && !stream.is_adopted() && !is_exposed()
    }

    #[cold]
    fn misuse(&self, stream: Stream) -> Error {
        let why = match () {
            () if stream.device() != self.device => StreamMisuse::OtherDevice { device: stream.device() },
            () if stream.context() != self.context => StreamMisuse::OtherContext,
            () => StreamMisuse::Ended,
        };
        Error::StreamMisuse { device: self.device, stream: stream.number(), why }
    }

    /// Returns the streams that must be destroyed with the context.
    pub(crate) fn take_owned(&self) -> Vec<RawStream> {
        std::mem::take(&mut self.occupancy().owned)
    }
}

impl Slot {
    /// Counts one more user, until the result is dropped. Whoever ends the stream moves the epoch first and then looks
    /// at the users, and users are counted before they look at the epoch: one of the two sees the other.
    fn enter(&self) -> StreamHold<'_> {
        self.users.fetch_add(1, Ordering::SeqCst);
        StreamHold { raw: RawStream(self.raw.load(Ordering::Relaxed)), users: Some(&self.users) }
    }
}

impl Occupancy {
    /// Returns a slot that was never used.
    fn fresh(&mut self) -> Result<u32> {
        if self.next as usize == STREAM_SLOTS {
            return Err(Error::Capacity { max: STREAM_SLOTS });
        }
        self.next += 1;
        Ok(self.next - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> StreamTable {
        StreamTable::new(1, DeviceId(0))
    }

    /// Returns the handle a token resolves to.
    fn raw(table: &StreamTable, stream: Stream) -> Result<RawStream> {
        table.hold(stream).map(|held| held.raw())
    }

    fn end(table: &StreamTable, stream: Stream) {
        assert!(table.release(stream).is_some(), "the last adoption");
        table.vacate(stream);
    }

    #[test]
    fn s3_a_token_of_an_ended_adoption_is_recognised_when_its_place_is_taken_again() {
        let table = table();
        let first = table.adopt(RawStream(100), None).expect("room");
        assert_eq!(raw(&table, first), Ok(RawStream(100)));
        end(&table, first);
        let second = table.adopt(RawStream(200), None).expect("room");
        assert_eq!(second.slot(), first.slot());
        assert_eq!(raw(&table, second), Ok(RawStream(200)));
        assert!(matches!(raw(&table, first), Err(Error::StreamMisuse { why: StreamMisuse::Ended, .. })));
    }

    #[test]
    fn s7_a_number_of_the_driver_names_the_stream_whichever_its_slot() {
        let table = table();
        let (own, plain) = (table.own(RawStream(100), Some(7)), table.own(RawStream(200), None));
        let (own, plain) = (own.expect("room"), plain.expect("room"));
        assert_eq!((own.slot(), own.number(), plain.number()), (1, StreamNumber(7), StreamNumber(2)));
        let adopted = table.adopt(RawStream(300), Some(9)).expect("room");
        assert_eq!((adopted.number(), adopted.device()), (StreamNumber(9), DeviceId(0)));
        assert_eq!((own.to_string(), format!("{own:?}")), ("stream 7 of gpu0".into(), "Stream(gpu0:7)".into()));
        end(&table, adopted);
        let next = table.adopt(RawStream(400), Some(10)).expect("room");
        assert_eq!((next.slot(), next.number()), (adopted.slot(), StreamNumber(10)));
        assert_eq!(adopted.number(), StreamNumber(9), "a token keeps its name");
        let refused = table.adopt(RawStream::PER_THREAD, None).expect_err("a different stream on each thread");
        assert!(refused.to_string().starts_with("the per-thread default stream cannot be used on gpu0"), "{refused}");
    }

    #[test]
    fn s9_a_lasting_stream_is_private_until_a_capture_is_announced_and_again_after_it() {
        let table = table();
        let lasting = table.enter_lasting(RawStream(100), None).expect("room");
        assert_eq!(table.private_handle(lasting), Some(RawStream(100)));
        assert_eq!(table.expose(lasting), Ok(RawStream(100)));
        assert_eq!((table.private_handle(lasting), table.is_exposed(lasting)), (None, true));
        assert_eq!(table.enter_lasting(RawStream(100), None), Ok(lasting));
        assert!(table.is_private(lasting), "the capture has ended");
        assert!(table.take_owned().is_empty(), "its owner destroys it");
        let adopted = table.adopt(RawStream(100), None).expect("known");
        assert_eq!((adopted, table.release(adopted)), (lasting, None), "it outlives adoptions");

        let legacy = table.enter_lasting(RawStream(0), None).expect("there already");
        assert!(legacy.is_default() && table.is_private(legacy));
        assert!(table.enter_lasting(RawStream::PER_THREAD, None).is_err());

        let ending = table.adopt(RawStream(300), None).expect("room");
        assert_eq!(table.enter_lasting(RawStream(300), None), Ok(ending), "one stream has one token");
        assert!(!table.is_private(ending), "its adopter was told that it is asked about");
        assert_eq!(table.release(ending), None, "and it stays");
    }

    #[test]
    fn s5_a_stream_adopted_again_while_it_ends_has_a_place_of_its_own() {
        let table = table();
        let first = table.adopt(RawStream(100), None).expect("room");
        assert_eq!(table.release(first), Some(RawStream(100)));
        let second = table.adopt(RawStream(100), None).expect("room");
        assert_eq!(table.release(second), Some(RawStream(100)));
        table.vacate(second);
        table.vacate(first);
        let slots = [200, 300].map(|raw| table.adopt(RawStream(raw), None).expect("room").slot());
        assert_ne!(slots[0], slots[1]);
    }

    #[test]
    fn s5_an_adoption_ends_only_when_nobody_uses_the_stream_any_more() {
        let table = table();
        for round in 0..200 {
            let stream = table.adopt(RawStream(100 + round), None).expect("room");
            let live = AtomicBool::new(true);
            std::thread::scope(|scope| {
                for by_slot in [false, true] {
                    let (table, live) = (&table, &live);
                    scope.spawn(move || {
                        for _ in 0..100 {
                            let held = if by_slot { table.hold_slot(stream.slot()) } else { table.hold(stream).ok() };
                            let used_after_its_end = held.is_some() && !live.load(Ordering::SeqCst);
                            assert!(!used_after_its_end);
                        }
                    });
                }
                assert!(table.release(stream).is_some());
                live.store(false, Ordering::SeqCst);
            });
            table.vacate(stream);
        }
    }

    #[test]
    fn r5_only_a_stream_whose_handle_nobody_else_has_is_taken_on_trust() {
        let table = table();
        let own = table.own(RawStream(100), None).expect("room");
        assert!(!table.is_exposed(own));
        assert_eq!(table.expose(own), Ok(RawStream(100)));
        assert!(table.is_exposed(own));
        assert!(table.is_exposed(table.adopt(RawStream(200), None).expect("room")));
        assert!(table.is_exposed(table.default_stream()));
    }

    #[test]
    fn s5_one_stream_adopted_twice_is_one_stream_until_both_are_gone() {
        let table = table();
        let stream = table.adopt(RawStream(100), None).expect("room");
        assert_eq!(table.adopt(RawStream(100), None), Ok(stream));
        assert_eq!(table.release(stream), None);
        assert_eq!(table.release(stream), Some(RawStream(100)));
    }

    #[test]
    fn r5_the_default_streams_are_told_apart() {
        let table = table();
        for raw in [RawStream(0), RawStream::LEGACY] {
            assert_eq!(table.adopt(raw, None), Ok(table.default_stream()));
            assert_eq!(table.release(table.default_stream()), None);
        }
        assert!(matches!(
            table.adopt(RawStream::PER_THREAD, None),
            Err(Error::StreamMisuse { why: StreamMisuse::PerThread, .. })
        ));
    }

    #[test]
    fn r5_streams_of_others_are_refused_and_named() {
        let (here, sibling, elsewhere) = (table(), StreamTable::new(2, DeviceId(0)), StreamTable::new(3, DeviceId(1)));
        let why = |stream| match here.hold(stream) {
            Err(Error::StreamMisuse { why, .. }) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(why(sibling.default_stream()), StreamMisuse::OtherContext);
        assert_eq!(why(elsewhere.default_stream()), StreamMisuse::OtherDevice { device: DeviceId(1) });
    }

    #[test]
    fn the_table_refuses_when_full_and_recovers() {
        let table = table();
        let streams: Vec<_> =
            (1..STREAM_SLOTS as u64).map(|n| table.adopt(RawStream(n + 100), None).expect("room")).collect();
        assert_eq!(table.adopt(RawStream(9999), None), Err(Error::Capacity { max: STREAM_SLOTS }));
        end(&table, streams[0]);
        assert!(table.adopt(RawStream(9999), None).is_ok());
    }
}
