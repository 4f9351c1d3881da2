//! Random programs of driver calls, with a known outcome.
//!
//! A [`DriverProgram`] follows from its seed and is correct by construction: an event, a synchronisation or a common stream
//! orders any two operations that share memory. So its bytes do not depend on the schedule, and the same program can be run by
//! a model without streams, on any simulated schedule, on hardware, and through any stack. Results that depend on the
//! schedule, such as whether work in flight has run yet, are queried and not compared.
//!
//! `generate.rs` makes a program of the operations in `op.rs`, with the order that `order.rs` tracks. `model.rs` computes the
//! expected `outcome.rs`; `run.rs` runs the program on a driver, with blocks from `memory.rs`. `batch.rs` makes trials of
//! programs.

mod batch;
mod generate;
mod host_memory;
mod memory;
mod model;
mod op;
mod order;
mod outcome;
mod run;

pub use batch::{SharedDriver, batches, trial};
use bursar_core::{DeviceMemoryResource, Driver};
use bursar_sim::{Random, Sim};
use op::Op;
pub use outcome::ProgramOutcome;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The parameters of generated programs.
///
/// ```
/// use bursar_conformance::program::ProgramShape;
///
/// assert_eq!(ProgramShape::DRIVER.streams, 6);
/// assert_eq!(ProgramShape::RESOURCE.streams, 8);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ProgramShape {
    /// The number of streams; the first is the legacy default stream.
    pub streams: usize,
    /// The least number of operations.
    pub operations: usize,
    /// The source of the blocks.
    pub memory: MemorySource,
}

/// The source of a program's blocks, which determines what else the program may do.
///
/// ```
/// use bursar_conformance::program::{MemorySource, ProgramShape};
///
/// assert_eq!(ProgramShape::DRIVER.memory, MemorySource::Driver);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemorySource {
    /// The driver, in stream order or not. The program has calls that must be refused, and no kernels.
    Driver,
    /// A resource. The program has kernels, which only a simulator runs.
    Resource,
}

impl ProgramShape {
    /// Programs for any driver: driver calls only, some of which must be refused.
    pub const DRIVER: Self = Self { streams: 6, operations: 60, memory: MemorySource::Driver };
    /// Programs for a resource on a simulator.
    pub const RESOURCE: Self = Self { streams: 8, operations: 240, memory: MemorySource::Resource };
}

/// The kind of host memory that a program copies from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostKind {
    Pageable,
    Pinned,
}

/// A sequence of driver calls that follows from a seed.
///
/// ```
/// use bursar::sim::Sim;
/// use bursar_conformance::program::{DriverProgram, ProgramShape};
///
/// let program = DriverProgram::generate(7, ProgramShape::DRIVER);
/// let sim = Sim::seeded(1);
/// assert_eq!(program.run(&*sim).difference(&program.expected()), None, "{program}");
/// sim.assert_clean();
/// ```
#[derive(Clone, Debug)]
pub struct DriverProgram {
    seed: u64,
    shape: ProgramShape,
    ops: Vec<Op>,
    events: usize,
    blocks: usize,
    /// The bytes of pageable and pinned host memory that it uses, each by one operation.
    pageable_bytes: usize,
    pinned_bytes: usize,
}

impl DriverProgram {
    /// Generates the program of a seed.
    pub fn generate(seed: u64, shape: ProgramShape) -> Self {
        generate::program(seed, shape)
    }

    /// Returns the outcome that every run must have, computed by a model that runs one operation after the other.
    pub fn expected(&self) -> ProgramOutcome {
        model::run(self)
    }

    /// Runs the program on the first device of a driver, with streams, events and memory of its own, all of which it returns.
    pub fn run(&self, driver: &dyn Driver) -> ProgramOutcome {
        run::on_driver(self, driver)
    }

    /// Runs the program with blocks of a resource on the first device of a simulator.
    pub fn run_through(&self, memory: &Arc<dyn DeviceMemoryResource>, sim: &Sim) -> ProgramOutcome {
        run::through_resource(self, &**memory, sim)
    }

    /// Returns the contents of one kind of host memory before the first operation.
    fn host_bytes(&self, host: HostKind) -> Vec<u8> {
        let mut random = random(self.seed ^ host as u64);
        let bytes = match host {
            HostKind::Pageable => self.pageable_bytes,
            HostKind::Pinned => self.pinned_bytes,
        };
        let words = std::iter::repeat_with(|| random.next_u64().to_le_bytes());
        words.take(bytes.div_ceil(8)).flatten().take(bytes).collect()
    }
}

/// Returns the generator of `seed`. Seeds are spread first, so that neighbouring programs have no numbers in common.
pub(crate) fn random(seed: u64) -> Random {
    Random::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d))
}

impl fmt::Display for DriverProgram {
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

/// The environment variable with the seed of the one program to replay.
pub const SEED_VARIABLE: &str = "BURSAR_PROGRAM_SEED";

/// Returns `range`, or the one seed in [`SEED_VARIABLE`].
///
/// # Panics
/// Panics if the variable is not a number.
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

    /// Returns the name of an operation, with the expected result of a query.
    fn kind(op: &Op) -> String {
        let debug = format!("{op:?}");
        let name = debug.split([' ', '(']).next().unwrap_or_default();
        match op {
            Op::Query { expected, .. } | Op::QueryEvent { expected, .. } => {
                format!(
                    "{name} {}",
                    expected.map_or("open", |progress| match progress {
                        Progress::Complete => "complete",
                        Progress::Pending => "pending",
                    })
                )
            }
            Op::Upload { from: offset, .. } | Op::ReadBack { to: offset, .. } => format!("{name} {:?}", offset.host),
            Op::Allocate { ordering, .. } => format!("{name} {ordering:?}"),
            _ => name.to_owned(),
        }
    }

    fn kinds(shape: ProgramShape) -> BTreeSet<String> {
        let programs = (0..100).map(|seed| DriverProgram::generate(seed, shape));
        programs.flat_map(|program| program.ops.iter().map(kind).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn programs_do_everything_there_is_to_do() {
        let (driver, resource) = (kinds(ProgramShape::DRIVER), kinds(ProgramShape::RESOURCE));
        assert_eq!(driver.len(), 23, "{driver:?}");
        let only = |these: &BTreeSet<String>, those| these.difference(those).cloned().collect::<Vec<_>>();
        assert_eq!(only(&driver, &resource), ["Allocate Device", "Refused"]);
        assert_eq!(only(&resource, &driver), ["Add"]);
    }

    #[test]
    fn a_seed_fixes_the_program() {
        let ops = |seed| DriverProgram::generate(seed, ProgramShape::DRIVER).ops;
        assert_eq!(ops(7), ops(7));
        assert_ne!(ops(7), ops(8));
    }
}
