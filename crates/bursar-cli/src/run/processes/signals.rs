//! Receiving signals on a thread.

use nix::sys::signal::SigSet;
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::flag::register_usize;
use signal_hook::iterator::{Handle, Signals};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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

/// The last of SIGTSTP and SIGCONT that came. A [`SignalWatch`] does not tell: of two that came before it looked, it may have either first.
#[derive(Debug)]
pub(crate) struct StopSignals(Arc<AtomicUsize>);

impl StopSignals {
    const STOP: usize = 1;
    const CONTINUE: usize = 2;

    /// Begins to take note. A watch that is started later is called for a signal once that is noted here.
    pub(crate) fn note() -> io::Result<Self> {
        let last = Arc::new(AtomicUsize::new(0));
        for (signal, value) in [(SIGTSTP, Self::STOP), (SIGCONT, Self::CONTINUE)] {
            if !is_ignored(signal) {
                register_usize(signal, last.clone(), value)?;
            }
        }
        Ok(Self(last))
    }

    /// Returns whether SIGTSTP came last: once for any number of them.
    pub(crate) fn take_stop(&self) -> bool {
        self.0.compare_exchange(Self::STOP, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Returns whether SIGCONT came last.
    pub(crate) fn is_continued(&self) -> bool {
        self.0.load(Ordering::SeqCst) == Self::CONTINUE
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

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::low_level::raise;

    #[test]
    fn z13_the_last_of_stop_and_continue_counts() {
        let stops = StopSignals::note().expect("handlers can be set");
        for (came, is_stopped) in [
            (&[SIGCONT, SIGTSTP][..], true),
            (&[SIGTSTP, SIGCONT], false),
            (&[SIGTSTP, SIGTSTP], true),
            (&[SIGTSTP, SIGCONT, SIGTSTP], true),
        ] {
            came.iter().for_each(|signal| raise(*signal).expect("it is handled"));
            assert_eq!(stops.is_continued(), !is_stopped, "{came:?}");
            assert_eq!([stops.take_stop(), stops.take_stop()], [is_stopped, false], "{came:?}: once");
        }
    }
}
