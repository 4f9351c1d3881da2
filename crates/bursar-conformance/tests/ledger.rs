//! Trials of the ledger between processes, on devices that all of them can open: named simulated ones always, also behind
//! CUDA's own interface, and CUDA if there is a device. Every process is this program, started again with a role.

#[path = "ledger/processes.rs"]
mod processes;
#[path = "ledger/role.rs"]
mod role;

use bursar_conformance::CudaLibrary;
use bursar_cuda::Cuda;
use libtest_mimic::{Arguments, Trial};
use processes::LedgerFolder;
use role::Driver;
use std::process::ExitCode;
use std::time::Duration;

type Run = fn(&LedgerFolder);

const TRIALS: &[(&str, Run)] = &[
    ("l6_memory_of_a_killed_process_is_had_within_five_seconds", memory_of_a_killed_process_is_had),
    ("l2_an_owner_gets_what_a_pool_of_another_process_only_keeps", an_owner_gets_what_a_pool_only_keeps),
    ("l3_a_stack_on_a_reservation_is_never_refused_what_was_set_aside", a_stack_on_a_reservation_is_never_refused),
];

fn main() -> ExitCode {
    if let Some(failed) = role::run_if_child() {
        return failed;
    }
    CudaLibrary::judge_both("1x8GiB@ledger-trials", |library| {
        let absent = Cuda::load().is_err() && library.may_be_absent();
        let trial = |driver: Driver, name: &str, run: Run| {
            let row = if driver == Driver::Cuda { library.rows() } else { driver.name() };
            let trial = Trial::test(format!("{row}::{name}"), move || {
                if driver == Driver::Cuda {
                    Cuda::load()?;
                }
                run(&LedgerFolder::new(driver));
                Ok(())
            });
            trial.with_ignored_flag(driver == Driver::Cuda && absent)
        };
        let of = |driver| TRIALS.iter().map(move |&(name, run)| trial(driver, name, run));
        let mut trials: Vec<Trial> = of(Driver::Cuda).collect();
        if library == CudaLibrary::Driver {
            trials.splice(..0, of(Driver::Sim));
        }
        // Processes of different trials would see each other's memory as unmanaged.
        let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
        libtest_mimic::run(&arguments, trials).exit_code()
    })
}

/// The most that two measurements of the same memory may differ: drivers keep a little more or less after work was done.
const SLACK: u64 = 64 << 20;

fn memory_of_a_killed_process_is_had(folder: &LedgerFolder) {
    let mut survivor = folder.start("tenant");
    let overhead = survivor.number("overhead");
    let mut victim = folder.start("tenant");
    assert_eq!(victim.ask("hold 3"), "held", "three quarters of the limit");
    assert_eq!(survivor.ask("hold 3"), "refused", "a quarter is left");
    assert_eq!(survivor.ask("hold 1"), "held", "to the byte");
    victim.kill();
    let waited = Duration::from_millis(survivor.number("grow 3"));
    assert!(waited < Duration::from_secs(5), "{waited:?}");
    let unmanaged = survivor.number(&format!("settle {overhead}"));
    assert!(unmanaged.abs_diff(overhead) <= SLACK, "{unmanaged} bytes unmanaged, {overhead} before");
    survivor.end();
}

fn an_owner_gets_what_a_pool_only_keeps(folder: &LedgerFolder) {
    let mut owner = folder.start("owner");
    assert_eq!(owner.ask("guarantee 3"), "done");
    let mut borrower = folder.start("borrower");
    assert_eq!(borrower.ask("keep 4"), "kept", "all of it, which nobody uses");
    let waited = Duration::from_millis(owner.number("grow 3"));
    assert!(waited < Duration::from_secs(5), "{waited:?}");
    assert_eq!(borrower.ask("hold 2"), "refused", "it is the owner's now");
    owner.end();
    assert_eq!(borrower.ask("hold 2"), "held");
    borrower.end();
}

fn a_stack_on_a_reservation_is_never_refused(folder: &LedgerFolder) {
    let mut first = folder.start("tenant");
    assert_eq!(first.ask("reserve 3"), "reserved");
    let mut second = folder.start("tenant");
    assert_eq!(second.ask("reserve 2"), "refused");
    assert_eq!(second.ask("hold 1"), "held");
    assert_eq!(first.ask("draw"), "drawn", "whatever others take meanwhile");
    first.kill();
    assert_eq!(second.ask("reserve 3"), "reserved", "the rest of it came back with its owner");
    second.end();
}
