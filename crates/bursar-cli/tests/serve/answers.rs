//! The answers of the server, its access, its errors and its end.

use crate::common::schema::{block, wrong};
use crate::rig::{Actor, PATIENCE, Scene, Serving, ask};
use bursar::sim::Random;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

pub(crate) const TRIALS: &[(&str, fn())] = &[
    ("m1_totals_are_those_of_ledger_show_at_every_sample", totals_are_those_of_ledger_show),
    ("m1_an_unreadable_ledger_is_shown_as_such_and_hides_no_other", an_unreadable_ledger_is_shown_as_such),
    ("m3_it_reads_and_makes_nothing", it_reads_and_makes_nothing),
    ("m3_every_path_has_its_answer", every_path_has_its_answer),
    ("m3_a_token_is_asked_for", a_token_is_asked_for),
    ("m3_a_token_that_cannot_be_used_is_named", a_token_that_cannot_be_used_is_named),
    ("m3_another_host_s_name_is_not_answered_for", another_host_s_name_is_not_answered_for),
    ("m3_it_listens_where_it_was_told_and_says_what_that_means", it_listens_where_it_was_told),
    ("m3_an_address_in_use_is_an_error_with_a_remedy", an_address_in_use_is_an_error),
    ("m3_signals_end_it_cleanly", signals_end_it_cleanly),
    ("m3_history_is_kept_across_restarts_and_kills", history_is_kept_across_restarts),
    ("m3_a_damaged_history_is_refused", a_damaged_history_is_refused),
    ("dashboards_and_alerts_name_metrics_that_exist", dashboards_and_alerts),
    ("the_output_and_the_answers_are_as_documented", the_answers_are_as_documented),
];

const CLI: &str = include_str!("../../../../docs/cli.md");
const GUIDE: &str = include_str!("../../../../docs/guide/07-watching.md");

/// Returns the only device of a list.
fn device(list: &Value) -> &Value {
    let devices = list["devices"].as_array().expect("a list");
    assert_eq!(devices.len(), 1, "{list}");
    &devices[0]
}

/// Returns the figures that the state and `bursar ledger show` have in common.
fn figures(device: &Value) -> Value {
    let pick = |item: &Value, names: &[&str]| -> Value {
        names.iter().map(|name| ((*name).to_owned(), item[*name].clone())).collect::<serde_json::Map<_, _>>().into()
    };
    let all = |list: &str, names: &[&str]| -> Value {
        let mut items: Vec<Value> =
            device[list].as_array().expect("a list").iter().map(|item| pick(item, names)).collect();
        items.sort_by_key(Value::to_string);
        items.into()
    };
    let mut figures =
        pick(device, &["ordinal", "uuid", "name", "total", "limit", "held", "undrawn", "unmanaged", "refused"]);
    figures["processes"] = all("processes", &["pid", "name", "labels", "held", "undrawn", "refused"]);
    figures["tenants"] = all("tenants", &["name", "guarantee", "ceiling", "charged", "refused"]);
    figures["waiting"] = all("waiting", &["pid", "name", "tenant", "bytes"]);
    figures["refusals"] = all("refusals", &["pid", "name", "tenant", "reason", "requested", "available", "limit"]);
    figures
}

