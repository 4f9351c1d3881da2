//! Receiving signals on a thread.

use nix::sys::signal::SigSet;
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::{Handle, Signals};
use std::io;
use std::thread::JoinHandle;

/// The signals that ask a run to end.
const TERMINATING: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

/// A thread that receives signals, until it is dropped.
#[derive(Debug)]
pub(crate) struct SignalWatch {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl SignalWatch {
    /// Calls `handler`, from a thread of its own, for every signal that concerns a run. Signals that were ignored when this
    /// process was started (by `nohup`, or by a script that runs it in the background) stay ignored.
    pub(crate) fn start(handler: impl Fn(i32) + Send + 'static) -> io::Result<Self> {
        let handled = TERMINATING.into_iter().chain([SIGTSTP]).filter(|signal| !is_ignored(*signal));
        let mut signals = Signals::new(handled.chain([SIGCHLD, SIGCONT]))?;
        let handle = signals.handle();
        let receive = move || signals.forever().for_each(handler);
        let thread = std::thread::Builder::new().name("signals".into()).spawn(receive)?;
        Ok(Self { handle, thread: Some(thread) })
    }
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // It fails only if the handler panicked, and has no result.
            let _ = thread.join();
        }
    }
}

/// Returns whether this process ignores a signal, by `/proc/self/status`.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask & (1 << (signal - 1)) != 0
}

/// Unblocks every signal in this thread, and in the threads and processes that it starts. The program that started this
/// one may have blocked some, and a run has to learn of its workers' ends and of requests to end.
pub(crate) fn unblock() -> io::Result<()> {
    Ok(SigSet::empty().thread_set_mask()?)
}
