//! `bursar top` in a terminal, driven by keys and read back.

use crate::Named;
use crate::common::Folder;
use crate::other::Other;
use crate::tmux::{PATIENCE, Tmux};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

pub(crate) const TRIALS: &[Named] = &[
    ("m1_a_terminal_shows_what_processes_take_and_give_back", a_terminal_shows_what_processes_take),
    ("keys_sort_filter_pause_and_help", keys_sort_filter_pause_and_help),
    ("the_queue_shows_who_waits", the_queue_shows_who_waits),
    ("m1_refusals_are_told_with_their_explanation", refusals_are_told_with_their_explanation),
    ("a_frame_follows_the_size_of_its_terminal", a_frame_follows_the_size_of_its_terminal),
    ("the_terminal_is_given_back_however_it_ends", the_terminal_is_given_back_however_it_ends),
    ("a_terminal_that_goes_away_ends_it_as_a_signal_does", a_terminal_that_goes_away_ends_it),
    ("a_terminal_of_an_absurd_size_is_drawn_in_part", a_terminal_of_an_absurd_size_is_drawn_in_part),
    ("a_stopped_top_goes_on_where_it_was", a_stopped_top_goes_on_where_it_was),
    ("colours_are_shown_unless_they_are_not_wanted", colours_are_shown_unless_they_are_not_wanted),
    ("a_terminal_that_cannot_is_told_what_works", a_terminal_that_cannot_is_told_what_works),
];

/// Returns the place of the row of a process.
fn row(text: &str, other: &Other) -> Option<usize> {
    text.find(&format!(" {} ", other.pid()))
}

/// Opens a terminal with `bursar top` in it.
fn open(folder: &Folder) -> Tmux {
    let tmux = Tmux::open(folder);
    tmux.line("sh $TOP; echo ended $?");
    tmux.wait("the first frame", |text| text.contains("q quit") && text.contains("gpu0"));
    tmux
}

fn a_terminal_shows_what_processes_take(folder: &Folder) {
    let tmux = open(folder);
    tmux.wait("nothing held", |text| text.contains("H held 0 B") && text.contains("0 processes"));
    let mut large = Other::start(folder, "large");
    tmux.wait("the process", |text| text.contains("H held 2 GiB") && row(text, &large).is_some());
    large.ask("take");
    tmux.wait("more", |text| text.contains("H held 3 GiB") && text.contains(". free 5 GiB"));
    large.ask("give");
    tmux.wait("less", |text| text.contains("H held 2 GiB"));
    let small = Other::start(folder, "small");
    let text = tmux.wait("the label", |text| text.contains("S set aside 1 GiB") && row(text, &small).is_some());
    assert!(text.contains("two\\nl"), "{text}");
    drop(large);
    tmux.wait("a process that died", |text| text.contains("H held 1 GiB") && text.contains("1 process "));
}

fn keys_sort_filter_pause_and_help(folder: &Folder) {
    let (mut large, small) = (Other::start(folder, "large"), Other::start(folder, "small"));
    let tmux = open(folder);
    let in_order = |text: &str, first: &Other, second: &Other| {
        row(text, first).zip(row(text, second)).is_some_and(|(first, second)| first < second)
    };
    tmux.wait("the largest first", |text| text.contains("HELDv") && in_order(text, &large, &small));
    tmux.keys(&["r"]);
    tmux.wait("the smallest first", |text| text.contains("HELD^") && in_order(text, &small, &large));
    tmux.keys(&["s", "r"]);
    tmux.wait("the most set aside first", |text| text.contains("SET ASIDEv") && in_order(text, &small, &large));
    tmux.keys(&["/"]);
    tmux.keys(&["-l", &large.pid().to_string()]);
    let typed = format!("filter: {}_", large.pid());
    tmux.wait("the filter", |text| text.contains(&typed) && row(text, &small).is_none());
    tmux.keys(&["Enter"]);
    let text = tmux.wait("the filtered rows", |text| text.contains("[1 Processes 1]") && text.contains("q quit"));
    assert!(row(&text, &large).is_some() && row(&text, &small).is_none(), "{text}");
    tmux.keys(&["/", "x"]);
    tmux.wait("more of the filter", |text| text.contains("x_"));
    // Alone: with a key right behind it, it would be that key with Alt.
    tmux.keys(&["Escape"]);
    tmux.wait("the filter as before", |text| text.contains("[1 Processes 1]") && text.contains("q quit"));
    tmux.keys(&["Space"]);
    tmux.wait("a pause", |text| text.contains("PAUSED") && text.contains("H held 3 GiB"));
    large.ask("take");
    tmux.keys(&["?"]);
    tmux.wait("help", |text| text.contains("reverse the order"));
    tmux.keys(&["x"]);
    tmux.wait("the paused frame", |text| text.contains("PAUSED") && text.contains("H held 3 GiB"));
    tmux.keys(&["p"]);
    tmux.wait("the end of the pause", |text| !text.contains("PAUSED") && text.contains("H held 4 GiB"));
    tmux.keys(&["Tab"]);
    tmux.wait("tenants", |text| text.contains("[2 Tenants") && text.contains("CEILING"));
    tmux.keys(&["5"]);
    tmux.wait("devices", |text| text.contains("[5 Devices 1]") && text.contains("the driver says"));
    tmux.keys(&["q"]);
    tmux.wait("the end", |text| text.contains("ended 0"));
}

