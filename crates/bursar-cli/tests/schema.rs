//! Compares every command's real output with the schema in docs/cli.md.

mod common;

use common::Folder;
use common::schema::{block, wrong};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Read;
use std::process::{Command, Output, Stdio};

const DOCUMENT: &str = include_str!("../../../docs/cli.md");

/// Returns the schema of a command's output in the document.
fn schema(name: &str) -> Value {
    block(DOCUMENT, name)
}

/// Returns every name that the document has a schema for.
fn documented() -> BTreeSet<String> {
    let blocks = DOCUMENT.lines().filter_map(|line| line.strip_prefix("```json "));
    blocks.filter(|name| *name != "error").map(str::to_owned).collect()
}

impl Folder {
    fn trace(&self) -> String {
        let text = "Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00.0,allocate,0x1000,1000,0\n1,00:00:00.1,free,0x1000,1000,0\n";
        self.file("trace.csv", text)
    }

    /// Runs `bursar` with words that contain no blanks; a server is ended once it has printed something.
    fn bursar(&self, arguments: &str) -> Output {
        let mut command = self.command(arguments);
        if !arguments.contains(" serve ") {
            return command.output().expect("the command was built");
        }
        let mut server = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command was built");
        let mut first = [0];
        let stdout = server.stdout.as_mut().expect("piped");
        stdout.read_exact(&mut first).expect("it prints its address");
        kill_process(Pid::from_child(&server), Signal::TERM).expect("it is ours");
        let mut output = server.wait_with_output().expect("it ends");
        output.stdout.splice(..0, first);
        output
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bursar"));
        command
            .args(arguments.split_whitespace())
            .env("BURSAR_DRIVER", "sim")
            .env("BURSAR_SIM_DEVICES", format!("2x8GiB@schema-{}", std::process::id()))
            .env("BURSAR_LEDGER_DIR", self.ledgers())
            .env("CUDA_VISIBLE_DEVICES", "");
        command
    }

