//! Devices: a bar, figures and history each, in as many lines as there is room for.

use super::heading::name;
use crate::commands::ledger::time::age;
use crate::commands::top::bar::{self, Kind};
use crate::commands::top::sparkline;
use crate::commands::top::tables::reasons;
use crate::commands::top::text::{cut, fit, flow, text_of, width, wrap};
use crate::commands::top::theme::Theme;
use crate::output::printable;
use bursar::Bytes;
use bursar::metrics::{DeviceState, Figures, History, LedgerState, UnreadableLedger, WaitState};
use ratatui::text::{Line, Span};
use std::time::Duration;

/// The widest history.
const HISTORY_COLUMNS_MAX: usize = 140;

/// A history: its name, and the figure of each sample.
type HistoryOf = (&'static str, fn(&Figures) -> u64);

const HELD: HistoryOf = ("held", |figures| figures.held);

const OTHER_HISTORIES: [HistoryOf; 2] =
    [("set aside", |figures| figures.undrawn), ("unmanaged", |figures| figures.unmanaged)];

/// The way in which devices are drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DevicePanel<'a> {
    pub(crate) history: &'a History,
    /// The moment that is shown, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// The time of a column of history.
    pub(crate) step: Duration,
    pub(crate) columns: usize,
    pub(crate) theme: Theme,
}

