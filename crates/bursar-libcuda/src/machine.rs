//! The simulated machine of this process: its devices, and what the environment says about them.
//!
//! - `BURSAR_SIM_DEVICES` describes the devices: `2x80GiB`, or `2x80GiB@name` for devices that processes share.
//! - `BURSAR_SEED` lets streams advance as that seed chooses, and searches for hazards. Without it, every operation
//!   completes at once, unless hazards are wanted.
//! - `BURSAR_HAZARDS` names a file to which hazards are appended.
//! - `BURSAR_SIM_CONTEXT` is the memory that a context takes of its device; none if it is not set.

use crate::hazards::HazardFile;
use crate::message;
use crate::status::{CUresult, CallResult};
use bursar_core::Bytes;
use bursar_sim::{Sim, SimDevices};
use std::sync::{Arc, OnceLock};

/// The simulator, which lasts as long as the process, and what goes with it.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) sim: Arc<Sim>,
    pub(crate) hazards: Option<HazardFile>,
    /// The memory that a context takes.
    pub(crate) context: Bytes,
}

/// Returns the machine, which is made by the first call. Where the environment describes none, there is no device.
pub(crate) fn machine() -> CallResult<&'static Machine> {
    static MACHINE: OnceLock<Result<Machine, String>> = OnceLock::new();
    MACHINE.get_or_init(make).as_ref().map_err(|why| {
        message::once(why);
        CUresult::CUDA_ERROR_NO_DEVICE
    })
}

fn make() -> Result<Machine, String> {
    let devices = SimDevices::from_environment().map_err(|error| format!("BURSAR_SIM_DEVICES: {error}"))?;
    let hazards = variable("BURSAR_HAZARDS").map(|path| HazardFile::open(&path)).transpose()?;
    let seed = match variable("BURSAR_SEED") {
        Some(text) => Some(text.parse().map_err(|_| format!("BURSAR_SEED: {text:?} is no number"))?),
        None => hazards.is_some().then_some(0),
    };
    let context = match variable("BURSAR_SIM_CONTEXT") {
        Some(text) => text.parse().map_err(|error| format!("BURSAR_SIM_CONTEXT: {error}"))?,
        None => Bytes::ZERO,
    };
    let builder = devices.builder();
    let builder = match seed {
        Some(seed) => builder.seed(seed),
        None => builder.immediate(),
    };
    Ok(Machine { sim: builder.build(), hazards, context })
}

/// Returns a variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
