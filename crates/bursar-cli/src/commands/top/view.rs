//! A frame: what an [`App`] has to show, drawn into any terminal of any size.

pub(super) mod devices;
pub(super) mod heading;
mod help;

use super::app::{App, Mode, Tab};
use super::table;
use super::tables::Table;
use super::text::{cut, fit, wrap};
use super::theme::Theme;
use crate::output::printable;
use bursar::metrics::State;
use devices::DevicePanel;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

/// The smallest terminal that has room for a device, a heading, a row and the keys.
pub(super) const LEAST: (u16, u16) = (24, 6);

/// The most columns and rows that are drawn: more than any screen shows, and few enough to be kept in memory.
pub(super) const MOST: (u16, u16) = (1024, 512);

/// Returns the part of a terminal of this size that is drawn.
pub(super) fn bounded(columns: u16, rows: u16) -> Rect {
    Rect::new(0, 0, columns.min(MOST.0), rows.min(MOST.1))
}

/// The lines of the sentence about the row that is selected, where there is room.
const MORE_LINES: usize = 2;

/// Draws a frame. Tells the app how many rows a page has.
pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App, theme: Theme) {
    let area = frame.area();
    let (columns, height) = (usize::from(area.width), usize::from(area.height));
    let lines = if area.width < LEAST.0 || area.height < LEAST.1 {
        too_small(area)
    } else if *app.mode() == Mode::Helping {
        help::lines(columns, height, theme)
    } else {
        lines(app, columns, height, theme)
    };
    frame.render_widget(Paragraph::new(lines), area);
}

fn too_small(area: Rect) -> Vec<Line<'static>> {
    let (columns, rows) = LEAST;
    let text = format!("{}x{} is too small: {columns}x{rows} is enough. q quits.", area.width, area.height);
    wrap(&text, area.width.into()).into_iter().map(Line::from).collect()
}

/// Returns the lines of a frame, as many as the terminal has.
fn lines(app: &mut App, columns: usize, height: usize, theme: Theme) -> Vec<Line<'static>> {
    let Some(state) = app.state() else {
        let mut lines = vec![Line::raw(cut("bursar top: reading the ledgers", columns))];
        lines.resize(height - 1, Line::default());
        lines.push(footer(app, columns, theme));
        return lines;
    };
    let mut lines = vec![heading::line(state, app.is_paused(), columns, theme)];
    // The keys, the tabs, the heading of the table and a row are always there, and one line of devices.
    let spare = height.saturating_sub(6);
    lines.extend(heading::warnings(state, app.late(), columns, theme).into_iter().take(spare.div_ceil(4)));
    // The devices at length have the whole frame.
    if app.tab() != Tab::Devices {
        let room = (height - lines.len() - 4).min((height / 2).max(1));
        lines.extend(device_panel(app, state, columns, theme).summary(&state.devices, room));
    }
    lines.push(tabs(app, state, columns, theme));
    let room = height - lines.len() - 1;
    lines.extend(body(app, columns, room, theme));
    lines.resize(height - 1, Line::default());
    lines.push(footer(app, columns, theme));
    lines
}

/// Returns the titles of the tabs, with the number of rows in each.
fn tabs(app: &App, state: &State, columns: usize, theme: Theme) -> Line<'static> {
    let title = |(at, tab): (usize, Tab)| {
        let count = match tab {
            Tab::Of(table) => heading::known(app.rows(table).len() as u64, state),
            Tab::Devices => state.devices.len().to_string(),
        };
        let title = format!("{} {} {count}", at + 1, tab.title());
        if tab == app.tab() { Span::styled(format!("[{title}]"), theme.heading()) } else { Span::raw(title) }
    };
    let filter = (!app.filter().is_empty()).then(|| format!("filter: {}", printable(app.filter())));
    let filter = filter.map(|filter| Span::styled(cut(&filter, columns / 2), theme.warning()));
    let mut titles: Vec<_> = Tab::ALL.into_iter().enumerate().map(|(at, tab)| (at, tab, title((at, tab)))).collect();
    // The one that is shown comes first where not all have room.
    let wide = |title: &Span<'_>| title.width() + 2;
    let all: usize = titles.iter().map(|(.., title)| wide(title)).chain(filter.as_ref().map(wide)).sum();
    if all > columns + 2 {
        titles.sort_by_key(|(_, tab, _)| *tab != app.tab());
    }
    let mut parts: Vec<_> = titles.into_iter().map(|(.., title)| title).collect();
    if let Some(filter) = filter {
        parts.insert(1, filter);
    }
    fit(parts, columns)
}

