//! Frames of generated states at every size: nothing panics, nothing but the state is shown, and rows are the right ones.

mod rows;

use super::app::{Action, App, Tab};
use super::table::{Key, Row};
use super::tables::Table;
use super::theme::Theme;
use super::{once, view};
use crate::output::is_unsafe_to_print;
use bursar::Bytes;
use bursar::metrics::{
    DeviceState, HolderState, LedgerState, ProcessState, QueuedState, RefusalState, State, TenantState,
    UnreadableLedger, UnreadableReason, UsageState, WaitBucket, WaitState,
};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

/// A text as programs choose it: plain, wide, or made to confuse a terminal.
fn name() -> impl Strategy<Value = String> {
    let evil =
        ["\u{1b}[2J\u{1b}[31m", "a\nb\tc\r", "\u{9b}31m\u{7f}", "\u{202e}gpj", "日本語の名前", "e\u{301}\u{200d}👩‍👩‍👧"];
    prop_oneof![
        "[a-z]{0,8}",
        "\\PC{0,20}",
        any::<String>(),
        prop::sample::select(evil.to_vec()).prop_map(str::to_owned)
    ]
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0u64..100, (0u64..200).prop_map(|gib| gib << 30), any::<u64>()]
}

/// A moment near that of the state, or any.
fn moment() -> impl Strategy<Value = u64> {
    prop_oneof![NOW - 100_000..NOW + 5_000, any::<u64>()]
}

const NOW: u64 = 1_800_000_000_000;

fn reasons() -> impl Strategy<Value = BTreeMap<String, u64>> {
    btree_map(name(), any::<u64>(), 0..3)
}

prop_compose! {
    fn usage()(live in bytes(), cached in bytes(), peak in bytes(), published_ms in moment(),
        tags in vec((name(), bytes()), 0..3)) -> UsageState
    {
        let holders = tags.into_iter().map(|(tag, live)| HolderState { tag, live }).collect();
        UsageState { live, cached, peak, holders, published_ms }
    }
}

prop_compose! {
    fn process()(pid: u32, name in name(), labels in vec(name(), 0..3), held in bytes(), undrawn in bytes(),
        since_ms in moment(), usage in option::of(usage()), refused: u64, waited_ms: u64) -> ProcessState
    {
        ProcessState { pid, name, labels, held, undrawn, since_ms, usage, refused, waited_ms }
    }
}

prop_compose! {
    fn tenant()(name in name(), guarantee in bytes(), ceiling in bytes(), charged in bytes(), refused: u64,
        waited_ms: u64) -> TenantState
    {
        TenantState { name, guarantee, ceiling, charged, refused, waited_ms }
    }
}

prop_compose! {
    fn queued()(pid: u32, name in name(), tenant in name(), bytes in bytes(), priority: u8, since_ms in moment())
        -> QueuedState
    {
        QueuedState { pid, name, tenant, bytes, priority, since_ms }
    }
}

prop_compose! {
    fn refusal()(at_ms in moment(), pid: u32, name in name(), tenant in name(), reason in name(), requested in bytes(),
        available in bytes(), limit in bytes()) -> RefusalState
    {
        RefusalState { at_ms, pid, name, tenant, reason, requested, available, limit, explanation: String::new() }
    }
}

prop_compose! {
    fn figures()(ordinal in option::of(0u32..100), uuid in name(), name in name(), total in bytes(), limit in bytes(),
        held in bytes(), undrawn in bytes(), cached in option::of(bytes()), unmanaged in bytes(),
        driver_free in option::of(bytes())) -> LedgerState
    {
        let mut ledger = LedgerState { uuid, ordinal, name, total, limit, held, undrawn, cached, unmanaged, driver_free,
            ..LedgerState::default() };
        ledger.free = ledger.free();
        ledger
    }
}

prop_compose! {
    fn ledger()(figures in figures(), processes in vec(process(), 0..12), tenants in vec(tenant(), 0..5),
        waiting in vec(queued(), 0..5), refused in reasons(), refusals in vec(refusal(), 0..5),
        (count, sum_seconds) in (any::<u64>(), 0.0..1e9f64)) -> LedgerState
    {
        let waits = WaitState { buckets: vec![WaitBucket { le_seconds: 1.0, count }], sum_seconds, count };
        LedgerState { processes, tenants, waiting, refused, refusals, waits, ..figures }
    }
}

