//! The ladder of a request, top to bottom: each step is tried when those above have nothing.
//!
//! 1. **The thread's cache**: a block of that size which the thread freed on the stream a moment ago. No lock, no
//!    driver call.
//! 2. **The free lists**: the first fit among the runs that every stream may have, or else among those freed on this
//!    stream. One short lock.
//! 3. **Streams that have passed**: every stream with free runs, this one included, is asked how far it has come, and
//!    what it is done with is common; so is, for this stream, what it was made to wait for before.
//! 4. **The caches of all threads**: they are drained into the free lists, and 3 tried again.
//! 5. **Growth**: an exclusive frame of which the request would have a part is split; else whole free frames are moved to
//!    where they are needed, and frames are made.
//! 6. **A wait**, where there is no memory for that: what another stream freed and is not done with, after a wait that is
//!    put into this stream. A pool that [waits before growing](super::PagePool::wait_before_growing) does it after 3.
//! 7. **Patience**: frees that have not run are waited for, every pool of the device gives back what it can, and what
//!    other threads are moving about just now is waited for, with 5 tried in between.
//! 8. **An explanation** of the refusal.
//!
//! Slow paths are tail calls, so the fast path (1 and 2) keeps nothing across a call.

use super::free_lists::Request;
use super::magazine::Magazine;
use super::runs::UNIT;
use super::{PagePoolResource, Settings, driver_calls};
use bursar_core::{
    Action, AllocTag, Bytes, DeviceBlock, DeviceContext, Error, FrameSource, Holder, MAX_ALIGN, MIN_ALIGN, Record,
    Result, Stream, explain, is_size,
};

/// The number of times a request that is about to be refused tries again while others move frames about.
const ROUNDS: u32 = 1 << 16;

/// The number of those in which it asks all streams again how far they are.
const ASKING_ROUNDS: u32 = 16;

impl<F: FrameSource> PagePoolResource<F> {
    /// Allocates from the thread's recent magazine (step 1); whatever is not there ends in a call of the rest of the
    /// ladder, in one place, so that those above know which of the two it was.
    #[inline(always)]
    pub(super) fn allocate_cached(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        let is_usual = align == MIN_ALIGN || (align < MIN_ALIGN && align.is_power_of_two());
        let magazine = if is_usual { self.recent_magazine(stream) } else { None };
        if let Some(magazine) = magazine
            && let last = bytes.wrapping_sub(1)
            && last < self.settings.longest_exact_bytes
            && let len = last / UNIT + 1
            && let Some(at) = magazine.take(len)
        {
            magazine.count_granted(len * UNIT);
            return Ok(driver_calls::make_block((at, len), bytes, stream, tag, self.owner));
        }
        self.allocate_missed(bytes, align, stream, tag, magazine)
    }

    /// Allocates what the thread's recent magazine does not have (steps 2 to 8), or with every check made where it has
    /// none.
    #[inline(never)]
    fn allocate_missed(
        &self,
        bytes: u64,
        align: u64,
        stream: Stream,
        tag: AllocTag,
        magazine: Option<&Magazine>,
    ) -> Result<DeviceBlock> {
        let Some(magazine) = magazine else { return self.allocate_checked(bytes, align, stream, tag) };
        let (len, align) = self.settings.units(bytes, MIN_ALIGN)?;
        let cached = if self.settings.fixed > 0 { magazine.take(len) } else { None };
        let at = match cached {
            Some(at) => at,
            None => self.take_free(Request { len, align, slot: stream.slot() })?,
        };
        magazine.count_granted(len * UNIT);
        Ok(driver_calls::make_block((at, len), bytes, stream, tag, self.owner))
    }

    /// Allocates with every check made (steps 1 to 8): for any alignment, after an alarm, where a driver listens, and
    /// for streams that the thread has not used lately or that have to be held.
    #[inline(never)]
    fn allocate_checked(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        let size = self.settings.units(bytes, align)?;
        let alarms = self.context.alarms();
        self.context.fault().check()?;
        // A driver that listens hears of a grant before it hears that the memory sleeps.
        let _grant = self.context.listens().then(|| self.state.sleep.begin_grant());
        self.state.sleep.check_awake(&self.context)?;
        let Some(magazine) = self.recent_magazine_for_listener(stream) else {
            return self.allocate_holding_stream(size, bytes, stream, tag, alarms);
        };
        let at = self.take_cached(size, stream, Some(magazine))?;
        magazine.count_granted(size.0 * UNIT);
        // A stream that the thread remembers is the context's own, and stays.
        if self.context.listens()
            && let Ok(held) = self.context.hold(stream)
        {
            driver_calls::note_grant_on(&self.context, at, bytes, held.raw(), tag);
        }
        Ok(driver_calls::make_block((at, size.0), bytes, stream, tag, self.owner))
    }