fn the_queue_shows_who_waits(folder: &Folder) {
    let mut large = Other::start(folder, "large");
    let tmux = open(folder);
    tmux.keys(&["3"]);
    tmux.wait("nobody", |text| text.contains("[3 Queue 0]") && text.contains("nobody waits"));
    large.ask("wait");
    let text = tmux.wait("the one that waits", |text| text.contains("[3 Queue 1]") && text.contains("1 waiting"));
    assert!(row(&text, &large).is_some() && text.contains("8 GiB"), "{text}");
}

fn refusals_are_told_with_their_explanation(folder: &Folder) {
    let mut large = Other::start(folder, "large");
    let tmux = open(folder);
    tmux.keys(&["4"]);
    tmux.wait("nobody", |text| text.contains("[4 Refusals 0]") && text.contains("nobody was refused"));
    large.ask("refuse");
    let text = tmux.wait("the refusal", |text| text.contains("[4 Refusals 1]") && text.contains("1 refused"));
    assert!(row(&text, &large).is_some(), "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["7 GiB 6 GiB 8 GiB limit", "7 GiB requested, 6 GiB of 8 GiB left under the limit of the ledger"] {
        assert!(words.contains(part), "{part}:\n{text}");
    }
}

fn a_frame_follows_the_size_of_its_terminal(folder: &Folder) {
    let tmux = open(folder);
    let footer = |text: &str, rows: usize| text.lines().nth(rows - 1).is_some_and(|line| line.starts_with("q quit"));
    for (columns, rows) in [(132, 50), (60, 12), (24, 6)] {
        tmux.resize(columns, rows);
        tmux.wait("the keys below", |text| footer(text, rows.into()) && text.contains("gpu0"));
    }
    tmux.resize(20, 4);
    tmux.wait("too small", |text| text.contains("too small"));
    tmux.resize(80, 24);
    tmux.wait("the keys below", |text| footer(text, 24) && text.contains("j/k move"));
}

/// Returns the process that runs in the terminal's foreground.
fn foreground(tmux: &Tmux) -> Pid {
    let shell = tmux.variable("pane_pid");
    let stat = std::fs::read_to_string(format!("/proc/{shell}/stat")).expect("it runs");
    let (_, fields) = stat.rsplit_once(')').expect("a name in parentheses");
    let group = fields.split_whitespace().nth(5).and_then(|group| group.parse().ok());
    group.and_then(Pid::from_raw).expect("the foreground group of its terminal")
}

fn the_terminal_is_given_back_however_it_ends(folder: &Folder) {
    let tmux = Tmux::open(folder);
    let (before, after) = (folder.path("before"), folder.path("after"));
    tmux.line(&format!("stty -g > {before}"));
    type End = fn(&Tmux);
    let ends: [(&str, End); 10] = [
        ("0", |tmux| tmux.keys(&["q"])),
        ("0", |tmux| tmux.keys(&["Escape"])),
        ("0", |tmux| tmux.keys(&["C-c"])),
        ("143", |tmux| kill_process(foreground(tmux), Signal::TERM).expect("ours")),
        ("129", |tmux| kill_process(foreground(tmux), Signal::HUP).expect("ours")),
        ("131", |tmux| kill_process(foreground(tmux), Signal::QUIT).expect("ours")),
        ("138", |tmux| kill_process(foreground(tmux), Signal::USR1).expect("ours")),
        ("140", |tmux| kill_process(foreground(tmux), Signal::USR2).expect("ours")),
        ("142", |tmux| kill_process(foreground(tmux), Signal::ALARM).expect("ours")),
        ("152", |tmux| kill_process(foreground(tmux), Signal::XCPU).expect("ours")),
    ];
    for (at, (status, end)) in ends.into_iter().enumerate() {
        tmux.line("clear; echo here before");
        let is_clear = |text: &str| text.lines().next() == Some("here before") && !text.contains("told");
        tmux.wait("the line", is_clear);
        tmux.line(&format!("sh $TOP; echo ended {at} $?; stty -g > {after}; echo told"));
        tmux.wait("a frame", |text| text.contains("q quit") && text.contains("gpu0"));
        assert_eq!((tmux.variable("alternate_on"), tmux.variable("cursor_flag")), ("1".into(), "0".into()));
        end(&tmux);
        let told = format!("ended {at} {status}");
        let is_told = |text: &str| text.contains(&told) && text.lines().any(|line| line == "told");
        tmux.wait(&told, |text| text.contains("here before") && is_told(text));
        assert_eq!((tmux.variable("alternate_on"), tmux.variable("cursor_flag")), ("0".into(), "1".into()));
        let [before, after] = [&before, &after].map(|path| std::fs::read_to_string(path).expect("it was written"));
        assert_eq!(before, after, "the modes of the terminal");
    }
}