fn totals_are_those_of_ledger_show() {
    let (scene, mut random) = (Scene::new(), Random::new(5));
    let server = scene.serve(&["--listen", "127.0.0.1:0", "--interval", "100ms"]);
    let mut actors: Vec<Actor> = (0..3).map(|_| scene.actor("actor")).collect();
    for step in 0..30 {
        let size = format!("{}KiB", 4 * (1 + random.below(100_000)));
        match random.below(8) {
            0 => actors[random.index(3)].tell("release"),
            1 => actors[random.index(3)].tell(&format!("reserve {size}")),
            2 => actors[random.index(3)].tell("refuse 15.9GiB"),
            3 => actors[random.index(3)].tell(&format!("outside {size}")),
            4 => drop(scene.json(&["ledger", "limit", "0", ["15GiB", "16GiB"][random.index(2)]])),
            5 if step > 20 => actors[random.index(3)].tell("wait 16GiB"),
            _ => actors[random.index(3)].tell(&format!("hold {size}")),
        }
        let (state, shown) = (server.next_state(), scene.json(&["ledger", "show"]));
        assert_eq!(figures(device(&state)), figures(device(&shown)), "step {step}");
        let metrics = server.get("/metrics", "").body;
        for (name, value) in [("held", &device(&shown)["held"]), ("undrawn", &device(&shown)["undrawn"])] {
            let line = format!(",state=\"{name}\"}} {value}\n");
            assert!(metrics.contains(&line), "step {step}: {line} is not in {metrics}");
        }
    }
    // Of each second the history has the fullest moment: once nothing changes any more, its last is what there is.
    let held = server.next_state()["devices"][0]["held"].clone();
    until(|| device(&history(&server))["held"].as_array().and_then(|held| held.last()) == Some(&held));
}

/// Waits until something holds.
fn until(mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "it never holds");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn history(server: &Serving) -> Value {
    serde_json::from_str(&server.get("/api/history", "").body).expect("JSON")
}

fn an_unreadable_ledger_is_shown_as_such() {
    let scene = Scene::new();
    let mut actor = scene.actor("actor");
    actor.tell("hold 1GiB");
    let foreign = scene.folder.ledgers().join("GPU-07070707-0707-0707-0707-070707070707.ledger");
    std::fs::write(&foreign, b"no ledger").expect("room");
    std::fs::set_permissions(&foreign, std::fs::Permissions::from_mode(0o600)).expect("ours");
    let server = scene.serve(&["--listen", "127.0.0.1:0", "--interval", "100ms"]);
    let state = server.next_state();
    let (own, other) = (&state["devices"][0], &state["devices"][1]);
    assert_eq!((&own["status"], &own["held"]), (&"readable".into(), &(1_u64 << 30).into()));
    assert_eq!(
        (&other["status"], &other["reason"], &other["held"]),
        (&"unreadable".into(), &"corrupt".into(), &Value::Null)
    );
    let metrics = server.get("/metrics", "").body;
    let about: Vec<&str> = metrics.lines().filter(|line| line.contains("GPU-07070707")).collect();
    assert_eq!(about.len(), 2, "that it cannot be read, and why: {about:?}");
    assert!(about[0].starts_with("bursar_ledger_readable") && about[0].ends_with(" 0"), "{about:?}");
    // And the scene's own ledger, once it is damaged while it is watched.
    let file = scene.folder.ledgers().join(format!("{}.ledger", own["uuid"].as_str().expect("text")));
    drop(actor);
    std::fs::write(&file, b"damaged").expect("ours");
    let state = server.next_state();
    assert_eq!(state["devices"][0]["status"], "unreadable", "{state}");
    // A gap, and no zero.
    until(|| history(&server)["devices"][0]["held"].as_array().and_then(|held| held.last()) == Some(&Value::Null));
    let held = history(&server)["devices"][0]["held"].clone();
    assert!(held.as_array().is_some_and(|held| held.iter().all(|held| *held != 0)), "{held}");
}

fn it_reads_and_makes_nothing() {
    let scene = Scene::new();
    let server = scene.serve(&["--listen", "127.0.0.1:0", "--interval", "100ms"]);
    for path in ["/", "/metrics", "/api/state", "/api/history", "/healthz"] {
        assert_eq!(server.get(path, "").status, 200, "{path}");
    }
    server.next_state();
    assert_eq!(std::fs::read_dir(scene.folder.ledgers()).expect("it is there").count(), 0, "no ledger was made");
}

