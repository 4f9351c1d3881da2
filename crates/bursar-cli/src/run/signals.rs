//! Signals, as values in a queue.

use nix::sys::signal::SigSet;
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::{Handle, Signals};
use std::io;
use std::thread::JoinHandle;

/// Those that ask us to end.
const ENDING: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

/// Signals on their way to whoever asked for them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Gives every signal that concerns a run to `tell`, from a thread of its own. What was to be ignored when we were
    /// started (by `nohup`, or by a script that runs us in the background) stays ignored.
    pub(crate) fn start(tell: impl Fn(i32) + Send + 'static) -> io::Result<Self> {
        let ignored = ignored();
        let heard = ENDING.into_iter().chain([SIGTSTP]).filter(|signal| ignored & (1 << (signal - 1)) == 0);
        let mut signals = Signals::new(heard.chain([SIGCHLD, SIGCONT]))?;
        let handle = signals.handle();
        let listen = move || signals.forever().for_each(tell);
        let thread = std::thread::Builder::new().name("signals".into()).spawn(listen)?;
        Ok(Self { handle, thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // It only passes signals on, and has nothing to say.
            let _ = thread.join();
        }
    }
}

/// The signals that this process ignores, a bit each: the kernel says so in `/proc/self/status`.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

/// Blocks no signal in this thread, nor in those and the processes it starts: whoever started it may have blocked some, and a
/// run has to hear of its workers' ends and of those who want it to end.
pub(crate) fn unblock() -> io::Result<()> {
    Ok(SigSet::empty().thread_set_mask()?)
}
