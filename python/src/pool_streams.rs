//! The streams of other libraries, adopted by their raw handles.
//!
//! PyTorch never destroys a stream that it gives out, and announces its captures, so its streams are entered for good, and
//! so is the legacy default stream. All others are adopted, until they are said to end.
#![allow(unsafe_code)]

use bursar::device::DeviceContext;
use bursar::driver::RawStream;
use bursar::stream::AdoptedStream;
use bursar::{Result, Stream};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The streams of one device that libraries allocated on.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    streams: HashMap<u64, Entry>,
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

impl Streams {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the stream with a raw handle, and adopts it if needed: for good, or until it is said to [end](Self::end).
    pub(crate) fn adopt(&self, context: &Arc<DeviceContext>, raw: u64, life: Life) -> Result<Stream> {
        let raw = if raw == RawStream::LEGACY.0 { 0 } else { raw };
        if let Some(entry) = self.known().streams.get(&raw) {
            return Ok(entry.stream());
        }
        if raw != 0 && matches!(life, Life::Ending) {
            check(context, raw)?;
        }
        let mut known = self.known();
        if let Some(entry) = known.streams.get(&raw) {
            return Ok(entry.stream());
        }
        let entry = match life {
            // SAFETY: PyTorch's streams and the legacy default stream are never destroyed, and PyTorch's captures are
            // announced; the legacy default stream cannot be captured, nor do PyTorch's streams block on it.
            _ if raw == 0 => Entry::Lasting(unsafe { context.enter_lasting_stream(RawStream(raw)) }?),
            // SAFETY: as above.
            Life::Lasting => Entry::Lasting(unsafe { context.enter_lasting_stream(RawStream(raw)) }?),
            // SAFETY: whoever made the stream says when it ends, before it does, or keeps it.
            Life::Ending => Entry::Ending(unsafe { context.adopt_stream(RawStream(raw)) }?),
        };
        let stream = entry.stream();
        known.streams.insert(raw, entry);
        Ok(stream)
    }

    /// Ends the use of a stream that is about to be destroyed; returns whether it was used.
    pub(crate) fn end(&self, raw: u64) -> bool {
        let ended = {
            let mut known = self.known();
            match known.streams.get(&raw) {
                Some(Entry::Ending(_)) => known.streams.remove(&raw),
                _ => None,
            }
        };
        ended.is_some()
    }

    /// Has the driver asked, before each call that it matters for, whether a stream is being captured.
    pub(crate) fn expose(&self, context: &DeviceContext) -> Result<()> {
        for entry in self.known().streams.values() {
            context.resolve(entry.stream())?;
        }
        Ok(())
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
        self.known().streams.values().map(Entry::stream).collect()
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

    /// Returns a stream of our own that comes after what these were given so far.
    pub(crate) fn joined(&self, context: &DeviceContext, streams: &[Stream]) -> Result<Stream> {
        let joining = self.own(context)?;
        streams.iter().try_for_each(|&stream| context.order_after(stream, joining))?;
        Ok(joining)
    }
}
