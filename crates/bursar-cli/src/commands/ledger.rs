//! `bursar ledger`: who holds what of each device, and the most that all may hold together.

mod listing;
pub(crate) mod time;

pub(crate) use listing::LedgerList;

use crate::failure::Failure;
use crate::output;
use bursar::device::{DeviceFacts, DeviceUuid};
use bursar::driver::{DriverChoiceError, OpenedDriver};
use bursar::fit::{FitError, Ram};
use bursar::ledger::{Ledger, LedgerError, Reading, Subject};
use bursar::{Bytes, DeviceId};
use clap::Subcommand;

pub(crate) const EXAMPLES: &str = "\
Examples:
  bursar ledger                         who holds what, and since when; the same as bursar ledger show
  bursar ledger limit 0 60GiB           all programs together hold at most 60 GiB of gpu0
  bursar ledger limit GPU-1f6c… 60GiB   the same, by UUID
  bursar ledger clear                   forget every account, if nobody holds anything

Ledgers are in the folder BURSAR_LEDGER_DIR, or in /dev/shm/bursar-UID.";

#[derive(Debug, Subcommand)]
pub(crate) enum LedgerCommand {
    /// Shows who holds what of each device, since when, and what is used outside the ledger. Changes nothing.
    #[command(after_help = "Example:\n  bursar ledger show --json | jq '.devices[].processes'")]
    Show,
    /// Sets what all programs together may hold of a device; lowered below what is in use, new requests wait until less is.
    #[command(after_help = "Example:\n  bursar ledger limit 0 60GiB")]
    Limit {
        /// The device: its ordinal, its UUID, or host for the memory of the host.
        gpu: String,
        /// The most that may be held.
        size: Bytes,
    },
    /// Forgets accounts, reservations, tenants and limits. Refused while another process has the ledger open.
    #[command(after_help = "Example:\n  bursar ledger clear 0 --force")]
    Clear {
        /// The device: its ordinal, its UUID, or host; every ledger where none is named.
        gpu: Option<String>,
        /// Also while others have it open: their programs are told, and what they hold counts as unmanaged.
        #[arg(long)]
        force: bool,
    },
}

/// The driver of a machine, or the reason that there is none to ask: ledgers outlive drivers.
#[derive(Debug)]
pub(crate) enum Machine {
    Opened(OpenedDriver),
    WithoutGpu { why: String },
}

impl Machine {
    /// Returns the machine, or the failure of a driver that was named and cannot be used.
    pub(crate) fn of(opened: Result<OpenedDriver, Failure>) -> Result<Self, Failure> {
        match opened {
            Ok(opened) => Ok(Self::Opened(opened)),
            Err(Failure::Driver(DriverChoiceError::NoCuda { why })) => Ok(Self::WithoutGpu { why }),
            Err(failure) => Err(failure),
        }
    }

    /// Returns the driver, or the failure of a command that cannot do without.
    fn opened(&self) -> Result<&OpenedDriver, Failure> {
        match self {
            Self::Opened(opened) => Ok(opened),
            Self::WithoutGpu { why } => Err(DriverChoiceError::NoCuda { why: why.clone() }.into()),
        }
    }
}

/// Executes a command, or shows, and prints the ledgers that it was about. Fails if one of them cannot be read.
pub(crate) fn run(
    opened: Result<OpenedDriver, Failure>,
    command: Option<&LedgerCommand>,
    json: bool,
) -> Result<(), Failure> {
    let ledgers = execute(&Machine::of(opened)?, command.unwrap_or(&LedgerCommand::Show))?;
    output::show(&ledgers, json)?;
    ledgers.check_readable().map_err(|failure| Failure::AfterOutput(Box::new(failure)))
}

fn execute(machine: &Machine, command: &LedgerCommand) -> Result<LedgerList, Failure> {
    match command {
        LedgerCommand::Show => LedgerList::list(machine),
        LedgerCommand::Limit { gpu, size } => {
            let subject = find(machine, gpu)?;
            Ledger::open(&subject)?.set_limit(*size)?;
            LedgerList::list(machine).map(|ledgers| ledgers.only(&subject))
        }
        LedgerCommand::Clear { gpu: Some(gpu), force } => {
            let subject = find(machine, gpu)?;
            clear(&subject, *force)?;
            LedgerList::list(machine).map(|ledgers| ledgers.only(&subject))
        }
        LedgerCommand::Clear { gpu: None, force } => {
            for file in Ledger::list()? {
                clear(&subject_of(&Ledger::inspect(&file)?), *force)?;
            }
            LedgerList::list(machine)
        }
    }
}

/// Clears a ledger if it exists, and creates none.
fn clear(subject: &Subject, force: bool) -> Result<(), LedgerError> {
    match reading_of(subject)? {
        Some(_) => Ledger::open(subject)?.clear(force),
        None => Ok(()),
    }
}

/// Reads the ledger of a subject, or returns none if there is none.
fn reading_of(subject: &Subject) -> Result<Option<Reading>, LedgerError> {
    Ledger::inspect_in(&Ledger::folder()?, subject)
}

/// Reads the ledger of a device. Returns none if there is none, and if no other process can open the device.
pub(crate) fn reading_for(facts: &DeviceFacts) -> Result<Option<Reading>, LedgerError> {
    if facts.shared { reading_of(&Subject::device(facts)) } else { Ok(None) }
}

fn subject_of(reading: &Reading) -> Subject {
    Subject { uuid: reading.uuid, name: reading.name.clone(), total: reading.total }
}

/// Finds the device that a user named: one of the driver's, or one that only has a ledger.
fn find(machine: &Machine, gpu: &str) -> Result<Subject, Failure> {
    if let Ok(ordinal) = gpu.parse::<u32>() {
        let driver = &machine.opened()?.driver;
        let exists = ordinal < driver.device_count();
        let missing = Failure::Usage("there is no device of this ordinal; `bursar devices` lists them");
        return if exists { shared(&driver.facts(DeviceId(ordinal))?) } else { Err(missing) };
    }
    let is_host = gpu.eq_ignore_ascii_case("host");
    if !is_host && gpu.parse::<DeviceUuid>().is_err() {
        return Err(Failure::Usage("a device is named by its ordinal or its UUID"));
    }
    if let Machine::Opened(OpenedDriver { driver, .. }) = machine {
        for ordinal in 0..driver.device_count() {
            let facts = driver.facts(DeviceId(ordinal))?;
            if gpu.parse() == Ok(facts.uuid) {
                return shared(&facts);
            }
        }
    }
    for file in Ledger::list()? {
        let stem = file.file_stem().unwrap_or_default();
        if stem.eq_ignore_ascii_case(gpu) {
            return Ok(subject_of(&Ledger::inspect(&file)?));
        }
    }
    if is_host {
        return Ok(Subject::host(Ram::of_this_machine().read().map_err(FitError::from)?.total));
    }
    machine.opened()?;
    Err(Failure::Usage("no device and no ledger has this UUID; `bursar ledger show` lists them"))
}

fn shared(facts: &DeviceFacts) -> Result<Subject, Failure> {
    const PRIVATE: &str =
        "this device is private to each process and has no ledger; with --sim-devices 2x80GiB@NAME it is shared";
    if facts.shared { Ok(Subject::device(facts)) } else { Err(Failure::Usage(PRIVATE)) }
}