    /// Allocates for a stream that has to be held, or that the thread has not used lately, and remembers its magazine.
    /// The stream is held until a driver that listens has been told: an adoption that is being dropped meanwhile waits.
    #[inline(never)]
    fn allocate_holding_stream(
        &self,
        size: (u64, u64),
        bytes: u64,
        stream: Stream,
        tag: AllocTag,
        alarms: u32,
    ) -> Result<DeviceBlock> {
        let held = self.context.hold_for_memory(stream)?;
        let thread = self.state.current_thread();
        let magazine = if self.state.sleep.is_any() { None } else { thread.magazine(stream.slot()) };
        if magazine.is_some() {
            self.remember_magazine(stream, alarms);
        }
        let at = self.take_cached(size, stream, magazine)?;
        thread.count_granted(size.0 * UNIT);
        driver_calls::note_grant_on(&self.context, at, bytes, held.raw(), tag);
        Ok(driver_calls::make_block((at, size.0), bytes, stream, tag, self.owner))
    }

    /// Step 1 with the magazine found: takes memory from there, or from further down.
    #[inline]
    fn take_cached(&self, size: (u64, u64), stream: Stream, magazine: Option<&Magazine>) -> Result<u64> {
        let (len, align) = size;
        if len <= self.settings.longest_cached
            && align == 1
            && let Some(at) = magazine.and_then(|magazine| magazine.take(len))
        {
            return Ok(at);
        }
        self.take_free(Request { len, align, slot: stream.slot() })
    }

    /// Step 2: takes memory from the free lists, or from further down.
    #[inline(always)]
    fn take_free(&self, request: Request) -> Result<u64> {
        match self.take_from_lists(request) {
            Some(at) => Ok(at),
            None => self.take_elsewhere(request),
        }
    }

    /// Takes what is common or the stream's own, unless some streams should be asked first.
    #[inline(always)]
    fn take_from_lists(&self, request: Request) -> Option<u64> {
        let mut lists = self.state.lists();
        if lists.has_one_stream() {
            lists.claim_common_if_any(request.slot);
        } else if lists.should_ask_first(request.slot) {
            return None;
        }
        lists.take(request)
    }

    /// Steps 3 and 4: takes memory that other streams are done with or that lies in caches, or goes further down.
    #[cold]
    fn take_elsewhere(&self, request: Request) -> Result<u64> {
        if self.state.lists().should_ask_first(request.slot) {
            self.ask_streams_that_freed_much(request.slot)?;
            let taken = self.state.lists().take(request);
            if let Some(at) = taken {
                return Ok(at);
            }
        }
        // Those that keep memory of this stream in limbo come first: what they have passed is its own at once.
        if self.state.ask_partners(&self.context, request.slot).map_err(|error| self.context.failed(error))? {
            let taken = self.state.lists().take(request);
            if let Some(at) = taken {
                return Ok(at);
            }
        }
        loop {
            // 3. What other streams are done with, or this one comes after.
            self.state.ask_all(&self.context).map_err(|error| self.context.failed(error))?;
            let taken = {
                let mut lists = self.state.lists();
                lists.take(request).or_else(|| lists.take_ordered(request))
            };
            if let Some(at) = taken {
                return Ok(at);
            }
            if self.state.lists().fits_in_part(request) {
                return self.grow_or_explain(request);
            }
            if self.settings.wait_before_growing
                && let Some(at) = self.take_after_wait(request)?
            {
                return Ok(at);
            }
            // 4. What lies in caches; if there is any, it is in the free lists now.
            if !self.state.drain(None, None) {
                return self.grow_or_explain(request);
            }
        }
    }

    /// Step 6: takes what another stream has free and is not done with, after a wait that is put into the stream of the
    /// request. What was freed longest ago comes first.
    fn take_after_wait(&self, request: Request) -> Result<Option<u64>> {
        let fits = self.state.lists().lanes_that_fit(request);
        for lane in fits {
            self.wait_for_lane(lane, request.slot).map_err(|error| self.context.failed(error))?;
            let taken = self.state.lists().take_ordered(request);
            if taken.is_some() {
                return Ok(taken);
            }
        }
        let limbo = self.state.lists().streams_in_limbo(request.slot);
        for lane in limbo {
            self.wait_for_lane(lane, request.slot).map_err(|error| self.context.failed(error))?;
            let taken = self.state.lists().take(request);
            if taken.is_some() {
                return Ok(taken);
            }
        }
        Ok(None)
    }

