//! D3: ordinals follow `CUDA_VISIBLE_DEVICES`, in every form it allows. The driver reads the variable once per process, so
//! each form is tried in a process of its own.

use bursar_conformance::CudaLibrary;
use bursar_core::{DeviceId, Driver};
use bursar_cuda::Cuda;
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::{Command, ExitCode};

/// The environment variable of the child processes that only print which devices they see.
const CHILD_VARIABLE: &str = "BURSAR_ASK_VISIBLE_DEVICES";

/// Returns the devices that a process with this value sees, or why it sees none.
fn seen(value: Option<&str>) -> Result<Vec<String>, String> {
    let mut child = Command::new(std::env::current_exe().expect("this test is a program"));
    child.env(CHILD_VARIABLE, "1").env_remove("CUDA_VISIBLE_DEVICES");
    if let Some(value) = value {
        child.env("CUDA_VISIBLE_DEVICES", value);
    }
    let output = child.output().expect("it was started before");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = said.lines().map(str::to_owned);
    if output.status.success() { Ok(lines.collect()) } else { Err(said) }
}

#[allow(clippy::print_stdout, reason = "the result of a child process")]
fn print_devices() -> ExitCode {
    match Cuda::load() {
        Ok(cuda) => {
            for ordinal in 0..cuda.device_count() {
                println!("{}", cuda.facts(DeviceId(ordinal)).expect("a device").uuid);
            }
            ExitCode::SUCCESS
        }
        Err(absent) => {
            println!("{absent}");
            ExitCode::FAILURE
        }
    }
}

fn d3_nothing_visible_is_no_device_and_says_why() -> Result<(), Failed> {
    for value in ["", "-1", "nonsense", "99"] {
        let why = seen(Some(value)).err().ok_or(format!("{value:?} shows a device"))?;
        if !why.contains("CUDA_VISIBLE_DEVICES") {
            return Err(format!("{value:?}: {why:?} does not name the variable").into());
        }
    }
    Ok(())
}

fn d3_devices_are_numbered_in_the_order_they_are_named() -> Result<(), Failed> {
    let all = seen(None)?;
    let reversed: Vec<String> = (0..all.len()).rev().map(|ordinal| ordinal.to_string()).collect();
    let turned: Vec<String> = all.iter().rev().cloned().collect();
    assert_eq!(seen(Some(&reversed.join(",")))?, turned, "by ordinal");
    assert_eq!(seen(Some(&turned.join(",")))?, turned, "by UUID");
    let prefix: String = all[0].chars().take("GPU-12345678".len()).collect();
    assert_eq!(seen(Some(&prefix))?, all[..1], "by the beginning of a UUID");
    assert_eq!(seen(Some("0,99"))?, all[..1], "up to the first that does not exist");
    Ok(())
}

type Clause = fn() -> Result<(), Failed>;

fn main() -> ExitCode {
    if std::env::var_os(CHILD_VARIABLE).is_some() {
        return print_devices();
    }
    // Devices with a name are the same in every process.
    CudaLibrary::judge_both("3x1GiB@visible-devices", |library| {
        let ignored = Cuda::load().is_err() && library.may_be_absent();
        let clauses: [(&str, Clause); 2] = [
            ("d3_nothing_visible_is_no_device_and_says_why", d3_nothing_visible_is_no_device_and_says_why),
            (
                "d3_devices_are_numbered_in_the_order_they_are_named",
                d3_devices_are_numbered_in_the_order_they_are_named,
            ),
        ];
        let trial = |(name, run): (&str, Clause)| {
            Trial::test(format!("{}::{name}", library.rows()), run).with_ignored_flag(ignored)
        };
        libtest_mimic::run(&Arguments::from_args(), clauses.map(trial).into()).exit_code()
    })
}
