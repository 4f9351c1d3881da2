//! Signals on their way from `bursar run` to its crew: a byte each, on a line that ends when either of them does.
//!
//! The line is the crew's standard input, since that is what a process can be given without unsafe code; the first thing on
//! it is the standard input of `bursar run`.

use super::hands::Hands;
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
pub(crate) struct Line(OwnedFd);

impl Line {
    /// A line on which our standard input is sent already, and its other end.
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

    /// Sends a signal; one that nobody hears any more is not missed.
    pub(crate) fn send(&self, signal: i32) {
        let _ = u8::try_from(signal).map(|signal| send(&self.0, &[signal], SendFlags::NOSIGNAL | SendFlags::DONTWAIT));
    }

    /// Waits until nobody has the other end any more.
    pub(crate) fn wait_until_hung_up(&self) {
        while matches!(read(&self.0, &mut [0; 8]), Ok(1..) | Err(Errno::INTR)) {}
    }
}

/// The end of the crew.
#[derive(Clone)]
pub(crate) struct Listener(Arc<Mutex<Hearing>>);

/// Who hears the signals.
#[derive(Default)]
struct Hearing {
    tell: Option<Box<dyn Fn(i32) + Send>>,
    is_paused: bool,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("heard", &self.lock().tell.is_some()).finish()
    }
}

impl Listener {
    /// Takes standard input for the line that it is, gives this process its proper one, and hears signals from now on. As
    /// long as nobody else does, one that ends the run ends this process; the end of the line ends everything, always.
    pub(crate) fn take(hands: Arc<Hands>) -> io::Result<Self> {
        let line = io::stdin().as_fd().try_clone_to_owned()?;
        match receive_input(&line)? {
            Some(input) => rustix::stdio::dup2_stdin(input)?,
            None => rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?,
        }
        let listener = Self(Arc::default());
        let heard = listener.clone();
        let listen = move || {
            let mut signal = [0];
            loop {
                match read(&line, &mut signal) {
                    Ok(1..) => heard.hear(signal[0].into()),
                    Err(Errno::INTR) => (),
                    Ok(0) | Err(_) => hands.end_everything(),
                }
            }
        };
        std::thread::Builder::new().name("line".into()).spawn(listen)?;
        Ok(listener)
    }

    /// From now on `tell` is told of signals.
    pub(crate) fn hear_by(&self, tell: impl Fn(i32) + Send + 'static) {
        let mut hearing = self.lock();
        if hearing.is_paused {
            tell(SIGTSTP);
        }
        hearing.tell = Some(Box::new(tell));
    }

    /// From now on a signal ends this process.
    pub(crate) fn hear_no_more(&self) {
        self.lock().tell = None;
    }

    fn hear(&self, signal: i32) {
        let mut hearing = self.lock();
        match signal {
            SIGTSTP => hearing.is_paused = true,
            SIGCONT => hearing.is_paused = false,
            _ => (),
        }
        match &hearing.tell {
            Some(tell) => tell(signal),
            None if matches!(signal, SIGTSTP | SIGCONT) => (),
            None => std::process::exit(128 + signal),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Hearing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first thing on the line.
fn receive_input(line: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(line, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    Ok(files.flatten().next())
}
