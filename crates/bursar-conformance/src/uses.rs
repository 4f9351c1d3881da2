//! Random programs over buffers that several streams share, with no wait in them: use tracking has to put all of them in.
//!
//! A [`Program`] follows from its seed. Its steps use buffers on streams in every way there is, free them while they are in
//! use, fail now and then between the declaration of a use and its record, and adopt streams that end. What each read must
//! see is known from the order of the steps alone, or, with several host threads, from the order in which they had a
//! buffer. Fills and copies are the kernels, so that a program runs on any driver.

mod generate;
mod run;
mod slots;
mod step;
mod swallow;

use bursar_core::Driver;
pub use run::Ran;
use std::fmt;
use std::sync::Arc;
use step::Step;
pub use swallow::Swallow;

/// What programs are made of.
///
/// ```
/// use bursar_conformance::uses::Shape;
///
/// assert_eq!(Shape::FAULTY.streams, 8);
/// assert!(Shape::THREADED.threads > 1);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How many streams there are; the first is the legacy default stream, the last an adopted one if any are.
    pub streams: usize,
    /// How many buffers there are at a time.
    pub slots: usize,
    /// How many elements of four bytes each has.
    pub elements: usize,
    /// How many steps there are on each thread.
    pub steps: usize,
    /// How many host threads there are.
    pub threads: usize,
    /// Whether driver calls fail.
    pub faults: bool,
    /// Whether streams are adopted and end.
    pub adopts: bool,
    /// Whether one step uses two buffers. The waits for the first are submitted before anybody knows of the second, whose
    /// own may turn out to include them.
    pub copies: bool,
    /// Whether what other promises order too is in it: synchronous copies, frees on chosen streams, host waits, uses of
    /// different parts. Without it, every wait is one that tracking had to put in.
    pub mixed: bool,
}

impl Shape {
    /// Everything, on one thread. About 200 buffers come and go.
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
    /// Nothing but what tracking orders, one buffer at a time.
    pub const BARE: Self =
        Self { slots: 8, steps: 120, faults: false, adopts: false, copies: false, mixed: false, ..Self::FAULTY };
    /// The same with copies between buffers.
    pub const PAIRED: Self = Self { copies: true, ..Self::BARE };
    /// Work that takes a while on hardware.
    pub const LARGE: Self = Self { elements: 64 << 10, steps: 300, faults: false, ..Self::FAULTY };
}

/// A sequence of uses that follows from a seed.
///
/// ```
/// use bursar_conformance::uses::{Program, Shape};
/// use bursar_sim::Sim;
///
/// let (program, sim) = (Program::generate(7, Shape::BARE), Sim::seeded(7));
/// assert_eq!(program.run(sim.clone()).wrong, None, "{program}");
/// sim.assert_clean();
/// ```
#[derive(Clone, Debug)]
pub struct Program {
    seed: u64,
    shape: Shape,
    /// One sequence a thread.
    threads: Vec<Vec<Step>>,
}

impl Program {
    /// The program of a seed.
    pub fn generate(seed: u64, shape: Shape) -> Self {
        let threads = (0..shape.threads as u64).map(|nth| generate::steps(seed ^ nth << 48, shape)).collect();
        Self { seed, shape, threads }
    }

    /// Runs it on the first device of a driver, and gives back everything it used.
    pub fn run(&self, driver: Arc<dyn Driver>) -> Ran {
        run::run(self, driver)
    }
}

impl fmt::Display for Program {
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