    /// Steps 5 to 8: grows; where there is no memory for that, has the stream wait for another, waits for what may come
    /// back and tries again, and explains the refusal in the end.
    fn grow_or_explain(&self, request: Request) -> Result<u64> {
        let (context, bytes) = (&self.context, Bytes(request.len * UNIT));
        let refused = |outcome: &Result<u64>| outcome.as_ref().is_err_and(Error::is_capacity);
        let granted = (bytes, request.align * UNIT);
        let explained = |outcome: Result<u64>| {
            outcome
                .inspect_err(|refused| record_refusal(context, refused, bytes))
                .map_err(|error| explain(context, |survey| self.survey(survey), error, bytes, granted))
        };
        // 5. Growth. How long frames are made depends on how far the stream is; others were asked, and so was this one if it
        // has something free.
        self.state.ask_if_unknown(context, request.slot).map_err(|error| context.failed(error))?;
        let mut outcome = self.take_or_grow(request, None);
        if !refused(&outcome) {
            return outcome;
        }
        // 6. What other streams are not done with.
        if let Some(at) = self.take_after_wait(request)? {
            return Ok(at);
        }
        if outcome.as_ref().is_err_and(|error| exceeds_total(error, bytes)) {
            return explained(outcome);
        }
        // 7. Frees that have not run, within the pool's patience; then what every pool of the device can give back.
        self.source.reap()?;
        self.state.wait_for_pending(context, self.settings.patience)?;
        outcome = self.take_or_grow(request, outcome.err());
        if !refused(&outcome) {
            return outcome;
        }
        context.trim();
        // What another thread has taken out may come back between a try and its refusal: a refusal counts if nothing was
        // in flight when its try began, nothing is now, and as much is held as then.
        let quiet = || (self.state.lists().in_flight == 0).then(|| self.source.bytes_outstanding());
        let mut began = quiet();
        outcome = self.take_or_grow(request, None);
        for round in 0..ROUNDS {
            if !refused(&outcome) || (round >= ASKING_ROUNDS && began.is_some() && began == quiet()) {
                break;
            }
            std::thread::yield_now();
            outcome = if round < ASKING_ROUNDS {
                // Others took what was common and freed as much on their own streams since.
                self.state.drain(None, None);
                self.state.ask_all(context).map_err(|error| context.failed(error))?;
                if let Some(at) = self.take_after_wait(request)? {
                    return Ok(at);
                }
                self.take_or_grow(request, outcome.err())
            } else {
                began = quiet();
                self.take_or_grow(request, None)
            };
        }
        // 8. An explanation.
        if refused(&outcome) { explained(outcome) } else { outcome }
    }
}

/// Tells the sink that a limit below had no room for what a request took, once for the request as a whole.
#[cold]
fn record_refusal(context: &DeviceContext, refused: &Error, asked: Bytes) {
    if matches!(refused, Error::OutOfBudget { .. }) {
        let record = Record { asked, error: Some(refused), ..Record::new(Action::Refuse, context.device()) };
        context.sink().emit(&record);
    }
}

/// Returns whether so much could never be granted, whatever is freed.
fn exceeds_total(refused: &Error, bytes: Bytes) -> bool {
    match *refused {
        Error::OutOfBudget { limit, .. } => bytes > limit,
        Error::OutOfMemory { total, .. } => bytes > total,
        _ => false,
    }
}

impl Settings {
    /// Returns the length and the alignment of a request, in units; an error where it cannot be granted.
    #[inline]
    pub(super) fn units(&self, bytes: u64, align: u64) -> Result<(u64, u64)> {
        if !align.is_power_of_two() || align > MAX_ALIGN {
            return Err(Error::InvalidAlignment { align });
        }
        let align = align.max(UNIT) / UNIT;
        if !is_size(bytes) {
            return Err(Error::InvalidSize { requested: bytes });
        }
        match self.fixed {
            0 => Ok((bytes.div_ceil(UNIT), align)),
            _ => self.fixed_units(bytes).map(|len| (len, align)),
        }
    }

    fn fixed_units(&self, bytes: u64) -> Result<u64> {
        match bytes.div_ceil(UNIT) {
            len if len <= self.fixed => Ok(self.fixed),
            _ => Err(Error::InvalidNumber { what: "larger than the blocks of a pool of one size", number: bytes }),
        }
    }
}
