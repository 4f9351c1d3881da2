//! The output of a run.

use super::Named;
use super::rig::{Rig, end};
use serde_json::Value;
use std::process::Command;

pub(crate) const TRIALS: &[Named] = &[
    ("lines_are_whole_and_say_whose_they_are", lines_are_whole_and_say_whose_they_are),
    ("bytes_that_are_no_text_pass_and_a_last_line_needs_no_end", bytes_that_are_no_text_pass),
    ("blanks_are_filled_in_and_workers_are_told_who_they_are", workers_are_told_who_they_are),
    ("f5_workers_are_told_which_device_is_theirs", workers_are_told_which_device_is_theirs),
    ("json_is_a_line_a_worker_and_nothing_else", json_is_a_line_a_worker),
    ("the_status_says_what_happened", the_status_says_what_happened),
    ("f2_ram_that_overflows_is_a_warning_and_vram_an_error", overflow_is_a_warning_or_an_error),
    ("whoever_stops_reading_does_not_end_the_workers", whoever_stops_reading_does_not_end_the_workers),
    ("what_cannot_be_said_changes_no_status", what_cannot_be_said_changes_no_status),
    ("n1_a_worker_runs_on_the_processors_of_its_slot", a_worker_runs_on_the_processors_of_its_slot),
    ("a_run_reads_the_input_it_was_given_and_workers_read_nothing", a_run_reads_its_input),
];

fn lines_are_whole_and_say_whose_they_are(rig: &Rig) {
    let script = "i=0; while [ $i -lt 300 ]; do printf 'a{worker}'; printf ' line %d\\n' $i; \
                  printf 'b{worker} line %d\\n' $i >&2; i=$((i+1)); done";
    let ended = end(rig.shell("--want 4 --per-worker 1GiB", script));
    assert_eq!(ended.code(), 0, "{ended:?}");
    for (stream, worker) in [("a", 0), ("a", 3), ("b", 0), ("b", 3), ("a", 1), ("b", 2)] {
        let prefix = format!("[worker {worker}] {stream}{worker} line ");
        let numbers = ended.lines.iter().filter_map(|line| line.strip_prefix(prefix.as_str()));
        let numbers: Vec<u32> = numbers.map(|number| number.parse().expect("a whole line")).collect();
        assert_eq!(numbers, (0..300).collect::<Vec<_>>(), "{prefix}");
    }
    assert_eq!(ended.count("[worker "), 4 * 2 * 300);
}

fn bytes_that_are_no_text_pass(rig: &Rig) {
    let output = rig.shell("--per-worker 1GiB", r"printf 'a\377b\nno end'").output().expect("the command was built");
    assert_eq!(output.stdout, b"[worker 0] a\xffb\n[worker 0] no end\n");
}

fn workers_are_told_who_they_are(rig: &Rig) {
    let script = "echo {worker}/{workers} $BURSAR_WORKER/$BURSAR_WORKERS {nothing} $1 $2";
    let mut command = rig.shell("--want 3 --per-worker 1GiB", script);
    command.args(["sh", "--last={worker}", "two words"]);
    let ended = end(command);
    for worker in 0..3 {
        let line = format!("[worker {worker}] {worker}/3 {worker}/3 {{nothing}} --last={worker} two words");
        assert!(ended.lines.contains(&line), "{line}: {ended:?}");
    }
}

fn workers_are_told_which_device_is_theirs(rig: &Rig) {
    let listed = rig.bursar("devices --json").output().expect("the command was built");
    let listed: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let script = "echo {device} $CUDA_VISIBLE_DEVICES $BURSAR_DRIVER $BURSAR_SIM_DEVICES ${BURSAR_RESERVATION:+share}";
    let ended = end(rig.shell("--want 4 --per-worker 20GiB --fixed 1GiB", script));
    for device in 0..2 {
        let uuid = listed["devices"][device]["uuid"].as_str().expect("a UUID");
        let told = format!("{device} {uuid} sim 2x{}@pair share", 80u64 << 30);
        assert_eq!(ended.count(&told), 2, "{told}: {ended:?}");
    }
}

