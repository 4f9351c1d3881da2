//! What a ledger answers, in numbers.

use bursar_core::Error;
use bursar_ledger::Ledger;
use std::time::Duration;

/// Longer than anything here has to wait.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// What is held, and what is set aside and not drawn, in bytes.
pub(crate) fn figures(ledger: &Ledger) -> (u64, u64) {
    let reading = ledger.reading().unwrap();
    (reading.held.get(), reading.undrawn.get())
}

/// What a refusal says was requested, remained and was the limit, in bytes.
pub(crate) fn refusal(error: Error) -> (u64, u64, u64) {
    match error {
        Error::OutOfBudget { requested, remaining, limit } => (requested.get(), remaining.get(), limit.get()),
        other => panic!("{other}"),
    }
}
