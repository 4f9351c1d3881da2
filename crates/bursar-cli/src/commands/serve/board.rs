//! The last sample and the history, for those who answer requests.

use bursar::metrics::{ExpositionFormat, History, HistoryQuery, State};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The last sample, and the history that leads to it.
#[derive(Debug)]
pub(super) struct Board {
    current: Mutex<Arc<Sampled>>,
    history: Mutex<History>,
    stale_after: Duration,
}

/// A state, with the answers that are made of it when somebody asks and then shared by all who do.
#[derive(Debug)]
pub(super) struct Sampled {
    state: State,
    at: Instant,
    json: OnceLock<Arc<[u8]>>,
    text: OnceLock<Arc<[u8]>>,
    open_metrics: OnceLock<Arc<[u8]>>,
}

impl Sampled {
    fn new(state: State) -> Arc<Self> {
        let [json, text, open_metrics] = [const { OnceLock::new() }; 3];
        Arc::new(Self { state, at: Instant::now(), json, text, open_metrics })
    }

    /// Returns the state as JSON.
    pub(super) fn json(&self) -> Arc<[u8]> {
        // A state has nothing that JSON cannot say.
        self.json.get_or_init(|| serde_json::to_vec(&self.state).unwrap_or_default().into()).clone()
    }

    /// Returns the metrics.
    pub(super) fn metrics(&self, format: ExpositionFormat) -> Arc<[u8]> {
        let place = match format {
            ExpositionFormat::Text => &self.text,
            ExpositionFormat::OpenMetrics => &self.open_metrics,
        };
        place.get_or_init(|| self.state.expose(format).into_bytes().into()).clone()
    }
}

impl Board {
    /// Returns a board with a first sample.
    pub(super) fn new(state: State, mut history: History, interval: Duration) -> Self {
        history.record(&state);
        let stale_after = Duration::from_secs(10).max(5 * interval);
        Self { current: Mutex::new(Sampled::new(state)), history: Mutex::new(history), stale_after }
    }

    /// Puts a new sample up.
    pub(super) fn publish(&self, state: State) {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).record(&state);
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Sampled::new(state);
    }

    /// Returns the last sample, or how old it is if nobody should take it for the present.
    pub(super) fn current(&self) -> Result<Arc<Sampled>, Duration> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let age = current.at.elapsed();
        if age > self.stale_after { Err(age) } else { Ok(current) }
    }

    /// Returns a part of the history as JSON.
    pub(super) fn history(&self, query: &HistoryQuery) -> Vec<u8> {
        let view = self.history.lock().unwrap_or_else(PoisonError::into_inner).view(query);
        serde_json::to_vec(&view).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m1_a_sample_that_is_too_old_is_not_the_present() {
        let mut board = Board::new(State::default(), History::default(), Duration::from_secs(1));
        assert_eq!(board.stale_after, Duration::from_secs(10));
        assert!(board.current().is_ok());
        board.stale_after = Duration::ZERO;
        std::thread::sleep(Duration::from_millis(1));
        assert!(board.current().is_err_and(|age| age > Duration::ZERO));
        board.stale_after = Duration::from_secs(3600);
        board.publish(State::default());
        assert!(board.current().is_ok());
    }
}