fn json_is_a_line_a_worker(rig: &Rig) {
    let script = "echo out; echo err >&2; exit $(( {worker} * 7 ))";
    let output = rig.shell("--json --want 2 --per-worker 3GiB --restart 1", script).output().expect("it was built");
    assert_eq!(output.status.code(), Some(1));
    let reports = String::from_utf8(output.stdout).expect("text");
    let mut reports: Vec<Value> = reports.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    reports.sort_by_key(|report| report["worker"].as_u64());
    let expected = [("ended", 0, 0, 0), ("failed", 7, 1, 1)];
    for (worker, (status, code, restarts, device)) in expected.into_iter().enumerate() {
        let report = &reports[worker];
        assert_eq!((&report["worker"], &report["status"]), (&worker.into(), &status.into()), "{reports:?}");
        assert_eq!((&report["exit_code"], &report["restarts"]), (&code.into(), &restarts.into()), "{reports:?}");
        assert_eq!((&report["limit"], &report["device"]), (&(3u64 << 30).into(), &device.into()), "{reports:?}");
        assert_eq!((&report["numa_node"], &report["signal"]), (&Value::Null, &Value::Null), "{reports:?}");
    }
    let shown = String::from_utf8(output.stderr).expect("text");
    assert_eq!((shown.matches("] out\n").count(), shown.matches("] err\n").count()), (3, 3), "{shown}");
}

fn the_status_says_what_happened(rig: &Rig) {
    for (command, code, said) in [
        (rig.shell("--want 3 --per-worker 1GiB", "exit 0"), 0, "3 workers ended well"),
        (
            rig.shell("--want 3 --per-worker 1GiB", "exit {worker}"),
            1,
            "2 of 3 workers failed: worker 1 ended with status 1",
        ),
        (rig.shell("--per-worker 1GiB", "exit 0"), 0, "the worker ended well"),
        (rig.shell("--per-worker 1GiB", "kill -USR1 $$"), 1, "worker 0 was ended by SIGUSR1"),
        (rig.shell("--per-worker 81GiB", "exit 0"), 1, "VRAM does not swap"),
        (rig.run("--per-worker 1GiB", &["no-such-command"]), 2, "no-such-command could not be started"),
        (rig.run("--per-worker 1GiB", &["/"]), 2, "could not be started"),
        (rig.run("--per-worker lots", &["true"]), 2, "1.5GiB"),
        (rig.run("--grace never", &["true"]), 2, "a number of seconds"),
        (rig.run("--pool ram --per-worker 1MiB", &["echo", "{device}"]), 2, "{device} stands for nothing"),
        (rig.run("--devices 9", &["true"]), 2, "--devices"),
        (rig.run("--driver cuda", &["true"]), 3, "there is no GPU to use"),
    ] {
        let mut command = command;
        command.env("CUDA_VISIBLE_DEVICES", "");
        let ended = end(command);
        assert_eq!(ended.code(), code, "{said}: {ended:?}");
        assert!(ended.has(said), "{said}: {ended:?}");
        assert!(code != 2 || ended.count("[worker") == 0, "{ended:?}");
    }
}

fn overflow_is_a_warning_or_an_error(rig: &Rig) {
    let asked = "--available 64GiB --fixed 60GiB --per-worker 4GiB --want 2";
    let ended = end(rig.shell(&format!("--pool ram {asked}"), "echo one"));
    assert_eq!((ended.code(), ended.count("[worker 0] one")), (0, 1), "{ended:?}");
    assert!(ended.has("the shared data will swap"), "{ended:?}");
    let ended = end(rig.shell(&format!("--pool vram {asked}"), "echo one"));
    assert_eq!((ended.code(), ended.count("[worker")), (1, 0), "{ended:?}");
    let ended = end(rig.shell(&format!("--pool vram --allow-overflow {asked}"), "echo one"));
    assert_eq!((ended.code(), ended.count("[worker 0] one")), (0, 1), "{ended:?}");
}

