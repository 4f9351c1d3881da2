//! Trials with several processes: the test starts itself again as the others. Trials that need what the machine does
//! not have are ignored.

#[path = "../common/mod.rs"]
mod common;
mod crash;
mod faults;
mod lifecycle;
mod moved;
mod peer;
mod queue;
mod reopen;
mod stopped;
mod torture;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    if let Ok(role) = std::env::var(peer::ROLE) {
        return match role.as_str() {
            "puppet" => peer::play(),
            "crash" => crash::play(),
            "torture" => torture::play(),
            "storm" => stopped::play(),
            other => panic!("there is no role {other}"),
        };
    }
    let arguments = Arguments::from_args();
    let trials = [
        lifecycle::trials(),
        reopen::trials(),
        moved::trials(),
        queue::trials(),
        stopped::trials(),
        faults::trials(),
        crash::trials(),
        torture::trials(),
    ];
    let trials = trials.into_iter().flatten().collect();
    libtest_mimic::run(&arguments, trials).exit();
}

/// A trial whose failures are panics.
fn trial(name: &str, run: fn()) -> Trial {
    Trial::test(name, move || {
        std::panic::catch_unwind(run).map_err(|reason| {
            let text = reason.downcast_ref::<String>().cloned();
            Failed::from(
                text.or_else(|| reason.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default(),
            )
        })
    })
}
