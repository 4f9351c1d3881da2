//! The server as clients meet it: well-behaved, slow, and malicious ones.
#![forbid(unsafe_code)]

use bursar_metrics::{HttpStatus, Request, RequestError, Response, Server, ServerOptions};
use proptest::prelude::*;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time after which a test fails instead of hanging; nothing here takes as long.
const PATIENCE: Duration = Duration::from_secs(30);

fn server(options: ServerOptions) -> Server {
    let large: Arc<[u8]> = vec![b'x'; 16 << 20].into();
    let handler = move |request: &Request| match request.path() {
        "/large" => Response::new(HttpStatus::OK, "text/plain", large.clone()),
        "/own" => Response::new(HttpStatus::OK, "text/plain", vec![b'x'; 16 << 20]),
        "/panic" => panic!("as asked for"),
        path => Response::text(HttpStatus::OK, path),
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    Server::start(listener, options, handler).expect("a thread")
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
    stream
}

/// Sends bytes and returns everything that comes back until the server closes.
fn exchange(address: SocketAddr, sent: &[u8]) -> String {
    let mut stream = connect(address);
    // The server may refuse before everything is sent.
    let _ = stream.write_all(sent);
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer that ends");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Reads one answer with a length, and returns its head and body.
fn read_answer(stream: &mut TcpStream) -> (String, Vec<u8>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a head");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("text");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).expect("a length");
    let mut body = vec![0; length.parse().expect("a number")];
    stream.read_exact(&mut body).expect("a body");
    (head, body)
}

const CLOSE: &str = "Host: localhost\r\nConnection: close\r\n\r\n";

#[test]
fn m3_whatever_is_asked_is_answered_by_its_status() {
    let server = server(ServerOptions::default());
    let long = "x".repeat(5000);
    let headers = (0..100).map(|n| format!("H{n}: v\r\n")).collect::<String>();
    let body = format!("POST / HTTP/1.1\r\nHost: l\r\nContent-Length: 2000000\r\n\r\n{}", "b".repeat(2_000_000));
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (format!("GET /a HTTP/1.1\r\n{CLOSE}").into(), "200 OK"),
        (format!("\r\nGET /a HTTP/1.1\r\n{CLOSE}").into(), "200 OK"),
        (b"GET /a HTTP/1.0\r\n\r\n".to_vec(), "200 OK"),
        (format!("GET http://localhost/a HTTP/1.1\r\n{CLOSE}").into(), "200 OK"),
        (format!("DELETE /a HTTP/1.1\r\n{CLOSE}").into(), "405 Method Not Allowed"),
        (format!("BREW /a HTTP/1.1\r\n{CLOSE}").into(), "405 Method Not Allowed"),
        (body.into(), "413 Content Too Large"),
        (b"GET / HTTP/1.1\r\nHost: l\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_vec(), "413 Content Too Large"),
        (b"GET / HTTP/1.1\r\nHost: l\r\nContent-Length: 1, 2\r\n\r\n".to_vec(), "400 Bad Request"),
        (b"GET / HTTP/1.1\r\nHost: l\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n".to_vec(), "400 Bad Request"),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "400 Bad Request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".to_vec(), "400 Bad Request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n".to_vec(), "400 Bad Request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded: b\r\n\r\n".to_vec(), "400 Bad Request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: \xff\xfe\r\n\r\n".to_vec(), "400 Bad Request"),
        (b"GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), "400 Bad Request"),
        (b"GET / HTTP/1.1\nHost: a\n\n".to_vec(), "400 Bad Request"),
        (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), "400 Bad Request"),
        (b"GET * HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), "400 Bad Request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(), "400 Bad Request"),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n".to_vec(), "505 HTTP Version Not Supported"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), "505 HTTP Version Not Supported"),
        (format!("GET /{long} HTTP/1.1\r\n{CLOSE}").into(), "414 URI Too Long"),
        (format!("GET /{long}").into(), "414 URI Too Long"),
        (format!("GET / HTTP/1.1\r\nX: {long}{long}\r\n{CLOSE}").into(), "431 Request Header Fields Too Large"),
        (format!("GET / HTTP/1.1\r\n{headers}{CLOSE}").into(), "431 Request Header Fields Too Large"),
        (format!("GET /panic HTTP/1.1\r\n{CLOSE}").into(), "500 Internal Server Error"),
    ];
    for (sent, status) in cases {
        let shown = String::from_utf8_lossy(&sent[..sent.len().min(80)]).into_owned();
        let answer = exchange(server.address(), &sent);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{shown:?}: {answer:.300}");
        assert!(answer.contains("\r\nX-Content-Type-Options: nosniff\r\n"), "{shown:?}: {answer:.600}");
    }
    let answer = exchange(server.address(), format!("PUT /a HTTP/1.1\r\n{CLOSE}").as_bytes());
    assert!(answer.contains("\r\nAllow: GET, HEAD\r\n"), "{answer}");
    let answer = exchange(server.address(), format!("HEAD /abc HTTP/1.1\r\n{CLOSE}").as_bytes());
    assert!(answer.contains("\r\nContent-Length: 5\r\n") && answer.ends_with("\r\n\r\n"), "no body: {answer}");
    let mut silent = connect(server.address());
    silent.shutdown(Shutdown::Write).expect("it is open");
    assert_eq!(silent.read(&mut [0]).expect("it is closed"), 0, "nothing was asked");
}

#[test]
fn m3_a_connection_serves_many_requests_in_their_order() {
    let server = server(ServerOptions::default());
    let mut stream = connect(server.address());
    let requests: String = (0..50).map(|n| format!("GET /{n} HTTP/1.1\r\nHost: localhost\r\n\r\n")).collect();
    stream.write_all(requests.as_bytes()).expect("it reads");
    for n in 0..50 {
        assert_eq!(read_answer(&mut stream).1, format!("/{n}\n").into_bytes());
    }
    for chunk in b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n".chunks(3) {
        stream.write_all(chunk).expect("it reads");
    }
    assert_eq!(read_answer(&mut stream).1, b"/slow\n");
}

