//! A terminal: a tmux server of one trial's own.

use crate::common::Folder;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A terminal with a shell in it, closed when dropped.
pub(crate) struct Tmux {
    socket: String,
}

/// The time after which a trial fails instead of hanging; nothing here takes as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

impl Tmux {
    pub(crate) fn is_there() -> bool {
        let status = Command::new("tmux").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    /// Opens a terminal of 80 × 24 with a shell that knows `top`, the command on the folder's device.
    pub(crate) fn open(folder: &Folder) -> Self {
        // A server that was asked to end may still be there when the next one starts.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let tmux = Self { socket: folder.path(&format!("tmux-{}", NEXT.fetch_add(1, Relaxed))) };
        let top = format!("exec '{}' top --interval 0.2 \"$@\"\n", env!("CARGO_BIN_EXE_bursar"));
        let script = folder.file("top.sh", format!("#!/bin/sh\n{top}"));
        let mut command = Command::new("tmux");
        command.args(["-S", &tmux.socket, "-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24"]);
        command.arg("env").arg("PS1=$ ").arg(format!("BURSAR_SIM_DEVICES=1x8GiB@{}", folder.devices()));
        command.arg(format!("BURSAR_LEDGER_DIR={}", folder.ledgers().display()));
        command.args(["BURSAR_DRIVER=sim", "LC_ALL=C.UTF-8", &format!("TOP={script}"), "sh", "-i"]);
        command.env_remove("TMUX");
        assert!(command.status().expect("tmux is there").success());
        tmux.wait("a prompt", |text| text.contains('$'));
        tmux
    }

    fn tmux(&self, words: &[&str]) -> String {
        let output = Command::new("tmux").args(["-S", &self.socket]).args(words).output().expect("tmux is there");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Types keys, by the names that tmux has for them.
    pub(crate) fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Types a line for the shell.
    pub(crate) fn line(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.keys(&["Enter"]);
    }

    /// Returns what the terminal shows.
    pub(crate) fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Returns what the terminal shows, with escape sequences for its colours.
    pub(crate) fn escapes(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-e"])
    }

    /// Returns a variable of the pane.
    pub(crate) fn variable(&self, name: &str) -> String {
        self.tmux(&["display-message", "-p", &format!("#{{{name}}}")]).trim_end().to_owned()
    }

    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        self.tmux(&["resize-window", "-x", &columns.to_string(), "-y", &rows.to_string()]);
    }

    /// Waits until the terminal shows something, and returns all of it.
    pub(crate) fn wait(&self, what: &str, is_shown: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let text = self.text();
            if is_shown(&text) {
                return text;
            }
            assert!(Instant::now() < until, "{what} is not shown:\n{text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Tmux {
    /// Closes the terminal under whatever runs in it.
    pub(crate) fn close(&self) {
        let mut command = Command::new("tmux");
        let _ended_already = command.args(["-S", &self.socket, "kill-server"]).stderr(Stdio::null()).status();
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.close();
    }
}
