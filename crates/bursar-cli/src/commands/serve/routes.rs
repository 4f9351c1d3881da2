//! The paths of the server.

use super::board::Board;
use bursar::metrics::{ExpositionFormat, HistoryQuery, HttpStatus, PartyKind, ReadAccess, Request, Response};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/style.css");
const SCRIPTS: [&str; 7] = [
    include_str!("page/format.js"),
    include_str!("page/chart.js"),
    include_str!("page/steering.js"),
    include_str!("page/devices.js"),
    include_str!("page/tables.js"),
    include_str!("page/connection.js"),
    include_str!("page/page.js"),
];

const PATHS: &str = "there is nothing here; there are /, /metrics, /api/state, /api/history and /healthz";

/// The paths, with what they are answered from.
#[derive(Debug)]
pub(super) struct Routes {
    access: ReadAccess,
    board: Arc<Board>,
    nonces: RandomState,
    pages: AtomicU64,
}

impl Routes {
    pub(super) fn new(access: ReadAccess, board: Arc<Board>) -> Self {
        Self { access, board, nonces: RandomState::new(), pages: AtomicU64::new(0) }
    }

    pub(super) fn answer(&self, request: &Request) -> Response {
        // The page itself has no figures: it asks for the token that it needs to get them.
        let refused = match request.path() {
            "/" | "/healthz" => self.access.refuse_host(request),
            _ => self.access.refuse(request),
        };
        if let Some(refused) = refused {
            return refused;
        }
        match request.path() {
            "/" => self.page(),
            "/metrics" => {
                let accept: Vec<&str> = request.headers("accept").collect();
                let format = ExpositionFormat::accepted(&accept.join(","));
                let metrics = |sampled: Arc<super::board::Sampled>| {
                    Response::new(HttpStatus::OK, format.content_type(), sampled.metrics(format))
                };
                self.board.current().map_or_else(stale, metrics).with_header("Vary", "Accept")
            }
            "/api/state" => self.board.current().map_or_else(stale, |sampled| Response::json(sampled.json())),
            "/api/history" => match query(request) {
                Ok(query) => Response::json(self.board.history(&query)),
                Err(wrong) => Response::text(HttpStatus::BAD_REQUEST, wrong),
            },
            "/healthz" => self.board.current().map_or_else(stale, |_| Response::text(HttpStatus::OK, "ok")),
            _ => Response::text(HttpStatus::NOT_FOUND, PATHS),
        }
    }

    /// Returns the page. Its style and script carry a number that nobody can guess, and nothing else of that kind is run.
    fn page(&self) -> Response {
        let count = self.pages.fetch_add(1, Relaxed);
        let nonce = format!("{:016x}{:016x}", self.nonces.hash_one((count, 0)), self.nonces.hash_one((count, 1)));
        let script = SCRIPTS.concat();
        let page = PAGE.replace("{{style}}", STYLE).replace("{{nonce}}", &nonce).replace("{{script}}", &script);
        let policy = format!(
            "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        );
        Response::new(HttpStatus::OK, "text/html; charset=utf-8", page.into_bytes()).with_policy(policy)
    }
}

/// Returns the answer where the last sample is too old to be shown as the present.
fn stale(age: std::time::Duration) -> Response {
    let why = format!(
        "the last sample is {} s old: the driver, or the file system of the ledgers, does not answer",
        age.as_secs()
    );
    Response::text(HttpStatus::UNAVAILABLE, &why).with_header("Retry-After", "5")
}

/// Returns the query of a request for history.
fn query(request: &Request) -> Result<HistoryQuery, &'static str> {
    let number = |name: &str, otherwise: u64, wrong: &'static str| match request.query(name) {
        Some(value) => value.parse().map_err(|_| wrong),
        None => Ok(otherwise),
    };
    let default = HistoryQuery::default();
    let wrong = "points is a number from 1 to 2000";
    let points = usize::try_from(number("points", default.points as u64, wrong)?).map_err(|_| wrong)?;
    if !(1..=HistoryQuery::POINTS_MAX).contains(&points) {
        return Err(wrong);
    }
    let since_ms = number("since_ms", default.since_ms, "since_ms is a number of milliseconds since 1970")?;
    let until_ms = number("until_ms", default.until_ms, "until_ms is a number of milliseconds since 1970")?;
    if since_ms > until_ms {
        return Err("since_ms is after until_ms");
    }
    Ok(HistoryQuery {
        uuid: request.query("uuid"),
        since_ms,
        until_ms,
        points,
        by: match request.query("by").as_deref() {
            None | Some("process") => PartyKind::Process,
            Some("tenant") => PartyKind::Tenant,
            Some(_) => return Err("by is process or tenant"),
        },
    })
}