prop_compose! {
    fn unreadable()(uuid in name(), ordinal in option::of(0u32..100), name in option::of(name()),
        total in option::of(bytes()), error in "\\PC{0,80}") -> UnreadableLedger
    {
        UnreadableLedger { uuid, ordinal, name, total, reason: UnreadableReason::Corrupt, error }
    }
}

prop_compose! {
    fn states()(devices in vec(prop_oneof![3 => ledger().prop_map(DeviceState::Readable),
            1 => unreadable().prop_map(DeviceState::Unreadable)], 0..6),
        folder in name(), folder_error in option::of(name()), driver in option::of(name()), no_gpu in option::of(name()))
        -> State
    {
        let mut state = State::default();
        (state.at_ms, state.folder, state.folder_error) = (NOW, folder, folder_error);
        (state.driver, state.no_gpu, state.devices) = (driver, no_gpu, devices);
        state
    }
}

fn keys() -> impl Strategy<Value = Vec<KeyCode>> {
    let codes = [
        KeyCode::Tab,
        KeyCode::BackTab,
        KeyCode::Up,
        KeyCode::Down,
        KeyCode::PageUp,
        KeyCode::PageDown,
        KeyCode::Home,
        KeyCode::End,
        KeyCode::Enter,
        KeyCode::Backspace,
        KeyCode::F(1),
    ];
    let characters = "12345sSrz?/ pgGjkae\u{1b}".chars().map(KeyCode::Char);
    vec(prop::sample::select(codes.into_iter().chain(characters).collect::<Vec<_>>()), 0..24)
}

fn press(app: &mut App, code: KeyCode) -> Action {
    app.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn app(state: &State) -> App {
    let mut app = App::new(Duration::from_secs(1));
    app.sample(state.clone());
    app
}

/// Draws a frame and returns its lines.
fn drawn(app: &mut App, (columns, rows): (u16, u16), theme: Theme) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("it cannot fail");
    terminal.draw(|frame| view::draw(frame, app, theme)).expect("it cannot fail");
    let buffer = terminal.backend().buffer();
    let line = |y: u16| (0..columns).map(|x| buffer[(x, y)].symbol()).collect();
    (0..rows).map(line).collect()
}

/// Returns every size in a text, as it is printed: a number and a unit.
fn sizes(text: &str) -> Vec<String> {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let words: Vec<&str> = text.split(|c: char| c.is_whitespace() || "();,:[]".contains(c)).collect();
    let pairs = words.windows(2).filter(|pair| UNITS.contains(&pair[1]) && pair[0].parse::<f64>().is_ok());
    pairs.map(|pair| pair.join(" ")).collect()
}

/// Returns every size that a state has, as it is printed.
fn told(state: &State) -> HashSet<String> {
    let mut told = HashSet::new();
    let mut tell = |bytes: u64| told.insert(Bytes(bytes).to_string());
    for device in &state.devices {
        match device {
            DeviceState::Unreadable(ledger) => ledger.total.into_iter().for_each(|total| _ = tell(total)),
            DeviceState::Readable(ledger) => {
                let LedgerState { total, limit, held, undrawn, unmanaged, free, .. } = ledger;
                [total, limit, held, undrawn, unmanaged, free].into_iter().for_each(|&bytes| _ = tell(bytes));
                ledger.cached.into_iter().chain(ledger.driver_free).for_each(|bytes| _ = tell(bytes));
                for process in &ledger.processes {
                    tell(process.held);
                    tell(process.undrawn);
                    if let Some(usage) = &process.usage {
                        [usage.live, usage.cached, usage.peak].into_iter().for_each(|bytes| _ = tell(bytes));
                        usage.holders.iter().for_each(|holder| _ = tell(holder.live));
                    }
                }
                for tenant in &ledger.tenants {
                    [tenant.charged, tenant.guarantee, tenant.ceiling].into_iter().for_each(|bytes| _ = tell(bytes));
                }
                ledger.waiting.iter().for_each(|queued| _ = tell(queued.bytes));
                for refusal in &ledger.refusals {
                    let sizes = [refusal.requested, refusal.available, refusal.limit];
                    sizes.into_iter().for_each(|bytes| _ = tell(bytes));
                }
            }
        }
    }
    told
}

