//! The options of every command, and the drivers that they choose.

use crate::failure::Failure;
use bursar::driver::{Choice, DriverChoiceError, OpenedDriver, SimDevices, observe, open};
use clap::{Arg, Args, Command};

/// The options that every command has, and those of every command that opens devices.
#[derive(Debug, Args)]
pub(crate) struct GlobalOptions {
    /// Print one JSON value and nothing else on standard output.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// cuda, sim for simulated devices, or auto: CUDA, and simulated devices only for commands that ask nothing of the
    /// machine [env: BURSAR_DRIVER] [default: auto]
    #[arg(long, global = true, value_name = "DRIVER")]
    driver: Option<Choice>,

    /// Simulated devices: how many and how large; with @NAME, the same in every process. Chooses them, as --driver sim does
    /// [env: BURSAR_SIM_DEVICES, which chooses nothing] [default: 2x80GiB]
    #[arg(long, global = true, value_name = "NxSIZE[@NAME]")]
    sim_devices: Option<SimDevices>,
}

impl GlobalOptions {
    /// Hides the options about devices from commands that open none.
    pub(crate) fn hide_devices_from(commands: &[&'static str], bursar: Command) -> Command {
        let hidden = |id: &'static str, name: &'static str| Arg::new(id).long(name).hide(true);
        commands.iter().fold(bursar, |bursar, command| {
            bursar.mut_subcommand(command, |command| {
                command.arg(hidden("driver", "driver")).arg(hidden("sim_devices", "sim-devices"))
            })
        })
    }

    /// Returns the simulated devices, should they be used.
    pub(crate) fn sim_devices(&self) -> Result<SimDevices, Failure> {
        match &self.sim_devices {
            Some(devices) => Ok(devices.clone()),
            None => Ok(SimDevices::from_environment().map_err(DriverChoiceError::from)?),
        }
    }

    /// Returns the driver that was named, by an option or else by the environment.
    fn choice(&self) -> Result<Choice, Failure> {
        let (named, by_option) = match self.driver {
            Some(choice) => (choice, true),
            None => (Choice::from_environment()?, false),
        };
        match (named, &self.sim_devices) {
            (Choice::Cuda, Some(_)) if by_option => {
                Err(Failure::Usage("--sim-devices describes simulated devices, and --driver says cuda"))
            }
            (Choice::Cuda, Some(_)) => Err(Failure::Usage(
                "--sim-devices describes simulated devices, and BURSAR_DRIVER says cuda: say --driver sim too",
            )),
            (_, Some(_)) => Ok(Choice::Sim),
            (choice, None) => Ok(choice),
        }
    }

    /// Opens the driver of a command that is about the machine and takes nothing of it: CUDA, unless the simulated driver was named.
    /// Within a run, such a command is about the whole device all the same.
    pub(crate) fn open_machine(&self) -> Result<OpenedDriver, Failure> {
        let choice = match self.choice()? {
            Choice::Auto => Choice::Cuda,
            named => named,
        };
        Ok(observe(choice, &self.sim_devices()?)?)
    }

    /// Opens the driver of a command that runs on any device: CUDA where it works, and simulated devices otherwise.
    pub(crate) fn open_any(&self) -> Result<OpenedDriver, Failure> {
        Ok(open(self.choice()?, &self.sim_devices()?)?)
    }
}
