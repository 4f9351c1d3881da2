//! The processes of a run, and how each is started as what it is.
//!
//! `bursar run` starts a *keeper*, which starts the *crew*, which starts the workers, each through a *launch*. The crew does
//! the work; whatever its workers leave behind comes to it, because it is their subreaper, and failing it to the keeper. Each
//! of the three notices when one of the others has ended and ends what is left, so that only killing all of them at one
//! moment leaves anything.

use rustix::process::{Pid, getpid};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What a process of a run is, beside the one that was asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Keeper,
    Crew,
    Launch,
}

/// A process of a run as it was started.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) role: Role,
    /// Who started it, and is its parent unless it has ended.
    pub(crate) parent: Pid,
    /// What follows.
    pub(crate) words: Vec<OsString>,
}

impl Role {
    const ALL: [Self; 3] = [Self::Keeper, Self::Crew, Self::Launch];

    fn word(self) -> &'static str {
        match self {
            Self::Keeper => "run:keeper",
            Self::Crew => "run:crew",
            Self::Launch => "run:launch",
        }
    }

    /// This program in this role, started by this process.
    pub(crate) fn command(self, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("bursar").arg(self.word()).arg(getpid().to_string()).args(words);
        command
    }
}

/// The part that a process plays which was started with these words, where it plays one. Options of users are not looked at:
/// these words are not theirs.
pub(crate) fn part(mut words: impl Iterator<Item = OsString>) -> Option<Part> {
    let first = words.next()?;
    let role = Role::ALL.into_iter().find(|role| first == role.word())?;
    let parent = words.next()?.to_str().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw)?;
    Some(Part { role, parent, words: words.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_as_it_was_written_and_nothing_else_is_one() {
        let command = Role::Launch.command(["0,1", "run:keeper"]);
        let read = part(command.get_args().map(OsStr::to_owned)).expect("a part");
        assert_eq!((read.role, read.parent), (Role::Launch, getpid()));
        assert_eq!(read.words, ["0,1", "run:keeper"]);
        for words in [&["run"][..], &["run:crew"], &["run:crew", "x"], &["run:crew", "0"], &["--json", "run:crew", "1"]]
        {
            assert!(part(words.iter().map(OsString::from)).is_none(), "{words:?}");
        }
    }
}
