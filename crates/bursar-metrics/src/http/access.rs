//! The right to read: a bearer token, and the host that a request is for.

use super::{HttpStatus, Request, Response};
use std::fmt;
use std::fs;
use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The rules by which requests are let in.
///
/// With a token, whoever sends it as `Authorization: Bearer …` is. Without one, a server on a loopback address answers only
/// requests whose `Host` is a loopback address or `localhost`: a page of another site cannot have its own name point here and
/// read what the browser's user may read.
///
/// ```
/// use bursar::metrics::{ReadAccess, HttpStatus, Request};
///
/// let access = ReadAccess::on("127.0.0.1:9400".parse().expect("an address"));
/// let request = |host: &str| Request::parse(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
/// let (own, _) = request("localhost:9400")?.expect("it is whole");
/// assert!(access.refuse(&own).is_none());
/// let (foreign, _) = request("rebound.example")?.expect("it is whole");
/// assert_eq!(access.refuse(&foreign).map(|refusal| refusal.status()), Some(HttpStatus::MISDIRECTED));
/// # Ok::<(), bursar::metrics::RequestError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ReadAccess {
    is_loopback: bool,
    token: Option<AccessToken>,
}

/// A bearer token. It is not shown.
///
/// ```
/// use bursar::metrics::AccessToken;
///
/// let token = AccessToken::new("correct-horse")?;
/// assert_eq!(format!("{token:?}"), "AccessToken(…)");
/// assert!(AccessToken::new("two words").is_err());
/// # Ok::<(), bursar::metrics::TokenError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct AccessToken(Box<[u8]>);

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessToken(…)")
    }
}

/// The error of a token that cannot be used.
///
/// ```
/// use bursar::metrics::{AccessToken, TokenError};
///
/// assert!(matches!(AccessToken::new(""), Err(TokenError::Empty)));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// There is no token.
    #[error("the token is empty")]
    Empty,
    /// The token has more than 1,024 characters.
    #[error("the token has {length} characters where at most 1024 can be sent")]
    TooLong {
        /// The number of bytes.
        length: u64,
    },
    /// The token has characters that cannot be sent.
    #[error("the token may have letters, digits and -._~+/= only, in one line")]
    Characters,
    /// The file cannot be read.
    #[error("{}: {error}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The error of the system.
        #[source]
        error: std::io::Error,
    },
}

/// The most bytes of a token.
const TOKEN_MAX: u64 = 1024;

impl AccessToken {
    /// Returns a token, without the blanks and line breaks around it.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let text = text.trim_ascii();
        let is_sendable = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        match text.len() as u64 {
            0 => Err(TokenError::Empty),
            length if length > TOKEN_MAX => Err(TokenError::TooLong { length }),
            _ if !text.bytes().all(is_sendable) => Err(TokenError::Characters),
            _ => Ok(Self(text.as_bytes().into())),
        }
    }

    /// Reads a token from a file. Returns it with whether others than the file's user may read it too.
    pub fn read(file: &Path) -> Result<(Self, bool), TokenError> {
        let failed = |error| TokenError::File { file: file.to_owned(), error };
        let metadata = fs::metadata(file).map_err(failed)?;
        if !metadata.is_file() {
            return Err(failed(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a file")));
        }
        if metadata.len() > TOKEN_MAX + 2 {
            return Err(TokenError::TooLong { length: metadata.len() });
        }
        let text = fs::read(file).map_err(failed)?;
        let text = std::str::from_utf8(&text).map_err(|_| TokenError::Characters)?;
        Ok((Self::new(text)?, metadata.permissions().mode() & 0o077 != 0))
    }

    /// Returns whether this is the token, in a time that says nothing about where they differ.
    fn matches(&self, given: &str) -> bool {
        let own = &self.0;
        let differences = given.bytes().enumerate().fold(u64::from(own.len() != given.len()), |found, (at, byte)| {
            black_box(found | u64::from(byte ^ own[at % own.len()]))
        });
        differences == 0
    }
}

impl ReadAccess {
    /// Returns the rules of a server on an address, without a token.
    pub const fn on(address: SocketAddr) -> Self {
        let is_loopback = match address.ip() {
            IpAddr::V4(address) => address.is_loopback(),
            IpAddr::V6(address) => address.is_loopback(),
        };
        Self { is_loopback, token: None }
    }

    /// Returns the rules with a token that has to be sent.
    #[must_use]
    pub fn with_token(self, token: AccessToken) -> Self {
        Self { token: Some(token), ..self }
    }

    /// Returns the refusal of a request for what only those with the token may read.
    pub fn refuse(&self, request: &Request) -> Option<Response> {
        let Some(token) = &self.token else { return self.refuse_host(request) };
        let given = request.header("authorization").and_then(|value| value.split_once(' '));
        let is_let_in = match given {
            Some((scheme, given)) => scheme.eq_ignore_ascii_case("bearer") & token.matches(given.trim()),
            None => false,
        };
        let why = if given.is_some() {
            "Bearer realm=\"bursar\", error=\"invalid_token\""
        } else {
            "Bearer realm=\"bursar\""
        };
        (!is_let_in).then(|| {
            Response::text(HttpStatus::UNAUTHORIZED, "send the token of --token-file as Authorization: Bearer …")
                .with_header("WWW-Authenticate", why)
        })
    }

    /// Returns the refusal of a request that another host's name led here; it is for pages without figures.
    pub fn refuse_host(&self, request: &Request) -> Option<Response> {
        let is_own = !self.is_loopback || self.token.is_some() || request.host().is_none_or(is_loopback);
        (!is_own).then(|| {
            let why = "this server answers for localhost; for another name, start it with --token-file";
            Response::text(HttpStatus::MISDIRECTED, why)
        })
    }
}

/// Returns whether a well-formed host, with or without a port, is this machine whatever a name server says. Names below
/// `localhost` are not: not every resolver keeps them to the machine.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