/// Returns the state with names in which no size can be read.
fn plainly_named(mut state: State) -> State {
    let plain = |text: &mut String| text.retain(|c| c.is_ascii_lowercase());
    for device in &mut state.devices {
        match device {
            DeviceState::Unreadable(ledger) => {
                plain(&mut ledger.error);
                plain(&mut ledger.uuid);
                ledger.name.iter_mut().for_each(plain);
            }
            DeviceState::Readable(ledger) => {
                plain(&mut ledger.uuid);
                plain(&mut ledger.name);
                let refused = std::mem::take(&mut ledger.refused).into_iter();
                ledger.refused = refused
                    .map(|(mut reason, count)| {
                        plain(&mut reason);
                        (reason, count)
                    })
                    .collect();
                for process in &mut ledger.processes {
                    plain(&mut process.name);
                    process.labels.iter_mut().for_each(plain);
                    let holders = process.usage.iter_mut().flat_map(|usage| &mut usage.holders);
                    holders.for_each(|holder| plain(&mut holder.tag));
                }
                for tenant in &mut ledger.tenants {
                    plain(&mut tenant.name);
                }
                ledger.waiting.iter_mut().for_each(|queued| _ = [&mut queued.name, &mut queued.tenant].map(plain));
                for refusal in &mut ledger.refusals {
                    [&mut refusal.name, &mut refusal.tenant, &mut refusal.reason].into_iter().for_each(plain);
                }
            }
        }
    }
    [&mut state.folder].into_iter().for_each(plain);
    [&mut state.folder_error, &mut state.driver, &mut state.no_gpu].into_iter().flatten().for_each(plain);
    state
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn no_state_no_size_and_no_key_is_too_much(state in states(), later in states(), keys in keys(),
        columns in 1u16..=200, rows in 1u16..=60, colours: bool, unicode: bool)
    {
        let theme = Theme { colours, unicode };
        let mut app = App::new(Duration::from_secs(1));
        drawn(&mut app, (columns, rows), theme);
        app.sample(state);
        for key in keys {
            if press(&mut app, key) == Action::Continue {
                for line in drawn(&mut app, (columns, rows), theme) {
                    prop_assert!(!line.chars().any(is_unsafe_to_print), "{:?}", line);
                }
            }
        }
        app.sample(later);
        drawn(&mut app, (columns, rows), theme);
        drawn(&mut app, (80, 24), theme);
    }

    #[test]
    fn m1_every_size_in_a_frame_is_the_state_s(state in states().prop_map(plainly_named), tab in 0usize..5,
        columns in 1u16..=200, rows in 1u16..=60)
    {
        let told = told(&state);
        let mut app = app(&state);
        (0..tab).for_each(|_| _ = press(&mut app, KeyCode::Tab));
        let frame = drawn(&mut app, (columns, rows), Theme::default());
        for line in frame.into_iter().chain(once::lines(&state, columns.max(24).into())) {
            for size in sizes(&line) {
                prop_assert!(told.contains(&size), "{size} in {line:?}");
            }
            let is_cut = |word: &str| word.ends_with('~') && word.contains(|c: char| c.is_ascii_digit());
            prop_assert!(!line.split_whitespace().any(is_cut), "{line:?}");
        }
    }

    #[test]
    fn m1_a_wide_frame_has_every_row_and_every_figure(state in states().prop_map(plainly_named)) {
        let text = once::lines(&state, 4000).join("\n");
        for process in state.devices.iter().filter_map(DeviceState::ledger).flat_map(|ledger| &ledger.processes) {
            let figures = [process.pid.to_string(), Bytes(process.held).to_string(), Bytes(process.undrawn).to_string()];
            let has = |line: &str| figures.iter().all(|figure| line.contains(figure.as_str()));
            prop_assert!(text.lines().any(has), "{process:?}\n{text}");
        }
        for unreadable in state.devices.iter().filter(|device| device.ledger().is_none()) {
            prop_assert!(text.contains("UNREADABLE (corrupt)"), "{unreadable:?}\n{text}");
        }
        prop_assert!(!text.contains("not told") || state.devices.iter().any(|device| device.ledger().is_some()));
    }

    #[test]
    fn text_of_others_never_reaches_a_terminal_as_control(state in states(), columns in 24usize..200) {
        for line in once::lines(&state, columns) {
            prop_assert!(!line.chars().any(is_unsafe_to_print), "{line:?}");
            prop_assert!(super::text::width(&line) <= columns, "{line:?} in {columns}");
        }
    }

    #[test]
    fn sorting_and_filtering_keep_exactly_the_right_rows(state in states(), table in 0usize..4, steps in 0usize..12,
        reverse: bool, filter in "[a-z0-9]{0,2}")
    {
        let table = Table::ALL[table];
        let mut app = app(&state);
        while app.tab() != Tab::Of(table) {
            press(&mut app, KeyCode::Tab);
        }
        (0..steps).for_each(|_| _ = press(&mut app, KeyCode::Char('s')));
        if reverse {
            press(&mut app, KeyCode::Char('r'));
        }
        press(&mut app, KeyCode::Char('/'));
        filter.chars().for_each(|c| _ = press(&mut app, KeyCode::Char(c)));
        press(&mut app, KeyCode::Enter);
        prop_assert_eq!(app.filter(), &filter);
        let shown = app.rows(table);
        let matches = |row: &Row| {
            let cells = row.cells.iter().map(|cell| &cell.text).chain([&row.more]);
            cells.into_iter().any(|text| text.to_lowercase().contains(&filter))
        };
        let mut expected: Vec<Row> = table.rows(&state).into_iter().filter(matches).collect();
        prop_assert_eq!(shown.len(), expected.len());
        for row in &shown {
            let at = expected.iter().position(|other| other == row);
            prop_assert!(at.is_some(), "{:?} is shown and should not be", row);
            expected.remove(at.unwrap_or(0));
        }
        let sort = app.sort(table);
        for pair in shown.windows(2) {
            let in_order = match (&pair[0].cells[sort.column].key, &pair[1].cells[sort.column].key) {
                (Key::Number(one), Key::Number(other)) => if sort.descending { one >= other } else { one <= other },
                (Key::Text(one), Key::Text(other)) => if sort.descending { one >= other } else { one <= other },
                (_, after) => *after == Key::Unknown,
            };
            prop_assert!(in_order, "{:?}", pair);
        }
    }

    #[test]
    fn a_pause_shows_one_moment_until_it_ends(first in states(), second in states()) {
        let mut app = app(&first);
        press(&mut app, KeyCode::Char(' '));
        app.sample(second.clone());
        prop_assert_eq!(app.state(), Some(&first));
        press(&mut app, KeyCode::Char('p'));
        prop_assert_eq!(app.state(), Some(&second));
    }
}

