//! Rows and frames of chosen states: what a cell says where the figure behind it needs words.

use super::{NOW, app, drawn, holding, press};
use crate::commands::top::table::Row;
use crate::commands::top::tables::Table;
use crate::commands::top::theme::Theme;
use crate::commands::top::view;
use bursar::metrics::{DeviceState, LedgerState, QueuedState, State, TenantState};
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::Rect;

/// Returns the state of a device of 8 GiB, of which 4 GiB are held, with a tenant and a request of 3 GiB that waits.
fn waiting(tenant: TenantState) -> State {
    let mut state = holding(&[(1, 4 << 30), (2, 0)]);
    state.at_ms = NOW;
    if let DeviceState::Readable(ledger) = &mut state.devices[0] {
        (ledger.total, ledger.limit, ledger.held) = (8 << 30, 8 << 30, 4 << 30);
        let (name, since_ms) = ("p2".to_owned(), NOW - 90_000);
        ledger.waiting =
            vec![QueuedState { pid: 2, name, tenant: tenant.name.clone(), bytes: 3 << 30, since_ms, priority: 0 }];
        ledger.tenants = vec![tenant];
    }
    state
}

fn cell<'a>(rows: &'a [Row], table: Table, row: usize, title: &str) -> &'a str {
    let at = table.columns().iter().position(|column| column.title == title).expect("a column");
    &rows[row].cells[at].text
}

#[test]
fn a_ceiling_above_the_device_is_none() {
    for (ceiling, shown) in [((1u64 << 48) - 1, "-"), (8 << 30, "-"), (2 << 30, "2 GiB")] {
        let rows = Table::Tenants.rows(&waiting(TenantState { ceiling, ..TenantState::default() }));
        assert_eq!(cell(&rows, Table::Tenants, 0, "CEILING"), shown);
    }
}

#[test]
fn a_wait_under_way_is_part_of_the_time_waited() {
    let state = waiting(TenantState { ceiling: u64::MAX, waited_ms: 30_000, ..TenantState::default() });
    let (processes, tenants) = (Table::Processes.rows(&state), Table::Tenants.rows(&state));
    let waited = [0, 1].map(|row| cell(&processes, Table::Processes, row, "WAITED"));
    assert_eq!(waited, ["0 s", "90 s"], "the second waits");
    assert_eq!(cell(&tenants, Table::Tenants, 0, "WAITED"), "2 min");
}

#[test]
fn a_request_that_waits_says_what_for() {
    let told = |change: fn(&mut LedgerState)| {
        let mut state = waiting(TenantState { ceiling: u64::MAX, charged: 4 << 30, ..TenantState::default() });
        if let DeviceState::Readable(ledger) = &mut state.devices[0] {
            change(ledger);
        }
        Table::Queue.rows(&state).pop().expect("it waits").more
    };
    let taken = "4 GiB held and 0 B set aside of";
    for (change, why) in [
        ((|_| {}) as fn(&mut LedgerState), "there is room for it, but not beside the part that it is to leave free"),
        (|ledger| ledger.limit = 6 << 30, "; 4 GiB held and 0 B set aside of 6 GiB"),
        (|ledger| ledger.unmanaged = 2 << 30, "set aside of 8 GiB, and 2 GiB unmanaged"),
        (|ledger| ledger.tenants[0].ceiling = 5 << 30, "its tenant has 4 GiB of 5 GiB at most"),
        (|ledger| ledger.waiting.push(ledger.waiting[0].clone()), "others are served before it"),
    ] {
        let more = told(change);
        assert!(more.contains(why) && more.contains(taken), "{why}: {more}");
    }
}

#[test]
fn the_help_is_whole_in_eighty_by_twenty_four() {
    let mut app = app(&holding(&[]));
    press(&mut app, KeyCode::Char('?'));
    let text = drawn(&mut app, (80, 24), Theme::default()).join("\n");
    for part in ["Esc takes it back", "Ctrl-Z", "a ledger that could not be read."] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert!(!text.contains('~'), "{text}");
}

#[test]
fn no_terminal_is_too_large() {
    let area = view::bounded(u16::MAX, u16::MAX);
    let mut app = app(&holding(&[(1, 1 << 30)]));
    assert!(drawn(&mut app, (area.width, area.height), Theme::default()).join("").contains("q quit"));
    assert_eq!(view::bounded(80, 24), Rect::new(0, 0, 80, 24));
}
