//! The report of the virtual machine, and the verdict on it.
//!
//! A program counts as passed only if the machine said, with the word of this run, that it began and that it ended with status
//! 0, if its own summary counts no failure, and if passed and ignored are as many tests as the program lists outside. What is
//! missing is a failure, so a machine that stops early never passes.

use std::fmt;

/// A program to be run, by its path in the machine, and the number of tests it lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) path: String,
    pub(super) tests: usize,
}

/// The tests of a program that passed, and the lines that say which were ignored.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Passed<'a> {
    pub(super) path: &'a str,
    pub(super) passed: usize,
    pub(super) ignored: Vec<&'a str>,
}

/// The reason why a report is no pass.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The machine ended, or was ended, before this program had.
    Unfinished { program: String },
    /// A program ended with another status than 0; a negative number is a signal.
    Failed { program: String, status: i32 },
    /// A program's summary does not add up.
    Miscounted { program: String, listed: usize, summary: String },
    /// All programs ended, and the machine did not say that there are no more.
    NoEnd,
}

impl Refusal {
    /// Returns the part of a report that the refusal is about: from the beginning of its program, or of everything, to the
    /// next program's.
    pub(super) fn lines<'a>(&self, report: &'a str, word: &str) -> Vec<&'a str> {
        let program = match self {
            Self::Unfinished { program } | Self::Failed { program, .. } | Self::Miscounted { program, .. } => program,
            Self::NoEnd => "",
        };
        let begin = format!("{word} begin {program}");
        let lines = report.lines().map(str::trim_end).skip_while(|line| !line.starts_with(&begin));
        let next = format!("{word} begin ");
        let mut begun = 0;
        lines
            .take_while(|line| {
                begun += usize::from(line.starts_with(&next));
                begun < 2 || program.is_empty()
            })
            .collect()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unfinished { program } => write!(f, "{program} did not end"),
            Self::Failed { program, status: signal @ ..0 } => write!(f, "{program} was ended by signal {}", -signal),
            Self::Failed { program, status } => write!(f, "{program} ended with status {status}"),
            Self::Miscounted { program, listed, summary } => {
                write!(f, "{program} lists {listed} tests and its summary is `{summary}`")
            }
            Self::NoEnd => write!(f, "the machine did not report the end of the run"),
        }
    }
}

/// Judges the report of a run whose lines begin with `word`.
pub(super) fn judge<'a>(report: &'a str, word: &str, programs: &'a [Program]) -> Result<Vec<Passed<'a>>, Refusal> {
    let mut lines = report.lines().map(str::trim_end);
    let mut passed = Vec::new();
    for program in programs {
        let path = program.path.as_str();
        let unfinished = || Refusal::Unfinished { program: path.to_owned() };
        let begin = format!("{word} begin {path}");
        lines.find(|line| *line == begin).ok_or_else(unfinished)?;
        let end = format!("{word} end {path} ");
        let mut output = Vec::new();
        let status = loop {
            let line = lines.next().ok_or_else(unfinished)?;
            match line.strip_prefix(&end) {
                Some(status) => break status.parse::<i32>().map_err(|_| unfinished())?,
                None => output.push(line),
            }
        };
        if status != 0 {
            return Err(Refusal::Failed { program: path.to_owned(), status });
        }
        passed.push(counted(program, &output)?);
    }
    let done = format!("{word} done {}", programs.len());
    lines.any(|line| line == done).then_some(passed).ok_or(Refusal::NoEnd)
}

