//! Random programs of driver calls, and what must come of them.
//!
//! A [`Program`] follows from its seed and is correct by construction: whatever two of its operations share, an event, a
//! synchronisation or their stream orders. So its bytes do not depend on the schedule, and the same program can be run by
//! a model that knows no streams, on any simulated schedule, on hardware, and through any stack. What is left open, such
//! as whether work in flight has run yet, is asked and not compared.

mod batch;
mod generate;
mod host;
mod memory;
mod model;
mod op;
mod order;
mod outcome;
mod run;

pub use batch::{Shared, batches, trial};
use bursar_core::{DeviceMemoryResource, Driver};
use bursar_sim::{Random, Sim};
use op::Op;
pub use outcome::Outcome;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// What programs are made of.
///
/// ```
/// use bursar_conformance::program::Shape;
///
/// assert_eq!(Shape::DRIVER.streams, 6);
/// assert_eq!(Shape::RESOURCE.streams, 8);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How many streams there are; the first is the legacy default stream.
    pub streams: usize,
    /// How many operations there are at least.
    pub operations: usize,
    /// Who gives out the memory.
    pub memory: Giver,
}

/// Who gives out a program's memory, and so what else the program may do.
///
/// ```
/// use bursar_conformance::program::{Giver, Shape};
///
/// assert_eq!(Shape::DRIVER.memory, Giver::Driver);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Giver {
    /// The driver, in stream order or not. There are calls that it must refuse, and no kernels.
    Driver,
    /// A resource. There are kernels, which only a simulator runs.
    Resource,
}

impl Shape {
    /// For any driver: nothing but its own calls, some of them refused.
    pub const DRIVER: Self = Self { streams: 6, operations: 60, memory: Giver::Driver };
    /// For a resource on a simulator.
    pub const RESOURCE: Self = Self { streams: 8, operations: 240, memory: Giver::Resource };
}

/// Host memory that a program copies from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Host {
    Pageable,
    Pinned,
}

/// A sequence of driver calls that follows from a seed.
///
/// ```
/// use bursar_conformance::program::{Program, Shape};
/// use bursar_sim::Sim;
///
/// let program = Program::generate(7, Shape::DRIVER);
/// let sim = Sim::seeded(1);
/// assert_eq!(program.run(&*sim).difference(&program.expected()), None, "{program}");
/// sim.assert_clean();
/// ```
#[derive(Clone, Debug)]
pub struct Program {
    seed: u64,
    shape: Shape,
    ops: Vec<Op>,
    events: usize,
    blocks: usize,
    /// How much host memory of each kind it uses, each byte by one operation.
    pageable_bytes: usize,
    pinned_bytes: usize,
}

impl Program {
    /// The program of a seed.
    pub fn generate(seed: u64, shape: Shape) -> Self {
        generate::program(seed, shape)
    }

    /// What must come of it, found by running it in memory, one operation after the other.
    pub fn expected(&self) -> Outcome {
        model::run(self)
    }

    /// Runs it on the first device of a driver, with streams, events and memory of its own, all of which it gives back.
    pub fn run(&self, driver: &dyn Driver) -> Outcome {
        run::on_driver(self, driver)
    }

    /// Runs it with memory from a resource on the first device of a simulator.
    pub fn run_through(&self, memory: &Arc<dyn DeviceMemoryResource>, sim: &Sim) -> Outcome {
        run::through_resource(self, &**memory, sim)
    }

    /// What one kind of host memory holds before the first operation.
    fn host_bytes(&self, host: Host) -> Vec<u8> {
        let mut random = random(self.seed ^ host as u64);
        let bytes = match host {
            Host::Pageable => self.pageable_bytes,
            Host::Pinned => self.pinned_bytes,
        };
        let words = std::iter::repeat_with(|| random.next_u64().to_le_bytes());
        words.take(bytes.div_ceil(8)).flatten().take(bytes).collect()
    }
}

/// Returns the generator that `seed` decides. Seeds are spread first, so that those of neighbouring programs have no numbers in
/// common.
pub(crate) fn random(seed: u64) -> Random {
    Random::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d))
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "program {} over {} streams, {} events and {} blocks:",
            self.seed, self.shape.streams, self.events, self.blocks
        )?;
        for (number, op) in self.ops.iter().enumerate() {
            write!(f, "\n{number:4}  {op}")?;
        }
        Ok(())
    }
}

/// The variable that replays one program: its seed.
pub const SEED_VARIABLE: &str = "BURSAR_PROGRAM_SEED";

/// `range`, or the one seed that the environment asks to be replayed.
///
/// # Panics
/// Where the variable holds something that is no seed.
pub fn seeds(range: Range<u64>) -> Range<u64> {
    let Ok(asked) = std::env::var(SEED_VARIABLE) else {
        return range;
    };
    let seed: u64 = asked.parse().expect("BURSAR_PROGRAM_SEED is a number");
    seed..seed + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use bursar_core::Progress;
    use std::collections::BTreeSet;

    /// The word that an operation is shown with, and what a query must say.
    fn kind(op: &Op) -> String {
        let debug = format!("{op:?}");
        let name = debug.split([' ', '(']).next().unwrap_or_default();
        match op {
            Op::Query { answer, .. } | Op::QueryEvent { answer, .. } => {
                format!(
                    "{name} {}",
                    answer.map_or("open", |progress| match progress {
                        Progress::Complete => "complete",
                        Progress::Pending => "pending",
                    })
                )
            }
            Op::Upload { from: place, .. } | Op::ReadBack { to: place, .. } => format!("{name} {:?}", place.host),
            Op::Allocate { ordering, .. } => format!("{name} {ordering:?}"),
            _ => name.to_owned(),
        }
    }

    fn kinds(shape: Shape) -> BTreeSet<String> {
        let programs = (0..100).map(|seed| Program::generate(seed, shape));
        programs.flat_map(|program| program.ops.iter().map(kind).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn programs_do_everything_there_is_to_do() {
        let (driver, resource) = (kinds(Shape::DRIVER), kinds(Shape::RESOURCE));
        assert_eq!(driver.len(), 23, "{driver:?}");
        let only = |these: &BTreeSet<String>, those| these.difference(those).cloned().collect::<Vec<_>>();
        assert_eq!(only(&driver, &resource), ["Allocate Device", "Refused"]);
        assert_eq!(only(&resource, &driver), ["Add"]);
    }

    #[test]
    fn a_seed_fixes_the_program() {
        let ops = |seed| Program::generate(seed, Shape::DRIVER).ops;
        assert_eq!(ops(7), ops(7));
        assert_ne!(ops(7), ops(8));
    }
}
