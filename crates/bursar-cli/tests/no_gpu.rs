//! The command on a machine without a GPU.

mod common;

use bursar::Bytes;
use common::Folder;
use serde_json::Value;
use std::process::{Command, Output};

impl Folder {
    /// Returns the command with words that contain no blanks, on a machine without a GPU.
    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bursar"));
        command.args(words.split_whitespace()).current_dir(&self.0);
        command.env_remove("BURSAR_DRIVER").env_remove("BURSAR_SIM_DEVICES").env("CUDA_VISIBLE_DEVICES", "");
        command.env("BURSAR_LEDGER_DIR", self.ledgers()).env("NO_COLOR", "1");
        command
    }

    fn bursar(&self, words: &str) -> Output {
        self.command(words).output().expect("the command was built")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the only JSON value that was printed.
fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Commands about the machine's GPUs.
const ABOUT_GPUS: [&str; 5] = [
    "fit --per-worker 6GiB --want 8",
    "fit --driver auto --per-worker 6GiB",
    "run --per-worker 6GiB --want 8 -- touch started",
    "devices",
    "ledger limit 0 1GiB",
];

#[test]
fn f8_without_a_gpu_the_command_stops_with_cause_and_remedy() {
    let folder = Folder::with_ledgers();
    for words in ABOUT_GPUS {
        let output = folder.bursar(words);
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), String::new()), "{words}: {said}");
        assert!(said.contains("there is no GPU to use: ") && said.contains("--driver sim"), "{words}: {said}");
        let is_stage = words.starts_with("fit") || words.starts_with("run");
        assert_eq!(said.contains("--pool ram"), is_stage, "{words}: {said}");
        let output = folder.bursar(&format!("--json {words}"));
        let error = &json(&output)["error"];
        assert_eq!((output.status.code(), &error["exit_status"]), (Some(3), &3.into()), "{words}");
        assert!(error["cause"].as_str().is_some_and(|cause| cause.contains("no GPU to use")), "{words}: {error}");
        assert!(error["remedy"].as_str().is_some_and(|remedy| remedy.contains("BURSAR_DRIVER=sim")), "{words}");
    }
    assert_eq!(folder.names(), ["ledgers"], "no worker was started");
}

#[test]
fn f8_describing_simulated_devices_in_the_environment_names_no_driver() {
    let folder = Folder::with_ledgers();
    for words in ABOUT_GPUS {
        let output = folder.command(words).env("BURSAR_SIM_DEVICES", "1x8GiB").output().expect("the command was built");
        assert_eq!(output.status.code(), Some(3), "{words}: {output:?}");
    }
}

#[test]
fn f8_simulated_devices_that_were_named_are_used_and_told_of() {
    let folder = Folder::with_ledgers();
    let (option, variable) = (("--driver sim", ""), ("", "sim"));
    for (how, driver) in
        [option, variable, ("--sim-devices 1x8GiB@named", ""), ("--driver auto --sim-devices 1x8GiB", "cuda")]
    {
        for words in ["fit --per-worker 1GiB", "devices", "ledger show", "run --per-worker 1GiB -- true"] {
            let mut command = folder.command(&format!("{how} --json {words}"));
            if !driver.is_empty() {
                command.env("BURSAR_DRIVER", driver);
            }
            let output = command.output().expect("the command was built");
            assert!(output.status.success(), "{how} {words}: {output:?}");
            let printed = json(&output);
            assert_eq!((&printed["simulated"], printed["driver"].is_string()), (&true.into(), true), "{how} {words}");
        }
    }
    let run = folder.bursar("run --driver sim --per-worker 1GiB -- true");
    assert!(text(&run.stderr).contains("on simulated devices"), "{run:?}");
    let shown = text(&folder.bursar("fit --driver sim --per-worker 1GiB").stdout);
    assert!(shown.contains("on simulated devices"), "{shown}");
    let output = folder.bursar("devices --driver cuda --sim-devices 1x8GiB");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    for (words, variable, value) in [
        ("devices", "BURSAR_DRIVER", "opencl"),
        ("devices", "BURSAR_SIM_DEVICES", "lots"),
        ("devices --sim-devices 1x8GiB", "BURSAR_DRIVER", "opencl"),
        ("devices --sim-devices 1x8GiB", "BURSAR_DRIVER", "cuda"),
    ] {
        let output = folder.command(words).env(variable, value).output().expect("the command was built");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{output:?}");
        assert!(text(&output.stderr).contains(value), "{output:?}");
    }
}

