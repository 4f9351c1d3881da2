//! Children of this process, whoever started them: those of whom a subreaper's descendants are the parents come to it when
//! these end.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait, waitpid};
use std::time::Duration;

/// How long a child that is not listed yet is waited for.
const LOOK: Duration = Duration::from_millis(1);

/// Kills every child of this process, and what comes to it from those, until there is none. Processes of other users are out
/// of reach: they stay.
///
/// Nobody else may wait for children meanwhile: only while a child is not waited for is its number its own.
pub(crate) fn end() {
    while !matches!(wait(WaitOptions::NOHANG), Err(Errno::CHILD)) {
        let children = children();
        let is_killed = |child: &&Pid| kill_process(**child, Signal::KILL) != Err(Errno::PERM);
        let killed: Vec<_> = children.iter().filter(is_killed).collect();
        for child in &killed {
            let _ = waitpid(Some(**child), WaitOptions::empty());
        }
        match (children.is_empty(), killed.is_empty()) {
            (true, _) => std::thread::sleep(LOOK),
            (false, true) => return,
            (false, false) => (),
        }
    }
}

/// Continues every child of this process.
pub(crate) fn go_on() {
    for child in children() {
        // One that has ended meanwhile needs nothing.
        let _ = kill_process(child, Signal::CONT);
    }
}

/// Whether this process has children.
pub(crate) fn are_there() -> bool {
    !children().is_empty()
}

/// The children of every thread of this process.
fn children() -> Vec<Pid> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists: Vec<_> = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok()).collect();
    if lists.is_empty() {
        return children_by_parent();
    }
    lists.iter().flat_map(|list| list.split_whitespace().filter_map(number)).collect()
}

/// The same, where the kernel keeps no lists of children.
fn children_by_parent() -> Vec<Pid> {
    let (entries, parent) = (std::fs::read_dir("/proc").into_iter().flatten().flatten(), getpid());
    let numbers = entries.filter_map(|entry| entry.file_name().to_str().and_then(number));
    numbers.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in brackets and may hold anything.
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
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep is there");
        let pid = Pid::from_child(&child);
        let found = [children(), children_by_parent()].map(|children| children.contains(&pid));
        child.kill().and_then(|()| child.wait()).expect("it is ours");
        assert_eq!(found, [true, true]);
        assert!(!children_by_parent().contains(&pid));
    }
}
