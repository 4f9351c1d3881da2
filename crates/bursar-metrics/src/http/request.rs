//! Parsing the head of a request.

use super::HttpStatus;
use std::net::Ipv6Addr;

/// The most bytes of a request's head.
pub(super) const HEAD_MAX: usize = 8192;

/// The most bytes of a request's target.
const TARGET_MAX: usize = 2048;

/// The most headers of a request.
const HEADERS_MAX: usize = 64;

/// A request without a body.
///
/// ```
/// use bursar::metrics::Request;
///
/// let head = b"GET /api/history?by=tenant&points=9 HTTP/1.1\r\nHost: localhost:9400\r\n\r\n";
/// let (request, length) = Request::parse(head)?.expect("it is whole");
/// assert_eq!((request.path(), length), ("/api/history", head.len()));
/// assert_eq!(request.query("by").as_deref(), Some("tenant"));
/// assert_eq!(request.header("HOST"), Some("localhost:9400"));
/// assert!(request.keeps_alive());
/// # Ok::<(), bursar::metrics::RequestError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    method: String,
    path: String,
    query: String,
    authority: Option<String>,
    headers: Vec<(String, String)>,
    is_http_1_0: bool,
}

/// The reason that a request is refused, before anybody looks at what it asks for.
///
/// ```
/// use bursar::metrics::{Request, RequestError};
///
/// assert_eq!(Request::parse(b"nonsense\r\n\r\n"), Err(RequestError::Malformed));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// It is no request of HTTP/1.1.
    #[error("the request is malformed")]
    Malformed,
    /// Its target has more than 2 KiB.
    #[error("the target of the request is too long")]
    TargetTooLong,
    /// Its head has more than 8 KiB, or more than 64 headers.
    #[error("the head of the request is too large")]
    HeadTooLarge,
    /// It has a body.
    #[error("a request here has no body")]
    HasBody,
    /// It is of a version that is neither 1.0 nor 1.1.
    #[error("this server speaks HTTP/1.1")]
    Version,
    /// It did not come in time.
    #[error("the request did not come in time")]
    Timeout,
}

impl RequestError {
    /// Returns the status that it is answered by.
    pub const fn status(self) -> HttpStatus {
        match self {
            Self::Malformed => HttpStatus::BAD_REQUEST,
            Self::TargetTooLong => HttpStatus::URI_TOO_LONG,
            Self::HeadTooLarge => HttpStatus::HEAD_TOO_LARGE,
            Self::HasBody => HttpStatus::CONTENT_TOO_LARGE,
            Self::Version => HttpStatus::VERSION_NOT_SUPPORTED,
            Self::Timeout => HttpStatus::REQUEST_TIMEOUT,
        }
    }
}

