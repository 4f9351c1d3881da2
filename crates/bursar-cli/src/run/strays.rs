//! Processes that workers put where no signal to their group reaches, and that came to us when their parents ended.

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Ends whatever is still a child of this process, and what comes to us from those.
pub(crate) fn end() {
    loop {
        let strays = children();
        if strays.is_empty() {
            return;
        }
        for stray in strays {
            let _ = kill_process(stray, Signal::KILL);
            let _ = waitpid(Some(stray), WaitOptions::empty());
        }
    }
}

/// The children of every thread of this process.
fn children() -> Vec<Pid> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(number).collect::<Vec<_>>()).collect()
}

fn number(word: &str) -> Option<Pid> {
    word.parse().ok().and_then(Pid::from_raw)
}