/// Returns whether the server has neither closed a connection nor answered on it.
fn is_open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket");
    let peeked = stream.peek(&mut [0]);
    matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn m3_slow_writers_keep_nobody_out() {
    let server = server(ServerOptions { connections_max: 4, ..ServerOptions::default() });
    let slow: Vec<TcpStream> = (0..4).map(|_| connect(server.address())).collect();
    for mut stream in &slow {
        stream.write_all(b"GET / HTTP/1.1\r\nHo").expect("it reads");
    }
    for n in 0..3 {
        let answer = exchange(server.address(), format!("GET /{n} HTTP/1.1\r\n{CLOSE}").as_bytes());
        assert!(answer.ends_with(&format!("\r\n\r\n/{n}\n")), "{answer}");
    }
    let open = slow.iter().filter(|stream| is_open(stream)).count();
    assert!((1..4).contains(&open), "some made room, and nobody had to wait for all to time out: {open}");
}

#[test]
fn m3_slow_readers_hold_nobody_up() {
    let server = server(ServerOptions::default());
    let mut slow: Vec<TcpStream> = (0..20).map(|_| connect(server.address())).collect();
    for stream in &mut slow {
        stream.write_all(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
    }
    for n in 0..50 {
        let answer = exchange(server.address(), format!("GET /{n} HTTP/1.1\r\n{CLOSE}").as_bytes());
        assert!(answer.ends_with(&format!("\r\n\r\n/{n}\n")), "{answer}");
    }
    let (_, body) = read_answer(&mut slow[7]);
    assert_eq!(body.len(), 16 << 20, "whoever is slow gets all of it");
}

#[test]
fn m3_answers_that_nobody_reads_are_bounded() {
    let server = server(ServerOptions { unread_max: 40 << 20, ..ServerOptions::default() });
    let ask = |_: usize| {
        let mut stream = connect(server.address());
        write!(stream, "GET /own HTTP/1.1\r\n{CLOSE}").expect("it reads");
        let mut status = [0; 12];
        stream.read_exact(&mut status).expect("a status");
        assert!(matches!(&status, b"HTTP/1.1 200" | b"HTTP/1.1 503"));
        stream
    };
    let slow: Vec<TcpStream> = (0..8).map(ask).collect();
    // However long that took, the others were refused, or closed to make room.
    let whole = slow.into_iter().filter_map(|mut stream| {
        let mut rest = Vec::new();
        (stream.read_to_end(&mut rest).is_ok() && rest.len() > 16 << 20).then_some(())
    });
    assert!((1..=3).contains(&whole.count()), "three of 16 MiB are more than 40");
    let slow: Vec<TcpStream> = (0..8).map(ask).collect();
    // Those who have not read for a while make room, without a word from them.
    let again = std::iter::repeat_with(|| exchange(server.address(), format!("GET /a HTTP/1.1\r\n{CLOSE}").as_bytes()));
    let until = Instant::now() + Duration::from_secs(5);
    assert!(again.take_while(|_| Instant::now() < until).any(|answer| answer.starts_with("HTTP/1.1 200")));
    drop(slow);
}

#[test]
fn m3_a_server_that_is_dropped_is_gone() {
    let server = server(ServerOptions::default());
    let address = server.address();
    let idle = connect(address);
    drop(server);
    drop(idle);
    TcpListener::bind(address).expect("the port is free");
}

/// Bytes that are a request, or nearly.
fn nearly_a_request() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof!["[A-Z]{1,6}", "[ -~]{0,12}"];
    let target = prop_oneof!["/[a-z/?=&%0-9+]{0,40}", "http://[a-z.:/]{0,20}", "[ -~]{0,20}"];
    let version =
        prop_oneof![Just("HTTP/1.1".to_owned()), Just("HTTP/1.0".to_owned()), "HTTP/[0-9.]{1,4}", "[ -~]{0,9}"];
    let name = prop_oneof![
        Just("Host".to_owned()),
        Just("Content-Length".to_owned()),
        Just("Connection".to_owned()),
        "[A-Za-z-]{1,12}",
        "[ -~]{0,8}"
    ];
    let header = (name, prop_oneof!["[ -~]{0,30}", "[0-9]{1,20}"]).prop_map(|(name, value)| format!("{name}: {value}"));
    let end = prop_oneof![9 => Just("\r\n".to_owned()), 1 => Just("\n".to_owned()), 1 => Just("\r".to_owned())];
    let lines = (word, target, version, proptest::collection::vec(header, 0..6), end);
    (lines, proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3)).prop_map(
        |((word, target, version, headers, end), flips)| {
            let head = [vec![format!("{word} {target} {version}")], headers].concat().join(&end);
            let mut bytes = format!("{head}{end}{end}").into_bytes();
            for (at, byte) in flips {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn m3_parsing_never_panics_and_reads_no_further_than_a_request(bytes in nearly_a_request(), more in any::<Vec<u8>>()) {
        match Request::parse(&bytes) {
            Ok(Some((request, length))) => {
                prop_assert!(length <= bytes.len());
                let followed = [&bytes[..length], &more[..]].concat();
                prop_assert_eq!(Request::parse(&followed), Ok(Some((request.clone(), length))));
                for end in 0..length {
                    prop_assert_eq!(Request::parse(&bytes[..end]), Ok(None), "a beginning is not refused");
                }
                let shown = (request.host(), request.keeps_alive(), request.query("a"), request.path().starts_with('/'));
                prop_assert!(shown.3);
            }
            Ok(None) => prop_assert!(bytes.len() < 8192),
            Err(error) => prop_assert!(error.status().code() >= 400),
        }
    }

    #[test]
    fn m3_any_bytes_are_refused_or_waited_for(bytes in proptest::collection::vec(any::<u8>(), 0..10_000)) {
        match Request::parse(&bytes) {
            Ok(None) => prop_assert!(bytes.len() < 8200),
            Ok(Some((_, length))) => prop_assert!(length <= bytes.len()),
            Err(error) => prop_assert!(error != RequestError::Timeout),
        }
    }
}
