//! Streams that programs name, and those that they mean without naming them.

use crate::handle::{Handle, Kind, of};
use crate::port::{self, StreamOn};
use crate::process::{Current, Process, initialised};
use crate::state::Stream;
use crate::status::{CUresult, CallResult};
use crate::thread;
use crate::types::CUstream;
use bursar_core::{DeviceId, RawStream};

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
    let Ok(process) = initialised() else { return };
    let found = process.state().streams.remove(&stream);
    if let Some(found) = found {
        // A stream that cannot be destroyed any more is gone with its device.
        let _ = port::stream_destroy(process.sim(), found.device, found.raw);
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

    /// Waits for a stream.
    pub(crate) fn wait(&self, on: StreamOn) -> CallResult {
        port::stream_synchronize(self.sim(), on)
    }

    /// Waits for every stream of a context, its default streams included.
    pub(crate) fn wait_for_context(&self, current: Current) -> CallResult {
        self.wait_for_streams(current.device, |stream| stream.context == current.context)
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
                // Another thread has destroyed it meanwhile, and its work is that thread's concern.
                Err(CUresult::CUDA_ERROR_INVALID_HANDLE) => {}
                waited => waited?,
            }
        }
        self.wait(StreamOn { device, raw: RawStream::LEGACY })
    }
}
