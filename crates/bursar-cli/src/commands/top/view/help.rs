//! The keys and the words of a frame.

use crate::commands::top::text::{cut, wrap};
use crate::commands::top::theme::Theme;
use ratatui::text::Line;

const KEYS: [(&str, &str); 12] = [
    ("q, Esc, Ctrl-C", "quit"),
    ("?", "this help; any key closes it"),
    ("Tab, Shift-Tab, 1-5", "processes, tenants, queue, refusals, devices"),
    ("s, S", "sort by the next column, by the one before"),
    ("r", "reverse the order"),
    ("/", "rows with a text alone; Enter keeps it, Esc takes it back"),
    ("space, p", "pause and go on; history is recorded meanwhile"),
    ("j, k, arrows", "move; the row that is selected is told at length below"),
    ("PgUp, PgDn", "a page"),
    ("g, G, Home, End", "to the first, to the last"),
    ("z", "history by 1 s, 10 s, 1 min or 10 min a column"),
    ("Ctrl-Z", "suspend"),
];

const WORDS: [&str; 6] = [
    "H held: charged to the ledger.",
    "C cached: the part of it that pools hold and nobody uses, where programs say so.",
    "S set aside: reserved and not yet held.",
    "U unmanaged: used outside the ledger.",
    ". free; | the limit of what all may hold together.",
    "In history . is nothing, ? a ledger that could not be read.",
];

/// Returns the help, as much of it as there is room for.
pub(super) fn lines(columns: usize, height: usize, theme: Theme) -> Vec<Line<'static>> {
    let widest = KEYS.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
    let mut lines = vec![Line::styled(cut("bursar top: keys", columns), theme.heading())];
    lines.extend(KEYS.iter().map(|(key, does)| Line::raw(cut(&format!("  {key:<widest$}  {does}"), columns))));
    lines.push(Line::styled("bars", theme.heading()));
    lines.extend(
        WORDS.iter().flat_map(|word| wrap(word, columns.saturating_sub(2))).map(|line| Line::raw(format!("  {line}"))),
    );
    lines.truncate(height);
    lines
}
