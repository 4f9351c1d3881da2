//! The thread that serves every connection.

use super::connection::{Connection, Step};
use super::{HttpStatus, Request, RequestError, Response};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, getrlimit};
use std::collections::HashMap;
use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The bounds of a [`Server`].
///
/// ```
/// use bursar::metrics::ServerOptions;
///
/// let options = ServerOptions::default();
/// assert_eq!((options.connections_max, options.unread_max), (256, 64 << 20));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// The most connections that are open at a time; fewer where the process may open fewer files.
    pub connections_max: usize,
    /// The most bytes of answers that wait to be read. Beyond it those who do not read are closed, and then others are told to come again.
    pub unread_max: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self { connections_max: 256, unread_max: 64 << 20 }
    }
}

/// The function that answers requests.
pub(super) type Handler = Arc<dyn Fn(&Request) -> Response + Send + Sync>;

/// An HTTP server on a thread of its own. Dropping it ends it.
///
/// ```
/// use bursar::metrics::{HttpStatus, Response, Server};
/// use std::io::{Read, Write};
///
/// let server = Server::bind("127.0.0.1:0", |request| Response::text(HttpStatus::OK, request.path()))?;
/// let mut client = std::net::TcpStream::connect(server.address())?;
/// client.write_all(b"GET /hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
/// let mut answer = String::new();
/// client.read_to_string(&mut answer)?;
/// assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("/hello\n"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Server {
    address: SocketAddr,
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on an address and answers by `handler`, which is called on the server's thread and must not wait for long.
    /// Port 0 is one that is free.
    pub fn bind(
        address: impl ToSocketAddrs,
        handler: impl Fn(&Request) -> Response + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Self::start(TcpListener::bind(address)?, ServerOptions::default(), handler)
    }

    /// Serves a listener.
    pub fn start(
        listener: TcpListener,
        options: ServerOptions,
        handler: impl Fn(&Request) -> Response + Send + Sync + 'static,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = UnixStream::pair()?;
        let handler = Arc::new(handler);
        let options = ServerOptions { connections_max: options.connections_max.min(descriptors_max()), ..options };
        let mut serving =
            Serving { listener: Some(listener), stopped, options, handler, connections: Vec::new(), deaf_until: None };
        let thread = std::thread::Builder::new().name("bursar-http".to_owned()).spawn(move || serving.run())?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// Returns the address that it listens on.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The thread ends when it reads this or finds that nobody is at the other end.
        let _ = self.stop.write_all(&[1]);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The state of the thread.
struct Serving {
    listener: Option<TcpListener>,
    stopped: UnixStream,
    options: ServerOptions,
    handler: Handler,
    connections: Vec<(Connection, bool)>,
    /// The end of a pause in accepting, after the system had no descriptor left.
    deaf_until: Option<Instant>,
}

/// The descriptors that are left to the rest of the program: its standard streams, ledgers, files and the driver.
const DESCRIPTORS_KEPT: u64 = 24;

/// Returns how many connections can be open without taking the descriptors that the program needs.
fn descriptors_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit.saturating_sub(DESCRIPTORS_KEPT)).unwrap_or(usize::MAX).max(1)
}

/// The time within which answers that are being written are finished when the server ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// The longest wait; deadlines are met to within this.
const NAP: Duration = Duration::from_millis(500);

impl Serving {
    fn run(&mut self) {
        let mut ends: Option<Instant> = None;
        loop {
            let now = Instant::now();
            if ends.is_some_and(|ends| now >= ends || self.connections.is_empty()) {
                return;
            }
            let (is_stopped, has_news) = self.wait(now, ends.is_none());
            let now = Instant::now();
            if is_stopped && ends.is_none() {
                ends = Some(now + FAREWELL);
                self.listener = None;
                self.connections.retain(|(connection, _)| connection.writes());
            }
            self.serve(now);
            if has_news {
                self.accept(now);
            }
        }
    }

    /// Waits until something is ready. Returns whether the server is to stop and whether somebody wants to connect.
    fn wait(&mut self, now: Instant, may_stop: bool) -> (bool, bool) {
        let deadline = self.connections.iter().map(|(connection, _)| connection.deadline()).min();
        let has_more = self.connections.iter().any(|(_, is_ready)| *is_ready);
        let nap = deadline.map_or(NAP, |deadline| deadline.saturating_duration_since(now).min(NAP));
        let nap = if has_more { Duration::ZERO } else { nap.max(Duration::from_millis(1)) };
        let hears = self.deaf_until.is_none_or(|until| now >= until) && self.has_room(now);
        let mut descriptors = Vec::with_capacity(self.connections.len() + 2);
        descriptors.push(PollFd::new(&self.stopped, if may_stop { PollFlags::IN } else { PollFlags::empty() }));
        if let Some(listener) = &self.listener {
            descriptors.push(PollFd::new(listener, if hears { PollFlags::IN } else { PollFlags::empty() }));
        }
        let others = descriptors.len();
        for (connection, _) in &self.connections {
            let interest = if connection.writes() { PollFlags::OUT } else { PollFlags::IN };
            descriptors.push(PollFd::from_borrowed_fd(connection.stream().as_fd(), interest));
        }
        let timeout = Timespec { tv_sec: nap.as_secs().cast_signed(), tv_nsec: i64::from(nap.subsec_nanos()) };
        if poll(&mut descriptors, Some(&timeout)).is_err() {
            return (false, false);
        }
        let is_ready: Vec<bool> = descriptors.iter().map(|descriptor| !descriptor.revents().is_empty()).collect();
        let has_news = self.listener.is_some() && hears && is_ready[1];
        for ((_, was_ready), is_ready) in self.connections.iter_mut().zip(&is_ready[others..]) {
            *was_ready |= is_ready;
        }
        (may_stop && is_ready[0], has_news)
    }

