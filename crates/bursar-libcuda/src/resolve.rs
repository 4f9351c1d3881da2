//! Streams that programs name, and those that they mean without naming them.

use crate::handle::{Handle, Kind, of};
use crate::port::{self, StreamOn};
use crate::process::{Current, Process, initialised};
use crate::state::Stream;
use crate::status::{CUresult, CallResult};
use crate::thread;
use crate::types::{CU_STREAM_NON_BLOCKING, CUstream};
use bursar_core::{DeviceId, Driver, RawStream};
use bursar_sim::CaptureStatus;

/// The stream that a call means where the program names none. Entry points whose names end in `_ptsz` or `_ptds` mean the
/// default stream of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DefaultStream {
    Legacy,
    PerThread,
}

/// The handles of the default streams, which are the same in every context.
const LEGACY: Handle = 1;
const PER_THREAD: Handle = 2;

/// A stream with its context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) on: StreamOn,
    pub(crate) context: Handle,
}

/// Destroys the default stream of a thread that ends, unless its context took it along.
fn destroy_stream_of_thread(stream: Handle) {
    if let Ok(process) = initialised() {
        // A stream that cannot be destroyed any more is gone with its context or its device.
        let _ = process.destroy_stream(stream);
    }
}

impl Process {
    /// Returns the stream that a program names. A stream that was created is found without any context being current.
    pub(crate) fn stream(&self, default: DefaultStream, stream: CUstream) -> CallResult<Target> {
        match (of(stream), default) {
            (0, _) => self.default_stream(default),
            (LEGACY, _) => self.default_stream(DefaultStream::Legacy),
            (PER_THREAD, _) => self.default_stream(DefaultStream::PerThread),
            (handle, _) => {
                let state = self.state();
                let stream = state.stream(handle)?;
                state.context(stream.context)?;
                Ok(Target { on: StreamOn { device: stream.device, raw: stream.raw }, context: stream.context })
            }
        }
    }

    /// Returns a default stream of the current context.
    pub(crate) fn default_stream(&self, default: DefaultStream) -> CallResult<Target> {
        let current = self.current()?;
        let on = match default {
            DefaultStream::Legacy => current.legacy(),
            DefaultStream::PerThread => self.stream_of_thread(current)?,
        };
        Ok(Target { on, context: current.context })
    }

    /// Returns the default stream of this thread, which is created when it is first used.
    fn stream_of_thread(&self, current: Current) -> CallResult<StreamOn> {
        let found = thread::default_stream(current.context)
            .and_then(|handle| self.state().streams.get(&handle).map(|stream| stream.raw));
        let raw = match found {
            Some(raw) => raw,
            None => {
                let raw = self.sim().create_blocking_stream(current.device)?;
                let mut state = self.state();
                let handle = state.new_handle(Kind::Stream);
                let (device, context) = (current.device, current.context);
                state.streams.insert(handle, Stream { device, raw, context, flags: 0, priority: 0 });
                drop(state);
                thread::set_default_stream(context, handle, destroy_stream_of_thread);
                raw
            }
        };
        Ok(StreamOn { device: current.device, raw })
    }

    /// Destroys a stream. Its work is still done, and who waits for its context waits for that too.
    pub(crate) fn destroy_stream(&self, handle: Handle) -> CallResult {
        let stream = {
            let mut state = self.state();
            let stream = *state.stream(handle)?;
            state.captures.remove(&handle);
            stream
        };
        // A stream that is being captured has nothing to do that anybody could wait for.
        if self.sim().capture_status(stream.device, stream.raw)? == CaptureStatus::None {
            self.bequeath(&stream)?;
        }
        // Another thread may have been faster.
        self.state().streams.remove(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        port::stream_destroy(self.sim(), stream.device, stream.raw)
    }

    /// Lets the heir of a stream's context wait for what the stream has to do.
    fn bequeath(&self, stream: &Stream) -> CallResult {
        let (device, raw) = (stream.device, self.heir(stream)?);
        self.after(StreamOn { device, raw: stream.raw }, StreamOn { device, raw })
    }

    /// Returns the heir of a stream's context, which is created when a stream is first destroyed.
    fn heir(&self, stream: &Stream) -> CallResult<RawStream> {
        let existing = self.state().context(stream.context)?.heir;
        if let Some(raw) = existing {
            return Ok(raw);
        }
        let raw = self.sim().stream_create(stream.device, 0)?;
        let mut state = self.state();
        let handle = state.new_handle(Kind::Stream);
        let context = state.contexts.get_mut(&stream.context).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        // Where two threads are here at once, a context has two streams that it waits for, and one of them is idle.
        let heir = *context.heir.get_or_insert(raw);
        state.streams.insert(handle, Stream { raw, flags: CU_STREAM_NON_BLOCKING, priority: 0, ..*stream });
        Ok(heir)
    }

    /// Runs a call of a device at this point of a stream, which may be another device's: then it runs on a stream that waits
    /// for this one, and this one waits for that.
    pub(crate) fn on_device<T>(
        &self,
        on: StreamOn,
        device: DeviceId,
        run: impl FnOnce(StreamOn) -> CallResult<T>,
    ) -> CallResult<T> {
        if on.device == device {
            return run(on);
        }
        let there = StreamOn { device, raw: self.sim().stream_create(device, 0)? };
        let done = self.after(on, there).and_then(|()| run(there)).and_then(|done| {
            self.after(there, on)?;
            Ok(done)
        });
        port::stream_destroy(self.sim(), device, there.raw)?;
        done
    }

    /// Lets a stream wait for what another has to do.
    fn after(&self, first: StreamOn, then: StreamOn) -> CallResult {
        let sim = self.sim();
        let event = sim.event_create(first.device)?;
        let ordered = port::event_record(sim, first, event).and_then(|()| port::stream_wait(sim, then, event));
        port::event_destroy(sim, first.device, event)?;
        ordered
    }

    /// Waits for a stream.
    pub(crate) fn wait(&self, on: StreamOn) -> CallResult {
        port::stream_synchronize(self.sim(), on)
    }

    /// Waits for every stream of a context, its default streams included.
    pub(crate) fn wait_for_context(&self, current: Current) -> CallResult {
        self.wait_for_streams(current.device, |stream| stream.context == current.context)?;
        // Streams that another thread has destroyed meanwhile.
        let heir = self.state().context(current.context)?.heir;
        heir.map_or(Ok(()), |raw| self.wait(StreamOn { device: current.device, raw }))
    }

    /// Waits for every stream of a device.
    pub(crate) fn wait_for_device(&self, device: DeviceId) -> CallResult {
        self.wait_for_streams(device, |stream| stream.device == device)
    }

    fn wait_for_streams(&self, device: DeviceId, is_meant: impl Fn(&Stream) -> bool) -> CallResult {
        let streams: Vec<RawStream> = {
            let state = self.state();
            state.streams.values().filter(|stream| is_meant(stream)).map(|stream| stream.raw).collect()
        };
        for raw in streams {
            match self.wait(StreamOn { device, raw }) {
                // Another thread has destroyed it meanwhile.
                Err(CUresult::CUDA_ERROR_INVALID_HANDLE) => {}
                waited => waited?,
            }
        }
        self.wait(StreamOn { device, raw: RawStream::LEGACY })
    }
}