/// Returns the lines below the tabs.
fn body(app: &mut App, columns: usize, room: usize, theme: Theme) -> Vec<Line<'static>> {
    match app.tab() {
        Tab::Of(table) => {
            let rows = app.rows(table);
            let fitted = table::fit(table.columns(), &rows, app.sort(table), columns, theme.heading());
            let below = below(app, &rows, columns, room, theme);
            let page = room.saturating_sub(1 + below.len());
            app.set_page(page);
            let cursor = app.cursor();
            let first = cursor.saturating_sub(page / 2).min(rows.len().saturating_sub(page));
            let mut lines = vec![fitted.heading];
            for (at, line) in fitted.rows.into_iter().enumerate().skip(first).take(page) {
                lines.push(if at == cursor { line.style(theme.selected()) } else { line });
            }
            if rows.is_empty() {
                lines.push(Line::styled(cut(&nothing(app), columns), theme.faint()));
            }
            lines.resize(page + 1, Line::default());
            lines.extend(below);
            lines
        }
        Tab::Devices => {
            app.set_page(1);
            let Some(state) = app.state() else { return Vec::new() };
            let view = device_panel(app, state, columns, theme);
            state.devices.iter().skip(app.cursor()).flat_map(|device| view.at_length(device)).take(room).collect()
        }
    }
}

fn device_panel<'a>(app: &'a App, state: &State, columns: usize, theme: Theme) -> DevicePanel<'a> {
    DevicePanel { history: app.history(), at_ms: state.at_ms, step: app.step(), columns, theme }
}

/// Returns the sentences below a table: of which ledgers nothing is known, and more of the selected row.
fn below(app: &App, rows: &[table::Row], columns: usize, room: usize, theme: Theme) -> Vec<Line<'static>> {
    if room < 6 {
        return Vec::new();
    }
    let mut lines: Vec<Line<'static>> = app
        .state()
        .and_then(heading::unknown)
        .map_or_else(Vec::new, |unknown| vec![Line::styled(cut(&unknown, columns), theme.bad())]);
    let more = rows.get(app.cursor()).map(|row| wrap(&row.more, columns)).unwrap_or_default();
    lines.extend(more.into_iter().take(MORE_LINES).map(|line| Line::styled(line, theme.faint())));
    lines
}

/// Returns the sentence that stands in the place of rows.
fn nothing(app: &App) -> String {
    if let Some(unknown) = app.state().and_then(heading::unknown) {
        return unknown;
    }
    let sentence = match app.tab() {
        _ if !app.filter().is_empty() => "nothing matches the filter",
        Tab::Of(Table::Queue) => "nobody waits",
        Tab::Of(Table::Refusals) => "nobody was refused",
        _ => "none",
    };
    sentence.to_owned()
}

/// Returns the keys, or the filter that is typed.
fn footer(app: &App, columns: usize, theme: Theme) -> Line<'static> {
    if let Mode::Filtering(_) = app.mode() {
        let shown = printable(app.filter());
        let parts = vec![
            Span::styled(cut(&format!("filter: {shown}_"), columns), theme.warning()),
            Span::raw("Enter keep"),
            Span::raw("Esc as before"),
        ];
        return fit(parts, columns);
    }
    let pause = if app.is_paused() { "space go on" } else { "space pause" };
    let keys = ["q quit", "? help", "/ filter", "s sort", "r reverse", pause, "Tab next", "j/k move", "z history"];
    fit(keys.into_iter().map(|key| Span::styled(key, theme.heading())).collect(), columns)
}