impl DevicePanel<'_> {
    /// Returns all devices in at most `room` lines.
    pub(crate) fn summary(self, devices: &[DeviceState], room: usize) -> Vec<Line<'static>> {
        // The figures at length name the letters, and need no legend.
        let at_length: Vec<_> = devices.iter().flat_map(|device| self.full(device)).collect();
        if at_length.len() <= room {
            return at_length;
        }
        let pairs: Vec<_> = devices.iter().flat_map(|device| self.pair(device)).collect();
        let mut lines = match pairs.len() <= room {
            true => pairs,
            false => devices.iter().map(|device| self.single(device)).collect(),
        };
        if lines.len() > room {
            lines.truncate(room.saturating_sub(1).max(1));
            let rest = format!("and {} more: 5 shows all devices", devices.len() - lines.len());
            lines.push(Line::styled(cut(&rest, self.columns), self.theme.faint()));
            lines.truncate(room);
        } else if lines.len() < room {
            lines.push(fit(bar::legend(self.theme), self.columns));
        }
        lines
    }

    /// Returns everything that is known of a device.
    pub(crate) fn at_length(self, device: &DeviceState) -> Vec<Line<'static>> {
        let mut lines = self.full(device);
        if let Some(ledger) = device.ledger() {
            lines.extend(OTHER_HISTORIES.into_iter().filter_map(|of| self.history_line(device, of)));
            let mut parts = vec![Span::styled(printable(&ledger.uuid), self.theme.faint())];
            parts.extend(ledger.driver_free.map(|free| Span::raw(format!("the driver says {} free", Bytes(free)))));
            parts.push(Span::raw(format!("{} waiting", ledger.waiting.len())));
            lines.extend(flow(parts, self.columns));
        }
        lines.push(Line::default());
        lines
    }

    /// Returns a device with its bar, its figures and its history.
    pub(crate) fn full(self, device: &DeviceState) -> Vec<Line<'static>> {
        let ledger = match device {
            DeviceState::Readable(ledger) => ledger,
            DeviceState::Unreadable(ledger) => return self.unreadable(device, ledger),
        };
        let mut lines = vec![self.title(device, ledger)];
        lines.push(Line::from(bar::spans(ledger, self.columns, self.theme)));
        lines.extend(flow(figures(ledger), self.columns));
        let told = told(ledger).map(|told| wrap(&told, self.columns)).unwrap_or_default();
        lines.extend(told.into_iter().map(|line| Line::styled(line, self.theme.faint())));
        lines.extend(self.history_line(device, HELD));
        lines
    }

    /// Returns a device in two lines: its figures, and its bar with its history.
    fn pair(self, device: &DeviceState) -> Vec<Line<'static>> {
        let DeviceState::Readable(ledger) = device else { return vec![self.single(device)] };
        let name = cut(&name(device), self.columns / 2);
        let mut parts = vec![Span::styled(name, self.theme.heading()), held_of(ledger)];
        let rest = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Held);
        parts
            .extend(rest.filter_map(|kind| Some(Span::raw(format!("{} {}", Bytes(kind.bytes(ledger)?), kind.name())))));
        let history = self.columns / 3;
        let mut second = Line::from(bar::spans(ledger, self.columns - history, self.theme));
        second.push_span(Span::raw(" "));
        second.push_span(self.sparkline(device, HELD, history.saturating_sub(1)));
        vec![fit(parts, self.columns), second]
    }

    /// Returns a device in one line.
    fn single(self, device: &DeviceState) -> Line<'static> {
        let name = Span::styled(cut(&name(device), 12), self.theme.heading());
        match device {
            DeviceState::Readable(ledger) => {
                let mut line = fit(vec![name, held_of(ledger)], self.columns);
                let left = self.columns.saturating_sub(width(&text_of(&line)) + 1);
                if left >= 8 {
                    line.push_span(Span::raw(" "));
                    bar::spans(ledger, left, self.theme).into_iter().for_each(|span| line.push_span(span));
                }
                line
            }
            DeviceState::Unreadable(ledger) => {
                let told = format!("UNREADABLE ({}): {}", ledger.reason, printable(&ledger.error));
                let left = self.columns.saturating_sub(width(&name.content) + 2);
                Line::from(vec![name, Span::raw("  "), Span::styled(cut(&told, left), self.theme.bad())])
            }
        }
    }

    fn title(self, device: &DeviceState, ledger: &LedgerState) -> Line<'static> {
        let mut parts = vec![
            Span::styled(cut(&name(device), self.columns), self.theme.heading()),
            held_of(ledger),
            Span::raw(format!("(the device has {})", Bytes(ledger.total))),
            Span::raw(printable(&ledger.name)),
        ];
        // Where the driver does not have the device, its UUID is its name already.
        if name(device) != printable(&ledger.uuid) {
            parts.push(Span::styled(printable(&ledger.uuid), self.theme.faint()));
        }
        fit(parts, self.columns)
    }

    fn unreadable(self, device: &DeviceState, ledger: &UnreadableLedger) -> Vec<Line<'static>> {
        let mut parts = vec![
            Span::styled(cut(&name(device), self.columns), self.theme.heading()),
            Span::styled(cut(&format!("UNREADABLE ({})", ledger.reason), self.columns), self.theme.bad()),
        ];
        parts.extend(ledger.total.map(|total| Span::raw(format!("(the device has {})", Bytes(total)))));
        parts.extend(ledger.name.as_ref().map(|name| Span::raw(printable(name))));
        let mut lines = flow(parts, self.columns);
        lines.extend(wrap(&printable(&ledger.error), self.columns).into_iter().map(Line::from));
        lines
    }

    /// Returns a line of a device's history; none where there is but one sample.
    fn history_line(self, device: &DeviceState, of: HistoryOf) -> Option<Line<'static>> {
        let columns = self.columns.min(HISTORY_COLUMNS_MAX);
        self.history.device(device.uuid()).filter(|history| history.samples().nth(1).is_some())?;
        // The label says how far back the columns beside it reach, and fewer columns never need a longer one.
        let seconds = |wide: usize| self.step.as_secs().saturating_mul(wide as u64);
        let label = |wide: usize| format!("{:<9} last {}: ", of.0, age(seconds(wide)));
        let wide = (1..columns).rev().find(|&wide| label(wide).len() + wide <= columns)?;
        let sparkline = self.sparkline(device, of, wide);
        Some(Line::from(vec![Span::styled(label(wide), self.theme.faint()), sparkline]))
    }

    fn sparkline(self, device: &DeviceState, (_, figure): HistoryOf, columns: usize) -> Span<'static> {
        let step = u64::try_from(self.step.as_millis()).unwrap_or(u64::MAX);
        let history = self.history.device(device.uuid());
        let points = history.map(|history| sparkline::points(history, self.at_ms, step, columns, figure));
        Span::raw(sparkline::text(&points.unwrap_or_default(), self.theme))
    }
}

fn held_of(ledger: &LedgerState) -> Span<'static> {
    Span::raw(format!("{} held of {}", Bytes(ledger.held), Bytes(ledger.limit)))
}

/// Returns the figures, with the letters that stand for them in the bar.
fn figures(ledger: &LedgerState) -> Vec<Span<'static>> {
    let figure = |kind: Kind| {
        let bytes = kind.bytes(ledger).map_or_else(|| "not told".to_owned(), |bytes| Bytes(bytes).to_string());
        Span::raw(format!("{} {} {bytes}", kind.letter(), kind.name()))
    };
    Kind::ALL.into_iter().map(figure).collect()
}

/// Returns refusals by reason and waits, if there were any.
fn told(ledger: &LedgerState) -> Option<String> {
    let waits = (ledger.waits.count > 0).then(|| waited(&ledger.waits));
    let parts: Vec<_> = [reasons(&ledger.refused), waits].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn waited(waits: &WaitState) -> String {
    let each = waits.sum_seconds / waits.count as f64;
    format!("{} waited, {each:.1} s each on average", waits.count)
}
