//! The streams of other libraries, adopted by their raw handles.
//!
//! PyTorch never destroys a stream that it gives out, and announces its captures, so its streams are entered for good, and
//! so is the legacy default stream. Those of CuPy are adopted until it says that they end. Nobody says when the streams end
//! that others made: each is adopted for as long as memory that was allocated or used on it is outside, and then everything
//! is put in order, so that its handle is never used again.
#![allow(unsafe_code)]

use bursar::device::DeviceContext;
use bursar::driver::RawStream;
use bursar::stream::AdoptedStream;
use bursar::{Result, Stream};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The handles of streams that PyTorch and CuPy use, and that others made.
static OF_OTHERS: [Mutex<Option<HashSet<u64>>>; 2] = [const { Mutex::new(None) }; 2];

/// The streams of one device that libraries allocated on.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    streams: HashMap<u64, Entry>,
    /// An adoption for each block outside, of a stream that was made by others, and for each further stream it was used on.
    guests: Vec<(u64, AdoptedStream)>,
    /// A stream of our own, for what has to come after several.
    joining: Option<Stream>,
    /// A stream of our own, for memory that no stream was named for.
    anywhere: Option<Stream>,
}

/// The life of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// As long as the process, and its captures are announced.
    Lasting,
    /// Until it is said to end.
    Ending,
    /// As long as memory is allocated and used on it.
    WhileUsed,
}

/// A stream that memory is about to be allocated or used on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entered {
    pub(crate) stream: Stream,
    /// True if the stream has to be [left](Streams::leave), once what it was entered for is over.
    pub(crate) is_guest: bool,
}

impl Life {
    /// Returns the life of a stream with a handle, of those that a library has which make its own streams last this long.
    pub(crate) fn of(self, raw: u64) -> Self {
        let is_of_others = self.of_others().is_some_and(|handles| {
            let handles = handles.lock().unwrap_or_else(PoisonError::into_inner);
            handles.as_ref().is_some_and(|handles| handles.contains(&raw))
        });
        if is_of_others { Self::WhileUsed } else { self }
    }

    fn of_others(self) -> Option<&'static Mutex<Option<HashSet<u64>>>> {
        match self {
            Self::Lasting => Some(&OF_OTHERS[0]),
            Self::Ending => Some(&OF_OTHERS[1]),
            Self::WhileUsed => None,
        }
    }

    /// Remembers that a stream which a library uses was made by others; or that it was not, if it had the handle to itself.
    pub(crate) fn note(self, raw: u64, is_of_others: bool) {
        let Some(handles) = self.of_others() else { return };
        let mut handles = handles.lock().unwrap_or_else(PoisonError::into_inner);
        let handles = handles.get_or_insert_default();
        if is_of_others {
            handles.insert(raw)
        } else {
            handles.remove(&raw)
        };
    }
}

#[derive(Debug)]
enum Entry {
    Lasting(Stream),
    Ending(AdoptedStream),
}

impl Entry {
    const fn stream(&self) -> Stream {
        match self {
            Self::Lasting(stream) => *stream,
            Self::Ending(adopted) => adopted.stream(),
        }
    }
}

/// Asks the driver about a stream before it is adopted: a handle that the driver refuses changes nothing then.
pub(crate) fn check(context: &DeviceContext, raw: u64) -> Result<()> {
    // SAFETY: whoever names a stream says that it is one.
    let asked = unsafe { context.driver().stream_is_capturing(context.device(), RawStream(raw)) };
    Ok(asked.map(drop)?)
}

impl Known {
    /// Returns every stream of a library.
    fn all(&self) -> impl Iterator<Item = Stream> {
        self.streams.values().map(Entry::stream).chain(self.guests.iter().map(|(_, guest)| guest.stream()))
    }
}

