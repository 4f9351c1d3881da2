//! Joining background threads.

use std::thread::JoinHandle;

/// Waits for a thread to end, unless it is the calling one: a pool can be dropped by its own worker.
pub(crate) fn join(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread
        && thread.thread().id() != std::thread::current().id()
        && thread.join().is_err()
    {
        tracing::error!("a thread of the workers panicked outside a request");
    }
}
