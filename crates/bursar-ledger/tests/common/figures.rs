//! The figures of readings and refusals, as numbers.

use bursar_core::Error;
use bursar_ledger::Ledger;
use std::time::Duration;

/// Longer than anything in these tests has to wait.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Returns the bytes that are held, and those that are set aside and not drawn.
pub(crate) fn figures(ledger: &Ledger) -> (u64, u64) {
    let reading = ledger.reading().unwrap();
    (reading.held.get(), reading.undrawn.get())
}

/// Returns the bytes that were requested, that remained, and the limit, of a refusal.
pub(crate) fn refusal(error: Error) -> (u64, u64, u64) {
    match error {
        Error::OutOfBudget { requested, remaining, limit, .. } => (requested.get(), remaining.get(), limit.get()),
        other => panic!("{other}"),
    }
}