#[test]
fn f8_what_needs_no_gpu_works_without() {
    let folder = Folder::with_ledgers();
    let output = folder.bursar("--json fit --pool ram --per-worker 1MiB");
    let fit = json(&output);
    assert_eq!((output.status.code(), &fit["driver"], &fit["simulated"]), (Some(0), &Value::Null, &false.into()));
    let fit = json(&folder.bursar("--json fit --available 80GiB --per-worker 6GiB"));
    assert_eq!((&fit["driver"], &fit["simulated"]), (&Value::Null, &false.into()));
    assert!(folder.bursar("ledger limit host 1GiB").status.success());
    for words in ["--json ledger", "--json ledger show"] {
        let shown = json(&folder.bursar(words));
        assert_eq!((&shown["driver"], shown["devices"].as_array().map(Vec::len)), (&Value::Null, Some(1)), "{shown}");
        assert!(shown["no_gpu"].is_string(), "{shown}");
    }
    let output = folder.bursar("--json bench pairs --pairs 10 --threads 1");
    assert_eq!(json(&output)["simulated"], true);
    assert!(text(&output.stderr).contains("using simulated devices"), "{output:?}");
    assert!(folder.bursar("").status.success(), "the tour");
}

#[test]
fn the_options_about_devices_are_not_in_the_help_of_commands_without() {
    let folder = Folder::with_ledgers();
    for (words, has) in [("", true), ("fit", true), ("ledger show", true), ("bench pairs", true), ("convert", false)] {
        let help = text(&folder.bursar(&format!("{words} --help")).stdout);
        assert_eq!(help.contains("--sim-devices ") && help.contains("--driver "), has, "{words}: {help}");
        assert_eq!(help.contains("sim-devices") || help.contains("--driver"), has, "{words}: {help}");
    }
    for words in ["man", "completions"] {
        let help = text(&folder.bursar(&format!("{words} --help")).stdout);
        assert!(!help.contains("sim-devices") && !help.contains("--driver"), "{words}: {help}");
    }
}

#[test]
fn a_copy_of_the_command_alone_is_whole() {
    let folder = Folder::with_ledgers();
    let alone = folder.0.join("bursar-alone");
    // Another process writes the copy: a file that this one has open for writing is open in what other tests start meanwhile,
    // and cannot be executed until those have ended.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_bursar")).arg(&alone).status().expect("cp");
    assert!(copied.success(), "{copied}");
    for words in ["", "man", "man --to pages", "completions bash", "run --driver sim --per-worker 1GiB -- true"] {
        let mut command = Command::new(&alone);
        command.args(words.split_whitespace()).current_dir(&folder.0).env_clear();
        let output = command.env("BURSAR_LEDGER_DIR", folder.ledgers()).env("PATH", "/usr/bin:/bin").output();
        let output = output.expect("it was copied");
        assert!(
            output.status.success() && !output.stdout.is_empty() || words.starts_with("run"),
            "{words}: {output:?}"
        );
        assert!(output.status.success(), "{words}: {output:?}");
    }
}

#[test]
fn c3_a_machine_without_cards_has_no_resources_for_ray() {
    let folder = Folder::with_ledgers();
    for (words, printed) in [("ray-resources", "{}\n"), ("ray-resources --labels", "\n")] {
        let output = folder.bursar(words);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), printed.to_owned()), "{output:?}");
    }
}

#[test]
fn c3_a_card_whose_ledger_cannot_be_read_is_left_out_of_rays_resources() {
    let folder = Folder::with_ledgers();
    let cards = format!("--driver sim --sim-devices 2x8GiB@ray-{}", std::process::id());
    let limited = folder.bursar(&format!("ledger limit 0 4GiB {cards}"));
    assert!(limited.status.success(), "{limited:?}");
    let whole = json(&folder.bursar(&format!("ray-resources {cards}")));
    assert_eq!(whole["bursar_gpu_bytes"], Bytes::gib(12).get());
    let made = std::fs::read_dir(folder.ledgers()).unwrap().map(|file| file.unwrap().path());
    let ledgers: Vec<_> = made.filter(|file| file.extension().is_some_and(|ending| ending == "ledger")).collect();
    std::fs::write(&ledgers[0], "garbage").unwrap();
    let output = folder.bursar(&format!("ray-resources {cards}"));
    let left = json(&output);
    assert_eq!((output.status.code(), &left["bursar_gpu_bytes"]), (Some(0), &Bytes::gib(8).get().into()), "{output:?}");
    assert_eq!(left.as_object().unwrap().len(), 2);
    let named = ledgers[0].file_stem().unwrap().to_str().unwrap();
    assert!(text(&output.stderr).contains(named) && !left.to_string().contains(named), "{output:?}");
}
