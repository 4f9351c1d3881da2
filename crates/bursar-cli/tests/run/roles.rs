//! The roles that this program can be started in besides running the trials.

use super::rig::Rig;
use bursar::device::DeviceContext;
use bursar::fit::{Spec, fit_workers};
use bursar::ledger::{Ledger, Reservation};
use bursar::memory::Account;
use bursar::{Bytes, DeviceId};
use std::io::{Read, Write};
use std::process::{Command, ExitCode};

/// The environment variable that names the role.
pub(crate) const VARIABLE: &str = "BURSAR_TEST_ROLE";

/// A worker that draws its whole share and one byte more, when the gate `draw` opens, and ends when `end` does.
pub(crate) const DRAW: &str = "draw";
/// A program without a ledger that takes 40 GiB of the first device, until its input ends.
pub(crate) const GRAB: &str = "grab";
/// Another program with a ledger that reserves 60 GiB on each device, until its input ends.
pub(crate) const RESERVE: &str = "reserve";
/// A program that starts three workers by the library, each of which prints its environment.
pub(crate) const START: &str = "start";

pub(crate) fn play(role: &str) -> ExitCode {
    match role {
        DRAW => draw(),
        GRAB => {
            let driver = bursar::driver::cuda_or_simulated().expect("devices");
            driver.allocate(DeviceId(0), 40 << 30).expect("room");
            say("grabbed");
            wait_for_input();
        }
        RESERVE => {
            let driver = bursar::driver::cuda_or_simulated().expect("devices");
            let ledger = |device| {
                let context = DeviceContext::open(driver.clone(), DeviceId(device)).expect("a device");
                Ledger::for_device(&context).expect("a ledger").reserve(Bytes::gib(60)).expect("room")
            };
            let aside = [0, 1].map(ledger);
            say("reserved");
            wait_for_input();
            drop(aside);
        }
        START => start(),
        other => panic!("{other} is no role"),
    }
    ExitCode::SUCCESS
}

fn start() {
    let driver = bursar::driver::cuda_or_simulated().expect("devices");
    let open = |device| DeviceContext::open(driver.clone(), DeviceId(device)).expect("a device");
    let spec = Spec::vram("embed", [0, 1].map(open)).fixed(Bytes::gib(6)).per_worker(Bytes::gib(10)).want(3);
    let workers = fit_workers(&spec).and_then(|reserved| reserved.into_workers()).expect("three fit");
    for worker in &workers {
        let output = worker.apply(&mut Command::new("env")).output().expect("a command");
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            say(&format!("[worker {}] {line}", worker.number()));
        }
    }
    let context = workers[0].context().expect("a device");
    let labels = Ledger::for_device(context).and_then(|ledger| ledger.reading()).expect("a ledger").processes;
    say(&format!("labels {:?}", labels.iter().map(|process| &process.labels).collect::<Vec<_>>()));
    // A child draws on its share by the token.
    let tokens =
        workers.iter().flat_map(|worker| worker.variables()).filter(|(name, _)| *name == Reservation::VARIABLE);
    let tokens: Vec<_> = tokens.map(|(_, token)| token.into_string().expect("text")).collect();
    let share = Reservation::from_token(&tokens[2]).expect("a token");
    say(&format!("share {} {:?}", share.bytes(), share.label()));
}

fn draw() {
    let share = Reservation::from_environment().expect("a token that is right").expect("a token");
    let driver = bursar::driver::cuda_or_simulated().expect("devices");
    let uuid = std::env::var("CUDA_VISIBLE_DEVICES").expect("a device");
    let is_mine = |device: &DeviceId| driver.facts(*device).expect("facts").uuid.to_string() == uuid;
    let device = (0..driver.device_count()).map(DeviceId).find(is_mine).expect("our device");
    say("seated");
    pass("draw");
    let bytes = share.bytes();
    share.charge(bytes).expect("the share is ours");
    driver.allocate(device, bytes.get()).expect("what was promised is there");
    let refused = share.charge(Bytes(1)).expect_err("a byte more is not");
    assert!(refused.is_capacity(), "{refused}");
    say(&format!("drew {} of {device}", bytes));
    pass("end");
}

fn say(text: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "{text}").and_then(|()| out.flush()).expect("somebody reads");
}

/// Waits until a gate opens, if there is one.
fn pass(gate: &str) {
    let _ = std::fs::read(gate);
}

fn wait_for_input() {
    std::io::stdin().read_to_end(&mut Vec::new()).expect("input");
}

/// Returns the command of this program in a role, beside a run.
pub(crate) fn beside(rig: &Rig, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.env(VARIABLE, role);
    rig.place(&mut command);
    command
}

/// Returns the command of a run whose workers are this program in a role.
pub(crate) fn within(rig: &Rig, options: &str, role: &str) -> Command {
    let this = std::env::current_exe().expect("this program");
    let mut command = rig.run(options, &[this.to_str().expect("a plain name")]);
    command.env(VARIABLE, role);
    command
}