/// Compares the last summary of a program with the number of tests it lists.
fn counted<'a>(program: &'a Program, output: &[&'a str]) -> Result<Passed<'a>, Refusal> {
    let summary = output.iter().rev().find(|line| line.starts_with("test result: ")).copied().unwrap_or("");
    let count = |what: &str| {
        summary.split(['.', ';']).find_map(|part| part.trim().strip_suffix(what)?.trim().parse::<usize>().ok())
    };
    let ignored: Vec<&str> = output.iter().filter(|line| is_ignored(line)).copied().collect();
    match (count("passed"), count("failed"), count("ignored")) {
        (Some(passed), Some(0), Some(not)) if passed > 0 && passed + not == program.tests && not == ignored.len() => {
            Ok(Passed { path: &program.path, passed, ignored })
        }
        _ => Err(Refusal::Miscounted {
            program: program.path.clone(),
            listed: program.tests,
            summary: summary.to_owned(),
        }),
    }
}

/// Returns whether a line says that a test was ignored: `test NAME ... ignored`, with or without a reason.
fn is_ignored(line: &str) -> bool {
    line.strip_prefix("test ")
        .and_then(|line| line.split_once("... "))
        .is_some_and(|(_, how)| how.starts_with("ignored"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "w7 begin /a\r\ntest x ... ok\r\ntest y ... ignored, no GPU\r\n\
                        test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\r\n\
                        w7 end /a 0\r\nw7 begin /b\r\n\
                        test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\r\n\
                        w7 end /b 0\r\nw7 done 2\r\n";

    fn programs() -> Vec<Program> {
        [("/a", 2), ("/b", 3)].map(|(path, tests)| Program { path: path.into(), tests }).to_vec()
    }

    #[test]
    fn a_whole_report_passes() {
        let programs = programs();
        let passed = judge(GOOD, "w7", &programs).unwrap();
        assert_eq!(passed[0], Passed { path: "/a", passed: 1, ignored: vec!["test y ... ignored, no GPU"] });
        assert_eq!((passed[1].passed, passed.len()), (3, 2));
    }

    #[test]
    fn no_report_that_lacks_a_line_passes() {
        let lines: Vec<&str> =
            GOOD.lines().filter(|line| *line != "test x ... ok\r" && *line != "test x ... ok").collect();
        for left_out in 0..lines.len() {
            let rest: Vec<&str> = (0..lines.len()).filter(|at| *at != left_out).map(|at| lines[at]).collect();
            let (report, programs) = (rest.join("\n"), programs());
            assert!(judge(&report, "w7", &programs).is_err(), "without `{}`", lines[left_out]);
        }
    }

    #[test]
    fn a_refusal_shows_the_program_it_is_about() {
        let refusal = Refusal::Failed { program: "/a".into(), status: 1 };
        let lines = refusal.lines(GOOD, "w7");
        assert_eq!((lines.first(), lines.last(), lines.len()), (Some(&"w7 begin /a"), Some(&"w7 end /a 0"), 5));
        assert_eq!(Refusal::NoEnd.lines(GOOD, "w7").len(), GOOD.lines().count());
    }

    #[test]
    fn no_report_that_was_cut_off_passes() {
        let whole = GOOD.trim_end().len();
        for end in 0..whole {
            assert!(judge(&GOOD[..end], "w7", &programs()).is_err(), "cut off at {end}");
        }
    }

    #[test]
    fn another_word_another_status_and_another_count_do_not_pass() {
        let programs = programs();
        let refused = |report: &str, word| judge(report, word, &programs).unwrap_err();
        assert_eq!(refused(GOOD, "w8"), Refusal::Unfinished { program: "/a".into() });
        let signal = refused(&GOOD.replace("end /b 0", "end /b -11"), "w7");
        assert_eq!(signal.to_string(), "/b was ended by signal 11");
        assert_eq!(
            refused(&GOOD.replace("end /a 0", "end /a 101"), "w7"),
            Refusal::Failed { program: "/a".into(), status: 101 }
        );
        for (from, to) in [
            ("3 passed", "2 passed"),
            ("0 failed; 0", "1 failed; 0"),
            ("3 passed", "0 passed"),
            ("1 ignored", "0 ignored"),
        ] {
            let report = GOOD.replace(from, to);
            assert!(matches!(judge(&report, "w7", &programs), Err(Refusal::Miscounted { .. })), "{from} → {to}");
        }
        assert_eq!(refused(&GOOD.replace("done 2", "done 1"), "w7"), Refusal::NoEnd);
    }
}