/// Returns a state with one process for each of these pids and sizes.
fn holding(processes: &[(u32, u64)]) -> State {
    let process = |&(pid, held)| ProcessState { pid, held, name: format!("p{pid}"), ..ProcessState::default() };
    let processes = processes.iter().map(process).collect();
    let mut state = State::default();
    let ledger = LedgerState { ordinal: Some(0), uuid: "GPU-1".into(), processes, ..LedgerState::default() };
    state.devices.push(DeviceState::Readable(ledger));
    state
}

#[test]
fn the_cursor_stays_on_its_row() {
    let mut app = app(&holding(&[(1, 30), (2, 20), (3, 10)]));
    press(&mut app, KeyCode::Down);
    let selected = |app: &App| app.rows(Table::Processes)[app.cursor()].cells[1].text.clone();
    assert_eq!(selected(&app), "2");
    app.sample(holding(&[(1, 30), (2, 50), (3, 10), (4, 40)]));
    assert_eq!((selected(&app), app.cursor()), ("2".into(), 0));
    app.sample(holding(&[(1, 30)]));
    assert_eq!(selected(&app), "1", "a row that is gone is left for one that is there");
}

#[test]
fn m1_a_device_that_cannot_be_read_has_no_figures_in_any_frame() {
    let mut state = State::default();
    let error = "/ledgers/GPU-1.ledger is corrupt: remove it".to_owned();
    let reason = UnreadableReason::Corrupt;
    let ledger =
        UnreadableLedger { uuid: "GPU-1".into(), ordinal: Some(0), reason, error, ..UnreadableLedger::default() };
    state.devices.push(DeviceState::Unreadable(ledger));
    for (columns, rows) in [(80, 24), (40, 10), (24, 6), (200, 60)] {
        for tab in 0..5 {
            let mut app = app(&state);
            (0..tab).for_each(|_| _ = press(&mut app, KeyCode::Tab));
            let text = drawn(&mut app, (columns, rows), Theme::default()).join("\n");
            assert!(text.contains("UNREADABLE"), "{text}");
            assert!(!text.contains("0 processes") && !text.contains("Processes 0"), "{text}");
            assert!(sizes(&text).is_empty() && !text.contains("[."), "{text}");
        }
    }
    let text = once::lines(&state, 100).join("\n");
    assert!(text.contains("/ledgers/GPU-1.ledger is corrupt: remove it") && text.contains("unknown of gpu0"), "{text}");
}

