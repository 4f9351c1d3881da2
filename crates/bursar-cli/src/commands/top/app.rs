//! The watching of a machine as a state machine: samples and keys go in, and what is to be drawn is its fields.

use super::table::{Row, Sort};
use super::tables::Table;
use bursar::metrics::{History, State};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::time::Duration;

/// A tab: one of the tables, or the devices at length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tab {
    Of(Table),
    Devices,
}

impl Tab {
    pub(super) const ALL: [Self; 5] = [
        Self::Of(Table::Processes),
        Self::Of(Table::Tenants),
        Self::Of(Table::Queue),
        Self::Of(Table::Refusals),
        Self::Devices,
    ];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Of(table) => table.title(),
            Self::Devices => "Devices",
        }
    }
}

/// The use that is made of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Browsing,
    /// The filter is typed; this is the one before.
    Filtering(String),
    Helping,
}

/// The consequence of a key for the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Continue,
    Quit,
    Suspend,
}

/// The place of the cursor in a tab, kept on its row while rows come and go.
#[derive(Clone, Debug, Default)]
struct Cursor {
    at: usize,
    id: Option<String>,
}

/// The spans of a sparkline's column, beyond the interval of samples.
const ZOOMS: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(60), Duration::from_secs(600)];

/// The longest filter.
const FILTER_MAX: usize = 64;

/// Everything that is drawn, and changes with samples and keys.
#[derive(Debug)]
pub(super) struct App {
    /// The state that is shown; none before the first sample.
    shown: Option<State>,
    /// The state that came while the shown one was held.
    held_back: Option<State>,
    history: History,
    interval: Duration,
    now_ms: u64,
    /// The number of the tab.
    tab: usize,
    sorts: [Sort; 4],
    cursors: [Cursor; 5],
    filter: String,
    mode: Mode,
    paused: bool,
    zoom: usize,
    /// The rows of a page, as drawn last.
    page: usize,
}

