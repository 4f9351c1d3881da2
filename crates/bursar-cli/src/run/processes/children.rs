//! The children of this process, including orphans: when a descendant of a subreaper ends, the kernel reparents its children
//! to the subreaper.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait, waitpid};
use std::time::Duration;

/// The interval of looking for a child that is not listed yet.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Kills every child of this process, and the orphans that come to it from those, until there is none. Processes of other
/// users cannot be killed and stay.
///
/// No other thread may wait for children meanwhile: once a child has been waited for, its number may be reused.
pub(crate) fn kill_all() {
    while !matches!(wait(WaitOptions::NOHANG), Err(Errno::CHILD)) {
        let children = children();
        let is_killed = |child: &&Pid| kill_process(**child, Signal::KILL) != Err(Errno::PERM);
        let killed: Vec<_> = children.iter().filter(is_killed).collect();
        for child in &killed {
            let _ = waitpid(Some(**child), WaitOptions::empty());
        }
        match (children.is_empty(), killed.is_empty()) {
            (true, _) => std::thread::sleep(POLL_INTERVAL),
            (false, true) => return,
            (false, false) => (),
        }
    }
}

/// Continues every child of this process.
pub(crate) fn continue_all() {
    for child in children() {
        // Fails for a child that has ended meanwhile, which needs nothing.
        let _ = kill_process(child, Signal::CONT);
    }
}

/// Returns whether this process has children.
pub(crate) fn exist() -> bool {
    !children().is_empty()
}

/// Returns the children of every thread of this process.
fn children() -> Vec<Pid> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists: Vec<_> = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok()).collect();
    if lists.is_empty() {
        return children_by_parent();
    }
    lists.iter().flat_map(|list| list.split_whitespace().filter_map(number)).collect()
}

/// Returns the children of this process on kernels that keep no lists of them: reads the parent of every process.
fn children_by_parent() -> Vec<Pid> {
    let (entries, parent) = (std::fs::read_dir("/proc").into_iter().flatten().flatten(), getpid());
    let numbers = entries.filter_map(|entry| entry.file_name().to_str().and_then(number));
    numbers.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in brackets and may contain anything.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1).and_then(number)
}

fn number(word: &str) -> Option<Pid> {
    word.parse().ok().and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn children_are_found_with_and_without_the_kernels_lists() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("`sleep` exists");
        let pid = Pid::from_child(&child);
        let found = [children(), children_by_parent()].map(|children| children.contains(&pid));
        child.kill().and_then(|()| child.wait()).expect("it is ours");
        assert_eq!(found, [true, true]);
        assert!(!children_by_parent().contains(&pid));
    }
}
