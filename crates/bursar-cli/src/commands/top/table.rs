//! Tables: rows that are searched, sorted and fitted into the width that there is.

use super::text::{cut, pad, width};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};
use std::cmp::Ordering;

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) title: &'static str,
    pub(super) kind: ColumnKind,
    /// The order in which columns are left out where there is no room: the highest first.
    pub(super) rank: u8,
}

/// The kind of a column's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnKind {
    /// Shown whole or not at all, to the right.
    Number,
    /// Cut to as few as this many columns.
    Text(usize),
}

impl Column {
    pub(super) const fn number(title: &'static str, rank: u8) -> Self {
        Self { title, kind: ColumnKind::Number, rank }
    }

    pub(super) const fn text(title: &'static str, least: usize, rank: u8) -> Self {
        Self { title, kind: ColumnKind::Text(least), rank }
    }
}

/// A cell: its text, and its place among others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) key: Key,
}

/// The place of a cell among others of its column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Number(u64),
    Text(String),
    /// Nothing is known: the last, in either direction.
    Unknown,
}

impl Key {
    fn compare(&self, other: &Self, descending: bool) -> Ordering {
        let turned = |order: Ordering| if descending { order.reverse() } else { order };
        match (self, other) {
            (Self::Number(one), Self::Number(other)) => turned(one.cmp(other)),
            (Self::Text(one), Self::Text(other)) => turned(one.cmp(other)),
            (Self::Unknown, Self::Unknown) => Ordering::Equal,
            (Self::Unknown, _) => Ordering::Greater,
            (_, Self::Unknown) => Ordering::Less,
            (Self::Number(_), Self::Text(_)) => Ordering::Less,
            (Self::Text(_), Self::Number(_)) => Ordering::Greater,
        }
    }
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// The same in every sample.
    pub(super) id: String,
    pub(super) cells: Vec<Cell>,
    /// The rest of what is known, in sentences for the row that is selected.
    pub(super) more: String,
}

impl Row {
    /// Returns whether it has the text, whatever the case, in a cell or in the rest.
    pub(super) fn contains(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        let has = |part: &str| part.to_lowercase().contains(&text);
        self.cells.iter().any(|cell| has(&cell.text)) || has(&self.more)
    }
}

/// The column that a table is sorted by, and the direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    pub(super) column: usize,
    pub(super) descending: bool,
}

impl Sort {
    /// Sorts rows; equal ones keep their order.
    pub(super) fn apply(self, rows: &mut [Row]) {
        let key = |row: &Row| row.cells.get(self.column).map_or(Key::Unknown, |cell| cell.key.clone());
        rows.sort_by(|one, other| key(one).compare(&key(other), self.descending));
    }
}

/// A table that was fitted into a width: its heading and its rows.
#[derive(Debug)]
pub(super) struct Fitted {
    pub(super) heading: Line<'static>,
    pub(super) rows: Vec<Line<'static>>,
}

/// Fits a table into a width. Texts are cut first; where that is not enough, columns are left out, but for the one that the
/// table is sorted by.
pub(super) fn fit(columns: &[Column], rows: &[Row], sort: Sort, columns_wide: usize, heading: Style) -> Fitted {
    let titles: Vec<String> = columns.iter().enumerate().map(|(at, column)| title(column, at, sort)).collect();
    let natural: Vec<usize> = (titles.iter().enumerate())
        .map(|(at, title)| rows.iter().map(|row| width(&row.cells[at].text)).fold(width(title), usize::max))
        .collect();
    let shown = chosen(columns, &natural, sort, columns_wide);
    let line = |texts: &dyn Fn(usize) -> String| {
        let cells = shown.iter().map(|&(at, wide)| {
            let is_number = columns[at].kind == ColumnKind::Number;
            pad(&cut(&texts(at), wide), wide, is_number)
        });
        cells.collect::<Vec<_>>().join(" ")
    };
    let rows = rows.iter().map(|row| Line::raw(line(&|at| row.cells[at].text.clone()))).collect();
    Fitted { heading: Line::from(Span::styled(line(&|at| titles[at].clone()), heading).bold()), rows }
}

/// Returns the title of a column, with the direction if the table is sorted by it.
fn title(column: &Column, at: usize, sort: Sort) -> String {
    match (at == sort.column, sort.descending) {
        (true, true) => format!("{}v", column.title),
        (true, false) => format!("{}^", column.title),
        (false, _) => column.title.to_owned(),
    }
}

/// Returns the columns that are shown, each with its width.
fn chosen(columns: &[Column], natural: &[usize], sort: Sort, wide: usize) -> Vec<(usize, usize)> {
    let least = |at: usize| match columns[at].kind {
        ColumnKind::Number => natural[at],
        ColumnKind::Text(least) => least.min(natural[at]),
    };
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    let sum = |shown: &[usize], of: &dyn Fn(usize) -> usize| {
        shown.iter().map(|&at| of(at)).sum::<usize>() + shown.len().saturating_sub(1)
    };
    while shown.len() > 1 && sum(&shown, &least) > wide {
        let rank = |at: usize| if at == sort.column { 0 } else { columns[at].rank };
        let last = (0..shown.len()).max_by_key(|&place| rank(shown[place])).unwrap_or(0);
        shown.remove(last);
    }
    let mut spare = wide.saturating_sub(sum(&shown, &least));
    let widen = |at: usize| {
        let more = (natural[at] - least(at)).min(spare);
        spare -= more;
        (at, (least(at) + more).min(wide))
    };
    shown.into_iter().map(widen).collect()
}
