//! The end of background threads.

use std::thread::JoinHandle;

/// Waits for a thread, unless it is this one: a pool can be dropped by its own worker.
pub(crate) fn join(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread
        && thread.thread().id() != std::thread::current().id()
        && thread.join().is_err()
    {
        tracing::error!("a thread of the workers panicked outside a request");
    }
}
