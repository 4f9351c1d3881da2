//! Many requests, many processes.

use crate::rig::{Actor, PATIENCE, Scene};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

pub(crate) const TRIALS: &[(&str, fn())] = &[
    ("m3_ten_thousand_requests_with_a_hundred_open_lose_nothing", ten_thousand_requests),
    ("m3_connections_leave_descriptors_to_the_rest_of_the_program", connections_leave_descriptors),
    ("m1_a_thousand_accounts_are_sampled_at_little_cost", a_thousand_accounts),
];

/// Returns a figure of a process in `/proc/PID/status`, in KiB.
fn kib(child: &Child, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a figure");
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Reads one answer from a connection that stays open, and returns its status and the length of its body.
fn read_answer(stream: &mut TcpStream) -> (String, usize) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("an answer");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("text");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).expect("a length");
    let mut body = vec![0; length.parse().expect("a number")];
    stream.read_exact(&mut body).expect("all of it");
    (head.lines().next().unwrap_or_default().to_owned(), body.len())
}

fn ten_thousand_requests() {
    const THREADS: usize = 10;
    const OPEN: usize = 10;
    const REQUESTS: u64 = 10_000;
    let scene = Scene::new();
    let mut actor = scene.actor("actor");
    actor.tell("hold 1GiB");
    let server = scene.serve(&["--listen", "127.0.0.1:0"]);
    let before = kib(&server.child, "VmRSS");
    let answered = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let connect = || {
                    let stream = TcpStream::connect(server.address).expect("it listens");
                    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
                    stream
                };
                let mut open: Vec<TcpStream> = (0..OPEN).map(|_| connect()).collect();
                for round in 0..REQUESTS / (THREADS * OPEN) as u64 {
                    let path = ["/metrics", "/api/state", "/api/history", "/"][round as usize % 4];
                    for stream in &mut open {
                        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
                    }
                    for stream in &mut open {
                        let (status, length) = read_answer(stream);
                        assert_eq!(status, "HTTP/1.1 200 OK");
                        assert!(length > 100, "{path}: {length} bytes");
                        answered.fetch_add(1, Relaxed);
                    }
                    if round % 10 == 9 {
                        open = (0..OPEN).map(|_| connect()).collect();
                    }
                }
            });
        }
    });
    assert_eq!(answered.load(Relaxed), REQUESTS);
    let most = kib(&server.child, "VmHWM");
    assert!(most < before + (96 << 10), "{before} KiB before, {most} at most");
}

/// Returns the number of sockets that a process has open.
fn sockets(child: &Child) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", child.id())).expect("it runs").filter_map(Result::ok);
    let targets = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

fn connections_leave_descriptors() {
    let scene = Scene::new();
    let mut actor = scene.actor("actor");
    actor.tell("hold 1GiB");
    let server = scene.serve_within(64, &["--listen", "127.0.0.1:0", "--interval", "100ms"]);
    let before = sockets(&server.child);
    // Those who ask for nothing are closed for those who come later, so that each of them is taken.
    let mut open = Vec::new();
    for _ in 0..200 {
        open.push(TcpStream::connect(server.address).expect("it listens"));
        assert_eq!(server.get("/healthz", "").status, 200, "with {} open", open.len());
        assert!(sockets(&server.child) <= before + 40, "24 descriptors of 64 are the program's");
    }
    assert_eq!(server.next_state()["devices"][0]["held"], 1_u64 << 30, "ledgers are read as before");
}

/// Returns the processor time that a process has used.
fn processor_time(child: &Child) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("it runs");
    let after = stat.rsplit_once(") ").expect("a name in brackets").1;
    let ticks: u64 = after.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
    Duration::from_millis(ticks * 10)
}

/// Has 64 processes with 16 accounts each watched. `BURSAR_SERVE_COST_S=30` watches for so long and holds it to 1 % of a core.
fn a_thousand_accounts() {
    let asked = std::env::var("BURSAR_SERVE_COST_S").ok().and_then(|seconds| seconds.parse().ok());
    let scene = Scene::new();
    let crowd: Vec<Actor> = (0..64).map(|_| scene.actor("crowd")).collect();
    let server = scene.serve(&["--listen", "127.0.0.1:0", "--interval", "1s"]);
    let state = server.next_state();
    assert_eq!(state["devices"][0]["processes"].as_array().map(Vec::len), Some(64));
    let sum: u64 = (0..16).map(|n| 64 * 4096 * (n + 1)).sum();
    assert_eq!(state["devices"][0]["held"], sum, "every account is counted");
    let (began, used) = (Instant::now(), processor_time(&server.child));
    let watched = Duration::from_secs(asked.unwrap_or(5));
    while began.elapsed() < watched {
        std::thread::sleep(Duration::from_secs(1));
        if asked.is_none() {
            assert_eq!(server.get("/metrics", "").status, 200);
        }
    }
    let share = (processor_time(&server.child) - used).as_secs_f64() / began.elapsed().as_secs_f64();
    let most = if asked.is_some() { 0.01 } else { 0.25 };
    assert!(share < most, "{:.2} % of a core", 100.0 * share);
    if asked.is_some() {
        let line = format!("{:.3} % of a core over {:?}\n", 100.0 * share, began.elapsed());
        std::io::stderr().write_all(line.as_bytes()).expect("somebody reads");
    }
    drop(crowd);
}
