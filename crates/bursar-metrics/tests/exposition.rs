//! The exposition formats, read back by a strict reader of our own and, where it is there, by promtool.
#![forbid(unsafe_code)]

use bursar_metrics::{DeviceState, ExpositionFormat, HolderState, LedgerState, ProcessState, QueuedState, State};
use bursar_metrics::{TenantState, UnreadableLedger, UnreadableReason, UsageState, WaitBucket, WaitState};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A series and its value.
type Series = BTreeMap<(String, BTreeMap<String, String>), f64>;

/// Reads a text, and panics where a scraper would refuse it. Returns the series and the types of families.
fn read(text: &str, format: ExpositionFormat) -> (Series, BTreeMap<String, String>) {
    let (mut series, mut types) = (Series::new(), BTreeMap::new());
    let mut family = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "# EOF" {
            assert!(format == ExpositionFormat::OpenMetrics && lines.peek().is_none(), "EOF ends the text");
            return (series, types);
        }
        if let Some(comment) = line.strip_prefix("# ") {
            let (kind, rest) = comment.split_once(' ').expect("a kind");
            let (name, value) = rest.split_once(' ').expect("a name");
            assert!(["HELP", "TYPE", "UNIT"].contains(&kind), "{line}");
            if family != name {
                assert!(!types.contains_key(name), "{name} is not in one piece");
                name.clone_into(&mut family);
            }
            match kind {
                "TYPE" => assert_eq!(types.insert(name.to_owned(), value.to_owned()), None, "{name}"),
                "UNIT" => assert!(name.ends_with(&format!("_{value}")), "{line}"),
                _ => assert!(value.ends_with('.'), "help is a sentence: {line}"),
            }
            continue;
        }
        let (name, labels, value) = sample(line);
        assert!(name.starts_with(&family), "{name} after {family}");
        let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
        assert_eq!(series.insert((name, labels), value), None, "twice: {line}");
    }
    assert_eq!(format, ExpositionFormat::Text, "OpenMetrics ends with EOF");
    (series, types)
}

/// Splits a line of a sample, undoing its escapes.
fn sample(line: &str) -> (String, BTreeMap<String, String>, &str) {
    let end = line.find(['{', ' ']).expect("a value");
    let (name, mut rest) = line.split_at(end);
    assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'), "{line}");
    let mut labels = BTreeMap::new();
    if rest.starts_with('{') {
        while !rest.starts_with('}') {
            let (label, after) = rest[1..].split_once("=\"").expect("a label");
            let (mut value, mut characters) = (String::new(), after.char_indices());
            let end = loop {
                match characters.next().expect("a closing quote") {
                    (at, '"') => break at,
                    (_, '\\') => value.push(match characters.next().expect("an escape").1 {
                        'n' => '\n',
                        same @ ('\\' | '"') => same,
                        other => panic!("\\{other} is no escape"),
                    }),
                    (_, other) => value.push(other),
                }
            };
            assert_eq!(labels.insert(label.to_owned(), value), None, "{line}");
            rest = &after[end + 1..];
        }
        rest = &rest[1..];
    }
    (name.to_owned(), labels, rest.strip_prefix(' ').expect("one blank"))
}

fn device(processes: Vec<ProcessState>, tenants: Vec<TenantState>) -> DeviceState {
    let refused = [("limit".to_owned(), 3), ("queue".to_owned(), 0)].into();
    let buckets = vec![WaitBucket { le_seconds: 0.1, count: 1 }, WaitBucket { le_seconds: 5.0, count: 2 }];
    let waiting = vec![QueuedState { bytes: 7, since_ms: 1500, ..QueuedState::default() }];
    DeviceState::Readable(LedgerState {
        uuid: "GPU-1".into(),
        ordinal: Some(0),
        name: "card".into(),
        total: 100,
        limit: 90,
        held: 30,
        undrawn: 20,
        unmanaged: 10,
        free: 40,
        cached: Some(5),
        processes,
        tenants,
        waiting,
        refused,
        waits: WaitState { buckets, sum_seconds: 9.5, count: 3 },
        ..LedgerState::default()
    })
}

