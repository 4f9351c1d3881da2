//! The thread that samples the machine.

use super::board::Board;
use crate::output::{self, WARNING};
use bursar::metrics::{HistoryFile, Sampler};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The thread that samples. Dropping it ends it, once the sample that it is taking is taken.
#[derive(Debug)]
pub(super) struct Sampling {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sampling {
    pub(super) fn start(
        sampler: Sampler,
        board: Arc<Board>,
        file: Option<HistoryFile>,
        interval: Duration,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new()
            .name("bursar-sample".to_owned())
            .spawn(move || run(&sampler, &board, file, interval, &stopped))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A driver or a disk that hangs must not keep the command from ending.
        let until = Instant::now() + Duration::from_secs(2);
        if let Some(thread) = self.thread.take() {
            while !thread.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(2));
            }
            if thread.is_finished() {
                let _panicked = thread.join();
            }
        }
    }
}

fn run(sampler: &Sampler, board: &Board, mut file: Option<HistoryFile>, interval: Duration, stopped: &Receiver<()>) {
    let (mut next, mut has_failed) = (Instant::now() + interval, false);
    while stopped.recv_timeout(next.saturating_duration_since(Instant::now())) == Err(RecvTimeoutError::Timeout) {
        let state = sampler.sample();
        let recorded = file.as_mut().map_or(Ok(()), |file| file.record(&state));
        board.publish(state);
        match recorded {
            Ok(()) => has_failed = false,
            Err(error) if !has_failed => {
                has_failed = true;
                let line = "history is kept in memory until it can be written again";
                output::say(format_args!("{WARNING}warning:{WARNING:#} {error}; {line}"));
            }
            Err(_) => {}
        }
        // Samples that were missed are not made up for.
        next = (next + interval).max(Instant::now());
    }
}
