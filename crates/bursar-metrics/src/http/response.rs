//! The answer to a request, and its bytes.

use super::date::http_date;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

/// The status of an answer.
///
/// ```
/// use bursar::metrics::HttpStatus;
///
/// assert_eq!(HttpStatus::NOT_FOUND.to_string(), "404 Not Found");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpStatus {
    code: u16,
    reason: &'static str,
}

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal $reason:literal;)*) => {
        impl HttpStatus { $($(#[$doc])* pub const $name: Self = Self { code: $code, reason: $reason };)* }
    };
}

statuses! {
    /// The answer is there.
    OK = 200 "OK";
    /// The request is malformed.
    BAD_REQUEST = 400 "Bad Request";
    /// A token is needed.
    UNAUTHORIZED = 401 "Unauthorized";
    /// There is nothing of that name.
    NOT_FOUND = 404 "Not Found";
    /// Nothing can be changed here.
    METHOD_NOT_ALLOWED = 405 "Method Not Allowed";
    /// The request did not come in time.
    REQUEST_TIMEOUT = 408 "Request Timeout";
    /// The request has a body.
    CONTENT_TOO_LARGE = 413 "Content Too Large";
    /// The target is too long.
    URI_TOO_LONG = 414 "URI Too Long";
    /// The request is for another host.
    MISDIRECTED = 421 "Misdirected Request";
    /// The head is too large.
    HEAD_TOO_LARGE = 431 "Request Header Fields Too Large";
    /// The server failed.
    INTERNAL = 500 "Internal Server Error";
    /// The server cannot answer at the moment.
    UNAVAILABLE = 503 "Service Unavailable";
    /// The version of HTTP is not known.
    VERSION_NOT_SUPPORTED = 505 "HTTP Version Not Supported";
}

impl HttpStatus {
    /// Returns the number.
    pub const fn code(self) -> u16 {
        self.code
    }
}

impl std::fmt::Display for HttpStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.code, self.reason)
    }
}

/// The bytes of an answer; shared, so that many readers of one answer cost its memory once.
pub(super) type Body = Arc<[u8]>;

/// An answer to a request.
///
/// Every answer forbids caches, guessing its type, frames and everything that is not of the server itself.
///
/// ```
/// use bursar::metrics::{HttpStatus, Response};
///
/// let response = Response::text(HttpStatus::NOT_FOUND, "there is nothing here").with_header("Vary", "Accept");
/// assert_eq!((response.status(), response.body()), (HttpStatus::NOT_FOUND, &b"there is nothing here\n"[..]));
/// ```
#[derive(Clone, Debug)]
pub struct Response {
    status: HttpStatus,
    content_type: &'static str,
    policy: Cow<'static, str>,
    headers: Vec<(&'static str, Cow<'static, str>)>,
    body: Body,
}

impl Response {
    /// Returns an answer of a content type.
    pub fn new(status: HttpStatus, content_type: &'static str, body: impl Into<Arc<[u8]>>) -> Self {
        let policy = Cow::Borrowed("default-src 'none'; frame-ancestors 'none'");
        Self { status, content_type, policy, headers: Vec::new(), body: body.into() }
    }

    /// Returns an answer of one line for people.
    pub fn text(status: HttpStatus, line: &str) -> Self {
        Self::new(status, "text/plain; charset=utf-8", format!("{line}\n").into_bytes())
    }

    /// Returns an answer in JSON.
    pub fn json(body: impl Into<Arc<[u8]>>) -> Self {
        Self::new(HttpStatus::OK, "application/json", body)
    }

    /// Returns the answer to a method that would change something.
    pub fn method_not_allowed() -> Self {
        Self::text(HttpStatus::METHOD_NOT_ALLOWED, "this server is read: use GET or HEAD")
            .with_header("Allow", "GET, HEAD")
    }

    /// Returns the answer with one more header.
    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Returns the answer with another policy for its content.
    #[must_use]
    pub fn with_policy(self, policy: impl Into<Cow<'static, str>>) -> Self {
        Self { policy: policy.into(), ..self }
    }

    /// Returns the status.
    pub const fn status(&self) -> HttpStatus {
        self.status
    }

    /// Returns the body.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Returns the bytes of the head and the body, which the answer to HEAD does not have.
    pub(super) fn encode(self, keeps_alive: bool, with_body: bool) -> (Vec<u8>, Body) {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
        let mut head = format!("HTTP/1.1 {}\r\n", self.status);
        let mut put = |name: &str, value: &str| {
            // Headers are ours but for what a file says; a line break in one would begin another.
            let value = value.replace(['\r', '\n'], " ");
            head.push_str(&format!("{name}: {value}\r\n"));
        };
        put("Date", &http_date(now));
        put("Content-Type", self.content_type);
        put("Content-Length", &self.body.len().to_string());
        put("Connection", if keeps_alive { "keep-alive" } else { "close" });
        put("Cache-Control", "no-store");
        put("X-Content-Type-Options", "nosniff");
        put("X-Frame-Options", "DENY");
        put("Referrer-Policy", "no-referrer");
        put("Cross-Origin-Resource-Policy", "same-origin");
        put("Content-Security-Policy", &self.policy);
        for (name, value) in &self.headers {
            put(name, value);
        }
        head.push_str("\r\n");
        (head.into_bytes(), if with_body { self.body } else { Body::default() })
    }
}