fn a_terminal_that_goes_away_ends_it(folder: &Folder) {
    let tmux = Tmux::open(folder);
    let status = folder.path("status");
    // The shell outlives its terminal, and the command below it is started to be ended by the signal.
    tmux.line(&format!("sh -c 'trap : HUP; sh $TOP; echo $? > {status}.new; mv {status}.new {status}'"));
    tmux.wait("a frame", |text| text.contains("q quit") && text.contains("gpu0"));
    tmux.close();
    let until = Instant::now() + PATIENCE;
    let ended = loop {
        if let Ok(ended) = std::fs::read_to_string(&status) {
            break ended;
        }
        assert!(Instant::now() < until, "it does not end with its terminal");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(ended.trim_end(), "129");
}

fn a_terminal_of_an_absurd_size_is_drawn_in_part(folder: &Folder) {
    let tmux = Tmux::open(folder);
    tmux.line("stty rows 65535 cols 65535; sh $TOP; echo ended $?");
    tmux.wait("the terminal taken, or an end", |text| {
        tmux.variable("alternate_on") == "1" || text.lines().any(|line| line.starts_with("ended "))
    });
    tmux.keys(&["q"]);
    let text = tmux.wait("the end", |text| text.lines().any(|line| line.starts_with("ended ")));
    assert!(text.contains("ended 0"), "{text}");
}

fn a_stopped_top_goes_on_where_it_was(folder: &Folder) {
    let tmux = Tmux::open(folder);
    tmux.line("set -m; sh $TOP");
    tmux.wait("a frame", |text| text.contains("q quit") && text.contains("gpu0"));
    tmux.keys(&["2"]);
    tmux.wait("tenants", |text| text.contains("[2 Tenants"));
    for stop in [
        |tmux: &Tmux| tmux.keys(&["C-z"]),
        |tmux: &Tmux| {
            kill_process(foreground(tmux), Signal::TSTP).expect("ours");
        },
    ] {
        stop(&tmux);
        tmux.wait("the shell", |text| text.contains("Stopped") && !text.contains("q quit"));
        tmux.line("clear; fg");
        tmux.wait("the frame", |text| text.contains("[2 Tenants") && text.contains("q quit"));
    }
    tmux.keys(&["q"]);
    tmux.wait("the shell", |text| !text.contains("q quit"));
}

fn colours_are_shown_unless_they_are_not_wanted(folder: &Folder) {
    let _large = Other::start(folder, "large");
    for (variable, coloured) in [("", true), ("NO_COLOR=1", false)] {
        let tmux = Tmux::open(folder);
        tmux.line(&format!("{variable} sh $TOP"));
        tmux.wait("a frame", |text| text.contains("H held 2 GiB"));
        let colours = tmux.escapes().split("\x1b[").skip(1).any(|rest| {
            let (codes, _) = rest.split_once('m').unwrap_or_default();
            codes.split(';').any(|code| matches!(code.parse(), Ok(30..=37 | 38 | 40..=48 | 90..=107)))
        });
        assert_eq!(colours, coloured, "{variable}");
    }
}

fn a_terminal_that_cannot_is_told_what_works(folder: &Folder) {
    let tmux = Tmux::open(folder);
    tmux.line("TERM=dumb sh $TOP; echo ended $?");
    let text = tmux.wait("the end", |text| text.contains("ended 2"));
    assert!(text.contains("cannot move its cursor") && text.contains("--once"), "{text}");
}