#[test]
fn eighty_by_twenty_four_has_devices_rows_and_keys() {
    let mut app = app(&holding(&[(1, 30 << 30), (2, 20 << 30)]));
    let lines = drawn(&mut app, (80, 24), Theme::default());
    let text = lines.join("\n");
    for part in ["gpu0", "H held", ". free", "[1 Processes 2]", "HELDv", "30 GiB", "20 GiB", "q quit", "/ filter"] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
    let small = drawn(&mut app, (24, 6), Theme::default()).join("\n");
    assert!(small.contains("gpu0") && small.contains("q quit") && !small.contains("too small"), "{small}");
    assert!(drawn(&mut app, (23, 6), Theme::default()).join(" ").contains("too small"));
}

#[test]
fn frames_without_colours_say_as_much() {
    let mut state = holding(&[(1, 1 << 30)]);
    if let DeviceState::Readable(ledger) = &mut state.devices[0] {
        (ledger.total, ledger.limit, ledger.held, ledger.undrawn) = (8 << 30, 6 << 30, 3 << 30, 1 << 30);
        (ledger.cached, ledger.unmanaged, ledger.free) = (Some(1 << 30), 1 << 30, 3 << 30);
    }
    let mut app = app(&state);
    let [with, without] = [true, false].map(|colours| drawn(&mut app, (80, 24), Theme { colours, unicode: true }));
    assert_eq!(with, without, "colours repeat what letters say");
    let text = without.join("\n");
    assert!(["HH", "CC", "SS", "UU", "..", "|"].iter().all(|letters| text.contains(letters)), "{text}");
}

#[test]
fn keys_end_close_and_suspend() {
    let mut app = app(&holding(&[]));
    let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
    assert_eq!([app.key(control('c')), app.key(control('z'))], [Action::Quit, Action::Suspend]);
    assert_eq!([KeyCode::Char('q'), KeyCode::Esc].map(|code| press(&mut app, code)), [Action::Quit; 2]);
    press(&mut app, KeyCode::Char('?'));
    assert!(drawn(&mut app, (80, 24), Theme::default())[0].contains("keys"));
    assert_eq!(press(&mut app, KeyCode::Esc), Action::Continue, "it closes the help");
    press(&mut app, KeyCode::Char('/'));
    press(&mut app, KeyCode::Char('q'));
    assert_eq!(app.filter(), "q");
    assert_eq!((press(&mut app, KeyCode::Esc), app.filter()), (Action::Continue, ""), "it takes the filter back");
}

#[test]
fn a_sample_that_does_not_come_is_told() {
    let mut app = app(&holding(&[]));
    app.tick(4_000);
    assert_eq!(app.late(), None);
    app.tick(9_000);
    assert!(drawn(&mut app, (80, 24), Theme::default()).join("\n").contains("no sample came for 9 s"));
}
