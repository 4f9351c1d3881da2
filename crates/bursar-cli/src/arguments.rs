//! What can be asked on the command line.

use bursar::driver::{Choice, SimDevices};
use clap::{Parser, Subcommand};

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

#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum Command {
    /// The tour: devices, a budget, a refusal, a free in stream order, and a race being caught.
    #[command(after_help = "Example:\n  bursar demo --sim-devices 4x24GiB")]
    Demo,
    /// What the driver knows of each device.
    #[command(after_help = "Example:\n  bursar devices --json | jq '.devices[].free'")]
    Devices,
}

const EXAMPLES: &str = "\
Examples:
  bursar                          the tour, on this machine's GPUs or two simulated ones
  bursar devices --json           what the devices are, for a script
  bursar devices --driver sim --sim-devices 1x24GiB

Sizes are 512, 4KiB, 10GB or 1.5GiB.
Exit status: 0 done, 1 the answer is no, 2 wrong usage, 3 the machine failed us.";
