//! A small HTTP/1.1 server for pages and figures that are read and never changed.
//!
//! It is written by hand because every bound has to be ours: the libraries that are small enough for five routes read
//! request lines of any length, have no time-outs and start a thread for each connection that idles. Here one thread serves
//! every connection without blocking:
//!
//! - a request's head has at most 8 KiB and comes whole within 5 seconds; a body is refused;
//! - an answer that makes no progress for 10 seconds, and a connection that idles for 60, is closed;
//! - of at most 256 connections the one that has made no progress for longest makes room for a new one, so that neither slow
//!   writers nor slow readers keep anybody out;
//! - answers that wait to be read have at most 64 MiB together; beyond, requests are answered by 503.
//!
//! ```text
//!  server       the thread: accepts, polls, times out
//!  connection   one connection: reading, writing, waiting for the other side to close
//!  request      bytes → a request, or the status to refuse it with       response   an answer → bytes
//! ```

mod access;
mod connection;
mod date;
mod request;
mod response;
mod server;

pub use access::{AccessToken, ReadAccess, TokenError};
pub use request::{Request, RequestError};
pub use response::{HttpStatus, Response};
pub use server::{Server, ServerOptions};
