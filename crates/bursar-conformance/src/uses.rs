//! Random programs over buffers that several streams share. They contain no waits: use tracking has to insert all of them.
//!
//! A [`UseProgram`] follows from its seed. Its steps use buffers on streams in every possible way, free them while they are in
//! use, fail now and then between the declaration of a use and its record, and adopt streams that end. What each read must
//! see follows from the order of the steps alone, or, with several host threads, from the order in which they locked a
//! buffer. Fills and copies serve as kernels, so that a program runs on any driver.

mod generate;
mod run;
mod slots;
mod step;
mod wait_dropper;

use bursar_core::Driver;
pub use run::UseOutcome;
use std::fmt;
use std::sync::Arc;
use step::Step;
pub use wait_dropper::WaitDropper;

/// The parameters of generated programs.
///
/// ```
/// use bursar_conformance::uses::UseShape;
///
/// assert_eq!(UseShape::FAULTY.streams, 8);
/// assert!(UseShape::THREADED.threads > 1);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct UseShape {
    /// The number of streams; the first is the legacy default stream, the last is adopted if `adopts` is set.
    pub streams: usize,
    /// The number of buffers at a time.
    pub slots: usize,
    /// The number of elements of four bytes in each buffer.
    pub elements: usize,
    /// The number of steps on each thread.
    pub steps: usize,
    /// The number of host threads.
    pub threads: usize,
    /// True if driver calls fail.
    pub faults: bool,
    /// True if streams are adopted and end.
    pub adopts: bool,
    /// True if steps copy between two buffers. The waits for the first are submitted before the second is known, and the
    /// waits for the second may include them.
    pub copies: bool,
    /// True if there are steps that other promises order too: synchronous copies, frees on chosen streams, host waits, uses
    /// of different parts. Without them, every wait is one that tracking had to insert.
    pub mixed: bool,
}

impl UseShape {
    /// Every kind of step, on one thread, with about 200 buffers in all.
    pub const FAULTY: Self = Self {
        streams: 8,
        slots: 24,
        elements: 16,
        steps: 1200,
        threads: 1,
        faults: true,
        adopts: true,
        copies: true,
        mixed: true,
    };
    /// Several host threads that take turns with each buffer, or read it at the same time.
    pub const THREADED: Self = Self { steps: 200, threads: 4, faults: false, ..Self::FAULTY };
    /// Steps that tracking alone orders, each of one buffer.
    pub const BARE: Self =
        Self { slots: 8, steps: 120, faults: false, adopts: false, copies: false, mixed: false, ..Self::FAULTY };
    /// Steps that tracking alone orders, including copies between buffers.
    pub const PAIRED: Self = Self { copies: true, ..Self::BARE };
    /// Work that takes a while on hardware.
    pub const LARGE: Self = Self { elements: 64 << 10, steps: 300, faults: false, ..Self::FAULTY };
}

/// A sequence of uses that follows from a seed.
///
/// ```
/// use bursar::sim::Sim;
/// use bursar_conformance::uses::{UseProgram, UseShape};
///
/// let (program, sim) = (UseProgram::generate(7, UseShape::BARE), Sim::seeded(7));
/// assert_eq!(program.run(sim.clone()).wrong, None, "{program}");
/// sim.assert_clean();
/// ```
#[derive(Clone, Debug)]
pub struct UseProgram {
    seed: u64,
    shape: UseShape,
    /// The steps of each thread.
    threads: Vec<Vec<Step>>,
}

impl UseProgram {
    /// Generates the program of a seed.
    pub fn generate(seed: u64, shape: UseShape) -> Self {
        let threads = (0..shape.threads as u64).map(|nth| generate::steps(seed ^ nth << 48, shape)).collect();
        Self { seed, shape, threads }
    }

    /// Runs the program on the first device of a driver, and returns everything to the driver.
    pub fn run(&self, driver: Arc<dyn Driver>) -> UseOutcome {
        run::run(self, driver)
    }
}

impl fmt::Display for UseProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "program {} over {} streams and {} slots:", self.seed, self.shape.streams, self.shape.slots)?;
        for (thread, steps) in self.threads.iter().enumerate() {
            for (number, step) in steps.iter().enumerate() {
                write!(f, "\n{thread}:{number:4}  {step:?}")?;
            }
        }
        Ok(())
    }
}