impl Request {
    /// Parses the request at the beginning of `bytes`. Returns it with the length of its head, or none if more bytes are
    /// needed.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, RequestError> {
        // An empty line before a request is what some clients send after a body.
        let begins = bytes.iter().take(4).take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let head = &bytes[begins..];
        let searched = &head[..head.len().min(HEAD_MAX)];
        let Some(end) = searched.windows(4).position(|window| window == b"\r\n\r\n") else {
            return Err(match searched.iter().position(|&byte| byte == b'\n') {
                None if head.len() > TARGET_MAX + 32 => RequestError::TargetTooLong,
                _ if head.len() >= HEAD_MAX => RequestError::HeadTooLarge,
                Some(line) if line == 0 || head[line - 1] != b'\r' => RequestError::Malformed,
                _ => return Ok(None),
            });
        };
        let head = std::str::from_utf8(&head[..end]).map_err(|_| RequestError::Malformed)?;
        let mut lines = head.split("\r\n");
        let request = Self::of_line(lines.next().unwrap_or_default())?;
        Ok(Some((request.with_headers(lines)?, begins + end + 4)))
    }

    fn of_line(line: &str) -> Result<Self, RequestError> {
        let mut words = line.split(' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(RequestError::Malformed);
        };
        let is_http_1_0 = match version {
            "HTTP/1.1" => false,
            "HTTP/1.0" => true,
            _ if version.starts_with("HTTP/") => return Err(RequestError::Version),
            _ => return Err(RequestError::Malformed),
        };
        if method.is_empty() || method.len() > 32 || !method.bytes().all(is_token) {
            return Err(RequestError::Malformed);
        }
        if target.len() > TARGET_MAX {
            return Err(RequestError::TargetTooLong);
        }
        if !target.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(RequestError::Malformed);
        }
        // A proxy's form: http://host/path.
        let (authority, target) = match target.split_once("://") {
            Some(("http" | "https", rest)) => {
                let slash = rest.find(['/', '?']).unwrap_or(rest.len());
                (Some(rest[..slash].to_owned()), if slash == rest.len() { "/" } else { &rest[slash..] })
            }
            _ => (None, target),
        };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path = if path.is_empty() && authority.is_some() { "/" } else { path };
        if !path.starts_with('/') {
            return Err(RequestError::Malformed);
        }
        let (method, path, query) = (method.to_owned(), path.to_owned(), query.to_owned());
        Ok(Self { method, path, query, authority, headers: Vec::new(), is_http_1_0 })
    }

    fn with_headers<'a>(mut self, lines: impl Iterator<Item = &'a str>) -> Result<Self, RequestError> {
        for line in lines {
            let (name, value) = line.split_once(':').ok_or(RequestError::Malformed)?;
            let value = value.trim_matches([' ', '\t']);
            let is_valid = !name.is_empty()
                && name.bytes().all(is_token)
                && !value.chars().any(|c| c != '\t' && c.is_ascii_control());
            if !is_valid {
                return Err(RequestError::Malformed);
            }
            if self.headers.len() == HEADERS_MAX {
                return Err(RequestError::HeadTooLarge);
            }
            self.headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let count = |name: &str| self.headers.iter().filter(|(other, _)| other == name).count();
        let hosts = count("host");
        if hosts > 1 || hosts == 0 && !self.is_http_1_0 || count("content-length") > 1 {
            return Err(RequestError::Malformed);
        }
        if ![self.authority.as_deref(), self.header("host")].into_iter().flatten().all(is_authority) {
            return Err(RequestError::Malformed);
        }
        if self.header("transfer-encoding").is_some() {
            return Err(RequestError::HasBody);
        }
        match self.header("content-length") {
            None => {}
            Some(length) if length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()) => {
                return Err(RequestError::Malformed);
            }
            Some(length) if length.bytes().all(|byte| byte == b'0') => {}
            Some(_) => return Err(RequestError::HasBody),
        }
        Ok(self)
    }

    /// Returns the method, as it was sent.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// Returns the path, as it was sent.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the value of a parameter of the query, decoded; the first, if there are several.
    pub fn query(&self, name: &str) -> Option<String> {
        let pairs = self.query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        pairs.into_iter().find(|(other, _)| decode(other) == name).map(|(_, value)| decode(value))
    }

    /// Returns the value of a header; the first, if there are several.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Returns the values of a header, one a line.
    pub fn headers<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers.iter().filter(move |(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Returns the host and port that the request is for, as it was sent.
    pub fn host(&self) -> Option<&str> {
        self.authority.as_deref().or_else(|| self.header("host"))
    }

    /// Returns whether the connection stays open for more requests.
    pub fn keeps_alive(&self) -> bool {
        let says = |word: &str| {
            let mut words = self.headers("connection").flat_map(|value| value.split(','));
            words.any(|other| other.trim().eq_ignore_ascii_case(word))
        };
        if self.is_http_1_0 { says("keep-alive") && !says("close") } else { !says("close") }
    }
}

/// Returns whether a byte may be in a method or in the name of a header.
const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
}

/// Returns whether a text is a host with or without a port, as RFC 3986 writes them, and nothing else. It may be empty, where a
/// client has no name for whom it asks.
fn is_authority(text: &str) -> bool {
    let is_port = |text: &str| text.is_empty() || text.strip_prefix(':').is_some_and(is_number);
    if let Some(rest) = text.strip_prefix('[') {
        let Some((address, port)) = rest.split_once(']') else { return false };
        return address.parse::<Ipv6Addr>().is_ok() && is_port(port);
    }
    let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(&byte);
    name.bytes().all(is_name) && (!name.is_empty() || port.is_empty()) && is_port(port)
}

/// Returns whether a text is the number of a port.
fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && (text.is_empty() || text.parse::<u16>().is_ok())
}

/// Decodes a part of a query. What is not encoded properly, or not text, is left or replaced.
fn decode(part: &str) -> String {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        match (first, after) {
            (b'%', [high, low, beyond @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                bytes.extend(hex(&[*high, *low]));
                rest = beyond;
            }
            _ => {
                bytes.push(if *first == b'+' { b' ' } else { *first });
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