    /// Compares the output of a command with the schema `name`.
    fn check(&self, name: &str, arguments: &str) {
        let output = self.bursar(&format!("--json {arguments}"));
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        let values: Vec<Value> = match name {
            "run" | "top" => stdout.lines().map(|line| serde_json::from_str(line).expect("a value a line")).collect(),
            _ => vec![
                serde_json::from_str(&stdout)
                    .unwrap_or_else(|error| panic!("{arguments}: {error}\n{stdout}\n{stderr}")),
            ],
        };
        assert!(!values.is_empty(), "{arguments}: {stderr}");
        for value in values {
            let wrong = wrong(&value, &schema(name), "");
            assert!(wrong.is_empty(), "{arguments}:\n{}", wrong.join("\n"));
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Every command that prints JSON, with the name of its schema in the document.
const COMMANDS: &[(&str, &str)] = &[
    ("demo", "demo"),
    ("demo", ""),
    ("devices", "devices"),
    ("fit", "fit --pool ram --per-worker 1MiB"),
    ("fit", "fit --pool vram --fixed 1GiB --per-worker 3GiB --want 16"),
    ("fit", "fit --pool vram --available 1GiB --per-worker 3GiB"),
    ("fit", "fit --pool vram --available 1GiB --from-trace TRACE --want 10000"),
    ("run", "run --pool vram --per-worker 1GiB --want 3 -- true"),
    ("run", "run --pool vram --per-worker 1GiB --want 2 -- false"),
    ("ledger", "ledger show"),
    ("ledger", "ledger limit 0 4GiB"),
    ("ledger", "ledger clear"),
    ("top", "top --once"),
    ("top", "top --count 2 --interval 0.1"),
    ("serve", "serve --listen 127.0.0.1:0"),
    ("replay", "replay TRACE --stack pool,direct --limit 1GiB --html FOLDER/page.html"),
    ("replay", "replay TRACE --stack async --snapshot FOLDER/snapshot.pickle"),
    ("replay", "replay --generate mix,rounds=50 --deal 3:foreign --jitter 10% --seed 4"),
    ("bench pairs", "bench pairs --bytes 1KiB --threads 1,2 --pairs 100"),
    ("bench live", "bench live --blocks 10,100 --rounds 2 --pairs 100 --statistics on"),
    ("bench sleep", "bench sleep --bytes 8MiB --block 3MiB --rounds 1 --load"),
    ("bench pinned", "bench pinned --bytes 1MiB --copies 1 --pairs 100"),
    ("bench streams", "bench streams --bytes 1MiB --copies 1 --allocations 10 --patience 1"),
    ("bench fragmentation", "bench fragmentation --fill 64MiB --stack pool,async,direct"),
    ("bench cluster", "bench cluster --nodes 2 --cards 4 --requests 200"),
    ("convert", "convert TRACE FOLDER/trace.jsonl"),
    ("convert", "convert --generate server,rounds=3 FOLDER/server.bin --deal 2"),
    ("ray-resources", "ray-resources"),
    ("completions", "completions bash"),
    ("man", "man"),
    ("man", "man --to FOLDER/man"),
];

#[test]
fn every_output_is_as_documented() {
    let folder = Folder::with_ledgers();
    let trace = folder.trace();
    for (name, arguments) in COMMANDS {
        folder.check(name, &arguments.replace("TRACE", &trace).replace("FOLDER", &folder.path("")));
    }
}

#[test]
fn f8_a_failure_is_as_documented() {
    let folder = Folder::with_ledgers();
    for arguments in
        ["fit --driver cuda", "devices --driver cuda", "run --driver cuda -- true", "convert no-file x.csv"]
    {
        folder.check("error", arguments);
    }
}

/// Returns the commands that a command's help lists.
fn listed(folder: &Folder, command: &str) -> BTreeSet<String> {
    let help = text(&folder.bursar(&format!("{command} --help")).stdout);
    let Some((_, commands)) = help.split_once("Commands:\n") else { return BTreeSet::new() };
    let lines = commands.lines().take_while(|line| line.starts_with("  ") || line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    names.map(|name| format!("{command} {name}").trim_start().to_owned()).collect()
}

#[test]
fn every_command_is_documented_and_checked() {
    let folder = Folder::with_ledgers();
    let mut commands = listed(&folder, "");
    assert!(commands.remove("bench"), "{commands:?}");
    commands.extend(listed(&folder, "bench"));
    // Those about other programs are compared where there are such programs: in sleep.rs.
    let names = COMMANDS.iter().map(|(name, _)| *name).chain(["sleep", "wake"]);
    let checked: BTreeSet<String> = names.map(str::to_owned).collect();
    assert_eq!(commands, documented());
    assert_eq!(commands, checked);
}

#[test]
fn every_command_s_help_has_an_example() {
    let folder = Folder::with_ledgers();
    let mut commands: Vec<String> = vec![String::new()];
    while let Some(command) = commands.pop() {
        let help = text(&folder.bursar(&format!("{command} --help")).stdout);
        assert!(help.contains("Example") && help.contains("  bursar"), "bursar {command} --help:\n{help}");
        commands.extend(listed(&folder, &command));
    }
}

#[test]
fn the_check_sees_what_is_missing_what_is_new_and_what_is_another_kind() {
    let schema: Value =
        serde_json::from_str(r#"{"a": "bytes", "b?": ["string"], "c": [{"d": "boolean"}, {"e": "number"}]}"#)
            .expect("a schema");
    let check = |text: &str| wrong(&serde_json::from_str(text).expect("JSON"), &schema, "");
    assert_eq!(check(r#"{"a": 1, "b": null, "c": []}"#), [""; 0]);
    assert_eq!(check(r#"{"a": 1, "b": ["x"], "c": [{"e": 1.5}, {"d": true}]}"#), [""; 0]);
    assert_eq!(check(r#"{"b": null, "c": []}"#), [".a is documented and missing"]);
    assert_eq!(
        check(r#"{"a": 1.5, "b": [], "c": [], "f": 1}"#),
        [".f is not documented", ".a is 1.5, and should be bytes"]
    );
    assert_eq!(check(r#"{"a": null, "b": [], "c": [{"d": 1}]}"#).len(), 2);
}

#[test]
fn shells_and_manuals_know_every_command() {
    let folder = Folder::with_ledgers();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = folder.bursar(&format!("completions {shell}"));
        let script = text(&output.stdout);
        assert!(
            output.status.success() && ["fit", "ledger", "per-worker"].iter().all(|word| script.contains(word)),
            "{shell}"
        );
    }
    let page = text(&folder.bursar("man fit").stdout);
    assert!(page.contains(".TH BURSAR-FIT 1") && page.contains("\\-\\-per\\-worker"), "{page}");
    let pages = folder.path("pages");
    assert!(folder.bursar(&format!("man --to {pages}")).status.success());
    let mut written: Vec<_> =
        std::fs::read_dir(&pages).expect("it was made").map(|page| page.expect("a page").file_name()).collect();
    written.sort();
    for page in ["bursar.1", "bursar-fit.1", "bursar-bench-pairs.1", "bursar-ledger-show.1"] {
        assert!(written.iter().any(|name| name == page), "{page} is missing: {written:?}");
    }
    assert!(!written.iter().any(|name| name.to_string_lossy().contains("keep")), "{written:?}");
    let output = folder.bursar("man conquer");
    assert_eq!((output.status.code(), text(&output.stderr).contains("no such command")), (Some(2), true));
}