fn every_path_has_its_answer() {
    let scene = Scene::new();
    let server = scene.serve(&["--listen", "127.0.0.1:0"]);
    let text = server.get("/metrics", "");
    assert!(text.head.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{text:?}");
    let open = server.get("/metrics", "Accept: application/openmetrics-text;version=1.0.0\r\n");
    assert!(open.head.contains("Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"));
    assert!(open.body.ends_with("# EOF\n") && !text.body.contains("EOF"));
    let page = server.get("/", "");
    assert!(
        page.head.contains("Content-Type: text/html; charset=utf-8\r\n") && page.body.starts_with("<!doctype html>")
    );
    assert_eq!(page.body.matches("{{").count() + page.body.matches("}}<").count(), 0, "every place is filled");
    let policy = page.head.lines().find_map(|line| line.strip_prefix("Content-Security-Policy: ")).expect("a policy");
    let nonce = policy.split("'nonce-").nth(1).and_then(|rest| rest.split('\'').next()).expect("a nonce");
    assert!(page.body.contains(&format!("<script nonce=\"{nonce}\">")) && !policy.contains("unsafe"), "{policy}");
    assert!(!server.get("/", "").head.contains(nonce), "a nonce is used once");
    for outside in
        ["http://", "https://", "//cdn", "@import", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"]
    {
        assert!(!page.body.contains(outside), "the page has {outside}");
    }
    assert_eq!(server.get("/favicon.ico", "").status, 404);
    assert_eq!(server.get("/../etc/passwd", "").status, 404);
    for (wrong, why) in [
        ("by=colour", "by is process or tenant"),
        ("points=many", "points is a number from 1 to 2000"),
        ("points=0", "points is a number from 1 to 2000"),
        ("points=2001", "points is a number from 1 to 2000"),
        ("points=99999999999999999999", "points is a number from 1 to 2000"),
        ("since_ms=-1", "since_ms is a number of milliseconds since 1970"),
        ("until_ms=%00", "until_ms is a number of milliseconds since 1970"),
        ("since_ms=5&until_ms=4", "since_ms is after until_ms"),
    ] {
        let answer = server.get(&format!("/api/history?{wrong}"), "");
        assert_eq!((answer.status, answer.body.trim_end()), (400, why), "{wrong}");
    }
    for right in
        ["by=tenant&points=1", "points=2000", "since_ms=5&until_ms=5", "uuid=nobody", "since_ms=18446744073709551615"]
    {
        assert_eq!(server.get(&format!("/api/history?{right}"), "").status, 200, "{right}");
    }
    let post = ask(server.address, "POST /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!((post.status, post.head.contains("Allow: GET, HEAD")), (405, true));
}

const TOKEN: &str = "c0rrect-horse_battery.staple";

fn a_token_is_asked_for() {
    let scene = Scene::new();
    let file = scene.folder.file("token", format!("{TOKEN}\n"));
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("ours");
    let server = scene.serve(&["--listen", "127.0.0.1:0", "--token-file", &file]);
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    for path in ["/metrics", "/api/state", "/api/history", "/nothing"] {
        let refused = server.get(path, "");
        assert_eq!(refused.status, 401, "{path}");
        assert!(
            refused.head.contains("WWW-Authenticate: Bearer realm=\"bursar\"\r\n")
                || refused.head.ends_with("\"bursar\"")
        );
        for wrong in ["", "x", &TOKEN[1..], &format!("{TOKEN}x"), &TOKEN.to_uppercase()] {
            assert_eq!(server.get(path, &bearer(wrong)).status, 401, "{path} {wrong}");
        }
        assert_eq!(server.get(path, &format!("Authorization: Basic {TOKEN}\r\n")).status, 401);
    }
    assert_eq!(server.get("/metrics", &bearer(TOKEN)).status, 200);
    assert_eq!(server.get("/metrics", &format!("authorization: bearer {TOKEN}\r\n")).status, 200);
    assert_eq!(
        (server.get("/", "").status, server.get("/healthz", "").status),
        (200, 200),
        "there are no figures in them"
    );
    server.signal(Signal::TERM);
    let (_, said) = server.end();
    assert!(said.contains("chmod 600") && !said.contains(TOKEN), "{said}");
}

fn a_token_that_cannot_be_used_is_named() {
    let scene = Scene::new();
    let (empty, words) = (scene.folder.file("empty", "\n"), scene.folder.file("words", "two words"));
    let long = scene.folder.file("long", "x".repeat(5000));
    let absent = scene.folder.path("absent");
    for (file, said) in [(&empty, "empty"), (&words, "letters, digits"), (&long, "1024"), (&absent, "absent")] {
        let output = scene.bursar(&["serve", "--listen", "127.0.0.1:0", "--token-file", file]).output().expect("built");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(said) && error.contains("hint:"), "{error}");
    }
}

fn another_host_s_name_is_not_answered_for() {
    let scene = Scene::new();
    let server = scene.serve(&["--listen", "127.0.0.1:0"]);
    let status = |path: &str, host: &str| {
        ask(server.address, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).status
    };
    for path in ["/", "/metrics", "/api/state", "/healthz"] {
        for own in
            ["localhost", "LOCALHOST:9400", "127.0.0.1", "127.0.0.1:8080", "[::1]:9400", "localhost.", "localhost:"]
        {
            assert_eq!(status(path, own), 200, "{path} {own}");
        }
        for other in [
            "evil.example",
            "evil.example:9400",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "x.localhost",
            "gpu.localhost.:9400",
            "localhost..",
            "192.168.0.1",
            "[fe80::1]",
            "",
        ] {
            assert_eq!(status(path, other), 421, "{path} {other}");
        }
        let malformed = [
            "localhost:80:90",
            "localhost:http",
            "localhost:99999",
            "[::1",
            "[::1]x",
            "[localhost]",
            "evil.example@localhost",
            "localhost/",
            "localhost evil.example",
            ":9400",
            "::1",
        ];
        for wrong in malformed {
            assert_eq!(status(path, wrong), 400, "{path} {wrong}");
        }
    }
}

fn it_listens_where_it_was_told() {
    let scene = Scene::new();
    let server = scene.serve(&["--listen", "127.0.0.1:0"]);
    assert!(server.address.ip().is_loopback());
    server.signal(Signal::TERM);
    assert_eq!(server.end().1, "", "there is nothing to say of a loopback address");
    let server = scene.serve(&["--listen", "0.0.0.0:0"]);
    let by_name = "GET /metrics HTTP/1.1\r\nHost: gpu-box.example\r\nConnection: close\r\n\r\n";
    assert_eq!(ask(([127, 0, 0, 1], server.address.port()).into(), by_name).status, 200);
    server.signal(Signal::TERM);
    let (_, said) = server.end();
    assert!(said.contains("whoever can reach 0.0.0.0:") && said.contains("--token-file"), "{said}");
    let file = scene.folder.file("token", TOKEN);
    let server = scene.serve(&["--listen", "0.0.0.0:0", "--token-file", &file]);
    server.signal(Signal::TERM);
    let (_, said) = server.end();
    assert!(said.contains("unencrypted"), "{said}");
}

fn an_address_in_use_is_an_error() {
    let scene = Scene::new();
    let server = scene.serve(&["--listen", "127.0.0.1:0"]);
    let taken = server.address.to_string();
    for (address, status, said) in [
        (taken.as_str(), 3, "another program listens there"),
        ("nonsense", 2, "127.0.0.1:9400"),
        ("192.0.2.1:9400", 3, "no such address"),
    ] {
        let output = scene.bursar(&["serve", "--listen", address]).output().expect("the command was built");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{error}");
        assert!(error.contains(address) && error.contains(said), "{error}");
    }
}

fn signals_end_it_cleanly() {
    let scene = Scene::new();
    for signal in [Signal::INT, Signal::TERM] {
        let server = scene.serve(&["--listen", "127.0.0.1:0"]);
        let _idle = std::net::TcpStream::connect(server.address).expect("it listens");
        server.signal(signal);
        assert_eq!(server.end(), (Some(0), String::new()));
    }
}

fn history_is_kept_across_restarts() {
    let scene = Scene::new();
    let file = scene.folder.path("history");
    let arguments = ["--listen", "127.0.0.1:0", "--interval", "100ms", "--history", &file];
    let mut actor = scene.actor("actor");
    actor.tell("hold 1GiB");
    let mut first = None;
    for signal in [Signal::TERM, Signal::KILL, Signal::KILL] {
        let server = scene.serve(&arguments);
        let other = scene.bursar(&["serve", "--listen", "127.0.0.1:0", "--history", &file]).output().expect("built");
        assert!(String::from_utf8_lossy(&other.stderr).contains("in use by another process"), "{other:?}");
        server.next_state();
        server.next_state();
        let at: Vec<Value> = device(&history(&server))["at_ms"].as_array().expect("a list").clone();
        let first = first.get_or_insert_with(|| at[0].clone());
        assert_eq!(&at[0], first, "what was recorded first is still there");
        server.signal(signal);
        drop(server);
    }
}

fn a_damaged_history_is_refused() {
    let scene = Scene::new();
    let file = scene.folder.file("history", "my diary");
    let output = scene.bursar(&["serve", "--listen", "127.0.0.1:0", "--history", &file]).output().expect("built");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains(&file) && error.contains("not a history"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).expect("readable"), "my diary");
}

fn the_answers_are_as_documented() {
    let scene = Scene::new();
    let mut actor = scene.actor("actor");
    actor.tell("hold 1GiB");
    actor.tell("refuse 100GiB");
    actor.tell("wait 16GiB");
    std::fs::write(scene.folder.ledgers().join("HOST.ledger"), b"no ledger").expect("room");
    let server = scene.serve(&["--listen", "127.0.0.1:0", "--interval", "100ms"]);
    for (document, name, value) in [(CLI, "top", server.next_state()), (GUIDE, "history", history(&server))] {
        let wrong = wrong(&value, &block(document, name), "");
        assert!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
    }
    let metrics = server.get("/metrics", "").body;
    let families = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    for family in families {
        assert!(GUIDE.contains(&format!("`{family}`")), "the guide says nothing of {family}");
    }
    assert_eq!(server.started["url"], format!("http://{}/", server.address));
}

fn dashboards_and_alerts() {
    let dashboard = include_str!("../../../../docs/grafana/bursar.json");
    let parsed: Value = serde_json::from_str(dashboard).expect("a dashboard is JSON");
    let panels = parsed["panels"].as_array().expect("panels");
    assert!(panels.len() > 8 && panels.iter().all(|panel| panel["targets"][0]["expr"].is_string()));
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets"));
    for expression in targets.filter_map(|target| target["expr"].as_str()) {
        assert!(!expression.contains("vector("), "a server that is gone would read as a number: {expression}");
        for labels in expression.split("by (").skip(1).filter_map(|rest| rest.split(')').next()) {
            let labels: Vec<&str> = labels.split(", ").collect();
            let one_machines = ["device", "process", "pid"].iter().any(|label| labels.contains(label));
            assert!(!one_machines || labels.contains(&"instance"), "several machines in one: {expression}");
        }
    }
    for (document, text) in
        [("the dashboard", dashboard), ("the rules", include_str!("../../../../docs/prometheus/bursar.rules.yml"))]
    {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let named: BTreeSet<&str> = words.filter(|word| word.starts_with("bursar_")).collect();
        assert!(named.len() > 5, "{document}");
        for name in named {
            let family = name.strip_suffix("_bucket").unwrap_or(name);
            assert!(GUIDE.contains(&format!("`{family}`")), "{document} has {name}");
        }
    }
}
