//! One frame as plain text.

use super::table;
use super::tables::Table;
use super::text::{text_of, wrap};
use super::theme::Theme;
use super::view::devices::DevicePanel;
use super::view::heading;
use bursar::metrics::{History, State};
use ratatui::style::Style;
use ratatui::text::Line;
use std::io::{Result, Write};
use std::time::Duration;

/// Writes a state in lines of at most so many columns, without any escape sequence.
pub(super) fn write(out: &mut dyn Write, state: &State, columns: usize) -> Result<()> {
    for line in lines(state, columns) {
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Returns the lines of a state.
pub(super) fn lines(state: &State, columns: usize) -> Vec<String> {
    let theme = Theme::default();
    let mut lines = vec![text_of(&heading::line(state, false, columns, theme))];
    lines.extend(heading::sentences(state, None).iter().flat_map(|sentence| wrap(sentence, columns)));
    let history = History::default();
    let step = Duration::from_secs(1);
    let view = DevicePanel { history: &history, at_ms: state.at_ms, step, columns, theme };
    for device in &state.devices {
        lines.push(String::new());
        lines.extend(view.full(device).iter().map(text_of));
    }
    for table in Table::ALL {
        lines.extend(section(table, state, columns));
    }
    if let Some(unknown) = heading::unknown(state) {
        lines.push(String::new());
        lines.extend(wrap(&unknown, columns));
    }
    lines
}

/// Returns the lines of a table, with what its columns do not say below each row; none of an empty table.
fn section(table: Table, state: &State, columns: usize) -> Vec<String> {
    let mut rows = table.rows(state);
    table.order().apply(&mut rows);
    if rows.is_empty() {
        return Vec::new();
    }
    let fitted = table::fit(table.columns(), &rows, table.order(), columns, Style::new());
    let mut lines = vec![String::new(), table.title().to_owned(), text_of(&fitted.heading)];
    for (row, line) in rows.iter().zip(&fitted.rows) {
        lines.push(text_of(line));
        let indented = |line: String| text_of(&Line::raw(format!("    {line}")));
        lines.extend(wrap(&row.more, columns.saturating_sub(4)).into_iter().map(indented));
    }
    lines
}
