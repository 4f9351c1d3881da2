//! Signals on their way from `bursar run` to the supervisor: a byte each, on a socket that is closed when either end exits.
//!
//! The socket is the supervisor's standard input, since that can be passed to a process without unsafe code. The first
//! message on it carries the standard input of `bursar run`.

use super::child_lock::ChildLock;
use rustix::io::{Errno, read};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, send, sendmsg, socketpair,
};
use signal_hook::consts::{SIGCONT, SIGTSTP};
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The end of `bursar run`.
#[derive(Debug)]
pub(crate) struct SignalSender(OwnedFd);

impl SignalSender {
    /// Creates a socket and sends our standard input on it. Returns both ends.
    pub(crate) fn new() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let input = io::stdin();
        let files = [input.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(&ours, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
        Ok((Self(ours), theirs))
    }

    /// Sends a signal. Errors are ignored: then there is nobody left to receive it.
    pub(crate) fn send(&self, signal: i32) {
        let _ = u8::try_from(signal).map(|signal| send(&self.0, &[signal], SendFlags::NOSIGNAL | SendFlags::DONTWAIT));
    }

    /// Waits until no process has the other end open.
    pub(crate) fn wait_until_closed(&self) {
        while matches!(read(&self.0, &mut [0; 8]), Ok(1..) | Err(Errno::INTR)) {}
    }
}

/// The end of the supervisor.
#[derive(Clone)]
pub(crate) struct SignalReceiver(Arc<Mutex<Handler>>);

/// The function that is called for each signal.
#[derive(Default)]
struct Handler {
    call: Option<Box<dyn Fn(i32) + Send>>,
    /// True between SIGTSTP and SIGCONT, so that a handler set meanwhile learns of it.
    is_paused: bool,
}

impl fmt::Debug for SignalReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignalReceiver").field("has_handler", &self.lock().call.is_some()).finish()
    }
}

impl SignalReceiver {
    /// Takes standard input for the socket, puts the received standard input in its place, and starts to receive signals.
    /// While no handler is set, a signal that ends the run ends this process. When the socket is closed,
    /// everything is killed, whether or not a handler is set.
    pub(crate) fn start(children: Arc<ChildLock>) -> io::Result<Self> {
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        match receive_input(&socket)? {
            Some(input) => rustix::stdio::dup2_stdin(input)?,
            None => rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?,
        }
        let receiver = Self(Arc::default());
        let handler = receiver.clone();
        let receive = move || {
            let mut signal = [0];
            loop {
                match read(&socket, &mut signal) {
                    Ok(1..) => handler.handle(signal[0].into()),
                    Err(Errno::INTR) => (),
                    Ok(0) | Err(_) => children.kill_all_and_exit(),
                }
            }
        };
        std::thread::Builder::new().name("signal-socket".into()).spawn(receive)?;
        Ok(receiver)
    }

    /// Calls `handler` for each signal from now on.
    pub(crate) fn set_handler(&self, handler: impl Fn(i32) + Send + 'static) {
        let mut current = self.lock();
        if current.is_paused {
            handler(SIGTSTP);
        }
        current.call = Some(Box::new(handler));
    }

    /// Lets signals end this process from now on.
    pub(crate) fn clear_handler(&self) {
        self.lock().call = None;
    }

    fn handle(&self, signal: i32) {
        let mut handler = self.lock();
        match signal {
            SIGTSTP => handler.is_paused = true,
            SIGCONT => handler.is_paused = false,
            _ => (),
        }
        match &handler.call {
            Some(call) => call(signal),
            None if matches!(signal, SIGTSTP | SIGCONT) => (),
            None => std::process::exit(128 + signal),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Handler> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives the first message on the socket: the standard input of `bursar run`.
fn receive_input(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    Ok(files.flatten().next())
}
