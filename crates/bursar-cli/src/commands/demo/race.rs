//! The classic bug, on a simulated device: a buffer is freed on one stream while another still reads it.

use crate::output::{BAD, FAINT, GOOD, Show};
use bursar::prelude::*;
use bursar::sim::{Launch, Sim};
use serde::Serialize;
use std::io::{Result, Write};

const SEED: u64 = 7;

/// The hazards of a program with a race, and of the corrected program.
#[derive(Debug, Serialize)]
pub(crate) struct Race {
    seed: u64,
    program: Vec<&'static str>,
    hazards: Vec<String>,
    /// The number of hazards of the program with the missing wait added.
    pub(super) hazards_when_ordered: usize,
}

/// Runs the program twice: as it was written, and with the missing wait added.
pub(crate) fn run_twice() -> bursar::Result<Race> {
    Ok(Race {
        seed: SEED,
        program: vec!["stream A: allocate `kv-cache`, write it", "stream A: free it", "stream B: read it"],
        hazards: run(Order::Forgotten)?,
        hazards_when_ordered: run(Order::Kept)?.len(),
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Forgotten,
    Kept,
}

fn run(order: Order) -> bursar::Result<Vec<String>> {
    let sim = Sim::seeded(SEED);
    let context = DeviceContext::open(sim.clone(), DeviceId(0))?;
    let memory = Stack::new().over(leaf::Async).build(&context)?;
    let (a, b) = (context.create_stream(0)?, context.create_stream(0)?);
    let (raw_a, raw_b) = (context.resolve(a)?, context.resolve(b)?);

    let block = memory.allocate(1 << 20, 256, a, tag!("kv-cache"))?;
    let (ptr, bytes) = (block.ptr(), block.requested().get());
    let read = Launch::new("attention").reads(ptr, bytes);
    sim.launch(context.device(), raw_a, Launch::new("prefill").writes(ptr, bytes))?;
    if order == Order::Kept {
        context.synchronize(a)?;
        sim.launch(context.device(), raw_b, read)?;
        context.synchronize(b)?;
        memory.deallocate(block, a)?;
    } else {
        memory.deallocate(block, a)?;
        sim.launch(context.device(), raw_b, read)?;
    }
    sim.settle();
    Ok(sim.hazards().iter().map(ToString::to_string).collect())
}

impl Show for Race {
    fn show(&self, out: &mut dyn Write) -> Result<()> {
        for line in &self.program {
            writeln!(out, "  {FAINT}{line}{FAINT:#}")?;
        }
        for hazard in &self.hazards {
            writeln!(out, "{BAD}{hazard}{BAD:#}")?;
        }
        let (seed, ordered) = (self.seed, self.hazards_when_ordered);
        writeln!(
            out,
            "{FAINT}seed {seed} shows it again;{FAINT:#} {GOOD}with the wait put in: {ordered} hazards{GOOD:#}"
        )
    }
}