    /// Returns whether there is room for a connection, or one that would make room.
    fn has_room(&self, now: Instant) -> bool {
        let is_full = self.connections.len() >= self.options.connections_max;
        !is_full || self.connections.iter().any(|(connection, _)| connection.stalled(now).is_some())
    }

    /// Has every connection that is ready take its step, and ends those whose time has passed.
    fn serve(&mut self, now: Instant) {
        self.close_unread(now);
        for at in (0..self.connections.len()).rev() {
            let is_ready = self.connections[at].1;
            if !is_ready && self.connections[at].0.deadline() > now {
                continue;
            }
            let unread = self.unread();
            let (handler, unread_max) = (self.handler.clone(), self.options.unread_max);
            let mut answer = |request: Result<&Request, RequestError>| answer(&handler, request, unread, unread_max);
            let (connection, has_more) = &mut self.connections[at];
            let mut step = if is_ready { connection.step(now, &mut answer) } else { Step::Wait };
            if step == Step::Wait && connection.deadline() <= now {
                step = connection.expire(now, &mut answer);
            }
            *has_more = step == Step::Again;
            if step == Step::Close {
                self.connections.swap_remove(at);
            }
        }
    }

    /// Closes those whose answers have waited longest to be read, while more waits than may.
    fn close_unread(&mut self, now: Instant) {
        while self.unread() > self.options.unread_max {
            let waiting = self.connections.iter().enumerate().filter(|(_, (connection, _))| connection.writes());
            let waiting = waiting.filter_map(|(at, (connection, _))| Some((connection.stalled(now)?, at)));
            let Some((_, at)) = waiting.max() else { return };
            self.connections.swap_remove(at);
        }
    }

    /// Returns the bytes of answers that wait to be read, those that are shared once.
    fn unread(&self) -> usize {
        let bodies = self.connections.iter().filter_map(|(connection, _)| connection.body());
        let lengths: HashMap<*const u8, usize> = bodies.map(|body| (body.as_ptr(), body.len())).collect();
        lengths.values().sum()
    }

    fn accept(&mut self, now: Instant) {
        while self.has_room(now) {
            match self.listener.as_ref().map(TcpListener::accept) {
                Some(Ok((stream, _))) => {
                    if self.connections.len() >= self.options.connections_max {
                        self.make_room(now);
                    }
                    // A connection that is gone already is none.
                    if let Ok(connection) = Connection::new(stream, now) {
                        self.connections.push((connection, true));
                    }
                }
                Some(Err(error)) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Some(Err(error)) if error.kind() != ErrorKind::WouldBlock => {
                    // The system has no descriptors or no memory: those who wait are heard a little later.
                    self.deaf_until = Some(now + Duration::from_millis(100));
                    return;
                }
                _ => return,
            }
        }
    }

    /// Closes the connection that has made no progress for longest.
    fn make_room(&mut self, now: Instant) {
        let stalled = self.connections.iter().enumerate();
        let stalled = stalled.filter_map(|(at, (connection, _))| Some((connection.stalled(now)?, at)));
        if let Some((_, at)) = stalled.max() {
            self.connections.swap_remove(at);
        }
    }
}

/// Returns the answer to a request, or its refusal.
fn answer(handler: &Handler, request: Result<&Request, RequestError>, unread: usize, unread_max: usize) -> Response {
    let request = match request {
        Ok(request) => request,
        Err(error) => return Response::text(error.status(), &error.to_string()),
    };
    if !matches!(request.method(), "GET" | "HEAD") {
        return Response::method_not_allowed();
    }
    if unread > unread_max {
        let busy = "too much waits to be read by others; try again";
        return Response::text(HttpStatus::UNAVAILABLE, busy).with_header("Retry-After", "1");
    }
    catch_unwind(AssertUnwindSafe(|| handler(request)))
        .unwrap_or_else(|_| Response::text(HttpStatus::INTERNAL, "the answer could not be made"))
}
