//! Captures of streams into graphs, and the calls that they forbid.

use crate::process::Process;
use crate::state::Capture;
use crate::status::{CUresult, CallResult};
use crate::thread;
use crate::types::CUstreamCaptureMode as Mode;

/// Returns whether a capture forbids a thread that bears captures as `own` to make calls which might wait for a stream.
fn forbids(capture: &Capture, own: Mode, thread: u64) -> bool {
    let is_own = capture.thread == thread && capture.mode != Mode::CU_STREAM_CAPTURE_MODE_RELAXED;
    let is_global = capture.mode == Mode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    match own {
        Mode::CU_STREAM_CAPTURE_MODE_RELAXED => false,
        Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL => is_own,
        _ => is_own || is_global,
    }
}

impl Process {
    /// Refuses a call that might wait for a stream while a capture forbids it, and spoils that capture.
    pub(crate) fn check_captures(&self) -> CallResult {
        let state = self.state();
        if state.captures.is_empty() {
            return Ok(());
        }
        let (own, id) = (thread::capture_mode(), thread::number());
        let mut is_forbidden = false;
        for capture in state.captures.values().filter(|capture| forbids(capture, own, id)) {
            is_forbidden |= self.sim().invalidate_capture(capture.on.device, capture.on.raw);
        }
        if is_forbidden { Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }
}