impl Streams {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the stream with a raw handle, and adopts it if needed: for good, until it is said to [end](Self::end), or until
    /// it is [left](Self::leave).
    pub(crate) fn enter(&self, context: &Arc<DeviceContext>, raw: u64, life: Life) -> Result<Entered> {
        let raw = if raw == RawStream::LEGACY.0 { 0 } else { raw };
        if let Some(entry) = self.known().streams.get(&raw) {
            return Ok(Entered { stream: entry.stream(), is_guest: false });
        }
        if raw != 0 && !matches!(life, Life::Lasting) {
            check(context, raw)?;
        }
        let mut known = self.known();
        if let Some(entry) = known.streams.get(&raw) {
            return Ok(Entered { stream: entry.stream(), is_guest: false });
        }
        let entry = match life {
            // SAFETY: PyTorch's streams and the legacy default stream are never destroyed, and PyTorch's captures are
            // announced; the legacy default stream cannot be captured, nor do PyTorch's streams block on it.
            _ if raw == 0 => Entry::Lasting(unsafe { context.enter_lasting_stream(RawStream(raw)) }?),
            // SAFETY: as above.
            Life::Lasting => Entry::Lasting(unsafe { context.enter_lasting_stream(RawStream(raw)) }?),
            // SAFETY: whoever made the stream says when it ends, before it does, or keeps it.
            Life::Ending => Entry::Ending(unsafe { context.adopt_stream(RawStream(raw)) }?),
            Life::WhileUsed => {
                // SAFETY: whoever uses memory on a stream keeps it until the memory is free; then it is left.
                let guest = unsafe { context.adopt_stream(RawStream(raw)) }?;
                let stream = guest.stream();
                known.guests.push((raw, guest));
                return Ok(Entered { stream, is_guest: true });
            }
        };
        let stream = entry.stream();
        known.streams.insert(raw, entry);
        Ok(Entered { stream, is_guest: false })
    }

    /// Leaves a stream that was entered as a guest. With the last one everything is put in order that was freed on it.
    #[cold]
    pub(crate) fn leave(&self, stream: Stream) {
        let left = {
            let mut known = self.known();
            let at = known.guests.iter().position(|(_, guest)| guest.stream() == stream);
            at.map(|at| known.guests.swap_remove(at))
        };
        // What waits for calls on the stream does so without the lock.
        drop(left);
    }

    /// Ends the use of a stream that is about to be destroyed; returns whether it was used.
    pub(crate) fn end(&self, raw: u64) -> bool {
        let (ended, guests) = {
            let mut known = self.known();
            let ended = match known.streams.get(&raw) {
                Some(Entry::Ending(_)) => known.streams.remove(&raw),
                _ => None,
            };
            let guests: Vec<_> = known.guests.extract_if(.., |(of, _)| *of == raw).collect();
            (ended, guests)
        };
        ended.is_some() || !guests.is_empty()
    }

    /// Has the driver asked, before each call that it matters for, whether a stream is being captured.
    pub(crate) fn expose(&self, context: &DeviceContext) -> Result<()> {
        self.known().all().try_for_each(|stream| context.resolve(stream).map(drop))
    }

    /// Has the driver asked no more: no capture is under way.
    pub(crate) fn conceal(&self, context: &Arc<DeviceContext>) -> Result<()> {
        for (&raw, entry) in &self.known().streams {
            if let Entry::Lasting(_) = entry {
                // SAFETY: as when it was entered.
                unsafe { context.enter_lasting_stream(RawStream(raw)) }?;
            }
        }
        Ok(())
    }

    /// Returns every stream.
    pub(crate) fn all(&self) -> Vec<Stream> {
        self.known().all().collect()
    }

    /// Returns a stream of our own.
    pub(crate) fn own(&self, context: &DeviceContext) -> Result<Stream> {
        let mut known = self.known();
        match known.joining {
            Some(stream) => Ok(stream),
            None => Ok(*known.joining.insert(context.create_stream(0)?)),
        }
    }

    /// Returns a stream of our own, for memory that no stream was named for.
    pub(crate) fn anywhere(&self, context: &DeviceContext) -> Result<Stream> {
        let mut known = self.known();
        match known.anywhere {
            Some(stream) => Ok(stream),
            None => Ok(*known.anywhere.insert(context.create_stream(0)?)),
        }
    }

    /// Has the stream of our own come after what a stream was given so far which nobody has entered, and which is not being captured.
    pub(crate) fn follow(&self, context: &DeviceContext, raw: u64) -> Result<()> {
        let (own, driver, device) = (self.own(context)?, context.driver(), context.device());
        let held = context.hold(own)?;
        let event = context.take_event()?;
        // SAFETY: whoever names a stream says that it is one, and the event is the context's.
        let recorded = unsafe { driver.event_record(device, event, RawStream(raw)) };
        // SAFETY: our stream is live while it is held, and the event was recorded.
        let ordered = recorded.and_then(|()| unsafe { driver.stream_wait(device, held.raw(), event) });
        // SAFETY: taken above, and what waits for it does so for what it was recorded after.
        unsafe { context.return_event(event) };
        Ok(ordered?)
    }

    /// Returns a stream of our own that comes after what these were given so far.
    pub(crate) fn joined(&self, context: &DeviceContext, streams: &[Stream]) -> Result<Stream> {
        let joining = self.own(context)?;
        streams.iter().try_for_each(|&stream| context.order_after(stream, joining))?;
        Ok(joining)
    }
}
