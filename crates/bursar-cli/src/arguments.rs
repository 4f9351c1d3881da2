//! What can be asked on the command line.

use crate::{bench, replay};
use bursar::driver::{Choice, SimDevices};
use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// The memory runtime for programs that share GPUs.
#[derive(Debug, Parser)]
#[command(name = "bursar", version, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// Print one JSON value and nothing else on standard output.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// auto (CUDA where it works, simulated devices otherwise), cuda, or sim.
    #[arg(long, global = true, value_name = "DRIVER", env = bursar::driver::VARIABLE, default_value = "auto")]
    pub(crate) driver: Choice,

    /// Simulated devices: how many and how large; with @NAME, the same in every process.
    #[arg(long, global = true, value_name = "NxSIZE[@NAME]", default_value = "2x80GiB")]
    pub(crate) sim_devices: SimDevices,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The tour: devices, a budget, a refusal, a free in stream order, a real trace, and a race being caught.
    #[command(after_help = "Example:\n  bursar demo --sim-devices 4x24GiB")]
    Demo,
    /// What the driver knows of each device.
    #[command(after_help = "Example:\n  bursar devices --json | jq '.devices[].free'")]
    Devices,
    /// Replays allocation traces through a stack and says what it cost.
    ///
    /// A trace is an RMM CSV log, Bursar's own CSV or JSON lines, or a PyTorch memory snapshot, gzipped or not. One pass
    /// warms the stack up, the second is timed; reading is outside the clock.
    #[command(after_help = replay::EXAMPLES)]
    Replay(replay::Asked),
    /// Times the hot path.
    #[command(subcommand, after_help = "Example:\n  bursar bench pairs --bytes 1KiB --threads 1,2,4")]
    Bench(Bench),
    /// Turns a trace of one format into another, chosen by the ending: .csv, .jsonl or .pickle, with or without .gz.
    #[command(after_help = "Example:\n  bursar convert snapshot.pickle run.csv.gz")]
    Convert {
        /// The trace to read.
        #[arg(value_name = "IN")]
        from: PathBuf,
        /// The trace to write.
        #[arg(value_name = "OUT")]
        to: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Allocates and frees one block over and over, each thread on a stream of its own.
    #[command(after_help = "Example:\n  bursar bench pairs --bytes 1KiB --threads 1,2,4 --stack async")]
    Pairs(bench::Asked),
}

const EXAMPLES: &str = "\
Examples:
  bursar                          the tour, on this machine's GPUs or two simulated ones
  bursar devices --json           what the devices are, for a script
  bursar devices --driver sim --sim-devices 1x24GiB
  bursar replay run.csv.gz        what a real program's allocations cost

Sizes are 512, 4KiB, 10GB or 1.5GiB.
Exit status: 0 done, 1 the answer is no, 2 wrong usage or a bad trace, 3 the machine failed us.";
