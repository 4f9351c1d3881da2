//! Prometheus itself, which scrapes the server, and its tool, which reads what is written for it.

use crate::common::Folder;
use crate::rig::{PATIENCE, Scene, ask};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A trial with Prometheus and its tool.
type PrometheusTrial = fn(&Path, &Path);

pub(crate) const TRIALS: &[(&str, PrometheusTrial)] = &[
    ("m1_prometheus_scrapes_the_ledger_s_numbers", prometheus_scrapes),
    ("promtool_finds_nothing_wrong_with_the_metrics", promtool_checks_metrics),
    ("promtool_finds_nothing_wrong_with_the_alert_rules", promtool_checks_rules),
];

const RULES: &str = include_str!("../../../../docs/prometheus/bursar.rules.yml");

/// A Prometheus that runs.
struct Prometheus {
    child: Child,
    address: SocketAddr,
    _folder: Folder,
}

impl Prometheus {
    /// Starts one that scrapes an address, with its token, and evaluates our rules.
    fn start(program: &Path, target: SocketAddr, token: &str) -> Self {
        let folder = Folder::new();
        let rules = folder.file("rules.yml", RULES);
        let config = format!(
            "global: {{scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}}\n\
             rule_files: [{rules}]\n\
             scrape_configs:\n  - job_name: bursar\n    authorization: {{credentials: {token}}}\n    static_configs: [{{targets: ['{target}']}}]\n"
        );
        let config = folder.file("prometheus.yml", config);
        let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
        let child = Command::new(program)
            .arg(format!("--config.file={config}"))
            .arg(format!("--storage.tsdb.path={}", folder.path("data")))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(folder.path("said")).expect("room"))
            .spawn()
            .expect("it is there");
        let prometheus = Self { child, address, _folder: folder };
        let until = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(address).is_err() {
            assert!(Instant::now() < until, "it does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        prometheus
    }

    /// Asks a path of its interface.
    fn get(&self, path: &str) -> Value {
        let request = format!("GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address);
        let answer = ask(self.address, &request);
        serde_json::from_str(&answer.body).unwrap_or(Value::Null)
    }

    /// Returns the value of a query that has one.
    fn query(&self, query: &str) -> Option<f64> {
        let coded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let answer = self.get(&format!("/api/v1/query?query={coded}"));
        answer["data"]["result"][0]["value"][1].as_str()?.parse().ok()
    }

    /// Waits until a query has a value.
    fn until(&self, query: &str, value: f64) {
        let until = Instant::now() + PATIENCE;
        while self.query(query) != Some(value) {
            let targets = self.get("/api/v1/targets");
            assert!(Instant::now() < until, "{query} is {:?}: {targets}", self.query(query));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _status = self.child.wait();
    }
}

fn prometheus_scrapes(program: &Path, _: &Path) {
    let scene = Scene::new();
    let token = scene.folder.file("token", "scrape-me");
    let server = scene.serve(&["--listen", "127.0.0.1:0", "--interval", "100ms", "--token-file", &token]);
    let prometheus = Prometheus::start(program, server.address, "scrape-me");
    prometheus.until("up{job=\"bursar\"}", 1.0);
    let mut actor = scene.actor("actor");
    let gib = |number: u64| (number << 30) as f64;
    actor.tell("hold 3GiB");
    actor.tell("reserve 2GiB");
    actor.tell("refuse 15GiB");
    let shown = scene.json(&["ledger", "show"]);
    let device = &shown["devices"][0];
    assert_eq!((&device["held"], &device["undrawn"]), (&(3_u64 << 30).into(), &(2_u64 << 30).into()));
    prometheus.until("bursar_device_memory_bytes{device=\"gpu0\",state=\"held\"}", gib(3));
    prometheus.until("bursar_device_memory_bytes{state=\"undrawn\"}", gib(2));
    prometheus.until("sum by (uuid) (bursar_device_memory_bytes)", gib(16));
    prometheus.until(&format!("sum(bursar_account_bytes{{kind=\"held\",pid=\"{}\"}})", actor.pid()), gib(3));
    prometheus.until("bursar_refusals_total{reason=\"limit\"}", 1.0);
    prometheus.until("sum(bursar_refusals_total)", 1.0);
    actor.tell("wait 16GiB");
    prometheus.until("bursar_queue_length", 1.0);
    prometheus.until("bursar_queue_bytes", gib(16));
    drop(actor);
    prometheus.until("bursar_device_memory_bytes{state=\"held\"}", 0.0);
    prometheus.until("sum(bursar_refusals_total)", 1.0);
    let rules = prometheus.get("/api/v1/rules");
    let groups = rules["data"]["groups"].as_array().expect("groups");
    let rules: Vec<&Value> = groups.iter().flat_map(|group| group["rules"].as_array().expect("rules")).collect();
    assert!(rules.len() >= 5 && rules.iter().all(|rule| rule["health"] != "err"), "{rules:?}");
}

/// Gives a text to promtool and returns what it says, if anything.
fn promtool(program: &Path, arguments: &[&str], text: &str) -> (bool, String) {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it is there");
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn promtool_checks_metrics(_: &Path, program: &Path) {
    let scene = Scene::new();
    let mut actor = scene.actor("actor");
    actor.tell("hold 1GiB");
    actor.tell("tenant odd \"name\" \\ here");
    actor.tell("wait 16GiB");
    std::fs::write(scene.folder.ledgers().join("HOST.ledger"), b"no ledger").expect("room");
    let server = scene.serve(&["--listen", "127.0.0.1:0"]);
    let metrics = server.get("/metrics", "").body;
    assert!(metrics.contains("odd \\\"name\\\" \\\\ here"), "{metrics}");
    assert_eq!(promtool(program, &["check", "metrics"], &metrics), (true, String::new()));
}

fn promtool_checks_rules(_: &Path, program: &Path) {
    let folder = Folder::new();
    let file = folder.file("rules.yml", RULES);
    let (is_right, said) = promtool(program, &["check", "rules", &file], "");
    assert!(is_right, "{said}");
    let names: BTreeSet<&str> = RULES.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(said.contains(&format!("{} rules found", names.len())), "{said}");
}
