//! The first lines of a frame: the moment, sums, and what is wrong.

use crate::commands::ledger::time::{age, utc};
use crate::commands::top::tables::moment;
use crate::commands::top::text::{cut, fit};
use crate::commands::top::theme::Theme;
use crate::output::printable;
use bursar::metrics::{DeviceState, LedgerState, State};
use ratatui::text::{Line, Span};
use std::time::Duration;

/// Returns the first line.
pub(crate) fn line(state: &State, paused: bool, columns: usize, theme: Theme) -> Line<'static> {
    let ledgers = || state.devices.iter().filter_map(DeviceState::ledger);
    let sum = |count: fn(&LedgerState) -> u64| ledgers().map(count).fold(0, u64::saturating_add);
    let unreadable = state.devices.len() - ledgers().count();
    let clock = utc(moment(state.at_ms));
    let mut parts = vec![Span::styled("bursar top", theme.heading())];
    if paused {
        parts.push(Span::styled("PAUSED", theme.warning()));
    }
    let devices = state.devices.len();
    parts.push(Span::raw(format!("{devices} {}", if devices == 1 { "device" } else { "devices" })));
    if unreadable > 0 {
        parts.push(Span::styled(format!("{unreadable} unreadable"), theme.bad()));
    }
    let processes = sum(|ledger| ledger.processes.len() as u64);
    let word = if processes == 1 && unreadable == 0 { "process" } else { "processes" };
    parts.push(Span::raw(format!("{} {word}", known(processes, state))));
    parts.push(Span::raw(format!("{} waiting", known(sum(|ledger| ledger.waiting.len() as u64), state))));
    parts.push(Span::raw(format!("{} refused", known(sum(LedgerState::refused_in_all), state))));
    parts.push(Span::raw(clock));
    parts.extend(state.driver.as_ref().map(|driver| Span::styled(printable(driver), theme.faint())));
    fit(parts, columns)
}

/// Returns a number of things in ledgers, as far as it is known: `3`, `3+?` where a ledger cannot be read, `?` where none can.
pub(crate) fn known(count: u64, state: &State) -> String {
    let readable = state.devices.iter().filter(|device| device.ledger().is_some()).count();
    match readable {
        _ if readable == state.devices.len() => count.to_string(),
        0 => "?".to_owned(),
        _ => format!("{count}+?"),
    }
}

/// Returns what is wrong in whole sentences.
pub(crate) fn sentences(state: &State, late: Option<Duration>) -> Vec<String> {
    let late = late.map(|age_of| format!("no sample came for {}", age(age_of.as_secs())));
    let folder = state.folder_error.as_ref().map(|error| format!("ledgers cannot be listed: {}", printable(error)));
    let no_gpu = state.no_gpu.as_ref().map(|why| format!("no GPU is asked: {}", printable(why)));
    let nothing = (state.devices.is_empty() && state.folder_error.is_none())
        .then(|| format!("no ledger in {}, and no device that processes share", printable(&state.folder)));
    let left_out = (state.left_out > 0).then(|| format!("{} more devices or ledgers are left out", state.left_out));
    [late, folder, no_gpu, nothing, left_out].into_iter().flatten().collect()
}

/// Returns what is wrong, a line each.
pub(crate) fn warnings(state: &State, late: Option<Duration>, columns: usize, theme: Theme) -> Vec<Line<'static>> {
    let line = |sentence: String| Line::styled(cut(&sentence, columns), theme.warning());
    sentences(state, late).into_iter().map(line).collect()
}

/// Returns the sentence that says of which devices nothing is known, if there are any.
pub(crate) fn unknown(state: &State) -> Option<String> {
    let unreadable = state.devices.iter().filter(|device| device.ledger().is_none());
    let names: Vec<String> = unreadable.map(name).collect();
    (!names.is_empty()).then(|| format!("unknown of {}: cannot be read", names.join(", ")))
}

/// Returns the short name of a device, or its UUID where the driver does not have it.
pub(crate) fn name(device: &DeviceState) -> String {
    match device.ordinal() {
        None if device.uuid() != "HOST" => printable(device.uuid()),
        _ => device.label(),
    }
}
