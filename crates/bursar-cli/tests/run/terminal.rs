//! The output of a run on a terminal.

use super::Named;
use super::rig::Rig;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::process::{Command, Stdio};

pub(crate) const TRIALS: &[Named] = &[
    ("a_terminal_shows_a_colour_a_worker_and_a_status_line", a_terminal_shows_colours_and_a_status_line),
    ("a_terminal_shows_no_colour_where_none_is_wanted", a_terminal_shows_no_colour_where_none_is_wanted),
    ("a_pipe_shows_neither_colour_nor_status", a_pipe_shows_neither_colour_nor_status),
];

/// Returns everything that the command writes on a terminal.
fn on_a_terminal(mut command: Command) -> String {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&terminal).and_then(|()| unlockpt(&terminal)).expect("ours");
    let name = ptsname(&terminal, Vec::new()).expect("a name");
    let name = name.to_str().expect("a plain name");
    let end = || OpenOptions::new().read(true).write(true).open(name).expect("the other end");
    let kept = end();
    command.stdin(Stdio::null()).stdout(end()).stderr(end()).env("TERM", "xterm-256color");
    let mut child = command.spawn().expect("the command was built");
    // The command has its copies of the other end; ours would keep the terminal open.
    drop((command, kept));
    let (mut shown, mut bytes) = (Vec::new(), [0; 4096]);
    let mut terminal = File::from(terminal);
    // Reading a terminal whose other end is closed is an error.
    while let Ok(count @ 1..) = terminal.read(&mut bytes) {
        shown.extend_from_slice(&bytes[..count]);
    }
    assert!(child.wait().expect("ours").success());
    String::from_utf8(shown).expect("text")
}

fn a_terminal_shows_colours_and_a_status_line(rig: &Rig) {
    let mut command = rig.shell("--want 2 --per-worker 1GiB", "echo one; echo two >&2");
    command.env_remove("NO_COLOR").env("COLORTERM", "truecolor");
    let shown = on_a_terminal(command);
    for line in ["\x1b[36m[worker 0]\x1b[0m one", "\x1b[33m[worker 1]\x1b[0m one", "\x1b[36m[worker 0]\x1b[0m two"] {
        assert!(shown.contains(line), "{line:?}: {shown:?}");
    }
    assert!(shown.contains(" running · "), "{shown:?}");
    assert!(shown.contains("2 workers ended well"), "{shown:?}");
}

fn a_terminal_shows_no_colour_where_none_is_wanted(rig: &Rig) {
    let shown = on_a_terminal(rig.shell("--want 2 --per-worker 1GiB", "echo one"));
    assert!(shown.contains("[worker 0] one") && shown.contains("[worker 1] one"), "{shown:?}");
    // Only the escape sequences of colours end with an m.
    let coloured = shown
        .split("\x1b[")
        .skip(1)
        .any(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m'));
    assert!(!coloured, "{shown:?}");
}

fn a_pipe_shows_neither_colour_nor_status(rig: &Rig) {
    let mut command = rig.shell("--want 2 --per-worker 1GiB", "echo one; echo two >&2");
    let output = command.env_remove("NO_COLOR").env("TERM", "xterm-256color").output().expect("the command was built");
    let shown = [output.stdout, output.stderr].concat();
    let shown = String::from_utf8(shown).expect("text");
    assert!(!shown.contains('\x1b') && !shown.contains(" running"), "{shown:?}");
}