impl App {
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            shown: None,
            held_back: None,
            history: History::default(),
            interval,
            now_ms: 0,
            tab: 0,
            sorts: Table::ALL.map(Table::order),
            cursors: Default::default(),
            filter: String::new(),
            mode: Mode::Browsing,
            paused: false,
            zoom: 0,
            page: 10,
        }
    }

    pub(super) fn state(&self) -> Option<&State> {
        self.shown.as_ref()
    }

    pub(super) fn history(&self) -> &History {
        &self.history
    }

    pub(super) fn tab(&self) -> Tab {
        Tab::ALL[self.tab]
    }

    pub(super) fn filter(&self) -> &str {
        &self.filter
    }

    pub(super) fn mode(&self) -> &Mode {
        &self.mode
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Returns the span of a sparkline's column.
    pub(super) fn step(&self) -> Duration {
        ZOOMS[self.zoom].max(self.interval)
    }

    /// Returns how old the shown state is, if samples should have come since.
    pub(super) fn late(&self) -> Option<Duration> {
        let shown = self.shown.as_ref().filter(|_| !self.paused)?;
        let age = Duration::from_millis(self.now_ms.saturating_sub(shown.at_ms));
        (age > self.interval * 3 + Duration::from_secs(2)).then_some(age)
    }

    /// Takes a sample: shows it, unless what is shown was paused, and records it.
    pub(super) fn sample(&mut self, state: State) {
        self.history.record(&state);
        self.now_ms = self.now_ms.max(state.at_ms);
        if self.paused && self.shown.is_some() {
            self.held_back = Some(state);
        } else {
            self.show(state);
        }
    }

    /// Takes the time.
    pub(super) fn tick(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Takes the number of rows that the table has room for.
    pub(super) fn set_page(&mut self, rows: usize) {
        self.page = rows.max(1);
    }

    fn show(&mut self, state: State) {
        self.shown = Some(state);
        for tab in 0..Tab::ALL.len() {
            self.keep_cursor(tab);
        }
    }

    /// Returns the sort of a table.
    pub(super) fn sort(&self, table: Table) -> Sort {
        self.sorts[table as usize]
    }

    /// Returns the rows of a table that match the filter, sorted.
    pub(super) fn rows(&self, table: Table) -> Vec<Row> {
        let mut rows = self.shown.as_ref().map(|state| table.rows(state)).unwrap_or_default();
        rows.retain(|row| row.contains(&self.filter));
        self.sort(table).apply(&mut rows);
        rows
    }

    /// Returns the number of the row, or of the device, that the cursor is on.
    pub(super) fn cursor(&self) -> usize {
        self.cursors[self.tab].at
    }

    /// Returns what a tab's cursor moves over, by names that last.
    fn ids(&self, tab: Tab) -> Vec<String> {
        match tab {
            Tab::Of(table) => self.rows(table).into_iter().map(|row| row.id).collect(),
            Tab::Devices => {
                let devices = self.shown.as_ref().map(|state| &state.devices[..]).unwrap_or_default();
                devices.iter().map(|device| device.uuid().to_owned()).collect()
            }
        }
    }

    /// Moves a tab's cursor to where its row is.
    fn keep_cursor(&mut self, tab: usize) {
        let ids = self.ids(Tab::ALL[tab]);
        let cursor = &mut self.cursors[tab];
        // A cursor that nobody moved stays at the top.
        let found = cursor.id.as_ref().and_then(|id| ids.iter().position(|other| other == id));
        cursor.at = found.unwrap_or(cursor.at).min(ids.len().saturating_sub(1));
    }

    fn move_cursor(&mut self, to: impl FnOnce(usize) -> usize) {
        let ids = self.ids(self.tab());
        let cursor = &mut self.cursors[self.tab];
        cursor.at = to(cursor.at).min(ids.len().saturating_sub(1));
        cursor.id = ids.get(cursor.at).filter(|_| cursor.at > 0).cloned();
    }

    /// Takes a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::Continue;
        }
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Action::Quit,
            KeyCode::Char('z') if key.modifiers.contains(KeyModifiers::CONTROL) => return Action::Suspend,
            KeyCode::Char(_) if key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) => {}
            code => match self.mode {
                Mode::Browsing => return self.browse(code),
                Mode::Filtering(_) => self.type_filter(code),
                Mode::Helping => return self.help(code),
            },
        }
        Action::Continue
    }

    fn help(&mut self, code: KeyCode) -> Action {
        match code {
            KeyCode::Char('q') => return Action::Quit,
            _ => self.mode = Mode::Browsing,
        }
        Action::Continue
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(typed) if !typed.is_control() && self.filter.chars().count() < FILTER_MAX => {
                self.filter.push(typed);
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Enter => self.mode = Mode::Browsing,
            KeyCode::Esc => {
                if let Mode::Filtering(before) = std::mem::replace(&mut self.mode, Mode::Browsing) {
                    self.filter = before;
                }
            }
            _ => {}
        }
        self.keep_cursor(self.tab);
    }

    fn browse(&mut self, code: KeyCode) -> Action {
        let (page, tabs) = (self.page, Tab::ALL.len());
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
            KeyCode::Char('?' | 'h') => self.mode = Mode::Helping,
            KeyCode::Char('/') => self.mode = Mode::Filtering(self.filter.clone()),
            KeyCode::Char(' ' | 'p') => self.pause(),
            KeyCode::Tab | KeyCode::Right => self.tab = (self.tab + 1) % tabs,
            KeyCode::BackTab | KeyCode::Left => self.tab = (self.tab + tabs - 1) % tabs,
            KeyCode::Char(digit @ '1'..='5') => self.tab = digit as usize - '1' as usize,
            KeyCode::Char('s') => self.sort_by(|column, columns| (column + 1) % columns),
            KeyCode::Char('S') => self.sort_by(|column, columns| (column + columns - 1) % columns),
            KeyCode::Char('r') => self.reverse(),
            KeyCode::Char('z') => self.zoom = (self.zoom + 1) % ZOOMS.len(),
            KeyCode::Down | KeyCode::Char('j') => self.move_cursor(|at| at.saturating_add(1)),
            KeyCode::Up | KeyCode::Char('k') => self.move_cursor(|at| at.saturating_sub(1)),
            KeyCode::PageDown => self.move_cursor(|at| at.saturating_add(page)),
            KeyCode::PageUp => self.move_cursor(|at| at.saturating_sub(page)),
            KeyCode::Home | KeyCode::Char('g') => self.move_cursor(|_| 0),
            KeyCode::End | KeyCode::Char('G') => self.move_cursor(|_| usize::MAX),
            _ => {}
        }
        Action::Continue
    }

    fn pause(&mut self) {
        self.paused = !self.paused;
        if let Some(state) = self.held_back.take() {
            self.show(state);
        }
    }

    fn sort_by(&mut self, next: impl FnOnce(usize, usize) -> usize) {
        if let Tab::Of(table) = self.tab() {
            let sort = &mut self.sorts[table as usize];
            sort.column = next(sort.column, table.columns().len());
            self.keep_cursor(self.tab);
        }
    }

    fn reverse(&mut self) {
        if let Tab::Of(table) = self.tab() {
            let sort = &mut self.sorts[table as usize];
            sort.descending = !sort.descending;
            self.keep_cursor(self.tab);
        }
    }
}
