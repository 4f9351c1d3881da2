//! The explanation of a refusal: what was asked for, what is held, and by whom.

use crate::entry::OUT_OF_MEMORY;
use crate::share::Share;
use crate::{driver, report};
use bursar_core::Bytes;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Others that are named in an explanation.
const OTHERS_MAX: usize = 8;

/// Returns the status of a refusal. The first of a process is explained on standard error; programs that hit their limit go on to hit
/// it often.
#[cold]
pub(crate) fn refuse(share: &Share, asked: u64) -> c_int {
    static EXPLAINED: AtomicBool = AtomicBool::new(false);
    share.note_refusal(asked);
    if !EXPLAINED.swap(true, Relaxed) {
        report::say(&explanation(share, asked));
    }
    OUT_OF_MEMORY
}

/// Returns the status of a call that the share had room for and that the driver failed. Where it had no memory, the ledger counts
/// that too.
#[cold]
pub(crate) fn failed(share: &Share, asked: u64, status: c_int) -> c_int {
    if status == OUT_OF_MEMORY {
        share.note_refusal_by_driver(asked, driver::memory().unwrap_or_default());
    }
    status
}

fn explanation(share: &Share, asked: u64) -> String {
    let (asked, held, left, whole) = (Bytes(asked), Bytes(share.held()), Bytes(share.undrawn()), Bytes(share.bytes()));
    let uuid = share.uuid();
    let mut text =
        format!("refused {asked} of {uuid}: this program holds {held}, and {left} of its share of {whole} is left");
    match share.reservation().ledger().reading() {
        Ok(reading) => {
            let own = std::process::id();
            let holds = |process: &&bursar_ledger::ProcessReading| process.pid != own && process.held > Bytes::ZERO;
            let others: Vec<String> = reading.processes.iter().filter(holds).map(describe).collect();
            match others.len() {
                0 => text.push_str("; nobody else in the ledger holds any"),
                _ => text.push_str(&format!("; others: {}", shown(others))),
            }
            if reading.unmanaged > Bytes::ZERO {
                text.push_str(&format!("; {} are used outside the ledger", reading.unmanaged));
            }
        }
        Err(why) => text.push_str(&format!("; who else holds what cannot be read: {why}")),
    }
    text.push_str(" (later refusals are not explained; `bursar ledger` shows who holds what)");
    text
}

fn describe(process: &bursar_ledger::ProcessReading) -> String {
    // A name is chosen by its program, and a terminal reads this.
    format!("{} (pid {}) {}", process.name.escape_debug(), process.pid, process.held)
}

fn shown(mut others: Vec<String>) -> String {
    let more = others.len().saturating_sub(OTHERS_MAX);
    others.truncate(OTHERS_MAX);
    let listed = others.join(", ");
    if more > 0 { format!("{listed} and {more} more") } else { listed }
}
