//! The processes of a run, and how each is started in its role.
//!
//! A run is three processes, each of which ends the others' work:
//!
//! ```text
//! bursar run              foreground.rs      started by the user; forwards signals
//! └─ watchdog             watchdog.rs        in a session of its own; only waits
//!    └─ supervisor        ../supervisor.rs   starts, watches and ends the workers; holds their shares
//!       └─ launch         launch.rs          prepares itself and becomes the command of a worker
//! ```
//!
//! Watchdog and supervisor are subreapers: a process that a worker leaves behind is reparented to the supervisor, and if
//! that is gone, to the watchdog. Each of the three notices when another has ended and kills what is left, so only
//! killing all of them at once leaves anything. There is no moment at which a worker lives and nobody knows of it,
//! because the kernel keeps the process tree.
//!
//! - Only a subreaper keeps hold of a process that daemonises, and only a process's own children may be killed by number. A
//!   process that the user started may have children already, so the subreapers are fresh processes below it.
//! - Watchdog and supervisor wait for their parent's end on a pidfd, `bursar run` for its child's end.
//! - A process gets what it needs from its parent as arguments and on standard input. What has to be done in a worker's own
//!   process (its death signal, its processors) is done by a `bursar` that then becomes the worker. Both need no unsafe code.
//! - Signals are forwarded as bytes on a socket (`signal_socket.rs`), because pending signals merge, and these must keep
//!   their number and order.

pub(super) mod child_lock;
pub(super) mod children;
pub(super) mod foreground;
pub(super) mod launch;
pub(super) mod parent_process;
pub(super) mod signal_socket;
pub(super) mod signals;
pub(super) mod watchdog;

use crate::program::Program;
use rustix::process::{Pid, getpid};
use std::ffi::{OsStr, OsString};
use std::process::Command;

/// The role of a process that a run starts for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Watchdog,
    Supervisor,
    Launch,
}

/// The command line of a process in a [`Role`].
#[derive(Debug)]
pub(crate) struct Invocation {
    pub(crate) role: Role,
    /// The process that started this one; its parent, unless that has ended.
    pub(crate) parent: Pid,
    /// The remaining arguments.
    pub(crate) words: Vec<OsString>,
}

impl Role {
    const ALL: [Self; 3] = [Self::Watchdog, Self::Supervisor, Self::Launch];

    fn word(self) -> &'static str {
        match self {
            Self::Watchdog => "run:watchdog",
            Self::Supervisor => "run:supervisor",
            Self::Launch => "run:launch",
        }
    }

    /// Returns the command that starts the program in this role, as a child of this process.
    fn command(self, program: &Program, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = program.command();
        command.arg(self.word()).arg(getpid().to_string()).args(words);
        command
    }
}

impl Invocation {
    /// Parses the arguments of this program, without its name. Returns none if they name no role: then a user started it.
    pub(crate) fn parse(mut words: impl Iterator<Item = OsString>) -> Option<Self> {
        let first = words.next()?;
        let role = Role::ALL.into_iter().find(|role| first == role.word())?;
        let parent = words.next()?.to_str().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw)?;
        Some(Self { role, parent, words: words.collect() })
    }
}

/// The exit status of a process that could not play its role; the process that started it says why.
const FAILURE: u8 = 1;

/// Converts an exit status; 3 if it is not known.
fn exit_code(code: Option<i32>) -> u8 {
    const MACHINE_FAILED: u8 = 3;
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(MACHINE_FAILED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invocation_is_parsed_as_it_was_written_and_nothing_else_is_one() {
        let command = Role::Launch.command(&Program::this_executable(), ["0,1", "run:watchdog"]);
        let parsed = Invocation::parse(command.get_args().map(OsStr::to_owned)).expect("an invocation");
        assert_eq!((parsed.role, parsed.parent), (Role::Launch, getpid()));
        assert_eq!(parsed.words, ["0,1", "run:watchdog"]);
        for words in [
            &["run"][..],
            &["run:supervisor"],
            &["run:supervisor", "x"],
            &["run:supervisor", "0"],
            &["--json", "run:supervisor", "1"],
        ] {
            assert!(Invocation::parse(words.iter().map(OsString::from)).is_none(), "{words:?}");
        }
    }
}