fn state(devices: Vec<DeviceState>) -> State {
    let mut state = State::default();
    (state.at_ms, state.devices) = (1_700_000_000_123, devices);
    state
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let own = [("device", "gpu0"), ("uuid", "GPU-1")];
    own.iter().chain(pairs).map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn m1_every_figure_is_exposed_as_it_is_in_both_formats() {
    let holders = vec![HolderState { tag: "weights".into(), live: 6 }];
    let usage = Some(UsageState { live: 8, cached: 5, peak: 9, holders, published_ms: 0 });
    let process = ProcessState { pid: 7, name: "train".into(), held: 13, usage, refused: 2, ..ProcessState::default() };
    let tenant = TenantState { charged: 50, ceiling: 60, waited_ms: 2500, ..TenantState::default() };
    let ceiling = (1 << 48) - 1;
    let free = TenantState { name: "free".into(), charged: 1, ceiling, ..TenantState::default() };
    let state = state(vec![device(vec![process], vec![tenant, free])]);
    for format in [ExpositionFormat::Text, ExpositionFormat::OpenMetrics] {
        let (series, types) = read(&state.expose(format), format);
        let value = |name: &str, pairs: &[(&str, &str)]| series.get(&(name.to_owned(), labels(pairs))).copied();
        for (name, bytes) in [("held", 30.0), ("undrawn", 20.0), ("unmanaged", 10.0), ("free", 40.0)] {
            assert_eq!(value("bursar_device_memory_bytes", &[("state", name)]), Some(bytes));
        }
        assert_eq!(value("bursar_device_limit_bytes", &[]), Some(90.0));
        assert_eq!(value("bursar_device_cached_bytes", &[]), Some(5.0));
        let account = |kind| value("bursar_account_bytes", &[("pid", "7"), ("process", "train"), ("kind", kind)]);
        assert_eq!(["held", "live", "cached", "peak"].map(account), [13.0, 8.0, 5.0, 9.0].map(Some));
        assert_eq!(value("bursar_holder_bytes", &[("pid", "7"), ("process", "train"), ("tag", "weights")]), Some(6.0));
        assert_eq!(value("bursar_tenant_bytes", &[("tenant", "(none)"), ("kind", "charged")]), Some(50.0));
        assert_eq!(value("bursar_tenant_bytes", &[("tenant", "(none)"), ("kind", "ceiling")]), Some(60.0));
        assert_eq!(value("bursar_tenant_bytes", &[("tenant", "free"), ("kind", "charged")]), Some(1.0));
        assert_eq!(value("bursar_tenant_bytes", &[("tenant", "free"), ("kind", "ceiling")]), None, "it has none");
        assert_eq!(value("bursar_tenant_wait_seconds_total", &[("tenant", "(none)")]), Some(2.5));
        assert_eq!(value("bursar_refusals_total", &[("reason", "limit")]), Some(3.0));
        assert_eq!(value("bursar_refusals_total", &[("reason", "queue")]), Some(0.0), "a rate needs the zero");
        assert_eq!((value("bursar_queue_length", &[]), value("bursar_queue_bytes", &[])), (Some(1.0), Some(7.0)));
        assert_eq!(value("bursar_queue_oldest_timestamp_seconds", &[]), Some(1.5));
        assert_eq!(value("bursar_wait_seconds_bucket", &[("le", "+Inf")]), Some(3.0));
        assert_eq!(value("bursar_wait_seconds_sum", &[]), Some(9.5));
        let bound = if format == ExpositionFormat::Text { "5" } else { "5.0" };
        assert_eq!(value("bursar_wait_seconds_bucket", &[("le", bound)]), Some(2.0));
        let refusals = if format == ExpositionFormat::Text { "bursar_refusals_total" } else { "bursar_refusals" };
        assert_eq!(types.get(refusals).map(String::as_str), Some("counter"));
        assert_eq!(types["bursar_wait_seconds"], "histogram");
    }
}

#[test]
fn m1_what_cannot_be_read_has_no_figures() {
    let ledger = UnreadableLedger {
        uuid: "GPU-1".into(),
        ordinal: Some(0),
        reason: UnreadableReason::OtherUser,
        ..UnreadableLedger::default()
    };
    let text = state(vec![DeviceState::Unreadable(ledger)]).expose(ExpositionFormat::Text);
    let (series, _) = read(&text, ExpositionFormat::Text);
    assert_eq!(series[&("bursar_ledger_readable".to_owned(), labels(&[]))], 0.0);
    assert_eq!(series[&("bursar_ledger_unreadable".to_owned(), labels(&[("reason", "other_user")]))], 1.0);
    let about_it = series.keys().filter(|(_, labels)| labels.contains_key("uuid"));
    assert_eq!(about_it.count(), 2, "nothing else is said of it: {text}");
}

#[test]
fn m1_the_number_of_series_is_bounded() {
    let process = |pid: u32| {
        let holders = (0..4).map(|n| HolderState { tag: format!("t{n}"), live: 1 }).collect();
        let usage = Some(UsageState { holders, ..UsageState::default() });
        ProcessState { pid, name: format!("p{pid}"), usage, ..ProcessState::default() }
    };
    let tenant = |n: u64| TenantState { name: format!("t{n}"), charged: n, ..TenantState::default() };
    let state = state(vec![device((0..256).map(process).collect(), (0..1300).map(tenant).collect())]);
    let (series, _) = read(&state.expose(ExpositionFormat::Text), ExpositionFormat::Text);
    assert!(series.len() < 4000, "{} series", series.len());
    let charged =
        |tenant: &str| series[&("bursar_tenant_bytes".to_owned(), labels(&[("tenant", tenant), ("kind", "charged")]))];
    assert_eq!((charged("t1299"), charged("(other)")), (1299.0, (0..1172).sum::<u64>() as f64));
    let tenants: BTreeSet<&String> = series.keys().filter_map(|(_, labels)| labels.get("tenant")).collect();
    assert_eq!(tenants.len(), 129);
}

proptest! {
    #[test]
    fn m1_names_are_escaped_and_duplicates_added_up(
        names in proptest::collection::vec("[a\\\\\"\n{}=,#\u{e4}\u{1f600} \u{1b}\r\u{9b}]{0,6}", 1..6),
        open_metrics in any::<bool>(),
    ) {
        let format = if open_metrics { ExpositionFormat::OpenMetrics } else { ExpositionFormat::Text };
        let process = |name: &String| ProcessState { pid: 1, name: name.clone(), held: 3, ..ProcessState::default() };
        let tenant = |name: &String| TenantState { name: name.clone(), charged: 3, ..TenantState::default() };
        let state = state(vec![device(names.iter().map(process).collect(), names.iter().map(tenant).collect())]);
        let text = state.expose(format);
        prop_assert!(!text.contains(|c: char| c != '\n' && c.is_control()), "{:?}", text);
        let (series, _) = read(&text, format);
        let printable = |name: &String| name.replace(|c: char| c != '\n' && c.is_control(), "\u{fffd}");
        for name in names.iter().map(printable) {
            let same = names.iter().filter(|other| printable(other) == name).count() as f64;
            let pairs = [("pid", "1"), ("process", name.as_str()), ("kind", "held")];
            prop_assert_eq!(series.get(&("bursar_account_bytes".to_owned(), labels(&pairs))), Some(&(3.0 * same)));
        }
    }
}