fn whoever_stops_reading_does_not_end_the_workers(rig: &Rig) {
    let gate = rig.gate("gate");
    let mut command = rig.shell("--per-worker 1GiB", "echo first; cat gate; echo second; echo third; touch done");
    let mut child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the command was built");
    let mut out = std::io::BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).expect("a line");
    drop((out, gate));
    assert_eq!((line.as_str(), child.wait().expect("ours").code()), ("[worker 0] first\n", Some(0)));
    assert!(rig.path("done").exists());
}

/// Runs `bursar` with these words by a shell with these redirections.
fn with_files(rig: &Rig, command: &Command, files: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec \"$0\" \"$@\" {files}")]).arg(command.get_program()).args(command.get_args());
    rig.place(&mut shell);
    shell
}

/// A script that signals its run: the parent of the supervisor is the watchdog, and the parent of that is `bursar run`.
const HANGS_UP: &str = "watchdog=$(cut -d ' ' -f 4 /proc/$PPID/stat); echo err >&2; \
                        kill -HUP $(cut -d ' ' -f 4 /proc/$watchdog/stat); exec sleep 8888";

fn what_cannot_be_said_changes_no_status(rig: &Rig) {
    let cases = [
        (rig.shell("--per-worker 1GiB --want 2", "echo out; echo err >&2"), 0),
        (rig.shell("--per-worker 1GiB --want 2 --json", "echo out; echo err >&2"), 0),
        (rig.shell("--per-worker 1GiB --want 2", "exit 7"), 1),
        (rig.shell("--per-worker 81GiB", "true"), 1),
        (rig.shell("--per-worker 1GiB --want 2", HANGS_UP), 129),
        (rig.run("--per-worker 1GiB", &["no-such-command"]), 2),
        (rig.run("--pool ram --fixed 60GiB --available 64GiB --per-worker 4GiB", &["true"]), 0),
        (rig.run("--per-worker lots", &["true"]), 2),
    ];
    for (command, code) in &cases {
        for files in ["2>/dev/full", "2>&-", "2>&- >/dev/null", "2>/dev/full >&-"] {
            let ended = end(with_files(rig, command, files));
            assert_eq!(ended.code(), *code, "{command:?} {files}: {ended:?}");
        }
    }
    // JSON that cannot be written is a failure.
    let ended = end(with_files(rig, &rig.shell("--per-worker 1GiB --json", "true"), ">/dev/full"));
    assert_eq!(ended.code(), 3, "{ended:?}");
    assert!(ended.has("No space left"), "{ended:?}");
}

fn a_worker_runs_on_the_processors_of_its_slot(rig: &Rig) {
    let allowed = rustix::thread::sched_getaffinity(None).expect("the kernel knows");
    let last = (0..rustix::thread::CpuSet::MAX_CPU).rfind(|cpu| allowed.is_set(*cpu)).expect("this runs somewhere");
    let mut launch =
        rig.bursar(&format!("run:launch {} {last} grep Cpus_allowed_list /proc/self/status", std::process::id()));
    let output = launch.stdin(std::process::Stdio::piped()).output().expect("the command was built");
    let said = String::from_utf8(output.stdout).expect("text");
    assert_eq!(said.split_whitespace().nth(1), Some(last.to_string().as_str()), "{said}");
}

fn a_run_reads_its_input(rig: &Rig) {
    let log = "Thread,Time,Action,Pointer,Size,Stream\n1,0:0:0.1,allocate,0x1000,3221225472,0\n1,0:0:0.2,free,0x1000,3221225472,0\n";
    std::fs::write(rig.path("log.csv"), log).expect("a folder");
    let mut command = rig.shell("--from-trace /dev/stdin --json", "wc -c");
    command.stdin(std::fs::File::open(rig.path("log.csv")).expect("written"));
    let output = command.output().expect("the command was built");
    let shown = [output.stdout, output.stderr].concat();
    let shown = String::from_utf8(shown).expect("text");
    assert!(shown.contains("[worker 0] 0\n") && shown.contains("\"limit\":3221225472"), "{shown}");
}
