//! Host code in stream order, and the gate that may stop it.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// A gate that is shut until somebody opens it, once and permanently.
///
/// ```
/// use bursar::driver::Gate;
///
/// let gate = Gate::default();
/// assert!(!gate.is_open());
/// gate.open();
/// gate.wait();
/// ```
#[derive(Clone, Debug, Default)]
pub struct Gate {
    shared: Arc<(Mutex<bool>, Condvar)>,
}

impl Gate {
    /// Opens it and wakes everybody who waits.
    pub fn open(&self) {
        *self.shared.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.1.notify_all();
    }

    /// Returns whether it is open.
    pub fn is_open(&self) -> bool {
        *self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is open.
    pub fn wait(&self) {
        let mut open = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !*open {
            open = self.shared.1.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Host code that runs in stream order. It must not call the driver, and a panic in it is caught and dropped by the
/// driver, since it would unwind into foreign code. With a gate, CUDA waits on its own thread, and a simulator sees a
/// stream that cannot go on: a stalled stream is deterministic and cannot deadlock the thread that steps.
///
/// ```
/// use bursar::driver::{Gate, HostFunction};
///
/// let gate = Gate::default();
/// let function = HostFunction::behind(gate.clone(), || ());
/// assert!(!function.is_ready());
/// gate.open();
/// function.call();
/// ```
pub struct HostFunction {
    gate: Option<Gate>,
    run: Run,
}

/// Code that runs once, or as often as a graph is launched.
enum Run {
    Once(Box<dyn FnOnce() + Send>),
    Repeating(Arc<dyn Fn() + Send + Sync>),
}

impl HostFunction {
    /// Makes a function that runs `run` when the stream gets there.
    pub fn new(run: impl FnOnce() + Send + 'static) -> Self {
        Self { gate: None, run: Run::Once(Box::new(run)) }
    }

    /// Makes a function that stops the stream until `gate` opens and then runs `run`.
    pub fn behind(gate: Gate, run: impl FnOnce() + Send + 'static) -> Self {
        Self { gate: Some(gate), run: Run::Once(Box::new(run)) }
    }

    /// Makes a function that runs `run` whenever a stream gets there: as part of a graph, once for each launch.
    ///
    /// ```
    /// use bursar::driver::HostFunction;
    ///
    /// let function = HostFunction::repeating(|| println!("launched"));
    /// assert!(function.again().is_some());
    /// assert!(HostFunction::new(|| ()).again().is_none());
    /// ```
    pub fn repeating(run: impl Fn() + Send + Sync + 'static) -> Self {
        Self { gate: None, run: Run::Repeating(Arc::new(run)) }
    }

    /// Returns the same function for another run, if it repeats.
    pub fn again(&self) -> Option<Self> {
        match &self.run {
            Run::Once(_) => None,
            Run::Repeating(run) => Some(Self { gate: self.gate.clone(), run: Run::Repeating(run.clone()) }),
        }
    }

    /// Returns the gate that stops it, if there is one.
    pub fn gate(&self) -> Option<&Gate> {
        self.gate.as_ref()
    }

    /// Returns whether [`call`](Self::call) would run at once.
    pub fn is_ready(&self) -> bool {
        self.gate.as_ref().is_none_or(Gate::is_open)
    }

    /// Waits for the gate, then runs the code.
    pub fn call(self) {
        if let Some(gate) = &self.gate {
            gate.wait();
        }
        match self.run {
            Run::Once(run) => run(),
            Run::Repeating(run) => run(),
        }
    }
}

impl fmt::Debug for HostFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostFunction").field("gate", &self.gate).finish_non_exhaustive()
    }
}
