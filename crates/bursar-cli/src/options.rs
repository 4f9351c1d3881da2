//! The options of every command.

use bursar::driver::{Choice, SimDevices};
use clap::Args;

/// The options that every command has.
#[derive(Debug, Args)]
pub(crate) struct GlobalOptions {
    /// Print one JSON value and nothing else on standard output.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// auto (CUDA where it works, simulated devices otherwise), cuda, or sim.
    #[arg(long, global = true, value_name = "DRIVER", env = bursar::driver::VARIABLE, default_value = "auto")]
    pub(crate) driver: Choice,

    /// Simulated devices: how many and how large; with @NAME, the same in every process.
    #[arg(
        long,
        global = true,
        value_name = "NxSIZE[@NAME]",
        env = bursar::driver::SIM_DEVICES_VARIABLE,
        default_value = "2x80GiB"
    )]
    pub(crate) sim_devices: SimDevices,
}
